"""Vision towers of a model that is trained on text alone, and what else nothing passes through by a model's
own code: their parameters are there.

In such a step they get no gradients, so the optimizer makes no states for them (torch optim skips what has no
gradient). A batch that reaches them gives them both: the high end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memsheet.arith import Count
from memsheet.formulas.states.held import HeldTensor, gradient_dtype, tensors_on_rank
from memsheet.formulas.states.optimizers import states_without_gradient
from memsheet.formulas.states.params import tower_tensors, unreached_tensors
from memsheet.formulas.tapes.bytes_by_path import Key
from memsheet.plan.model import ModelSpec, Weight
from memsheet.plan.plan import Plan
from memsheet.references import TORCH_OPTIM, formula
from memsheet.sheet import Component

WITH_PICTURES: Key = (Component.OPTIMIZER_STATES, "towers")
NOTE = (
    "no picture in the batch: the vision tower's parameters are counted, its activations are not; the "
    "high end has its gradients and "
    "optimizer states, as a batch with pictures leaves them"
)

UNREACHED: Key = (Component.OPTIMIZER_STATES, "unreached")
UNREACHED_NOTE = (
    "no gradient reached some parameters when the model's own code was on record: they are counted without "
    "gradients and optimizer states; the high end has both"
)

Listed = Callable[[ModelSpec], Iterator[tuple[str, Weight, int]]]
IDLE: tuple[tuple[Key, str, Listed], ...] = (
    (WITH_PICTURES, NOTE, tower_tensors),
    (UNREACHED, UNREACHED_NOTE, unreached_tensors),
)
"""What gets no gradient: the row that it adds to the states, what is said of it, and its tensors."""
Shard = Callable[[HeldTensor, Plan], Count]
Made = Callable[[HeldTensor, Count], Count]
"""Bytes of an optimizer's states for a tensor of so many elements on a rank."""


def idle_bytes(
    model: ModelSpec, plan: Plan, shard: Shard, states: Made, listed: Listed
) -> tuple[Count, Count]:
    """What the optimizer keeps of parameters without gradients, and what a batch that reaches them would
    leave.
    """
    if plan.adapter:
        return 0, 0
    made = (
        one.times * states_without_gradient(one, elements, plan)
        for one, elements in _idle_tensors(model, plan, shard, listed)
    )
    return sum(made), trained_bytes(model, plan, shard, states, listed)


@formula(cites=TORCH_OPTIM, at="_init_group: states are made for parameters that have a gradient")
def trained_bytes(
    model: ModelSpec, plan: Plan, shard: Shard, states: Made, listed: Listed = tower_tensors
) -> Count:
    """Gradients and optimizer states of such parameters on a rank, had they been trained; copies in another
    precision are there in any case.
    """
    total: Count = 0
    for one, elements in _idle_tensors(model, plan, shard, listed):
        total = total + one.times * (gradient_dtype(one, plan).nbytes(elements) + states(one, elements))
    return total


def _idle_tensors(
    model: ModelSpec, plan: Plan, shard: Shard, listed: Listed
) -> Iterator[tuple[HeldTensor, Count]]:
    for path, weight, times in listed(model):
        for one in tensors_on_rank(path, weight, times, plan):
            yield one, shard(one, plan)
