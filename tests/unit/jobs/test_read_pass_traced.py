"""A pass without gradients beside the trace of the real code, operation by operation on fake tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.sheet import Component

SIZES = {
    "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
    "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip
ROWS, LENGTH, KEPT = 4, 1024, 513


def read_step() -> Any:
    """As TRL reads log-probabilities: fp32 weights under autocast, logits of the answer alone made fp32."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(**SIZES, attn_implementation="sdpa")
    with torch.device("cpu"):
        model = Qwen3ForCausalLM(config)
    model = model.to("cuda")
    ids = torch.zeros(ROWS, LENGTH, dtype=torch.long, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(input_ids=ids, use_cache=False, logits_to_keep=KEPT)
            logits = out.logits.float()
            out = None
            logits.div_(0.9)
            torch.stack([torch.logsumexp(one, dim=-1) for one in logits])

    return model, optimizer, step


def test_a_pass_is_what_the_code_allocates(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **SIZES}))
    plan = {
        "task": "train", "engine": "transformers", "seq_len": LENGTH, "microbatch": ROWS, "precision": "bf16-autocast", "recompute": {"mode": "full"},
        "attention": "sdpa",
    }  # fmt: skip
    phase = {"name": "old_log_prob", "active": "actor", "work": "forward", "residents": {"actor": "parameters"}, "logits": {"tokens": ROWS * KEPT, "bytes": 6}}  # fmt: skip
    job = memsheet.job(
        {"gpus": "1xH100-80GB", "roles": {"actor": {"model": str(config), "plan": plan}}, "phases": [phase]}
    )
    sheet, traced = job.sheets[0], memsheet.trace_step(read_step, scratch=False).sheets[0]

    def tensors(one: memsheet.Sheet) -> int:
        return int(
            max(
                one.at(when).value - one.of(Component.WORKSPACES, instant=when).value for when in one.instants
            )
        )

    assert tensors(sheet) == pytest.approx(tensors(traced), rel=0.01)
