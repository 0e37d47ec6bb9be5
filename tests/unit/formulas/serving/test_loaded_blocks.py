"""Blocks of weights as torch's allocator makes them: joined matrices, and what a block keeps."""

from __future__ import annotations

from memsheet.formulas.runtime import kept_rest_bytes, loading_slack
from memsheet.formulas.serving.loaded import joined_tensors
from memsheet.formulas.states.held import HeldTensor
from memsheet.plan.dtypes import BF16
from memsheet.plan.model import Role
from memsheet.units import KIB, MIB


def matrix(path: str, rows: int) -> HeldTensor:
    return HeldTensor(f"model.layers.*.{path}.weight", (rows, 1024), BF16, False, Role.LINEAR, 4)


def test_matrices_of_one_input_are_one_tensor() -> None:
    held = [
        *(matrix(f"self_attn.{name}", rows) for name, rows in (("q_proj", 8), ("k_proj", 2), ("v_proj", 2), ("o_proj", 8))),
        *(matrix(f"mlp.{name}", 16) for name in ("gate_proj", "up_proj", "down_proj")),
        *(matrix(f"mlp.shared.{name}", 4) for name in ("gate_proj", "up_proj")),
    ]  # fmt: skip
    row = 2 * 1024
    assert joined_tensors(held) == [(size * row, 4) for size in (12, 8, 32, 16, 8)]


def test_a_block_keeps_a_rest_of_up_to_a_mebibyte() -> None:
    kept, split = 12 * MIB + 512 * KIB, 13 * MIB + 512 * KIB  # 1.5 MiB and 0.5 MiB before a whole 2 MiB
    assert kept_rest_bytes([(kept, 2)]) == 0
    assert kept_rest_bytes([(split, 2)]) == 2 * 512 * KIB
    assert kept_rest_bytes([(13 * MIB, 1)]) == MIB
    assert kept_rest_bytes([(9 * MIB, 1)]) == 0  # of a segment of 20 MiB, which others are cut from
    assert loading_slack([(split, 2)]) == 2 * 512 * KIB
