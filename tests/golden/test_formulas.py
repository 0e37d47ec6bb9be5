"""The algebra of every formula, as it prints itself."""

from __future__ import annotations

from pathlib import Path

from golden import algebra

FILE = Path(__file__).with_name("formulas.txt")


def test_the_formulas_say_what_they_said() -> None:
    assert algebra.text() == FILE.read_text(encoding="utf-8"), "make regold writes it again"


def test_every_case_names_a_formula() -> None:
    algebra.load_all()
    short = {name.removeprefix("memsheet.").removeprefix("formulas.") for name in algebra.FORMULAS}
    assert set(algebra.cases()) <= short


def test_formulas_that_take_counts_alone_print_their_algebra() -> None:
    """Nothing that is asked for with cases of its own comes out as a dash."""
    printed = [line for line in algebra.lines() if " = — ;" not in line]
    names = {line.split(" = ")[0].split("[")[0] for line in printed}
    assert set(algebra.cases()) <= names
