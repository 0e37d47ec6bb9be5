"""What the engine keeps around the layers: gathered parameters, communication buffers, gradients waiting or sharded.

For each way of sharding, four questions: what is there all the time, what a group adds while its forward runs, while its backward
runs, and what its backward leaves behind until the optimizer's step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from memsheet.arith import Count, at_least, ceil_div, where
from memsheet.formulas.evaluate import EMPTY, Bag, Key, largest, merge
from memsheet.formulas.groups import Group, Walk
from memsheet.formulas.sharding import dim0_gathered, dim0_shard
from memsheet.formulas.states import Held, gradient_dtype
from memsheet.references import TORCH_DDP, TORCH_FSDP2, formula
from memsheet.sheet import Component
from memsheet.spec.dtypes import BF16, FP16, FP32, DType
from memsheet.spec.engine import Engine, Sharding
from memsheet.spec.plan import Plan


def _nothing(*_: object) -> Bag:
    return EMPTY


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Surroundings:
    """What the engine adds, asked for group by group. ``before`` and ``after`` are the neighbours in order of execution.

    ``always``: resident through the whole step. ``through``: from the start of forward to the end of backward.
    ``entering``: when a group's forward is about to run; ``forward``: while it runs; ``holds``: from its forward to its backward.
    ``backward``: while its backward runs; ``leaving``: right after it; ``leaves``: gradients that stay until the optimizer's step.
    ``fetching``: when a group's backward is about to run and the one before is gathered ahead; ``reducing``: when its gradients are on
    their way; both None where that is never the most.
    ``during(run, repetition)``: what a place of the backward adds, the embeddings at (-1, 0) and the head at (number of runs, 0);
    ``stops``: the places worth a look for it; ``end``: when the last backward is over and before the optimizer's step.
    """

    always: Bag = EMPTY
    through: Bag = EMPTY
    entering: Callable[[Group | None, Group], Bag] = _nothing
    forward: Callable[[Group | None, Group], Bag] = _nothing
    holds: Callable[[Group], Bag] = _nothing
    backward: Callable[[Group | None, Group, Group | None], Bag] = _nothing
    leaving: Callable[[Group | None, Group], Bag] = _nothing
    fetching: Callable[[Group | None, Group, Group | None], Bag] | None = None
    reducing: Callable[[Group | None, Group], Bag] | None = None
    leaves: Callable[[Group], Bag] = _nothing
    during: Callable[[int, int], Bag] = _nothing
    stops: frozenset[tuple[int, int]] = frozenset()
    end: Bag = EMPTY


def _bag(component: Component, path: str, size: Count) -> Bag:
    return Bag.of([((component, path), size)])


def trained(group: Group) -> tuple[Held, ...]:
    return tuple(h for h in group.parameters if h.trains)


# ---- one GPU, or replicas ------------------------------------------------------------------------------------------------


@formula(cites=TORCH_DDP, at="initialize_buckets: flat buffers of one gradient copy, made in the constructor")
def ddp_buckets(parameters: tuple[Held, ...], plan: Plan) -> Count:
    """Bytes of DistributedDataParallel's buckets, besides the gradients themselves (gradient_as_bucket_view is off by default)."""
    return sum(h.times * gradient_dtype(h, plan).nbytes(h.elements) for h in parameters if h.trains)


def replicated(plan: Plan, parameters: tuple[Held, ...]) -> Surroundings:
    """Nothing is gathered; autograd's own gradients stay until the step. Several replicas add DDP's buckets."""
    several, size = at_least(plan.mesh.dp_replicate, 2), ddp_buckets(parameters, plan)
    buckets = _bag(Component.COMMUNICATION, "ddp/buckets", where(several, size, 0)) if several is not False else EMPTY
    return Surroundings(always=buckets, leaves=lambda group: group.gradients)


# ---- FSDP2 -----------------------------------------------------------------------------------------------------------------


FLOATING = (FP32, BF16, FP16)


@formula(cites=TORCH_FSDP2, at="_fsdp_collectives.py:328-360 all-gather output; _fsdp_param.py:616-628 unsharded parameters")
def gathered_bytes(group: Group, plan: Plan) -> Count:
    """A group's parameters gathered whole, in the compute dtype (frozen or quantized ones as stored)."""
    return sum(_computed(h, plan).nbytes(dim0_gathered(h.shape, plan.mesh.dp_shard)) for h in group.parameters)


def _computed(h: Held, plan: Plan) -> DType:
    """What the policy casts a parameter to: anything floating, adapters too (_fsdp_param.py, init_dtype_attrs)."""
    return plan.precision.compute if h.dtype in FLOATING else h.dtype


@formula(cites=TORCH_FSDP2, at="_fsdp_collectives.py:592-606: reduce-scatter input in the reduce dtype, kept until the next group's")
def reduce_input_bytes(group: Group, plan: Plan) -> Count:
    """The buffer in which a group's whole gradients are reduced."""
    return sum(plan.precision.reduce.nbytes(dim0_gathered(h.shape, plan.mesh.dp_shard)) for h in trained(group))


