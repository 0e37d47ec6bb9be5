"""``dataclass``, ``field``, ``fields`` and ``replace``: classes as the standard library makes them, for the
modules that every start imports.

A start defines two hundred classes and makes objects of some of them. The library reads ``inspect`` for that,
makes each class's methods as source and compiles them, which takes longer than an answer. Here a method is
compiled when it is first called; text and frozenness are the same functions for all; and the library is
loaded where somebody asks for what it alone knows (``dataclasses.fields`` of a class, its signature).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass, field, fields, replace
else:

    def dataclass(
        *, frozen: bool = False, slots: bool = False, eq: bool = True, kw_only: bool = False
    ) -> Callable[[type], type]:
        """As ``dataclasses.dataclass``; whatever reads fields (``asdict``, ``is_dataclass``) takes them for
        that.
        """
        return lambda cls: _make_dataclass(cls, Kind(frozen=frozen, slots=slots, eq=eq, kw_only=kw_only))

    def field(**about: Any) -> _Asked:
        """As ``dataclasses.field``: ``default``, ``default_factory``, ``init``, ``repr``, ``compare``."""
        return _Asked(about)

    def fields(held: Any) -> tuple[Field, ...]:
        """The fields of a class of these or of an object of it."""
        return held.__own_fields__

    def replace(held: Any, /, **changes: Any) -> Any:
        """As ``dataclasses.replace``: another object, made with ``changes`` in place of what this one has."""
        own = getattr(held, "__own_fields__", None)
        if own is None:
            import dataclasses

            return dataclasses.replace(held, **changes)
        for f in own:
            if f.init and f.name not in changes:
                changes[f.name] = getattr(held, f.name)
        return held.__class__(**changes)


__all__ = ["dataclass", "field", "fields", "replace"]

_MISSING: Any = object()
"""Where nothing was said: of a default, None may be one."""


class Field:
    """One field of a class: what the library's has that is asked for here. ``kw_only`` is of the class that
    has it.
    """

    __slots__ = ("compare", "default", "default_factory", "init", "kw_only", "name", "repr", "type")

    def __init__(
        self,
        name: str,
        type: Any,  # noqa: A002 - as the library calls it
        *,
        kw_only: bool,
        default: Any = _MISSING,
        default_factory: Any = _MISSING,
        init: bool = True,
        repr: bool = True,  # noqa: A002
        compare: bool = True,
    ) -> None:
        self.name, self.type, self.kw_only = name, type, kw_only
        self.default, self.default_factory = default, default_factory
        self.init, self.repr, self.compare = init, repr, compare


class _Asked:
    """What ``field`` was given, until the class has a name for it."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.about = about


class Kind:
    """What a class of fields is to be, by the words of ``dataclasses.dataclass``."""

    __slots__ = ("eq", "frozen", "kw_only", "slots")

    def __init__(self, *, frozen: bool, slots: bool, eq: bool, kw_only: bool) -> None:
        self.frozen, self.slots, self.eq, self.kw_only = frozen, slots, eq, kw_only


def _make_dataclass(cls: type, kind: Kind) -> type:
    own = [
        _field_of(name, said, vars(cls).get(name, _MISSING), kw_only=kind.kw_only)
        for name, said in vars(cls).get("__annotations__", {}).items()
        if "ClassVar" not in str(said)
    ]
    held = {f.name: f for base in reversed(cls.__mro__[1:]) for f in vars(base).get("__own_fields__", ())}
    made: Any = _slotted_class(cls, own, held) if kind.slots else cls
    made.__own_fields__ = tuple({**held, **{f.name: f for f in own}}.values())
    methods: dict[str, Any] = {
        "__match_args__": tuple(f.name for f in made.__own_fields__ if f.init and not f.kw_only),
        "__init__": _compiled_when_called(made, "__init__", lambda: _init_method(made, kind)),
        **SHARED,
        **(FROZEN if kind.frozen else {}),
        **(_comparison_methods(made, hashed=kind.frozen) if kind.eq else {}),
    }
    written = vars(cls)
    for name, method in methods.items():
        if name not in written or (name == "__hash__" and written[name] is None):
            setattr(made, name, method)
    for name in ("__dataclass_fields__", "__dataclass_params__", "__signature__"):
        setattr(made, name, _LibraryView(made, name, kind))
    return made  # type: ignore[no-any-return]


