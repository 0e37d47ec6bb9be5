"""A table of two options as the page shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memsheet.budget import Result
from memsheet.plan.option_words import HELP
from memsheet.report.screen.length_ladder import WORDS
from memsheet.report.shared.look import Look


def grid_document(found: Any, *, x: str, y: str, xs: Sequence[Any], ys: Sequence[Any]) -> dict[str, Any]:
    """A sweep of ``y`` and ``x`` as rows of cells: what a GPU needs in GiB, and whether it fits."""
    look, cells = Look(digits=1), iter(found.cells)
    return {
        "schema": "memsheet/grid/1",
        "unit": look.unit,
        "x": {"option": x, "words": _option_label(x), "values": list(xs)},
        "y": {"option": y, "words": _option_label(y), "values": list(ys)},
        "cells": [[_grid_cell(next(cells), look) for _ in xs] for _ in ys],
    }


def _option_label(name: str) -> str:
    return HELP[name][2].rstrip(".").lower() if name in HELP else name


def _grid_cell(cell: Any, look: Look) -> dict[str, Any]:
    result = Result(cell.result) if cell.result else None
    size = "" if cell.device_bytes is None else look.cell(cell.device_bytes)
    words = WORDS[result] if cell.device_bytes is not None else "no plan"
    return {
        "size": size,
        "device_bytes": cell.device_bytes,
        "result": cell.result,
        "words": words,
        "reason": cell.reason,
    }
