"""What fully_shard gathers, reduces and keeps of a group's parameters, in bytes. A group: what is sharded
together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memsheet.arith import Count, at_least, ceil_div, where
from memsheet.formulas.groups import Group, StageLayers
from memsheet.formulas.sharding.overhead import single_row
from memsheet.formulas.states.held import HeldTensor, gradient_dtype, module_of, tensors_on_rank
from memsheet.formulas.states.held_shapes import elements_of
from memsheet.formulas.states.params import fold_path_indices, tower_tensors
from memsheet.formulas.tapes.bytes_by_path import BytesByPath, Key, merge_moment
from memsheet.frozen import replace
from memsheet.plan.dtypes import BF16, FP8, FP16, FP32, DType
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import ModelSpec, Role, Tower, Weight
from memsheet.plan.plan import Loss, Plan
from memsheet.references import TORCH_FSDP2, formula
from memsheet.sheet import Component

FLOATING = (FP32, BF16, FP16)
ROOT = "root"
"""The group that goes first and last: tied embeddings and head."""

TOWER_UNITS: Mapping[str, tuple[str, ...]] = {
    "clip_vision_model": ("{layer}.", "{tower}.embeddings."),
    **dict.fromkeys(("siglip_vision_model", "siglip2_vision_model"), ("{layer}.", "{tower}.embeddings.", "{tower}.head.")),
    **dict.fromkeys(("idefics3_vision", "smolvlm_vision"), ("{layer}.self_attn.",)),
    **dict.fromkeys(("qwen2_5_omni_vision", "qwen2_5_omni_audio", "qwen3_omni_vision", "qwen3_omni_audio"), ("{tower}.",)),
}  # fmt: skip
"""By the kind of a tower's layers: what of it is a group of its own where that is not every layer, as the
library never splits it (transformers 5.23, _no_split_modules of modeling_clip.py:397, modeling_siglip.py:366,
modeling_siglip2.py, modeling_idefics3.py:417, modeling_smolvlm.py:54, modeling_qwen2_5_omni.py,
modeling_qwen3_omni_moe.py).
"""
UNSPLIT_PROJECTORS = frozenset({"paligemma"})
"""Families whose projector is a group, too (modeling_paligemma.py:108)."""


@formula(
    cites=TORCH_FSDP2, at="_fsdp_param.py:298-320: every rank keeps the padded first chunk of dimension 0"
)
def dim0_shard(shape: tuple[Count, ...], ranks: Count) -> Count:
    """Elements that FSDP2 keeps of a tensor on each rank."""
    return ceil_div(shape[0], ranks) * elements_of(shape[1:])


@formula(
    cites=TORCH_FSDP2, at="_fsdp_param.py:616-628: the gathered tensor has the padded size on every rank"
)
def dim0_gathered(shape: tuple[Count, ...], ranks: Count) -> Count:
    """Elements of a tensor gathered from FSDP2 shards."""
    return dim0_shard(shape, ranks) * ranks


def trainable_parameters(group: Group) -> tuple[HeldTensor, ...]:
    return tuple(h for h in group.parameters if h.trains)


@formula(
    cites=TORCH_FSDP2,
    at="_fsdp_collectives.py:328-360 all-gather output; _fsdp_param.py:616-628 unsharded parameters",
)
def gathered_bytes(group: Group, plan: Plan) -> Count:
    """A group's parameters gathered whole, in the compute dtype (frozen or quantized ones as stored)."""
    return sum(
        mixed_precision_dtype(h, plan).nbytes(dim0_gathered(h.shape, plan.mesh.sharded))
        for h in group.parameters
    )


def mixed_precision_dtype(h: HeldTensor, plan: Plan) -> DType:
    """What the policy casts a parameter to: anything floating, adapters too (_fsdp_param.py,
    init_dtype_attrs).
    """
    compute = plan.precision.compute
    if (
        compute is FP8
        # products alone; torchao's weights may be gathered so (fsdp_utils.py, fsdp_pre_all_gather), heads and
        # norms are not
    ):
        compute = FP8 if plan.fp8 is not None and plan.fp8.gathered and h.role is Role.LINEAR else BF16
    return compute if h.dtype in FLOATING else h.dtype


@formula(
    cites=TORCH_FSDP2,
    at="_fsdp_collectives.py:592-606: reduce-scatter input in the reduce dtype, kept until the next group's",
)
def reduce_input_bytes(group: Group, plan: Plan) -> Count:
    """The buffer in which a group's whole gradients are reduced."""
    return sum(
        plan.precision.reduce.nbytes(dim0_gathered(h.shape, plan.mesh.sharded))
        for h in trainable_parameters(group)
    )


