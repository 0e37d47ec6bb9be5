"""A plan, and a model, made small enough for the machine at hand: fewer ranks, fewer layers, everything else
as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.frozen import replace
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.plan import Mesh, Plan

AXES = ("dp_replicate", "cp", "pp", "tp", "dp_shard")
"""Whose degree goes first where several are equal: the last is what an engine is chosen for."""
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""What configs call the number of layers."""


def shrink_plan(plan: Plan, processes: int) -> Plan:
    """The plan with its degrees halved, the largest first, until no more than ``processes`` ranks are left.

    Micro-batch, accumulation, engine, sharding, recompute and precision stay.
    """
    mesh = plan.mesh
    while mesh.gpus > processes:
        axis = max(AXES, key=lambda name: (int(getattr(mesh, name)), -AXES.index(name)))
        mesh = replace(mesh, **{axis: int(getattr(mesh, axis)) // 2})
    return plan if mesh == plan.mesh else _with_mesh(plan, _consistent_mesh(mesh))


def _consistent_mesh(mesh: Mesh) -> Mesh:
    """Degrees that reuse other ranks, brought down to what is left of those."""
    ranks = int(mesh.dp_shard * mesh.tp)
    ep = int(mesh.ep)
    while ranks % ep:
        ep //= 2
    return replace(mesh, ep=ep, etp=min(int(mesh.etp), int(mesh.tp)), vpp=mesh.vpp if mesh.pp > 1 else 1)


def _with_mesh(plan: Plan, mesh: Mesh) -> Plan:
    cut = mesh.pp == plan.mesh.pp
    batch = (
        None
        if plan.training.global_batch is None
        else int(plan.accumulation * plan.training.microbatch * mesh.data_parallel)
    )
    return replace(
        plan,
        mesh=mesh,
        workload=replace(plan.training, global_batch=batch),
        schedule=plan.schedule if mesh.pp > 1 else None,
        layers_per_stage=plan.layers_per_stage if cut else None,
        zero=plan.zero if mesh.data_parallel > 1 or plan.zero in engine_of(plan).zero else 0,
    )


def mesh_shrinkage_words(before: Plan, after: Plan) -> str:
    """What was halved, in words: ``dp_shard 8 → 2``; empty where nothing was."""
    degrees = (
        (axis, getattr(before.mesh, axis), getattr(after.mesh, axis)) for axis in (*AXES, "vpp", "ep", "etp")
    )
    return ", ".join(f"{axis} {was} → {now}" for axis, was, now in degrees if was != now)


def layers_of(config: Mapping[str, Any]) -> int | None:
    """How many layers a config says; None where it does not say it in one place."""
    found = [config[name] for name in LAYERS if isinstance(config.get(name), int)]
    return found[0] if len(found) == 1 else None


def truncated_layers_config(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The config of the same model with its first ``layers`` layers, what lists say of each included."""
    before = layers_of(config)
    lists = {
        name: value[:layers]
        for name, value in config.items()
        if isinstance(value, list) and len(value) == before
    }
    return {**config, **lists, **{name: layers for name in LAYERS if name in config}}
