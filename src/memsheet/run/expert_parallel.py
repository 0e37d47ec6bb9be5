"""Experts shared out among ranks by the plan that transformers ships for a family, applied by transformers'
own code (5.23, distributed/expert_parallel.py): whole experts on each rank, tokens sent to them and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from memsheet.errors import input_error
from memsheet.plan.plan import Plan
from memsheet.run.mesh import submesh_along
from memsheet.run.model import text_config_of

_DISPATCHED = "ep_dispatch_experts"


def apply_expert_parallel(model: Any, plan: Plan, mesh: DeviceMesh) -> None:
    """Give a model that has no memory yet this rank's experts only, in place; nothing without an ``ep``
    degree.

    Raises InputError for families without a plan, and for degrees that do not divide the ranks or the
    experts.
    """
    degree = int(plan.mesh.ep)
    if degree == 1:
        return
    from transformers.distributed.expert_parallel import apply_expert_parallelism

    shipped = getattr(model, "ep_plan", None)
    if not shipped or _DISPATCHED not in shipped.values():
        raise input_error("mesh.ep", degree, f"{type(model).__name__} ships no plan of its experts for it")
    config = text_config_of(model.config)
    experts: int = getattr(config, "num_experts", None) or getattr(config, "n_routed_experts", None) or degree
    if experts % degree:
        raise input_error(
            "mesh.ep", degree, f"does not divide the {experts} experts of {type(model).__name__}"
        )
    apply_expert_parallelism(
        model,
        expert_mesh(plan, mesh)["ep"],
        submesh_along(mesh, "tp"),
        model._expand_parallel_plan(dict(shipped)),
    )


def expert_mesh(plan: Plan, mesh: DeviceMesh) -> DeviceMesh:
    """The same ranks as experts see them (transformers distributed/utils.py:170-203, 326-334): ``efsdp``
    ranks share each expert's parameters, ``ep`` ranks have different experts. Raises InputError for a degree
    that does not divide them.
    """
    ranks, degree = int(plan.mesh.dp_shard * plan.mesh.tp), int(plan.mesh.ep)
    if ranks % degree:
        raise input_error(
            "mesh.ep", degree, f"does not divide dp_shard · tp = {ranks} ranks", "experts reuse those ranks"
        )
    return device_mesh.init_device_mesh(
        mesh.device_type,
        (int(plan.mesh.dp_replicate), ranks // degree, degree),
        mesh_dim_names=("dp_replicate", "efsdp", "ep"),
    )


def shard_experts(model: Any, plan: Plan, given: dict[str, Any]) -> None:
    """``fully_shard`` each layer's experts over the ranks that have the same ones (transformers
    distributed/fsdp.py:193-211), before their layers. ``given``: as for the layers.
    """
    replicas = ("dp_replicate",) if plan.mesh.dp_replicate > 1 else ()
    for experts in _dispatched_expert_modules(model):
        fully_shard(
            experts,
            **{
                **given,
                "mesh": _expert_device_mesh(experts)[(*replicas, "efsdp")],
                "reshard_after_forward": True,
            },
        )
        assert isinstance(experts, FSDPModule)
        experts.set_gradient_divide_factor(float(plan.mesh.data_parallel))
        if plan.mesh.dp_shard * plan.mesh.tp > plan.mesh.ep:
            experts.set_force_sum_reduction_for_comms(True)


def _dispatched_expert_modules(model: Any) -> Iterator[nn.Module]:
    shipped = model._expand_parallel_plan(dict(model.ep_plan))
    names = [name for name, style in shipped.items() if style == _DISPATCHED]
    yield from (model.get_submodule(name) for name in names)


def _expert_device_mesh(experts: nn.Module) -> DeviceMesh:
    """The mesh that the experts were cut along."""
    weight: Any = next(experts.parameters())
    root: DeviceMesh = weight.device_mesh._get_root_mesh()
    return root
