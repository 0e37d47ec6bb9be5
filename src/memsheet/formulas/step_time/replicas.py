"""What data-parallel ranks tell one another, and how much of it the passes hide, by sharding."""

from __future__ import annotations

from enum import Enum

from memsheet.formulas.sharding.algorithm import algorithm_of
from memsheet.formulas.step_time.collectives import broadcasts_s, collective_s
from memsheet.formulas.step_time.numbers import Real, exposed_seconds, larger
from memsheet.formulas.step_time.parts import Part, Unit
from memsheet.formulas.step_time.rates import SLOWED, Rates
from memsheet.frozen import dataclass
from memsheet.plan.engine import Sharding
from memsheet.plan.plan import Plan
from memsheet.references import INTERNEVO, TORCH_FSDP2, ZERO, formula


class Overlap(Enum):
    """What runs beside the passes: all that could, what the engine runs so by its defaults, nothing."""

    ALL = "all"
    ENGINE = "engine"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Data-parallel ranks of one kind of parameters: those that share shards, at which stride, and whole
    copies of them.
    """

    shards: Real
    stride: Real
    copies: Real

    def gather_s(self, elements: Real, size: float, rates: Rates) -> Real:
        return collective_s("all_gather", elements * size, self.shards, self.stride, rates)

    def scatter_s(self, elements: Real, size: float, rates: Rates) -> Real:
        """And the shards summed over copies, where there are any."""
        one = collective_s("reduce_scatter", elements * size, self.shards, self.stride, rates)
        return one + collective_s(
            "all_reduce", elements * size / self.shards, self.copies, self.stride * self.shards, rates
        )

    def reduce_s(self, elements: Real, size: float, rates: Rates) -> Real:
        return collective_s("all_reduce", elements * size, self.shards * self.copies, self.stride, rates)


def groups_of(plan: Plan) -> tuple[Group, Group]:
    """Of dense parameters, and of experts, which fewer ranks have copies of."""
    mesh = plan.mesh
    cut = mesh.ep * mesh.etp
    dense = Group(shards=mesh.dp_shard * mesh.cp, stride=mesh.tp, copies=mesh.dp_replicate)
    return dense, Group(
        shards=larger(mesh.dp_shard * mesh.cp * mesh.tp / cut, 1), stride=cut, copies=mesh.dp_replicate
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Seconds of one micro-batch through a part with what it waits for (``gathered_s``: of the two for
    parameters, ``reduced_s``: for gradients), and what comes once a step.
    """

    forward_s: Real
    backward_s: Real
    gathered_s: Real = 0.0
    reduced_s: Real = 0.0
    gathered_once_s: Real = 0.0
    reduced_once_s: Real = 0.0


def data_parallel_passes(
    part: Part, plan: Plan, sharding: Sharding, overlap: Overlap, rates: Rates
) -> Passes:
    if gathers_units(plan, sharding):
        return _sharded_passes(part, plan, sharding, overlap, rates)
    return unsharded_passes(part, plan, sharding, overlap, rates)


def gathers_units(plan: Plan, sharding: Sharding) -> bool:
    """Whether parameters are gathered unit by unit in every micro-batch."""
    return (sharding.gathers and plan.zero >= 2) or plan.zero == 3


@formula(
    cites=TORCH_FSDP2,
    at=(
        "_fsdp_param_group.py: the next unit is gathered while one runs; in backward the last one's "
        "gradients scatter too"
    ),
)
def _sharded_passes(part: Part, plan: Plan, sharding: Sharding, overlap: Overlap, rates: Rates) -> Passes:
    forward, backward = part.total("forward_s"), part.total("backward_s")
    gathered_f, gathered_b, reduced = _collective_copy_seconds(part, plan, sharding, rates)
    edge_f, edge_b, edge_r = 0.0, 0.0, 0.0
    for count, unit in part.units:
        gather, scatter = _unit_s(unit, plan, rates)
        again = gather if plan.reshard_after_forward else 0.0
        if overlap is Overlap.NONE:
            gathered_f, gathered_b, reduced = (
                gathered_f + count * gather,
                gathered_b + count * again,
                reduced + count * scatter,
            )
            continue
        both, share = (
            exposed_communication_s(again + scatter, unit.backward_s, overlap),
            again / larger(again + scatter, TINY_S),
        )
        gathered_f = gathered_f + count * exposed_communication_s(gather, unit.forward_s, overlap)
        gathered_b, reduced = gathered_b + count * both * share, reduced + count * both * (1 - share)
        edge_f, edge_b, edge_r = larger(edge_f, gather), larger(edge_b, again), larger(edge_r, scatter)
    if overlap is Overlap.ENGINE:  # the first gather and the last scatter have nothing beside them
        gathered_f, gathered_b, reduced = gathered_f + edge_f, gathered_b + edge_b, reduced + edge_r
    return Passes(
        forward_s=forward + gathered_f,
        backward_s=backward + gathered_b + reduced,
        gathered_s=gathered_f + gathered_b,
        reduced_s=reduced,
    )


