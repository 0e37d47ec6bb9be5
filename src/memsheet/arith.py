"""Arithmetic that one formula shares between an int, an int64 array and a symbol.

A formula uses ``+ - * //`` and the functions here, so the same lines give bytes for one plan (``int``),
for a stratum of plans (array) and their own algebra (``Term``). Nothing here imports numpy: an array is
recognised by its array namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, cast

from memsheet.frozen import dataclass

Count = int
"""An ``int`` to the type checker; an int64 array or a ``Term`` where formulas are swept or printed."""
S = TypeVar("S", int, float)


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A symbol that prints the formula it went through. It has no truth value, so no formula can branch on
    it.
    """

    text: str
    binding: int = 3  # 0 comparison, 1 sum, 2 product, 3 atom

    def __bool__(self) -> bool:
        raise TypeError(f"a count may not drive a branch: {self.text}")

    def __neg__(self) -> Term:
        return Term(f"-{_bound_text(self, 2)}", 2)

    def __add__(self, other: Any) -> Term:
        return _sum_term(self, other)

    def __radd__(self, other: Any) -> Term:
        return _sum_term(other, self)

    def __sub__(self, other: Any) -> Term:
        return self if _is_number(other, 0) else Term(f"{self.text} - {_bound_text(other, 2)}", 1)

    def __rsub__(self, other: Any) -> Term:
        return Term(f"{_bound_text(other, 1)} - {_bound_text(self, 2)}", 1)

    def __mul__(self, other: Any) -> Term:
        return _product_term(self, other)

    def __rmul__(self, other: Any) -> Term:
        return _product_term(other, self)

    def __floordiv__(self, other: Any) -> Term:
        return self if _is_number(other, 1) else Term(f"⌊{self.text} / {_bound_text(other, 3)}⌋")

    def __rfloordiv__(self, other: Any) -> Term:
        return Term(f"⌊{_bound_text(other, 2)} / {_bound_text(self, 3)}⌋")

    def __truediv__(self, other: Any) -> Term:
        return (
            self
            if _is_number(other, 1) or _is_number(self, 0)
            else Term(f"{_bound_text(self, 2)} / {_bound_text(other, 3)}", 2)
        )

    def __rtruediv__(self, other: Any) -> Term:
        return Term(f"{_bound_text(other, 2)} / {_bound_text(self, 3)}", 2)

    def __mod__(self, other: Any) -> Term:
        return Term(f"{_bound_text(self, 2)} mod {_bound_text(other, 3)}", 2)

    def __rmod__(self, other: Any) -> Term:
        return Term(f"{_bound_text(other, 2)} mod {_bound_text(self, 3)}", 2)

    def __pow__(self, other: Any) -> Term:
        return Term(f"{_bound_text(self, 3)}^{_bound_text(other, 3)}", 2)

    def __and__(self, other: Any) -> Any:
        return Term(f"({self.text} and {other})") if isinstance(other, Term) else self if other else False

    def __ror__(self, other: Any) -> Any:
        return True if other else self

    def __or__(self, other: Any) -> Any:
        return Term(f"({self.text} or {other})") if isinstance(other, Term) else True if other else self

    # comparisons are symbols too, that only ``where`` may read
    def __eq__(self, other: object) -> Any:
        return Term(f"{self.text} = {_bound_text(other, 1)}", 0)

    def __ne__(self, other: object) -> Any:
        return Term(f"{self.text} ≠ {_bound_text(other, 1)}", 0)

    def __lt__(self, other: Any) -> Term:
        return Term(f"{self.text} < {_bound_text(other, 1)}", 0)

    def __le__(self, other: Any) -> Term:
        return Term(f"{self.text} ≤ {_bound_text(other, 1)}", 0)

    def __gt__(self, other: Any) -> Term:
        return Term(f"{self.text} > {_bound_text(other, 1)}", 0)

    def __ge__(self, other: Any) -> Term:
        return Term(f"{self.text} ≥ {_bound_text(other, 1)}", 0)

    __hash__ = object.__hash__

    def __str__(self) -> str:
        return self.text


def _is_number(value: Any, number: int) -> bool:
    """Whether a number, or a symbol that has become one, is this one."""
    if isinstance(value, Term):
        return value.text == str(number)
    return type(value) in (int, float) and value == number


def _sum_term(a: Any, b: Any) -> Term:
    if _is_number(a, 0) or _is_number(b, 0):
        return _as_term(b if _is_number(a, 0) else a)
    return Term(f"{_bound_text(a, 1)} + {_bound_text(b, 1)}", 1)


