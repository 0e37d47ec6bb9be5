"""The door that every stranger's file comes through: JSON and YAML read as plain data, with limits before
anything is built.

Every refusal is one InputError. Why each limit is here: a parser that trusts its input can be made to recurse
without end, to build gigabytes from kilobytes (aliases, counts), or to hand on numbers that break arithmetic
later (NaN, 1e999, 10^5000).
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from memsheet.errors import input_error, printable_line
from memsheet.guard.confined import is_hidden
from memsheet.guard.spending import spend_bytes, spend_values
from memsheet.late import late_functions

if TYPE_CHECKING:
    from pathlib import Path

with late_functions(__name__):
    from memsheet.guard.aliases import check_written_out, with_merges


MAX_JSON_BYTES = 8 * 2**20  # no released config.json is above a few hundred KiB
MAX_YAML_BYTES = (
    128 * 2**10
)  # engine configurations are a few KiB, and YAML parses a hundred times slower than JSON
MAX_YAML_VALUES = 10_000
MAX_DEPTH = 64
MAX_VALUES = 500_000  # a value takes up to some 200 bytes once built, so this is about 100 MB
MAX_INT = 2**63
_INT_DIGITS = 20  # 2^63 has 19 digits; longer texts never reach int()

# A whole string, escapes included; an unterminated one runs to the end, so that the scan is linear on any
# input.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(b for b in range(256) if b not in b"[]{}")
_STEPS = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")  # read as signed bytes: +1 and -1
OPEN_ENDED = frozenset({"time_step_limit"})
"""Keys of models' configurations whose lists may end nowhere: their classes' own default does (transformers
5.23 configuration_mamba2.py:84, configuration_bamba.py:76, configuration_nemotron_h.py:127).
"""
TAGGED = "__float__"
"""How the library writes a number that JSON has no word for: ``{"__float__": "Infinity"}`` (transformers 5.23
configuration_utils.py:62). Before, it wrote the bare word.
"""
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json(
    data: bytes | str,
    field: str,
    *,
    max_bytes: int = MAX_JSON_BYTES,
    max_values: int = MAX_VALUES,
    max_depth: int = MAX_DEPTH,
    taken: Callable[[dict[str, Any]], Any] | None = None,
) -> Any:
    """The value that JSON text describes: objects with distinct keys, finite floats, ints within ±2^63.

    ``field`` names the input in errors; ``taken``: what stands for an object as soon as it is read, or None
    where it stays. Raises InputError, and nothing else, on anything that is not such
    JSON.
    """
    raw = _checked_utf8(data, field, max_bytes)
    _check_shape(raw, field, max_values, max_depth)

    def whole(text: str) -> int:
        return _parse_bounded_integer(text, field)

    def decimal(text: str) -> float:
        return _require_finite(float(text), text, field)

    constants: list[dict[str, str]] = []

    def constant(text: str) -> dict[str, str]:
        constants.append({TAGGED: text})
        return constants[-1]

    def distinct(pairs: list[tuple[str, Any]]) -> Any:
        found = _dict_with_unique_keys(pairs, field)
        if constants:
            _leave_open_ends(found, constants)
        instead = taken(found) if taken is not None else None
        return found if instead is None else instead

    try:  # as text: given bytes, json.loads would look for UTF-16, which the scan above has not seen
        found = json.loads(
            raw.decode(),
            parse_int=whole,
            parse_float=decimal,
            parse_constant=constant,
            object_pairs_hook=distinct,
        )
    except json.JSONDecodeError as error:
        raise input_error(
            field, None, f"is not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        ) from None
    if constants:
        raise input_error(
            field,
            constants[0][TAGGED],
            "is not a number that JSON knows",
            "NaN and Infinity have no place in a configuration; use null",
        )
    if _HALF_PAIR.search(raw):
        _check_pairs(found, field)
    return found


def _leave_open_ends(found: dict[str, Any], constants: list[dict[str, str]]) -> None:
    """Take from ``constants`` those that a list of ``OPEN_ENDED`` holds, which stay as the library writes
    them.
    """
    held = [one for key in OPEN_ENDED & found.keys() if isinstance(found[key], list) for one in found[key]]
    constants[:] = [one for one in constants if not any(one is other for other in held)]


def read_json(path: Path, *, max_bytes: int = MAX_JSON_BYTES, max_values: int = MAX_VALUES) -> dict[str, Any]:
    """The object in a JSON file. Raises InputError if the file is missing, is not a regular file, or holds
    anything else.
    """
    return _require_top_level_object(
        parse_json(read_bytes(path, max_bytes), str(path), max_bytes=max_bytes, max_values=max_values), path
    )


ANCHORED = "has an anchor or an alias"


def parse_yaml(data: bytes | str, field: str, *, last_wins: bool = False, aliases: bool = False) -> Any:
    """The value that one YAML document describes, with the same rules for numbers and keys as ``parse_json``.
    ``last_wins``: of a key that stands twice the last is taken, as PyYAML does, and not refused.
    ``aliases``: anchors are followed, and merged under ``<<``, as far as the text written out is within the
    same limits.

    Anchors, aliases, tags and further documents are refused from the event stream, before a value is built.
    """
    import yaml

    text = _checked_utf8(data, field, MAX_YAML_BYTES).decode()
    try:
        _check_events(text, field, aliases=aliases)
        loader = _yaml_loader()(text, field, last_wins=last_wins, merges=aliases)
        node = loader.get_single_node()
        if aliases and node is not None:
            check_written_out(node, field, MAX_YAML_VALUES, MAX_DEPTH)
        return None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        reason = printable_line(
            getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be parsed"
        )
        raise input_error(field, None, f"is not YAML that memsheet reads: {reason}{where}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, under the same rules as ``read_json``."""
    return _require_top_level_object(parse_yaml(read_bytes(path, MAX_YAML_BYTES), str(path)), path)


