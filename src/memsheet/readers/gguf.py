"""The header of a GGUF file: its key/values and tensor infos, streamed. The weights are never read.

Layout (little endian): magic, version, tensor count, key count, then ``key, type, value`` for each key and
``name, dimensions, type, offset`` for each tensor; the data follows at the next multiple of
``general.alignment``. Every count is checked against the bytes that are left in the file before anything is
built from it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from memsheet.arith import round_up
from memsheet.errors import InputError, input_error
from memsheet.frozen import dataclass
from memsheet.guard import Opener, open_regular, read_exact_bytes
from memsheet.guard.spending import spend_values
from memsheet.plan.dtypes import GGUF, DType

FORMAT = "ggml docs/gguf.md (file structure, value types, alignment); ggml/include/gguf.h"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 256 * 2**20
MAX_KEYS = 4096  # a released file has fewer than a hundred
MAX_TENSORS = 16_384  # experts are stored together, so that the largest released models have about 2,000
MAX_STRING = 2**20
MAX_ARRAY = 16 * 2**20
MAX_NESTING = 2
MAX_STEPS = 2**20  # strings and arrays inside arrays of one file, which must be stepped over one by one
MAX_KEPT_BYTES = 8 * 2**20  # of all values that are kept; a long chat template has 0.1 MB
MAX_DIMENSIONS = 4
MAX_DIMENSION = 2**40
MAX_ELEMENTS = 2**60
MAX_ALIGNMENT = 2**20
DEFAULT_ALIGNMENT = 32
# an array of numbers up to this length is kept (one value a layer); longer ones, and texts, are counted only
KEPT = 16_384
_WINDOW = 2**18

# ggml type number → name                                             (ggml/include/ggml.h, enum ggml_type)
TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K",
    13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0",
    35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
_REMOVED = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

# value type number → its struct format                                (docs/gguf.md,
# gguf_metadata_value_type)
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<B",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_LEAST = {_STRING: 8, _ARRAY: 12} | {
    kind: struct.calcsize(form) for kind, form in _SCALARS.items()
}  # bytes of the shortest value


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """An array among the key/values: its length, and its values where they are numbers and few."""

    length: int
    values: tuple[int | float | bool, ...] | None = None


Value = int | float | bool | str | Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One stored tensor. ``dims`` are ggml's, innermost first; ``offset`` counts from the start of the
    data.
    """

    name: str
    dims: tuple[int, ...]
    type: str
    offset: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions as torch orders them."""
        return self.dims[::-1]

    @property
    def elements(self) -> int:
        return prod(self.dims)

    @property
    def dtype(self) -> DType:
        return GGUF[self.type]

    @property
    def nbytes(self) -> int:
        return int(self.dtype.nbytes(self.elements))


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What one GGUF file says about itself; tensors in the order of the file's infos."""

    version: int
    alignment: int
    values: Mapping[str, Value]
    tensors: tuple[Tensor, ...]
    data_start: int
    file_bytes: int


def read_header(path: Path, opened: Opener = open_regular) -> Header:
    """The header of one GGUF file, every count and offset checked. Source: ``FORMAT``."""
    with opened(path) as (file, size):
        stream = _Stream(file, size, path)
        version, tensor_count, key_count = _read_gguf_preamble(stream)
        values: dict[str, Value] = {}
        for _ in range(key_count):
            key = stream.text("a key")
            if key in values:
                raise stream.wrong(key, "is a key that stands twice")
            values[key] = _read_gguf_value(stream, stream.number("<I"), key)
        alignment = _checked_alignment(stream, values.get("general.alignment", DEFAULT_ALIGNMENT))
        names: set[str] = set()
        tensors = tuple(_read_tensor_info(stream, alignment, names) for _ in range(tensor_count))
        header = Header(
            version=version,
            alignment=alignment,
            values=MappingProxyType(values),
            tensors=tensors,
            data_start=int(round_up(stream.position, alignment)),
            file_bytes=size,
        )
    spend_values(str(path), stream.steps + len(header.values) + len(header.tensors))
    _check_layout(header, path)
    return header


def stored_bytes(header: Header) -> int:
    """Bytes of all tensors, without the header and without alignment between them."""
    return sum(t.nbytes for t in header.tensors)


