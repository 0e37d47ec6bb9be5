"""What fully_shard keeps around the layers: parameters that are gathered, on their way or whole, and
gradients that are reduced.

Every layer is a group, resharded after its forward (zero 3); so are the embeddings; final norm and head are a
group that stays gathered. Tied embeddings and head are one group that stays gathered through forward and
backward (accelerate fsdp_utils.py:857-885).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property, partial
from posixpath import commonpath

from memsheet.arith import Count, agreed, at_least, ceil_div, where
from memsheet.formulas.groups import Group, StageLayers
from memsheet.formulas.sharding.algorithm import Traffic
from memsheet.formulas.sharding.by_tensor import algorithm_by_tensor
from memsheet.formulas.sharding.division import Division, wrapping_notes
from memsheet.formulas.sharding.overhead import ShardingOverhead, single_row
from memsheet.formulas.sharding.per_parameter_sizes import (
    ROOT,
    all_sharded_gradients,
    dim0_gathered,
    dim0_shard,
    gathered_bytes,
    gradients_beside_layers,
    last_gradient_row,
    loss_reduces_head,
    reduce_input_bytes,
    reduced_rest,
    root_gather_buffer,
    root_group_tensors,
    sharded_gradients,
    unsynced_gradient_bytes,
)
from memsheet.formulas.sharding.pipelined_units import pipelined_overhead
from memsheet.formulas.sharding.resident_state import ResidentState, with_hosted_activations
from memsheet.formulas.states.gradients import accumulates_gradients, reduces_surely_last
from memsheet.formulas.states.held import HeldTensor, module_of
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath, Key, largest_moment_rows, merge_moment
from memsheet.frozen import dataclass, replace
from memsheet.late import late_functions
from memsheet.plan.engine import Engine, UnitWrapping
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Loss, Plan
from memsheet.recording import EMBEDDINGS, HEAD
from memsheet.sheet import Component

with late_functions(__name__):
    from memsheet.formulas.sharding.per_parameter_offload import cpu_offload_resident_state


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of a stage under a plan; a step asks for the sizes of the same few again and again."""

    plan: Plan
    embeddings: Group | None
    head: Group | None
    tied: bool
    joined: bool = False  # embeddings and head are the root's own group, though each has its table
    last: Group | None = None  # a last layer that stays gathered until its backward
    rest: Group | None = None  # the root's own, which nothing else has
    reduced_rest: Group | None = None  # of which backward makes gradients
    returns_first: Group | None = None  # a last layer that is gathered again before the loss is backward
    comes_back: Group | None = None  # embeddings whose backward begins with the loss
    loss_reduced: bool = False  # a tied table's gradient of the head is reduced by the loss
    gathers_pieces: bool = False  # a head of its own is gathered for each piece of the logits, by the loss
    reduces_last: bool = False  # of a step's micro-batches the last one alone reduces gradients

    @property
    def rooted(self) -> tuple[Group | None, ...]:
        """Those that are gathered once, first of all."""
        return (self.embeddings, self.head) if self.tied or self.joined else ()

    @property
    def keeps(self) -> bool:
        return not self.plan.reshard_after_forward

    @cached_property
    def ends(self) -> Count:
        """Bytes of embeddings and head that are gathered once."""
        return sum(gathered_bytes(group, self.plan) for group in self.rooted if group)

    @cached_property
    def root(self) -> Count:
        """Bytes of what is gathered once."""
        return self.ends + (gathered_bytes(self.rest, self.plan) if self.rest else 0)

    @cached_property
    def whole(self) -> Callable[[Group | None], Count]:
        """Bytes of a group's parameters when they are gathered."""
        return cache(
            lambda group: 0 if group is None or group in self.rooted else gathered_bytes(group, self.plan)
        )

    @cached_property
    def reduced(self) -> Callable[[Group | None], tuple[Key, Count]]:
        """The buffer that a group's gradients are copied into, which waits for the next group's."""
        return cache(
            lambda group: (
                _group_row_key(Component.COMMUNICATION, group, "reduce_scatter"),
                self._waits(group),
            )
        )

    def _waits(self, group: Group | None) -> Count:
        return reduce_input_bytes(group, self.plan) if group and group not in self.rooted else 0

    @cached_property
    def leaves(self) -> Callable[[Group], BytesByPath]:
        """Gradients that stay until the optimizer's step."""
        return cache(self._leaves)

    def _leaves(self, group: Group) -> BytesByPath:
        if self.rooted and group is self.head:
            table = self.embeddings if self.loss_reduced else None
            reduced = sharded_gradients(table, self.plan, ROOT) if table else EMPTY
            return merge_moment([(1, group.gradients), (1, reduced)])
        own = sharded_gradients(group, self.plan, ROOT if group in self.rooted else None)
        return merge_moment([(1, own), (1, self._waiting_rest(group))])

    def _waiting_rest(self, group: Group) -> BytesByPath:
        """Gradients of the root's own that the head makes, whole until the end of backward, where they are
        reduced (_fsdp_state.py, _root_post_backward_final_callback).
        """
        if group is not self.head or self.reduced_rest is None:
            return EMPTY
        around = {module_of(h.path) for h in self.reduced_rest.parameters}
        return BytesByPath.of(pair for pair in group.gradients.held.items() if pair[0][1] in around)

    def unsharded(self, group: Group) -> tuple[Key, Count]:
        return _group_row_key(Component.UNSHARDED_PARAMETERS, group, "unsharded"), self.whole(group)

    @cached_property
    def outer(self) -> Callable[[Group | None], Group | None]:
        """A layer without the unit inside it: that is gathered when the layer runs, and reduced before it."""
        return cache(_without_inside)

    def arrived(self, group: Group | None) -> tuple[Key, Count]:
        """The all-gather's output."""
        return _group_row_key(Component.UNSHARDED_PARAMETERS, group, "all_gather"), self.sent(
            self.whole(group)
        )

    def came(self, group: Group | None) -> tuple[Key, Count]:
        """The all-gather's output in forward, where a tied root group is gathered first of all."""
        if self.rooted and group is self.embeddings:
            apart = self.root if self.joined else self.ends  # the root's own come by themselves
            return (Component.UNSHARDED_PARAMETERS, f"{ROOT}/all_gather"), self.sent(apart)
        return self.arrived(group)

    def sent(self, size: Count) -> Count:
        """A rank alone copies its shards into the parameters and needs no buffer
        (_fsdp_param_group.py:392-402, 437-461).
        """
        return where(at_least(self.plan.mesh.sharded, 2), size, 0)


