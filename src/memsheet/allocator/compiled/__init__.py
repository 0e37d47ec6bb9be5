"""The loops over whole scripts in C, where they were built; where not, and for what they refuse, there is
Python that gives the same answers. MEMSHEET_PURE set to anything leaves them out.
"""

from __future__ import annotations

import os
from types import ModuleType

INTERFACE = 2
"""Of play.c: one that was built of another is left out."""


def _compiled_loops() -> ModuleType | None:
    if os.environ.get("MEMSHEET_PURE"):
        return None
    try:
        from memsheet.allocator.compiled import play
    except ImportError:
        return None
    return play if play.INTERFACE == INTERFACE else None


compiled_loops = _compiled_loops()
"""play.c, None where Python does its work."""
