"""What layers a model has: their names, and whether tokens are sent to experts."""

from __future__ import annotations

from memsheet.plan.model import ModelSpec, Moe, Role


def has_experts(model: ModelSpec) -> bool:
    return any(isinstance(block.feed_forward, Moe) for block in model.blocks())


def linear_names(model: ModelSpec) -> set[str]:
    """Last names of the linear layers in a model's blocks (``q_proj``)."""
    return _matrix_names(model, Role.LINEAR)


def router_names(model: ModelSpec) -> set[str]:
    """Last names of what chooses experts."""
    return _matrix_names(model, Role.ROUTER)


def _matrix_names(model: ModelSpec, role: Role) -> set[str]:
    weights = (weight for block in model.blocks() for weight in block.weights)
    return {w.path.split(".")[-2] for w in weights if w.role is role and w.path.endswith(".weight")}