def _slotted_class(cls: type, own: Sequence[Field], held: Mapping[str, Field]) -> type:
    """The class once more, with a slot for each field that no base has."""
    left_out = {"__dict__", "__weakref__", *(f.name for f in own)}
    namespace = {name: value for name, value in vars(cls).items() if name not in left_out}
    namespace["__slots__"] = tuple(f.name for f in own if f.name not in held)
    namespace["__qualname__"] = cls.__qualname__
    return type(cls)(cls.__name__, cls.__bases__, namespace)


def _field_of(name: str, said: Any, given: Any, *, kw_only: bool) -> Field:
    if isinstance(given, _Asked):
        return Field(name, said, kw_only=kw_only, **given.about)
    if hasattr(given, "default_factory"):
        raise TypeError(f"the field {name!r} is of another library: use memsheet.frozen.field")
    return Field(name, said, kw_only=kw_only, default=given)


def _compiled_when_called(made: Any, name: str, compiled: Callable[[], Any]) -> Callable[..., Any]:
    """A method that takes its own place when it is first called."""

    def first(self: Any, /, *values: Any, **named: Any) -> Any:
        if vars(made)[name] is first:
            setattr(made, name, compiled())
        return vars(made)[name](self, *values, **named)

    return first


def _init_method(made: Any, kind: Kind) -> Callable[..., None]:
    """The method that sets every field: past the class's own refusal where it is frozen."""
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


def _comparison_methods(made: Any, *, hashed: bool) -> dict[str, Any]:
    """Equality, and a hash of what cannot change."""
    return {
        "__eq__": _compiled_when_called(made, "__eq__", lambda: _eq_method(made)),
        "__hash__": _compiled_when_called(made, "__hash__", lambda: _hash_method(made)) if hashed else None,
    }


def _eq_method(made: Any) -> Any:
    mine, theirs = (_compared_values(made, one) for one in ("self", "other"))
    same = f" return {mine} == {theirs} if other.__class__ is self.__class__ else NotImplemented"
    return _compile_method(made, "def __eq__(self, other):", [same], {})


def _hash_method(made: Any) -> Any:
    return _compile_method(
        made, "def __hash__(self):", [f" return hash({_compared_values(made, 'self')})"], {}
    )


def _compared_values(made: Any, one: str) -> str:
    return f"({''.join(f'{one}.{f.name}, ' for f in made.__own_fields__ if f.compare)})"


class _LibraryView:
    """What the standard library has of a class that it made itself, made when somebody first asks: of a class
    of the same fields.
    """

    def __init__(self, made: type, name: str, kind: Kind) -> None:
        self.made, self.name, self.kind = made, name, kind

    def __get__(self, held: object, owner: type) -> Any:
        import dataclasses
        import inspect

        made: Any = self.made
        twin = dataclasses.make_dataclass(
            made.__name__,
            [(f.name, f.type, _library_field(f)) for f in made.__own_fields__],
            frozen=self.kind.frozen,
            eq=self.kind.eq,
        )
        views = {name: getattr(twin, name) for name in ("__dataclass_fields__", "__dataclass_params__")}
        views["__signature__"] = inspect.signature(twin)
        for name, view in views.items():
            setattr(made, name, view)
        return views[self.name]


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


def _field_values(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in self.__own_fields__]


def _restore_field_values(self: Any, state: list[Any]) -> None:
    for f, value in zip(self.__own_fields__, state, strict=True):
        object.__setattr__(self, f.name, value)


SHARED: dict[str, Any] = {
    "__repr__": _dataclass_repr,
    "__getstate__": _field_values,
    "__setstate__": _restore_field_values,
    "__replace__": replace,
}
FROZEN: dict[str, Any] = {"__setattr__": _refuse_assignment, "__delattr__": _refuse_assignment}
