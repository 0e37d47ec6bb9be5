"""One question over values of some of its options: what each combination needs, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Unpack

from memsheet.budget import worst_sheet
from memsheet.columns import align_columns
from memsheet.errors import InputError, input_error
from memsheet.frozen import NamedTuple
from memsheet.plan.options import Model, SweptOptions
from memsheet.questions import accounted
from memsheet.questions.question_parts import BOUNDS, task_of
from memsheet.report.page.grid import sweep_html
from memsheet.report.shared.frames import frame_of
from memsheet.units import format_bytes

MOST_CELLS = 4096
LISTS = frozenset({"layers_per_stage", "recompute_modules", "lora_targets", "offload"})
"""Options of which one value is a list."""


class Cell(NamedTuple):
    """One combination: its ``options``, and bytes of the worst GPU; or the ``reason`` that it has none."""

    options: Mapping[str, Any]
    device_bytes: int | None
    low_bytes: int | None
    high_bytes: int | None
    result: str | None
    reason: str = ""
    error: InputError | None = None


class Sweep(NamedTuple):
    """Every combination, the last option fastest; in a notebook a table, of two options one across."""

    varied: tuple[str, ...]
    cells: tuple[Cell, ...]

    def rows(self) -> list[dict[str, Any]]:
        """One dict a combination: its options, device_bytes, low_bytes, high_bytes, result and reason."""
        return [
            {
                **cell.options,
                "device_bytes": cell.device_bytes,
                "low_bytes": cell.low_bytes,
                "high_bytes": cell.high_bytes,
                "result": cell.result,
                "reason": cell.reason,
            }
            for cell in self.cells
        ]

    def to_frame(self) -> Any:
        """``rows`` as a DataFrame of pandas or polars, or a Table of pyarrow, whichever is installed."""
        return frame_of(self.rows())

    def __str__(self) -> str:
        head = (*self.varied, "needs", "range", "result")
        numbers = frozenset(range(len(self.varied) + 1))
        return align_columns([head, *map(_cell_words, self.cells)], right=numbers)

    def _repr_html_(self) -> str:
        return sweep_html(self.varied, self.cells)


def _cell_words(cell: Cell) -> tuple[str, ...]:
    options = map(str, cell.options.values())
    if cell.device_bytes is None or cell.low_bytes is None or cell.high_bytes is None:
        return (*options, "", "", cell.reason.partition("\n")[0])
    ends = f"{format_bytes(cell.low_bytes)} to {format_bytes(cell.high_bytes)}"
    return (*options, format_bytes(cell.device_bytes), ends, (cell.result or "").replace("_", " "))


def sweep(model: Model | Sequence[Model] | None = None, **options: Unpack[SweptOptions]) -> Sweep:
    """What a model needs for every combination of the options that are given as lists, of training unless
    the options or ``plan`` are of serving.

    ``seq_len=[4096, 8192]``, ``gpus=["8xA100-80GB", "8xH100-80GB"]``, and several models as a list of them;
    all else is as for ``memsheet.train``.
    Slack is that of ``slack="bounds"`` unless another is asked for: verdicts are those of
    ``memsheet.train``, and so are sizes but of what does not fit whatever the allocator does, which are
    without its replay; ``slack="share"`` is faster and may say that something fits which does not.
    Combinations that are no legal plan have their reason.
    Raises InputError where no option is a list, where all of them together are more than 4,096 combinations,
    and where none has an answer.
    """
    varied = {
        name: tuple(values)
        for name, values in {"model": model, **options}.items()
        if isinstance(values, list | tuple | range) and name not in LISTS
    }
    count = 1
    for name, values in varied.items():
        if not values:
            raise input_error(name, None, "is an empty list")
        count *= len(values)
    if not varied:
        raise input_error("sweep", None, "has no option with several values", "seq_len=[4096, 8192]")
    if count > MOST_CELLS:
        raise input_error("sweep", count, f"is more than {MOST_CELLS:,} combinations")
    kept = {
        "slack": BOUNDS,
        "fix": False,
        **{name: held for name, held in {"model": model, **options}.items() if name not in varied},
    }
    cells = tuple(_swept_cells(kept, varied))
    if all(cell.reason for cell in cells):
        raise cells[0].error or input_error("sweep", None, cells[0].reason)
    return Sweep(tuple(varied), cells)


def _swept_cells(kept: Mapping[str, Any], varied: Mapping[str, Sequence[Any]]) -> Iterator[Cell]:
    task = kept.get("task") or task_of({**kept, **{name: values[0] for name, values in varied.items()}})
    count = accounted.infer if task == "infer" else accounted.train
    asked = {name: value for name, value in kept.items() if name != "task"}
    for values in product(*varied.values()):
        options = dict(zip(varied, values, strict=True))
        try:
            found = count(**{**asked, **options})
        except InputError as error:
            yield Cell(options, None, None, None, None, str(error.problems[0]), error)
            continue
        verdict = found.verdict
        device = (verdict.device if verdict else worst_sheet(found.sheets).device).ordered
        result = verdict.result.value if verdict else None
        yield Cell(options, int(device.value), int(device.low), int(device.high), result)
