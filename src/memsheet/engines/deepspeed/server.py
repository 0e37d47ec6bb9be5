"""DeepSpeed's automatic tensor parallelism: a transformers model whose linear layers are cut over ranks, once
it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.errors import input_error
from memsheet.formulas.pipeline import stage_model
from memsheet.formulas.runtime import ALLOCATOR, MIDDLE_SEGMENT, loading_slack, outside_tensors
from memsheet.formulas.states.held import HeldTensor, WholeRoles, held_tensors, parameter_bytes
from memsheet.plan.device import Cluster
from memsheet.plan.engine import Engine
from memsheet.plan.model import ModelSpec, Role
from memsheet.plan.plan import Plan
from memsheet.sheet import Bytes, Component, FromCode, Instant, Item, Sheet

LAYERS = FromCode(
    "deepspeedai/DeepSpeed",
    "edaa7221267243c7be7fb49c5d5f5c4fb97b4641",
    "deepspeed/module_inject/auto_tp.py",
    666,
)
WHOLE = WholeRoles(frozenset({Role.EMBEDDING, Role.HEAD}))
"""Tables of embeddings and the output projection stay whole: what is replaced are the linear layers of blocks
(:680, by the classes of a policy).
"""


def items(spec: ModelSpec, plan: Plan, _: Engine, cluster: Cluster | None, stage: int) -> list[Item]:
    """The weights of a rank. Raises InputError for anything beyond loading, whose kernels are not
    modelled.
    """
    if plan.serving.phase != "load":
        raise input_error(
            "engine",
            "deepspeed",
            "is modelled for infer until the weights are loaded, no further",
            'give "phase": "load", or --engine transformers',
        )
    part = stage_model(spec, plan, stage)
    held: tuple[HeldTensor, ...] = tuple(held_tensors(part, plan, WHOLE))
    at = (Instant.LOAD,)
    found = [
        Item(c, path, dict.fromkeys(at, Bytes.exact(size)), LAYERS)
        for (c, path), size in parameter_bytes(part, plan, held).items()
    ]
    gaps = loading_slack((h.dtype.nbytes(h.elements), h.times) for h in held)
    slack = Item(
        Component.ALLOCATOR_SLACK,
        "weights",
        dict.fromkeys(at, Bytes(0, gaps, gaps + MIDDLE_SEGMENT)),
        ALLOCATOR,
    )
    return [*found, slack, *outside_tensors(plan, cluster, {Instant.LOAD: 0})]


def facts(
    spec: ModelSpec, plan: Plan, cluster: Cluster | None, sheets: tuple[Sheet, ...]
) -> Mapping[str, Any]:
    """Nothing is served yet when weights have arrived."""
    del spec, plan, cluster, sheets
    return {}
