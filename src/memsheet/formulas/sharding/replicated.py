"""Every rank keeps everything, as under DistributedDataParallel, whose buckets are all that is added."""

from __future__ import annotations

from memsheet.arith import Count, at_least, where
from memsheet.formulas.sharding.algorithm import Traffic
from memsheet.formulas.sharding.by_tensor import algorithm_by_tensor
from memsheet.formulas.sharding.division import Division
from memsheet.formulas.sharding.overhead import ShardingOverhead, single_row
from memsheet.formulas.states.gradients import accumulates_gradients
from memsheet.formulas.states.held import HeldTensor, gradient_dtype
from memsheet.formulas.tapes.bytes_by_path import EMPTY
from memsheet.plan.plan import Plan
from memsheet.references import TORCH_DDP, formula
from memsheet.sheet import Component


@formula(cites=TORCH_DDP, at="initialize_buckets: flat buffers of one gradient copy, made in the constructor")
def ddp_buckets(parameters: tuple[HeldTensor, ...], plan: Plan) -> Count:
    """Bytes of DistributedDataParallel's buckets, besides the gradients themselves (gradient_as_bucket_view
    is off by default): of all that ask for a gradient, those too that no step comes to.
    """
    asking = (h for h in parameters if h.trains or h.unreached)
    return sum(h.times * gradient_dtype(h, plan).nbytes(h.elements) for h in asking)


def ddp_overhead(plan: Plan, parameters: tuple[HeldTensor, ...]) -> ShardingOverhead:
    """Nothing is gathered; autograd's own gradients stay until the step. Several replicas add DDP's
    buckets.
    """
    several, size = at_least(plan.mesh.dp_replicate, 2), ddp_buckets(parameters, plan)
    buckets = (
        single_row(Component.COMMUNICATION, "ddp/buckets", where(several, size, 0))
        if several is not False
        else EMPTY
    )
    return ShardingOverhead(always=buckets, leaves=lambda group: group.gradients)


ALGORITHM = algorithm_by_tensor(
    Division(
        overhead=lambda plan, _, parameters, __: ddp_overhead(plan, parameters),
        accumulates_whole=accumulates_gradients,
        raises_gradients=True,
    ),
    Traffic(),
)
