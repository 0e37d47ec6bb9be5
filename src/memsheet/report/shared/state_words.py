"""What a model state is of, in a few words: its dtype, what trains, and how the mesh divides it."""

from __future__ import annotations

from memsheet.arith import Count, agreed
from memsheet.formulas.sharding.distributed_optimizer import state_ranks
from memsheet.formulas.states.gradients import reduces_surely_last
from memsheet.formulas.states.held import packs_whole
from memsheet.formulas.states.optimizers import keeps_wide_moments, quantizes_all_moments
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.layers import has_experts
from memsheet.plan.model import ModelSpec, Role
from memsheet.plan.plan import EIGHT_BITS, PAGED, Adapter, AdapterKind, GradientSync, OptimizerName, Plan
from memsheet.sheet import Component

SHARDED_FROM = {
    Component.OPTIMIZER_STATES: 1,
    Component.MASTER_WEIGHTS: 1,
    Component.GRADIENTS: 2,
    Component.PARAMETERS: 3,
}
"""The zero stage from which dp_shard splits a component (ZeRO, arXiv:1910.02054, section 5)."""

MOMENTS = {
    **dict.fromkeys(PAGED - EIGHT_BITS, "moments of small tensors, others in pages"), **dict.fromkeys(PAGED & EIGHT_BITS, "maxima of 8-bit moments, which are in pages"),
    OptimizerName.ADAMW: "two {dtype} moments", OptimizerName.ADAMW_8BIT: "two moments in 8 bits", OptimizerName.ADAMW_4BIT: "two moments in 4 bits",
    OptimizerName.ADEMAMIX: "three fp32 moments", OptimizerName.ADEMAMIX_8BIT: "three moments in 8 bits",
    OptimizerName.RMSPROP: "one {dtype} moment", OptimizerName.RMSPROP_8BIT: "one moment in 8 bits", OptimizerName.ADAGRAD: "one {dtype} sum of squares",
    OptimizerName.LION: "one {dtype} moment", OptimizerName.LION_8BIT: "one moment in 8 bits",
    OptimizerName.SGD: "none but scalars", OptimizerName.SGD_MOMENTUM: "one {dtype} moment",
    OptimizerName.ADAFACTOR: "second moments as rows and columns", OptimizerName.MUON: "one {dtype} moment of matrices, two of the rest",
    OptimizerName.ADAM_MINI: "one {dtype} moment and a second one a block", OptimizerName.GALORE: "two {dtype} moments of projections",
    OptimizerName.LORA_FA: "two {dtype} moments of the second matrices",
}  # fmt: skip
"""What an optimizer keeps between steps."""

EIGHT_BIT = EIGHT_BITS - PAGED

TRAINED = {
    AdapterKind.LN_TUNING: "of the norms' copies", AdapterKind.P_TUNING: "of the tokens and the network that makes them",
    AdapterKind.PROMPT_TUNING: "of the tokens", AdapterKind.PREFIX_TUNING: "of the keys and values",
    AdapterKind.PROJECTED_PREFIX: "of the prefix and the network that makes it",
}  # fmt: skip
"""What trains beside a frozen base, where that is no adapter of a layer."""


def sharding_axis_words(
    component: Component, plan: Plan, model: ModelSpec, *, at_step: bool = False
) -> tuple[str, ...]:
    """How the mesh splits a state; the axes that do not are left out. Experts have ranks of their own where
    the mesh has axes for them. ``at_step``: at the optimizer's step, when no gradient is whole.
    """
    mesh, words = plan.mesh, list[str]()
    whole = waits_whole(component, plan) and not at_step
    sharded = shares_of_state(component, plan, at_step=at_step)
    apart = has_experts(model) and agreed((mesh.ep > 1) | (mesh.etp != mesh.tp))
    routed = _expert_shares(plan, sharded, divided=_is_divided(component, plan)) if apart else sharded
    if whole:
        words.append("whole until the last micro-batch")
    elif routed != sharded:
        words.append(f"dense {_share_words(sharded)}, experts {_share_words(routed)} on each rank")
    elif sharded > 1 and component is Component.PARAMETERS and packs_whole(plan):
        words.append(f"packed numbers whole on each rank, the rest 1/{sharded}")
    elif sharded > 1:
        words.append(f"1/{sharded} on each rank")
    elif mesh.data_parallel > 1:
        words.append("a whole copy on each rank")
    if not whole and sharded > 1 and component is Component.PARAMETERS and plan.gathers.secondary_shard > 1:
        words.append(f"and 1/{plan.gathers.secondary_shard} again for gathers inside a node")
    if mesh.tp > 1:
        words.append(f"{'dense ' * apart}split over tp {mesh.tp}")
    if mesh.attn_dp > 1:
        words.append("attention whole" if mesh.attention_tp == 1 else f"attention over {mesh.attention_tp}")
    if apart:
        over = [f"{axis} {size}" for axis, size in (("ep", mesh.ep), ("etp", mesh.etp)) if size > 1]
        words.append(f"experts over {' and '.join(over)}" if over else "experts whole")
    if mesh.pp > 1:
        words.append("of this stage's layers")
    return tuple(words)


