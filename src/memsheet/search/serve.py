"""How to serve a model on a cluster: every cut accounted and timed by the same functions that ``memsheet infer`` asks, and ranked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from memsheet.account import account
from memsheet.budget import Result, judge_on, started
from memsheet.engines import engine_of
from memsheet.errors import InputError
from memsheet.formulas.serving.servers import server_of
from memsheet.formulas.serving_time import Seconds, decode_time, prefill_time, token_time
from memsheet.resolve import resolve
from memsheet.search.serve_load import Holds, Load, Reason, Served, most, reasons_of
from memsheet.search.serve_space import cuts, variants
from memsheet.sheet import Component, Sheet
from memsheet.spec.device import Cluster
from memsheet.spec.hardware import unsupported
from memsheet.spec.model import ModelSpec
from memsheet.spec.plan import Plan

LIMITED = ("vllm", "sglang")
"""Servers that run no more than max_sequences at once, however many have room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A mesh that no plan came of, and why."""

    mesh: Mapping[str, int]
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A change under which what is asked is held, and the search that found it."""

    words: str
    found: Deployment


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Every plan, the best first, and the meshes the engine or the model refuses. ``ways``: what would hold where nothing here does."""

    model: ModelSpec
    cluster: Cluster
    engine: str
    load: Load
    plans: tuple[Served, ...]
    refused: tuple[Cut, ...]
    notes: tuple[str, ...] = ()
    ways: tuple[Way, ...] = ()

    @property
    def best(self) -> Served | None:
        """The plan to take: the first that holds, or may."""
        first = self.plans[0] if self.plans else None
        return first if first is not None and first.holds is not Holds.NO else None


@dataclass(slots=True)
class Search:
    """A search on its way: what it is of, and what has been timed."""

    spec: ModelSpec
    cluster: Cluster
    load: Load
    notes: dict[str, None] = field(default_factory=dict)


def deploy(spec: ModelSpec, cluster: Cluster, request: Mapping[str, Any], load: Load, *, any_precision: bool = False) -> Deployment:
    """Weigh every cut. ``request``: what is pinned, with its engine. Raises InputError where every cut is refused for the same reason."""
    search, plans, refused = Search(spec, cluster, load), list[Served](), dict[str, Cut]()
    length = {"serving.max_model_len": request.get("serving.max_model_len") or load.context}
    others = tuple(variants(request, any_precision=any_precision, batches=load.ttft_s is not None))
    first: InputError | None = None
    for mesh in cuts(spec, cluster, request):
        for other in others:
            try:
                plans.append(_served(search, {**request, **length, **mesh, **other}))
            except InputError as error:
                first = first or error
                problem = error.problems[0]
                refused.setdefault(f"{mesh}", Cut(mesh=mesh, words=f"{problem.field} {problem.value} {problem.reason}"))
    if not plans and first is not None:
        raise first
    ranked = tuple(sorted(plans, key=lambda one: rank_key(one, load)))
    return Deployment(
        model=spec, cluster=cluster, engine=str(request.get("engine")), load=load, plans=ranked,
        refused=tuple(cut for cut in refused.values() if not any(_same(cut, one) for one in plans)), notes=tuple(search.notes),
    )  # fmt: skip


def _same(cut: Cut, one: Served) -> bool:
    return all(one.request.get(key) == size for key, size in cut.mesh.items())


def rank_key(one: Served, load: Load) -> tuple[float, ...]:
    """What holds comes first; of those the quickest token where a latency is asked, else the most users a GPU; then the fewest ranks that wait
    for one another. A format that nobody released comes after the model as it is where both do as well.
    """
    seconds = one.decode.value if one.decode else float("inf")
    first = one.prefill.value if one.prefill else float("inf")
    changed = sum(one.plan.quantization is not None and key in one.request for key in ("quantization.weights",))
    if one.holds is Holds.NO:
        return (2.0, -float(one.users * one.replicas), seconds, float(one.gpus_each), 0.0)
    if load.tpot_s is not None or load.ttft_s is not None:
        return (float(one.holds), seconds if load.tpot_s is not None else first, -one.users_per_gpu, float(changed), float(one.gpus_each))
    return (float(one.holds), -one.users_per_gpu, seconds, float(changed), float(one.gpus_each))


def _served(search: Search, request: Mapping[str, Any]) -> Served:
    """One plan, accounted and timed. Raises InputError where it is illegal or not modelled."""
    spec, cluster, load = search.spec, search.cluster, search.load
    resolved = resolve(request, spec, cluster)
    plan = resolved.plan
    if problems := tuple(unsupported(plan, cluster)):
        raise InputError(*problems)
    sheets = tuple(account(spec, plan, cluster, stage) for stage in stages(plan))
    facts = server_of(engine_of(plan)).facts(spec, plan, cluster, sheets)
    verdict = judge_on(sheets, cluster)
    if "short_bytes" in facts:
        verdict = started(verdict, facts["short_bytes"])
    sequences = _sequences(plan, facts, load) if verdict.result is not Result.DOES_NOT_FIT else (0, 0)
    batch = _batch(plan, sequences[1], load)
    decode, prefill, users = _timed(search, plan, batch, sequences[1])
    reasons = tuple(reasons_of(verdict, sequences, int(plan.mesh.dp_replicate), load, decode, prefill))
    worst = max(sheets, key=lambda sheet: sheet.device.high)
    return Served(
        request=request, plan=plan, assumed=resolved.assumed, sheets=sheets, verdict=verdict, serving=facts,
        weights_bytes=int(worst.of(Component.PARAMETERS).value), kv_bytes=int(worst.of(Component.KV_CACHE).value),
        sequences=sequences, batch=batch, decode=decode, prefill=prefill, users=users, reasons=_limited(plan, facts, load, reasons),
    )  # fmt: skip


def stages(plan: Plan) -> list[int]:
    """The stages that may decide: the first has the embedding, the last the head, the one before it as many layers as any. Transformers asks
    for all of them.
    """
    count = plan.mesh.pp
    return list(range(count)) if plan.engine not in LIMITED else sorted({0, max(0, count - 2), count - 1})


def _sequences(plan: Plan, facts: Mapping[str, Any], load: Load) -> tuple[int, int]:
    """Sequences of the context on one replica: at least, and as expected."""
    room = int(facts["max_sequences"].get(str(load.context), 0))
    tokens, low = int(facts.get("kv_tokens") or 0), int(facts.get("kv_tokens_low") or facts.get("kv_tokens") or 0)
    least = room * low // tokens if tokens else room
    limit = int(plan.max_sequences or room) if plan.engine in LIMITED else room
    return min(least, limit), min(room, limit)


def _batch(plan: Plan, sequences: int, load: Load) -> int:
    """Sequences that decode at once on a replica: those of its users, as many as have room."""
    mine = sequences if load.users is None else -(-load.users // int(plan.mesh.dp_replicate))
    return max(1, min(mine, sequences))


def _timed(search: Search, plan: Plan, batch: int, sequences: int) -> tuple[Seconds | None, Seconds | None, int]:
    """Seconds between tokens at ``batch``, seconds to the first token, and users of a replica within the latency asked."""
    spec, cluster, load = search.spec, search.cluster, search.load
    if not sequences:
        return None, None, 0
    try:
        prefill = prefill_time(spec, plan, cluster, load.prompt)
    except InputError as error:
        search.notes[f"latencies are not told: {error.problems[0].value} {error.problems[0].reason}"] = None
        return None, None, sequences

    def at(count: int) -> Seconds:
        decode = decode_time(spec, plan, cluster, count, load.middle)
        return token_time(decode, prefill, count, load.output_tokens) if load.output_tokens else decode

    asked = load.tpot_s
    within = sequences if asked is None else most(sequences, lambda count: at(count).value <= asked)
    return at(batch), prefill, within


def _limited(plan: Plan, facts: Mapping[str, Any], load: Load, reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """Where the engine's own limit, and not room, is what there are too few of."""
    room = int(facts["max_sequences"].get(str(load.context), 0)) if facts.get("max_sequences") else 0
    if plan.engine not in LIMITED or not plan.max_sequences or room <= int(plan.max_sequences):
        return reasons
    words = f"runs {int(plan.max_sequences):,} sequences a replica at once by its own limit (--sequences), and has room for {room:,}"
    return tuple(
        Reason(asks=one.asks, holds=one.holds, words=words) if one.asks == "users" and one.holds is Holds.NO else one for one in reasons
    )


def comparison(found: Deployment) -> Iterator[Served]:
    """The best plan of every cut without stages: as many replicas as GPUs, pairs, groups of four, and so on."""
    seen = set[int]()
    for one in sorted(found.plans, key=lambda one: (one.gpus_each, rank_key(one, found.load))):
        if one.plan.mesh.pp == 1 and one.gpus_each not in seen:
            seen.add(one.gpus_each)
            yield one


def fullest(sheets: tuple[Sheet, ...]) -> Sheet:
    """The sheet of the rank that takes most."""
    return max(sheets, key=lambda sheet: sheet.device.high)
