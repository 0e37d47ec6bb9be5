"""The mesh: degrees that multiply to the GPUs, divide what they cut, and exist in the engine; the ZeRO stage
on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

from memsheet.late import late_functions
from memsheet.plan.check import Request
from memsheet.plan.engine import Engine
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.layers import has_experts
from memsheet.plan.model import Attention, LatentAttention, ModelSpec, Moe
from memsheet.plan.plan import Mesh
from memsheet.resolve.attention import MESH, attention_groups, check_groups
from memsheet.resolve.pipeline import spreads_layers
from memsheet.resolve.serving import experts_split

with late_functions(__name__):
    from memsheet.resolve.cut import cut_hint, rest_over


NOT_THE_PRODUCT = "is not the mesh's product"


PRODUCT = ("mesh.dp_replicate", "mesh.dp_shard", "mesh.cp", "mesh.tp", "mesh.pp")


def mesh_product(request: Request) -> int:
    result = 1
    for degree in [request[key] for key in PRODUCT if key in request]:
        result *= (
            degree if isinstance(degree, int) and degree else 1
        )  # a word is told where plans are checked
    return result


def zero_stage_of(gaps: RequestResolver, engine: Engine, task: str, gpus: int | None) -> int:
    if task != "train":
        return 0
    single = gpus == 1 or (gpus is None and mesh_product(gaps.request) == 1)
    kept = (
        engine.whole_in_pipelines
        and (gaps.request.get("mesh.pp") or 1) > 1
        and gaps.request.get("reshard_after_forward") is None
    )
    whole = kept or (
        engine.sharding.frees_as_asked and gaps.request.get("reshard_after_forward") is False
    )  # that is what zero 2 does
    zero: int = gaps.get("zero", 2 if whole else engine.default_zero, silent=single)
    if zero not in engine.zero:
        hint = {0: "engine transformers replicates the model", 1: "engine deepspeed has it"}.get(
            zero, "engine fsdp2 or deepspeed has it"
        )
        gaps.wrong(
            "zero",
            zero,
            f"does not exist in {engine.name}, which has {', '.join(map(str, engine.zero))}",
            hint,
        )
    return zero


def mesh_of(
    gaps: RequestResolver, engine: Engine, task: str, zero: int, gpus: int | None, model: ModelSpec | None
) -> Mesh:
    asked = gaps.request
    given = {axis: asked[key] if (key := f"mesh.{axis}") in asked else None for axis in MESH}
    degrees = {axis: value or 1 for axis, value in given.items()}
    product = mesh_product(gaps.request)
    spread = spreads_layers(gaps, engine, task)
    if gpus is not None and gpus % product:
        gaps.wrong(
            "gpus",
            gpus,
            f"is not a multiple of the mesh's product {product}",
            "dp_replicate · dp_shard · cp · tp · pp is the number of GPUs",
        )
    elif gpus is not None and gpus != product:
        rest = (
            ("pp" if spread else "dp_shard" if zero else "dp_replicate")
            if task == "train"
            else "tp"
            if "tp" in engine.serving_axes
            else "pp"
        )
        if given[rest] is not None:
            gaps.wrong(
                "gpus",
                gpus,
                f"{NOT_THE_PRODUCT} {product}",
                f"leave {rest} out and it takes the rest",
            )
        rest_over(gaps, degrees, rest, gpus // product, engine, model)
    if task == "infer" and engine.experts_whole:
        attention_groups(gaps, degrees, engine, model)
    axes = (
        engine.serving_axes
        if task == "infer"
        else engine.axes
        if model is not None
        else (*engine.axes, *engine.bare_axes)
    )
    axes = ("pp",) if spread else axes
    for axis, degree in degrees.items():
        if axis == "etp" and engine.experts_whole:
            degrees["etp"] = experts_split(gaps, degrees, engine.name)
        elif axis == "etp" and engine.splits_experts_over_tp:
            _check_expert_split(gaps, engine, degrees["tp"], model)
        elif degree > 1 and axis not in axes and axis not in ("ep", "etp", "vpp"):
            gaps.wrong(
                f"mesh.{axis}",
                degree,
                f"is not modelled for {engine.name} yet",
                f"modelled there: {', '.join(axes) or 'none'}",
            )
        elif degree > 1 and axis not in axes:
            gaps.wrong(f"mesh.{axis}", degree, f"is not modelled for {engine.name} yet")
    if zero == 0 and degrees["dp_shard"] > 1:
        gaps.wrong(
            "mesh.dp_shard",
            degrees["dp_shard"],
            "shards nothing at zero 0",
            "use dp_replicate, or zero 1 to 3",
        )
    if given["etp"] is None and engine.splits_experts_over_tp and not engine.experts_whole:
        degrees["etp"] = degrees["tp"]
    elif (
        given["etp"] is None
        and degrees["tp"] > 1
        and "etp" in engine.axes
        and task == "train"
        and model
        and has_experts(model)
    ):
        gaps.assumed.append(
            f"mesh.etp = 1 (a command of {engine.name} that does not say it has tp, {degrees['tp']})"
        )
    mesh = Mesh(**degrees)
    check_groups(gaps, mesh, engine, model)
    if model is not None:
        _check_divisibility(gaps, mesh, model)
    return mesh


def _check_expert_split(gaps: RequestResolver, engine: Engine, tp: int, model: ModelSpec | None) -> None:
    """Experts are cut over the tensor-parallel ranks: another degree inside them does not exist there."""
    given = gaps.request.get("mesh.etp")
    blocks = model.blocks() if model else ()
    if given not in (None, tp) and (
        given != 1 or any(isinstance(block.feed_forward, Moe) for block in blocks)
    ):
        gaps.wrong(
            "mesh.etp",
            given,
            f"is not modelled: {engine.name} cuts experts over all {tp} tensor-parallel ranks",
            "leave it out",
        )


def resharding_of(gaps: RequestResolver, engine: Engine, zero: int) -> bool:
    """Whether gathered parameters are freed after forward: what zero 3 is, and zero 2 is not."""
    given: bool = gaps.get("reshard_after_forward", zero == 3, silent=not engine.sharding.frees_as_asked)
    if given != (zero == 3) and gaps.request.get("task") != "infer":
        does = (
            "frees gathered parameters after forward"
            if zero == 3
            else "keeps parameters whole through backward"
        )
        hint = "that is zero 2 on fsdp2" if zero == 3 else "that is zero 3"
        gaps.wrong("reshard_after_forward", given, f"contradicts zero {zero}, which {does}", hint)
    return given


def _check_divisibility(gaps: RequestResolver, mesh: Mesh, model: ModelSpec) -> None:
    blocks = model.blocks()
    for heads in sorted(
        {m.heads for b in blocks for m in b.mixers if isinstance(m, Attention | LatentAttention)}
    ):
        if heads % max(1, mesh.attention_tp):
            hint = cut_hint(
                model, {"tp": mesh.tp, "attn_dp": mesh.attn_dp}, gaps.request.get("task", "train")
            )
            gaps.wrong(
                "mesh.tp", mesh.tp, f"does not divide the {heads} attention heads of {model.name}", hint
            )
    for kv in sorted({m.kv_heads for b in blocks for m in b.mixers if isinstance(m, Attention)}):
        if kv % (own := max(1, mesh.attention_tp)) and own % kv:
            hint = cut_hint(
                model, {"tp": mesh.tp, "attn_dp": mesh.attn_dp}, gaps.request.get("task", "train")
            )
            gaps.wrong(
                "mesh.tp",
                mesh.tp,
                f"neither divides the {kv} key/value heads of {model.name} nor is a multiple of them",
                hint,
            )
    counts = {b.feed_forward.experts for b in blocks if isinstance(b.feed_forward, Moe)}
    for experts in sorted(counts):
        if experts % mesh.ep:
            reason = f"does not divide the {experts} experts of {model.name}"
            gaps.wrong("mesh.ep", mesh.ep, reason, _expert_degrees(mesh, counts))
            return
    ranks = mesh.data_parallel * mesh.cp * mesh.tp
    if ranks % (
        mesh.ep * mesh.etp
    ):  # Megatron-LM 23e00ed core/parallel_state.py:703: the world is divided by ep · etp · pp
        reason = f"times etp {mesh.etp} does not divide the {ranks} ranks of a stage"
        gaps.wrong("mesh.ep", mesh.ep, reason, _expert_degrees(mesh, counts))


def _expert_degrees(mesh: Mesh, experts: Iterable[int]) -> str:
    """Degrees that divide the experts of every layer and the ranks of a stage."""
    ranks = mesh.data_parallel * mesh.cp * mesh.tp // mesh.etp
    shared = gcd(ranks, *experts) if ranks else 0
    degrees = [str(n) for n in range(1, shared + 1) if shared % n == 0]
    return f"one of {', '.join(degrees[-6:])}" if degrees else ""
