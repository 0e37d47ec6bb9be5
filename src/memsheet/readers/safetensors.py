"""The header of a .safetensors file: which tensors it stores, at which bytes. The weights themselves are
never read.

Layout: eight bytes of little-endian header length, a JSON object ``name → {dtype, shape, data_offsets}``, the
data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeGuard

from memsheet.errors import input_error
from memsheet.frozen import dataclass
from memsheet.guard import Opener, is_file, is_folder, open_regular, parse_json, read_exact_bytes, read_json

FORMAT = "safetensors README, Format; safetensors 0.8 tensor.rs, validate"
MAX_HEADER_BYTES = (
    25_000_000  # what huggingface_hub reads of one (2.4 constants.py, SAFETENSORS_MAX_HEADER_LENGTH)
)
MAX_TENSORS = 100_000  # of one file: of models with hundreds of experts each has a few thousand
MAX_IN_METADATA = 20_000  # brackets in texts of __metadata__, which trainers of adapters fill with JSON
MAX_INDEXED = 400_000  # 384 experts in 61 layers, each of three matrices with scales, are 140,000
MOST_HEADERS_BYTES = 32_000_000  # of all files of a model
MAX_DIMENSION = 2**40
MAX_ELEMENTS = 2**60
MAX_INDEX_BYTES = 32 * 2**20  # 384 experts in 61 layers make an index of about 15 MB
MAX_INDEX_VALUES = 3 * MAX_INDEXED
MAX_SHARDS = 10_000
INDEX = "model.safetensors.index.json"
_VALUES_A_TENSOR = 14  # commas, colons and brackets of name, dtype, shape of up to four, offsets

# bits of one element                                              (safetensors 0.8, dtype.rs: bitsize)
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8, "F8_E8M0": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One stored tensor; ``start`` and ``end`` count from the first byte after the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What one file stores, in the order of its bytes."""

    tensors: tuple[Tensor, ...]
    metadata: Mapping[str, str]
    header_bytes: int
    file_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Which file of a folder stores which tensor."""

    folder: Path
    weight_map: Mapping[str, str]
    total_bytes: int | None

    @property
    def shards(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.weight_map.values())))


def read_header(path: Path, opened: Opener = open_regular) -> Header:
    """The header of one .safetensors file, checked so that every byte of data belongs to exactly one tensor.
    Source: ``FORMAT``.
    """
    with opened(path) as (file, size):
        if size < 8:
            raise input_error(str(path), None, f"has {size} bytes, too few for a safetensors header")
        length = int.from_bytes(read_exact_bytes(file, 8, path), "little")
        if length > min(size - 8, MAX_HEADER_BYTES):
            raise input_error(
                str(path),
                length,
                f"claims a longer header than the file and the limit of {MAX_HEADER_BYTES} bytes allow",
                "is this a safetensors file?",
            )
        raw = read_exact_bytes(file, length, path)
    if not raw.lstrip().startswith(b"{"):
        raise input_error(
            str(path), None, "has a header that is not a JSON object", "is this a safetensors file?"
        )
    if raw.count(b"{") > MAX_TENSORS + MAX_IN_METADATA:  # before a value is built
        raise input_error(str(path), None, f"holds more than the {MAX_TENSORS} tensors that a file may have")
    found: dict[str, Any] = parse_json(
        raw, str(path), max_bytes=MAX_HEADER_BYTES, max_values=MAX_TENSORS * _VALUES_A_TENSOR, max_depth=8
    )
    metadata = _header_metadata(found.pop("__metadata__", None), path)
    if len(found) > MAX_TENSORS:
        raise input_error(
            str(path), len(found), f"is more than the {MAX_TENSORS} tensors that a file may have"
        )
    tensors = sorted(
        (_read_tensor_entry(name, entry, path) for name, entry in found.items()),
        key=lambda t: (t.start, t.end),
    )
    _check_cover(tensors, size - 8 - length, path)
    return Header(
        tensors=tuple(tensors), metadata=MappingProxyType(metadata), header_bytes=8 + length, file_bytes=size
    )


def stored_bytes(header: Header) -> int:
    """Bytes of all tensors of one file, without its header."""
    return sum(t.nbytes for t in header.tensors)


def read_index(path: Path) -> Index:
    """The shard index of a model, from its own file or from the folder that holds it."""
    file = path / INDEX if is_folder(path) else path
    return index_of(read_json(file, max_bytes=MAX_INDEX_BYTES, max_values=MAX_INDEX_VALUES), file.parent)


def index_of(data: Mapping[str, Any], folder: Path) -> Index:
    """The shard index that a parsed index file describes."""
    weight_map = data.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or len(weight_map) > MAX_INDEXED:
        raise input_error("weight_map", weight_map, "is not an object that names the file of each tensor")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _is_plain_name(shard):
            raise input_error(
                f"weight_map.{name}", shard, "is not the name of a .safetensors file in the same folder"
            )
    metadata = data.get("metadata") or {}
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    index = Index(
        folder=folder, weight_map=MappingProxyType(weight_map), total_bytes=_declared_total_bytes(total)
    )
    if len(index.shards) > MAX_SHARDS:
        raise input_error(
            "weight_map", len(index.shards), f"is more than the {MAX_SHARDS} files that a model may have"
        )
    return index


def folder_stored_bytes(folder: Path) -> int | None:
    """Exact bytes of the weights that a folder stores, from the headers of its shards (or its one file); None
    without any.

    With an index, only the tensors it names count, each in the file it names. Some shards missing is an
    error: the sum would lie.
    """
    if is_file(folder / INDEX):
        index = read_index(folder)
        missing = [shard for shard in index.shards if not is_file(folder / shard)]
        if len(missing) == len(index.shards):
            return None
        if missing:
            raise input_error(
                "weight_map",
                missing[0],
                f"is one of {len(missing)} missing files of {len(index.shards)}",
                "was the download finished?",
            )
        _check_headers([folder / shard for shard in index.shards])
        return sum(_indexed_bytes(index, shard) for shard in index.shards)
    files = sorted(folder.glob("*.safetensors")) if is_folder(folder) else []
    single = folder / "model.safetensors"
    if single in files:
        files = [single]
    return stored_bytes(read_header(files[0])) if len(files) == 1 else None


def _check_headers(paths: Sequence[Path]) -> None:
    """Refuse headers that are too long together, before any of them is read."""
    total = 0
    for path in paths:
        with open_regular(path) as (file, size):
            total += int.from_bytes(read_exact_bytes(file, 8, path), "little") if size >= 8 else 0
    if total > MOST_HEADERS_BYTES:
        raise input_error(
            "weight_map",
            total,
            f"is bytes of headers together, more than the {MOST_HEADERS_BYTES} that are read",
        )


def _indexed_bytes(index: Index, shard: str) -> int:
    wanted = {name for name, file in index.weight_map.items() if file == shard}
    found = {t.name: t.nbytes for t in read_header(index.folder / shard).tensors}
    absent = sorted(wanted - found.keys())
    if absent:
        raise input_error(f"weight_map.{absent[0]}", shard, "is a file that does not hold this tensor")
    return sum(found[name] for name in wanted)


def _is_plain_name(shard: str) -> bool:
    return (
        shard.endswith(".safetensors")
        and not shard.startswith(".")
        and shard.isprintable()
        and not set(shard) & set('/\\:*?"<>|')
    )


def _declared_total_bytes(value: object) -> int | None:
    """``metadata.total_size``; some writers store it as a float. It is a claim, so anything unusable counts
    as absent.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_ELEMENTS * 8
        else None
    )


