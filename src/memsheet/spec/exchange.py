"""What an exchange is, as data: which keys of a plan an engine's file can say, where, and how each is written. One file an engine fills
this in (``memsheet/exchange``).

An *asked* mapping is a plan's request, whole (``flatten`` of its document without what is null), and what the machines and the batch come to:
``@gpus``, ``@nodes``, ``@per_node``, ``@accumulation`` (micro-batches of a step on one rank), ``@model``. *Values* are what stands in a
file, by dotted places (``zero_optimization.stage``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from memsheet.errors import Problem, nearest
from memsheet.frozen import dataclass

Values = Mapping[str, Any]
AUTO = "auto"
MAX_COUNT = 2**30


def _nothing(_: Values) -> Iterable[Problem]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One place of a file. ``says``: the plan's key that stands there, as it is or by ``names`` (the plan's value → the file's).

    Where that is not enough, ``out`` makes the file's value of what is asked (None leaves it out), and ``back`` a request of the file's
    value and all of the file. ``usual``: what the engine takes where the file says nothing.
    """

    at: str
    says: str = ""
    names: Mapping[Any, Any] | None = None
    out: Callable[[Values], Any] | None = None
    back: Callable[[Any, Values], Mapping[str, Any]] | None = None
    usual: Any = None
    source: str

    def write(self, asked: Values) -> Any:
        if self.out is not None:
            return self.out(asked)
        value = asked.get(self.says)
        return value if self.names is None else self.names.get(value)

    def read(self, value: Any, values: Values) -> Mapping[str, Any]:
        if self.back is not None:
            return self.back(value, values)
        if self.names is None:
            return {self.says: value}
        return {self.says: next((plan for plan, name in self.names.items() if name == value), value)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One engine's file. ``known``: its other keys, which change no byte (``a.*`` is all of a group); ``unmodelled``: those that do and are
    not accounted, with the values that are harmless; ``beside``: keys of a plan that the training script decides, not this file.
    """

    name: str
    file: str
    kind: str  # json, yaml or shell
    tested: str  # the version whose source was read, and whose parser is tried
    engines: tuple[str, ...]  # of a plan, that it can run
    keys: tuple[Key, ...]
    marks: frozenset[str]  # a file with one of these at its top is of this format
    beside: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    unmodelled: Mapping[str, tuple[Any, ...]] = {}
    fixed: Callable[[Values], Mapping[str, Any]] = lambda _: {}  # what every file says
    differs: Mapping[str, str] = {}  # keys of a plan that the engine runs otherwise, and where that is told
    problems: Callable[[Values], Iterable[Problem]] = _nothing  # what the engine cannot do, beyond what the keys show
    strict: tuple[str, ...] = ()  # groups in which the engine stops at an unknown key ("" is the top); elsewhere it ignores it
    said: Mapping[str, Any] = {}  # what being such a file says of the plan
    compose: Callable[[Values, Values], str] | None = None  # text of a shell format, of values and what is asked
    parse: Callable[[str], Mapping[str, Any]] | None = None  # and back
    more: Callable[[Values], Mapping[str, str]] | None = None  # further files of the same values, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What a file says. ``ignored``: known and without bytes; ``unmodelled``: with bytes that nobody accounts."""

    format: Format
    values: Values
    request: Mapping[str, Any]
    used: tuple[str, ...]
    ignored: tuple[str, ...]
    unknown: tuple[tuple[str, str], ...]
    unmodelled: tuple[tuple[str, Any], ...]
    assumed: tuple[str, ...]
    problems: tuple[Problem, ...]


def read(format: Format, values: Values) -> Read:
    """A file's values as a request, each key accounted for: used, ignored, unknown or not modelled."""
    rows = {key.at: key for key in format.keys}
    request: dict[str, Any] = dict(format.said)
    assumed: list[str] = []
    problems: list[Problem] = []
    for at, row in rows.items():
        value = values.get(at)
        if value is None or value == AUTO:
            assumed += [f"{at} = auto: the training script fills it in"] if value == AUTO else []
            assumed += [f"{at} = {row.usual} ({format.tested}'s default)"] if row.usual is not None and value is None else []
            value = row.usual if value is None else None
        if value is not None:
            said = {key: held for key, held in row.read(value, values).items() if held is not None}
            problems += _miscounted(at, said)
            request.update(said)
    other = [at for at in values if at not in rows]
    unmodelled = [(at, values[at]) for at in other if (ok := format.unmodelled.get(at)) is not None and values[at] not in (*ok, None, AUTO)]
    unknown = [at for at in other if at not in format.unmodelled and not _known(format, at)]
    return Read(
        format=format, values=values, request=request, used=tuple(at for at in rows if values.get(at) is not None),
        ignored=tuple(at for at in other if at not in unknown and at not in dict(unmodelled)), unmodelled=tuple(unmodelled),
        unknown=tuple((at, _near(format, at)) for at in unknown), assumed=tuple(assumed), problems=tuple(problems),
    )  # fmt: skip


def _known(format: Format, at: str) -> bool:
    parts = at.split(".")
    return at in format.known or any(".".join((*parts[:n], "*")) in format.known for n in range(1, len(parts)))


def _near(format: Format, at: str) -> str:
    """The known key most like ``at``; a right name in a wrong place counts."""
    names = [*(key.at for key in format.keys), *format.unmodelled, *(k for k in format.known if not k.endswith("*"))]
    last = at.rsplit(".", 1)[-1]
    moved = [name for name in names if name.rsplit(".", 1)[-1] == last]
    return (moved or nearest(at, names, n=1) or [""])[0]


def _miscounted(at: str, said: Mapping[str, Any]) -> Iterable[Problem]:
    """What a request's own check does not see: counts that are no keys of a plan."""
    for key, value in said.items():
        if key.startswith("@") and not (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_COUNT):
            yield Problem(field=at, value=value, reason="is not a positive whole number")
