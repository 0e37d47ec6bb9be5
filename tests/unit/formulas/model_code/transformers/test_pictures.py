"""A vision transformer against its real code, traced once (transformers 5.23, torch 2.13, fake CUDA tensors),
and what it is asked for.
"""

from typing import Any

import pytest

from memsheet.account import account_rank
from memsheet.errors import InputError
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Component, Instant, Sheet

VIT: dict[str, Any] = {
    "model_type": "vit", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024,
    "image_size": 224, "patch_size": 16, "num_labels": 1000,
}  # fmt: skip
PICTURES, TOKENS = 8, 197  # 14 patches a side and a class token


def sheet(**asked: Any) -> Sheet:
    model = read_hf_config(VIT)
    request = {
        "engine": "transformers", "seq_len": TOKENS, "microbatch": PICTURES, "optimizer.implementation": "fused", "attention": "eager",
        "precision.name": "fp32", **asked,
    }  # fmt: skip
    return account_rank(model, resolve_request(request, model).plan)


@pytest.mark.parametrize(
    ("attention", "precision", "dropout", "recompute", "load", "forward", "backward"),
    [
        ("eager", "bf16-pure", 0.1, "none", 24_393_424, 116_199_060, 120_018_468),
        ("sdpa", "bf16-autocast", 0.0, "none", 48_786_496, 126_475_704, 129_837_640),
        ("eager", "fp32", 0.1, "full", 48_786_496, 76_751_040, 107_855_496),
        ("sdpa", "bf16-pure", 0.0, "full", 24_393_424, 35_690_192, 47_167_420),
    ],
)  # fmt: skip
def test_a_step_has_the_traced_high_water_marks(
    attention: str, precision: str, dropout: float, recompute: str, load: int, forward: int, backward: int
) -> None:
    found = sheet(
        attention=attention, dropout=dropout, **{"precision.name": precision, "recompute.mode": recompute}
    )
    assert found.at(Instant.LOAD).value == load
    assert max(found.at(Instant.FORWARD).value, found.at(Instant.LOSS).value) == pytest.approx(
        forward, rel=1e-5
    )
    assert found.at(Instant.BACKWARD).value == pytest.approx(backward, rel=2e-5)


def test_pictures_are_the_inputs() -> None:
    values = PICTURES * 3 * 224 * 224
    assert sheet().of(Component.INPUTS, instant=Instant.LOAD).value == 4 * values + 8 * PICTURES
    assert (
        sheet(**{"precision.name": "bf16-pure"}).of(Component.INPUTS, instant=Instant.LOAD).value
        == 2 * values + 8 * PICTURES
    )


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"seq_len": 196}, "197 patches"),
        ({"engine": "fsdp2", "mesh.dp_shard": 2, "precision.name": "fsdp2-mixed"}, "not compared"),
    ],
)
def test_what_no_picture_is_and_what_was_not_compared_is_refused(asked: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        sheet(**asked)
