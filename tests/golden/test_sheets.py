"""Whole answers, number by number."""

from __future__ import annotations

import json

import pytest

from golden import sheets


@pytest.mark.parametrize("name", sheets.QUESTIONS)
def test_a_sheet_says_what_it_said(name: str) -> None:
    kept = json.loads((sheets.FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert json.loads(sheets.text(name)) == kept, "make regold writes it again; read the difference first"


def test_no_file_is_left_over() -> None:
    assert {path.stem for path in sheets.FOLDER.iterdir()} == set(sheets.QUESTIONS)
