"""A shell's sum of whole numbers, as Python's grammar reads it: few scripts have one."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


def whole_number_sum(text: str) -> int:
    """What ``text`` comes to. Raises SyntaxError, ValueError or ZeroDivisionError where it is no such sum,
    RecursionError or MemoryError where too much stands in one another.
    """
    return _sum_value(ast.parse(" ".join(text.split()).replace("/", "//"), mode="eval").body)


def _sum_value(node: ast.expr) -> int:
    match node:
        case ast.Constant(int(value)):
            return value
        case ast.BinOp(left, how, right) if type(how) in OPERATORS:
            return OPERATORS[type(how)](_sum_value(left), _sum_value(right))
        case ast.UnaryOp(ast.USub(), inner):
            return -_sum_value(inner)
    raise ValueError
