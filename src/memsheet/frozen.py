"""``dataclass``, ``field``, ``fields``, ``replace`` and ``NamedTuple``: classes as the standard library makes
them, for the modules that every start imports.

A start defines two hundred classes and makes objects of some of them. The library reads ``inspect`` for that,
makes each class's methods as source and compiles them, which takes longer than an answer. Here a method goes
through the fields at its first calls and is compiled where it is called often: most classes of a start make
one object or two; text and frozenness are the same functions for all; and the library is loaded where
somebody asks for what it alone knows (``dataclasses.fields`` of a class, its signature).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass, field, fields, replace
    from typing import NamedTuple
else:
    from collections import namedtuple

    def dataclass(
        *, frozen: bool = False, slots: bool = False, eq: bool = True, kw_only: bool = False
    ) -> Callable[[type], type]:
        """As ``dataclasses.dataclass``; whatever reads fields (``asdict``, ``is_dataclass``) takes them for
        that.
        """
        return lambda cls: _make_dataclass(cls, Kind(frozen=frozen, slots=slots, eq=eq, kw_only=kw_only))

    def field(**about: Any) -> _FieldOptions:
        """As ``dataclasses.field``: ``default``, ``default_factory``, ``init``, ``repr``, ``compare``."""
        return _FieldOptions(about)

    def fields(held: Any) -> tuple[Field, ...]:
        """The fields of a class of these or of an object of it."""
        return held.__own_fields__

    def replace(held: Any, /, **changes: Any) -> Any:
        """As ``dataclasses.replace``: another object, made with ``changes`` in place of what this one has."""
        made = held.__class__
        copied = _copiers[made] if made in _copiers else _copiers.setdefault(made, _copier_when_usual(made))
        return copied(held, changes)

    class _NamedTupleMeta(type):
        """As ``typing`` makes them, without looking what each annotation says, which is compiled for it."""

        def __new__(cls, name: str, bases: tuple[type, ...], held: dict[str, Any]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, held)
            words = held.get("__annotations__", {})
            usual = [held[word] for word in words if word in held]
            made = namedtuple(name, words, defaults=usual, module=held["__module__"])  # noqa: PYI024
            for key, value in held.items():
                if key not in words and key != "__module__":
                    setattr(made, key, value)
            return made

    class NamedTuple(metaclass=_NamedTupleMeta):
        """As ``typing.NamedTuple``."""


__all__ = ["NamedTuple", "dataclass", "field", "field_values", "fields", "hash_once", "replace"]

_MISSING: Any = object()
"""Where nothing was said: of a default, None may be one."""


class Field:
    """One field of a class: what the library's has that is asked for here. ``kw_only`` is of the class that
    has it.
    """

    default = default_factory = _MISSING
    init = repr = compare = True

    def __init__(self, name: str, type: Any, given: Any, kw_only: bool) -> None:  # noqa: A002, FBT001
        self.name, self.type, self.kw_only = name, type, kw_only
        if given is _MISSING:
            return
        if given.__class__ is _FieldOptions:
            self.__dict__.update(given.about)
        elif hasattr(given, "default_factory"):
            raise TypeError(f"the field {name!r} is of another library: use memsheet.frozen.field")
        else:
            self.default = given


class _FieldOptions:
    """What ``field`` was given, until the class has a name for it."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.about = about


class Kind:
    """What a class of fields is to be, by the words of ``dataclasses.dataclass``."""

    __slots__ = ("eq", "frozen", "kw_only", "slots")

    def __init__(self, *, frozen: bool, slots: bool, eq: bool, kw_only: bool) -> None:
        self.frozen, self.slots, self.eq, self.kw_only = frozen, slots, eq, kw_only


