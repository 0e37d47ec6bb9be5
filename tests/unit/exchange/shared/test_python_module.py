"""The tree of a script."""

from __future__ import annotations

import ast

import pytest

from memsheet.exchange.shared.python_module import syntax_tree


@pytest.mark.parametrize(
    "line",
    [
        'f"{row["question"]} is asked"',
        "f'{row['question']} is asked'",
        'print(f"{a["b"]}", 1)',
        'x = f"{a["b"]}{c["d"]}"',
    ],
)
def test_places_of_a_text_may_hold_the_quotes_around_it(line: str) -> None:
    tree = syntax_tree(f"a = 1\n{line}\nrows = 8\n")
    assert len(tree.body) == 3
    assert ast.unparse(tree.body[2]) == "rows = 8"
    assert any(isinstance(one, ast.JoinedStr) for one in ast.walk(tree))


def test_what_is_no_python_stays_none() -> None:
    with pytest.raises(ValueError, match="is no Python"):
        syntax_tree('rows = f"{a["b"]"\n')
