"""The cheapest change that makes a job fit, else the shortest list found greedily; every candidate is accounted again."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

from memsheet.account import account
from memsheet.budget import Change, Fix, Result, Verdict, budget_of, judge
from memsheet.engines import find_engine
from memsheet.errors import InputError
from memsheet.resolve import resolve
from memsheet.sheet import Sheet
from memsheet.spec.device import MAX_DEVICES, Cluster
from memsheet.spec.engine import Sharding
from memsheet.spec.model import ModelSpec
from memsheet.spec.plan import Loss, OptimizerName, Plan, RecomputeMode

Edits = Mapping[str, Any]
MAX_CHANGES = 5
TIERS = (2, 3, 4)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kind of change: how it edits a plan (None where it does not apply), what it is called and what it costs.

    ``tier``: 0 costs nothing, 1 time, 2 another optimizer or host memory, 3 more GPUs, 4 another kind of training.
    """

    tier: int
    words: str
    edit: Callable[[Plan, Cluster], Edits | None]
    needs: str = ""


def _fused_loss(plan: Plan, _: Cluster) -> Edits | None:
    return {"loss": "fused"} if plan.loss is Loss.PLAIN else None


def _recompute(plan: Plan, _: Cluster) -> Edits | None:
    return {"recompute.mode": "full"} if plan.recompute.mode is RecomputeMode.NONE else None