class _Stream:
    """A file read forward through a small window; nothing is read or stepped over that the file does not
    hold.
    """

    def __init__(self, file: BinaryIO, size: int, path: Path) -> None:
        self.file, self.size, self.path = file, size, path
        self.window, self.start, self.at = b"", 0, 0
        self.steps, self.kept = 0, 0

    @property
    def position(self) -> int:
        return self.start + self.at

    @property
    def left(self) -> int:
        """Bytes that the header may still take."""
        return min(self.size, MAX_HEADER_BYTES) - self.position

    def wrong(self, value: object, reason: str, hint: str = "") -> InputError:
        return input_error(f"{self.path.name}, byte {self.position}", value, reason, hint)

    def need(self, count: int) -> None:
        """Bring the next ``count`` bytes into the window."""
        if count > self.left:
            raise self.wrong(
                count,
                f"bytes are claimed where {max(self.left, 0)} are left",
                "was the file copied completely?",
            )
        if self.at + count > len(self.window):
            rest = self.window[self.at :]
            more = read_exact_bytes(
                self.file, min(self.size - self.start - len(self.window), max(count, _WINDOW)), self.path
            )
            self.start, self.at, self.window = self.position, 0, rest + more

    def take(self, count: int) -> bytes:
        self.need(count)
        self.at += count
        return self.window[self.at - count : self.at]

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def skip(self, count: int) -> None:
        """Step over ``count`` bytes without reading those that are not in the window."""
        if count > self.left:
            self.need(count)
        if self.at + count <= len(self.window):
            self.at += count
        else:
            self.start, self.at, self.window = self.position + count, 0, b""
            self.file.seek(self.start)

    def text(self, what: str) -> str:
        """A string that names something: valid UTF-8."""
        length = self.number("<Q")
        if length > MAX_STRING:
            raise self.wrong(length, f"is the length of {what}, above the limit of {MAX_STRING}")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise self.wrong(None, f"{what} is not UTF-8 text") from None

    def step(self, count: int) -> None:
        """Count elements that take time, whatever the size of the file (a sparse file costs nothing to
        make).
        """
        self.steps += count
        if self.steps > MAX_STEPS:
            raise self.wrong(
                self.steps,
                f"strings or arrays inside arrays are more than the {MAX_STEPS} that a header may have",
            )

    def keep(self, count: int) -> None:
        """Count bytes of memory that kept values take."""
        self.kept += count
        if self.kept > MAX_KEPT_BYTES:
            raise self.wrong(
                self.kept, f"bytes of values are more than the {MAX_KEPT_BYTES} that a header may have"
            )

    def skip_strings(self, count: int) -> None:
        """Step over ``count`` strings inside the window, which is many times faster than reading each."""
        self.step(count)
        unpack, done = struct.Struct("<Q").unpack_from, 0
        while done < count:
            self.need(8)
            window, at, end = self.window, self.at, len(self.window) - 8
            while done < count and at <= end:
                length = unpack(window, at)[0]
                if length > MAX_STRING:
                    raise self.wrong(
                        length, f"is the length of a string in an array, above the limit of {MAX_STRING}"
                    )
                at += 8 + length
                done += 1
            self.skip(at - self.at)


def _read_gguf_preamble(stream: _Stream) -> tuple[int, int, int]:
    if stream.size < 24 or stream.take(4) != b"GGUF":
        raise input_error(
            stream.path.name, None, "is not a GGUF file: it does not start with GGUF and three counts"
        )
    version = stream.number("<I")
    if version not in VERSIONS:
        big = version and version % 65536 == 0
        hint = "the file is big endian; convert it" if big else "convert it again with a current llama.cpp"
        raise stream.wrong(
            version, "is a GGUF version that memsheet does not read (2 and 3, little endian)", hint
        )
    tensor_count, key_count = stream.number("<Q"), stream.number("<Q")
    # the shortest key is an empty name, a type and a byte; the shortest tensor an empty name, three numbers
    for what, count, limit, least in (
        ("keys", key_count, MAX_KEYS, 13),
        ("tensors", tensor_count, MAX_TENSORS, 24),
    ):
        if count > limit or count * least > stream.left:
            raise stream.wrong(
                count, f"{what} are more than the limit of {limit} or than the file has room for"
            )
    return version, tensor_count, key_count


