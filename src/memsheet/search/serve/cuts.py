"""How to serve a model on a cluster: every cut accounted and timed by the same functions that ``memsheet
infer`` asks, and ranked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.account import account_rank
from memsheet.budget import Result, judge_plan, verdict_on_start, worst_sheet
from memsheet.errors import InputError, input_error, printable_line, raise_if_problems
from memsheet.formulas.serving.dp_attention import group_plan
from memsheet.formulas.serving.servers import server_facts
from memsheet.formulas.serving_time import End, Seconds, Timer, token_time
from memsheet.frozen import dataclass, field
from memsheet.plan.aliases import engine_word
from memsheet.plan.device import Cluster
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.hardware import unsupported_choices
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.resolve import resolve_request
from memsheet.resolve.length import length_notes
from memsheet.resolve.version import version_notes
from memsheet.search.pool_room import pools_cache, room_of, sequences_of
from memsheet.search.serve.load import Holds, Load, Reason, Served, groups_of, most_within_latency, reasons_of
from memsheet.search.serve.space import AXES, mesh_independent_options, serving_meshes
from memsheet.sheet import NOTHING, Bytes, Component


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
    """Every plan, the best first, and the meshes the engine or the model refuses. ``ways``: what would hold
    where nothing here does.
    """

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


def rank_serving_plans(
    spec: ModelSpec, cluster: Cluster, request: Mapping[str, Any], load: Load, *, any_precision: bool = False
) -> Deployment:
    """Weigh every cut. ``request``: what is pinned, with its engine. Raises InputError where every cut is
    refused for the same reason.
    """
    search, plans, refused = Search(spec, cluster, load), list[Served](), dict[str, Cut]()
    length = {"serving.max_model_len": request.get("serving.max_model_len") or load.context}
    others = tuple(
        mesh_independent_options(spec, request, any_precision=any_precision, batches=load.ttft_s is not None)
    )
    first: InputError | None = None
    for mesh in serving_meshes(spec, cluster, request):
        for other in others:
            try:
                plans.append(_for_users(search, {**request, **length, **mesh, **other}))
            except InputError as error:
                first = first or error
                problem = error.problems[0]
                refused.setdefault(
                    f"{mesh}",
                    Cut(mesh=mesh, words=f"{problem.field} {printable_line(problem.value)} {problem.reason}"),
                )
    if not plans:
        raise first or _no_cut(cluster, request)
    ranked = tuple(sorted(plans, key=lambda one: rank_key(one, load)))
    return Deployment(
        model=spec,
        cluster=cluster,
        engine=str(request.get("engine")),
        load=load,
        plans=ranked,
        refused=tuple(cut for cut in refused.values() if not any(_mesh_is_of_cut(cut, one) for one in plans)),
        notes=tuple(search.notes),
    )


def _no_cut(cluster: Cluster, request: Mapping[str, Any]) -> InputError:
    """Of degrees that are pinned and do not multiply to the cluster."""
    pinned = {key: request[key] for key in AXES if request.get(key) is not None}
    field = next(iter(pinned), "gpus")
    said = " · ".join(f"{key.removeprefix('mesh.')} {size}" for key, size in pinned.items())
    return input_error(
        field,
        pinned.get(field),
        f"is of no cut of {cluster.count} GPUs with {said}",
        "leave degrees out, and every cut is tried",
    )


def _mesh_is_of_cut(cut: Cut, one: Served) -> bool:
    return all(one.request.get(key) == size for key, size in cut.mesh.items())


def rank_key(one: Served, load: Load) -> tuple[float, ...]:
    """What holds comes first; of those the quickest token where so many users are to have it within some
    time, else the most users a GPU; then the fewest ranks that wait for one another. A format that nobody
    released comes after the model as it is where both do as well. Of what does not hold, the nearest: what
    has the room before what has not, and of that the nearest to the latency for the users that are asked for.
    """
    seconds = one.decode.value if one.decode else float("inf")
    first = one.prefill.value if one.prefill else float("inf")
    changed = sum(
        one.plan.quantization is not None and key in one.request for key in ("quantization.weights",)
    )
    if one.holds is Holds.NO:
        size = float(one.verdict.device.value) if not one.in_all else seconds
        late = _latency_overrun_ratio(seconds, first, load)
        asked = late if load.users is not None else 0.0  # else those that keep it are counted first
        lacks = float(one.in_all < (load.users or 1))
        return (
            2.0,
            lacks,
            0.0 if lacks else asked,
            -float(one.users * one.replicas),
            late,
            -float(one.in_all),
            size,
            float(one.gpus_each),
        )
    if load.users is not None and (load.tpot_s is not None or load.ttft_s is not None):
        return (
            float(one.holds),
            seconds if load.tpot_s is not None else first,
            -one.users_per_gpu,
            float(changed),
            float(one.gpus_each),
        )
    return (float(one.holds), -one.users_per_gpu, seconds, float(changed), float(one.gpus_each))


def _latency_overrun_ratio(decode_s: float, prefill_s: float, load: Load) -> float:
    """How many times as long as asked a latency takes, the worse of the two; nothing where none is asked or
    both are kept.
    """
    times = ((decode_s, load.tpot_s), (prefill_s, load.ttft_s))
    return max([found / asked for found, asked in times if asked is not None and found > asked], default=0.0)


def _for_users(search: Search, request: Mapping[str, Any]) -> Served:
    """One plan; where it does not surely hold the users that are asked for, one that runs no more of them
    than there are, as a server's buffers are sized for all that may run. Its room is still what its pool
    holds. Raises InputError where it is illegal or not modelled.
    """
    usual, load = _account_serving_plan(search, request), search.load
    key = "serving.max_sequences"
    if (
        load.users is None
        or request.get(key) is not None
        or usual.holds is Holds.YES
        or not pools_cache(usual.plan)
    ):
        return usual
    share = users_of_replica(usual.plan, load.users)
    if share >= int(usual.plan.serving.max_sequences or 0):
        return usual
    fewer = _account_serving_plan(search, {**request, key: share}, limit=sequence_limit(usual.plan))
    return min(usual, fewer, key=lambda one: (one.holds, -min(one.in_all, load.users or 0)))


def sequence_limit(plan: Plan) -> int:
    """The most sequences that a replica runs at once; with data-parallel attention, a group."""
    return int(group_plan(plan).serving.max_sequences or 0)


def users_of_replica(plan: Plan, users: int) -> int:
    """What ``--sequences`` says where replicas share users: of one replica, or of one group that attends by
    itself, unless the engine counts those of all groups.
    """
    groups = 1 if engine_of(plan).serving.limits_all_groups else plan.mesh.attn_dp
    return -(-users // int(plan.mesh.dp_replicate * groups))


def _account_serving_plan(search: Search, request: Mapping[str, Any], *, limit: int | None = None) -> Served:
    """One plan, accounted and timed. ``limit``: what its sequences could be set to, where their number is
    only that of the users asked for. Raises InputError where it is illegal or not modelled.
    """
    spec, cluster, load = search.spec, search.cluster, search.load
    resolved = resolve_request(request, spec, cluster)
    plan = resolved.plan
    search.notes.update(dict.fromkeys((*version_notes(plan), *length_notes(plan, spec))))
    raise_if_problems(unsupported_choices(plan, cluster, spec))
    sheets = tuple(account_rank(spec, plan, cluster, stage) for stage in deciding_stages(plan))
    facts = server_facts(spec, plan, cluster, sheets)
    verdict = judge_plan(spec, plan, cluster, sheets)
    if "short_bytes" in facts:
        verdict = verdict_on_start(verdict, facts["short_bytes"])
    held = (
        _context_sequences(search, plan, facts, limit or sequence_limit(plan))
        if verdict.result is not Result.DOES_NOT_FIT
        else NOTHING
    )
    sequences = held.low, held.value
    batch, decode, prefill, users = _decode_batch_and_latencies(search, plan, sequences)
    reasons = tuple(reasons_of(verdict, cluster, held, groups_of(plan), load, (decode, prefill)))
    fullest = worst_sheet(sheets)
    return Served(
        request=request,
        plan=plan,
        assumed=resolved.assumed,
        sheets=sheets,
        verdict=verdict,
        serving=facts,
        weights_bytes=int(fullest.of(Component.PARAMETERS).value),
        kv_bytes=int(fullest.of(Component.KV_CACHE).value),
        sequences=sequences,
        at_most=held.high,
        batch=batch,
        decode=decode,
        prefill=prefill,
        within=users,
        reasons=_engine_limit_reasons(plan, facts, load, reasons),
    )


def deciding_stages(plan: Plan) -> list[int]:
    """The stages that may decide: the first has the embedding, the last the head, and where they are uneven
    the one before it has as many layers as any. Without a pool, which is as long in all, any may.
    """
    count = plan.mesh.pp
    if not pools_cache(plan):
        return list(range(count))
    return sorted({0, count - 1, *([max(0, count - 2)] if plan.layers_per_stage else [])})


def _context_sequences(search: Search, plan: Plan, facts: Mapping[str, Any], limit: int) -> Bytes:
    """Sequences of the context on one replica: at least, as expected and at most."""
    room = room_of(search.spec, plan, search.cluster, facts, search.load.context)
    most = limit if limit and pools_cache(plan) else int(room.value)
    return Bytes(*(min(int(count), most) for count in (room.low, room.value, room.high)))


def _decode_batch_and_latencies(
    search: Search, plan: Plan, sequences: tuple[int, int]
) -> tuple[int, Seconds | None, Seconds | None, tuple[int, int]]:
    """Sequences that decode at once on a replica, seconds between their tokens, seconds to a first token, and
    users of a replica within the latency asked, surely and as expected.

    Those decode at once that share the users of a replica; where nobody counts users, as many as there is
    room for, or as surely keep the latency.
    """
    spec, cluster, load = search.spec, search.cluster, search.load
    if not sequences[1]:
        return 1, None, None, (0, 0)
    mine = sequences[1] if load.users is None else -(-load.users // groups_of(plan))
    batch = max(1, min(mine, sequences[1]))
    try:
        timer = Timer.of(spec, plan, cluster)
        prefill = timer.prefill(load.prompt)
    except InputError as error:
        search.notes[f"latencies are not told: {error.problems[0].value} {error.problems[0].reason}"] = None
        return batch, None, None, sequences
    others = 1 / load.output_tokens if load.output_tokens else 0.0  # of another's prompt, between two tokens

    def within(limit: int, end: End, prompt_s: float) -> int:
        """The most sequences that keep the latency at one end of its range."""
        assert load.tpot_s is not None
        asked = load.tpot_s
        return most_within_latency(
            limit,
            lambda count: timer.decode_s(end, count, load.middle, count * others * prompt_s, asked),
            asked,
        )

    users = sequences
    if load.tpot_s is not None:
        users = within(sequences[0], End.SLOW, prefill.high), within(sequences[1], End.VALUE, prefill.value)
        batch = batch if load.users is not None else users[0] or users[1] or 1
    decode = timer.decode(batch, load.middle)
    return (
        batch,
        token_time(decode, prefill, batch, load.output_tokens) if load.output_tokens else decode,
        prefill,
        users,
    )


def _engine_limit_reasons(
    plan: Plan, facts: Mapping[str, Any], load: Load, reasons: tuple[Reason, ...]
) -> tuple[Reason, ...]:
    """Where the engine's own limit, and not room, is what there are too few of."""
    room = int(sequences_of(facts, load.context).value)
    limit = sequence_limit(plan)
    if not pools_cache(plan) or not limit or room <= limit:
        return reasons
    words = (
        f"runs {limit:,} sequences a replica at once by its own limit "
        f"(--{engine_word('serving.max_sequences', plan.engine)}), and has room for {room:,}"
    )
    return tuple(
        Reason(asks=one.asks, holds=one.holds, words=words)
        if one.asks == "users" and one.holds is Holds.NO
        else one
        for one in reasons
    )


def best_plan_per_cut(found: Deployment) -> Iterator[Served]:
    """The best plan of every cut without stages: as many replicas as GPUs, pairs, groups of four, and so on;
    then the best with data-parallel attention, by groups of as many.
    """
    plain = [one for one in found.plans if one.plan.mesh.pp == 1]
    for grouped in (False, True):
        seen = set[int]()
        for one in sorted(plain, key=lambda one: (one.gpus_each, rank_key(one, found.load))):
            if (one.plan.mesh.attn_dp > 1) is grouped and one.gpus_each not in seen:
                seen.add(one.gpus_each)
                yield one