TINY_S = 1e-12
"""Nothing, where it divides nothing."""


def exposed_communication_s(work: Real, cover: Real, overlap: Overlap) -> Real:
    """What a collective costs that runs beside ``cover``: what sticks out, and what it slows."""
    out = exposed_seconds(work, cover)
    return out if overlap is Overlap.ALL else out + SLOWED * (work - out)


def _collective_copy_seconds(
    part: Part, plan: Plan, sharding: Sharding, rates: Rates
) -> tuple[Real, Real, Real]:
    """Passes over memory around the collectives of forward, of backward and of gradients: gathered parameters
    copied out of the buffer (fully_shard only, _fsdp_collectives.py, split_with_sizes_copy), gradients raised
    to the dtype they are reduced in on their way into one.
    """
    elements = part.total("dense") + part.total("experts")
    size, reduced = plan.precision.compute.bits / 8, plan.precision.reduce.bits / 8
    out = 2 * size * elements / rates.memory_bytes if algorithm_of(sharding).traffic.copies_gathered else 0.0
    raised = (2.0 + reduced) * elements / rates.memory_bytes if plan.adapter is None else 0.0
    return out, out if plan.reshard_after_forward else 0.0, raised


def _unit_s(unit: Unit, plan: Plan, rates: Rates) -> tuple[Real, Real]:
    dense, experts = groups_of(plan)
    size, reduced = gathered_size(plan), plan.precision.reduce.bits / 8
    gather = dense.gather_s(unit.dense, size, rates) + _seconds_if_experts(
        unit.experts, experts.gather_s(unit.experts, size, rates)
    )
    routed = unit.routed_trained
    scatter = dense.scatter_s(unit.trained, reduced, rates) + _seconds_if_experts(
        routed, experts.scatter_s(routed, reduced, rates)
    )
    return gather, scatter


EVEN = 1 << 20
"""Elements over which the scales of a quantized format come out even."""


def gathered_size(plan: Plan) -> float:
    """Bytes of a parameter on its way to ranks that compute with it."""
    if plan.fp8 is not None:
        return 1.0 if plan.fp8.gathered else 2.0
    if plan.quantization is not None:  # as it is stored; each rank makes it whole
        return float(plan.quantization.weights.nbytes(EVEN)) / EVEN
    return plan.precision.compute.bits / 8


def _seconds_if_experts(elements: Real, seconds: Real) -> Real:
    """No experts, no collective for them."""
    return 0.0 if isinstance(elements, float) and elements == 0.0 else seconds


@formula(
    cites=INTERNEVO,
    at=(
        "solver/optimizer/hybrid_zero_optim.py, broadcast_params: every rank tells the others its whole "
        "parameters in turn"
    ),
)
def _parameter_broadcast_s(group: Group, elements: Real, size: float, rates: Rates) -> Real:
    return broadcasts_s(elements * size, group.shards, group.stride, rates)


@formula(
    cites=ZERO,
    at=(
        "section 7: gradients reduced once a step (at stage 2 every micro-batch), parameters gathered "
        "after the optimizer's step"
    ),
)
def unsharded_passes(part: Part, plan: Plan, sharding: Sharding, overlap: Overlap, rates: Rates) -> Passes:
    dense, experts = groups_of(plan)
    traffic = algorithm_of(sharding).traffic
    gradient = plan.precision.reduce.bits / 8
    own, theirs = part.total("trained"), part.total("routed_trained")
    forward, backward = part.total("forward_s"), part.total("backward_s")
    scatters = plan.zero >= 1 and not traffic.broadcasts
    if scatters:
        sums = dense.scatter_s(own, gradient, rates) + _seconds_if_experts(
            theirs, experts.scatter_s(theirs, gradient, rates)
        )
    else:
        sums = dense.reduce_s(own, gradient, rates) + _seconds_if_experts(
            theirs, experts.reduce_s(theirs, gradient, rates)
        )
    gathered = 0.0
    if plan.zero >= 1:
        gather = _parameter_broadcast_s if traffic.broadcasts else Group.gather_s
        gathered = gather(dense, own, 2.0, rates) + _seconds_if_experts(
            theirs, gather(experts, theirs, 2.0, rates)
        )
    hides = {Overlap.ALL: 1.0, Overlap.ENGINE: float(traffic.beside_backward), Overlap.NONE: 0.0}[overlap]
    seen = exposed_communication_s(sums, hides * backward, overlap)
    each = plan.zero == 2 and traffic.reduces_each
    gathered = exposed_seconds(gathered, forward) if overlap is Overlap.ALL else gathered
    if each:
        return Passes(forward_s=forward, backward_s=backward + seen, reduced_s=seen, gathered_once_s=gathered)
    return Passes(forward_s=forward, backward_s=backward, gathered_once_s=gathered, reduced_once_s=seen)
