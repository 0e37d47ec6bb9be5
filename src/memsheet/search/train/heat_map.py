"""What fits over two axes: of each cell the plan that needs least, or the fastest that fits, of all legal
ones.

The same grids as the ranking's, whose slack is a share: no step is replayed here, so a cell near the edge may
turn out otherwise when its plan is asked for by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

import numpy as np

from memsheet.budget import Result, budget_of
from memsheet.errors import InputError, input_error
from memsheet.frozen import dataclass, replace
from memsheet.plan.device import Cluster
from memsheet.plan.model import ModelSpec
from memsheet.search.train.axes import (
    COUNTS,
    Axis,
    AxisQuestion,
    Value,
    axis_questions,
    axis_with_values,
    check_open,
    shown_axis_values,
    stratum_axis_value,
)
from memsheet.search.train.grid import Graded, account_plan_grid, result_masks
from memsheet.search.train.space import Request, Space, space_of
from memsheet.search.train.strata import reason_of
from memsheet.search.train.timed import Scaled, seconds_of
from memsheet.sheet import Bytes

BEST_FIRST = (Result.FITS, Result.UNCERTAIN, Result.DOES_NOT_FIT)
Place = tuple[Value, Value]


class Shows(Enum):
    """Which plan stands for a cell."""

    LEAST = "least"  # the one that needs least
    FASTEST = "fastest"  # the fastest that fits; where none does the one that needs least


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The best verdict of a cell's plans, and the plan that stands for it. ``seconds``: where the fastest is
    shown and its step can be timed. ``plans``: legal ones; ``fit``: of those. ``host_short``: a node's memory
    is what is missing.
    """

    result: Result
    device: Bytes
    engine: str
    request: Request
    plans: int
    fit: int
    seconds: float | None = None
    host_short: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """``cells`` by their values on ``across`` and ``down``; where no plan is legal there is none."""

    model: ModelSpec
    cluster: Cluster
    request: Request
    across: Axis
    down: Axis
    shows: Shows
    cells: Mapping[Place, Cell]
    notes: tuple[str, ...] = ()

    def counts(self) -> Mapping[Result, int]:
        """Shown cells by their verdict."""
        shown = [
            self.cells[place]
            for across in self.across.values
            for down in self.down.values
            if (place := (across, down)) in self.cells
        ]
        return {result: sum(cell.result is result for cell in shown) for result in BEST_FIRST}


def plan_heat_map(
    model: ModelSpec,
    cluster: Cluster,
    request: Mapping[str, Any],
    engines: Iterable[str],
    axes: tuple[Axis, Axis],
    *,
    shows: Shows = Shows.LEAST,
    scaled: Scaled = lambda _: None,
) -> Heat:
    """The map of ``axes`` over every legal plan of some engines.

    Raises InputError where an axis is settled by the request, and the first problem where no cell has a legal
    plan.
    """
    check_open(axes, request)
    across, down = (axis_with_values(axis, request, cluster) for axis in axes)
    best: dict[Place, Cell] = {}
    problems: InputError | None = None
    notes, refused = dict[str, None](), Counter[str]()
    for asked in axis_questions((across, down), request, cluster):
        for engine in engines:
            try:
                found = account_plan_grid(space_of(model, asked.cluster, {**asked.request, "engine": engine}))
            except (InputError, OverflowError) as error:
                known = (
                    error
                    if isinstance(error, InputError)
                    else input_error(
                        "axes", None, "is too far out for a count of bytes", "name smaller values"
                    )
                )
                problems = problems or known
                notes[f"{engine}: {reason_of(known)}"] = None
                continue
            refused += found.refused
            weigh = _Weigh(
                space=found.space,
                engine=engine,
                asked=asked,
                axes=(across.name, down.name),
                shows=shows,
                scaled=scaled,
            )
            for place, cell in (pair for one in found.graded for pair in weigh.cells(one)):
                best[place] = _merge_cells(best[place], cell) if place in best else cell
    if not best:
        why = next((reason for reason, _ in refused.most_common(1)), "nothing to combine")
        raise problems or input_error(
            "axes",
            f"{across.name},{down.name}",
            f"has no legal plan in any cell: {why}",
            "ask for less, or other values",
        )
    shown = tuple(
        replace(axis, values=shown_axis_values(axis, {place[number] for place in best}))
        for number, axis in enumerate((across, down))
    )
    return Heat(
        model=model,
        cluster=cluster,
        request=request,
        across=shown[0],
        down=shown[1],
        shows=shows,
        cells=best,
        notes=(*notes, *_left_out(shown, best)),
    )


