"""FSDP2 with CPUOffloadPolicy: parameters, gradients and optimizer states live on the host; the device sees
them group by group.

Shards on their way up are dropped one by one as they are cast, and all of them before the gathered parameters
are made (_fsdp_param.py:896-901, _fsdp_collectives.py:328-372); reduced gradients go down as soon as they are
there (:714-743). Neither is ever there at a high-water mark.
"""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.errors import input_error
from memsheet.formulas.sharding.per_parameter_sizes import dim0_shard
from memsheet.formulas.sharding.resident_state import Host, ResidentState
from memsheet.formulas.states.gradients import unreduced_gradients
from memsheet.formulas.states.held import HeldTensor, gradient_dtype, rows_apart
from memsheet.formulas.states.optimizers import optimizer_bytes
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath
from memsheet.frozen import replace
from memsheet.plan.plan import Plan
from memsheet.references import TORCH_FSDP2, formula
from memsheet.sheet import Component


def cpu_offload_resident_state(
    kept: ResidentState, plan: Plan, parameters: tuple[HeldTensor, ...]
) -> ResidentState:
    """What is left on the device of ``kept``: buffers, gathered groups and what reduces their gradients.

    Raises InputError unless parameters and optimizer are offloaded whole and together: the policy knows no
    other form.
    """
    for key, share in (
        ("offload.parameters", plan.offload.parameters),
        ("offload.optimizer", plan.offload.optimizer),
    ):
        if share != 1:
            raise input_error(
                key,
                share,
                "fsdp2's CPUOffloadPolicy moves parameters, gradients and optimizer states together",
                "--offload optimizer,parameters",
            )
    apart = rows_apart(parameters)
    fixed = {
        key: size for key, size in kept.states.held.items() if key[0] in (Component.BUFFERS, Component.INPUTS)
    }
    left = BytesByPath.of([*fixed.items(), *apart.items()])
    return replace(
        kept,
        states=left,
        around=replace(kept.around, leaves=lambda _: EMPTY),
        resident=unreduced_gradients(kept.resident),
        at_step=EMPTY,
        gradients=EMPTY,
        host=host_memory(plan, parameters),
    )


@formula(
    cites=TORCH_FSDP2,
    at=(
        "_fsdp_param.py:312-315: every shard in a pinned buffer of its own; gradients are copied into "
        "pinned ones too"
    ),
)
def host_memory(plan: Plan, parameters: tuple[HeldTensor, ...]) -> Host:
    """Parameters and gradients pinned, optimizer states (made by the optimizer on the host) pageable."""
    pinned: list[Count] = []
    pageable: Count = 0
    for h in parameters:
        shard = dim0_shard(h.shape, plan.mesh.sharded)
        pinned += [h.dtype.nbytes(shard)] * h.times
        if h.trains:
            pinned += [gradient_dtype(h, plan).nbytes(shard)] * h.times
            pageable = pageable + h.times * optimizer_bytes(h, shard, plan)
    return Host(tuple(pinned), pageable)
