"""A pass without gradients, and a step with whole logits, beside the trace of the real code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.questions.traced import Options, trace_file
from memsheet.sheet import Component

SIZES = {
    "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
    "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip
ROWS, LENGTH, KEPT = 4, 1024, 513


def build_model() -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    with torch.device("cpu"):
        model = Qwen3ForCausalLM(Qwen3Config(**SIZES, attn_implementation="sdpa"))
    return model.to("cuda"), torch.zeros(ROWS, LENGTH, dtype=torch.long, device="cuda")


def log_probabilities(model: Any, ids: Any) -> Any:
    """As TRL makes them (trainer/grpo_trainer.py:1435-1541, trainer/utils.py:506-510): fp32 weights under
    autocast, logits of the answer alone made fp32.
    """
    import torch

    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(input_ids=ids, use_cache=False, logits_to_keep=KEPT)
        logits = out.logits
        out = None
    logits = logits.float()
    logits = logits[:, :-1, :]
    logits.div_(0.9)
    picked = torch.gather(logits, -1, ids[:, 1 - KEPT :].unsqueeze(-1))
    total = torch.stack([torch.logsumexp(one, dim=-1) for one in logits])
    return picked.squeeze(-1) - total


def read_step() -> Any:
    import torch

    model, ids = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        with torch.no_grad():
            log_probabilities(model, ids)

    return model, optimizer, step


def learning_step() -> Any:
    import torch

    model, ids = build_model()
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)

    def step() -> None:
        log_probabilities(model, ids).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


READ = {
    "name": "old_log_prob", "active": "actor", "work": "forward", "residents": {"actor": "parameters"}, "logits": {"tokens": ROWS * KEPT, "bytes": 6},
}  # fmt: skip
LEARN = {"name": "update_actor", "active": "actor", "logits": {"tokens": ROWS * KEPT, "bytes": 16}}


@pytest.mark.parametrize(
    ("build", "phase"), [(read_step, READ), (learning_step, LEARN)], ids=["read", "learn"]
)
def test_a_phase_is_what_the_code_allocates(build: Any, phase: dict[str, Any], tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **SIZES}))
    plan = {
        "task": "train", "engine": "transformers", "seq_len": LENGTH, "microbatch": ROWS, "precision": "bf16-autocast", "recompute": {"mode": "full"},
        "attention": "sdpa", "loss": "fused", "optimizer": {"implementation": "fused"},
    }  # fmt: skip
    roles = {"actor": {"model": str(config), "plan": plan}}
    job = memsheet.job({"gpus": "1xH100-80GB", "roles": roles, "phases": [phase]})
    answer, _ = trace_file(f"{__file__}:{build.__name__}", Options(scratch=False))
    sheet, traced = job.sheets[0], answer.sheets[0]

    def tensors(one: memsheet.Sheet) -> int:
        sizes = (
            one.at(when).value - one.of(Component.WORKSPACES, instant=when).value for when in one.instants
        )
        return int(max(sizes))

    assert tensors(sheet) == pytest.approx(tensors(traced), rel=0.002)
