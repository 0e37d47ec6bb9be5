"""``memsheet.frozen.dataclass`` beside the standard library's: what the one makes of a class, the other
does.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
import typing
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from inspect import signature
from types import ModuleType
from typing import Any

import pytest

from memsheet import frozen

BOTH: tuple[Any, ...] = (frozen, dataclasses)


def made(library: Any, **how: bool) -> Any:
    field = library.field

    @library.dataclass(**{"frozen": True, "slots": True, **how})
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


HOW: list[dict[str, bool]] = [
    {},
    {"kw_only": True},
    {"eq": False},
    {"kw_only": True, "eq": False},
    {"slots": False},
    {"frozen": False},
    {"frozen": False, "slots": False, "eq": False},
]


@pytest.mark.parametrize("how", HOW, ids=str)
def test_as_the_library_does(how: dict[str, bool]) -> None:
    def answers(library: ModuleType) -> list[Any]:
        one = made(library, **how)
        x, y, z = one(a=1), one(a=1, c=[3]), one(a=2, b="c")
        return [
            repr(x), x == y, x == z, x != z, x == 1, outcome(lambda: hash(x) == hash(y)), str(signature(one)), x.double, y.c, x.d, x.c is y.c, dataclasses.asdict(z),
            dataclasses.replace(x, b="d").b, library.replace(x, b="d").b, [f.name for f in dataclasses.fields(x)], [f.name for f in library.fields(one)],
            one.__match_args__, getattr(one, "__slots__", None), hasattr(x, "__dict__"),
            one.__doc__, one.__qualname__, dataclasses.is_dataclass(one), one.__dataclass_params__.frozen, outcome(lambda: {x: 3}.get(y)), copy.copy(x).a,
            copy.deepcopy(z).d, outcome(lambda: one(1, "b")) == outcome(lambda: one(a=1)), outcome(lambda: one(1)) is TypeError,
            outcome(one), outcome(lambda: one(a=1, e=2)), outcome(lambda: setattr(x, "a", 2)), outcome(lambda: delattr(x, "a")),
        ]  # fmt: skip

    own, library = (answers(library) for library in BOTH)
    assert own == library
    assert own.count(FrozenInstanceError) == (2 if how.get("frozen", True) else 0)


@pytest.mark.parametrize("how", HOW, ids=str)
def test_the_first_calls_are_as_all_that_follow(how: dict[str, bool]) -> None:
    """Methods go through the fields at first, and are compiled once they are usual."""
    asks: list[Callable[[Any], Any]] = [
        lambda one: one(a=1).c, lambda one: one(a=2, b="c").d, lambda one: one(1, "b") == one(1, "b"), lambda one: one(a=1) == one(a=2),
        lambda one: one(a=1) == 1, lambda one: one(a=1, e=2), lambda one: one(), lambda one: one(1, a=1), lambda one: one(1, "b", [], 5),
        lambda one: len({one(a=1, c=[3]), one(a=1)}), lambda one: len({one(a=1), one(a=2)}),
    ]  # fmt: skip
    for ask in asks:
        own, library = (made(each, **how) for each in BOTH)
        found = [outcome(lambda own=own, ask=ask: ask(own)) for _ in range(frozen.FIRST_CALLS + 2)]
        assert found == [outcome(lambda library=library, ask=ask: ask(library))] * len(found)


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


def test_a_class_of_another_class_has_its_fields_too() -> None:
    def answers(library: Any) -> list[Any]:
        @library.dataclass(frozen=True, slots=True)
        class Base:
            a: int = 1
            b: str = "b"

        @library.dataclass(frozen=True, slots=True)
        class Further(Base):
            c: tuple[int, ...] = ()
            a: int = 2

        further: Any = Further
        one = further(c=(3,))
        return [
            repr(one),
            one == further(2, "b", (3,)),
            further.__slots__,
            [f.name for f in library.fields(one)],
        ]

    own, library = (answers(library) for library in BOTH)
    assert own == library


def test_a_class_of_the_library_is_replaced_by_the_library() -> None:
    @dataclasses.dataclass
    class Theirs:
        a: int

    assert frozen.replace(Theirs(1), a=2) == Theirs(2)


def test_a_field_of_the_library_is_no_default() -> None:
    with pytest.raises(TypeError, match=r"memsheet\.frozen\.field"):

        @frozen.dataclass(frozen=True, slots=True)
        class One:
            a: int = dataclasses.field(default=1)


class OwnTuple(frozen.NamedTuple):
    """Two values."""

    a: int
    b: str = "x"

    @property
    def double(self) -> int:
        return 2 * self.a


class LibraryTuple(typing.NamedTuple):
    """Two values."""

    a: int
    b: str = "x"

    @property
    def double(self) -> int:
        return 2 * self.a


def test_a_named_tuple_is_as_the_library_makes_it() -> None:
    def answers(kind: Any) -> list[Any]:
        one = kind(1)
        return [
            one, tuple(kind(2, b="y")), one.double, one._replace(a=3), one._asdict(), kind._fields, kind._field_defaults, kind.__match_args__, kind.__doc__,
            kind.__mro__[1:], kind.__slots__, typing.get_type_hints(kind), pickle.loads(pickle.dumps(one)) == one, outcome(kind), outcome(lambda: kind(1, "x", 2)),
            repr(one).removeprefix(kind.__name__), kind.__module__, kind.__qualname__ == kind.__name__,
        ]  # fmt: skip

    assert answers(OwnTuple) == answers(LibraryTuple)


@pytest.mark.parametrize("library", BOTH)
def test_objects_are_copied_often_as_they_are_at_first(library: ModuleType) -> None:
    @library.dataclass(frozen=True, slots=True)
    class Base:
        a: int = 1

    @library.dataclass(frozen=True, slots=True, kw_only=True)
    class Pair(Base):
        b: str = "x"
        c: tuple[int, ...] = ()

    for number in range(40):
        one = library.replace(Pair(b="y"), a=number, c=(number,))
        assert (one.a, one.b, one.c, one) == (number, "y", (number,), Pair(a=number, b="y", c=(number,)))
        assert library.replace(one) == one
        with pytest.raises(TypeError):
            library.replace(one, d=1)
        with pytest.raises(FrozenInstanceError):
            one.a = 2


@pytest.mark.parametrize("library", BOTH)
def test_what_is_made_of_an_objects_fields_is_made_again_for_its_copies(library: ModuleType) -> None:
    @library.dataclass(frozen=True, slots=True)
    class Counted:
        a: int
        found: list[int] = library.field(default_factory=list, init=False, compare=False)

    @library.dataclass(frozen=True, slots=True)
    class Checked:
        a: int

        def __post_init__(self) -> None:
            if self.a < 0:
                raise ValueError(self.a)

    for number in range(40):
        one = Counted(number)
        one.found.append(1)
        assert library.replace(one, a=number + 1).found == []
        with pytest.raises(ValueError, match="-1"):
            library.replace(Checked(number), a=-1)


def test_a_hash_that_is_kept_is_of_the_fields_and_worked_out_once() -> None:
    asked = list[object]()

    class Part:
        def __hash__(self) -> int:
            asked.append(self)
            return 7

    @frozen.dataclass(frozen=True, slots=True)
    class Whole:
        part: Any
        b: int = 1

        __hash__ = frozen.hash_once

    part = Part()
    one = Whole(part)
    assert hash(one) == hash(one) == hash(Whole(part))
    assert len(asked) == 2  # once an object
    assert hash(frozen.replace(one, b=2)) != hash(one)  # a copy has its own
    assert one == Whole(part)
    assert [f.name for f in frozen.fields(one)] == ["part", "b"]
    unhashable = Whole([])
    assert outcome(lambda: hash(unhashable)) is outcome(lambda: hash(unhashable)) is TypeError
    assert frozen.field_values(one) == (part, 1)
    assert frozen.field_values(Kept(1)) == (1,)
    assert pickle.loads(pickle.dumps(KEPT)) == KEPT
    assert hash(copy.copy(KEPT)) == hash(KEPT)


@frozen.dataclass(frozen=True, slots=True)
class Kept:
    a: int

    __hash__ = frozen.hash_once


KEPT = Kept(1)