def _without_inside(group: Group | None) -> Group | None:
    if group is None or not group.inside:
        return group
    inside = {h.path for h in group.inside}
    return replace(group, parameters=tuple(h for h in group.parameters if h.path not in inside), inside=())


def _group_row_key(component: Component, group: Group | None, what: str) -> Key:
    return component, f"{group.name if group else 'none'}/{what}"


def fsdp_wrapping(plan: Plan) -> UnitWrapping:
    """The library's groups as accelerate makes them, or an engine's own as its version does."""
    return engine_of(plan).unit_wrapping(plan.engine_version)


def _fsdp_groups(plan: Plan, walk: StageLayers) -> Groups:
    wrapped = fsdp_wrapping(plan)
    stays = wrapped.last_stays and plan.reshard_after_forward and walk.layers
    return Groups(
        plan,
        walk.embeddings,
        walk.head,
        walk.tied,
        joined=wrapped.joined,
        last=walk.layers[-1].pattern[-1] if stays else None,
        rest=_root_group(walk.embeddings, walk.rest),
        reduced_rest=_root_group(walk.embeddings, reduced_rest(walk)),
        returns_first=walk.layers[-1].pattern[-1] if gathers_before_loss(walk, plan) else None,
        comes_back=walk.embeddings if EMBEDDINGS in walk.idle_ends and not plan.adapter else None,
        loss_reduced=loss_reduces_table(plan, walk),
        reduces_last=reduces_surely_last(plan, engine_of(plan)),
        gathers_pieces=wrapped.loss_outside and plan.loss is Loss.CHUNKED and not wrapped.loss_reduces,
    )


def gathers_before_loss(walk: StageLayers, plan: Plan) -> bool:
    """Whether the last layer is gathered again before the loss is backward: the head's unit, of which no
    module ran, is done when the model is (torch 2.13 _fsdp_state.py, _force_complete_incomplete_states).
    """
    return walk.tied and HEAD in walk.idle_ends and bool(walk.layers) and plan.reshard_after_forward


