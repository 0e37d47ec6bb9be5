"""Which tensors a format of linear layers leaves as they are."""

from __future__ import annotations

import pytest

from memsheet.plan.dtypes import BF16, FP8, INT8, NF4
from memsheet.plan.model import Role, Weight
from memsheet.plan.plan import Quantization
from memsheet.plan.stored_dtypes import _kept_in, is_quantized

SHAPES = {
    "a matrix": (Role.LINEAR, (64, 48), True),
    "experts": (Role.EXPERT, (4, 64, 48), True),
    "patches of a picture": (Role.LINEAR, (64, 3, 16, 16), False),
    "patches of a video": (Role.LINEAR, (64, 3, 2, 16, 16), False),
    "channels": (Role.LINEAR, (64,), False),
    "words": (Role.EMBEDDING, (64, 48), False),
    "a norm": (Role.NORM, (64,), False),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_format_of_linear_layers_is_of_matrices_and_experts(name: str) -> None:
    role, shape, stored = SHAPES[name]
    weight = Weight(path="part.weight", shape=shape, role=role)
    for format_ in (NF4, INT8, FP8):
        assert is_quantized("part.weight", weight, Quantization(weights=format_)) is stored
    assert _kept_in(weight, FP8) is (FP8 if stored else BF16)
