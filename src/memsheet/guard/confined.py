"""Questions of strangers: while one is answered, no file is there but those that it may see.

Whoever asks over a network names models, plans and files as a person on the machine does. What would be
looked up on disk is looked up inside the given folders alone; anything else does not exist.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_ROOTS: ContextVar[tuple[str, ...] | None] = ContextVar("roots", default=None)


@contextmanager
def confined_to(*folders: Path) -> Iterator[None]:
    """Until the end, ``guard`` sees no file outside these folders, wherever links lead."""
    token = _ROOTS.set(tuple(os.path.realpath(folder) for folder in folders))
    try:
        yield
    finally:
        _ROOTS.reset(token)


def is_hidden(path: Path | str) -> bool:
    """Whether a path lies outside what may be seen now."""
    roots = _ROOTS.get()
    if roots is None:
        return False
    try:
        found = os.path.realpath(path)
    except (OSError, ValueError):
        return True
    return not any(found == root or found.startswith(root + os.sep) for root in roots)
