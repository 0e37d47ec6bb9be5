"""Small questions that ask for much: each member is made by a generator, and every one must be refused, or
answered, for next to nothing.

A member names the files that it needs and the command that reads them. ``ANSWERED`` says which exit codes are
right: 2 is a refusal, the others are answers in which what was asked for is left open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

REFUSED, ANSWERED = (2,), (0, 2, 10, 11)


@dataclass(frozen=True, kw_only=True)
class Amplifier:
    """``files``: their contents by name, made when asked for. ``codes``: the exit codes that are right."""

    files: Callable[[], Mapping[str, bytes]]
    command: tuple[str, ...]
    codes: tuple[int, ...] = REFUSED


def checked(
    name: str, content: Callable[[], bytes], codes: tuple[int, ...] = ANSWERED, *more: str
) -> Amplifier:
    """A configuration that ``check`` reads."""
    return Amplifier(files=lambda: {name: content()}, command=("check", name, *more), codes=codes)
