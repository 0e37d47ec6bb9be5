"""Findings as workflow commands of GitHub, which shows each at the line of the file in a pull request
(docs.github.com, "Workflow commands for GitHub Actions": error, warning, notice).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from memsheet.report.page.sarif import SarifResult, path_from_here, sarif_results
from memsheet.report.shared.checked import Launch

TEXT = {"%": "%25", "\r": "%0D", "\n": "%0A"}
VALUE = {**TEXT, ":": "%3A", ",": "%2C"}
"""What stands for a letter in a message, and in a property's value (@actions/core
1.11.1 packages/core/src/command.ts: escapeData, escapeProperty)."""


def annotation_lines(launches: Sequence[Launch], root: Path = Path()) -> str:
    """A command a finding, errors first: GitHub shows ten of each kind a step. ``root``: as of
    ``sarif_results``.
    """
    told = sorted(sarif_results(launches, root), key=lambda one: one.level != "error")
    return "".join(f"{_annotation_line(one)}\n" for one in told)


def _annotation_line(one: SarifResult) -> str:
    place = one.place
    said = {
        "file": path_from_here(place.file).as_posix() if place else "",
        "line": str(place.line) if place and place.line else "",
        "title": f"memsheet {one.rule}",
    }
    values = ",".join(f"{name}={_with_escapes(value, VALUE)}" for name, value in said.items() if value)
    return f"::{one.level} {values}::{_with_escapes(one.text, TEXT)}"


def _with_escapes(text: str, letters: dict[str, str]) -> str:
    return "".join(letters.get(letter, letter) for letter in text)