def _make_dataclass(cls: type, kind: Kind) -> type:
    written = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    own = {
        name: Field(name, said, written.get(name, _MISSING), kind.kw_only)
        for name, said in written.get("__annotations__", {}).items()
        if "ClassVar" not in str(said)
    }
    bases = cls.__mro__[-2:0:-1]
    held = {f.name: f for base in bases for f in vars(base).get("__own_fields__", ())} if bases else {}
    whole = tuple((held | own).values())
    if written.get("__hash__", _MISSING) is None:  # as Python leaves it beside an equality of one's own
        del written["__hash__"]
    made = {
        **METHODS[kind.frozen, kind.eq],
        "__own_fields__": whole,
        "__own_kind__": kind,
        "__match_args__": tuple([f.name for f in whole if not f.kw_only and f.init]),
    }
    if not kind.slots:
        for name, value in made.items():
            if name not in written:
                setattr(cls, name, value)
        return cls
    for name in own:
        written.pop(name, None)
    kept = ("_hash",) if written.get("__hash__") is hash_once else ()
    written["__slots__"] = (*[name for name in own if name not in held], *kept)
    written["__qualname__"] = cls.__qualname__
    return type(cls)(cls.__name__, cls.__bases__, made | written)


FIRST_CALLS = 8
"""Calls of a method of a class that go through the fields: to compile it takes as long as some twenty."""
_AS_WRITTEN: Any = object()
"""What going through the fields leaves to the method itself: to refuse what it does not take, in its
words.
"""


def _compiled_when_usual(
    name: str, by_fields: Callable[..., Any], compiled: Callable[[Any], Any]
) -> Callable[..., Any]:
    """A method of every class: ``by_fields``, of that class, the object and what is given, until each has its
    own.
    """
    calls: dict[Any, int] = {}

    def first(self: Any, /, *values: Any, **named: Any) -> Any:
        made = _home_of(type(self), name, first)
        if made is None:  # another thread was quicker
            return getattr(type(self), name)(self, *values, **named)
        calls[made] = calls.get(made, 0) + 1
        if calls[made] <= FIRST_CALLS:
            found = by_fields(made, self, *values, **named)
            if found is not _AS_WRITTEN:
                return found
        setattr(made, name, compiled(made))
        return vars(made)[name](self, *values, **named)

    return first


def _home_of(cls: type, name: str, held: object) -> Any:
    """The class of which ``held`` is the attribute of that name: one itself, or what it is made of; None
    where there is another by now.
    """
    return next((each for each in cls.__mro__ if vars(each).get(name) is held), None)


def _set_by_fields(made: Any, self: Any, /, *values: Any, **named: Any) -> Any:
    """What ``_init_method`` makes does, through the fields."""
    places = made.__match_args__
    given = dict(zip(places, values, strict=False))
    if len(values) > len(places) or not given.keys().isdisjoint(named):
        return _AS_WRITTEN
    given |= named
    found = []
    for f in made.__own_fields__:
        if f.init and f.name in given:
            found.append(given.pop(f.name))
        elif f.default_factory is not _MISSING:
            found.append(f.default_factory())
        elif f.default is not _MISSING:
            found.append(f.default)
        else:
            return _AS_WRITTEN
    if given:
        return _AS_WRITTEN
    put = object.__setattr__ if made.__own_kind__.frozen else setattr
    for f, value in zip(made.__own_fields__, found, strict=True):
        put(self, f.name, value)
    if hasattr(made, "__post_init__"):
        self.__post_init__()
    return None


def _compared_by_fields(made: Any, one: Any) -> tuple[Any, ...]:
    return tuple([getattr(one, f.name) for f in made.__own_fields__ if f.compare])


