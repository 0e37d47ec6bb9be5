"""Tapes with numbers: what a recorded part holds when its axes have values, and which of several moments
holds most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial, reduce
from operator import or_
from typing import Any

from memsheet.arith import Count, is_array, maximum, where
from memsheet.formulas.tapes.tape import Entry, Log, Shape, Tape, gradient_arrivals, high_points
from memsheet.frozen import dataclass
from memsheet.plan.dtypes import DType
from memsheet.sheet import Component

Key = tuple[Component, str]
Axes = Mapping[str, Count]


@dataclass(frozen=True, slots=True, eq=False)
class BytesByPath:
    """Bytes by component and path, with their sum."""

    held: dict[Key, Count]
    total: Count

    @classmethod
    def of(cls, pairs: Iterable[tuple[Key, Count]]) -> BytesByPath:
        every = list(pairs)
        held = dict(every)
        if len(held) < len(every):  # several under one name
            held = {}
            for key, size in every:
                before = held.get(key)
                held[key] = size if before is None else before + size
        return cls(held, _sum_counts(list(held.values())))

    def part(self, key: Key) -> tuple[Count, Any]:
        """Bytes under one name, and whether there is such a part: a bool, or one for each plan of a
        stratum.
        """
        return self.held.get(key, 0), key in self.held


class Later(BytesByPath):
    """A bag whose parts are worked out when they are asked for: of many moments one is the largest, and a
    search mostly reads no part.

    ``make`` gives all parts; ``pick`` one of them, and which plans have it, where that is less work.
    """

    __slots__ = ("_made", "_make", "_pick")
    _make: Callable[[], dict[Key, Count]]
    _pick: Callable[[Key], tuple[Count, Any]] | None
    _made: dict[Key, Count] | None

    def __init__(
        self,
        make: Callable[[], dict[Key, Count]],
        pick: Callable[[Key], tuple[Count, Any]] | None,
        total: Count,
    ) -> None:
        keep = object.__setattr__
        keep(self, "total", total)
        keep(self, "_make", make)
        keep(self, "_pick", pick)
        keep(self, "_made", None)

    @property
    def held(self) -> dict[Key, Count]:
        if self._made is None:
            object.__setattr__(self, "_made", self._make())
        return self._made or {}

    def part(self, key: Key) -> tuple[Count, Any]:
        return self._pick(key) if self._pick is not None else (self.held.get(key, 0), key in self.held)


EMPTY = BytesByPath({}, 0)
Moment = Sequence[tuple[Count, BytesByPath]]
"""What is resident at one moment: bags, each taken some number of times."""


def moment_total_bytes(moment: Moment) -> Count:
    """Bytes of a moment."""
    return _sum_counts(
        [bag.total if type(times) is int and times == 1 else times * bag.total for times, bag in moment]
    )


def _sum_counts(sizes: list[Count]) -> Count:
    """The sum, without adding nothing to arrays."""
    if {*map(type, sizes)} <= WHOLE:
        return sum(sizes)
    whole, arrays = 0, None
    for size in sizes:
        if type(size) is int:
            whole += size
        else:
            arrays = size if arrays is None else arrays + size
    return arrays + whole if whole else arrays  # type: ignore[return-value, operator]


WHOLE = {int}


def merge_moment(moment: Moment) -> BytesByPath:
    """A moment as one bag."""
    total = moment_total_bytes(moment)
    if type(total) is not int and is_array(total):
        return _deferred_moment(moment, total)
    return BytesByPath.of(_resident_pairs(moment))


def _resident_pairs(moment: Moment) -> list[tuple[Key, Count]]:
    """Everything that is resident, name by name, without multiplying by one."""
    pairs: list[tuple[Key, Count]] = []
    for times, bag in moment:
        held = bag.held.items()
        pairs += held if type(times) is int and times == 1 else [(key, times * size) for key, size in held]
    return pairs


def bundle_moment(moment: Moment) -> Moment:
    """A moment as one bag, so that what is laid on top adds it up once."""
    total = moment_total_bytes(moment)
    return [(1, _deferred_moment(moment, total))] if type(total) is int or is_array(total) else moment


def _deferred_moment(moment: Moment, total: Count) -> Later:
    return Later(
        partial(_merge_by_key, moment), None if type(total) is int else partial(_merged_part, moment), total
    )


def _merge_by_key(moment: Moment) -> dict[Key, Count]:
    held: dict[Key, Count] = {}
    for key, size in _resident_pairs(moment):
        before = held.get(key)
        held[key] = size if before is None else before + size
    return held


def _merged_part(moment: Moment, key: Key) -> tuple[Count, Any]:
    parts = [(times, *bag.part(key)) for times, bag in moment]
    return sum(times * size for times, size, there in parts if there is not False), reduce(
        or_, (there for _, _, there in parts), False
    )


def largest_moment_rows(moments: Sequence[Moment]) -> BytesByPath:
    """The moment with the most bytes, as one bag; element by element where counts are arrays."""
    totals = [moment_total_bytes(m) for m in moments]
    if {*map(type, totals)} <= WHOLE:
        best = moments[totals.index(max(totals))]
        return best[0][1] if len(best) == 1 and best[0][0] == 1 else merge_moment(best)
    which = partial(_largest_moment_masks, totals)
    return Later(
        partial(_largest_bytes_by_key, tuple(moments), which),
        partial(_chosen_part, tuple(moments), which),
        reduce(maximum, totals),
    )


Winners = Callable[[], Sequence[tuple[int, Any]]]


def _largest_moment_masks(totals: list[Count]) -> Sequence[tuple[int, Any]]:
    """Which of several moments holds most, the first of equals: those that do for some plans, and for
    which.
    """
    best: Any = (
        totals[0] + next(size for size in totals if type(size) is not int) * 0
    )  # an array, as all that it is compared with
    masks = list[tuple[int, Any]]()
    for number, size in enumerate(totals[1:], start=1):
        wins: Any = size > best
        if wins.any():
            masks.append((number, wins))
            best = maximum(best, size)
    later: Any = False
    found = list[tuple[int, Any]]()
    for number, wins in reversed(masks):
        own = wins & ~later if later is not False else wins
        if own.any():
            found.append((number, own))
            later = later | wins
    rest: Any = True if later is False else ~later
    return [(0, rest), *reversed(found)] if rest is True or rest.any() else list(reversed(found))


def _chosen_part(moments: Sequence[Moment], which: Winners, key: Key) -> tuple[Count, Any]:
    (first, _), *others = which()
    chosen, there = _merged_part(moments[first], key)
    for number, wins in others:
        found, here = _merged_part(moments[number], key)
        if there is not False or here is not False:
            chosen, there = where(wins, found, chosen), where(wins, here, there)
    return chosen, there


def _largest_bytes_by_key(moments: Sequence[Moment], which: Winners) -> dict[Key, Count]:
    (first, _), *others = which()
    chosen = merge_moment(moments[first]).held
    for number, wins in others:
        bag = merge_moment(moments[number]).held
        chosen = {key: _select_count(wins, bag.get(key, 0), chosen.get(key, 0)) for key in {**chosen, **bag}}
    return chosen


def _select_count(condition: Any, a: Count, b: Count) -> Count:
    """As ``where``; what both have stays itself, so that it can be told from what differs."""
    return a if a is b else where(condition, a, b)


def entry_bytes(entry: Entry, axes: Axes) -> Count:
    """Bytes of one storage."""
    elements: Count = 1
    for axis in entry.shape:
        elements = elements * (axis if isinstance(axis, int) else axes[axis])
    return entry.dtype.nbytes(elements)


@lru_cache(maxsize=1024)
def _distinct_entries(tape: Tape) -> tuple[tuple[Entry, ...], tuple[int, ...]]:
    """One entry for each shape and dtype of a tape, and which of them every entry is like."""
    first: dict[tuple[Shape, DType], int] = {}
    like = tuple(first.setdefault((entry.shape, entry.dtype), len(first)) for entry in tape.entries)
    return tuple(Entry("", shape, dtype) for shape, dtype in first), like


def _entry_sizes(tape: Tape, axes: Axes) -> list[Count]:
    distinct, like = _distinct_entries(tape)
    sizes = [entry_bytes(entry, axes) for entry in distinct]
    return [sizes[i] for i in like]


def with_products(axes: dict[str, Count]) -> dict[str, Count]:
    """The axes and the products of them that shapes name."""
    a, k, d, f = (axes.get(name, 1) for name in "akdf")
    return {**axes, "a·d": a * d, "k·d": k * d, "(a+2k)·d": (a + 2 * k) * d, "d/2": d // 2, "2·f": 2 * f}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Beside:
    """What a model's forward names of a tower that pictures pass through: ``inside`` while its layers run;
    from where its tokens have joined the words on, ``features`` (those tokens) and ``states`` (of its last
    layer, unless what comes after has saved them).
    """

    inside: BytesByPath
    features: BytesByPath
    states: BytesByPath


NOTHING = Beside(inside=EMPTY, features=EMPTY, states=EMPTY)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One recorded part of the model with its sizes."""

    retained: BytesByPath  # held from its forward to its backward
    # besides, until the model's forward ends: the autocast cache's copies, the last hidden states
    cached: BytesByPath
    forward: BytesByPath  # at its forward's high-water mark, its input included
    backward: BytesByPath  # at its backward's, with what it retained and the arriving gradient
    gradients: BytesByPath  # parameters' gradients it makes
    arriving: BytesByPath  # what the part before hands over
    output: Count  # bytes handed to the part after
    keeps_input: bool = False  # whether it saves what it was handed
    again: BytesByPath = EMPTY  # recomputed: while its forward runs again, with the gradient that arrived
    behind: BytesByPath = EMPTY  # and at its backward's high-water mark when that is done
    hosted: tuple[Count, ...] = ()  # bytes of what waits on the host, one by one
    lingers: BytesByPath = EMPTY  # of what it retained, what stays until the whole backward is over
    played: tuple[Tape, Tape | None, Axes] | None = (
        None  # its tape, that of a forward that ran before, and the values of their axes
    )


