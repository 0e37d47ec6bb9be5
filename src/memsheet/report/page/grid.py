"""A table of two options as the page shows it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from memsheet.budget import Result
from memsheet.plan.option_words import HELP
from memsheet.report.page.html import NUMBER, STYLE
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


def sweep_html(varied: Sequence[str], cells: Sequence[Any]) -> str:
    """A sweep as a table: the last option across, all others down; each cell in GiB and in words."""
    look, across = Look(digits=1), varied[-1]
    columns = list(dict.fromkeys(cell.options[across] for cell in cells))
    head = "".join(f'<th style="{NUMBER}">{escape(str(value))}</th>' for value in columns)
    rows = []
    for start in range(0, len(cells), len(columns)):
        row = cells[start : start + len(columns)]
        named = ", ".join(f"{name} {row[0].options[name]}" for name in varied[:-1])
        told = (_grid_cell(cell, look) for cell in row)
        held = "".join(
            f'<td style="{NUMBER};{STYLE[cell["result"]]}">{cell["size"]} {escape(cell["words"])}</td>'
            for cell in told
        )
        rows.append(f'<tr><th style="{NUMBER}">{escape(named)}</th>{held}</tr>')
    caption = f"<caption>{look.unit} a GPU; {escape(across)} across</caption>"
    return f"<table>{caption}<tr><th></th>{head}</tr>{''.join(rows)}</table>"


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
