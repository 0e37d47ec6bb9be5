"""Tensor parallelism by the plan that transformers ships for a family, applied by transformers' own code
(distributed/tensor_parallel.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from memsheet.errors import input_error
from memsheet.plan.plan import Plan
from memsheet.run.fsdp2 import has_tied_embeddings
from memsheet.run.mesh import submesh_along
from memsheet.run.model import text_config_of


def apply_tensor_parallel(model: Any, plan: Plan, mesh: DeviceMesh) -> None:
    """Cut a model that has no memory yet along the mesh's ``tp`` axis, in place; nothing where there is none.

    Raises InputError for families without a plan and for heads that do not divide.
    """
    degree = int(plan.mesh.tp)
    if degree == 1:
        return
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    shipped = getattr(model, "tp_plan", None)
    if not shipped:
        raise input_error("mesh.tp", degree, f"{type(model).__name__} ships no plan of its layers for it")
    _check_heads(text_config_of(model.config), degree)
    if has_tied_embeddings(model):  # each is cut by its own rule, alike, and they are tied again
        head = model.get_output_embeddings()
        head.weight = nn.Parameter(torch.empty_like(head.weight))
    apply_tensor_parallelism(
        model, submesh_along(mesh, "tp"), model._expand_parallel_plan(_without_experts(model, plan))
    )
    model.tie_weights()


def _without_experts(model: Any, plan: Plan) -> dict[str, str]:
    """The shipped plan, less what expert parallelism cuts (transformers distributed/mixin.py:277-279)."""
    experts = tuple(getattr(model, "ep_plan", None) or ()) if plan.mesh.ep > 1 else ()
    return {
        name: style
        for name, style in model.tp_plan.items()
        if not any(f"{name}.".startswith(f"{cut}.") for cut in experts)
    }


def _check_heads(config: Any, degree: int) -> None:
    """A head is never split: its projection would be cut within (the layers' own ``view`` fails)."""
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None) or degree
        if heads % degree:
            raise input_error("mesh.tp", degree, f"does not divide {name} = {heads}")
