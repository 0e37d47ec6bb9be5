"""``fully_shard`` on every layer, as accelerate applies it (1.15, utils/fsdp_utils.py:847-885) and torchtitan
does.

Each layer is a group; so are the embeddings; the final norm and the head are one that stays gathered after
forward. Embeddings that are tied to the head are in that group, which then goes first and last; so is
whatever else has one of its weights, since torch wants a weight in one group alone (2.13,
_fsdp_state.py:215-231).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard

from memsheet.errors import input_error
from memsheet.plan.plan import Plan
from memsheet.run.dtypes import torch_dtype
from memsheet.run.expert_parallel import shard_experts
from memsheet.run.mesh import parameter_shard_mesh
from memsheet.run.model import layers_of

APART_WITHIN = frozenset({"MambaMixer", "FalconMambaMixer"})
"""Parts of layers that are groups of their own, as the sheet counts them (modeling_mamba.py)."""


def apply_fsdp2(root: nn.Module, model: Any, plan: Plan, mesh: DeviceMesh) -> None:
    """Shard ``model`` in place over the mesh's data-parallel axes; ``root`` is what is called: the model
    itself, or what holds it.

    Raises InputError for an offload that torch's policy does not know, or that leaves nothing on the device
    it came from.
    """
    given: dict[str, Any] = {"mesh": parameter_shard_mesh(mesh), "mp_policy": _mixed_precision_policy(plan)}
    if offloads_model_states(plan):
        given["offload_policy"] = _cpu_offload_policy(plan, mesh.device_type)
    resharded = {**given, "reshard_after_forward": plan.reshard_after_forward}
    if plan.mesh.ep > 1:
        shard_experts(model, plan, given)
    first, tail = embeddings_group_modules(model), head_group_modules(model)
    for layer in fsdp_wrapped_modules(model):
        fully_shard(layer, **resharded)
    if first:
        fully_shard(first, **resharded)
    if tail:
        fully_shard(tail, reshard_after_forward=False, **given)
    if not isinstance(root, FSDPModule):
        fully_shard(root, **given)


def offloads_model_states(plan: Plan) -> bool:
    """Whether parameters, and with them gradients and the optimizer's states, live on the host."""
    return bool(plan.offload.parameters or plan.offload.optimizer)


def _cpu_offload_policy(plan: Plan, device: str) -> CPUOffloadPolicy:
    """Sharded parameters in pinned memory of the host, where gradients go and the optimizer steps
    (_fsdp_param.py:312-315).
    """
    for key, share in (
        ("offload.parameters", plan.offload.parameters),
        ("offload.optimizer", plan.offload.optimizer),
    ):
        if share != 1:
            raise input_error(
                key,
                share,
                "is not what fully_shard's CPUOffloadPolicy does: all, and both",
                "--offload optimizer,parameters",
            )
    if device == "cpu":
        raise input_error("offload", "parameters", "goes to the processor, and this is it", "--device cuda")
    return CPUOffloadPolicy()


def _mixed_precision_policy(plan: Plan) -> MixedPrecisionPolicy:
    compute, reduce = plan.precision.compute, plan.precision.reduce
    return MixedPrecisionPolicy(
        param_dtype=torch_dtype(compute, "precision.compute"),
        reduce_dtype=torch_dtype(reduce, "precision.reduce"),
    )


def fsdp_wrapped_modules(model: Any) -> Iterator[nn.Module]:
    """What the library says is never split (accelerate's default, ``_no_split_modules``), whole layers where
    that is parts of them, from the inside out. What has a weight that something outside of all of them has
    too is no group: torch refuses it.
    """
    named = _unsplit_modules(model)
    within = {id(module) for one in named for module in one.modules()}
    around = {id(p) for m in model.modules() if id(m) not in within for p in m.parameters(recurse=False)}
    apart = [module for module in named if around.isdisjoint(map(id, module.parameters()))]
    yield from reversed(apart or list(layers_of(model) or ()))


def _unsplit_modules(model: Any) -> list[nn.Module]:
    names = unit_classes(model)
    return [module for module in model.modules() if type(module).__name__ in names]


def unit_classes(model: Any) -> frozenset[str]:
    """The library's own choice of units; where those are parts of layers, the layers instead."""
    names = library_unit_classes(model)
    layers = list(layers_of(model) or ())
    within = {type(below).__name__ for layer in layers for below in layer.modules() if below is not layer}
    if not names or not layers:
        return names
    return (names - within | names & APART_WITHIN) | {type(layer).__name__ for layer in layers}


def library_unit_classes(model: Any) -> frozenset[str]:
    """What the model has of ``_no_split_modules``, by class."""
    present = {type(module).__name__ for module in model.modules()}
    return frozenset(getattr(model, "_no_split_modules", None) or ()) & present


