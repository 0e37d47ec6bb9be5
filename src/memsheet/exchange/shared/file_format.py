"""What an exchange is, as data: which keys of a plan an engine's file can say, where, and how each is
written. One file an engine fills this in (``memsheet/exchange``).

An *asked* mapping is a plan's request, whole (``flatten`` of its document without what is null), and what the
machines and the batch come to: ``@gpus``, ``@nodes``, ``@per_node``, ``@accumulation`` (micro-batches of a
step on one rank), ``@model``, ``@hidden``. In a request that is read, ``?key`` is what holds unless anything
else says the key. *Values* are what stands in a file, by dotted places (``zero_optimization.stage``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from memsheet.errors import Problem, input_error, nearest_words, raise_if_problems
from memsheet.exchange.shared.role_words import ROLES
from memsheet.frozen import dataclass, field
from memsheet.patterns import late_pattern
from memsheet.plan.values import number_in_thousands, parse_token_count
from memsheet.sheet import Instant

if TYPE_CHECKING:
    from memsheet.exchange.shared.preference_methods import Preferences


Values = Mapping[str, Any]
AUTO = "auto"
UNSET = "a variable that nobody set"
"""Of a flag in a script: what the engine gets is not in the file, so that no verdict is sure."""
MORE, KEYWORDS = "further arguments", "**"
"""Places of what a command, or a call, is given by a variable that nobody set: any option may be in it."""
MAX_COUNT, MAX_NUMBER = 2**30, 2**63
MOST_KEYS, MOST_HINTS = 2000, 32
EVERYTHING = 2**40
"""Bytes: more than any card has, where a program takes off the card whatever does not fit."""
EVERYWHERE = "*"
"""Of a format that is strict in each of its groups."""
COUNTS = ("@gpus", "@nodes", "@per_node", "@accumulation")
OPEN_SIZES = (*COUNTS, "microbatch", "global_batch", "seq_len")
"""Keys that a template may leave to whoever starts a job: a sheet is made without them, and is not sure."""


def _no_problems(_: Values) -> Iterable[Problem]:
    return ()


def _no_values(_: Values) -> Mapping[str, Any]:
    return {}


def precision_word(asked: Values) -> str:
    """What a plan is to a switch of mixed precision: bf16, fp16 or no. Sixteen-bit gradients are those of a
    model loaded so.
    """
    mixed = asked.get("precision.gradients") == "fp32" and asked.get("precision.compute")
    return mixed if mixed in ("bf16", "fp16") else "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What a key adds to a rank at its peak, beyond the sheet, which is of the engine's default. Less than
    nothing where it saves. ``instant``: the only moment of the step at which it does, None at any.
    """

    at: str
    why: str
    low_bytes: int
    high_bytes: int
    instant: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What a program took before its release ``since`` where its files say nothing: keys of the request, and
    why, in words.
    """

    since: tuple[int, int]
    changes: Mapping[str, Any]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One place of a file. ``says``: the plan's key that stands there, as it is or by ``names`` (the plan's
    value → the file's).

    Where that is not enough, ``out`` makes the file's value of what is asked (None leaves it out), and
    ``back`` a request of the file's value and all of the file. ``usual``: what the engine takes where the
    file says nothing. ``auto``: what it takes for the word, where no training script fills it in.
    """

    at: str
    says: str = ""
    names: Mapping[Any, Any] | None = None
    out: Callable[[Values], Any] | None = None
    back: Callable[[Any, Values], Mapping[str, Any]] | None = None
    usual: Any = None
    auto: Any = None
    decides: tuple[
        Any, ...
    ] = ()  # values by which the engine is to decide itself: no value of a plan, and not accounted
    holds: tuple[Any, ...] = ()  # the words that the sheet is of, where it takes ``instead`` for any other
    instead: str = ""
    reads: Callable[[Any], bool] | None = None  # whether a value is one that is accounted, None for any
    reads_open: bool = False  # whether ``back`` has something else to go by where the value is nobody's yet
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


