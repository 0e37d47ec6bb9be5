"""Vision towers of a model that is trained on text alone: their parameters are there, and nothing passes
through them.

In such a step they get no gradients, so the optimizer makes no states for them (torch optim skips what has no
gradient). A batch with pictures gives them both: the high end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from memsheet.arith import Count
from memsheet.formulas.sharding.overhead import single_row
from memsheet.formulas.sharding.resident_state import ResidentState
from memsheet.formulas.states.held import Held, gradient_dtype, parameter_shard, tensors_on_rank
from memsheet.formulas.states.held_shapes import dim0_gathered
from memsheet.formulas.states.optimizers import states_without_gradient
from memsheet.formulas.states.params import fold_path_indices, tower_tensors
from memsheet.formulas.tapes.bytes_by_path import BytesByPath, Key, merge_moment
from memsheet.plan.engine import Engine, Sharding
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import TORCH_FSDP2, TORCH_OPTIM, formula
from memsheet.sheet import Component

WITH_PICTURES: Key = (Component.OPTIMIZER_STATES, "towers")
NOTE = (
    "no picture in the batch: the vision tower's parameters are counted, its activations are not; the "
    "high end has its gradients and "
    "optimizer states, as a batch with pictures leaves them"
)
SHARDED_ALONE = ("embeddings", "head")
"""Modules of CLIP's and SigLIP's towers that the library never splits either (modeling_siglip.py,
_no_split_modules).
"""


def with_towers(
    kept: ResidentState, model: ModelSpec, plan: Plan, engine: Engine, states: Callable[[Held, Count], Count]
) -> ResidentState:
    """``kept`` with what a model's towers add to it. ``states``: bytes of the optimizer's for a tensor of so
    many elements on a rank.
    """
    if not model.towers:
        return kept
    high = 0 if plan.adapter else trained_bytes(model, plan, engine, states)
    around = kept.around
    if engine.sharding is Sharding.FSDP2:
        around = replace(
            around, through=merge_moment([(1, around.through), (1, root_group_tensors(model, plan))])
        )
    low = (
        0
        if plan.adapter
        else sum(
            one.times * states_without_gradient(one, elements, plan)
            for one, elements in _vision_tower_tensors(model, plan, engine)
        )
    )
    waiting = BytesByPath.of([(WITH_PICTURES, low)] if high else [])
    return replace(
        kept,
        around=around,
        states=merge_moment([(1, kept.states), (1, waiting)]),
        notes=(*kept.notes, NOTE),
        ranges={**kept.ranges, WITH_PICTURES: (low, high)} if high else kept.ranges,
    )


@formula(cites=TORCH_OPTIM, at="_init_group: states are made for parameters that have a gradient")
def trained_bytes(
    model: ModelSpec, plan: Plan, engine: Engine, states: Callable[[Held, Count], Count]
) -> Count:
    """Gradients, master weights and optimizer states of the towers on a rank, had they been trained."""
    total: Count = 0
    master = plan.precision.master_weights
    for one, elements in _vision_tower_tensors(model, plan, engine):
        own = gradient_dtype(one, plan).nbytes(elements) + (master.nbytes(elements) if master else 0)
        total = total + one.times * (own + states(one, elements))
    return total


def _vision_tower_tensors(model: ModelSpec, plan: Plan, engine: Engine) -> Iterator[tuple[Held, Count]]:
    for path, weight, times in tower_tensors(model):
        for one in tensors_on_rank(path, weight, times, plan):
            yield one, parameter_shard(one, plan, engine.sharding)


@formula(
    cites=TORCH_FSDP2,
    at=(
        "_fully_shard.py: what no layer has is the root's, gathered when the model's forward begins and "
        "not resharded after it"
    ),
)
def root_group_tensors(model: ModelSpec, plan: Plan) -> BytesByPath:
    """What of the towers is in no layer, in the compute dtype."""
    layers = tuple(fold_path_indices(f"{tower.stack.path}.*.") for tower in model.towers)
    layers += tuple(f"{tower.path}.{module}." for tower in model.towers for module in SHARDED_ALONE)
    sizes = (
        plan.precision.compute.nbytes(dim0_gathered(one.shape, plan.mesh.sharded))
        for path, weight, times in tower_tensors(model)
        if not path.startswith(layers)
        for one in tensors_on_rank(path, weight, times, plan)
    )
    return single_row(Component.UNSHARDED_PARAMETERS, "root/unsharded", sum(sizes))