def _share_words(ranks: Count) -> str:
    return f"1/{ranks}" if ranks > 1 else "whole"


def _expert_shares(plan: Plan, dense: Count, *, divided: bool) -> Count:
    """Ranks that divide the experts' part of a state: those that have the same ones, where the engine splits
    experts apart from the rest of a layer.
    """
    if not divided or "etp" not in engine_of(plan).axes:
        return dense
    return state_ranks(plan.mesh, Role.EXPERT, plan.zero)


def waits_whole(component: Component, plan: Plan) -> bool:
    """Whether a state is gradients that no rank has reduced before the last micro-batch."""
    return component is Component.GRADIENTS and reduces_surely_last(plan, engine_of(plan))


def _is_divided(component: Component, plan: Plan) -> bool:
    # parameters rest in shards, however long they stay gathered
    gathers = plan.zero >= 2 and engine_of(plan).sharding.gathers
    return gathers or plan.zero >= SHARDED_FROM[component]


def shares_of_state(component: Component, plan: Plan, *, at_step: bool = False) -> Count:
    """Data-parallel ranks that divide a state between them, before the last micro-batch."""
    whole = waits_whole(component, plan) and not at_step
    return plan.mesh.dp_shard * plan.mesh.cp if not whole and _is_divided(component, plan) else 1


def parameter_dtype_words(plan: Plan) -> str:
    """The dtype of a model's parameters, and of what is beside a frozen one."""
    base = plan.quantization.weights.name if plan.quantization else plan.precision.parameters.name
    adapter = plan.adapter
    if adapter is None:
        return base
    words = f"frozen {base} base, {_words_beside_base(adapter)}"
    if adapter.full_modules:
        words += f", {plan.precision.parameters.name} copies of {' and '.join(adapter.full_modules)}"
    return words


def _words_beside_base(adapter: Adapter) -> str:
    dtype, length = adapter.dtype.name, adapter.prompt_length
    made = f", made by a network {adapter.encoder_width:,} wide" if adapter.encoder_width else ""
    if adapter.kind is AdapterKind.IA3:
        return f"{dtype} factors"
    if adapter.kind is AdapterKind.OFT:
        return f"{dtype} rotations of {adapter.block_size} inputs"
    if adapter.kind.before_text:
        return f"{length} {dtype} tokens before every sequence{made}"
    if adapter.kind is AdapterKind.LN_TUNING:
        return "copies of norms"
    if adapter.kind.before_keys:
        return f"{length} learned keys and values a layer{made}"
    size = f"{length} prompts a layer" if adapter.kind.prompts else f"rank {adapter.rank}"
    return f"{dtype} adapters of {size}"


def gradient_dtype_words(plan: Plan) -> tuple[str, ...]:
    """What waits unreduced has the dtype that autograd made it in, beside other shards: none is said."""
    waits = plan.gradient_sync is GradientSync.LAST
    return _words_of_trained("" if waits else "{dtype}", plan.precision.gradients.name, plan)


def optimizer_moment_words(plan: Plan) -> tuple[str, ...]:
    """What the optimizer keeps, of what, and in which dtype."""
    if plan.optimizer is None:
        return ("of the adapters",) if plan.adapter else ()
    name, wide = plan.optimizer.name, keeps_wide_moments(plan)
    if name in EIGHT_BIT and not quantizes_all_moments(plan) and plan.adapter is None:
        return (f"{MOMENTS[name]} (fp32 of embeddings)",)
    return _words_of_trained(MOMENTS[name], "fp32" if wide else plan.precision.moments.name, plan, alike=wide)


def _words_of_trained(words: str, dtype: str, plan: Plan, *, alike: bool = False) -> tuple[str, ...]:
    """``words`` with their dtype, of what trains. Copies of whole modules have the base's dtype, and so have
    their gradients and moments (``formulas/states/held.py``); ``alike``: all are kept in one dtype.
    """
    adapter = plan.adapter
    if adapter is None:
        return (words.format(dtype=dtype),)
    of, copies = TRAINED.get(adapter.kind, "of the adapters"), plan.precision.parameters.name
    if not adapter.full_modules:
        return words.format(dtype=dtype), of
    if alike or copies == dtype or "{dtype}" not in words:
        return words.format(dtype=dtype), f"{of} and the copies"
    return words.replace("{dtype}", "").replace("  ", " ").strip(), f"{dtype} {of}, {copies} of the copies"
