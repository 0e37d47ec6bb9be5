"""Sizes of ZeRO's flat buffers and buckets, with DeepSpeed's own defaults (read at one commit)."""

from __future__ import annotations

from memsheet.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Sizes of ``zero_optimization`` in elements, with DeepSpeed's own defaults (zero/config.py).

    ``transformers`` writes others where its configuration says "auto": reduce_bucket h², prefetch 0.9 h²,
    persistence 10 h.
    """

    reduce_bucket: int = 500_000_000  # line 113
    prefetch: int = 50_000_000  # line 215
    persistence: int = 100_000  # line 220
    max_live: int = 1_000_000_000  # line 238
    max_reuse: int = 1_000_000_000  # line 243
    sub_group: int = 1_000_000_000  # line 175
    overlap: bool | None = None  # line 138: None is on at stage 3 and off before

    def buffers(self, zero: int) -> int:
        """Fixed buckets of ``reduce_bucket`` elements: stages 1 and 2 fill a second one while the first is
        reduced.
        """
        return 2 if zero in (1, 2) and self.overlap else 1


BUCKETS = Buckets()
ALLREDUCE_BUCKET = 500_000_000
"""Elements that the engine without ZeRO flattens for one all-reduce (engine.py:3691-3702)."""
ALIGNMENT = 2
"""Flat buffers are padded to this many elements a rank (zero/stage_1_and_2.py:347)."""
