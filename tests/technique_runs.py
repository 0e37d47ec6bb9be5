"""Tiny models that really train, with a technique and without it, and what their steps really hold beside
what is predicted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from memsheet.account import account_rank
from memsheet.measure.profiler import profile_memory_peaks
from memsheet.plan.plan import Plan
from memsheet.plan.words import request_from
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.run.train import Trainer, build_trainer
from memsheet.sheet import Instant, Sheet
from memsheet.timeline import sheet_of
from memsheet.trace.job import MICRO, STEPS, How, trace_training

TINY: Mapping[str, Any] = {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
SHAPE = {"seq_len": 32, "microbatch": 2, "precision": "fp32", "attention": "eager"}
DEEP = {**TINY, "num_hidden_layers": 4}
DEEPER = {**TINY, "num_hidden_layers": 6}  # where so little is kept that labels, which are padded, would tell


def plan_of(config: Mapping[str, Any] = TINY, **options: Any) -> Plan:
    asked = {**request_from({**SHAPE, **options}), "task": "train"}
    return resolve_request(asked, read_hf_config(config, name="tiny"), None, real=True).plan


def training(config: Mapping[str, Any] = TINY, **options: Any) -> tuple[Trainer, list[float]]:
    """A trainer with the same first weights every time, and where its losses will be."""
    plan, losses = plan_of(config, **options), list[float]()
    torch.manual_seed(0)
    found = build_trainer(
        config, plan, "cpu", lambda _: None, int(plan.accumulation), lambda loss: losses.append(float(loss))
    )
    return found, losses


def corpus(rows: int, length: int = 32, vocabulary: int = 256) -> dict[str, torch.Tensor]:
    """Sentences that repeat a few words: easily learnt."""
    words = torch.arange(length).remainder(5) * 7
    ids = (words + torch.arange(rows)[:, None] * 11).remainder(vocabulary)
    return {"input_ids": ids, "labels": ids.clone()}


def gradients(step: Trainer, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The gradients that the optimizer gets in one step."""
    found: dict[str, torch.Tensor] = {}

    def keep(*_: Any) -> None:
        found.update(
            {name: p.grad.clone() for name, p in step.model.named_parameters() if p.grad is not None}
        )

    handle = step.optimizer.register_step_pre_hook(keep)
    step(batch)
    handle.remove()
    return found


def falls(steps: int = 30, config: Mapping[str, Any] = TINY, **options: Any) -> tuple[float, float]:
    """The first loss and the last on a corpus that is always the same."""
    step, losses = training(config, **options)
    rows = int(step.plan.training.global_batch or step.plan.training.microbatch)
    for _ in range(steps):
        step(corpus(rows))
    micro = int(step.plan.accumulation)
    return sum(losses[:micro]), sum(losses[-micro:])


def predicted(config: Mapping[str, Any] = TINY, device: str = "cpu", **options: Any) -> Sheet:
    return account_rank(read_hf_config(config, name="tiny"), plan_of(config, **options), device=device)


def recorded(
    config: Mapping[str, Any] = TINY, device: str = "cpu", *, fake: bool = False, **options: Any
) -> Sheet:
    """The tensors of a step, real ones unless ``fake``; the same step of a file's tests is run once."""
    return _recorded(json.dumps(config, sort_keys=True), plan_of(config, **options), device, fake)


@lru_cache(maxsize=32)
def _recorded(config: str, plan: Plan, device: str, fake: bool) -> Sheet:
    return sheet_of(trace_training(json.loads(config), plan, How(device=device, fake=fake, scratch=False)))


def counted(config: Mapping[str, Any] = TINY, **options: Any) -> dict[str, int]:
    """What the profiler counted at each instant's high-water mark."""
    plan = plan_of(config, **options)

    def run(at: Any) -> None:
        step = build_trainer(config, plan, "cpu", at, min(int(plan.accumulation), MICRO))
        for _ in range(STEPS):
            step()

    return dict(profile_memory_peaks(run).instants)


def at(sheet: Sheet) -> dict[str, int]:
    """Bytes of each instant."""
    return {instant.value: int(sheet.at(instant).value) for instant in Instant if instant in sheet.instants}
