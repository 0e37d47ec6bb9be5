"""Families on a processor, whose kernels, masks of dropout and list of what autocast widens are others:
against their real code, traced once (transformers 5.23, torch 2.13, fake CPU tensors).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from memsheet.account import account_rank
from memsheet.errors import InputError
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Instant, Sheet

TRACED: dict[str, Any] = json.loads(
    Path(__file__).with_name("traced_families.json").read_text(encoding="utf-8")
)["configs"]
CONFIGS: dict[str, dict[str, Any]] = {
    **{name: TRACED[name] for name in ("bert", "falcon", "falcon-new")},
    "t5": {"model_type": "t5", "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 4, "num_heads": 8, "vocab_size": 4000},
    "vit": {"model_type": "vit", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024, "num_labels": 1000},
}  # fmt: skip
CLOSE = 1e-4


def sheet(name: str, attention: str, precision: str, dropout: float, length: int) -> Sheet:
    model = read_hf_config(CONFIGS[name])
    request = {
        "engine": "transformers", "seq_len": length, "microbatch": 2, "optimizer.implementation": "fused", "attention": attention,
        "precision.name": precision, "dropout": dropout,
    }  # fmt: skip
    return account_rank(model, resolve_request(request, model).plan, device="cpu")


@pytest.mark.parametrize(
    ("name", "attention", "precision", "dropout", "length", "forward", "backward"),
    [
        ("bert", "sdpa", "bf16-autocast", 0.0, 512, 345_577_456, 351_626_416), ("bert", "eager", "fp32", 0.1, 512, 580_056_240, 596_440_240),
        ("falcon-new", "sdpa", "fp32", 0.1, 512, 336_876_004, 353_243_604), ("t5", "eager", "fp32", 0.1, 512, 1_510_926_700, 1_525_213_548),
        ("vit", "sdpa", "bf16-autocast", 0.0, 197, 70_013_272, 71_616_184),
    ],
)  # fmt: skip
def test_a_step_has_the_traced_high_water_marks(
    name: str, attention: str, precision: str, dropout: float, length: int, forward: int, backward: int
) -> None:
    found = sheet(name, attention, precision, dropout, length)
    assert max(found.at(Instant.FORWARD).value, found.at(Instant.LOSS).value) == pytest.approx(
        forward, rel=CLOSE
    )
    assert found.at(Instant.BACKWARD).value == pytest.approx(backward, rel=CLOSE)


def test_a_bias_that_wants_a_gradient_has_no_kernel_there() -> None:
    with pytest.raises(InputError, match="gradient of a bias"):
        sheet("t5", "sdpa", "fp32", 0.0, 512)
