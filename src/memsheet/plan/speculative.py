"""How an engine drafts tokens for a server to verify (speculative decoding), as data: an engine's file fills
it in (``memsheet/engines/<name>``).
"""

from __future__ import annotations

from collections.abc import Callable

from memsheet.frozen import dataclass
from memsheet.patterns import late_pattern
from memsheet.plan.plan import SpeculativeMethod

NUMBER = late_pattern(r"(\d+)\.(\d+)(?:\.(\d+))?")
NEWEST = (10**6,)
Release = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """``methods``: those that releases have from a number on. ``axes``: mesh degrees that may exceed 1
    meanwhile, ``sequences``: how many are drafted for at once (None: all that are served).

    ``steps``: tokens of a checkpoint's own heads where nobody says (None: as many as there are);
    ``whole_rounds``: of more than there are it takes multiples alone. ``vocabulary_gap``: tokens by which the
    draft's vocabulary may differ. ``keeps_states``: recurrent states of every drafted token are accounted.
    ``shortens``: whether a version makes no sequence longer than its draft was made for.
    """

    methods: tuple[tuple[Release, tuple[SpeculativeMethod, ...]], ...] = ()
    axes: tuple[str, ...] = ("tp", "pp")
    sequences: int | None = None
    steps: int | None = None
    whole_rounds: bool = False
    vocabulary_gap: int = 0
    keeps_states: bool = False
    shortens: Callable[[str | None], bool] = lambda _: False

    def methods_of(self, version: str | None) -> tuple[SpeculativeMethod, ...]:
        """The methods of a release."""
        number = version_of(version)
        return next((methods for since, methods in reversed(self.methods) if since <= number), ())


def version_of(version: str | None) -> Release:
    """A release's number, one past all where none is said."""
    found = NUMBER.search(version) if version else None
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else NEWEST


HEADS = frozenset({
    "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe", "glm4_moe_lite", "qwen3_next", "hy_v3", "qwen3_5_text",
    "qwen3_5_moe_text",
})  # fmt: skip
"""Families whose own layers for further tokens are written down: two norms, a matrix of (hidden, 2 hidden),
one layer like the last, a norm (``READ_IN``; SGLang v0.5.23 models/deepseek_nextn.py:59, qwen3_5_mtp.py).
"""