def _left_out(axes: tuple[Axis, ...], best: Mapping[Place, Cell]) -> Iterator[str]:
    for number, axis in enumerate(axes):
        more = len({place[number] for place in best} - set(axis.values))
        if more:
            yield f"{more} more values of {axis.name} are not shown"


def _merge_cells(one: Cell, other: Cell) -> Cell:
    """The one to show of two, with the plans of both."""
    first = min(one, other, key=_cell_sort_key)
    return replace(first, plans=one.plans + other.plans, fit=one.fit + other.fit)


def _cell_sort_key(cell: Cell) -> tuple[int, float, int]:
    timed = cell.seconds if cell.seconds is not None else np.inf
    return BEST_FIRST.index(cell.result), timed, int(cell.device.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weigh:
    """How the plans of a question come into cells."""

    space: Space
    engine: str
    asked: AxisQuestion
    axes: tuple[str, str]
    shows: Shows
    scaled: Scaled

    def cells(self, one: Graded) -> Iterator[tuple[Place, Cell]]:
        """The cells of a stratum; its rows by where they stand."""
        masks = result_masks(one, self.space)
        roomy = np.asarray(one.device.low) <= budget_of(self.space.cluster).high_bytes
        short = masks[Result.DOES_NOT_FIT] & roomy  # so it is the host that is short
        verdict = np.select([masks[result] for result in BEST_FIRST], list(range(len(BEST_FIRST))))
        seconds = self._seconds(one, np.flatnonzero(verdict == 0))
        for place, rows in self._places(one):
            yield place, _best_cell_of_rows(one, rows, self.engine, (verdict, short, seconds))

    def _seconds(self, one: Graded, fit: Any) -> Any:
        """Of every row; infinite where it does not fit, is not timed, or nobody asks."""
        found = np.full(len(one), np.inf)
        if self.shows is Shows.FASTEST and len(fit):
            found[fit] = seconds_of([(one.stratum, fit)], self.space, self.scaled(self.engine))[0]
        return found

    def _places(self, one: Graded) -> Iterator[tuple[Place, Any]]:
        """Rows that stand in the same cell."""
        columns = [
            one.stratum.rows[name] if name in COUNTS else np.zeros(len(one), dtype=np.int64)
            for name in self.axes
        ]
        pairs, group = np.unique(np.stack(columns), axis=1, return_inverse=True)
        for number, pair in enumerate(pairs.T.tolist()):
            values = [
                value if name in COUNTS else self._shared(name, one)
                for name, value in zip(self.axes, pair, strict=True)
            ]
            yield (values[0], values[1]), np.flatnonzero(group.ravel() == number)

    def _shared(self, name: str, one: Graded) -> Value:
        return (
            self.asked.at[name]
            if name in self.asked.at
            else stratum_axis_value(name, one.stratum.request, self.engine)
        )


def _best_cell_of_rows(one: Graded, rows: Any, engine: str, keys: tuple[Any, Any, Any]) -> Cell:
    """The plans of some rows; ``keys``: of every row its verdict, whether the host is short, and seconds; the
    best verdict comes first, then the fastest, then the one that needs least.
    """
    verdict, short, seconds = keys
    order = np.lexsort((np.asarray(one.device.high)[rows], seconds[rows], verdict[rows]))
    row = int(rows[order[0]])
    size = Bytes(*(int(np.asarray(getattr(one.device, end))[row]) for end in ("low", "value", "high")))
    timed = float(seconds[row])
    return Cell(
        result=BEST_FIRST[int(verdict[row])],
        device=size,
        engine=engine,
        request=one.stratum.request_of(row),
        plans=len(rows),
        fit=int(np.count_nonzero(verdict[rows] == 0)),
        seconds=timed if np.isfinite(timed) else None,
        host_short=bool(short[row]),
    )