def loss_reduces_table(plan: Plan, walk: StageLayers) -> bool:
    """Whether a tied table's gradient of the head is reduced before backward begins, where only that of the
    look-ups is to come.
    """
    return walk.tied and fsdp_wrapping(plan).loss_reduces and plan.loss is Loss.CHUNKED


def _root_group(embeddings: Group | None, parameters: tuple[HeldTensor, ...]) -> Group | None:
    """Parameters of no other group, whose forward comes with the embeddings'."""
    return replace(embeddings, name=ROOT, parameters=parameters) if embeddings and parameters else None


def per_parameter_overhead(
    plan: Plan, walk: StageLayers, *, gloo: bool, holds_reduced: bool = False
) -> ShardingOverhead:
    """What surrounds the groups of a stage. ``gloo``: what carries it, on a processor; ``holds_reduced``:
    what replicas have all-reduced stays until backward is over.
    """
    of = _fsdp_groups(plan, walk)
    if agreed(plan.mesh.pp > 1):
        return _pipelined_overhead(of, walk)
    through = (
        single_row(Component.UNSHARDED_PARAMETERS, f"{ROOT}/unsharded", of.root)
        if of.rooted or of.rest
        else EMPTY
    )
    kept = ShardingOverhead(
        through=through,
        entering=partial(_pre_forward_all_gather, of),
        forward=cache(partial(_forward_unsharded, of)),
        # a loss outside finds no gathered buffer any more (torch 2.5 and 2.13 _fsdp_state.py, _post_forward)
        at_loss=partial(_unsharded_past_forward, of) if fsdp_wrapping(plan).loss_outside else None,
        holds=cache(partial(_unsharded_past_forward, of)),
        backward=cache(partial(_backward_unsharded, of)),
        leaving=cache(partial(_reduce_scatter_peak, of)),
        leaves=of.leaves,
        lingers=cache(partial(_all_reduced, of)) if holds_reduced else None,
    )
    if not gloo or at_least(plan.mesh.sharded, 2) is False:
        unlike = len({id(group) for layers in walk.layers for group in layers.pattern}) > 1
        nested = any(group.inside for layers in walk.layers for group in layers.pattern)
        count = sum(layers.count * len(layers.pattern) for layers in walk.layers)
        begins = cache(partial(_backward_begins, of))
        return replace(kept, fetching=begins) if unlike or nested or agreed(count <= FEW_LAYERS) else kept
    copied = Copies(of)
    return replace(
        kept,
        entering=cache(copied.entering),
        reducing=cache(copied.reducing),
        fetching=cache(partial(copied.fetching, kept.backward)),
    )


def _pipelined_overhead(of: Groups, walk: StageLayers) -> ShardingOverhead:
    """Of a pipeline's stage, but for a head that a loss in chunks gathers for itself."""
    head = walk.head
    if head is None or not loss_reduces_head(of.plan):
        return pipelined_overhead(of.plan, walk, joined=of.joined)
    gathered, still = _forward_unsharded(of, None, head), _unsharded_past_forward(of, head)
    kept = pipelined_overhead(of.plan, replace(walk, head=None), joined=False)
    return replace(
        kept,
        leaves=lambda group: EMPTY if group is head else kept.leaves(group),
        forward=lambda _, group: gathered if group is head else EMPTY,
        at_loss=lambda _: still,
    )


def _pre_forward_all_gather(of: Groups, before: Group | None, group: Group) -> BytesByPath:
    """The all-gather before is only let go when the copy-out into the parameters is done
    (_fsdp_param_group.py:429-462: a local name still refers to it). Before the embeddings comes the root's.
    """
    if before is None and group is of.embeddings:
        root = of.came(group)
        own = (Component.UNSHARDED_PARAMETERS, f"{ROOT}/own"), of.sent(of.root - of.ends)
        return BytesByPath.of([own, root, of.unsharded(group)])
    last = of.outer(group) if group.inside else before
    return BytesByPath.of([of.came(last), of.arrived(group), of.unsharded(group)])


