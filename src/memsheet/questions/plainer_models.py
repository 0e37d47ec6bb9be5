"""A plainer model in the place of one whose layers an engine has code of its own for that nobody accounts:
the language model without its towers, attention without what is particular to it. Its parameters are the same
but for the towers'; what stands in is told, and no verdict is sure.
"""

from __future__ import annotations

from collections.abc import Iterable

from memsheet.errors import Problem
from memsheet.formulas.states.params import tower_tensors
from memsheet.frozen import replace
from memsheet.patterns import late_pattern
from memsheet.plan.model import Attention, Block, LinearAttention, ModelSpec, Stack
from memsheet.plan.plan import Plan

UNRECORDED = "has no layers written down here"
"""Of a model that an engine runs by its own code, where that cannot be put on record."""
TOWER, LAYERS = "vision tower is not modelled", late_pattern(r"layers of \S+ are not modelled")


def plainer_model(spec: ModelSpec, problems: Iterable[Problem]) -> tuple[ModelSpec, str] | None:
    """The model that stands in for one that is refused, and what is told of it; None where none does."""
    of_model = [problem for problem in problems if problem.field in ("model", "model_type")]
    reasons = [problem.reason for problem in of_model]
    made, told = spec, list[str]()
    if any(TOWER in reason or UNRECORDED in reason for reason in reasons) and spec.towers:
        count = sum(weight.elements * times for _, weight, times in tower_tensors(spec))
        made = _without_towers(made)
        told.append(f"the language model alone, without {count / 1e9:.2f} B parameters of its towers")
    if any(LAYERS.search(reason) for reason in reasons):
        made = replace(made, stacks=tuple(map(_with_plain_attention, made.stacks)))
        told.append("plain attention in each layer, with the layer's own parameters")
    if not told:
        return None
    hint = f" ({of_model[0].hint})" if UNRECORDED in reasons[0] and of_model[0].hint else ""
    return made, f"the sheet is of {' and '.join(told)}: {spec.name} {reasons[0]}{hint}"


def tower_state_bytes(spec: ModelSpec, plan: Plan) -> int:
    """Bytes that a model's towers add to a rank at the most, whether they train or not, where a job is of
    text alone: their states as the plan divides them, and all of them gathered at once.
    """
    count = sum(weight.elements * times for _, weight, times in tower_tensors(spec))
    held, stage = plan.precision, 0 if plan.zero is None else int(plan.zero)
    ranks = int(plan.mesh.dp_shard)
    after_first, after_second, after_third = (ranks if stage >= least else 1 for least in (1, 2, 3))
    moments = 2 * held.moments.nbytes(count)
    master = held.master_weights.nbytes(count) if held.master_weights else 0
    parts = (
        (held.parameters.nbytes(count), after_third),
        (held.gradients.nbytes(count), after_second),
        (master + moments, after_first),
        (held.compute.nbytes(count), 1),
    )
    return sum(-(-int(size) // over) for size, over in parts)


def _without_towers(spec: ModelSpec) -> ModelSpec:
    own = tuple(f"{tower.path}." for tower in spec.towers)
    return replace(
        spec, towers=(), extras=tuple(weight for weight in spec.extras if not weight.path.startswith(own))
    )


def _with_plain_attention(stack: Stack) -> Stack:
    blocks = [block for run in stack.runs for block in run.pattern]
    known = [mixer for block in blocks for mixer in block.mixers if isinstance(mixer, Attention)]
    if not known:
        return stack
    return replace(
        stack,
        runs=tuple(
            replace(run, pattern=tuple(_plain_block(block, known[0]) for block in run.pattern))
            for run in stack.runs
        ),
    )


def _plain_block(block: Block, other: Attention) -> Block:
    """``other``: what stands in for a mixer that is no attention."""
    if len(block.mixers) != 1:
        return block
    own = block.mixers[0]
    if isinstance(own, LinearAttention):
        own = replace(other, path=own.path, weights=own.weights, qk_norm=None)
    if not isinstance(own, Attention):
        return block
    plain = replace(own, sinks=False, gated_output=False, position_bias=False, chunk=None, softcap=None)
    return replace(block, mixers=(plain,))
