"""What ``memsheet check --json`` says of files: the parts of ``memsheet/checked/1`` beside its sheet."""

from __future__ import annotations

from typing import Any

from memsheet.report.schema.types import Strict


class UnknownKey(Strict):
    """A key that its engine does not know, with the known one that is most like it."""

    key: str
    nearest: str | None


class UnmodelledKey(Strict):
    """A key whose bytes nobody accounts, so that no verdict is sure."""

    key: str
    value: Any


class File(Strict):
    """One file, as its engine reads it. ``request``: the keys of a plan that it says; ``ignored``: known keys
    without bytes.
    """

    file: str
    format: str
    engine_version: str
    used: dict[str, Any]
    ignored: list[str]
    unknown: list[UnknownKey]
    unmodelled: list[UnmodelledKey]
    request: dict[str, Any]


class Mistake(Strict):
    """A known mistake, and what cures it. ``saves_bytes`` is of one GPU (less than nothing: it takes them),
    null where no plan says it; ``gains_bytes`` is what a server's cache gets; ``stops``: the engine refuses
    the file; ``source``: who says so.
    """

    rule: str
    where: str
    says: str
    cure: str
    changes: dict[str, Any] | None
    saves_bytes: int | None
    gains_bytes: int | None
    stops: bool
    source: str


class MovedKey(Strict):
    """Bytes that a key adds to a GPU beyond the sheet, or takes from it."""

    key: str
    why: str
    low_bytes: int
    high_bytes: int
