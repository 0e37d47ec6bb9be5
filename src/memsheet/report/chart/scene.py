"""What a picture of a timeline shows."""

from __future__ import annotations

from memsheet.frozen import dataclass
from memsheet.timeline import Timeline
from memsheet.units import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A timeline, the caller's title, what the device gives (bytes, where a device is asked about), and
    whether sizes are in GB.
    """

    timeline: Timeline
    title: str = ""
    capacity_bytes: int | None = None
    decimal: bool = False

    @property
    def unit(self) -> int:
        """Bytes of one step of the vertical axis."""
        return 10**9 if self.decimal else GIB