def regrouping_words(model: Any) -> str:
    """What of accelerate's groups does not run, and what does instead."""
    said = []
    if path := _twice_held_weight(model):
        said.append(
            f"{path} is a weight that two of accelerate's groups of this model have: torch 2.13 refuses that "
            "when the first step begins. The sheet is of groups that torch takes: all modules that have it "
            "in one (fully_shard([...]))"
        )
    embeddings, *_ = embeddings_norm_head(model)
    if not has_tied_embeddings(model) and _is_inside_unit(model, embeddings):
        said.append(
            "accelerate groups the embeddings' table inside a module that is a group already, which torch "
            "2.13 refuses. The sheet is of that module as one group"
        )
    head = model.get_output_embeddings()
    if isinstance(head, nn.ModuleList):
        path = next(name for name, module in model.named_modules() if module is head)
        said.append(
            f"accelerate groups {path}, a list that never runs itself, so that nothing gathers it and a step "
            "fails. The sheet is of its weights in the group of the model itself"
        )
    return ". ".join(said)


def _twice_held_weight(model: Any) -> str:
    """The first weight that two of accelerate's groups would have, which torch refuses; or nothing. Groups:
    what the library never splits, the embeddings unless they are tied to the head, norm and head, the rest.
    """
    embeddings, norm, head = embeddings_norm_head(model)
    tied = has_tied_embeddings(model)
    ends = [[None if tied else embeddings], [norm, embeddings if tied else None, head]]
    units = _unsplit_modules(model) or list(layers_of(model) or ())
    groups: list[list[Any]] = [*([each] for each in reversed(units)), *ends]
    group_of: dict[int, int] = {}
    for number, modules in enumerate(groups):
        for below in (below for module in modules if module is not None for below in module.modules()):
            group_of.setdefault(id(below), number)
    holders: dict[int, int] = {}
    for name, module in model.named_modules():
        for last, parameter in module.named_parameters(recurse=False):
            group = group_of.get(id(module), len(groups))
            if holders.setdefault(id(parameter), group) != group:
                return f"{name}.{last}"
    return ""


def embeddings_group_modules(model: Any) -> list[nn.Module]:
    """Embeddings and what has their weight: one group, unless they are tied to the head, or inside a unit
    that the library never splits.
    """
    embeddings, _, _ = embeddings_norm_head(model)
    apart = not has_tied_embeddings(model) and not _is_inside_unit(model, embeddings)
    return with_sharing_modules(model, [embeddings]) if embeddings is not None and apart else []


def _is_inside_unit(model: Any, module: nn.Module | None) -> bool:
    return any(below is module for unit in fsdp_wrapped_modules(model) for below in unit.modules())


def head_group_modules(model: Any) -> list[nn.Module]:
    """Final norm and head, tied embeddings, and what has a weight of theirs: one group."""
    embeddings, norm, head = embeddings_norm_head(model)
    tied = embeddings if has_tied_embeddings(model) else None
    return with_sharing_modules(model, [module for module in (norm, tied, head) if module is not None])


def with_sharing_modules(model: nn.Module, modules: list[nn.Module]) -> list[nn.Module]:
    """``modules``, and whatever else of the model has one of their weights."""
    own = {id(parameter) for module in modules for parameter in module.parameters()}
    inside = {id(below) for module in modules for below in module.modules()}
    others = (module for module in model.modules() if id(module) not in inside)
    return [*modules, *(m for m in others if not own.isdisjoint(map(id, m.parameters(recurse=False))))]


def embeddings_norm_head(model: Any) -> tuple[nn.Module | None, nn.Module | None, nn.Module | None]:
    """Embeddings, final norm and head, each where the model has it with parameters. A list of heads never
    runs itself, so that nothing would gather its group: its weights stay with the rest of the model.
    """
    found = (model.get_input_embeddings(), _final_norm(model), model.get_output_embeddings())
    embeddings, norm, head = (
        m
        if isinstance(m, nn.Module)
        and not isinstance(m, nn.ModuleList)
        and next(m.parameters(), None) is not None
        else None
        for m in found
    )
    return embeddings, norm, head


def has_tied_embeddings(model: Any) -> bool:
    """Whether the head computes with the embedding table."""
    embeddings, _, head = embeddings_norm_head(model)
    looked_up = getattr(embeddings, "weight", None)
    return looked_up is not None and looked_up is getattr(head, "weight", None)


def _final_norm(model: Any) -> nn.Module | None:
    """The last norm among the base model's own children (accelerate fsdp_utils.py:733-748)."""
    base = getattr(model, model.base_model_prefix, model)
    norms = [child for child in base.children() if "Norm" in type(child).__name__]
    return norms[-1] if norms else None
