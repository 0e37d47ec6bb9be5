"""Sums of whole numbers and of texts that a Python file says, within bounds that a screen can take."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import UNSET

LARGEST = 2**62

LONGEST = 300
"""Characters of a text that is put together."""

_SUMS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b, ast.FloorDiv: lambda a, b: a // b if b else 0,
}  # fmt: skip


_COMPARISONS: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.eq, ast.IsNot: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def is_bounded_literal(value: object) -> bool:
    """Whether arithmetic and a screen can take it: no number that is infinite or of thousands of digits."""
    return not isinstance(value, int | float) or abs(value) < LARGEST


def plain_part(node: ast.expr) -> ast.expr | None:
    """What an f-string holds between braces, where it is put there as it is."""
    if not isinstance(node, ast.FormattedValue):
        return node
    return node.value if node.conversion == -1 and node.format_spec is None else None


def concatenate_text(parts: list[Any]) -> Any:
    """A text of texts and whole numbers; ``UNSET`` where one of them is anything else, and for texts that no
    name is.
    """
    if (
        not all(isinstance(one, str | int) and one != UNSET for one in parts)
        or sum(len(str(one)) for one in parts) > LONGEST
    ):
        return UNSET
    return "".join(map(str, parts))


def evaluate_arithmetic(op: ast.operator, left: Any, right: Any) -> Any:
    if isinstance(op, ast.Add) and isinstance(left, str) and isinstance(right, str):
        return concatenate_text([left, right])
    if isinstance(op, ast.Div) and isinstance(right, str) and (left == UNSET or isinstance(left, str)):
        return joined_path([left, right])
    made = _SUMS.get(type(op))
    whole = all(isinstance(held, int) and not isinstance(held, bool) for held in (left, right))
    found = made(left, right) if made and whole else None
    return found if found is not None and abs(found) < LARGEST else UNSET


def joined_path(parts: list[Any]) -> Any:
    """A path of its parts, as far as they are known from the end on; ``UNSET`` where the last is not."""
    known: list[str] = []
    for part in reversed(parts):
        if not isinstance(part, str) or part == UNSET:
            known.append(".")
            break
        known.append(part.rstrip("/") if known else part)
    return concatenate_text(["/".join(reversed(known))]) if known != ["."] else UNSET


def compare_values(op: ast.cmpop, left: Any, right: Any) -> Any:
    """Whether two plain values are alike, which of two numbers is more, or whether a list or a text has one;
    ``UNSET`` of anything else.
    """
    if isinstance(op, ast.In | ast.NotIn):
        text = isinstance(left, str) and isinstance(right, str) and UNSET not in (left, right)
        known = text or (
            isinstance(right, list) and UNSET not in (left, *right) and not isinstance(left, dict | list)
        )
        return (left in right) is isinstance(op, ast.In) if known else UNSET
    kinds = int | float if isinstance(op, ORDERS) else int | float | str | None
    plain = all(isinstance(held, kinds) and held != UNSET for held in (left, right))
    compared = _COMPARISONS.get(type(op))
    return compared(left, right) if compared and plain else UNSET
