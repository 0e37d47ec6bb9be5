"""A model's own stacks, without those of a tower that pictures pass through."""

from __future__ import annotations

from memsheet.formulas.model_code.transformers.families import is_t5, of_tower
from memsheet.formulas.states.params import JOIN
from memsheet.plan.model import Attention, Block, ModelSpec, Stack


def has_pictures(spec: ModelSpec) -> bool:
    """Whether pictures pass through a tower of its."""
    return any(stack.role == JOIN for stack in spec.stacks)


def reads_other_stack(spec: ModelSpec) -> bool:
    """Whether a decoder reads what an encoder made."""
    return any(is_t5(block.kind) for block in language_blocks(spec))


def language_blocks(spec: ModelSpec) -> list[Block]:
    """Those of the model itself; a tower's are accounted beside them."""
    return [block for stack in language_stacks(spec) for run in stack.runs for block in run.pattern]


def language_stacks(spec: ModelSpec) -> list[Stack]:
    """The stacks that are no part of a tower."""
    return (
        [stack for stack in spec.stacks if not of_tower(stack.runs[0].pattern[0].kind)]
        if has_pictures(spec)
        else list(spec.stacks)
    )


def attention_mixers(spec: ModelSpec) -> list[tuple[str, Attention]]:
    return [
        (block.kind, m) for block in language_blocks(spec) for m in block.mixers if isinstance(m, Attention)
    ]
