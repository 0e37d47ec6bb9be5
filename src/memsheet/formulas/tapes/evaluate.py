"""Tapes with numbers: what a recorded part holds when its axes have values, and which of several moments
holds most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from memsheet.arith import Count, mixed_stratum, where
from memsheet.formulas.tapes.bytes_by_path import (
    EMPTY,
    WHOLE,
    BytesByPath,
    Key,
    Later,
    Moment,
    Together,
    _sum_counts,
    bags_laid_together,
    largest_moment_rows,
    merge_moment,
)
from memsheet.formulas.tapes.tape import Entry, Log, Shape, Tape, gradient_arrivals, high_points
from memsheet.frozen import dataclass, replace
from memsheet.plan.dtypes import DType
from memsheet.sheet import Component

if TYPE_CHECKING:
    from memsheet.recording import Terms


Axes = Mapping[str, Count]


def entry_bytes(entry: Entry, axes: Axes) -> Count:
    """Bytes of one storage."""
    if entry.terms is not None:
        return terms_bytes(entry.terms, axes)
    elements: Count = 1
    for axis in entry.shape:
        elements = elements * (axis if isinstance(axis, int) else axes[axis])
    return entry.dtype.nbytes(elements)


def terms_bytes(terms: Terms, axes: Axes) -> Count:
    """A recorded sum of products of sequences and tokens."""
    total: Count = 0
    for factor, sequences, tokens in terms:
        size: Count = factor
        for axis, power in (("b", sequences), ("s", tokens)):
            for _ in range(power):
                size = size * axes[axis]
        total = total + size
    return total


@lru_cache(maxsize=1024)
def _distinct_entries(tape: Tape) -> tuple[tuple[Entry, ...], tuple[int, ...]]:
    """One entry for each shape and dtype of a tape, and which of them every entry is like."""
    first: dict[tuple[Shape, DType, Terms | None], int] = {}
    like = tuple(
        first.setdefault((entry.shape, entry.dtype, entry.terms), len(first)) for entry in tape.entries
    )
    return tuple(Entry("", shape, dtype, terms=terms) for shape, dtype, terms in first), like


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
    collected: BytesByPath = (
        EMPTY  # of what arrives, what the model's forward names until all layers have run
    )
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
        collected=bag(a.collected, b.collected),
        lingers=bag(a.lingers, b.lingers),
    )


def parts_laid_together(found: Sequence[Part], parts: Together) -> Part:
    """A part as plans of a stratum have it that run it in different ways.

    Raises ValueError where some save what they were handed and others do not.
    """
    first = found[0]
    if any(one.keeps_input != first.keeps_input or len(one.hosted) != len(first.hosted) for one in found[1:]):
        mixed_stratum()
    bags: dict[str, Any] = {
        name: bags_laid_together([getattr(one, name) for one in found], parts)
        for name in ("retained", "cached", "forward", "backward", "gradients", "arriving", "again", "behind", "collected", "lingers")
    }  # fmt: skip
    return Part(
        **bags,
        output=parts.together([one.output for one in found]),
        keeps_input=first.keeps_input,
        hosted=tuple(parts.together(sizes) for sizes in zip(*(one.hosted for one in found), strict=True)),
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
    for index, alive in gradient_arrivals(tape.backward, tape.kept):
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
    ahead, kept = tape.ahead_of_recompute, tape.kept
    logs: dict[str, tuple[Log, frozenset[int]]] = {
        "forward": (tape.forward, frozenset()),
        "recomputed": (tape.recomputed, tape.before),
        "backward": (tape.backward, kept),
        "ahead of recompute": (tape.backward[:ahead], tape.before | tape.inputs),
        "behind recompute": (tape.backward[ahead:], kept | (tape.waiting if ahead else frozenset())),
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
    counts = [
        Counter(map(like.__getitem__, point)) for point in _log_high_points(tape, kind, release=release)
    ]
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
            [total, *[distinct[n] if more == 1 else more * distinct[n] for n, more in changes]]
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
    if alike := _EqualAxes.of(axes):
        return _evaluate_cached(tape, alike, prefix, release, forward)
    return _evaluate_uncached(tape, axes, prefix, release, forward)


@lru_cache(maxsize=1024)
def _evaluate_cached(
    tape: Tape,
    axes: tuple[tuple[str, Count], ...] | _EqualAxes,
    prefix: str,
    release: Release,
    forward: Tape | None,
) -> Part:
    """Plans that are asked about one after another have most parts in common: stages, fixes, steps of a
    bisection, strata of a search that differ in what a layer does not know.
    """
    own = axes.axes if isinstance(axes, _EqualAxes) else dict(axes)
    return _evaluate_uncached(tape, own, prefix, release, forward)


MOST_KEPT = 64
"""Numbers of an array that is kept."""


class _EqualAxes:
    """Axes that are whole numbers and short arrays of them, told apart by their numbers."""

    __slots__ = ("axes", "numbers")

    def __init__(self, axes: Axes, numbers: tuple[Hashable, ...]) -> None:
        self.axes, self.numbers = axes, numbers

    @classmethod
    def of(cls, axes: Axes) -> _EqualAxes | None:
        numbers = list[Hashable]()
        for name, value in axes.items():
            if type(value) in WHOLE:
                numbers.append((name, type(value), value))
                continue
            array: Any = value
            if getattr(array, "size", MOST_KEPT + 1) > MOST_KEPT or not hasattr(array, "tobytes"):
                return None
            numbers.append((name, array.dtype.str, array.shape, array.tobytes()))
        return cls(axes, tuple(numbers))

    def __hash__(self) -> int:
        return hash(self.numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _EqualAxes) and self.numbers == other.numbers


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
            collected=BytesByPath.of((keys[i], sizes[i]) for i in sorted(tape.collected - tape.saved)),
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
    again_moments: list[Moment] = [[(1, backward), *still], [(1, again)]]
    if tape.ahead_of_recompute and not isinstance(release, Stepped):
        first, then = (
            _high_water(tape, f"{when} recompute", sizes, keys, release=bool(release))
            for when in ("ahead of", "behind")
        )
        again_moments = [[(1, first), *still, (1, chosen)], [(1, then), *still], [(1, again)]]
    step_back = largest_moment_rows(again_moments)
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