def with_rooted_norms(stage: StageLayers) -> StageLayers:
    """A stage whose final norms are the root's where they are no children of the model's own base: accelerate
    looks for the head's norm among those alone (1.15 utils/fsdp_utils.py:733-748).
    """
    if stage.head is None or not stage.outer_norms:
        return stage
    outer = [f".{h.path}" for h in stage.outer_norms]
    own = tuple(h for h in stage.head.parameters if not any(path.endswith(f".{h.path}") for path in outer))
    return replace(stage, head=replace(stage.head, parameters=own), rest=(*stage.rest, *stage.outer_norms))


def reduced_rest(stage: StageLayers) -> tuple[HeldTensor, ...]:
    """The root's own parameters that a step gives gradients."""
    made = {path for end in (stage.embeddings, stage.head) if end for _, path in end.gradients.held}
    return tuple(h for h in stage.rest if h.trains and (stage.graded or module_of(h.path) in made))


@formula(
    cites=TORCH_FSDP2,
    at="_fsdp_collectives.py:611-616, 696-712: the reduced shard, in the sharded parameter's dtype",
)
def sharded_gradients(group: Group, plan: Plan, name: str | None = None) -> BytesByPath:
    """Gradients of a group as they stay on a rank: one buffer, of which each is a view. ``name``: the
    group's, where it is another's too.
    """
    pairs = (
        gradient_dtype(h, plan).nbytes(dim0_shard(h.shape, plan.mesh.sharded))
        for h in trainable_parameters(group)
    )
    return single_row(Component.GRADIENTS, name or group.name, sum(pairs))


def last_gradient_row(group: Group, plan: Plan) -> tuple[Key, Count]:
    """The gradient of a group's last parameter, which the name of a loop still holds
    (_fsdp_collectives.py:580-590, several ranks).
    """
    last = next(iter(reversed(trainable_parameters(group))), None)
    size = mixed_precision_dtype(last, plan).nbytes(last.elements) if last else 0
    path = last.path.rpartition(".")[0] if last else group.name
    return (Component.GRADIENTS, path), where(at_least(plan.mesh.sharded, 2), size, 0)


def all_sharded_gradients(stage: StageLayers, plan: Plan) -> BytesByPath:
    """All sharded gradients as they stand before the optimizer's step."""
    head, shared = stage.head, tables_in_two_groups(stage)
    if head and shared:
        head = replace(head, parameters=tuple(h for h in head.parameters if h.path not in shared))
    ends = [
        sharded_gradients(end, plan, ROOT if stage.tied else None) for end in (stage.embeddings, head) if end
    ]
    layers = [(run.count, sharded_gradients(group, plan)) for run in stage.layers for group in run.pattern]
    return merge_moment([*((1, end) for end in (*ends, _rest_gradients(stage, plan))), *layers])


def tables_in_two_groups(stage: StageLayers) -> frozenset[str]:
    """Tables that embeddings and head have in a group each, one tensor when they are sharded: what the second
    reduces is added to what is there.
    """
    first, last = (
        frozenset(h.path for h in end.parameters) if end else frozenset[str]()
        for end in (stage.embeddings, stage.head)
    )
    return first & last


def _rest_gradients(stage: StageLayers, plan: Plan) -> BytesByPath:
    """Those of the root's own parameters."""
    sizes = (
        gradient_dtype(h, plan).nbytes(dim0_shard(h.shape, plan.mesh.sharded)) for h in reduced_rest(stage)
    )
    return single_row(Component.GRADIENTS, ROOT, sum(sizes))


@formula(
    cites=TORCH_FSDP2,
    at="_fsdp_param_group.py:606-612: without gradient sync the whole gradients stay, in the reduce dtype",
)
def unsynced_gradient_bytes(parameters: tuple[HeldTensor, ...], plan: Plan) -> Count:
    """What accumulates on every rank when only the last micro-batch reduces gradients (accelerate's
    no_sync). Of a head that the loss reduces it is the rank's part.
    """
    reduced, ranks = loss_reduces_head(plan), plan.mesh.sharded
    elements = (
        h.times * (dim0_shard(h.shape, ranks) if reduced and h.role is Role.HEAD else h.elements)
        for h in parameters
        if h.trains
    )
    return sum(plan.precision.reduce.nbytes(n) for n in elements)


def loss_reduces_head(plan: Plan) -> bool:
    """Whether a loss in chunks gathers the head, reduces its gradient and lets go of it again."""
    return plan.loss is Loss.CHUNKED and engine_of(plan).unit_wrapping(plan.engine_version).loss_reduces


