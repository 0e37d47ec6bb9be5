"""Experts of four bits by hand: what triton's, Marlin's and TensorRT-LLM's kernels keep of gpt-oss's."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.engines.vllm.facts import release_of
from memsheet.engines.vllm.loaded import packing_of
from memsheet.formulas.serving.packed_experts import (
    MARLIN,
    TENSORRT,
    TRITON,
    Packing,
    kernel_expert_bytes,
    padded_block_elements,
)
from memsheet.questions.accounted import infer
from memsheet.questions.question_parts import read_named_model
from memsheet.sheet import Bytes, Instant

HIDDEN, INNER, LAYERS = 2880, 2880, 24


def expert_bytes(inner: int, hidden: int) -> int:
    """Numbers of half a byte, and a byte for each 32 of them, of one expert's three matrices."""
    return 3 * inner * hidden // 2 + 3 * inner * hidden // 32


def up(size: int, to: int) -> int:
    return -(-size // to) * to


def triton_scales(inner: int, columns: int) -> int:
    ups = up(2 * inner, 256) * up(HIDDEN // 32, columns)
    return ups + up(HIDDEN, 256) * up(-(-inner // 32), columns)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_a_kernel_pads_what_a_rank_has_of_an_expert(tp: int) -> None:
    inner = INNER // tp
    shapes = {False: (1, HIDDEN, 2 * inner), True: (1, inner, HIDDEN)}

    def kept(packing: Packing) -> int:
        (kernel,) = packing.kernels
        return sum(
            int(kernel_expert_bytes(shape, packing, kernel, downward=down)) for down, shape in shapes.items()
        )

    wide = up(inner, 64)
    numbers = 3 * wide * HIDDEN // 2
    own = 2 * wide * HIDDEN // 32 + HIDDEN * -(-wide // 32)
    assert kept(Packing(kernels=(TRITON,))) == numbers + own + triton_scales(wide, 2)
    assert kept(Packing(kernels=(TRITON,), keeps_scales=False, scale_columns=4)) == numbers + triton_scales(
        wide, 4
    )
    assert kept(Packing(kernels=(MARLIN,))) == expert_bytes(up(inner, 128), up(HIDDEN, 256))
    assert kept(Packing(kernels=(TENSORRT,))) == kept(Packing(kernels=(MARLIN,)))


def experts_of(gpus: str, version: str) -> Bytes:
    sheet = infer("gpt-oss-20b", engine="vllm", gpus=gpus, engine_version=version, max_model_len=4096).sheets[
        0
    ]
    return next(item for item in sheet.items if item.path.endswith("mlp.experts")).at[Instant.LOAD]


@pytest.mark.parametrize(
    ("gpus", "version", "known"),
    [
        ("1xH100-80GB", "0.33.0", True),
        ("1xH100-80GB", "0.25.0", True),
        ("1xH100-80GB", "0.24.0", False),
        ("1xL40S", "0.33.0", True),
        ("1xL40S", "0.11.0", True),
        ("1xA100-80GB", "0.11.0", True),
        ("1xB200", "0.33.0", False),
        ("1xMI300X", "0.33.0", False),
    ],
)
def test_where_one_kernel_runs_experts_have_one_size(gpus: str, version: str, known: bool) -> None:
    size = experts_of(gpus, version)
    assert (size.low == size.high) is known
    assert size.low <= size.value <= size.high


def test_scales_are_kept_once_since_a_release() -> None:
    twice, once = (experts_of("1xH100-80GB", version).value for version in ("0.24.0", "0.25.0"))
    assert twice - once == LAYERS * 32 * (2 * INNER * HIDDEN + INNER * HIDDEN) // 32


def marlin_bytes() -> int:
    """Of all layers: matrices with 3,072 by 2,944, and biases in bf16."""
    return (
        LAYERS
        * 32
        * (expert_bytes(up(INNER, 128), up(HIDDEN, 256)) + 2 * (2 * up(INNER, 128) + up(HIDDEN, 256)))
    )


def test_two_kernels_are_a_range_from_one_to_the_other() -> None:
    """On Hopper before 0.25 triton's kernels ran where they were installed, else Marlin's."""
    hopper, ada = experts_of("1xH100-80GB", "0.11.0"), experts_of("1xL40S", "0.11.0")
    assert hopper.low <= hopper.value < ada.value <= hopper.high
    assert hopper.high - hopper.low < ada.value // 16
    assert ada.value == pytest.approx(marlin_bytes(), rel=1e-6)


def test_other_families_stay_open() -> None:
    spec = read_named_model("kimi-k2", "infer")
    device: Any = infer("gpt-oss-20b", engine="vllm", gpus="1xH100-80GB").cluster.device  # type: ignore[union-attr]
    assert not packing_of(spec, release_of("0.33.0"), "0.33.0", device).closed


NEMOTRON = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4"


@pytest.mark.parametrize(("gpus", "low", "value"), [("1xH100-80GB", 1856, 1856), ("1xB200", 1856, 1920)])
def test_four_bits_by_matrix_units_pad_an_expert_to_rows_of_scales(gpus: str, low: int, value: int) -> None:
    """Nemotron 3 Nano: 23 layers of 128 experts, 2,688 wide, without gates, a scale of a byte for 16."""
    sheet = infer(NEMOTRON, engine="vllm", gpus=gpus, max_model_len=4096).sheets[0]
    size = next(item for item in sheet.items if item.path.endswith("mixer.experts")).at[Instant.LOAD]

    def experts(inner: int) -> int:
        return 23 * 128 * 2 * inner * 2688 * 9 // 16

    assert size.low == pytest.approx(experts(low), rel=1e-6)
    assert size.value == size.high == pytest.approx(experts(value), rel=1e-6)


@pytest.mark.parametrize("gates", [1, 2])
@pytest.mark.parametrize("inner", [64, 96, 128, 232, 1856])
def test_padded_blocks_hold_what_is_stored_and_whole_rows(gates: int, inner: int) -> None:
    up = padded_block_elements((4, gates * inner, 64), gates, downward=False)
    down = padded_block_elements((4, 64, inner), gates, downward=True)
    assert up == gates * down
    assert up >= 4 * gates * inner * 64
    assert up % (4 * 64 * 128) == 0