def runs_alone(_: Values) -> tuple[str, ...]:
    """No further files, as of a format that needs none."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One engine's file. ``known``: its other keys, which change no byte (``a.*`` is all of a group);
    ``unmodelled``: those that do and are not accounted, with the values that are harmless; ``beside``: keys
    of a plan that the training script decides, not this file.
    """

    name: str
    file: str
    kind: str  # json, yaml or shell
    tested: str  # the version whose source was read, and whose parser is tried
    keys_of: str = ""  # the newest version whose keys are listed, where a file is of a newer one
    keys_complete: bool = True  # whether every key that its program takes is listed
    engines: tuple[str, ...]  # of a plan, that it can run
    keys: tuple[Key, ...]
    marks: frozenset[str]  # a file with one of these at its top is of this format
    beside: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    unmodelled: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    absent: Callable[[Values], Mapping[str, Any]] = (
        _no_values  # and what the engine takes for those of them that are not said
    )
    fixed: Callable[[Values], Mapping[str, Any]] = _no_values  # what every file says
    differs: Mapping[str, str] = field(
        default_factory=dict
    )  # keys of a plan that the engine runs otherwise, and where that is told
    problems: Callable[[Values], Iterable[Problem]] = (
        _no_problems  # what the engine cannot do, beyond what the keys show
    )
    whole: frozenset[str] = (
        frozenset()
    )  # places of objects that are one value each, however their keys are called
    needs: Mapping[str, Any] = field(
        default_factory=dict
    )  # values that stand at its top in each of its files
    never: frozenset[str] = frozenset()  # keys at the top of other tools' files, which none of its files has
    needs_one: frozenset[str] = (
        frozenset()
    )  # places, ``a.b`` inside an object, of which each of its files has one
    names_itself: Callable[[Mapping[str, Any]], bool] | None = (
        None  # whether a file's tree is its own, where no key decides it
    )
    older: Mapping[str, str] = field(
        default_factory=dict
    )  # by the engine's version, the format that it had then
    strict: tuple[
        str, ...
    ] = ()  # groups in which the engine stops at an unknown key ("" is the top); elsewhere it ignores it
    strict_since: Mapping[str, str] = field(
        default_factory=dict
    )  # of those groups in which every release's keys are listed, the first that stops at others: older
    # ones ignore them (nothing where each release in use stops)
    rename: Callable[[str], str] | None = None  # how the engine reads a key by another of its names
    refers: tuple[str, ...] = ()  # keys that name a file of DeepSpeed's, which says the rest
    inlines: tuple[str, ...] = ()  # keys that name a file of keys below them, or hold these themselves
    ships: Mapping[str, Values] = field(
        default_factory=dict
    )  # files of DeepSpeed's that its project has, by the end of their paths
    spreads: bool = False  # a script beside it loads the model, over several cards if that says device_map
    removed: frozenset[str] = frozenset()  # keys of older versions at which this one stops
    opens: Callable[[str], bool] = lambda _: (
        False
    )  # whether a key that is not known may be one of a fork's that changes bytes
    said: Mapping[str, Any] = field(default_factory=dict)  # what being such a file says of the plan
    compose: Callable[[Values, Values], str] | None = (
        None  # text of a shell format, of values and what is asked
    )
    parse: Callable[[str], Mapping[str, Any]] | None = None  # and back
    by_groups: Callable[[Mapping[str, Any]], Mapping[str, Any] | None] | None = (
        None  # the same values of a tree that nothing at its top tells, if its groups do
    )
    also: Callable[[str], Mapping[str, Any]] | None = None  # the same values from a script that says them
    own_defaults: Callable[[Values], str] = (
        lambda _: ""  # the file of the program's own defaults, by where it lies in the program's tree
    )
    started: Callable[[str, Values], Mapping[str, Any]] | None = (
        None  # the same of a script that a command starts with some flags
    )
    more: Callable[[Values], Mapping[str, str]] | None = None  # further files of the same values, by name
    gradient_sync: str = (
        ""  # which micro-batches its training reduces gradients of, "every" or "last", where it is known:
        # accelerate's no_sync keeps them for the last (transformers 5.23.0 trainer.py:1907, accelerate
        # 1.15.0 accelerator.py:1133-1172)
    )
    weighed: frozenset[str] = frozenset()  # keys of which ``moves`` tells the bytes
    describes: Mapping[str, str] = field(
        default_factory=dict
    )  # keys that say the model's own sizes: layers, hidden, vocab
    row: Callable[[Values], int | None] | None = (
        None  # tokens of the longest row, where seq_len may be of several rows packed together
    )
    by_cards: Callable[[Values, int], Mapping[str, Any]] | None = (
        None  # what the program takes by the bytes of all its cards together, where its files say nothing
    )
    moves: Callable[[Values, Values], Iterable[Moved]] | None = (
        None  # bytes that known keys add to or take from the sheet
    )
    earlier: Callable[[Values], Iterable[Earlier]] = (
        lambda _: ()  # what earlier releases of the program took where the file says nothing
    )
    notes: tuple[str, ...] = ()  # what whoever opens a written file must know
    taken: Callable[[str], tuple[str, ...]] | None = (
        None  # what a text leaves open and its defaults fill, in words
    )
    named: Callable[[str, Values], Values] | None = None  # what a file's name says beside its values
    released: Callable[[Format, str], Format] | None = None  # the format as a release of the engine has it
    # formats of further files, without which it does not run the plan
    along: Callable[[Values], tuple[str, ...]] = runs_alone
    stored: str = (
        ""  # the place of the dtype that weights are loaded in, where the checkpoint's own may be meant
    )
    model: Callable[[Values], Mapping[str, Any] | None] = lambda _: (
        None  # the model's own arguments, where the file describes it
    )
    starts: Callable[[str, Values], bool] = lambda *_: (
        False
    )  # whether a started script of that name and with such flags is one that reads them as this format
    program_known: Callable[[Values], bool] = lambda _: (
        True
    )  # whether what the file says tells which program reads it
    on_ranks: Callable[[Values, int], Mapping[str, Any]] = (
        lambda *_: {}
    )  # keys of the batch that it says once the ranks are counted that have sequences of their own
    preferences: Callable[[Values], Preferences | None] = lambda _: (
        None  # the method, where it trains on preferences
    )
    shipped: Callable[[Values], Mapping[str, Any]] = (
        _no_values  # what a configuration says that the program ships and that is named here
    )
    keeps_engine: bool = (
        False  # whether its model code's engine runs what it starts, whatever divides states beside
    )
    beside_engine: bool = (
        False  # whether it is a file that divides states for a program of another engine, too
    )
    own_processes: bool = (
        False  # whether it starts as many processes as the file says, and leaves other cards
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What a container has of its node. ``host_bytes``: of memory that it may take, None where no limit is
    said; ``small_shm``: whether its /dev/shm is the runtime's own. ``memory_at``, ``shm_at``: where a file
    says them.
    """

    host_bytes: int | None = None
    small_shm: bool = False
    memory_at: str = "resources.limits.memory"
    shm_at: str = "volumes"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReading:
    """What a file says. ``ignored``: known and without bytes; ``unmodelled``: with bytes that nobody
    accounts.
    """

    form: Format
    values: Values
    request: Mapping[str, Any]
    used: tuple[str, ...]
    ignored: tuple[str, ...]
    unknown: tuple[tuple[str, str], ...]
    unmodelled: tuple[tuple[str, Any], ...]
    assumed: tuple[str, ...]
    problems: tuple[Problem, ...]
    unsaid: frozenset[str] = (
        frozenset()
    )  # keys of the request that are the program's defaults alone, which contradict no other file
    release: str = ""  # of the program that reads it, where the file, a flag or a requirement says one
    shipped: bool = False  # whether it stands for a file that is named and lies nowhere
    guessed: bool = False  # whether that is of its name alone, and not as a project has it
    container: Container | None = None  # in which its program runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Two files of one job that say different things."""

    key: str
    said: tuple[tuple[str, Any], ...]  # by file, the one that was taken last


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """The request that all files make. ``gpus`` and ``nodes``: how many they name, if they do."""

    request: Mapping[str, Any]
    gpus: int | None
    accumulation: int | None
    assumed: tuple[str, ...]
    disagree: tuple[Disagreement, ...]
    problems: tuple[Problem, ...]
    nodes: int | None = None
    rows: int = 1  # sequences of an example, of which its batch is a multiple where files say it
    script: tuple[str, ...] = ()  # what is left to a training script, in words
    meant: tuple[
        Disagreement, ...
    ] = ()  # of a plan and the file that was written of it, where the format is known to differ


def plan_word(names: Mapping[Any, Any], value: Any) -> Any:
    """A file's word as a plan has it, or as it stands there: a list or an object is no word, and is told
    where plans are checked.
    """
    return value if isinstance(value, list | dict) else names.get(value, value)


def read_format_values(form: Format, values: Values) -> FileReading:
    """A file's values as a request, each key accounted for: used, ignored, unknown or not modelled."""
    _check_values(values)
    rows = {key.at: key for key in form.keys}
    values = _renamed_values(form, values, rows)
    shipped = form.shipped(values)
    values = {**shipped, **{at: UNSET if _is_open_list(held) else held for at, held in values.items()}}
    said = _SaidByRows(dict(form.said))
    if shipped:
        said.assumed.append(f"{len(shipped)} keys as the configuration says that {form.tested} ships")
    for at, row in rows.items():
        said.read_row(at, row, values, form.tested)
    other = [at for at in values if at not in rows]
    told = {*form.unmodelled, MORE}
    unknown = [at for at in other if at not in told and not _is_known_key(form, at)]
    unmodelled = (
        *_unmodelled_values(form, values, rows, said.open_counts),
        *((at, values[at]) for at in unknown if form.opens(at) and values[at] not in (False, None)),
    )
    heeded = {*unknown, *form.weighed, *(at for at, _ in unmodelled)}
    return FileReading(
        form=form,
        values=values,
        request=said.request,
        used=tuple(at for at in values if at in form.weighed or (at in rows and values[at] is not None)),
        ignored=tuple(at for at in other if at not in heeded),
        unmodelled=unmodelled,
        unsaid=frozenset(said.request.keys() - said.firm - form.said.keys()),
        unknown=tuple(
            (at, nearest_known_key(form, at) if number < MOST_HINTS else "")
            for number, at in enumerate(unknown)
        ),
        assumed=said.assumptions(),
        problems=tuple(said.problems),
    )


def _check_values(values: Values) -> None:
    """Raises InputError for numbers that nothing has, and for more keys than a configuration."""
    raise_if_problems(
        Problem(
            field=at,
            value=held,
            reason="is outside ±2^63",
            hint="no size of a model or a machine is near this",
        )
        for at, held in values.items()
        if isinstance(held, float) and not abs(held) < MAX_NUMBER
    )
    if len(values) > MOST_KEYS:
        raise input_error(
            "file", len(values), f"are more than the {MOST_KEYS} keys that a configuration may have"
        )


def _renamed_values(form: Format, values: Values, rows: Mapping[str, Key]) -> dict[str, Any]:
    """The values by the names that the format's own release has, without groups that hold nothing."""
    return {
        form.rename(at) if form.rename else at: held
        for at, held in values.items()
        if held != {} or at in rows or at in form.removed
    }


class _SaidByRows:
    """What a format's rows say of a file's values. ``firm``: keys that the file says, and no default;
    ``open_counts``: counts that are left to whoever starts the job, by where they stand.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.assumed: list[str] = []
        self.problems: list[Problem] = []
        self.firm: set[str] = set()
        self.open_counts: dict[str, str] = {}
        self._by_default: dict[str, Mapping[str, Any]] = {}

    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted; another key may say it in a default's place."""
        return tuple(
            line for line in self.assumed if self._by_default.get(line, {}).items() <= self.request.items()
        )

    def read_row(self, at: str, row: Key, values: Values, release: str) -> None:
        """Take what a row says of its value, or of its default in ``release``."""
        value, taken = values.get(at), False
        if value == AUTO and row.auto is not None:
            value = row.auto
            self.assumed.append(f"{at} = auto: {_value_text(value)} on GPUs that can")
        if value in row.decides:
            self.assumed.append(f"{at} = {_value_text(value)}: the engine decides")
            return
        if value in (AUTO, UNSET) and not (value == UNSET and row.reads_open):
            why = "the training script fills it in" if value == AUTO else "the sheet is made without it"
            self.assumed.append(f"{at} = {value}: {why}")
            return
        if value is None:
            value, taken = row.usual, True
        if value is not None:
            self._take(at, value, row, values, release if taken else "")

    def _take(self, at: str, value: Any, row: Key, values: Values, default_of: str) -> None:
        """``default_of``: the release whose default the value is; nothing where the file says it."""
        said = {
            key: held
            for key, held in row.read(value, values).items()
            if held not in (None, UNSET) and not _is_open_list(held)
        }
        if default_of and said:
            self.assumed.append(line := f"{at} = {_value_text(value)} ({default_of}'s default)")
            self._by_default[line] = said
        if short := [key for key, held in said.items() if number_in_thousands(key, held)]:
            said |= {key: parse_token_count(said[key]) for key in short}
            self.assumed.append(f"{at} = {value}: counted as {said[short[0]]:,}")
        if counts := _open_counts(said):
            said = {key: held for key, held in said.items() if key not in counts}
            self.open_counts[at] = ", ".join(counts.values())
        self.problems += _invalid_count_problems(at, said)
        self.request.update(said)
        self.firm |= set() if default_of else said.keys()


def _unmodelled_values(
    form: Format, values: Values, rows: Mapping[str, Key], open_counts: Mapping[str, str]
) -> Iterator[tuple[str, Any]]:
    """Values that no sheet has, each with what is told of it."""
    beside = {at: held for at, held in values.items() if at not in rows}
    for at, held in {**beside, **form.absent(values)}.items():
        harmless = form.unmodelled.get(at)
        if harmless is not None and held not in (*harmless, None, AUTO):
            yield at, held
    for at, held in values.items():
        if at in rows and (held == UNSET or held in rows[at].decides):
            yield at, held
    for at, held in open_counts.items():
        yield at, f"{held} (left to whoever starts it)"
    for at, row in rows.items():
        held = values.get(at)
        if row.holds and isinstance(held, str) and held not in (*row.holds, AUTO, UNSET):
            yield at, f"{held} (the sheet is of {row.instead})"
        if row.reads is not None and held not in (None, UNSET) and not row.reads(held):
            yield at, held
    if MORE in beside and MORE not in form.unmodelled:
        yield MORE, values[MORE]


OPEN_COUNT = late_pattern(r"\s*(?:\$\{?\w+\}?|\{\{.*\}\}|<.*>)\s*")
"""A place of a template, in which whoever starts the job puts a count."""


def _open_counts(said: Mapping[str, Any]) -> dict[str, str]:
    """Counts of a request that are places of a template."""
    held = ((key, value) for key, value in said.items() if key in OPEN_SIZES and isinstance(value, str))
    return {key: value.strip() for key, value in held if OPEN_COUNT.fullmatch(value)}


def _is_open_list(value: Any) -> bool:
    """Whether a part of a list is a variable that nobody set."""
    return isinstance(value, list) and UNSET in value


def _value_text(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def is_key(form: Format, at: str) -> bool:
    """Whether a format has a key of that name, with bytes or without."""
    return any(key.at == at for key in form.keys) or at in form.unmodelled or _is_known_key(form, at)


def _is_known_key(form: Format, at: str) -> bool:
    parts = at.split(".")
    return (
        at in form.known
        or at in form.weighed
        or at in form.removed
        or any(".".join((*parts[:n], "*")) in form.known for n in range(1, len(parts)))
    )


def nearest_known_key(form: Format, at: str) -> str:
    """The known key most like ``at``: a right name in a wrong place, else another tool's name for it, else
    one of its own group, else one whose name and group are both like.
    """
    names = [
        *(key.at for key in form.keys),
        *form.unmodelled,
        *form.weighed,
        *(k for k in form.known if not k.endswith("*")),
    ]
    group, _, last = at.rpartition(".")
    of_group = [name for name in names if name.rpartition(".")[0] == group]
    own = [
        f"{group}.{name}" if group else name
        for name in _similar_words(last, tuple(name.rpartition(".")[2] for name in of_group), 1)
    ]
    moved = [
        name
        for name in names
        if name.rpartition(".")[2] == last and _names_are_similar(group, name.rpartition(".")[0])
    ]
    other = [
        name
        for name in _similar_words(at, tuple(names), 3)
        if _names_are_similar(group, name.rpartition(".")[0])
        and _names_are_similar(last, name.rpartition(".")[2])
    ]
    meant = [name for name in names if last in _words_for_the_same(name.rpartition(".")[2])]
    meant.sort(key=lambda name: (name not in own, name.rpartition(".")[0] != group))
    return (moved or meant or own or other or [""])[0]


def _words_for_the_same(name: str) -> tuple[str, ...]:
    """Names by which scripts' flags say what a key of that name does."""
    return next((words for words in ROLES.values() if name in words), ())


@lru_cache(maxsize=256)
def _similar_words(word: str, known: tuple[str, ...], most: int) -> tuple[str, ...]:
    """The words most like one; a file with an unknown key is read several times."""
    return tuple(nearest_words(word, known, n=most))


def _names_are_similar(one: str, other: str) -> bool:
    """Whether two words are nearly one; what stands at the top may be meant for any group."""
    return not one or not other or bool(_similar_words(one, (other,), 1))


def _invalid_count_problems(at: str, said: Mapping[str, Any]) -> Iterator[Problem]:
    """What a request's own check does not see: counts that are no keys of a plan."""
    for key, value in said.items():
        if key in COUNTS and not (
            isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_COUNT
        ):
            yield Problem(field=at, value=value, reason="is not a positive whole number")
