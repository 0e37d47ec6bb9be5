"""What an engine keeps around the layers: gathered parameters, communication buffers, gradients waiting or
sharded.

For each way of sharding, four questions: what is there all the time, what a group adds while its forward
runs, while its backward runs, and what its backward leaves behind until the optimizer's step. FSDP2 answers
in fsdp2.py, DeepSpeed in zero.py.
"""

from __future__ import annotations

from collections.abc import Callable

from memsheet.arith import Count, at_least, where
from memsheet.formulas.groups import Group
from memsheet.formulas.states.held import Held, gradient_dtype
from memsheet.formulas.tapes.evaluate import EMPTY, BytesByPath
from memsheet.frozen import dataclass
from memsheet.plan.plan import Plan
from memsheet.references import TORCH_DDP, formula
from memsheet.sheet import Component


def _no_overhead(*_: object) -> BytesByPath:
    return EMPTY


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ShardingOverhead:
    """What the engine adds, asked for group by group. ``before`` and ``after`` are the neighbours in order of
    execution.

    ``always``: resident through the whole step. ``through``: from the start of forward to the end of
    backward. ``between``: all the time but while the optimizer steps. ``entering``: when a group's forward is
    about to run; ``forward``: while it runs; ``holds``: from its forward to its backward. ``backward``: while
    its backward runs; ``leaving``: right after it; ``leaves``: gradients that stay until the optimizer's
    step. ``fetching``: when a group's backward is about to run and the one before is gathered ahead;
    ``reducing``: when its gradients are on their way; both None where that is never the most. ``during(run,
    repetition)``: what a place of the backward adds, the embeddings at (-1, 0) and the head at (number of
    runs, 0); ``stops``: the places worth a look for it; ``end``: when the last backward is over and before
    the optimizer's step.
    """

    always: BytesByPath = EMPTY
    through: BytesByPath = EMPTY
    between: BytesByPath = EMPTY
    entering: Callable[[Group | None, Group], BytesByPath] = _no_overhead
    forward: Callable[[Group | None, Group], BytesByPath] = _no_overhead
    holds: Callable[[Group], BytesByPath] = _no_overhead
    backward: Callable[[Group | None, Group, Group | None], BytesByPath] = _no_overhead
    leaving: Callable[[Group | None, Group], BytesByPath] = _no_overhead
    fetching: Callable[[Group | None, Group, Group | None], BytesByPath] | None = None
    reducing: Callable[[Group | None, Group], BytesByPath] | None = None
    leaves: Callable[[Group], BytesByPath] = _no_overhead
    during: Callable[[int, int], BytesByPath] = _no_overhead
    stops: frozenset[tuple[int, int]] = frozenset()
    end: BytesByPath = EMPTY


def single_row(component: Component, path: str, size: Count) -> BytesByPath:
    """A bag of one row."""
    return BytesByPath.of([((component, path), size)])


@formula(cites=TORCH_DDP, at="initialize_buckets: flat buffers of one gradient copy, made in the constructor")
def ddp_buckets(parameters: tuple[Held, ...], plan: Plan) -> Count:
    """Bytes of DistributedDataParallel's buckets, besides the gradients themselves (gradient_as_bucket_view
    is off by default).
    """
    return sum(h.times * gradient_dtype(h, plan).nbytes(h.elements) for h in parameters if h.trains)


def ddp_overhead(plan: Plan, parameters: tuple[Held, ...]) -> ShardingOverhead:
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