Opener: TypeAlias = "Callable[[Path], AbstractContextManager[tuple[BinaryIO, int]]]"
"""What opens a file for reading and tells its size: ``open_regular``, or whoever reads one from elsewhere."""


@contextmanager
def open_regular(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """A file opened for reading and its size. Directories, pipes and devices are refused without being read
    or waited for.
    """
    if is_hidden(path):
        raise input_error("file", str(path), "does not exist")
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise input_error("file", str(path), "does not exist") from None
    except (
        OSError,
        ValueError,
    ) as error:  # a loop of links, a name too long or with a NUL, no permission, a directory on Windows
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "is not a file name"
        raise input_error("file", str(path), f"cannot be opened: {reason}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise input_error(
            "file",
            str(path),
            f"is {'a folder' if stat.S_ISDIR(status.st_mode) else 'a pipe, socket or device'}, not a file",
        )
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        yield file, status.st_size


def is_folder(path: Path | str) -> bool:
    """Whether ``path`` is a folder; False, never an error, for names that no file can have."""
    return _path_mode_matches(path, stat.S_ISDIR)


def is_file(path: Path | str) -> bool:
    """Whether ``path`` is a regular file; False, never an error, for names that no file can have."""
    return _path_mode_matches(path, stat.S_ISREG)


def _path_mode_matches(path: Path | str, question: Callable[[int], bool]) -> bool:
    try:
        return not is_hidden(path) and question(os.stat(path).st_mode)  # noqa: PTH116 - a name need be no Path
    except (OSError, ValueError):
        return False


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """All bytes of a regular file that holds no more than ``max_bytes``."""
    with open_regular(path) as (file, size):
        if size > max_bytes:
            raise input_error(
                "file", str(path), f"has {size} bytes, more than the {max_bytes} that such a file may have"
            )
        return read_exact_bytes(file, size, path)


def read_stdin(field: str, max_bytes: int) -> bytes:
    """What stands on stdin, one byte more than ``max_bytes`` at most, so that whoever reads it sees that it
    is too long.
    """
    data = sys.stdin.buffer.read(max_bytes + 1)
    spend_bytes(f"stdin ({field})", len(data))
    return data


def read_exact_bytes(file: BinaryIO, size: int, path: Path) -> bytes:
    """The next ``size`` bytes; a file that ends earlier (it is being written?) is refused."""
    spend_bytes(str(path), file.tell() + size)
    parts: list[bytes] = []
    missing = size
    while missing:
        try:
            part = file.read(missing)
        except OSError as error:
            raise input_error("file", str(path), f"cannot be read: {error.strerror}") from None
        if not part:
            raise input_error("file", str(path), f"ends {missing} bytes early", "was it copied completely?")
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _require_top_level_object(found: Any, path: Path) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise input_error(str(path), found, "holds no object of keys and values at its top level")
    return found


def _checked_utf8(data: bytes | str, field: str, max_bytes: int) -> bytes:
    """``data`` as valid UTF-8 without byte-order mark and within the size limit."""
    if len(data) > max_bytes:
        raise input_error(field, None, f"is longer than the {max_bytes} bytes that are read")
    try:
        raw = data.encode() if isinstance(data, str) else data
        raw = raw.removeprefix(b"\xef\xbb\xbf")
        raw.decode()
    except UnicodeError:
        hint = (
            "it looks like UTF-16; save it as UTF-8"
            if isinstance(data, bytes) and data[:2] in (b"\xff\xfe", b"\xfe\xff")
            else ""
        )
        raise input_error(field, None, "is not UTF-8 text", hint) from None
    if len(raw) > max_bytes:
        raise input_error(field, None, f"is longer than the {max_bytes} bytes that are read")
    if not raw.strip():
        raise input_error(field, None, "is empty")
    return raw


def _check_shape(raw: bytes, field: str, max_values: int, max_depth: int) -> None:
    """Refuse deep or crowded JSON from its brackets and commas alone, strings left out.

    Up to the first mistake in the text this counts exactly what the parser would build, and there the parser
    stops.
    """
    crowded = input_error(field, None, f"holds more than {max_values} values")
    if (
        raw.count(b'"') - raw.count(b'\\"') > 2 * max_values + 2
    ):  # before the strings are gone through one by one
        raise crowded
    bare = _STRING.sub(b"", raw)
    count = bare.count(b",") + bare.count(b"[") + bare.count(b"{") + bare.count(b":")
    if count > max_values:
        raise crowded
    spend_values(field, count)
    steps = bare.translate(_STEPS, _NOT_BRACKETS)
    if max(accumulate(memoryview(steps).cast("b")), default=0) > max_depth:
        raise input_error(field, None, f"is nested deeper than {max_depth} levels")


def _parse_bounded_integer(text: str, field: str) -> int:
    if len(text) > _INT_DIGITS or abs(value := int(text)) > MAX_INT:
        raise input_error(field, text, "is outside ±2^63", "no size of a model or a machine is near this")
    return value


def _require_finite(value: float, text: str, field: str) -> float:
    if not math.isfinite(value):
        raise input_error(field, text, "is not a finite number")
    return value


TWICE = "is a key that stands twice in one object"


def _dict_with_unique_keys(pairs: list[tuple[Any, Any]], field: str) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise input_error(
            field,
            twice,
            TWICE,
            "two readers would read two different models",
        )
    return found


def _check_pairs(found: Any, field: str) -> None:
    """Refuse text that cannot be written out again: half of a surrogate pair."""
    try:
        json.dumps(found, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise input_error(field, None, "holds half of a surrogate pair, which is no character") from None


def _check_events(text: str, field: str, *, aliases: bool) -> None:
    """Refuse what YAML has beyond plain data (``aliases`` let by), and depth, from the events alone."""
    import yaml

    depth = documents = values = 0
    for event in yaml.parse(text, Loader=_yaml_base()):
        where = f"line {event.start_mark.line + 1}" if event.start_mark else None
        named = isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None
        if named and not aliases:
            raise input_error(
                field,
                where,
                ANCHORED,
                "write the value out: aliases can grow without limit",
            )
        if getattr(event, "tag", None) is not None:
            raise input_error(field, where, "has a tag", "tags can name code; only plain values are read")
        documents += isinstance(event, yaml.DocumentStartEvent)
        values += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if documents > 1:
            raise input_error(field, where, "starts a second document", "keep one document a file")
        if depth > MAX_DEPTH:
            raise input_error(field, where, f"is nested deeper than {MAX_DEPTH} levels")
        if values > MAX_YAML_VALUES:
            raise input_error(field, where, f"holds more than {MAX_YAML_VALUES} values")
    spend_values(field, values)


def _yaml_base() -> Any:
    """PyYAML's safe loader, in C where PyYAML was built with it (ten times faster)."""
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def _yaml_loader() -> Any:
    """PyYAML's safe loader without dates, with checked numbers and distinct keys; merge keys are ours."""
    base: Any = _yaml_base()
    left_out = {f"tag:yaml.org,2002:{kind}" for kind in ("timestamp", "merge", "value")}

    class Loader(base):  # type: ignore[misc]
        yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own name and kind
            first: [(tag, pattern) for tag, pattern in pairs if tag not in left_out]
            for first, pairs in base.yaml_implicit_resolvers.items()
        }

        def __init__(self, text: str, field: str, *, last_wins: bool, merges: bool) -> None:
            super().__init__(text)
            self.field, self.last_wins, self.merges = field, last_wins, merges

    for kind, build in (("map", _yaml_map), ("int", _yaml_int), ("float", _yaml_float)):
        Loader.add_constructor(f"tag:yaml.org,2002:{kind}", build)
    return Loader


def _yaml_map(loader: Any, node: Any) -> dict[Any, Any]:
    pairs = [
        (loader.construct_object(key, deep=True), loader.construct_object(value, deep=True))
        for key, value in node.value
    ]
    for key, _ in pairs:
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise input_error(loader.field, key, "is a key that is not text", "put it in quotes")
    found = dict(pairs) if loader.last_wins else _dict_with_unique_keys(pairs, loader.field)
    return with_merges(found, loader.field) if loader.merges else found


def _yaml_int(loader: Any, node: Any) -> int:
    # YAML also writes ints in base 2, 8, 16 and 60, with underscores: never more than this many characters
    # for 64 bits
    try:
        value = int(loader.construct_yaml_int(node)) if len(node.value) <= 4 * _INT_DIGITS else MAX_INT + 1
    except ValueError:  # "0x_" passes PyYAML's own pattern
        raise input_error(loader.field, node.value, "is not a number") from None
    if abs(value) > MAX_INT:
        raise input_error(loader.field, node.value, "is outside ±2^63")
    return value


def _yaml_float(loader: Any, node: Any) -> float:
    try:
        value = float(loader.construct_yaml_float(node))
    except (ValueError, OverflowError):
        raise input_error(loader.field, node.value, "is not a number") from None
    return _require_finite(value, node.value, loader.field)
