"""`model_rows.json` of the catalogue, as the bundled models' configurations come to."""

from __future__ import annotations

import json
from pathlib import Path

import memsheet
from memsheet.catalog import model_names
from memsheet.questions.catalogue import count_model

ROWS = Path(memsheet.__file__).parent / "catalog" / "model_rows.json"


def text() -> str:
    """One row a line, so that a model more is one line more."""
    rows = ({**count_model(name)} for name in model_names())
    lines = (f" {json.dumps(row.pop('name'))}: {json.dumps(row, ensure_ascii=False)}" for row in rows)
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write() -> None:
    ROWS.write_text(text(), encoding="utf-8")
