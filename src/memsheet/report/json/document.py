"""A JSON document as a class. Each key is said once, as an attribute with its type; from that come the
document (``document_of``) and its published schema (``report.schema``)::

    class Device(Document):
        schema_: str = "memsheet/device/1"  # always this; a final underscore is no part of the key
        name: str  # what the value has under this name
        capacity_bytes: Natural = read_from("device.framework_bytes")
        fans: list[Fan] = optional_key()  # left out where there are none
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from memsheet.frozen import NamedTuple
from memsheet.plan.dtypes import DType
from memsheet.sheet import Bytes

Natural = Annotated[int, "at least zero"]
Result = Literal["fits", "does_not_fit", "uncertain"]


class Document:
    """Keys come in the order of their lines, those of a base first."""

    @classmethod
    def document_of(cls, value: Any, /, **given: Any) -> dict[str, Any]:
        """The document of a value, of nothing but what JSON can hold. A plain tuple holds the keys' values in
        order (what it lacks is left out); ``given``: of these keys, in place of what the value says.
        """
        found: dict[str, Any] = {}
        for place, (key, write, droppable) in enumerate(_key_writers(cls)):  # type: ignore[arg-type] # a class is hashable
            if type(value) is tuple:
                if place == len(value):
                    break
                held = value[place]
            else:
                held = given[key.name] if key.name in given else key.read(value)
            if key.kind is ByteRange:
                found |= {f"{key.key}{end}": int(getattr(held, name)) for end, name in RANGE_KEYS.items()}
            elif not droppable or not (held is None or held == ()):
                found[key.key] = None if held is None else write(held)
        return found


class Plan(Document):
    """``memsheet/plan/1``, whose keys are the rules of ``plan.check``; a value is a document already."""


class ByteRange(Document):
    """``device: ByteRange`` is ``device_bytes``, ``device_low_bytes`` and ``device_high_bytes``."""


RANGE_KEYS = {"_bytes": "value", "_low_bytes": "low", "_high_bytes": "high"}


class Key(NamedTuple):
    """An attribute of a document: its key, its type, and how it is read from a value."""

    name: str
    key: str
    kind: Any
    read: Callable[[Any], Any]
    optional: bool


class _Reading(NamedTuple):
    read: Callable[[Any], Any] | str | None
    optional: bool = False


def read_from(read: Callable[[Any], Any] | str = "") -> Any:
    """A key that is read from another attribute, from a path of them (null where one on the way is), or by a
    function; without any, from the same value.
    """
    return _Reading(read)


def optional_key(read: Callable[[Any], Any] | str | None = None) -> Any:
    """A key that is left out where there is nothing: an empty tuple, or None where its type has no null."""
    return _Reading(read, optional=True)


def document_keys(kind: type[Document]) -> Iterator[Key]:
    """The keys of a document, in order. Of a constant the type is the Literal."""
    rows = [row for base in reversed(kind.__mro__[:-1]) for row in base.__annotations__.items()]
    for name, of in rows:
        said = getattr(kind, name, None)
        if isinstance(said, str):
            yield Key(name, name.removesuffix("_"), Literal[said], partial(_constant, said), False)
            continue
        read, optional = said or _Reading(name)
        how = name if read is None else read
        reader = _path_reader(how) if isinstance(how, str) else how
        yield Key(name, name.removesuffix("_"), of, reader, optional)


@cache
def _key_writers(kind: Any) -> tuple[tuple[Key, Callable[[Any], Any], bool], ...]:
    return tuple(
        (key, value_writer(key.kind), key.optional and type(None) not in get_args(key.kind))
        for key in document_keys(kind)
    )


def _constant(said: str, _: Any) -> str:
    return said


def _path_reader(path: str) -> Callable[[Any], Any]:
    names = path.split(".") if path else []

    def read(value: Any) -> Any:
        for name in names:
            value = None if value is None else getattr(value, name)
        return value

    return read


@cache
def value_writer(kind: Any) -> Callable[[Any], Any]:
    """What makes a value of this type into JSON; None is never asked."""
    origin, args = get_origin(kind), [of for of in get_args(kind) if of is not type(None)]
    if origin is Annotated:
        return value_writer(args[0])
    if origin in (Union, UnionType):
        writers = {of.__name__: value_writer(of) for of in args} if len(args) > 1 else {}
        return (lambda held: writers[type(held).__name__](held)) if writers else value_writer(args[0])
    if origin in (list, dict):
        write = value_writer(args[-1])
        if origin is list:
            return lambda held: [write(each) for each in held]
        return lambda held: {str(json_value(key)): write(each) for key, each in held.items()}
    if kind in (int, float):
        return lambda held: kind(held.value if isinstance(held, Bytes) else held)
    if is_document(kind):
        return lambda held: held if isinstance(held, dict) else kind.document_of(held)
    return json_value


def is_document(kind: Any) -> bool:
    """Whether a type is a document; ``list[…]`` is none."""
    return isinstance(kind, type) and get_origin(kind) is None and issubclass(kind, Document)


PLAIN = frozenset({str, int, float, bool, type(None)})


def json_value(value: Any) -> Any:
    """What JSON can hold: enums as their values, dtypes as their names, tuples as lists."""
    if type(value) in PLAIN:  # most are, and what is no mapping takes longer to tell
        return value
    match value:
        case Enum():
            return json_value(value.value)
        case DType():
            return value.name
        case Mapping():
            return {str(json_value(key)): json_value(held) for key, held in value.items()}
        case list() | tuple():
            return [json_value(held) for held in value]
        case Bytes():
            return {"low": int(value.low), "value": int(value.value), "high": int(value.high)}
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)
