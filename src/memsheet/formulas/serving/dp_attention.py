"""Data-parallel attention: what one group of a server's ranks has, and what all groups do together.

A group attends to requests of its own and keeps their cache. Experts are of all groups: before a layer of
them every rank is given the tokens of all groups, and after it its own group's sums. An engine may do so for
every feed-forward layer, and cut the output matrix over all ranks too.
"""

from __future__ import annotations

from memsheet.arith import Count, maximum
from memsheet.formulas.serving.stages import same_again
from memsheet.frozen import replace
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import Block, Moe
from memsheet.plan.plan import Plan
from memsheet.references import DEEPEP_BUFFERS, PAGED_SERVER_CODE, formula


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
        or plan.serving.max_sequences is None
        or plan.serving.max_batched_tokens is None
    ):
        return replace(plan, mesh=mesh)
    serving = replace(
        plan.serving,
        max_sequences=max(1, int(plan.serving.max_sequences) // groups),
        max_batched_tokens=max(1, int(plan.serving.max_batched_tokens) // groups),
    )
    return replace(plan, mesh=mesh, workload=serving, options=plan.options.of_one_group(groups))


def forward_paths(block: Block) -> frozenset[str]:
    """Paths of a block's feed-forward weights, a shared expert's among them."""
    layer = block.feed_forward
    shared = layer.shared.weights if isinstance(layer, Moe) and layer.shared else ()
    return frozenset(weight.path for weight in (*(layer.weights if layer else ()), *shared))


def gathers_all(plan: Plan) -> bool:
    """Whether every feed-forward layer is cut over all groups, not experts alone."""
    return engine_of(plan).serving.cuts_dense_over_groups and bool(plan.mesh.attn_dp > 1)


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 layers/fused_moe/config.py:1207 experts over tp · dp ranks, all2all.py:116 the tokens of "
        "all of them gathered (the usual backend)"
    ),
)
def groups_sharing_experts(plan: Plan) -> Count:
    """Groups of tensor-parallel ranks whose tokens go to the same experts: one, unless experts are cut or
    dealt over several (dp_attention).
    """
    return maximum(1, maximum(plan.mesh.ep, plan.mesh.etp) // maximum(1, plan.mesh.tp))


SENT = "deepep"
"""The way on which a token goes to the ranks of its experts alone, and not to all."""


@formula(
    cites=DEEPEP_BUFFERS,
    at="deep_ep/buffers/legacy.py dispatch: a token goes to the ranks of its experts alone",
)
def gathered_groups(plan: Plan) -> Count:
    """Groups whose tokens come together on every rank: all that share experts, unless tokens are sent."""
    return 1 if plan.options.dispatch == SENT else groups_sharing_experts(plan)