def _forward_unsharded(of: Groups, before: Group | None, group: Group) -> BytesByPath:
    """The last all-gather's output stays until the next one: a tied head gathers nothing, so it finds the
    last layer's.
    """
    return BytesByPath.of(
        [
            of.unsharded(group),
            of.came(before if group in of.rooted and before else group),
            *_unsharded_last_layer(of, group),
        ]
    )


def _unsharded_last_layer(of: Groups, group: Group) -> list[tuple[Key, Count]]:
    """A last layer that is still gathered when the head runs."""
    return [of.unsharded(of.last)] if of.last is not None and group is of.head else []


def _unsharded_past_forward(of: Groups, group: Group) -> BytesByPath:
    """Of the head it is what there is when the loss is backward. A group of which a module never runs is done
    when the model is (torch 2.13 _fsdp_state.py, _force_complete_incomplete_states): its backward begins with
    the loss, and the layer before comes then.
    """
    if not (of.keeps or group is of.comes_back or (group is of.head and not of.gathers_pieces)):
        return EMPTY
    ahead = [of.arrived(of.returns_first)] if of.returns_first and group is of.head else []
    return BytesByPath.of([of.unsharded(group), *_unsharded_last_layer(of, group), *ahead])


def _backward_unsharded(of: Groups, before: Group | None, group: Group, after: Group | None) -> BytesByPath:
    still = _unsharded_last_layer(of, group)
    fetched = still or [of.arrived(None if of.keeps else of.outer(before))]
    waits = of.reduced(of.outer(after))
    if of.reduces_last:  # what waited whole has gone since, and is as large: a rank's part is left
        waits = (Component.GRADIENTS, after.name if after else ROOT), ceil_div(waits[1], of.plan.mesh.sharded)
    return BytesByPath.of([of.unsharded(group), *fetched, waits])


FEW_LAYERS = 2
"""Layers of which the first has a plain head's gradients, or a like layer's alone, behind it: among more, the
second's backward has as much gathered, as much waiting, and gradients beside it.
"""


def _backward_begins(of: Groups, before: Group | None, group: Group, after: Group | None) -> BytesByPath:
    """A group's backward begins when what was gathered for it is copied out into its parameters, and with
    the group before being gathered ahead, from its shards, cast for it in one buffer (torch 2.13
    _fsdp_param_group.py, wait_for_unshard, which lets go of the all-gather's output; _fsdp_collectives.py,
    all_gather_copy_in). Where the group before is smaller, or its parameters are padded for the ranks, the
    first is the most. A unit inside a layer is gathered only now, by nothing ahead of it.
    """
    ahead, plan = None if of.keeps else of.outer(before), of.plan
    own = _backward_unsharded(of, before, group, after)
    if group.inside:
        return merge_moment([(1, own), (1, BytesByPath.of([of.arrived(None if of.keeps else group)]))])
    cast = (
        _group_row_key(Component.TEMPORARIES, ahead, "shards"),
        ceil_div(of.whole(ahead) * plan.precision.casts, plan.mesh.sharded),
    )
    copied_out = own if group is of.last else _backward_unsharded(of, group, group, after)
    return largest_moment_rows([[(1, own), (1, BytesByPath.of([cast]))], [(1, copied_out)]])


def _reduce_scatter_peak(of: Groups, before: Group | None, group: Group) -> BytesByPath:
    """The gradients beside the buffer they are copied into; or, when they are gone
    (_fsdp_collectives.py:603-608), the last of them and the buffer beside the reduced shard: the gradients
    that stay, or what is cast to them.
    """
    plan = of.plan
    if of.reduces_last:
        return _last_reduced(of, before, group)
    if of.joined and not of.tied and group is of.embeddings:
        return _root_leaving(of, group)
    if of.reduced_rest and group is of.embeddings:
        return _rest_leaving(of, group, of.reduced_rest)
    if of.loss_reduced and group is of.embeddings:
        return _table_leaving(of, group)
    shard = ceil_div(of.reduced(group)[1], plan.mesh.sharded)
    casts = plan.precision.reduce is not plan.precision.gradients
    own = (
        _group_row_key(Component.COMMUNICATION, group, "reduced_shard")
        if casts
        else (Component.GRADIENTS, group.name),
        shard,
    )
    cast = of.leaves(group).held.items() if casts else ()
    waits = of.arrived(None if of.keeps else of.outer(before)), of.reduced(group)
    copied, gone = (
        BytesByPath.of([*waits, *group.gradients.held.items(), *_root_left(of, group)]),
        BytesByPath.of([*waits, own, *cast, last_gradient_row(group, plan), *_root_left(of, group)]),
    )
    around = _around_inside(group) if group.inside else EMPTY
    return largest_moment_rows([[(1, copied), (1, around)], [(1, gone), (1, around)]])