def select_part(condition: Any, a: Part, b: Part) -> Part:
    """``a`` where the condition holds, else ``b``; element by element for arrays."""

    def bag(x: BytesByPath, y: BytesByPath) -> BytesByPath:
        held = {key: where(condition, x.held.get(key, 0), y.held.get(key, 0)) for key in {**x.held, **y.held}}
        return BytesByPath(held, where(condition, x.total, y.total))

    return Part(
        retained=bag(a.retained, b.retained),
        cached=bag(a.cached, b.cached),
        forward=bag(a.forward, b.forward),
        backward=bag(a.backward, b.backward),
        gradients=bag(a.gradients, b.gradients),
        arriving=bag(a.arriving, b.arriving),
        output=where(condition, a.output, b.output),
        keeps_input=a.keeps_input,
        again=bag(a.again, b.again),
        behind=bag(a.behind, b.behind),
        hosted=tuple(where(condition, one, other) for one, other in zip(a.hosted, b.hosted, strict=True)),
        lingers=bag(a.lingers, b.lingers),
    )


@dataclass(frozen=True, slots=True)
class Stepped:
    """Parameters are stepped when their gradients arrive, which takes so many copies of one in ``dtype``, and
    the gradients go.
    """

    copies: int
    dtype: DType


Release = bool | Stepped
"""Whether parameters' gradients go as soon as they are made: because they are added to others, or because
they are stepped with.
"""