@formula(cites=TORCH_FSDP2, at="_fsdp_collectives.py:611-616, 696-712: the reduced shard, in the sharded parameter's dtype")
def sharded_gradients(group: Group, plan: Plan, name: str | None = None) -> Bag:
    """Gradients of a group as they stay on a rank: one buffer, of which each is a view. ``name``: the group's, where it is another's too."""
    pairs = (gradient_dtype(h, plan).nbytes(dim0_shard(h.shape, plan.mesh.dp_shard)) for h in trained(group))
    return _bag(Component.GRADIENTS, name or group.name, sum(pairs))


def lingering(group: Group, plan: Plan) -> tuple[Key, Count]:
    """The gradient of a group's last parameter, which the name of a loop still holds (_fsdp_collectives.py:580-590, several ranks)."""
    last = next(iter(reversed(trained(group))), None)
    size = _computed(last, plan).nbytes(last.elements) if last else 0
    path = last.path.rpartition(".")[0] if last else group.name
    return (Component.GRADIENTS, path), where(at_least(plan.mesh.dp_shard, 2), size, 0)


def fsdp2_gradients(stage: Walk, plan: Plan) -> Bag:
    """All sharded gradients as they stand before the optimizer's step."""
    ends = [sharded_gradients(end, plan, ROOT if stage.tied else None) for end in (stage.embeddings, stage.head) if end]
    layers = [(run.count, sharded_gradients(group, plan)) for run in stage.layers for group in run.pattern]
    return merge([*((1, end) for end in ends), *layers])


ROOT = "root"
"""The group that goes first and last: tied embeddings and head."""


def fsdp2(plan: Plan, embeddings: Group | None, head: Group | None, *, tied: bool) -> Surroundings:
    """Every layer a group, resharded after its forward (zero 3); embeddings a group; final norm and head a group that stays gathered.

    Tied embeddings and head are one group that stays gathered through forward and backward (accelerate fsdp_utils.py:857-885).
    """
    keeps = not plan.reshard_after_forward
    rooted = (embeddings, head) if tied else ()

    @cache  # a step asks for the same few groups again and again
    def whole(group: Group | None) -> Count:
        return 0 if group is None or group in rooted else gathered_bytes(group, plan)

    @cache
    def root() -> Count:
        return sum(gathered_bytes(group, plan) for group in rooted if group)

    def unsharded(group: Group) -> tuple[Key, Count]:
        return (Component.UNSHARDED_PARAMETERS, f"{group.name}/unsharded"), whole(group)

    def came(group: Group | None) -> tuple[Key, Count]:
        """The all-gather's output in forward, where a tied root group is gathered first of all."""
        return ((Component.UNSHARDED_PARAMETERS, f"{ROOT}/all_gather"), sent(root())) if tied and group is embeddings else arrived(group)

    def arrived(group: Group | None) -> tuple[Key, Count]:
        return (Component.UNSHARDED_PARAMETERS, f"{group.name if group else 'none'}/all_gather"), sent(whole(group))

    def sent(size: Count) -> Count:
        """A rank alone copies its shards into the parameters and needs no buffer (_fsdp_param_group.py:392-402, 437-461)."""
        return where(at_least(plan.mesh.dp_shard, 2), size, 0)

    @cache
    def reduced(group: Group | None) -> tuple[Key, Count]:
        waiting = reduce_input_bytes(group, plan) if group and group not in rooted else 0
        return (Component.COMMUNICATION, f"{group.name if group else 'none'}/reduce_scatter"), waiting

    @cache
    def leaves(group: Group) -> Bag:
        return group.gradients if tied and group is head else sharded_gradients(group, plan, ROOT if group in rooted else None)

    def entering(before: Group | None, group: Group) -> Bag:
        """The all-gather before is only let go when the copy-out into the parameters is done (_fsdp_param_group.py:429-462: a local
        name still refers to it).
        """
        return Bag.of([came(before), arrived(group), unsharded(group)])

    def forward(before: Group | None, group: Group) -> Bag:
        """The last all-gather's output stays until the next one: a tied head gathers nothing, so it finds the last layer's."""
        return Bag.of([unsharded(group), came(before if group in rooted and before else group)])

    def backward(before: Group | None, group: Group, after: Group | None) -> Bag:
        fetched = arrived(None if keeps and before is not embeddings else before)
        return Bag.of([unsharded(group), fetched, reduced(after)])

    def leaving(before: Group | None, group: Group) -> Bag:
        """The gradients beside the buffer they are copied into; or, when they are gone (_fsdp_collectives.py:603-608), the last of them
        and the buffer beside the reduced shard: the gradients that stay, or what is cast to them.
        """
        shard = ceil_div(reduced(group)[1], plan.mesh.dp_shard)
        casts = plan.precision.reduce is not plan.precision.gradients
        own = ((Component.COMMUNICATION, f"{group.name}/reduced_shard") if casts else (Component.GRADIENTS, group.name), shard)
        cast = leaves(group).held.items() if casts else ()
        waits = arrived(None if keeps else before), reduced(group)
        return largest([[(1, Bag.of([*waits, *group.gradients.held.items()]))], [(1, Bag.of([*waits, own, *cast, lingering(group, plan)]))]])

    def holds(group: Group) -> Bag:
        return Bag.of([unsharded(group)]) if keeps or group is head else EMPTY

    return Surroundings(
        through=_bag(Component.UNSHARDED_PARAMETERS, f"{ROOT}/unsharded", root()) if tied else EMPTY, entering=entering, forward=cache(forward), holds=cache(holds), backward=cache(backward), leaving=cache(leaving),
        leaves=leaves,
    )  # fmt: skip