def _all_reduced(of: Groups, group: Group) -> BytesByPath:
    """What an all-reduce over replicas was given, which each group holds until backward is over (torch 2.13
    _fsdp_param_group.py, _all_reduce_state, which finalize_backward lets go). The root's own come when it is.
    """
    if group in of.rooted:
        return EMPTY
    shard = ceil_div(of.reduced(group)[1], of.plan.mesh.sharded)
    size = where(at_least(of.plan.mesh.dp_replicate, 2), shard, 0)
    return BytesByPath.of([(_group_row_key(Component.COMMUNICATION, group, "all_reduce"), size)])


def holds_all_reduced(plan: Plan, engine: Engine) -> bool:
    """Whether what replicas all-reduce is no gradient itself: it is added to those of earlier micro-batches,
    or cast to their dtype (torch 2.13 _fsdp_collectives.py, foreach_reduce).
    """
    added = accumulates_gradients(plan, engine) and not reduces_surely_last(plan, engine)
    casts = plan.precision.reduce is not plan.precision.gradients
    return (added or casts) and at_least(plan.mesh.dp_replicate, 2) is not False


def adds_on_arrival(plan: Plan, engine: Engine) -> bool:
    """Whether gradients that wait whole are autograd's own, which adds each as it is made: where they need
    not be made wider for the reduction (torch 2.13 _fsdp_param.py, to_accumulated_grad_if_needed).
    """
    same = plan.precision.reduce is plan.precision.compute
    return same and reduces_surely_last(plan, engine) and accumulates_gradients(plan, engine)


def _last_reduced(of: Groups, before: Group | None, group: Group) -> BytesByPath:
    """Where only a step's last micro-batch reduces gradients: its own are added to those that wait whole, and
    have gone when these are copied into the buffer (torch 2.13 _fsdp_param.py, accumulate_unsharded_grad_if_
    needed). The embeddings' come when nothing else waits.
    """
    if group is of.embeddings:
        return EMPTY
    ahead = of.arrived(None if of.keeps else of.outer(before))
    added, copied = (
        BytesByPath.of([ahead, *group.gradients.held.items()]),
        BytesByPath.of([ahead, of.reduced(group)]),
    )
    around = _around_inside(group) if group.inside else EMPTY
    if of.plan.precision.reduce is of.plan.precision.compute:
        return merge_moment([(1, copied), (1, around)])  # each was added when it was made
    return largest_moment_rows([[(1, added), (1, around)], [(1, copied), (1, around)]])


def _around_inside(group: Group) -> BytesByPath:
    """What the rest of a layer still has to run backward with when the unit inside it is reduced, and the
    gradient that it is handed.
    """
    unit = commonpath(module_of(h.path).replace(".", "/") for h in group.inside).replace("/", ".")
    around = [(key, size) for key, size in group.plain.retained.held.items() if not key[1].startswith(unit)]
    kept = [(key, size) for key, size in around if not key[1].endswith("/output")]  # what the unit was handed
    handed = sum(size for _, size in around) - sum(size for _, size in kept)
    return BytesByPath.of([*kept, ((Component.TEMPORARIES, f"{unit}/input"), handed)])


def _root_left(of: Groups, group: Group) -> list[tuple[Key, Count]]:
    """The root's own, gone when the embeddings of a group of their own are reduced: what they look up needs
    no gradient, so that both wait for the end of backward, where the root comes first (torch 2.13
    _fsdp_state.py:405-415).
    """
    if group is not of.embeddings or of.tied or of.plan.adapter:
        return []
    return [((Component.UNSHARDED_PARAMETERS, f"{ROOT}/unsharded"), of.ends - of.root)]


