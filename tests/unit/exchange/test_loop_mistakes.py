"""Mistakes of loops that people write themselves: found on the line where they stand, and not in a loop
without them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet

GOOD = """import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("gpt2")
{before}
optimizer = torch.optim.AdamW(model.parameters())
grad_accum_steps = 4
for step, batch in enumerate(loader):
    with torch.autocast("cuda", dtype={dtype}):
        loss = model(**batch).loss{divided}
    {backward}
    {added}
    if (step + 1) % grad_accum_steps == 0:
        {clip}
        {stepped}
        optimizer.zero_grad()
"""
FINE = {
    "before": "pass", "dtype": "torch.bfloat16", "divided": " / grad_accum_steps", "backward": "loss.backward()", "added": "total_loss += loss.item()",
    "clip": "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "stepped": "optimizer.step()",
}  # fmt: skip
SCALED = {
    "before": "scaler = torch.amp.GradScaler()", "dtype": "torch.float16", "backward": "scaler.scale(loss).backward()",
    "stepped": "scaler.step(optimizer); scaler.update()",
}  # fmt: skip
IDS = ("fp16-without-scaler", "clip-before-unscale", "undivided-loss", "kept-graphs", "one-unit", "whole-state-on-card")  # fmt: skip
WRONG = {
    "fp16-without-scaler": ({"dtype": "torch.float16"}, 8),
    "clip-before-unscale": (SCALED, 13),
    "undivided-loss": ({"divided": ""}, 10),
    "kept-graphs": ({"added": "total_loss += loss"}, 11),
    "one-unit": ({"before": "model = FSDP(model)"}, 4),
    "whole-state-on-card": ({"before": "policy = FullStateDictConfig(rank0_only=True)"}, 4),
}
RIGHT = {
    "fine": {}, "unscaled": SCALED | {"clip": "scaler.unscale_(optimizer); torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
    "policy": {"before": "model = FSDP(model, auto_wrap_policy=policy)"}, "layers": {"before": "for layer in model.layers: fully_shard(layer)"},
    "accelerate": {"before": "accelerator = Accelerator(mixed_precision='fp16')", "backward": "accelerator.backward(loss)", "divided": ""},
    "offloaded": {"before": "policy = FullStateDictConfig(rank0_only=True, offload_to_cpu=True)"},
}  # fmt: skip


def found_in(parts: dict[str, str], tmp_path: Path) -> dict[str, int]:
    """Rules of loops that are found in a script, with the line of each."""
    (tmp_path / "train.py").write_text(GOOD.format(**{**FINE, **parts}))
    checked = memsheet.check(tmp_path / "train.py", gpus="2xA100-80GB", seq_len=512)
    return {rule.id: int(found.where.split(":")[1]) for rule, found in checked.mistakes if rule.id in IDS}


@pytest.mark.parametrize("rule", WRONG)
def test_a_mistake_is_found_on_its_line(rule: str, tmp_path: Path) -> None:
    parts, line = WRONG[rule]
    assert found_in(parts, tmp_path) == {rule: line}


@pytest.mark.parametrize("parts", RIGHT.values(), ids=RIGHT)
def test_a_right_loop_is_left_alone(parts: dict[str, str], tmp_path: Path) -> None:
    assert found_in(parts, tmp_path) == {}
