"""How far a model's layers can be cut: the most tensor-parallel ranks that its heads allow, and what becomes
of the other GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.plan.engine import Engine
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.model import Attention, LatentAttention, ModelSpec


def heads_of(model: ModelSpec) -> tuple[frozenset[int], frozenset[int]]:
    """The numbers of attention heads that a model's layers have, and of key/value heads."""
    mixers = model.mixers()
    heads = frozenset(m.heads for m in mixers if isinstance(m, Attention | LatentAttention))
    return heads, frozenset(m.kv_heads for m in mixers if isinstance(m, Attention))


def cuts_heads(model: ModelSpec, ranks: int) -> bool:
    """Whether every layer's heads can be cut over so many ranks: its heads evenly, key/value heads evenly or
    copied evenly.
    """
    heads, kv_heads = heads_of(model)
    return all(count % ranks == 0 for count in heads) and all(
        kv % ranks == 0 or ranks % kv == 0 for kv in kv_heads
    )


def most_ranks(model: ModelSpec, ranks: int, groups: int = 1) -> int:
    """The largest part of ``ranks`` that cuts the model, of which each of ``groups`` has a share; 1 where
    none does.
    """
    parts = (part for part in range(ranks, 0, -1) if ranks % part == 0 and part % groups == 0)
    return next((part for part in parts if cuts_heads(model, part // groups)), 1)


def rest_over(
    gaps: RequestResolver,
    degrees: dict[str, int],
    rest: str,
    left: int,
    engine: Engine,
    model: ModelSpec | None,
) -> None:
    """Give the GPUs that nobody spoke of to ``rest``; where they are more tensor-parallel ranks than cut the
    model, the largest number that does, and replicas.
    """
    part = left
    if (
        rest == "tp"
        and model is not None
        and "dp_replicate" in engine.serving_axes
        and gaps.request.get("mesh.dp_replicate") is None
    ):
        part = most_ranks(model, left, degrees["attn_dp"] if left % degrees["attn_dp"] == 0 else 1)
    degrees[rest] *= part
    if part == left:
        gaps.assumed.append(f"mesh.{rest} = {degrees[rest]}")
        return
    degrees["dp_replicate"] *= left // part
    assert model is not None
    many = ", ".join(map(str, sorted(heads_of(model)[0])))
    gaps.assumed.append(
        f"mesh.tp = {degrees['tp']} and mesh.dp_replicate = {degrees['dp_replicate']} ({left} ranks do "
        f"not cut {many} attention heads)"
    )


def cut_hint(model: ModelSpec, degrees: Mapping[str, int], task: str) -> str:
    """What to say where tensor-parallel ranks do not divide heads: the numbers next to them that do."""
    groups = degrees["attn_dp"] if degrees["tp"] % degrees["attn_dp"] == 0 else 1
    asked = degrees["tp"] // groups
    fewer = next((ranks for ranks in range(asked - 1, 1, -1) if cuts_heads(model, ranks)), 1)
    more = next((ranks for ranks in range(asked + 1, 2 * asked + 1) if cuts_heads(model, ranks)), None)
    told = f"--tp {fewer * groups}" + (f" or --tp {more * groups}" if more else "")
    return told + (f"; `memsheet plan infer {model.name}` tries every cut" if task == "infer" else "")
