"""Functions that are loaded when they are called, and imports of everybody else as they were."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest

from memsheet.late import late_functions

HOME = """
from memsheet.late import late_functions
with late_functions(__name__):
    from late_guest import twice
import late_neighbour
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with one function of another's, and a plain import behind it."""
    for name, text in {
        "late_home": HOME, "late_guest": "def twice(number):\n    return 2 * number\n", "late_neighbour": "",
    }.items():  # fmt: skip
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return __import__("late_home")


def test_a_function_is_loaded_when_it_is_called_and_is_itself_from_then_on(home: Any) -> None:
    assert "late_guest" not in sys.modules
    assert "late_neighbour" in sys.modules
    assert home.twice(21) == 42
    assert home.twice is sys.modules["late_guest"].twice


def test_an_import_of_somebody_else_s_is_put_back() -> None:
    usual = builtins.__import__

    def watched(*given: Any, **named: Any) -> Any:
        return usual(*given, **named)

    builtins.__import__ = watched
    try:
        with late_functions("nobody"), late_functions("nobody else"):
            assert builtins.__import__ is not watched
        assert builtins.__import__ is watched
    finally:
        builtins.__import__ = usual
    with late_functions("nobody"):
        pass
    assert builtins.__import__ is usual


def test_what_fails_inside_leaves_nothing_behind() -> None:
    usual = builtins.__import__
    with pytest.raises(ZeroDivisionError), late_functions("nobody"):
        1 / 0  # noqa: B018
    assert builtins.__import__ is usual
