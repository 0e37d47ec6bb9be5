"""Every way to cut a model over a cluster for serving: tensor-parallel ranks, stages, replicas, experts,
formats, batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.plan.device import Cluster
from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.layers import has_experts
from memsheet.plan.model import ModelSpec, Moe

AXES = ("mesh.tp", "mesh.pp", "mesh.dp_replicate", "mesh.ep", "mesh.attn_dp")
FORMATS: tuple[Mapping[str, Any], ...] = (
    {"quantization.weights": "fp8"},
    {"serving.kv_dtype": "fp8"},
    {"quantization.weights": "fp8", "serving.kv_dtype": "fp8"},
)
"""Weights and caches in eight bits, tried beside the model as released where that is asked for."""
BATCHES = (2048, 16384)
"""Of max_batched_tokens beside the engine's own, where the first token's time is asked: larger parts of a
prompt read it sooner.
"""


MOST_STAGES = 16
"""Of a pipeline, unless --pp asks for more: every stage adds its starts and a message to each token, and none
was found beyond the nodes of a job.
"""


def gpu_count_divisors(count: int) -> list[int]:
    return [number for number in range(1, count + 1) if count % number == 0]


def serving_meshes(
    spec: ModelSpec, cluster: Cluster, request: Mapping[str, Any]
) -> Iterator[Mapping[str, int]]:
    """Meshes whose ranks are the cluster's, those that are pinned alone. Tensor parallelism stays inside a
    node, stages are no more than layers.
    """
    layers = spec.layers
    experts = max(
        (block.feed_forward.experts for block in spec.blocks() if isinstance(block.feed_forward, Moe)),
        default=0,
    )
    pinned = {key: request[key] for key in AXES if request.get(key) is not None}
    for mesh in attention_dp_meshes(spec, cluster, request):
        if (mesh["mesh.ep"] == 1 or mesh["mesh.ep"] <= experts) and all(
            mesh[key] == size for key, size in pinned.items()
        ):
            yield mesh
    if pinned.get("mesh.attn_dp", 1) != 1:
        return
    alone = {"mesh.attn_dp": 1} if _groups_attention(find_engine(str(request.get("engine")))) else {}
    for tp in gpu_count_divisors(cluster.count):
        if tp > cluster.per_node and "mesh.tp" not in request:
            continue
        for pp in gpu_count_divisors(cluster.count // tp):
            if pp > min(layers, MOST_STAGES) and "mesh.pp" not in request:
                continue
            replicas = cluster.count // tp // pp
            for ep in sorted({1, tp} if experts else {1}):
                mesh = {"mesh.tp": tp, "mesh.pp": pp, "mesh.dp_replicate": replicas, "mesh.ep": ep, **alone}
                if (ep == 1 or ep <= experts) and all(
                    request.get(key, size) == size for key, size in mesh.items()
                ):
                    yield mesh


def _groups_attention(engine: Engine | None) -> bool:
    """Whether an engine has data-parallel attention."""
    return engine is not None and "attn_dp" in engine.serving_axes


def attention_dp_meshes(
    spec: ModelSpec, cluster: Cluster, request: Mapping[str, Any]
) -> Iterator[dict[str, int]]:
    """Meshes with data-parallel attention: one server of all GPUs, or one a node, whose ranks attend in
    groups inside a node. Its experts are cut over all ranks of a server or dealt to them; over several nodes
    they are dealt.
    """
    engine = find_engine(str(request.get("engine")))
    if engine is None or not _groups_attention(engine):
        return
    if not engine.serving.cuts_dense_over_groups and not has_experts(spec):
        return
    families = engine.serving.grouped_families
    if families is not None and not {block.kind for block in spec.blocks()} <= families:
        return
    sizes = {cluster.count, cluster.per_node} if "mesh.tp" not in request else {int(request["mesh.tp"])}
    for tp in sorted(size for size in sizes if size > 1 and cluster.count % size == 0):
        for own in (
            size for size in gpu_count_divisors(min(tp, cluster.per_node)) if size < tp and tp % size == 0
        ):
            for ep in (tp,) if tp > cluster.per_node else (1, tp) if has_experts(spec) else (1,):
                yield {
                    "mesh.tp": tp,
                    "mesh.pp": 1,
                    "mesh.dp_replicate": cluster.count // tp,
                    "mesh.ep": ep,
                    "mesh.attn_dp": tp // own,
                }


def eight_bit_formats(spec: ModelSpec, request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Eight bits of what is left open; weights that were released in fewer are left as they are."""
    for form in FORMATS:
        if not any(request.get(key) is not None for key in form) and not (
            spec.quantization and "quantization.weights" in form
        ):
            yield form


def mesh_independent_options(
    spec: ModelSpec, request: Mapping[str, Any], *, any_precision: bool, batches: bool
) -> Iterator[Mapping[str, Any]]:
    """What is left open besides the mesh."""
    forms: tuple[Mapping[str, Any], ...] = ({}, *eight_bit_formats(spec, request)) if any_precision else ({},)
    sizes = (None, *BATCHES) if batches and "serving.max_batched_tokens" not in request else (None,)
    for form in forms:
        for size in sizes:
            yield {**form, **({"serving.max_batched_tokens": size} if size else {})}