def _header_metadata(value: object, path: Path) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise input_error(f"{path.name}: __metadata__", value, "is not an object of texts")
    return value


def _read_tensor_entry(name: str, entry: object, path: Path) -> Tensor:
    where = f"{path.name}: {name}"
    if not isinstance(entry, dict):
        raise input_error(where, entry, "is not an object with dtype, shape and data_offsets")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BITS:
        raise input_error(f"{where}.dtype", dtype, f"is none of {', '.join(BITS)}")
    if not _is_count_list(shape, MAX_DIMENSION):
        raise input_error(
            f"{where}.shape", shape, f"is not a list of whole numbers from 0 to {MAX_DIMENSION}"
        )
    if not _is_count_list(offsets, MAX_ELEMENTS) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise input_error(f"{where}.data_offsets", offsets, "is not a pair of ascending whole numbers")
    return _check_tensor_bytes(
        Tensor(name=name, dtype=dtype, shape=tuple(shape), start=offsets[0], end=offsets[1]), where
    )


def _check_tensor_bytes(tensor: Tensor, where: str) -> Tensor:
    if len(tensor.shape) > 64 or tensor.elements > MAX_ELEMENTS:
        raise input_error(
            f"{where}.shape", list(tensor.shape), f"has more than {MAX_ELEMENTS} elements or 64 dimensions"
        )
    bits = tensor.elements * BITS[tensor.dtype]
    if bits % 8:
        raise input_error(
            f"{where}.shape", list(tensor.shape), f"does not end at a whole byte in {tensor.dtype}"
        )
    if tensor.nbytes != bits // 8:
        raise input_error(
            f"{where}.data_offsets",
            [tensor.start, tensor.end],
            f"is {tensor.nbytes} bytes; its shape and dtype {tensor.dtype} need {bits // 8}",
        )
    return tensor


def _is_count_list(value: object, high: int) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        isinstance(v, int) and not isinstance(v, bool) and 0 <= v <= high for v in value
    )


def _check_cover(tensors: list[Tensor], data_bytes: int, path: Path) -> None:
    """Every byte of the data belongs to one tensor: no gap, no overlap, no rest (a second file could hide
    there).
    """
    end = 0
    for tensor in tensors:
        if tensor.start != end:
            raise input_error(
                f"{path.name}: {tensor.name}.data_offsets",
                [tensor.start, tensor.end],
                f"should start at byte {end}: tensors leave no gap and share no byte",
            )
        end = tensor.end
    if end != data_bytes:
        raise input_error(
            str(path),
            None,
            f"has {data_bytes} bytes of data, but its tensors take {end}",
            "was it copied completely?",
        )