def _fused_step_moments(
    tape: Tape, axes: Axes, sizes: list[Count], keys: list[Key], how: Stepped
) -> list[Moment]:
    """What there is in backward when each gradient is stepped with."""
    moments: list[Moment] = []
    for index, alive in gradient_arrivals(tape.backward, (tape.saved - tape.outputs) | tape.idle):
        scratch = how.copies * entry_bytes(replace(tape.entries[index], dtype=how.dtype), axes)
        moments.append(
            [
                (
                    1,
                    BytesByPath.of(
                        [
                            *((keys[i], sizes[i]) for i in alive),
                            ((Component.TEMPORARIES, keys[index][1]), scratch),
                        ]
                    ),
                )
            ]
        )
    return moments


@lru_cache(maxsize=1024)
def _log_high_points(tape: Tape, kind: str, *, release: bool = False) -> tuple[tuple[int, ...], ...]:
    logs: dict[str, tuple[Log, frozenset[int]]] = {
        "forward": (tape.forward, frozenset()),
        "recomputed": (tape.recomputed, tape.before),
        "backward": (tape.backward, (tape.saved - tape.outputs) | tape.idle),
    }
    log, alive = logs[kind]
    return high_points(log, alive, release_gradients=release)


@lru_cache(maxsize=1024)
def _high_point_changes(
    tape: Tape, kind: str, *, release: bool = False
) -> tuple[tuple[tuple[int, int], ...], ...]:
    """High points one after another: how many more, or fewer, there are of each size than at the one
    before.
    """
    _, like = _distinct_entries(tape)
    counts = [Counter(like[i] for i in point) for point in _log_high_points(tape, kind, release=release)]
    before = [Counter[int](), *counts]
    return tuple(
        tuple((n, now[n] - was[n]) for n in {**was, **now} if now[n] != was[n])
        for was, now in zip(before, counts, strict=False)
    )


def _high_water(
    tape: Tape, kind: str, sizes: list[Count], keys: list[Key], *, release: bool = False
) -> BytesByPath:
    points = _log_high_points(tape, kind, release=release)
    if {*map(type, sizes)} <= WHOLE:
        totals = [sum(map(sizes.__getitem__, point)) for point in points]
        best = points[totals.index(max(totals))]
        return BytesByPath.of([(keys[i], sizes[i]) for i in best])
    _, like = _distinct_entries(tape)
    distinct, total, moments = dict(zip(like, sizes, strict=True)), 0, list[Moment]()
    for point, changes in zip(points, _high_point_changes(tape, kind, release=release), strict=True):
        total = _sum_counts(
            [total, *(distinct[n] if more == 1 else more * distinct[n] for n, more in changes)]
        )
        moments.append([(1, Later(partial(_bytes_at_point, sizes, keys, point), None, total))])
    return largest_moment_rows(moments) if len(moments) > 1 else moments[0][0][1]