def _half_microbatch(plan: Plan, _: Cluster) -> Edits | None:
    """Half the micro-batch; the global batch stays what it was, so gradients accumulate."""
    if plan.microbatch < 2 or plan.microbatch % 2:
        return None
    batch = plan.global_batch or plan.microbatch * plan.mesh.data_parallel
    return {"microbatch": plan.microbatch // 2, "global_batch": batch}


def _zero_up(plan: Plan, cluster: Cluster) -> Edits | None:
    engine = find_engine(plan.engine)
    if engine is None or cluster.count == 1 or plan.zero >= 3:
        return None
    if engine.sharding is Sharding.REPLICATED:
        return {"engine": "fsdp2", "zero": 3, "precision": None}
    return {"zero": plan.zero + 1, "reshard_after_forward": None}


def _eight_bit(plan: Plan, _: Cluster) -> Edits | None:
    plain = plan.optimizer is not None and plan.optimizer.name is OptimizerName.ADAMW and plan.offload.optimizer == 0
    return {"optimizer.name": "adamw_8bit", "optimizer.implementation": None} if plain else None


def _offload(plan: Plan, _: Cluster) -> Edits | None:
    engine = find_engine(plan.engine)
    if engine is None or "optimizer" not in engine.offload or plan.offload.optimizer:
        return None
    if engine.sharding is Sharding.DEEPSPEED and plan.zero < 3:
        return {"offload.optimizer": 1}
    return {"offload.optimizer": 1, "offload.parameters": 1}


def _more_gpus(plan: Plan, cluster: Cluster) -> Edits | None:
    return {"gpus": cluster.count * 2} if plan.zero and cluster.count * 2 <= MAX_DEVICES else None


def _lora(plan: Plan, _: Cluster) -> Edits | None:
    return None if plan.adapter else {"adapter.rank": 16, "precision": None, "optimizer.name": None, "optimizer.implementation": None}


def _qlora(plan: Plan, _: Cluster) -> Edits | None:
    return {**(_lora(plan, _) or {}), "quantization.weights": "nf4"} if plan.quantization is None else None


CANDIDATES = (
    Candidate(0, "fused loss (logits never exist whole)", _fused_loss),
    Candidate(1, "recompute every layer", _recompute, "about a third more time"),
    Candidate(1, "half the micro-batch", _half_microbatch, "the same global batch in twice the steps"),
    Candidate(1, "shard more states (ZeRO up)", _zero_up, "more communication"),
    Candidate(2, "8-bit AdamW", _eight_bit, "another optimizer"),
    Candidate(2, "offload states to host memory", _offload, "host memory and a much slower step"),
    Candidate(3, "twice the GPUs", _more_gpus, "more GPUs"),
    Candidate(4, "LoRA, rank 16", _lora, "trains adapters only"),
    Candidate(4, "QLoRA, nf4 base and rank 16", _qlora, "trains adapters on a quantized base"),
)


@dataclass(frozen=True, slots=True)
class _Tried:
    """A request after some changes, and what it comes to."""

    request: Mapping[str, Any]
    cluster: Cluster
    plan: Plan
    sheets: tuple[Sheet, ...]
    verdict: Verdict
    changes: tuple[Change, ...]

    @property
    def bytes(self) -> int:
        return int(self.verdict.device.high)

    @property
    def host_bytes(self) -> int:
        return max(sheet.host_bytes for sheet in self.sheets)


def cheapest_fix(spec: ModelSpec, request: Mapping[str, Any], cluster: Cluster, sheets: tuple[Sheet, ...], verdict: Verdict) -> Fix | None:
    """The cheapest single change that fits, else the shortest list found greedily; None when it fits or nothing helps."""
    if verdict.result is Result.FITS or request.get("task") != "train":
        return None
    start = _Tried(request, cluster, resolve(request, spec, cluster).plan, sheets, verdict, ())
    singles: list[_Tried] = []
    for tier in TIERS:
        singles += _each(spec, start, (tier,) if singles else range(tier + 1))
        found = _greedily(spec, start, singles, tier)
        if found:
            return _fix(_shortest(spec, start, found))
    return None


def _fix(tried: _Tried) -> Fix:
    return Fix(changes=tried.changes, device=tried.verdict.device, host_bytes=tried.host_bytes)


def _each(spec: ModelSpec, state: _Tried, tiers: Container[int]) -> list[_Tried]:
    """Every change of some tiers that applies, in order of cost."""
    tried = (_apply(spec, state, candidate) for candidate in CANDIDATES if candidate.tier in tiers)
    return [t for t in tried if t is not None]


def _greedily(spec: ModelSpec, start: _Tried, singles: list[_Tried], tier: int) -> _Tried | None:
    """The first change that fits alone; else the one that saves most, then the next, until it fits."""
    state, options = start, singles
    for _ in range(MAX_CHANGES):
        fitting = [t for t in options if t.verdict.result is Result.FITS]
        if fitting:
            return fitting[0]
        helping = [t for t in options if t.bytes < state.bytes]
        if not helping:
            return None
        state = min(helping, key=lambda t: t.bytes)
        options = _each(spec, state, range(tier + 1))
    return None


def _shortest(spec: ModelSpec, start: _Tried, found: _Tried) -> _Tried:
    """Changes that turned out not to be needed are taken out again; of two, neither was enough alone."""
    best, changed = found, True
    while changed and len(best.changes) > 2:  # noqa: PLR2004
        changed = False
        for left_out in best.changes:
            again: _Tried | None = start
            for change in best.changes:
                if change is not left_out and again is not None:
                    again = _apply(spec, again, next(c for c in CANDIDATES if c.words == change.words))
            if again is not None and again.verdict.result is Result.FITS:
                best, changed = again, True
                break
    return best


def _apply(spec: ModelSpec, state: _Tried, candidate: Candidate) -> _Tried | None:
    """A change on top of others, accounted; None where it does not apply, is not legal or needs more host memory than there is."""
    edits = candidate.edit(state.plan, state.cluster)
    if edits is None:
        return None
    cluster = _resized(state.cluster, edits.get("gpus"))
    request = _edited(state.request, edits)
    try:
        plan = resolve(request, spec, cluster).plan
        sheets = tuple(account(spec, plan, cluster, stage) for stage in range(plan.mesh.pp))
    except InputError:
        return None
    verdict = judge(sheets, budget_of(cluster))
    host = max(sheet.host_bytes for sheet in sheets) * cluster.per_node
    if cluster.host_bytes is not None and host > cluster.host_bytes:
        return None
    (key, after), *rest = ((k, v) for k, v in edits.items() if v is not None)
    change = Change(
        key=key, before=_before(state, key), after=after, words=candidate.words, saves_bytes=state.bytes - int(verdict.device.high),
        needs=candidate.needs, also=tuple((k, _before(state, k), v) for k, v in rest),
    )  # fmt: skip
    return _Tried(request, cluster, plan, sheets, verdict, (*state.changes, change))


def _before(state: _Tried, key: str) -> Any:
    values = {
        "gpus": state.cluster.count, "loss": state.plan.loss.value, "recompute.mode": state.plan.recompute.mode.value,
        "microbatch": state.plan.microbatch, "zero": state.plan.zero, "engine": state.plan.engine,
        "optimizer.name": state.plan.optimizer.name.value if state.plan.optimizer else None,
        "offload.optimizer": state.plan.offload.optimizer, "offload.parameters": state.plan.offload.parameters,
        "global_batch": state.plan.global_batch, "adapter.rank": None, "quantization.weights": None,
    }  # fmt: skip
    return values.get(key)


def _edited(request: Mapping[str, Any], edits: Edits) -> dict[str, Any]:
    """The request with edits; None takes a key out (``precision`` all of its keys), and sharding degrees follow the GPUs."""
    merged = {**request, **edits}
    merged.pop("gpus", None)
    gone = {key for key, value in edits.items() if value is None}
    if "engine" in edits or "gpus" in edits:
        gone |= {"mesh.dp_shard", "mesh.dp_replicate"}
    return {k: v for k, v in merged.items() if k not in gone and not ("precision" in gone and k.startswith("precision."))}


def _resized(cluster: Cluster, gpus: int | None) -> Cluster:
    if gpus is None:
        return cluster
    return replace(cluster, nodes=gpus // cluster.per_node) if gpus % cluster.per_node == 0 else replace(cluster, per_node=gpus, nodes=1)
