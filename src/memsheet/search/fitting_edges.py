"""Which values fit where steps are replayed. What the allocator holds beyond the bytes asked for does not
grow evenly with a step: a longer sequence may fit where a shorter one does not. What tensors take by
themselves does grow, so that nothing beyond a point can fit; below it values are tried one by one, and what
is said is said of those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from memsheet.frozen import dataclass
from memsheet.search.trials import Trials, Tried, fitting_edge

LARGE_SLACK = 50
"""Percent of what is allocated; a step that leaves room for more is looked at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingEdges:
    """Indices. ``found``: every tried value up to it fits; ``beyond``: the next legal one, which does not;
    ``last_fitting``: the last one tried that fits; ``expected``: the last one tried whose expected bytes fit.
    """

    found: int | None = None
    beyond: int | None = None
    last_fitting: int | None = None
    expected: int | None = None


def fitting_edges(trials: Trials) -> FittingEdges:
    """Where what fits ends. Raises InputError where no value is legal."""
    first = trials.legal(range(len(trials.values)))
    if first is None or trials.at(first).as_answered:
        return _even_edges(trials)
    for index in _probe_indices(trials, first):
        trials.at(index, replays=True)
    while (middle := _bracket_middle_index(trials, _verdict_brackets(trials))) is not None:
        trials.at(middle, replays=True)
    return _known_edges(trials)


def first_edge(trials: Trials) -> int | None:
    """``found`` alone, of the same values tried as far as they decide it. Raises InputError where no value is
    legal.
    """
    first = trials.legal(range(len(trials.values)))
    if first is None or trials.at(first).as_answered:
        return _even_edges(trials).found
    for index in _probe_indices(trials, first):
        trials.at(index, replays=True)
        if [after for _, after in _fitting_run_ends(trials, _certain_headroom)[:1] if after is not None]:
            break
    if not _fitting_run_ends(trials, _certain_headroom):
        return fitting_edges(trials).found
    while (
        middle := _bracket_middle_index(trials, _fitting_run_ends(trials, _certain_headroom)[:1])
    ) is not None:
        trials.at(middle, replays=True)
    return _known_edges(trials).found


def _even_edges(trials: Trials) -> FittingEdges:
    """The edges where slack is a share of what is allocated, and the verdict changes once."""
    (found, beyond), (expected, _) = (
        fitting_edge(trials, _certain_headroom),
        fitting_edge(trials, _expected_spare),
    )
    if found is not None and (expected is None or expected < found):
        expected = found
    return FittingEdges(
        found=found, beyond=beyond if found is not None else None, last_fitting=found, expected=expected
    )


def _probe_indices(trials: Trials, first: int) -> Iterator[int]:
    """The first value; those between where half as much slack as tensors fits and where not even tensors do;
    the one after them.
    """
    last, after = fitting_edge(trials, lambda tried: tried.spare_with_slack(0))
    if last is not None:
        half, _ = fitting_edge(trials, lambda tried: tried.spare_with_slack(LARGE_SLACK))
        low = first if half is None else min(half, last)
        steps = range(low, last, max(1, -(-(last - low) // trials.probes)))
        spots = [trials.legal((*range(step, low - 1, -1), *range(step + 1, last))) for step in steps]
        yield from sorted({first, last, *(spot for spot in spots if spot is not None)})
    else:
        yield first
    if after is not None:
        yield after


def _fitting_run_ends(trials: Trials, spare: Callable[[Tried], int]) -> list[tuple[int, int | None]]:
    """Each change from what fits to what does not: the last tried index that does and the next tried one;
    None where nothing was tried beyond.
    """
    known = [(index, spare(tried) >= 0) for index, tried in trials.answered]
    following = [*known[1:], (None, False)]
    return [
        (index, after)
        for (index, fits), (after, holds) in zip(known, following, strict=True)
        if fits and not holds
    ]


def _verdict_brackets(trials: Trials) -> Iterator[tuple[int, int | None]]:
    """The changes that matter: of the verdict the first and the last, of the expected bytes the last."""
    sure, likely = _fitting_run_ends(trials, _certain_headroom), _fitting_run_ends(trials, _expected_spare)
    yield from (*sure[:1], *sure[-1:], *likely[-1:])


def _bracket_middle_index(trials: Trials, brackets: Iterable[tuple[int, int | None]]) -> int | None:
    """The middle legal value of the first bracket that has one."""
    for low, high in brackets:
        if high is not None:
            middle = (low + high) // 2
            index = trials.legal((*range(middle, low, -1), *range(middle + 1, high)))
            if index is not None:
                return index
    return None


def _known_edges(trials: Trials) -> FittingEdges:
    sure, likely = _fitting_run_ends(trials, _certain_headroom), _fitting_run_ends(trials, _expected_spare)
    found, beyond = sure[0] if sure else (None, None)
    return FittingEdges(
        found=found,
        beyond=beyond,
        last_fitting=sure[-1][0] if sure else None,
        expected=likely[-1][0] if likely else None,
    )


def _certain_headroom(tried: Tried) -> int:
    return tried.spare_bytes


def _expected_spare(tried: Tried) -> int:
    return tried.expected_spare_bytes