def _rest_leaving(of: Groups, group: Group, rest: Group) -> BytesByPath:
    """The end of backward, where the root's own gradients are reduced, first of all that wait for it: those
    of the embeddings are still whole (_fsdp_state.py, _root_post_backward_final_callback). Of a tied table
    there is one gradient by then.
    """
    buffer = (Component.COMMUNICATION, f"{ROOT}/reduce_scatter"), reduce_input_bytes(rest, of.plan)
    gone = (Component.UNSHARDED_PARAMETERS, f"{ROOT}/unsharded"), of.ends - of.root
    waited = of.head.gradients.held.items() if of.head and of.tied else ()
    joined = ((key, -size) for key, size in waited if key[0] is Component.TEMPORARIES)
    return BytesByPath.of([buffer, gone, of.unsharded(group), *group.gradients.held.items(), *joined])


def _table_leaving(of: Groups, group: Group) -> BytesByPath:
    """The end of backward of a tied table of which the loss has reduced the head's gradient: the look-ups' is
    reduced with the final norm's, and what is left of it is added to what is there. The table is freed
    before (torch 2.13 _fsdp_param_group.py, post_backward).
    """
    size = sum(reduce_input_bytes(each, of.plan) for each in of.rooted if each)
    buffer = _group_row_key(Component.COMMUNICATION, group, "reduce_scatter"), size
    freed = (Component.UNSHARDED_PARAMETERS, f"{ROOT}/unsharded"), -of.root
    shard = (
        _group_row_key(Component.COMMUNICATION, group, "reduced_shard"),
        ceil_div(size, of.plan.mesh.sharded),
    )
    norms = of.head.gradients.held.items() if of.head else ()
    gone = ((key, -n) for key, n in norms)
    return largest_moment_rows([
        [(1, BytesByPath.of([buffer, freed, *group.gradients.held.items()]))],
        [(1, BytesByPath.of([buffer, freed, shard, *gone]))],
    ])  # fmt: skip


def _root_leaving(of: Groups, group: Group) -> BytesByPath:
    """The end of backward, where the root's gradients are reduced: those of the head waited for it. Its
    parameters are freed before (torch 2.13 _fsdp_param_group.py, post_backward), and the last gradient goes
    last, as any group's.
    """
    size = sum(reduce_input_bytes(each, of.plan) for each in of.rooted if each)
    buffer, shard = (
        _group_row_key(Component.COMMUNICATION, group, "reduce_scatter"),
        (Component.GRADIENTS, ROOT),
    )
    freed = (Component.UNSHARDED_PARAMETERS, f"{ROOT}/unsharded"), -of.root
    whole = [pair for each in of.rooted if each for pair in each.gradients.held.items()]
    copied = BytesByPath.of([(buffer, size), freed, *group.gradients.held.items()])
    gone = BytesByPath.of(
        [
            (buffer, size),
            freed,
            (shard, ceil_div(size, of.plan.mesh.sharded)),
            *(last_gradient_row(each, of.plan) for each in of.rooted[-1:] if each),
            *((key, -n) for key, n in whole if key not in group.gradients.held),
        ]
    )
    return largest_moment_rows([[(1, copied)], [(1, gone)]])


# ---- over gloo ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Copies:
    """Gloo works on copies (ProcessGroupGloo.cpp of torch 2.4, :1968-1975 for a reduce-scatter, which
    all-reduces a clone; AllgatherWork for a gather, whose parts arrive in one flat tensor).
    """

    of: Groups

    def _shards(self, group: Group | None) -> tuple[Key, Count]:
        """What a rank sends: its own, cast."""
        plan = self.of.plan
        return _group_row_key(Component.TEMPORARIES, group, "shards"), ceil_div(
            self.of.whole(group) * plan.precision.casts, plan.mesh.sharded
        )

    def _copy(self, group: Group | None) -> tuple[Key, Count]:
        return _group_row_key(Component.COMMUNICATION, group, "gloo_all_gather"), self.of.whole(group)

    def entering(self, before: Group | None, group: Group) -> BytesByPath:
        """While it is gathered: the copy is there, and the parameters, which are as large, are not yet."""
        return BytesByPath.of(
            [self.of.came(before), self.of.arrived(group), self._copy(group), self._shards(group)]
        )

    def fetching(
        self,
        backward: Callable[[Group | None, Group, Group | None], BytesByPath],
        before: Group | None,
        group: Group,
        after: Group | None,
    ) -> BytesByPath:
        ahead = None if self.of.keeps else before
        return merge_moment(
            [
                (1, backward(before, group, after)),
                (1, BytesByPath.of([self._copy(ahead), self._shards(ahead)])),
            ]
        )

    def reducing(self, before: Group | None, group: Group) -> BytesByPath:
        """The gradients but the last are gone: their copy, its clone, and the shard that comes of it; the
        next parameters are there. A root group is resharded by then.
        """
        of, is_root = self.of, group in self.of.rooted
        size = sum(reduce_input_bytes(each, of.plan) for each in (of.rooted if is_root else (group,)) if each)
        sizes = {
            "reduce_scatter": size,
            "gloo_reduce_scatter": size,
            "reduced_shard": ceil_div(size, of.plan.mesh.sharded),
        }
        held = [(_group_row_key(Component.COMMUNICATION, group, name), size) for name, size in sizes.items()]
        gone = (Component.UNSHARDED_PARAMETERS, f"{ROOT}/unsharded"), -of.root if is_root else 0
        return BytesByPath.of(
            [
                of.arrived(None if of.keeps else before),
                gone,
                *held,
                *(() if is_root else (last_gradient_row(group, of.plan),)),
            ]
        )


