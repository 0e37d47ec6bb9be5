"""What a message said: its kind, its figures, and where it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import BINARY, Interval, printed_bytes
from memsheet.frozen import NamedTuple, dataclass, field


class Cause(Enum):
    """What a job died of."""

    REAL_NEED = "real_need"
    FRAGMENTATION = "fragmentation"
    OTHER_PROCESS = "other_process"
    OUTSIDE_ALLOCATOR = "outside_allocator"
    LIMIT_SET = "limit_set"
    NOT_GPU_MEMORY = "not_gpu_memory"
    LEAK = "leak"
    REGIME_CHANGE = "regime_change"
    ENGINE_OVERCOMMIT = "engine_overcommit"
    ENGINE_UNDERPROVISION = "engine_underprovision"
    WAKE_UP_RACE = "wake_up_race"
    FOLLOW_UP_ERROR = "follow_up_error"
    UNSUPPORTED_SETTING = "unsupported_setting"
    UNKNOWN = "unknown"

    __hash__ = object.__hash__


YES, NO, MAYBE = "yes", "no", "maybe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cure:
    """A change. ``helps``: whether the request that failed would certainly have been served (or the check
    passed), certainly not, or perhaps; ``saves_bytes``: at the most, None where nobody can say; ``where``:
    the line to write, and ``why``: the reason for ``helps``.
    """

    change: str
    helps: str
    saves_bytes: int | None = None
    where: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """The tensor that a requested size is. ``exact``: whether the product is the size, and not one that a
    length makes it; ``rows``: the fewest and the most tokens that the size may stand for, where a text names
    none and several do; ``others``: tensors that are as large and as likely, where this is not the only one.
    """

    component: str
    path: str
    shape: str
    exact: bool
    words: str = ""
    rows: tuple[int, int] | None = None
    others: tuple[Term, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What one message comes to. ``causes``: one where it is decided, those between which it is open, or none
    where nothing is known; ``arithmetic``: lines that close.
    """

    causes: tuple[Cause, ...]
    because: str
    arithmetic: tuple[str, ...] = ()
    missing: Interval | None = None
    cures: tuple[Cure, ...] = ()
    term: Term | None = None
    facts: Mapping[str, Interval] = field(default_factory=dict)
    """Sizes that follow from the message's words, by the names of the document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One failing message. ``facts``: its sizes; ``words``: its other figures and names; ``processes``:
    others on the card by their numbers.
    """

    kind: str
    line: int
    facts: Mapping[str, Interval] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    processes: tuple[tuple[int, Interval], ...] = ()
    judge: Callable[[Message, Log], Judgement] | None = None
    """Of what is no message of an allocator: its verdict."""


Judge = Callable[[Message, Log], Judgement]


class Form(NamedTuple):
    """How a message looks in a text without spaces. Groups named ``x`` with a unit in ``units`` (or in a
    group ``x_unit``) are sizes, all others words.
    """

    kind: str
    pattern: re.Pattern[str]
    judge: Judge
    units: Mapping[str, str] = {}


NUMBER = r"\d{1,20}(?:\.\d{1,9})?"
UNIT = "(?:bytes|[KMGTPE]iB|[KMGT]B)"


def sized_pattern(name: str) -> str:
    """The pattern of a figure and its unit, as two groups."""
    return rf"(?P<{name}>{NUMBER})(?P<{name}_unit>{UNIT})"


def messages_of(log: Log, forms: tuple[Form, ...]) -> Iterator[Message]:
    """The first message of each form."""
    for form in forms:
        if found := form.pattern.search(log.squeezed):
            facts, words = found_figures(found, form.units)
            yield Message(
                kind=form.kind, line=log.line_at(found.start()), facts=facts, words=words, judge=form.judge
            )


def found_figures(
    found: re.Match[str], units: Mapping[str, str]
) -> tuple[dict[str, Interval], dict[str, str]]:
    """The groups of a match as sizes and as words."""
    groups = {name: text for name, text in found.groupdict().items() if text is not None}
    facts, words = {}, {}
    for name, text in groups.items():
        if name.endswith("_unit"):
            continue
        unit = groups.get(f"{name}_unit", units.get(name, ""))
        size = printed_bytes(text.replace(",", ""), unit) if unit in BINARY else None
        if size is not None:
            facts[name] = size
        elif not unit:
            words[name] = text
    return facts, words
