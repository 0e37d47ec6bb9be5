"""How Falcon takes queries, keys and values out of one projection (transformers 5.23, modeling_falcon.py),
over shape-only tensors.
"""

from __future__ import annotations

from memsheet.formulas.tapes.graph import Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.plan.model import Attention


def falcon_qkv_heads(r: Recorder, whole: Tensor, at: Attention) -> list[Tensor]:
    """Queries, keys and values out of one projection, group by group (transformers 5.23,
    modeling_falcon.py:247-279).
    """
    path, one_head = at.path, at.kv_heads == 1
    q = r.slice(whole, ("b", "s", "a", "d"))
    parts = [
        q,
        *(_indexed_part_copy(r, whole, ("b", "s", "k", "d"), f"{path}/{name}") for name in ("k", "v")),
    ]
    if not one_head:
        parts = [
            r.copy(parts[0], ("b", "s", "a", "d"), path + "/q"),
            *(_flatten_head_groups(r, x, path) for x in parts[1:]),
        ]
    heads = ("a", "k", "k") if one_head else ("a", "a", "a")
    return [r.view(x, ("b", axis, "s", "d")) for x, axis in zip(parts, heads, strict=True)]


def _indexed_part_copy(r: Recorder, x: Tensor, shape: Shape, path: str) -> Tensor:
    """Part of a tensor by a list of indices: a copy, whose gradient is put into a full-size tensor of
    zeros.
    """
    back, dtype = x.shape, x.dtype
    return r.apply(r.tensor(path, shape, dtype), (x,), (), lambda _: [r.grad(back, dtype)])


def _flatten_head_groups(r: Recorder, x: Tensor, path: str) -> Tensor:
    """A head of keys or values for every query of its group, copied out; its gradient is summed over the
    group.
    """
    back, dtype = x.shape, x.dtype
    return r.apply(
        r.tensor(path + "/flatten", ("b", "s", "a", "d"), dtype), (x,), (), lambda _: [r.grad(back, dtype)]
    )