# ---- the algorithm -----------------------------------------------------------------------------------------


def _engine_overhead(
    plan: Plan, engine: Engine, _: tuple[HeldTensor, ...], stage: StageLayers
) -> ShardingOverhead:
    rooted = engine.roots_frozen_ends and plan.adapter is not None
    stage = replace(stage, tied=True) if rooted else stage
    return per_parameter_overhead(
        plan, stage, gloo=engine.processor, holds_reduced=holds_all_reduced(plan, engine)
    )


def _offloaded(
    kept: ResidentState, plan: Plan, stage: StageLayers, parameters: tuple[HeldTensor, ...]
) -> ResidentState:
    return with_hosted_activations(cpu_offload_resident_state(kept, plan, parameters), stage)


def _grouping_notes(model: ModelSpec) -> tuple[str, ...]:
    """What does not run of the groups that accelerate makes, and what to name for whole layers."""
    said = model.recording.regrouped if model.recording else ""
    return (*wrapping_notes(model), *((said,) if said else ()))


def _padding_notes(parameters: tuple[HeldTensor, ...], plan: Plan) -> tuple[str, ...]:
    """That a tensor with fewer rows than there are ranks is gathered at as many rows as ranks, where this
    is more than the others are in all (_fsdp_param.py:298-320, 616-628).
    """
    ranks = plan.mesh.sharded
    if not isinstance(ranks, int) or not plan.zero:
        return ()
    short = [held for held in parameters if isinstance(held.shape[0], int) and 1 < held.shape[0] < ranks]
    whole, padded = (
        sum(int(size(held)) * int(held.times) for held in short)
        for size in (lambda held: held.elements, lambda held: dim0_gathered(held.shape, ranks))
    )
    if padded - whole <= sum(int(held.elements) * int(held.times) for held in parameters):
        return ()
    widest = max(short, key=lambda held: int(held.elements))
    rows = int(widest.shape[0])
    told = (
        f"fully_shard divides a tensor's first dimension alone: {module_of(widest.path)} has {rows} there, "
        f"of which {ranks:,} ranks gather {ranks:,}, {ranks / rows:,.1f} times the tensor; {rows} ranks are "
        "the most that divide it (--dp-replicate for the rest), and other engines divide every element"
    )
    return (told,)


ALGORITHM = algorithm_by_tensor(
    Division(
        overhead=_engine_overhead,
        accumulates_whole=adds_on_arrival,
        shard=lambda held, plan: dim0_shard(held.shape, plan.mesh.sharded),
        gradients=all_sharded_gradients,
        waiting=unsynced_gradient_bytes,
        gathered=lambda held, plan: dim0_gathered(held.shape, plan.mesh.sharded),
        offloaded=_offloaded,
        root_weights=root_group_tensors,
        root_gather=root_gather_buffer,
        beside_gradients=gradients_beside_layers,
        notes=_grouping_notes,
        padding_notes=_padding_notes,
    ),
    Traffic(copies_gathered=True),  # _fsdp_collectives.py, split_with_sizes_copy
)