def over_gloo(kept: Surroundings, plan: Plan, rooted: tuple[Group | None, ...]) -> Surroundings:
    """``kept`` where gloo carries what is gathered and reduced: it works on copies (ProcessGroupGloo.cpp of torch 2.4, :1968-1975 for a
    reduce-scatter, which all-reduces a clone; AllgatherWork for a gather, whose parts arrive in one flat tensor). ``rooted``: gathered once.
    """

    def whole(group: Group | None) -> Count:
        return 0 if group is None or group in rooted else gathered_bytes(group, plan)

    def shards(group: Group | None) -> tuple[Key, Count]:
        """What a rank sends: its own, cast."""
        return (Component.TEMPORARIES, f"{group.name if group else 'none'}/shards"), ceil_div(whole(group) * plan.precision.casts, plan.mesh.dp_shard)

    def entering(before: Group | None, group: Group) -> Bag:
        """While it is gathered: the copy in place of the parameters, which come when it is gone and are as large."""
        copy = (Component.COMMUNICATION, f"{group.name}/gloo_all_gather"), whole(group)
        later = (Component.UNSHARDED_PARAMETERS, f"{group.name}/unsharded"), -whole(group)
        return merge([(1, kept.entering(before, group)), (1, Bag.of([copy, later, shards(group)]))])

    def fetching(before: Group | None, group: Group, after: Group | None) -> Bag:
        ahead = before if plan.reshard_after_forward else None
        copy = (Component.COMMUNICATION, f"{ahead.name if ahead else 'none'}/gloo_all_gather"), whole(ahead)
        return merge([(1, kept.backward(before, group, after)), (1, Bag.of([copy, shards(ahead)]))])

    def reducing(before: Group | None, group: Group) -> Bag:
        """The gradients but the last are gone: their copy, its clone, and the shard that comes of it; the next parameters are there."""
        size = sum(reduce_input_bytes(each, plan) for each in (rooted if group in rooted else (group,)) if each)
        sizes = {"reduce_scatter": size, "gloo_reduce_scatter": size, "reduced_shard": ceil_div(size, plan.mesh.dp_shard)}
        arrived = whole(before) if plan.reshard_after_forward else 0
        ahead = (Component.UNSHARDED_PARAMETERS, f"{before.name if before else 'none'}/all_gather"), arrived
        gone = sum(gathered_bytes(each, plan) for each in rooted if each and group in rooted)  # resharded, at last
        root = (Component.UNSHARDED_PARAMETERS, f"{ROOT}/unsharded"), -gone
        last = () if group in rooted else (lingering(group, plan),)
        return Bag.of([ahead, root, *last, *(((Component.COMMUNICATION, f"{group.name}/{name}"), held) for name, held in sizes.items())])

    return replace(kept, entering=cache(entering), reducing=cache(reducing), fetching=cache(fetching))


@formula(cites=TORCH_FSDP2, at="_fsdp_param_group.py:606-612: without gradient sync the whole gradients stay, in the reduce dtype")
def unsynced_gradient_bytes(parameters: tuple[Held, ...], plan: Plan) -> Count:
    """What accumulates on every rank when only the last micro-batch reduces gradients (accelerate's no_sync)."""
    return sum(h.times * plan.precision.reduce.nbytes(h.elements) for h in parameters if h.trains)


# ---- which one ---------------------------------------------------------------------------------------------------------------


def surroundings(engine: Engine, plan: Plan, parameters: tuple[Held, ...], walk: Walk) -> Surroundings:
    """What the plan's engine keeps around the layers."""
    match engine.sharding:
        case Sharding.REPLICATED:
            return replicated(plan, parameters)
        case Sharding.FSDP2:
            kept = fsdp2(plan, walk.embeddings, walk.head, tied=walk.tied)
            if not engine.processor or at_least(plan.mesh.dp_shard, 2) is False:
                return kept
            return over_gloo(kept, plan, (walk.embeddings, walk.head) if walk.tied else ())
        case Sharding.DEEPSPEED:
            raise AssertionError("formulas/deepspeed.py answers for it")
