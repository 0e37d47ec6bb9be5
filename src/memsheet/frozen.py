"""``dataclass``, frozen and slotted as the standard library makes them, for the modules that every start
imports.

A start defines a hundred classes, and the library compiles six methods for each, which takes half a
millisecond. Here ``__init__`` is compiled at once; equality and hash when they are first asked for; text and
frozenness are the same functions for all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        *, frozen: Literal[True], slots: Literal[True], eq: bool = True, kw_only: bool = False
    ) -> Callable[[type], type]:
        """As ``dataclasses.dataclass(frozen=True, slots=True, …)``; whatever reads fields (``replace``,
        ``asdict``) takes them for that.
        """
        del frozen, slots  # said for whoever reads
        return lambda cls: _make_dataclass(cls, eq=eq, kw_only=kw_only)


__all__ = ["dataclass"]


def _make_dataclass(cls: type, *, eq: bool, kw_only: bool) -> type:
    own = frozenset(vars(cls))
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
    fields: list[Field[Any]] = list(made.__dataclass_fields__.values())
    methods = {
        "__init__": _init_method(made, fields),
        **SHARED,
        **(_comparison_methods(made, fields) if eq else {}),
    }
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    made.__dataclass_params__.frozen, made.__dataclass_params__.eq = True, eq
    return made  # type: ignore[no-any-return]


def _init_method(made: Any, fields: list[Field[Any]]) -> Callable[..., None]:
    """The method that sets every field through its slot."""
    known: dict[str, Any] = {"_missing": MISSING}
    words, lines = list[str](), list[str]()
    for f in sorted((f for f in fields if f.init), key=lambda f: bool(f.kw_only)):
        if f.kw_only and "*" not in words:
            words.append("*")
        default = MISSING if f.default_factory is MISSING else None
        has = f.default is not MISSING or default is None
        known[f"_default_{f.name}"] = MISSING if default is None else f.default
        words.append(f"{f.name}=_default_{f.name}" if has else f.name)
    for f in fields:
        known[f"_set_{f.name}"], known[f"_new_{f.name}"], value = (
            getattr(made, f.name).__set__,
            f.default_factory,
            f.name,
        )
        if f.default_factory is not MISSING:
            value = f"_new_{f.name}()" + (f" if {f.name} is _missing else {f.name}" if f.init else "")
        lines.append(f" _set_{f.name}(self, {value})")
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


def _comparison_methods(made: Any, fields: list[Field[Any]]) -> dict[str, Any]:
    """Equality and hash, which take their own place when they are first asked for."""
    heads = {"__eq__": "def __eq__(self, other):", "__hash__": "def __hash__(self):"}
    mine, theirs = ("".join(f"{one}.{f.name}, " for f in fields if f.compare) for one in ("self", "other"))
    bodies = {
        "__eq__": f" return ({mine}) == ({theirs}) if other.__class__ is self.__class__ else NotImplemented",
        "__hash__": f" return hash(({mine}))",
    }

    def later(name: str) -> Callable[..., Any]:
        def first(self: Any, *others: Any) -> Any:
            if vars(made)[name] is first:
                setattr(made, name, _compile_method(made, heads[name], [bodies[name]], {}))
            return vars(made)[name](self, *others)

        return first

    return {name: later(name) for name in heads}


def _dataclass_repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _refuse_assignment(self: Any, name: str, *_: object) -> None:
    raise FrozenInstanceError(f"cannot change {name!r} of {self.__class__.__qualname__}")


def _field_values(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _restore_field_values(self: Any, state: list[Any]) -> None:
    for f, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)


SHARED: dict[str, Any] = {
    "__repr__": _dataclass_repr,
    "__setattr__": _refuse_assignment,
    "__delattr__": _refuse_assignment,
    "__getstate__": _field_values,
    "__setstate__": _restore_field_values,
}