def _product_term(a: Any, b: Any) -> Term:
    if _is_number(a, 0) or _is_number(b, 0):
        return Term("0")
    if _is_number(a, 1) or _is_number(b, 1):
        return _as_term(b if _is_number(a, 1) else a)
    return Term(f"{_bound_text(a, 2)}·{_bound_text(b, 2)}", 2)


def _as_term(value: Any) -> Term:
    return value if isinstance(value, Term) else Term(str(value))


def _bound_text(value: Any, binding: int) -> str:
    if not isinstance(value, Term):
        return str(value)
    return value.text if value.binding >= binding else f"({value.text})"


def _array_namespace(*values: Any) -> Any:
    """The array namespace of the first array among ``values``; None when all are plain numbers."""
    for value in values:
        found = getattr(value, "__array_namespace__", None)
        if found is not None:
            return found()
    return None


def is_symbol(*values: Any) -> bool:
    """Whether one of them is a symbol."""
    return Term in map(type, values)


def symbolic(name: str, *values: Any) -> Any:
    """A function of symbols that is said by its name alone."""
    return _call_term(name, *values)


def is_array(value: Any) -> bool:
    """Whether a count is that of many plans at once."""
    return hasattr(value, "__array_namespace__")


def _call_term(name: str, *values: Any) -> Any:
    return Term(f"{name}({', '.join(str(v) for v in values)})")


def _extreme_term(name: str, *values: Any) -> Any:
    """The largest or smallest: one call of all that are compared, each said once."""
    parts = dict.fromkeys(part for value in values for part in _compared_parts(name, value))
    return values[0] if len(parts) == 1 else _call_term(name, *parts)


def _compared_parts(name: str, value: Any) -> list[str]:
    text = str(value)
    if getattr(value, "binding", 0) < 3 or not text.startswith(f"{name}("):
        return [text]
    found, depth = [""], 0
    for letter in text[len(name) + 1 : -1]:
        depth += (letter in "(⌈⌊") - (letter in ")⌉⌋")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return [part.strip() for part in found]


