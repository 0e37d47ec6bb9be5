"""`aliases.json` of the bundled models, as their files say it: every spelling, and the ends of hubs' names
that are one model's alone; and `canonical_names.json`, the names that are left of these in one spelling.
"""

from __future__ import annotations

import json
from pathlib import Path

import memsheet
from memsheet import catalog
from memsheet.catalog.names import canonical_names

MODELS = Path(memsheet.__file__).parent / "catalog" / "models"
INDEX = MODELS / "aliases.json"
CANONICAL = MODELS.parent / "canonical_names.json"


def spellings() -> dict[str, str]:
    """Every spelling in lower case with dashes → the model's name."""
    stated: dict[str, str] = {}
    for file in sorted(MODELS.glob("*.json")):
        if file == INDEX:
            continue
        model = json.loads(file.read_text(encoding="utf-8"))
        for name in (model["name"], *model["aliases"]):
            stated[name.lower().replace("_", "-")] = model["name"]
    ends: dict[str, set[str]] = {}
    for name, model_name in stated.items():
        if "/" in name:
            ends.setdefault(name.split("/")[1], set()).add(model_name)
    alone = {end: next(iter(names)) for end, names in ends.items() if len(names) == 1}
    return dict(sorted({**alone, **stated}.items()))


def _rows(names: dict[str, str]) -> str:
    rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(model)}" for name, model in names.items())
    return f"{{\n{rows}\n}}\n"


def write() -> None:
    INDEX.write_text(_rows(spellings()), encoding="utf-8")
    catalog._model_index.cache_clear()
    CANONICAL.write_text(_rows(canonical_names()), encoding="utf-8")
