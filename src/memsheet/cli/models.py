"""`memsheet models`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from memsheet import catalog
from memsheet.cli import screen
from memsheet.cli.line import Given
from memsheet.columns import align_columns
from memsheet.errors import input_error, printable_line
from memsheet.units import format_count


def models(asked: Given) -> int:
    """The bundled models with exact parameter counts, where the family's layers are written down. WORD: only
    those of which each word is in a name or the family, else the one that a name in any form is of.
    """
    words = " ".join(asked.words or ())
    rows = catalog.model_rows()
    found = [rows[name] for name in (sorted(_names_of(words)) if words else rows)]
    if not found:
        raise input_error(
            "words",
            words,
            "is in no bundled name",
            "`memsheet models` lists all; any config.json works too",
        )
    if asked.json:
        screen.write_json({"schema": "memsheet/models/1", "models": found})
        return 0
    screen.write_stdout(_model_table(found))
    if len(found) == 1 and words:
        from memsheet.catalog.names import bundled_entry

        for line in (bundled_entry(words) or {}).get("assumed", ()):
            screen.write_stdout(f"{printable_line(line)}\n")
    return 0


def _names_of(words: str) -> set[str]:
    """Bundled models of which each word is in a name or the family, else the one that a name is of."""
    from memsheet.catalog.names import matching_names

    families = (row for name in catalog.model_names() if (row := _family_row(name)))
    of_family = {name for name, family in families if all(word in family for word in words.lower().split())}
    return {*matching_names(words), *of_family}


def _family_row(name: str) -> tuple[str, str]:
    entry = catalog.find_model(name)
    return name, str(entry["config"]["model_type"]) if entry else ""


def _model_table(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [("model", "parameters", "active", "family", "configuration of")]
    for row in rows:
        whole, active = row["parameters"], row["active_parameters"]
        counts = (
            format_count(whole) if whole else "",
            format_count(active) if active and active != whole else "",
        )
        whence = (
            row["source"].removeprefix("public config.json of ").removesuffix("; the keys that decide memory")
        ).removeprefix("config.json of ")
        cells.append((row["name"], *counts, row["family"], whence))
    table = align_columns(cells, right=frozenset({1, 2}))
    return "".join(f"{shorten_line(line)}\n" for line in table.splitlines())


def shorten_line(line: str) -> str:
    """A line no wider than the terminal, where there is one."""
    width = screen.terminal_width()
    return line if len(line) <= width or not sys.stdout.isatty() else f"{line[: width - 1]}…"
