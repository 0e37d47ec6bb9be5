"""The search finds what trying every plan finds: the plans that fit, the bytes of each, and the fastest.

The other way to the same answer shares nothing with the arrays: each request of a small space is resolved,
accounted stage by stage, judged and timed by itself, in plain numbers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import inf, isclose, prod
from typing import Any

import numpy as np
import pytest

from memsheet import catalog
from memsheet.account import account_rank
from memsheet.budget import Result, budget_of, host_shortage, judge_sheets
from memsheet.errors import InputError
from memsheet.formulas.step_time import quick_s
from memsheet.plan.device import Cluster, cluster_of
from memsheet.plan.hardware import unsupported_choices
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.search.train.grid import Graded, account_plan_grid, one_plan, result_masks
from memsheet.search.train.space import Space, divisors, space_of
from memsheet.search.train.timed import seconds_of
from memsheet.sheet import Sheet

QUICK, ALL = 40, 150
WIDE = 24
"""Choices and pipelines that are too many to try all of their plans."""
PINS: dict[str, dict[str, tuple[Any, ...]]] = {
    "megatron": {
        "zero": (0, 1), "recompute.mode": ("none", "selective", "full"), "loss": ("fused", "plain"), "mesh.cp": (1, 2), "mesh.vpp": (1, 2),
        "microbatch": (1, 2),
    },
    "fsdp2": {
        "zero": (2, 3), "recompute.mode": ("none", "full"), "loss": ("plain", "fused"), "optimizer.name": ("adamw", "adamw_8bit"),
        "microbatch": (1, 2),
    },
    "deepspeed": {"zero": (0, 1, 2, 3), "recompute.mode": ("none", "full"), "loss": ("plain", "fused"), "microbatch": (1, 2)},
    "transformers": {"recompute.mode": ("none", "full"), "loss": ("plain", "fused"), "optimizer.name": ("adamw", "adamw_8bit")},
}  # fmt: skip
"""What a problem may pin, so that all of its plans can be tried one by one."""
AXES = ("dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")


@cache
def model(layers: int, heads: int, keys: int, *, experts: bool) -> ModelSpec:
    """A small model: dense, or of experts behind a first layer that has none."""
    config: dict[str, Any] = {
        "architectures": ["Qwen3MoeForCausalLM" if experts else "LlamaForCausalLM"], "model_type": "qwen3_moe" if experts else "llama",
        "hidden_size": 32 * heads, "intermediate_size": 96 * heads, "num_attention_heads": heads, "num_key_value_heads": keys, "head_dim": 32,
        "num_hidden_layers": layers, "vocab_size": 1000, "max_position_embeddings": 512, "tie_word_embeddings": False, "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
    }  # fmt: skip
    if experts:
        config |= {
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "decoder_sparse_step": 1, "mlp_only_layers": [0],
            "norm_topk_prob": True,
        }  # fmt: skip
    return read_hf_config(config, name=f"{'experts' if experts else 'dense'}-{layers}-{heads}-{keys}")


def problem(seed: int) -> Space:
    draw = random.Random(seed)
    engine = draw.choice(("megatron", "megatron", "fsdp2", "deepspeed", "transformers"))
    experts = engine == "megatron" and draw.random() < 0.4
    heads = draw.choice((4, 8))
    spec = model(draw.choice((2, 3, 4, 6, 7, 8)), heads, draw.choice((1, 2, heads)), experts=experts)
    request: dict[str, Any] = {
        "engine": engine,
        "seq_len": draw.choice((64, 100)),
        "global_batch": draw.choice((4, 8, 12)),
    }
    request |= {key: draw.choice(values) for key, values in PINS[engine].items() if draw.random() < 0.8}
    if request.get("mesh.vpp") == 2:
        request["mesh.pp"] = 2
    count = draw.choice((2, 4, 8) if engine == "megatron" else (1, 2, 4))
    machines = cluster_of(catalog.find_device(draw.choice(("A100-40GB", "H100-80GB"))), count, nodes=1)
    every, pins = draw.random() < 0.2, {key: draw.choice(values) for key, values in PINS[engine].items()}
    space = space_of(spec, machines, request, every=every)
    return (
        space
        if len(space.choices) * len(space.pipelines) <= WIDE
        else space_of(spec, machines, {**pins, **request}, every=every)
    )


@dataclass(frozen=True)
class Tried:
    """A plan with the ends of its bytes on the worst rank, and the sheets that say so."""

    sheets: tuple[Sheet, ...]

    @property
    def ends(self) -> tuple[int, int, int]:
        low, value, high = (
            max(getattr(sheet.device, end) for sheet in self.sheets) for end in ("low", "value", "high")
        )
        return low, value, high

    def result(self, cluster: Cluster) -> Result:
        return (
            Result.DOES_NOT_FIT
            if host_shortage(self.sheets, cluster)
            else judge_sheets(self.sheets, budget_of(cluster)).result
        )


def requests(space: Space) -> Iterator[dict[str, Any]]:
    """Every combination of a space, legal or not."""
    degrees = divisors(space.cluster.count)
    axes = [
        degrees if axis in space.engine.axes and (space.experts or axis not in ("ep", "etp")) else (1,)
        for axis in AXES
    ]
    for pipeline, choice, mesh, micro in product(
        space.pipelines, space.choices, product(*axes), divisors(int(space.request["global_batch"]))
    ):
        at = dict(zip(AXES, mesh, strict=True))
        if prod(mesh[:4]) * pipeline["mesh.pp"] != space.cluster.count:
            continue
        if space.plain_replicas and left_out(space, choice, at):
            continue
        asked = {**choice, **pipeline, **{f"mesh.{axis}": n for axis, n in at.items()}, "microbatch": micro}
        unused = [
            key
            for key, axis in (("context_parallel_comm", "cp"), ("sequence_parallel", "tp"))
            if at[axis] == 1
        ]
        if all(space.request.get(key, asked.get(key)) == value for key, value in asked.items()):
            yield {key: value for key, value in {**space.request, **asked}.items() if key not in unused}


def left_out(space: Space, choice: Mapping[str, Any], at: Mapping[str, int]) -> bool:
    """What a space says it does not look at: stage 0 but for whole copies on all devices, and other stages on
    one device.
    """
    whole = at == {**dict.fromkeys(AXES, 1), "dp_replicate": space.cluster.count}
    if choice["zero"] == 0:
        return not whole
    return space.cluster.count == 1 and not choice.get("offload.optimizer")


def tried(space: Space) -> dict[Plan, Tried]:
    """All legal plans, one by one."""
    found: dict[Plan, Tried] = {}
    for request in requests(space):
        try:
            plan = resolve_request(request, space.model, space.cluster).plan
            if (
                plan in found
                or list(unsupported_choices(plan, space.cluster))
                or plan.last_microbatch != plan.training.microbatch
            ):
                continue
            found[plan] = Tried(
                tuple(account_rank(space.model, plan, space.cluster, stage) for stage in range(plan.mesh.pp))
            )
        except InputError:
            continue
    return found


def seconds(space: Space, plan: Plan) -> float:
    try:
        return float(quick_s(space.model, plan, space.cluster))
    except InputError:
        return inf


def filled(space: Space, found: Mapping[Plan, Tried], seed: int) -> Space:
    """The problem on a card that some plans fill."""
    draw = random.Random(seed)
    size, open_ = draw.choice(sorted(one.ends[2] for one in found.values())), draw.choice((0, 0, 1))
    card = replace(
        space.cluster.device,
        framework_bytes=size,
        framework_low_bytes=size - open_ * size // 50,
        framework_high_bytes=size,
    )
    return replace(space, cluster=replace(space.cluster, device=card))


def ends_of(one: Graded, row: int) -> tuple[int, int, int]:
    return int(one.device.low[row]), int(one.device.value[row]), int(one.device.high[row])


def compare(seed: int) -> Result | None:
    """A problem solved both ways. What became of its best plan: None where there is no plan at all."""
    space = problem(seed)
    every = tried(space)
    if not every:
        assert not account_plan_grid(space).plans
        return None
    space = filled(space, every, seed)
    found = account_plan_grid(space)
    rows = [(one, row) for one in found.graded for row in range(len(one))]
    assert {one_plan(one.stratum, row): ends_of(one, row) for one, row in rows} == {
        plan: one.ends for plan, one in every.items()
    }, seed
    assert len(rows) == len(every)
    verdicts = {
        one_plan(one.stratum, row): result
        for one in found.graded
        for result, mask in result_masks(one, space).items()
        for row in np.flatnonzero(mask).tolist()
    }
    assert verdicts == {plan: one.result(space.cluster) for plan, one in every.items()}, seed
    return optimum(
        seed, space, found.graded, {plan for plan, result in verdicts.items() if result is Result.FITS}
    )


def optimum(seed: int, space: Space, graded: tuple[Graded, ...], fitting: set[Plan]) -> Result:
    """The fastest plans that fit, both ways."""
    timed: dict[Plan, float] = {}
    for one in graded:
        fit = np.flatnonzero(result_masks(one, space)[Result.FITS])
        times = seconds_of([(one.stratum, fit)], space, None)[0]
        timed |= {one_plan(one.stratum, int(row)): float(time) for row, time in zip(fit, times, strict=True)}
    alone = {plan: seconds(space, plan) for plan in fitting}
    if not alone:
        return Result.DOES_NOT_FIT
    assert fastest(timed) == fastest(alone), seed
    assert isclose(min(timed.values()), min(alone.values()), rel_tol=1e-9), seed
    return Result.FITS


def fastest(timed: Mapping[Plan, float]) -> set[Plan]:
    """Those that nothing beats by more than rounding."""
    best = min(timed.values())
    return {plan for plan, time in timed.items() if time <= best * (1 + 1e-9)}


@pytest.mark.parametrize("block", range(10))
def test_the_same_optimum_as_trying_every_plan(block: int) -> None:
    outcomes = [compare(seed) for seed in range(block, QUICK, 10)]
    assert Result.FITS in outcomes


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_the_same_optimum_of_a_hundred_problems(block: int) -> None:
    outcomes = [compare(seed) for seed in range(QUICK + block, ALL, 10)]
    assert outcomes.count(Result.FITS) > len(outcomes) // 3