def ceil_div(a: Count, b: Count) -> Count:
    """``a / b`` rounded up, for non-negative ``a`` and positive ``b``."""
    if type(b) is int and b == 1:
        return a
    if type(a) is int and type(b) is int:
        return -(-a // b)
    if isinstance(a, Term) or isinstance(b, Term):
        return Term(f"⌈{_bound_text(a, 2)} / {_bound_text(b, 3)}⌉")
    return (b + (a - 1)) // b if type(a) is int else (a + (b - 1)) // b


def round_up(a: Count, multiple: Count) -> Count:
    """The smallest multiple of ``multiple`` that is at least ``a``."""
    return ceil_div(a, multiple) * multiple


def maximum(a: Count, b: Count) -> Count:
    """The larger of two counts, element by element for arrays."""
    if type(a) is int and type(b) is int:
        return max(a, b)
    if isinstance(a, Term) or isinstance(b, Term):
        return _extreme_term("max", a, b)
    space: Any = getattr(a, "__array_namespace__", None) or getattr(b, "__array_namespace__")  # noqa: B009 an int has none
    return space().maximum(a, b)  # type: ignore[no-any-return]


def minimum(a: Count, b: Count) -> Count:
    """The smaller of two counts, element by element for arrays."""
    if type(a) is int and type(b) is int:
        return min(a, b)
    if isinstance(a, Term) or isinstance(b, Term):
        return _extreme_term("min", a, b)
    space: Any = getattr(a, "__array_namespace__", None) or getattr(b, "__array_namespace__")  # noqa: B009 an int has none
    return space().minimum(a, b)  # type: ignore[no-any-return]


def at_least(a: Count, b: Count) -> Any:
    """Whether ``a >= b``: a bool, an array of them, or a symbol; only ``where`` may read it."""
    if isinstance(a, Term) or isinstance(b, Term):
        return Term(f"{_bound_text(a, 1)} ≥ {_bound_text(b, 1)}", 0)
    return a >= b


LARGEST_POWER = 62
"""int64 holds no larger power of two."""


def power_of_two_at_least(a: Count) -> Count:
    """The smallest power of two that is at least ``a``, for positive ``a``."""
    if type(a) is int:
        return 1 << (a - 1).bit_length()
    if isinstance(a, Term):
        return _call_term("power_of_two_at_least", a)
    power: Count = a - a + 1
    for _ in range(LARGEST_POWER):
        power = where(power >= a, power, power * 2)
    return power


def given_or(a: S | None, default: S) -> S:
    """``a`` where it was said and is not 0, else ``default``; a symbol stands for a count that was said."""
    found, other = cast("Any", a), cast("Any", default)
    if not is_symbol(found):
        found = where(at_least(found, 1), found, other) if is_array(found) else found or other
    return found  # type: ignore[no-any-return]


def is_zero(a: Count) -> bool:
    """Whether a count is the number 0: of what a model does not have. A symbol stands for what it has."""
    return type(a) is int and a == 0


def rounded_down(a: Any) -> Count:
    """The whole part of a non-negative ``a``, which has been multiplied by a share."""
    if isinstance(a, Term):
        return Term(f"⌊{a.text}⌋")  # type: ignore[return-value]
    return int(a) if not is_array(a) else a.astype("int64")


def agreed(condition: Any) -> bool:
    """The one truth of a condition that every plan of a stratum shares: a choice that follows from counts.

    Raises ValueError where plans differ; they belong into different strata.
    """
    if type(condition) is bool:
        return condition
    holds = holds_for_all(condition)
    if not holds and holds_for_any(condition):
        raise NotAlikeError(condition)
    return holds


def holds_for_all(condition: Any) -> bool:
    """Whether an array of truths has no other. Its least is found four times as fast as by ``all``."""
    return not condition.size or bool(condition.item(condition.argmin()))


def holds_for_any(condition: Any) -> bool:
    """Whether an array of truths has one."""
    return bool(condition.size and condition.item(condition.argmax()))


class NotAlikeError(ValueError):
    """Plans of one stratum differ in ``condition``, an array of whether it holds for each."""

    def __init__(self, condition: Any) -> None:
        super().__init__("plans of one stratum differ in a choice")
        self.condition = condition


WORD_BITS = 62


def row_codes(columns: Sequence[Any]) -> Any:
    """A number for each row of some arrays of non-negative counts, the same for rows that are alike: their
    bits side by side, those before numbered anew where they fill a word.
    """
    space, code, filled = _array_namespace(*columns), 0, 0
    for column in columns:
        bits = int(column.max()).bit_length()
        if filled + bits > WORD_BITS:
            code, filled = space.unique_inverse(code)[1], len(column).bit_length()
        code, filled = (code << bits) | column, filled + bits
    return code


def mixed_stratum() -> NoReturn:
    """Raise ValueError: plans of one stratum belong into different ones."""
    raise ValueError("plans of one stratum differ in a choice")


def distinct(a: Count) -> tuple[Count, ...]:
    """The values that plans of a stratum have."""
    return tuple(sorted(set(a.ravel().tolist()))) if is_array(a) else (a,)  # type: ignore[attr-defined]


def each(function: Callable[..., int], *counts: Count) -> Count:
    """``function`` of plain numbers for every plan of a stratum: for what is no sum or product, asked once
    for each set of counts.
    """
    if any(isinstance(count, Term) for count in counts):
        return _call_term(function.__name__.strip("_"), *counts)  # type: ignore[no-any-return]
    space = _array_namespace(*counts)
    if space is None:
        return function(*counts)
    columns = space.broadcast_arrays(*(space.asarray(count) for count in counts))
    code = space.zeros_like(columns[0])
    for column in columns:
        values, place = space.unique_inverse(column)
        code = code * len(values) + place
    _, first, which, _ = space.unique_all(code)
    places = zip(*(column.ravel()[first].tolist() for column in columns), strict=True)
    return space.asarray([function(*place) for place in places], dtype=space.int64)[which]  # type: ignore[no-any-return]


def looked_up(table: Mapping[Count, Sequence[int]], a: Count) -> list[Count]:
    """The numbers that a table has for each plan's count, place by place."""
    space = _array_namespace(a)
    if space is None:
        return [*table[a]]
    known = sorted(table)
    row = space.searchsorted(space.asarray(known), a)
    return [
        space.asarray(column, dtype=space.int64)[row]
        for column in zip(*(table[count] for count in known), strict=True)
    ]


def where(condition: Any, a: Count, b: Count) -> Count:
    """``a`` where the condition holds, else ``b``; both sides are evaluated."""
    if type(condition) is bool:
        return a if condition else b
    if type(condition) is Term:
        return _call_term("where", condition, a, b)  # type: ignore[no-any-return]
    return condition.__array_namespace__().where(condition, a, b)  # type: ignore[no-any-return]


def fitted_line(values: Sequence[float], at: Sequence[float] | None = None) -> tuple[float, float]:
    """The slope of the least-squares line through two values or more (``at`` 0, 1, 2, … or where they were
    taken), and its R²: 0 where the values are all alike.
    """
    places = range(len(values)) if at is None else at
    middle, mean = sum(places) / len(values), sum(values) / len(values)
    across = sum((x - middle) ** 2 for x in places)
    along = sum((x - middle) * (y - mean) for x, y in zip(places, values, strict=True))
    spread = sum((y - mean) ** 2 for y in values)
    slope = along / across if across else 0.0
    return slope, slope * along / spread if spread else 0.0
