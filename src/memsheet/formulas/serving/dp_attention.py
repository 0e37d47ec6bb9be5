"""Data-parallel attention: what one group of a server's ranks has, and what all groups do together.

A group attends to requests of its own and keeps their cache. Experts are of all groups: before a layer of
them every rank is given the tokens of all groups, and after it its own group's sums. An engine may do so for
every feed-forward layer, and cut the output matrix over all ranks too.
"""

from __future__ import annotations

from dataclasses import replace

from memsheet.formulas.serving.stages import same_again
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import Block, Moe
from memsheet.plan.plan import Plan


def group_plan(plan: Plan) -> Plan:
    """The plan of one group alone: its ranks cut attention, and it is one of so many replicas that share
    experts over more ranks than its own.

    Where the engine's limits are of all groups, a chunk of a prompt and the requests that may run are
    divided.
    """
    return plan if plan.mesh.attn_dp == 1 else _attention_group_plan(plan)


@same_again
def _attention_group_plan(plan: Plan) -> Plan:
    groups = int(plan.mesh.attn_dp)
    mesh = replace(
        plan.mesh, dp_replicate=plan.mesh.dp_replicate * groups, tp=plan.mesh.attention_tp, attn_dp=1
    )
    if (
        not engine_of(plan).serving.limits_all_groups
        or plan.max_sequences is None
        or plan.max_batched_tokens is None
    ):
        return replace(plan, mesh=mesh)
    asked = max(1, int(plan.max_sequences) // groups)
    slots = None if plan.state_slots is None else max(1, plan.state_slots // groups)
    return replace(
        plan,
        mesh=mesh,
        state_slots=slots,
        max_sequences=asked,
        max_batched_tokens=max(1, int(plan.max_batched_tokens) // groups),
    )


def forward_paths(block: Block) -> frozenset[str]:
    """Paths of a block's feed-forward weights, a shared expert's among them."""
    layer = block.feed_forward
    shared = layer.shared.weights if isinstance(layer, Moe) and layer.shared else ()
    return frozenset(weight.path for weight in (*(layer.weights if layer else ()), *shared))


def gathers_all(plan: Plan) -> bool:
    """Whether every feed-forward layer is cut over all groups, not experts alone."""
    return engine_of(plan).serving.cuts_dense_over_groups and bool(plan.mesh.attn_dp > 1)
