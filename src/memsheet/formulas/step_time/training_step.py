"""A training step's seconds: passes, pipeline, exchanges, optimizer, host."""

from __future__ import annotations

from functools import lru_cache

from memsheet.arith import maximum
from memsheet.errors import input_error
from memsheet.formulas.step_time.collectives import send_s
from memsheet.formulas.step_time.kernels import kernels_of
from memsheet.formulas.step_time.numbers import Real, larger, smaller
from memsheet.formulas.step_time.operators import BF16_BYTES, TrainTiming
from memsheet.formulas.step_time.parts import Part, parts_of
from memsheet.formulas.step_time.pictures import timed_pictures
from memsheet.formulas.step_time.rates import Efficiency, Rates, rates_of
from memsheet.formulas.step_time.replicas import Overlap, Passes, data_parallel_passes
from memsheet.formulas.step_time.result import StepTime
from memsheet.formulas.step_time.schedule import exposed_pipeline_sends, pipeline_s
from memsheet.formulas.step_time.shares import NAMES, of_passes
from memsheet.formulas.step_time.updates import (
    activation_bytes,
    offloaded_s,
    parameter_bytes_on_rank,
    update_s,
    updated_elements,
)
from memsheet.frozen import dataclass, field, replace
from memsheet.plan.device import Cluster
from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.plan.workload import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """How far the true rates may lie from the burst rates of the tables."""

    fast: float
    slow: float
    why: str


UNCALIBRATED = Band(
    fast=1 / 0.88, slow=1 / 1.7,
    why="rates are those of bursts, which operator tables meet within 12%; sustained training is slower, by up to 1.7 in the report of "
    "Llama 3 (arXiv:2407.21783: from 38% of the dense rate on H100, where bursts would reach 65%)",
)  # fmt: skip
CALIBRATED = Band(
    fast=1.125, slow=1 / 1.125,
    why="scaled by a measured step; single operators are met within 12.5% either way (mean over the tables of aiconfigurator 095f58a: "
    "A100 12.5%, H100 8.5%, B200 12.6%)",
)  # fmt: skip


TEXT = "a batch of text alone: no picture passes the model's towers"


def step_time(
    spec: ModelSpec, plan: Plan, cluster: Cluster, *, efficiency: Efficiency | None = None
) -> StepTime:
    """The step of ``plan`` on ``cluster``: low has everything beside the passes that could run there, at the
    fastest rates; high nothing.

    ``efficiency`` comes from ``calibrated``. Counts of the plan may be arrays. Raises InputError for what is
    not timed.
    """
    _check_step_timed(spec, plan)
    engine, base, found = engine_of(plan), _cluster_rates(cluster), efficiency or Efficiency()
    band = CALIBRATED if efficiency is not None else UNCALIBRATED
    value = one_step(spec, plan, engine, base.with_efficiency(found), Overlap.ENGINE, told=True)
    fast = replace(_scale_efficiency_rates(found, band.fast), capped=efficiency is None)
    low = one_step(spec, plan, engine, base.with_efficiency(fast), Overlap.ALL)
    high = one_step(
        spec, plan, engine, base.with_efficiency(_scale_efficiency_rates(found, band.slow)), Overlap.NONE
    )
    return StepTime(
        low=smaller(low.seconds, value.seconds),
        value=value.seconds,
        high=larger(high.seconds, value.seconds),
        parts=value.parts,
        tokens=_sequences_a_step(plan) * plan.training.seq_len,
        gpus=plan.mesh.gpus,
        flops=value.flops,
        dense_flops=base.attention_dense,
        calibrated=found.source,
        notes=(band.why, *((TEXT,) if spec.towers and not plan.training.image_tokens else ())),
    )


def quick_s(spec: ModelSpec, plan: Plan, cluster: Cluster, *, efficiency: Efficiency | None = None) -> Real:
    """The value of ``step_time`` alone, in a third of its time."""
    _check_step_timed(spec, plan)
    return one_step(
        spec,
        plan,
        engine_of(plan),
        _cluster_rates(cluster).with_efficiency(efficiency or Efficiency()),
        Overlap.ENGINE,
    ).seconds


@lru_cache(maxsize=32)
def _cluster_rates(cluster: Cluster) -> Rates:
    return rates_of(cluster)


def _scale_efficiency_rates(found: Efficiency, factor: float) -> Efficiency:
    scaled = {name: getattr(found, name) * factor for name in ("compute", "attention", "communication")}
    return replace(found, **scaled)


def _check_step_timed(spec: ModelSpec, plan: Plan) -> None:
    if not isinstance(plan.workload, Training):
        raise input_error("task", plan.task, "has no step to time", "step time is of training")
    timed_pictures(spec, plan.workload.image_tokens)