@formula(
    cites=TORCH_FSDP2,
    at=(
        "_fully_shard.py: what no layer has is the root's, gathered when the model's forward begins and "
        "not resharded after it"
    ),
)
def root_group_tensors(model: ModelSpec, plan: Plan) -> BytesByPath:
    """What of the towers is in no group of its own, in the compute dtype, and the layers that a model on
    record has beside its own where no group is resharded after its forward (zero 2).
    """
    root = single_row(Component.UNSHARDED_PARAMETERS, "root/unsharded", _root_tower_bytes(model, plan))
    if plan.reshard_after_forward:
        return root
    stays = BytesByPath.of(
        (
            (Component.UNSHARDED_PARAMETERS, f"{unit}/unsharded"),
            one.times * mixed_precision_dtype(one, plan).nbytes(dim0_gathered(one.shape, plan.mesh.sharded)),
        )
        for unit, one in _tensors_beside_layers(model, plan)
    )
    return merge_moment([(1, root), (1, stays)])


def root_gather_buffer(model: ModelSpec, plan: Plan) -> BytesByPath:
    """What the towers' tensors of no group of their own are gathered into, let go when the next group is
    copied out (torch 2.13 _fsdp_param_group.py:429-462). A rank alone needs none.
    """
    size = where(at_least(plan.mesh.sharded, 2), _root_tower_bytes(model, plan), 0)
    return single_row(Component.UNSHARDED_PARAMETERS, f"{ROOT}/all_gather", size)


def _root_tower_bytes(model: ModelSpec, plan: Plan) -> Count:
    sizes = (
        one.times * plan.precision.compute.nbytes(dim0_gathered(one.shape, plan.mesh.sharded))
        for path, weight, times in root_tower_weights(model)
        for one in tensors_on_rank(path, weight, times, plan)
    )
    return sum(sizes)


def gradients_beside_layers(model: ModelSpec, plan: Plan) -> BytesByPath:
    """Sharded gradients of the layers that a model on record has beside its own: an encoder's. They are
    reduced shards as those of every unit (``sharded_gradients``).
    """
    sizes = (
        one.times * gradient_dtype(one, plan).nbytes(dim0_shard(one.shape, plan.mesh.sharded))
        for _, one in _tensors_beside_layers(model, plan)
        if one.trains
    )
    return single_row(Component.GRADIENTS, "beside layers", sum(sizes))


def units_beside_layers(model: ModelSpec, plan: Plan) -> tuple[tuple[HeldTensor, ...], ...]:
    """The same, layer by layer: of each unit its tensors, as many times over as there are such layers."""
    found: dict[str, list[HeldTensor]] = {}
    for weight in model.extras:
        path = fold_path_indices(weight.path)
        unit = next((one for one in _units_of(model) if path.startswith(f"{one}.")), "")
        if unit and weight.role is not Role.BUFFER:
            at = ".".join(weight.path.split(".")[: unit.count(".") + 1])
            found.setdefault(at, []).extend(tensors_on_rank(weight.path, weight, 1, plan))
    return tuple(map(tuple, found.values()))


def _units_of(model: ModelSpec) -> tuple[str, ...]:
    return model.recording.units if model.recording else ()


def _tensors_beside_layers(model: ModelSpec, plan: Plan) -> Iterator[tuple[str, HeldTensor]]:
    """Those of the layers that a model on record has beside its own, each with its unit."""
    for weight in model.extras:
        path = fold_path_indices(weight.path)
        unit = next((one for one in _units_of(model) if path.startswith(f"{one}.")), None)
        if weight.role is not Role.BUFFER and unit is not None:
            yield from ((unit, one) for one in tensors_on_rank(path, weight, 1, plan))


def root_tower_weights(model: ModelSpec) -> Iterator[tuple[str, Weight, int]]:
    """Tensors of towers, by path, that are in no group of their own, and how often each is there."""
    units = tuple(fold_path_indices(unit) for tower in model.towers for unit in _units_of_tower(tower))
    if model.model_type in UNSPLIT_PROJECTORS:
        units += tuple(weight.path for tower in model.towers for weight in tower.projector)
    return (one for one in tower_tensors(model) if not one[0].startswith(units))


def _units_of_tower(tower: Tower) -> Iterator[str]:
    kind = next((block.kind for run in tower.stack.runs for block in run.pattern), "")
    for unit in TOWER_UNITS.get(kind, ("{layer}.",)):
        yield unit.format(layer=f"{tower.stack.path}.*", tower=tower.path)
