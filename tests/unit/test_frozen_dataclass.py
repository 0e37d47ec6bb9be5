"""``memsheet.frozen.dataclass`` beside the standard library's: what the one makes of a class, the other
does.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any

import pytest

from memsheet import frozen

Decorator = Callable[..., Any]
BOTH = (frozen.dataclass, dataclasses.dataclass)


def made(dataclass: Decorator, **how: bool) -> Any:
    @dataclass(frozen=True, slots=True, **how)
    class One:
        """Some fields."""

        a: int
        b: str = "b"
        c: list[int] = field(default_factory=list, compare=False)
        d: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

        def __post_init__(self) -> None:
            self.d["a"] = self.a

        @property
        def double(self) -> int:
            return 2 * self.a

    return One


def outcome(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - which one is the answer
        return type(error)


@pytest.mark.parametrize(
    "how", [{}, {"kw_only": True}, {"eq": False}, {"kw_only": True, "eq": False}], ids=str
)
def test_as_the_library_does(how: dict[str, bool]) -> None:
    def answers(dataclass: Decorator) -> list[Any]:
        one = made(dataclass, **how)
        x, y, z = one(a=1), one(a=1, c=[3]), one(a=2, b="c")
        return [
            repr(x), x == y, x == z, x != z, x == 1, hash(x) == hash(y), x.double, y.c, x.d, x.c is y.c, dataclasses.asdict(z),
            dataclasses.replace(x, b="d").b, [f.name for f in dataclasses.fields(x)], one.__match_args__, one.__slots__, hasattr(x, "__dict__"),
            one.__doc__, one.__qualname__, dataclasses.is_dataclass(one), one.__dataclass_params__.frozen, {x: 3}.get(y), copy.copy(x).a,
            copy.deepcopy(z).d, outcome(lambda: one(1, "b")) == outcome(lambda: one(a=1)), outcome(lambda: one(1)) is TypeError,
            outcome(one), outcome(lambda: one(a=1, e=2)), outcome(lambda: setattr(x, "a", 2)), outcome(lambda: delattr(x, "a")),
        ]  # fmt: skip

    own, library = (answers(dataclass) for dataclass in BOTH)
    assert own == library
    assert own.count(FrozenInstanceError) == 2


@frozen.dataclass(frozen=True, slots=True)
class Own:
    """Methods of its own stay."""

    a: int

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 7

    def __repr__(self) -> str:
        return "own"


def test_methods_of_its_own_stay() -> None:
    assert (Own(1) == Own(2), hash(Own(1)), repr(Own(1))) == (True, 7, "own")
    assert pickle.loads(pickle.dumps(Own(3))).a == 3


def test_a_class_without_fields() -> None:
    @frozen.dataclass(frozen=True, slots=True)
    class Empty:
        """Nothing."""

    assert Empty() == Empty()
    assert hash(Empty()) == hash(Empty())
