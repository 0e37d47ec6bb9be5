"""One rank's training job: the plan's mesh, the model cut along it, its memory shared out, and a step to
call.

The same for a rank that is traced and for one that runs; a trace listens by a ``Watch`` of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from memsheet.errors import Problem, input_error, raise_if_problems
from memsheet.frozen import dataclass, replace
from memsheet.plan.dtypes import FP16
from memsheet.plan.engine import Runner
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.plan import Implementation, Loss, Plan
from memsheet.plan.real_step import offloads_inputs_alone
from memsheet.run.accumulate import Batch
from memsheet.run.adapters import apply_adapter, apply_quantization
from memsheet.run.context_parallel import apply_context_parallel
from memsheet.run.ddp import apply_ddp
from memsheet.run.deepspeed import DeepSpeedStep, check_deepspeed_run, initialize_before_engine
from memsheet.run.expert_parallel import apply_expert_parallel
from memsheet.run.fsdp2 import apply_fsdp2, offloads_model_states
from memsheet.run.loss import apply_loss
from memsheet.run.mesh import build_mesh
from memsheet.run.meta import materialize_meta_tensors
from memsheet.run.model import build_config, build_model
from memsheet.run.optimizer import build_optimizer
from memsheet.run.pipeline import Stage, build_schedule, numbers_of
from memsheet.run.recompute import apply_recompute
from memsheet.run.scaler import build_scaler
from memsheet.run.step import At, Seen, mark_loss, random_token_batch, train_step
from memsheet.run.tensor_parallel import apply_tensor_parallel
from memsheet.run.watch import Running, Watch
from memsheet.run.zero1 import build_zero1
from memsheet.sheet import Instant


@dataclass(kw_only=True, slots=True)
class Job:
    """``step`` takes one, on its own tokens or on a batch.

    ``models``: this rank's part of the model, one for each of its stages; ``called``: what is called for
    them; ``stages``: torch's own, of a pipeline; ``close``: what is to be done when no more steps are taken.
    """

    models: Sequence[Any]
    called: Sequence[nn.Module]
    optimizer: torch.optim.Optimizer
    step: Callable[[Batch | None], None]
    stages: Sequence[Any] = ()
    close: Callable[[], None] = lambda: None


def rank_job(settings: Any, plan: Plan, mesh: DeviceMesh, device: str, watch: Watch, micro: int) -> Job:
    """The job of the rank that asks, on random tokens, once its process group is there. ``settings``: the
    library's config.

    ``micro``: micro-batches before the optimizer's turn; a pipeline takes all that the plan has. Parameters
    hold whatever memory held. Raises InputError for what cannot be run: see ``check_rank_plan``,
    ``run.mesh``, ``run.fsdp2``, ``run.tensor_parallel``, ``run.pipeline``.
    """
    make = (
        _deepspeed_job
        if engine_of(plan).runner is Runner.OWN_ENGINE
        else _pipeline_job
        if plan.mesh.pp > 1
        else _whole_model_job
    )
    return make(settings, plan, mesh, device, watch, micro)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RankTrainer:
    """As ``run.train.Trainer``, of one rank."""

    job: Job
    at: At

    def __call__(self, batch: Batch | None = None) -> None:
        self.at(Instant.LOAD)
        self.job.step(batch)


def rank_trainer(
    config: Mapping[str, Any], plan: Plan, device: str, at: At, micro: int, seen: Seen | None = None
) -> RankTrainer:
    """As ``run.train.trainer``, for the rank that asks, once its process group is there. Raises InputError as
    ``rank_job``.
    """
    check_rank_plan(plan)
    job = rank_job(
        build_config(config, plan), plan, build_mesh(plan, device), device, Running(at, seen), micro
    )
    return RankTrainer(job=job, at=at)


def check_rank_plan(plan: Plan) -> None:
    """Raises InputError for a plan that no engine here takes to several ranks."""
    runner = engine_of(plan).runner
    if runner is None:
        raise input_error("engine", plan.engine, "is not run here", "fsdp2, transformers or deepspeed")
    if runner is Runner.OWN_ENGINE:
        check_deepspeed_run(plan)
    if runner is Runner.WHOLE_MODULE and plan.mesh.dp_shard > 1 and plan.zero != 1:
        raise input_error(
            "mesh.dp_shard", plan.mesh.dp_shard, "is fully_shard's", "--engine fsdp2, or --zero 1"
        )
    assert plan.optimizer is not None
    fused = plan.optimizer.implementation in (Implementation.FUSED, Implementation.FOREACH)
    if runner is Runner.WHOLE_MODULE and plan.mesh.tp > 1 and fused:
        raise input_error(
            "optimizer.implementation",
            plan.optimizer.implementation.value,
            "takes sharded tensors or plain ones, and the norms' stay plain",
            "loop, or engine fsdp2",
        )
    if plan.mesh.cp > 1 and (plan.mesh.pp > 1 or runner is not Runner.SHARDED_UNITS):
        raise input_error(
            "mesh.cp",
            plan.mesh.cp,
            "is run with fully_shard and without pipelines, as accelerate does",
            "--engine fsdp2",
        )
    if plan.mesh.pp > 1 and (plan.adapter or plan.quantization or plan.zero == 1):
        raise input_error(
            "mesh.pp", plan.mesh.pp, "is not run with adapters, quantized weights or a sharded optimizer yet"
        )
    if plan.mesh.pp > 1 and plan.last_microbatch != plan.training.microbatch:
        raise input_error(
            "global_batch",
            plan.training.global_batch,
            "leaves a smaller micro-batch, and a pipeline's are all alike",
            "a multiple",
        )
    raise_if_problems(
        Problem(field=name, value=value, reason=why)
        for name, value, why, wrong in _one_rank_only(plan)
        if wrong
    )


def _one_rank_only(plan: Plan) -> Iterator[tuple[str, Any, str, bool]]:
    """What is applied to one rank of engine transformers, and how a plan asks for it here: field, value, why
    not, whether it does.
    """
    engine, several = engine_of(plan), "is run on one rank of engine transformers alone"
    scales = engine.autocast and plan.precision.compute is FP16
    master = None if engine.runner is Runner.OWN_ENGINE else plan.precision.master_weights
    yield "optimizer_in_backward", True, several, plan.optimizer_in_backward
    inputs_alone = offloads_inputs_alone(plan)
    yield "offload.activations", True, several, plan.offload.activations and not inputs_alone
    yield "loss", plan.loss.value, several, plan.loss is not Loss.PLAIN
    yield "recompute", "stretches", several, plan.recompute.stretched
    yield "precision.compute", "fp16", "has a scaler, which no pipeline here has", scales and plan.mesh.pp > 1
    split = engine.runner is Runner.SHARDED_UNITS or plan.mesh.tp > 1 or plan.zero == 1
    yield (
        "precision.master_weights",
        str(master and master.name),
        "is a copy of whole parameters here",
        master is not None and split,
    )


# ---- the whole stack on every rank -------------------------------------------------------------------------


def _whole_model_job(
    settings: Any, plan: Plan, mesh: DeviceMesh, device: str, watch: Watch, micro: int
) -> Job:
    model: Any = build_model(settings, plan, "meta")
    apply_loss(model, plan)
    model = apply_adapter(apply_quantization(model, plan), plan)
    apply_recompute(model, plan)
    watch.built(model)
    apply_tensor_parallel(model, plan, mesh)
    apply_expert_parallel(model, plan, mesh)
    called = _data_parallel(model, model, plan, mesh, device, watch)
    optimizer = _rank_optimizer(called, model, plan, mesh)
    close: Callable[[], None] = lambda: None  # noqa: E731
    if plan.mesh.cp > 1:
        called = spread = apply_context_parallel(called, model, plan, mesh, device)
        spread.placed, close = watch.input, spread.close
    batch = random_token_batch(settings, plan, "cpu" if plan.mesh.cp > 1 else device)
    for name, tensor in batch.items():
        watch.input(tensor, name)
    mark_loss(called, watch.at)
    scaler = build_scaler(plan, device)

    def step(other: Batch | None) -> None:
        train_step(
            called,
            optimizer,
            other or batch,
            plan,
            watch.at,
            device=device,
            micro=micro,
            scaler=scaler,
            seen=watch.seen,
        )

    return Job(models=[model], called=[called], optimizer=optimizer, step=step, close=close)


def _data_parallel(
    root: nn.Module, model: Any, plan: Plan, mesh: DeviceMesh, device: str, watch: Watch
) -> nn.Module:
    """``root``, which calls ``model``, with memory and shared out among data-parallel ranks; what is to be
    called instead.
    """
    sharded = engine_of(plan).runner is Runner.SHARDED_UNITS
    if sharded:
        apply_fsdp2(root, model, plan, mesh)
    materialize_meta_tensors(
        model, device, watch.places, parameters="cpu" if offloads_model_states(plan) else device
    )
    watch.holds(root, model, sharded=sharded)
    if sharded or plan.mesh.data_parallel == 1:
        return root
    with watch.replicating():
        replica = apply_ddp(root, mesh, synchronize=watch.synchronize)
    watch.replica(replica)
    return replica


def _rank_optimizer(
    called: nn.Module, model: nn.Module, plan: Plan, mesh: DeviceMesh
) -> torch.optim.Optimizer:
    """``model``: what ``called`` is around, whose layers and names some optimizers go by."""
    if plan.zero != 1:
        return build_optimizer(called.parameters(), plan, model)
    return build_zero1(called.parameters(), plan, mesh)


def _deepspeed_job(settings: Any, plan: Plan, mesh: DeviceMesh, device: str, watch: Watch, micro: int) -> Job:  # noqa: ARG001
    """By DeepSpeed's engine, whose ranks are all there are."""
    model: Any = build_model(settings, plan, "meta")
    apply_loss(model, plan)
    model = apply_adapter(apply_quantization(model, plan), plan)
    apply_recompute(model, plan)
    watch.built(model)
    materialize_meta_tensors(model, device, watch.places)
    initialize_before_engine(model)
    watch.holds(model, model, sharded=False)
    take = DeepSpeedStep(model, plan, device, watch, micro)
    batch = random_token_batch(settings, plan, device)
    for name, tensor in batch.items():
        watch.input(tensor, name)

    def step(other: Batch | None) -> None:
        take(other or batch)

    return Job(models=[model], called=[model], optimizer=take.optimizer, step=step, close=take.close)


