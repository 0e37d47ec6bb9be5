"""What fully_shard keeps around the layers of a pipeline's stage: units are gathered by the first micro-batch
and stay until the last one's gradients have been reduced (torch 2.13 distributed/pipelining/stage.py,
backward_maybe_with_nosync and perform_reduce_grad); with reshard_after_forward each goes from a forward to
its backward, which gathers it again and leaves it for the next forward.
"""

from __future__ import annotations

from functools import partial

from memsheet.arith import at_least, where
from memsheet.formulas.groups import Group, StageLayers
from memsheet.formulas.sharding.overhead import ShardingOverhead, single_row
from memsheet.formulas.sharding.per_parameter_sizes import (
    gathered_bytes,
    reduce_input_bytes,
    unsynced_gradient_bytes,
)
from memsheet.formulas.states.gradients import UNSYNCED
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath, merge_moment
from memsheet.frozen import replace
from memsheet.plan.plan import Plan
from memsheet.references import TORCH_FSDP2, formula
from memsheet.sheet import Component


@formula(
    cites=TORCH_FSDP2,
    at=(
        "_fsdp_param_group.py, unshard and post_backward: what is gathered is not gathered again, and "
        "without reshard_after_backward it stays; at the end one group after another is reduced"
    ),
)
def pipelined_overhead(plan: Plan, walk: StageLayers, *, joined: bool) -> ShardingOverhead:
    """Every unit gathered through the step, and the first one's gradients beside the buffer that they are
    reduced in, in bytes. No gathered buffer is there any more when gradients wait, unless forward lets go of
    units: then backward gathers the one before ahead. ``joined``: the head's are added with the root's, when
    all others are.
    """
    layers = [(run.count, group) for run in walk.layers for group in run.pattern]
    ends = [(1, group) for group in (walk.embeddings, walk.head) if group]
    groups = [*ends, *layers]
    whole = merge_moment([(times, _unsharded_row(group, plan)) for times, group in groups])
    first = walk.embeddings or layers[0][1] if groups else None
    end = EMPTY if first is None else BytesByPath.of(
        [
            ((Component.COMMUNICATION, f"{first.name}/reduce_scatter"), reduce_input_bytes(first, plan)),
            ((Component.UNSHARDED_PARAMETERS, f"{first.name}/unsharded"), -gathered_bytes(first, plan)),
        ]
    )  # fmt: skip
    of_root = walk.head.gradients if joined and walk.head else EMPTY

    frees = plan.reshard_after_forward

    def waiting(before: Group | None, group: Group, *_: Group | None) -> BytesByPath:
        ahead = [(1, gathered_again(before, plan))] if frees and before else []
        return merge_moment([(1, EMPTY if group is walk.head else of_root), *ahead])

    def let_go(group: Group) -> BytesByPath:
        return EMPTY if group is walk.head else merge_moment([(-1, _unsharded_row(group, plan))])

    same = plan.precision.reduce is plan.precision.compute  # each is added when it is made

    def leaving(before: Group | None, group: Group) -> BytesByPath:
        made = EMPTY if same else group.gradients
        return merge_moment([(1, made), (1, waiting(before, group))])

    found = ShardingOverhead(
        through=whole,
        backward=waiting,
        leaving=leaving,
        leaves=partial(waiting_gradients, plan),
        end=end,
    )
    return replace(found, holds=let_go) if frees else found


def _unsharded_row(group: Group, plan: Plan) -> BytesByPath:
    return single_row(Component.UNSHARDED_PARAMETERS, f"{group.name}/unsharded", gathered_bytes(group, plan))


def gathered_again(group: Group, plan: Plan) -> BytesByPath:
    """The all-gather's output of a unit that backward comes to next. A rank alone needs none."""
    size = where(at_least(plan.mesh.sharded, 2), gathered_bytes(group, plan), 0)
    return single_row(Component.UNSHARDED_PARAMETERS, f"{group.name}/all_gather", size)


def waiting_gradients(plan: Plan, group: Group) -> BytesByPath:
    """What the first micro-batch leaves of a unit's."""
    return single_row(*UNSYNCED, unsynced_gradient_bytes(group.parameters, plan))
