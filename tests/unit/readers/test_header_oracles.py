"""Our header readers beside the formats' own libraries, on generated files: the same tensors at the same
bytes.
"""

from __future__ import annotations

import random
from pathlib import Path

import gguf
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from memsheet.plan.dtypes import GGUF
from memsheet.readers import gguf as our_gguf
from memsheet.readers import safetensors as our_safetensors

SEEDS = range(100)
NUMPY = {
    "F64": "f8",
    "F32": "f4",
    "F16": "f2",
    "I64": "i8",
    "I32": "i4",
    "I16": "i2",
    "I8": "i1",
    "U64": "u8",
    "U32": "u4",
    "U16": "u2",
    "U8": "u1",
    "BOOL": "?",
}
PLAIN = ("F16", "F32", "F64", "I8", "I16", "I32", "I64")
SCALARS = {
    "uint8": 2**8 - 1, "int8": -(2**7), "uint16": 2**16 - 1, "int16": -(2**15), "uint32": 2**32 - 1, "int32": -(2**31),
    "uint64": 2**64 - 1, "int64": -(2**63), "float32": 0.5, "float64": -1e300, "bool": True,
}  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_safetensors(seed: int, tmp_path: Path):
    dice = random.Random(seed)
    arrays = {}
    for i in range(dice.randint(0, 12)):
        shape = [dice.randint(0, 5) for _ in range(dice.randint(0, 4))]
        arrays[f"layer.{i}.{dice.choice('abñ模')}"] = np.zeros(shape, NUMPY[dice.choice(list(NUMPY))])
    metadata = {f"k{i}": "v" * dice.randint(0, 9) for i in range(dice.randint(0, 3))}
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file(
        arrays, path, metadata or None
    )  # the library writes broken JSON for no arrays with empty metadata
    ours = our_safetensors.read_header(path)
    with safetensors.safe_open(path, "numpy") as theirs:
        assert {t.name for t in ours.tensors} == set(theirs.keys())
        assert dict(ours.metadata) == (theirs.metadata() or {})
        for tensor in ours.tensors:
            slice_ = theirs.get_slice(tensor.name)
            assert (list(tensor.shape), tensor.dtype) == (slice_.get_shape(), slice_.get_dtype())
            assert tensor.nbytes == theirs.get_tensor(tensor.name).nbytes
    assert ours.header_bytes + our_safetensors.stored_bytes(ours) == path.stat().st_size


@pytest.mark.parametrize("seed", SEEDS)
def test_gguf(seed: int, tmp_path: Path):
    dice = random.Random(seed)
    path = tmp_path / "a.gguf"
    write_gguf(path, dice)
    ours, theirs = our_gguf.read_header(path), gguf.GGUFReader(path)
    assert (ours.alignment, ours.data_start) == (theirs.alignment, theirs.data_offset)
    assert {t.name: (t.dims, t.type, t.offset, t.nbytes) for t in ours.tensors} == {
        t.name: (
            tuple(int(d) for d in t.shape),
            t.tensor_type.name,
            t.data_offset - theirs.data_offset,
            int(t.n_bytes),
        )
        for t in theirs.tensors
    }
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert set(ours.values) == set(fields)
    for name, value in ours.values.items():
        expected = fields[name].contents()
        if isinstance(value, our_gguf.Array):
            assert value.length == len(expected)
            assert value.values is None or list(value.values) == expected
        else:
            assert value == expected
            assert type(value) is type(expected)


def write_gguf(path: Path, dice: random.Random) -> None:
    writer = gguf.GGUFWriter(path, dice.choice(["llama", "gpt2"]))
    if dice.random() < 0.5:
        writer.add_custom_alignment(dice.choice([8, 16, 64, 4096]))
    for i in range(dice.randint(0, 10)):
        kind = dice.choice([*SCALARS, "string", "array"])
        match kind:
            case "string":
                writer.add_string(f"key.{i}", "é模" * dice.randint(0, 40))
            case "array":
                length = dice.randint(1, 50)
                writer.add_array(
                    f"key.{i}",
                    dice.choice([[7] * length, [-0.5] * length, ["token"] * length, [True] * length]),
                )
            case _:
                getattr(writer, f"add_{kind}")(f"key.{i}", SCALARS[kind])
    for i in range(dice.randint(0, 12)):
        add_tensor(writer, f"blk.{i}.weight", dice)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tensor(writer: gguf.GGUFWriter, name: str, dice: random.Random) -> None:
    rows = [dice.randint(1, 4) for _ in range(dice.randint(0, 3))]
    kind = dice.choice([*PLAIN, "BF16", "Q4_0", "Q8_0", "Q4_K", "Q6_K", "IQ2_XS", "TQ1_0", "MXFP4", "Q1_0"])
    if kind in PLAIN:
        writer.add_tensor(name, np.zeros([*rows, dice.randint(1, 9)], NUMPY[kind]))
    else:
        block = int(GGUF[kind].nbytes(GGUF[kind].block))
        writer.add_tensor(
            name,
            np.zeros([*rows, block * dice.randint(1, 3)], np.uint8),
            raw_dtype=gguf.GGMLQuantizationType[kind],
        )


def test_the_types_are_those_of_ggml():
    theirs = {t.value: t.name for t in gguf.GGMLQuantizationType}
    assert theirs == our_gguf.TYPES
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        # the struct holds two halves and 32 bytes; the Python package counts two floats (no file stores this
        # type)
        expected = 36 if kind.name == "Q8_1" else size
        assert (GGUF[kind.name].block, GGUF[kind.name].nbytes(block)) == (block, expected)