def _sequences_a_step(plan: Plan) -> Real:
    if plan.training.global_batch is not None:
        return plan.training.global_batch
    return plan.training.microbatch * plan.mesh.data_parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class OneStep:
    seconds: Real
    parts: dict[str, Real] = field(default_factory=dict)
    flops: Real = 0.0


CALL_S = {Overlap.ALL: 5e-6, Overlap.ENGINE: 11e-6, Overlap.NONE: 25e-6}
"""Of the host, before a kernel starts: 5 to 25 us from Python through dispatcher and autograd to the driver
(jiahuanglin.xyz, gpu_kernel_serving, 18: from PyTorch op to kernel launch); the geometric middle.
"""


def shop_of(plan: Plan, engine: Engine, rates: Rates, overlap: Overlap) -> TrainTiming:
    return TrainTiming(
        plan=plan,
        rates=rates,
        kernels=kernels_of(plan, engine),
        tokens=plan.training.microbatch * 1.0 * plan.training.length / plan.mesh.cp,
        trains=plan.adapter is None,
        hides=overlap is Overlap.ALL,
        call_s=CALL_S[overlap],
        uneven=overlap is Overlap.NONE,
    )


def one_step(
    spec: ModelSpec, plan: Plan, engine: Engine, rates: Rates, overlap: Overlap, *, told: bool = False
) -> OneStep:
    """``told``: with its parts and flops."""
    mesh, shop = plan.mesh, shop_of(plan, engine, rates, overlap)
    parts = parts_of(shop, spec)
    run = {
        key: data_parallel_passes(part, plan, engine.sharding, overlap, rates)
        for key, part in _distinct_parts(parts).items()
    }
    mine = [[parts[stage, chunk] for chunk in range(mesh.vpp)] for stage in range(mesh.pp)]
    names = [tuple(id(part) for part in chunks) for chunks in mine]
    alike = dict(zip(names, mine, strict=True))  # stages with the same parts take the same
    stages = {name: [run[part] for part in name] for name in alike}
    each = {name: sum((p.forward_s + p.backward_s for p in chunks), 0.0) for name, chunks in stages.items()}
    working, bubble = pipeline_s(
        [each[name] for name in names], maximum(plan.accumulation, 1), mesh.vpp, plan.schedule
    )
    payload = shop.tokens * BF16_BYTES * spec.hidden / shop.between
    sent = exposed_pipeline_sends(mesh.pp, mesh.vpp, plan.accumulation, plan.schedule) * send_s(
        payload, mesh.gpus / mesh.pp, rates
    )
    sent = 0.0 if overlap is Overlap.ALL else sent
    layers = spec.layers / mesh.pp
    kept_bytes = activation_bytes(shop.tokens, spec.hidden, layers, plan)
    once = _once_a_step_seconds(
        [*alike.values()], [*stages.values()], plan, engine, rates, working, kept_bytes
    )
    seconds = working + sent + sum(once.values(), 0.0)
    if not told:
        return OneStep(seconds=seconds)
    each_way = 2 if plan.adapter is not None else 3  # a frozen matrix has no gradient of its own
    flops = (
        each_way
        * sum((p.total("flops") for p in parts.values()), 0.0)
        * shop.tp
        * mesh.cp
        / plan.training.microbatch
        * _sequences_a_step(plan)
    )
    named = of_passes([*alike.values()], [*stages.values()], maximum(plan.accumulation, 1)) | {
        "bubble": bubble,
        "pipeline_sends": sent,
    }
    return OneStep(
        seconds=seconds,
        flops=flops,
        parts={name: named.get(name, 0.0) + once.get(name, 0.0) for name in NAMES},
    )


def _distinct_parts(parts: dict[tuple[int, int], Part]) -> dict[int, Part]:
    return {id(part): part for part in parts.values()}


def _once_a_step_seconds(
    mine: list[list[Part]],
    stages: list[list[Passes]],
    plan: Plan,
    engine: Engine,
    rates: Rates,
    working: Real,
    kept_bytes: Real,
) -> dict[str, Real]:
    """What comes once a step, each on the stage where it takes longest."""
    found: dict[str, Real] = dict.fromkeys(
        ("parameters_gathered", "gradients_reduced", "optimizer", "offload"), 0.0
    )
    for chunks, run in zip(mine, stages, strict=True):
        elements = updated_elements(chunks, plan, engine.sharding)
        own = {
            "parameters_gathered": sum((p.gathered_once_s for p in run), 0.0),
            "gradients_reduced": sum((p.reduced_once_s for p in run), 0.0),
            "optimizer": update_s(elements, plan, rates),
            "offload": offloaded_s(
                elements,
                parameter_bytes_on_rank(chunks, plan, engine.sharding),
                kept_bytes,
                working,
                plan,
                rates,
            ),
        }
        found = {name: larger(found[name], own[name]) for name in found}
    return found
