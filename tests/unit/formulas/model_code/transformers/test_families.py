"""Every verified family against peaks of its real code, traced once (transformers 5.23, torch 2.13, fake CUDA
tensors, AdamW fused).

``traced_families.json``: small configs (4 layers, hidden 512), and for each case family, attention,
precision, recompute, sequences of 512 tokens, and the high-water marks of the second step's forward and
backward. Labels were the input ids themselves, so our separate labels are taken off. Where torch's engine
adds gradients in place, so did the trace.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from memsheet.account import account_rank
from memsheet.plan.verified_families import VERIFIED
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Instant

TRACED: dict[str, Any] = json.loads(
    Path(__file__).with_name("traced_families.json").read_text(encoding="utf-8")
)
LENGTH = 512
LABELS = 8 * LENGTH
CLOSE = 1e-3
KNOWN = {
    # under recompute we hold a mask for each kind of attention to the end of backward, torch only until the
    # last layer of that kind;
    # the small gemma3 has sliding layers only and makes both masks
    **dict.fromkeys(
        (
            "gemma2",
            "gemma3_text",
            "cohere2",
            "exaone4",
            "gpt_oss",
            "llama4_text",
            "bamba",
            "qwen3_next",
            "olmo3",
            "ministral",
            "exaone_moe",
            "afmoe",
            "qwen3_5_text",
            "qwen3_5_moe_text",
        ),
        1e-2,
    ),
    "qwen2_moe": 5e-3,  # its model makes a mask that no layer takes
    "gptj": 4e-3,  # each layer's forward copies its whole table of positions, which lives beside the scores
}


@pytest.mark.parametrize("case", TRACED["cases"], ids=lambda case: "-".join(map(str, case[:5])))
def test_a_step_has_the_traced_high_water_marks(case: list[Any]) -> None:
    name, attention, precision, recompute, sequences, forward, backward = case
    model = read_hf_config(TRACED["configs"][name])
    request: dict[str, Any] = {
        "engine": "transformers", "attention": attention, "precision.name": precision, "recompute.mode": recompute, "seq_len": LENGTH,
        "microbatch": sequences, "optimizer.implementation": "fused",
    }  # fmt: skip
    sheet = account_rank(model, resolve_request(request, model).plan)
    ours = (
        max(sheet.at(Instant.FORWARD).value, sheet.at(Instant.LOSS).value),
        sheet.at(Instant.BACKWARD).value,
    )
    for found, traced in zip(ours, (forward, backward), strict=True):
        assert found - LABELS * sequences == pytest.approx(
            traced, rel=KNOWN.get(name, CLOSE) if attention == "eager" and recompute == "full" else CLOSE
        )


def test_every_verified_family_was_traced() -> None:
    assert {
        (config["model_type"], case[1]) for case in TRACED["cases"] for config in [TRACED["configs"][case[0]]]
    } == {
        (family, kind.value) for family, kinds in VERIFIED.items() for kind in kinds if kind.value != "flash"
    }


ATTENTION_ONLY = ("q_proj", "v_proj")
ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize(
    ("targets", "dropout", "recompute", "forward", "backward"),
    [
        (ATTENTION_ONLY, 0.0, "none", 95_028_656, 98_596_264), (ATTENTION_ONLY, 0.05, "none", 96_601_520, 100_169_128),
        (ALL_LINEAR, 0.0, "none", 129_795_664, 133_363_272), (ALL_LINEAR, 0.05, "none", 138_184_272, 141_751_880),
        (ATTENTION_ONLY, 0.05, "full", 57_466_192, 61_033_800), (ALL_LINEAR, 0.05, "full", 63_266_288, 69_137_920),
    ],
)  # fmt: skip
def test_adapters_have_the_traced_high_water_marks(
    targets: tuple[str, ...], dropout: float, recompute: str, forward: int, backward: int
) -> None:
    """LoRA of rank 16 by peft: fp32 adapters on a frozen bf16 Llama; under recompute its input is asked for a
    gradient.
    """
    model = read_hf_config(TRACED["configs"]["llama"])
    request: dict[str, Any] = {
        "engine": "transformers", "attention": "sdpa", "recompute.mode": recompute, "seq_len": LENGTH, "adapter.rank": 16,
        "adapter.targets": list(targets), "adapter.dropout": dropout, "optimizer.implementation": "fused",
    }  # fmt: skip
    sheet = account_rank(model, resolve_request(request, model).plan)
    assert max(sheet.at(Instant.FORWARD).value, sheet.at(Instant.LOSS).value) - LABELS == pytest.approx(
        forward, rel=CLOSE
    )
    assert sheet.at(Instant.BACKWARD).value - LABELS == pytest.approx(backward, rel=CLOSE)
