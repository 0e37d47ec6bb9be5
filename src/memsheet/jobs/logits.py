"""Whole logits that a framework makes outside the model's own loss, and a training step around them.

Where they are learnt from, they and their gradients are there when backward begins: all inputs of layers are
saved then, nothing is recomputed yet, and this step has given no gradient. What backward needs later is
without them.
"""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.frozen import replace
from memsheet.jobs.forward import CAST, cast_output_matrix
from memsheet.plan.job import Logits, Role
from memsheet.plan.plan import Plan
from memsheet.sheet import NOTHING, Bytes, Component, Derived, Instant, Item, Sheet

INPUTS = Derived("saved for the gradient of the output matrix")
OWN_LOSS = "loss"
"""How paths of the model's own loss begin, in whose place the framework's stands."""


def logits_item(role: Role, plan: Plan, logits: Logits, *, learnt: bool) -> Item:
    """Logits of a phase, of a rank's part of the vocabulary where ranks divide it; and of its part of the
    sequence, where nobody says how many tokens they are of. ``learnt``: whether a gradient of them is made.
    """
    words = role.model.head.width
    elements = positions(plan, logits) * -(-int(words) // int(plan.mesh.tp))
    each = logits.per_logit + Bytes.exact(int(_capped_bytes(role, plan)) if learnt else 0)
    size = Bytes(elements * each.low, elements * each.value, elements * each.high) if elements else NOTHING
    return Item(Component.TEMPORARIES, "logits", {Instant.LOSS: size}, Derived(logits.why))


def positions(plan: Plan, logits: Logits) -> int:
    """Tokens of a rank that have logits."""
    job = plan.training
    brought = int(job.microbatch) * -(-int(job.length) // int(plan.mesh.cp))
    return brought if logits.tokens is None else logits.tokens


def _capped_bytes(role: Role, plan: Plan) -> int:
    """Bytes of a logit that a model which caps its logits saves: their hyperbolic tangents
    (huggingface/transformers v5.3.0 src/transformers/models/gemma2/modeling_gemma2.py, Gemma2ForCausalLM).
    """
    return plan.precision.compute.nbytes(1) if role.model.head.softcap else 0


def step_items(role: Role, plan: Plan, sheet: Sheet, logits: Item, each: Logits) -> Iterator[Item]:
    """A training step whose loss is made of whole logits. ``sheet``: of the step with a loss that makes
    none.
    """
    for item in sheet.items:
        if item.component is Component.ALLOCATOR_SLACK:
            continue
        at: dict[Instant, Bytes] = dict(item.at)
        at.pop(Instant.LOSS, None)
        if (size := _at_logits(item)) is not None:
            at[Instant.LOSS] = size
        if at:
            yield replace(item, at={when: at[when] for when in Instant if when in at})
    if any(item.path.endswith(CAST) for item in sheet.items):
        yield cast_output_matrix(role)
    if _trains_head(role):
        yield _head_inputs(role, plan, each)
    yield logits


def _trains_head(role: Role) -> bool:
    """Whether the output matrix has a gradient, or adapters that have."""
    adapter = role.plan.adapter
    return adapter is None or "lm_head" in (*adapter.targets, *adapter.full_modules)


def _head_inputs(role: Role, plan: Plan, logits: Logits) -> Item:
    """What the output matrix is multiplied by, in the dtype of products, which its gradient is made of: the
    last norm's output, its cast, or a copy of the positions that have logits, whose rows do not lie one
    after another.
    """
    size = plan.precision.compute.nbytes(positions(plan, logits) * role.model.hidden)
    return Item(Component.SAVED_ACTIVATIONS, "lm_head/input", {Instant.LOSS: Bytes.exact(size)}, INPUTS)


def _at_logits(item: Item) -> Bytes | None:
    """What of an item is there when backward begins. Casts that autocast kept are gone with its context, or
    still there where the framework's loss is inside it.
    """
    if item.component is Component.GRADIENTS:
        return item.at.get(Instant.FORWARD)
    size = item.at.get(Instant.LOSS)
    if size is None or item.path.startswith(OWN_LOSS):
        return None
    if item.component is not Component.TEMPORARIES:
        return size
    return Bytes(0, 0, size.high) if item.path.endswith(CAST) else None
