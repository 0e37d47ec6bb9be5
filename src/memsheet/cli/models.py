"""`memsheet models`."""

from __future__ import annotations

from typing import Any

from memsheet import catalog
from memsheet.cli import screen
from memsheet.cli.line import Given
from memsheet.errors import input_error
from memsheet.formulas.states.params import active_parameter_count, parameter_count
from memsheet.readers.hf_config import read_hf_config
from memsheet.units import format_count


def models(asked: Given) -> int:
    """The bundled models with exact parameter counts. FILTER: only names or families that contain it."""
    wanted = (asked.filter or "").lower()
    found = [
        row
        for name in catalog.model_names()
        if (row := _model_row(name)) and wanted in f"{row['name']} {row['family']}"
    ]
    if not found:
        raise input_error(
            "filter",
            asked.filter,
            "is in no bundled name",
            "`memsheet models` lists all; any config.json works too",
        )
    if asked.json:
        screen.write_json({"schema": "memsheet/models/1", "models": found})
    else:
        screen.write_stdout(_model_table(found))
    return 0


def _model_row(name: str) -> dict[str, Any]:
    entry = catalog.find_model(name)
    assert entry is not None
    spec = read_hf_config(entry["config"], name=name)
    return {
        "name": name, "parameters": parameter_count(spec), "active_parameters": active_parameter_count(spec), "family": spec.model_type,
        "aliases": entry.get("aliases", []), "source": entry["source"],
    }  # fmt: skip


def _model_table(rows: list[dict[str, Any]]) -> str:
    cells = [("model", "parameters", "active", "family")]
    for row in rows:
        active = (
            "" if row["active_parameters"] == row["parameters"] else format_count(row["active_parameters"])
        )
        cells.append((row["name"], format_count(row["parameters"]), active, row["family"]))
    return screen.align_columns(cells, right=frozenset({1, 2}))
