"""How a screen is asked for: its width, its units, its marks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memsheet.frozen import dataclass, replace
from memsheet.units import GIB, format_bytes, format_giga

if TYPE_CHECKING:
    from memsheet.exchange.shared.file_format import FileReading


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How to print: ``width`` in columns; decimal GB in place of GiB; every item; colours; plain ASCII;
    ``fine``: columns in MiB or MB; ``digits`` after the point of what must add up and compare; ``brims``:
    rooms whose size, as a need, fills them to the byte; ``typed``: the options of the line that is answered,
    each with its keys; ``program``: whose command is answered, where another's accounting stands in for it;
    ``server``: the server's command or file that is answered, which changes are said in the words of;
    ``model_flag``: the line names a model by ``--model``, as files are its arguments.
    """

    width: int = 80
    decimal: bool = False
    full: bool = False
    colour: bool = False
    ascii: bool = False
    fine: bool = False
    digits: int = 2
    brims: tuple[int, ...] = ()
    typed: tuple[tuple[str, Any, Mapping[str, Any]], ...] = ()
    program: str = ""
    server: FileReading | None = None
    model_flag: bool = False

    @property
    def unit(self) -> str:
        """What columns are in."""
        return (("GB", "MB") if self.decimal else ("GiB", "MiB"))[self.fine]

    def fitted(self, largest: int) -> Look:
        """The same, with columns in which ``largest`` bytes and their parts can be read."""
        return replace(self, fine=largest < (10**9 if self.decimal else GIB))

    def need(self, size: int, digits: int = 1) -> str:
        """A need, rounded up; one that fills a room to the byte is printed as the room is."""
        return format_bytes(size, decimal=self.decimal, digits=digits, headroom=size in self.brims)

    def room(self, size: int, digits: int = 1) -> str:
        """A capacity or headroom, rounded down."""
        return format_bytes(size, decimal=self.decimal, headroom=True, digits=digits)

    def cell(self, size: int, *, headroom: bool = False) -> str:
        """A need, or what is left, in a column that names the unit."""
        factor = (1000 if self.decimal else 1024) if self.fine else 1
        return format_giga(
            size * factor, decimal=self.decimal, digits=self.digits, headroom=headroom or size in self.brims
        )
