"""Bits of storage formats, scales included."""

from __future__ import annotations

import copy
import pickle

import pytest

from memsheet.plan.dtypes import BY_NAME, GGUF, dtype_named, grouped_int


@pytest.mark.parametrize(
    ("name", "elements", "size"),
    [
        ("fp32", 1000, 4000), ("bf16", 1000, 2000), ("fp8", 1000, 1000), ("bool", 8, 8), ("int64", 2, 16),
        ("int4", 7, 4),  # two elements a byte, the last alone
        ("nf4-single", 640, 320 + 4 * 10),  # an fp32 maximum a block of 64
        ("nf4", 64 * 256, 8192 + 256 + 4),  # that maximum in 8 bits, and an fp32 for 256 of them (QLoRA, section 3)
        ("nf4", 64, 32 + 1 + 4),  # a partial block has whole scales
        ("mxfp4", 3200, 1600 + 100), ("mxfp8", 3200, 3200 + 100),  # OCP: one byte of exponent a block of 32
        ("nvfp4", 1600, 800 + 100),
        ("gptq-int4", 12800, 6400 + 200 + 50), ("awq-int4", 12800, 6400 + 200 + 50),  # fp16 scale and 4-bit zero point a group of 128
        ("fp8-block", 128 * 128 * 3, 128 * 128 * 3 + 12),
        ("adam8bit", 512, 512 + 8),
    ],
)  # fmt: skip
def test_bytes_of_a_tensor(name: str, elements: int, size: int) -> None:
    dtype = dtype_named(name)
    assert dtype is not None
    assert dtype.nbytes(elements) == size


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("Q4_0", 4.5),
        ("Q4_K", 4.5),
        ("Q5_K", 5.5),
        ("Q6_K", 6.5625),
        ("Q8_0", 8.5),
        ("Q2_K", 2.625),
        ("MXFP4", 4.25),
    ],
)
def test_gguf_bits_a_weight_are_those_of_the_block_structs(name: str, bits: float) -> None:
    """ggml-common.h: bytes of a block over its elements."""
    assert 8 * GGUF[name].nbytes(256 * 1000) / (256 * 1000) == bits


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("torch.bfloat16", "bf16"),
        ("float16", "fp16"),
        ("half", "fp16"),
        ("float8_e4m3fn", "fp8"),
        ("fp8_e5m2", "fp8_e5m2"),
        ("bf16", "bf16"),
        ("gguf:Q4_K", "gguf:Q4_K"),
    ],
)
def test_other_spellings(spelled: str, name: str) -> None:
    found = dtype_named(spelled)
    assert found is not None
    assert found.name == name


def test_an_unknown_name_is_none_and_never_a_guess() -> None:
    assert dtype_named("fp12") is None
    assert dtype_named("") is None


def test_a_smaller_group_carries_more_scales() -> None:
    sizes = [grouped_int(4, group, zero_bits=4, name="g").nbytes(2**20) for group in (32, 64, 128)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 2**19 + 2**15 * 2 + 2**14


def test_every_format_says_where_its_layout_comes_from() -> None:
    assert [name for name, dtype in BY_NAME.items() if not dtype.source] == []
    assert all(dtype.name == name for name, dtype in BY_NAME.items())


def test_a_known_format_that_was_pickled_or_copied_is_itself():
    """Formulas ask which one it is: what comes back from another process has to answer the same."""
    for dtype in BY_NAME.values():
        assert pickle.loads(pickle.dumps(dtype)) is dtype
        assert copy.deepcopy(dtype) is dtype
    of_a_model = grouped_int(3, 32, zero_bits=3, name="gptq-int3")
    assert pickle.loads(pickle.dumps(of_a_model)) == of_a_model
