"""Plans whose step's own allocations say what is reserved: the script holds as much as the sheet does, so
that no share of it has to stand in.
"""

from __future__ import annotations

from typing import Any

import pytest

import memsheet
from memsheet.formulas.replay.steps import REPLAYED
from memsheet.sheet import Component

FOUR_BITS: dict[str, Any] = {"gpus": "1xH100-80GB", "lora_rank": 16, "quantize": "nf4", "recompute": "full"}
PLAYED: list[tuple[str, dict[str, Any]]] = [
    # a gradient is made before a layer runs again, beside which it does so
    ("llama-3-8b", {**FOUR_BITS, "seq_len": 2048, "loss": "fused"}),
    ("mistral-7b", {**FOUR_BITS, "seq_len": 1024, "loss": "fused"}),
    # cards that have no loss
    ("llama-3-8b", {**FOUR_BITS, "gpus": "2xH100-80GB", "schedule": "naive", "seq_len": 2048}),
    ("qwen2.5-0.5b", {"gpus": "2xH100-80GB", "schedule": "naive", "seq_len": 1024, "precision": "bf16-pure"}),
    # a last layer that is gathered before the loss is backward
    ("t5-base", {"gpus": "4xH100-80GB", "engine": "fsdp2", "seq_len": 512, "microbatch": 4}),
]


@pytest.mark.parametrize(("name", "plan"), PLAYED)
def test_what_is_reserved_is_played(name: str, plan: dict[str, Any]) -> None:
    for sheet in memsheet.train(name, **plan).sheets:
        (slack,) = (item for item in sheet.items if item.component is Component.ALLOCATOR_SLACK)
        assert slack.evidence == REPLAYED
