"""Vision towers of a model that is trained on text alone: their parameters are there, and nothing passes
through them.

In such a step they get no gradients, so the optimizer makes no states for them (torch optim skips what has no
gradient). A batch with pictures gives them both: the high end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memsheet.arith import Count
from memsheet.formulas.states.held import Held, gradient_dtype, tensors_on_rank
from memsheet.formulas.states.optimizers import states_without_gradient
from memsheet.formulas.states.params import tower_tensors
from memsheet.formulas.tapes.bytes_by_path import Key
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import TORCH_OPTIM, formula
from memsheet.sheet import Component

WITH_PICTURES: Key = (Component.OPTIMIZER_STATES, "towers")
NOTE = (
    "no picture in the batch: the vision tower's parameters are counted, its activations are not; the "
    "high end has its gradients and "
    "optimizer states, as a batch with pictures leaves them"
)

Shard = Callable[[Held, Plan], Count]
Made = Callable[[Held, Count], Count]
"""Bytes of an optimizer's states for a tensor of so many elements on a rank."""


def idle_tower_bytes(model: ModelSpec, plan: Plan, shard: Shard, states: Made) -> tuple[Count, Count]:
    """What the optimizer keeps of towers without pictures, and what a batch with pictures would leave."""
    if plan.adapter:
        return 0, 0
    made = (
        one.times * states_without_gradient(one, elements, plan)
        for one, elements in _vision_tower_tensors(model, plan, shard)
    )
    return sum(made), trained_bytes(model, plan, shard, states)


@formula(cites=TORCH_OPTIM, at="_init_group: states are made for parameters that have a gradient")
def trained_bytes(model: ModelSpec, plan: Plan, shard: Shard, states: Made) -> Count:
    """Gradients, master weights and optimizer states of the towers on a rank, had they been trained."""
    total: Count = 0
    master = plan.precision.master_weights
    for one, elements in _vision_tower_tensors(model, plan, shard):
        own = gradient_dtype(one, plan).nbytes(elements) + (master.nbytes(elements) if master else 0)
        total = total + one.times * (own + states(one, elements))
    return total


def _vision_tower_tensors(model: ModelSpec, plan: Plan, shard: Shard) -> Iterator[tuple[Held, Count]]:
    for path, weight, times in tower_tensors(model):
        for one in tensors_on_rank(path, weight, times, plan):
            yield one, shard(one, plan)