def _bytes_at_point(sizes: list[Count], keys: list[Key], point: tuple[int, ...]) -> dict[Key, Count]:
    return BytesByPath.of([(keys[i], sizes[i]) for i in point]).held


@lru_cache(maxsize=1024)
def _entry_keys(tape: Tape, prefix: str) -> list[Key]:
    keys = []
    for index, entry in enumerate(tape.entries):
        component = Component.TEMPORARIES
        if entry.gradient:
            component = Component.GRADIENTS
        elif index in tape.saved or index in tape.recomputed_saved or index in tape.before:
            component = Component.SAVED_ACTIVATIONS
        path = _path_in_model(prefix, entry.path) + ("/cast" if entry.weight_cast else "")
        keys.append((component, path))
    return keys


def _path_in_model(prefix: str, path: str) -> str:
    """A name within a part as one within the model."""
    return f"{prefix}{path}" if not prefix or path.startswith("/") else f"{prefix}.{path}"


def evaluate_tape(
    tape: Tape, axes: Axes, prefix: str, *, release: Release, forward: Tape | None = None
) -> Part:
    """Numbers for a part. ``forward``: the tape of a forward that saves nothing, for a part that is
    recomputed on its own.
    """
    if {*map(type, axes.values())} <= WHOLE:
        return _evaluate_cached(tape, tuple(axes.items()), prefix, release, forward)
    return _evaluate_uncached(tape, axes, prefix, release, forward)


@lru_cache(maxsize=512)
def _evaluate_cached(
    tape: Tape, axes: tuple[tuple[str, Count], ...], prefix: str, release: Release, forward: Tape | None
) -> Part:
    """Plans that are asked about one after another have most parts in common: stages, fixes, steps of a
    bisection.
    """
    return _evaluate_uncached(tape, dict(axes), prefix, release, forward)


def _evaluate_uncached(tape: Tape, axes: Axes, prefix: str, release: Release, forward: Tape | None) -> Part:
    sizes = _entry_sizes(tape, axes)
    keys = _entry_keys(tape, prefix)
    saved = tape.saved - tape.outputs
    retained = BytesByPath.of([(keys[i], sizes[i]) for i in sorted(saved)])
    backward = _high_water(tape, "backward", sizes, keys, release=bool(release))
    if isinstance(release, Stepped) and release.copies:
        backward = largest_moment_rows(
            [[(1, backward)], *_fused_step_moments(tape, axes, sizes, keys, release)]
        )
    gradients = BytesByPath.of((keys[i], sizes[i]) for i in tape.gradients)
    output = sum(sizes[i] for i in tape.outputs)
    arriving = BytesByPath.of(((Component.TEMPORARIES, keys[i][1]), sizes[i]) for i in tape.handed)
    if forward is None:
        cached = BytesByPath.of((keys[i], sizes[i]) for i in sorted(tape.cached - tape.saved))
        hosted = tuple(sizes[i] for i in tape.hosted)
        return Part(
            retained,
            cached,
            _high_water(tape, "forward", sizes, keys),
            backward,
            gradients,
            arriving,
            output,
            bool(tape.inputs),
            hosted=hosted,
            lingers=BytesByPath.of((keys[i], sizes[i]) for i in sorted(tape.lingering)),
            played=(tape, None, axes),
        )
    light = _entry_sizes(forward, axes)
    light_keys = [
        (Component.SAVED_ACTIVATIONS, key[1]) if i in forward.handed else key
        for i, key in enumerate(_entry_keys(forward, prefix))
    ]
    again = _high_water(tape, "recomputed", sizes, keys)
    handed_back = BytesByPath.of((keys[i], sizes[i]) for i in sorted(tape.waiting))
    kept = BytesByPath.of((light_keys[i], light[i]) for i in forward.handed)
    chosen = BytesByPath.of((light_keys[i], light[i]) for i in sorted(forward.saved))
    cached = BytesByPath.of((light_keys[i], light[i]) for i in sorted(forward.cached))
    if forward.hosted:
        kept = EMPTY
    still = [] if tape.inputs else [(1, kept)]  # the checkpoint's input stays until its node has run
    again = merge_moment([(1, again), (1, handed_back)])
    step_back = largest_moment_rows([[(1, backward), *still], [(1, again)]])
    return Part(
        merge_moment([(1, kept), (1, chosen)]) if chosen.held else kept,
        cached,
        _high_water(forward, "forward", light, light_keys),
        step_back,
        gradients,
        arriving,
        output,
        keeps_input=not forward.hosted,
        again=again,
        behind=backward,
        hosted=tuple(light[i] for i in forward.hosted),
        played=(tape, forward, axes),
        lingers=BytesByPath.of((light_keys[i], light[i]) for i in sorted(forward.lingering)),
    )