def _read_gguf_value(stream: _Stream, kind: int, key: str) -> Value:
    if kind == _STRING:
        length = stream.number("<Q")
        if length > MAX_STRING:
            raise stream.wrong(length, f"is the length of a string, above the limit of {MAX_STRING}")
        stream.keep(length)
        return stream.take(length).decode(errors="replace")
    if kind == _ARRAY:
        return _read_gguf_array(stream, key, 1)
    form = _SCALARS.get(kind)
    if form is None:
        raise stream.wrong(kind, "is not a GGUF value type")
    value: int | float = struct.unpack(form, stream.take(_LEAST[kind]))[0]
    if isinstance(value, float) and not math.isfinite(value):
        raise stream.wrong(key, "has a value that is not a finite number")
    if kind == _BOOL:
        if value not in (0, 1):
            raise stream.wrong(value, "is neither true nor false")
        return bool(value)
    return value


def _read_gguf_array(stream: _Stream, key: str, nesting: int) -> Array:
    """An array, its size checked against the rest of the file first; long ones and texts are stepped over."""
    if nesting > MAX_NESTING:
        raise stream.wrong(key, f"is an array nested deeper than {MAX_NESTING} levels")
    kind, length = stream.number("<I"), stream.number("<Q")
    least = _LEAST.get(kind)
    if least is None:
        raise stream.wrong(kind, "is not a GGUF value type")
    if length > MAX_ARRAY or length * least > stream.left:
        raise stream.wrong(
            length,
            f"elements of an array are more than the limit of {MAX_ARRAY} or than the file has room for",
        )
    if kind == _STRING:
        stream.skip_strings(length)
    elif kind == _ARRAY:
        stream.step(16 * length)  # each takes as long as many strings
        for _ in range(length):
            _read_gguf_array(stream, key, nesting + 1)
    elif length <= KEPT and nesting == 1:
        stream.keep(8 * length)
        values = struct.unpack(f"<{length}{_SCALARS[kind][1]}", stream.take(length * least))
        return Array(length=length, values=tuple(map(bool, values)) if kind == _BOOL else values)
    else:
        stream.skip(length * least)
    return Array(length=length)


def _checked_alignment(stream: _Stream, value: Value) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not 1 <= value <= MAX_ALIGNMENT
        or value & (value - 1)
    ):
        raise stream.wrong(value, f"is an alignment that is not a power of two up to {MAX_ALIGNMENT}")
    return value


def _read_tensor_info(stream: _Stream, alignment: int, names: set[str]) -> Tensor:
    name = stream.text("a tensor's name")
    if name in names:
        raise stream.wrong(name, "is a tensor that stands twice")
    names.add(name)
    count = stream.number("<I")
    if count > MAX_DIMENSIONS:
        raise stream.wrong(count, f"dimensions are more than the {MAX_DIMENSIONS} that ggml knows")
    dims = struct.unpack(f"<{count}Q", stream.take(8 * count))
    kind, offset = stream.number("<I"), stream.number("<Q")
    if kind not in TYPES:
        removed = (
            f"{_REMOVED[kind]} was removed from ggml; convert the model again" if kind in _REMOVED else ""
        )
        raise input_error(f"{stream.path.name}: {name}", kind, "is not a ggml type", removed)
    tensor = Tensor(name=name, dims=dims, type=TYPES[kind], offset=offset)
    if max(dims, default=0) > MAX_DIMENSION or tensor.elements > MAX_ELEMENTS:
        raise input_error(
            f"{stream.path.name}: {name}",
            list(dims),
            f"has a dimension above {MAX_DIMENSION} or more than {MAX_ELEMENTS} elements",
        )
    if (dims[0] if dims else 1) % tensor.dtype.block:
        raise input_error(
            f"{stream.path.name}: {name}",
            list(dims),
            f"has rows that are not whole blocks of {tensor.dtype.block} in {tensor.type}",
        )
    if offset % alignment:
        raise input_error(
            f"{stream.path.name}: {name}", offset, f"is an offset that is not a multiple of {alignment}"
        )
    return tensor


def _check_layout(header: Header, path: Path) -> None:
    """No tensor shares bytes with another or lies outside the file."""
    end, data_bytes = 0, header.file_bytes - header.data_start
    for tensor in sorted(header.tensors, key=lambda t: (t.offset, t.nbytes)):
        where = f"{path.name}: {tensor.name}"
        if tensor.offset < end:
            raise input_error(
                where, tensor.offset, f"is an offset inside another tensor, which ends at {end}"
            )
        end = tensor.offset + tensor.nbytes
        if tensor.nbytes and end > data_bytes:
            raise input_error(
                where,
                end,
                f"is where it ends, past the {max(data_bytes, 0)} bytes of data in the file",
                "was it copied completely?",
            )
