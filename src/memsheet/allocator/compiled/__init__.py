"""The loop of whole scripts in C, where it was built; what it may not do, or is not there for, is the part of
the Python beside it, which gives the same answers. MEMSHEET_PURE set to anything leaves it out.
"""

from __future__ import annotations

import os
from collections.abc import Callable

INTERFACE = 1
"""Of play.c: one that was built of another is left out."""


def _compiled_play() -> Callable[..., tuple[int, int, int, int] | None] | None:
    if os.environ.get("MEMSHEET_PURE"):
        return None
    try:
        from memsheet.allocator.compiled import play
    except ImportError:
        return None
    return play.play_script if play.INTERFACE == INTERFACE else None


compiled_play = _compiled_play()
"""``play_script`` of play.c, None where Python plays."""
