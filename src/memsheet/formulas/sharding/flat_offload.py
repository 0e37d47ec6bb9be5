"""FullyShardedDataParallel with CPUOffload: each unit's part of the flat parameter, its gradient and the
optimizer's states lie on the host.

A part comes up as its unit is gathered and goes when the whole one is there (torch
distributed/fsdp/_flat_param.py, pre_unshard, _use_low_precision_shard). Its gradient is copied down as soon
as it is reduced, but the device's own stays until backward is over (_runtime_utils.py,
_accumulate_sharded_grad; _flat_param.py, prepare_gradient_for_optim).
"""

from __future__ import annotations

from memsheet.arith import agreed, ceil_div
from memsheet.errors import Problem, raise_if_problems
from memsheet.formulas.groups import StageLayers
from memsheet.formulas.sharding.flat_sizes import flat_elements
from memsheet.formulas.sharding.resident_state import Host, ResidentState
from memsheet.formulas.states.gradients import unreduced_gradients
from memsheet.formulas.states.held import HeldTensor
from memsheet.formulas.states.optimizers import optimizer_bytes
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath
from memsheet.frozen import replace
from memsheet.plan.plan import GradientSync, Plan
from memsheet.references import TORCH_FSDP1, formula
from memsheet.sheet import Component


def flat_offloaded(
    kept: ResidentState, plan: Plan, stage: StageLayers, parameters: tuple[HeldTensor, ...]
) -> ResidentState:
    """What is left on the device of ``kept``. Raises InputError for a part of it, which does not exist, and
    for several micro-batches.
    """
    _check_whole(plan)
    left = BytesByPath.of(
        (key, size)
        for key, size in kept.states.held.items()
        if key[0] in (Component.BUFFERS, Component.INPUTS)
    )
    return replace(
        kept,
        states=left,
        resident=unreduced_gradients(kept.resident),
        at_step=EMPTY,
        host=host_memory(plan, stage, parameters),
    )


def _check_whole(plan: Plan) -> None:
    shares = (("offload.parameters", plan.offload.parameters), ("offload.optimizer", plan.offload.optimizer))
    found = [
        Problem(
            field=key,
            value=share,
            reason="fsdp1's CPUOffload moves parameters, gradients and optimizer states together",
            hint="--offload optimizer,parameters",
        )
        for key, share in shares
        if share != 1
    ]
    if not agreed(plan.accumulation == 1) and plan.gradient_sync is not GradientSync.LAST:
        why = (
            "of several micro-batches is lost with CPUOffload but the last one's gradient, unless none "
            "is reduced before it, which is not modelled"
        )
        found.append(
            Problem(
                field="global_batch",
                value=plan.training.global_batch,
                reason=why,
                hint="one micro-batch a step, or engine fsdp2",
            )
        )
    raise_if_problems(found)


@formula(
    cites=TORCH_FSDP1,
    at=(
        "_flat_param.py:1249-1270: a unit's part and its gradient are pinned; the optimizer makes its "
        "states beside them"
    ),
)
def host_memory(plan: Plan, stage: StageLayers, parameters: tuple[HeldTensor, ...]) -> Host:
    """Parts and gradients of each unit pinned, optimizer states pageable."""
    layers = [(group, run.count) for run in stage.layers for group in run.pattern]
    rooted = tuple(h for end in (stage.embeddings, stage.head) if end for h in end.parameters)
    units = [*((group.parameters, times) for group, times in layers), (rooted, 1)]
    widths = (plan.precision.parameters, plan.precision.gradients)
    pinned = [
        dtype.nbytes(ceil_div(flat_elements(held, plan), plan.mesh.dp_shard))
        for held, times in units
        for dtype in widths
        for _ in range(times)
    ]
    shards = ((h, ceil_div(h.elements, plan.mesh.dp_shard)) for h in parameters if h.trains)
    return Host(tuple(pinned), sum(h.times * optimizer_bytes(h, elements, plan) for h, elements in shards))