def _equal_by_fields(made: Any, self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return _compared_by_fields(made, self) == _compared_by_fields(made, other)


def _hash_by_fields(made: Any, self: Any) -> int:
    return hash(_compared_by_fields(made, self))


def _init_method(made: Any) -> Callable[..., None]:
    """The method that sets every field: past the class's own refusal where it is frozen."""
    kind: Kind = made.__own_kind__
    known: dict[str, Any] = {"_missing": _MISSING}
    words, lines = list[str](), list[str]()
    for f in sorted((f for f in made.__own_fields__ if f.init), key=lambda f: f.kw_only):
        if f.kw_only and "*" not in words:
            words.append("*")
        known[f"_default_{f.name}"] = f.default
        has = f.default is not _MISSING or f.default_factory is not _MISSING
        words.append(f"{f.name}=_default_{f.name}" if has else f.name)
    for f in made.__own_fields__:
        value = f.name
        if f.default_factory is not _MISSING:
            known[f"_new_{f.name}"] = f.default_factory
            value = f"_new_{f.name}()" + (f" if {f.name} is _missing else {f.name}" if f.init else "")
        if not kind.frozen:
            lines.append(f" self.{f.name} = {value}")
        elif kind.slots:
            known[f"_set_{f.name}"] = getattr(made, f.name).__set__
            lines.append(f" _set_{f.name}(self, {value})")
        else:
            lines.append(f" self.__dict__[{f.name!r}] = {value}")
    lines += [" self.__post_init__()"] if hasattr(made, "__post_init__") else []
    init: Callable[..., None] = _compile_method(
        made, f"def __init__({', '.join(['self', *words])}):", lines, known
    )
    return init


def _compile_method(made: Any, head: str, lines: list[str], known: dict[str, Any]) -> Any:
    exec("\n".join([head, *(lines or [" pass"])]), known)  # noqa: S102 - names of fields, which are Python's own
    found = known[head.removeprefix("def ").partition("(")[0]]
    found.__qualname__, found.__module__ = f"{made.__qualname__}.{found.__name__}", made.__module__
    return found


Copier = Callable[[Any, dict[str, Any]], Any]
"""What makes another object of one and of changes."""
_copiers: dict[type, Copier] = {}


def field_values(held: Any) -> tuple[Any, ...]:
    """What an object of a class of these has in its fields, in their order."""
    made = held.__class__
    return (_readers.get(made) or _readers.setdefault(made, _reader_of(made)))(held)


Reader = Callable[[Any], tuple[Any, ...]]
"""What reads all fields of an object of a class."""
_readers: dict[type, Reader] = {}


def _reader_of(made: Any) -> Reader:
    names = [f.name for f in made.__own_fields__]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda held: tuple(getattr(held, name) for name in names)


def _copier_when_usual(made: Any) -> Copier:
    """That of a class: through its fields, until it is asked often."""
    own = getattr(made, "__own_fields__", None)
    if own is None:
        import dataclasses

        return lambda held, changes: dataclasses.replace(held, **changes)
    names, calls = [f.name for f in own if f.init], 0

    def by_fields(held: Any, changes: dict[str, Any]) -> Any:
        for name in names:
            if name not in changes:
                changes[name] = getattr(held, name)
        return held.__class__(**changes)

    def first(held: Any, changes: dict[str, Any]) -> Any:
        nonlocal calls
        calls += 1
        if calls > FIRST_CALLS:
            plain = len(names) == len(own) and not hasattr(made, "__post_init__")
            slotted = "__own_fields__" in vars(made) and made.__own_kind__.slots
            _copiers[made] = _slot_copier(made, names, by_fields) if plain and slotted else by_fields
        return by_fields(held, changes)

    return first


def _slot_copier(made: Any, names: list[str], by_fields: Copier) -> Copier:
    """Slot by slot, past a call with all of them by name, which takes three times as long."""
    puts = {name: getattr(made, name).__set__ for name in names}
    known = {"_new": object.__new__, "_made": made, **{f"_set_{name}": put for name, put in puts.items()}}
    lines = [" made = _new(_made)", *(f" _set_{name}(made, held.{name})" for name in names), " return made"]
    same = _compile_method(made, "def _same(held):", lines, known)

    def copied(held: Any, changes: dict[str, Any]) -> Any:
        found = same(held)
        for name, value in changes.items():
            if name not in puts:
                return by_fields(held, changes)  # which refuses it
            puts[name](found, value)
        return found

    return copied


def _eq_method(made: Any) -> Any:
    mine, theirs = (_compared_values(made, one) for one in ("self", "other"))
    same = f" return {mine} == {theirs} if other.__class__ is self.__class__ else NotImplemented"
    return _compile_method(made, "def __eq__(self, other):", [same], {})


def _hash_method(made: Any) -> Any:
    return _compile_method(
        made, "def __hash__(self):", [f" return hash({_compared_values(made, 'self')})"], {}
    )


_whole_hashes: dict[type, Callable[[Any], int]] = {}


def hash_once(self: Any) -> int:
    """The hash of a frozen object with slots that is asked for again and again and has much inside: written
    down in its class as ``__hash__ = hash_once``, it is worked out once and kept with the object.
    """
    try:
        found: int | None = self._hash
    except AttributeError:
        made = self.__class__
        whole = _whole_hashes.get(made) or _whole_hashes.setdefault(made, _hash_method(made))
        try:
            found = whole(self)
        except TypeError:
            found = None
        object.__setattr__(self, "_hash", found)
    if found is None:
        raise TypeError("it holds what has no hash")
    return found


def _compared_values(made: Any, one: str) -> str:
    return f"({''.join(f'{one}.{f.name}, ' for f in made.__own_fields__ if f.compare)})"


class _LibraryView:
    """What the standard library has of a class that it made itself, made when somebody first asks: of a class
    of the same fields.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, held: object, owner: type) -> Any:
        import dataclasses
        import inspect

        made = _home_of(owner, self.name, self)
        if made is None:
            return getattr(owner, self.name)
        twin: Any = dataclasses.make_dataclass(
            made.__name__,
            [(f.name, f.type, _library_field(f)) for f in made.__own_fields__],
            frozen=made.__own_kind__.frozen,
            eq=made.__own_kind__.eq,
        )
        made.__dataclass_fields__ = twin.__dataclass_fields__
        made.__dataclass_params__ = twin.__dataclass_params__
        made.__signature__ = inspect.signature(twin)
        return vars(made)[self.name]


def _library_field(f: Field) -> Any:
    import dataclasses

    said = {"default": f.default, "default_factory": f.default_factory}
    given = {key: value for key, value in said.items() if value is not _MISSING}
    return dataclasses.field(**given, init=f.init, repr=f.repr, compare=f.compare, kw_only=f.kw_only)


def _dataclass_repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in self.__own_fields__ if f.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _refuse_assignment(self: Any, name: str, *_: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot change {name!r} of {self.__class__.__qualname__}")


def _field_state(self: Any) -> list[Any]:
    return [*field_values(self)]


def _restore_field_values(self: Any, state: list[Any]) -> None:
    for f, value in zip(self.__own_fields__, state, strict=True):
        object.__setattr__(self, f.name, value)


_SHARED: dict[str, Any] = {
    "__init__": _compiled_when_usual("__init__", _set_by_fields, _init_method),
    "__repr__": _dataclass_repr,
    "__getstate__": _field_state,
    "__setstate__": _restore_field_values,
    "__replace__": replace,
    **{
        name: _LibraryView(name) for name in ("__dataclass_fields__", "__dataclass_params__", "__signature__")
    },
}
_FROZEN = {"__setattr__": _refuse_assignment, "__delattr__": _refuse_assignment}
_EQUAL = {"__eq__": _compiled_when_usual("__eq__", _equal_by_fields, _eq_method), "__hash__": None}
_HASHED = {**_EQUAL, "__hash__": _compiled_when_usual("__hash__", _hash_by_fields, _hash_method)}
METHODS: dict[tuple[bool, bool], dict[str, Any]] = {
    (True, True): _SHARED | _FROZEN | _HASHED,
    (True, False): _SHARED | _FROZEN,
    (False, True): _SHARED | _EQUAL,
    (False, False): _SHARED,
}
"""What every class has, by whether it is frozen and whether it is compared; what may change has no hash."""