# ---- a part of the stack -----------------------------------------------------------------------------------


def _pipeline_job(settings: Any, plan: Plan, mesh: DeviceMesh, device: str, watch: Watch, _: int) -> Job:
    stages = [_build_pipeline_stage(settings, plan, device, number) for number in numbers_of(plan, mesh)]
    called = []
    for stage in stages:
        watch.built(stage.model)
        apply_tensor_parallel(stage.model, plan, mesh)
        called.append(_data_parallel(stage, stage.model, plan, mesh, device, watch))
        if stage.is_last:
            mark_loss(stage.model, watch.at)
    schedule = build_schedule(stages, called, plan, mesh, device, watch.loss(stages[-1].loss))
    held = list(getattr(schedule, "_stages", None) or [schedule._stage])
    for one in held:
        one.forward_one_chunk = watch.forward(one.forward_one_chunk)
        one.backward_one_chunk = watch.backward(one.backward_one_chunk)
    optimizer = build_optimizer([p for stage in stages for p in stage.parameters()], plan)
    every = replace(
        plan, workload=replace(plan.training, microbatch=plan.training.microbatch * plan.accumulation)
    )
    ids: torch.Tensor = random_token_batch(settings, every, device)[
        "input_ids"
    ]  # of all micro-batches, which are the labels too
    watch.input(ids, "input_ids")
    first, last = stages[0].is_first, stages[-1].is_last

    def step(other: Batch | None) -> None:
        given = _all_micro_batches(other["input_ids"], plan) if other else ids
        losses = list[torch.Tensor]()
        schedule.step(
            *((given,) if first else ()),
            target=given if last else None,
            losses=losses if last else None,
            return_outputs=False,
        )
        _report_microbatch_losses(watch.seen, losses)
        losses.clear()
        watch.at(Instant.OPTIMIZER_STEP)
        optimizer.step()
        optimizer.zero_grad()

    return Job(
        models=[stage.model for stage in stages], called=called, optimizer=optimizer, step=step, stages=held
    )


def _all_micro_batches(ids: torch.Tensor, plan: Plan) -> torch.Tensor:
    """The rows of a step: as given, or one micro-batch that serves again."""
    return ids.repeat(int(plan.accumulation), 1) if ids.shape[0] == plan.training.microbatch else ids


def _report_microbatch_losses(seen: Seen | None, losses: Sequence[torch.Tensor]) -> None:
    """Each micro-batch's share of the step's loss."""
    if seen is not None:
        for loss in losses:
            seen(loss.detach() / len(losses))


def _build_pipeline_stage(settings: Any, plan: Plan, device: str, number: int) -> Stage:
    model = build_model(settings, plan, "meta")
    apply_recompute(model, plan)
    return Stage(model, plan, number, device)
