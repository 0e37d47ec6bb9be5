"""What layers a model has: their names, and whether tokens are sent to experts."""

from __future__ import annotations

from memsheet.plan.model import ModelSpec, Moe, Role


def has_experts(model: ModelSpec) -> bool:
    return any(isinstance(block.feed_forward, Moe) for block in model.blocks())


def ends_with_table(model: ModelSpec) -> bool:
    """Whether positions are looked up in a table, which ends where it ends."""
    if any(_names_positions(weight.path) for weight in model.embeddings.weights):
        return True
    if model.recording is None or not model.max_positions or model.model_type in GROWING_TABLES:
        return False
    rows = (w.shape[0] for w in model.extras if w.role is Role.EMBEDDING and _names_positions(w.path))
    return any(0 <= count - model.max_positions <= UNUSED_ROWS for count in rows)


GROWING_TABLES = ("fsmt",)
"""Families that make their tables of sines anew when a sequence is longer (transformers 5.23.0
modeling_fsmt.py:1111).
"""
UNUSED_ROWS = 2
"""At the most, before the first position (transformers 5.23.0 modeling_opt.py OPTLearnedPositionalEmbedding,
modeling_longformer.py:441), by which a table of words' positions is told from a tower's.
"""


def _names_positions(path: str) -> bool:
    return "relative" not in path and ("position" in path or "wpe" in path)


def linear_names(model: ModelSpec) -> set[str]:
    """Last names of the linear layers in a model's blocks (``q_proj``)."""
    return _matrix_names(model, Role.LINEAR)


def router_names(model: ModelSpec) -> set[str]:
    """Last names of what chooses experts."""
    return _matrix_names(model, Role.ROUTER)


def _matrix_names(model: ModelSpec, role: Role) -> set[str]:
    weights = (weight for block in model.blocks() for weight in block.weights)
    return {w.path.split(".")[-2] for w in weights if w.role is role and w.path.endswith(".weight")}
