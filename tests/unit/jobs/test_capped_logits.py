"""Logits that a model caps: what it saves of them stands beside those that are learnt from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import memsheet

SIZES = {
    "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "vocab_size": 4096, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32, "attn_logit_softcapping": None,
}  # fmt: skip
TOKENS = 2 * 256


def logits(folder: Path, cap: float | None, work: str) -> memsheet.Sheet:
    (folder / "config.json").write_text(json.dumps({**SIZES, "final_logit_softcapping": cap}))
    plan = {
        "task": "train", "engine": "transformers", "seq_len": 256, "microbatch": 2, "precision": "bf16-autocast", "recompute": {"mode": "full"}, "loss": "fused",
    }  # fmt: skip
    phase = {"name": "phase", "active": "actor", "work": work, "logits": {"tokens": TOKENS, "bytes": 16}}
    roles = {"actor": {"model": str(folder / "config.json"), "plan": plan}}
    return memsheet.job({"gpus": "1xH100-80GB", "roles": roles, "phases": [phase]}).sheets[0]


@pytest.mark.parametrize(("work", "more"), [("step", 2), ("forward", 0)])
def test_a_cap_saves_its_tangents_where_logits_are_learnt_from(work: str, more: int, tmp_path: Path) -> None:
    when = memsheet.Instant("phase/loss")
    plain, capped = (
        sum(
            int(item.at[when].value)
            for item in logits(tmp_path, cap, work).items
            if item.path == "actor/logits"
        )
        for cap in (None, 30.0)
    )
    assert capped - plain == more * TOKENS * SIZES["vocab_size"]
