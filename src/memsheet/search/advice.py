"""What a planner says beside its ranking: why the plan looks as it does, what each saving costs, and what
else would do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from memsheet.budget import Result, budget_of
from memsheet.errors import InputError
from memsheet.formulas.step_time import Exchanged, data_parallel_traffic
from memsheet.frozen import dataclass, replace
from memsheet.plan.device import MAX_DEVICES, Cluster
from memsheet.plan.engine_registry import find_engine, sharding_counterpart, with_own_adapters
from memsheet.plan.model import ModelSpec
from memsheet.processes import share_out
from memsheet.search.fixes.savings_story import Step, story_steps
from memsheet.search.train.fastest_first import search_fastest_plan
from memsheet.search.train.rank import (
    Ranking,
    Searched,
    plan_offloads,
    rank_training_plans,
    search_engines,
)
from memsheet.search.train.space import OFFLOAD, Request
from memsheet.search.train.timed import APART, Planned, Scaled, planned_of

METHODS: Mapping[str, Mapping[str, Any]] = {
    "full": {},
    "lora": {"adapter.rank": 16},
    "qlora": {"adapter.rank": 16, "quantization.weights": "nf4"},
}
"""What is trained, as keys of a request."""
STATES_ON_CARDS: Mapping[str, Any] = {
    "optimizer.name": "adamw",
    "offload.optimizer": 0,
    "offload.parameters": 0,
}
"""AdamW's states where they are by default, as keys of a request."""
NONE_FITS: Mapping[Result, str] = {Result.UNCERTAIN: "none is sure to fit", Result.DOES_NOT_FIT: "none fits"}
DOUBLINGS = 7
SAVINGS: Mapping[str, Mapping[str, Any]] = {
    "recompute": {"recompute.mode": "none"},
    "offload": dict.fromkeys(OFFLOAD),
    "8-bit states": {"optimizer.name": "adamw"},
    "ZeRO-3": {"zero": 2},
}
"""How a plan saves memory, and what it would be without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """One saving of a plan taken back: what its expected bytes then lack on the worst GPU, and how much
    faster the step is.
    """

    saving: str
    planned: Planned
    missing_bytes: int
    gains_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """Whole copies (DDP): the fastest that fit. ``plain``: the fastest of an engine whose model code somebody
    divides, beside the same plan with every state divided (``sharded``, ZeRO-3), and what each exchanges;
    None where nobody does.
    """

    fastest: Planned
    plain: Planned | None = None
    sharded: Planned | None = None
    plain_exchange: Exchanged | None = None
    sharded_exchange: Exchanged | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """``ranking``, and of its first plan (else of the one that needs least): the way to it, its savings taken
    back, whole copies where they fit. ``methods``: the best plan of others, or why there is none, ``more``:
    of a larger cluster that keeps AdamW's states on the cards; both where this one strains.
    """

    ranking: Ranking
    story: tuple[Step, ...] = ()
    undone: tuple[Undone, ...] = ()
    replicas: Replicas | None = None
    methods: tuple[tuple[str, Planned | None, str], ...] = ()
    more: tuple[Cluster, Planned] | None = None
    batches: tuple[tuple[int, Planned | None, Result | None], ...] = ()
    """Where nobody named a global batch: the sizes that were looked at, each with its best plan, and whether
    one fits (None: none is legal).
    """

    @property
    def strained(self) -> bool:
        """Whether AdamW's states do not fit the cards, though nobody asked for them elsewhere."""
        return bool(self.methods) or self.more is not None


def training_advice(
    model: ModelSpec,
    cluster: Cluster,
    request: Request,
    engines: Iterable[str],
    *,
    top: int,
    method: str = "full",
    scaled: Scaled = lambda _: None,
    searched: Searched | None = None,
) -> Advice:
    """Every legal plan of some engines ranked, and what is to be said of the best. ``searched``: those plans,
    where they were found before. Raises InputError as ``rank_training_plans`` does.
    """
    names, asked = tuple(engines), method_request(method, request)
    searched = searched or search_engines(model, cluster, asked, names, scaled, tells=True)
    ranking = rank_training_plans(model, cluster, asked, names, top=top, scaled=scaled, searched=searched)
    chosen = ranking.plans[0] if ranking.plans else ranking.least
    if chosen is None:
        return Advice(ranking=ranking)
    pinned = any(asked.get(key) for key in ("optimizer.name", *OFFLOAD))
    strains = ranking_strains_memory(ranking) and method == "full" and not pinned
    methods = list(_other_methods(asked)) if strains else []
    tasks: list[Callable[[], Any]] = [  # the longest first: others are done beside it
        *([partial(_smallest_larger_cluster, ranking, asked, names, scaled)] if strains else ()),
        *(partial(_adapter_method_plan, ranking, asked, name, names, scaled) for name in methods),
        partial(story_steps, model, cluster, asked, chosen, scaled),
        partial(_fastest_replicas, ranking, scaled),
        partial(_undone_savings, ranking, chosen, scaled),
    ]
    *others, story, replicas, undone = share_out(tasks, (model, cluster, *ranking.replicas, chosen))
    return Advice(
        ranking=ranking,
        story=story,
        replicas=replicas,
        undone=undone if ranking.plans else (),
        methods=tuple(others[len(others) - len(methods) :]),
        more=others[0] if strains else None,
    )


def method_request(method: str, request: Request) -> dict[str, Any]:
    """What a way to train asks, and what was asked besides."""
    return {**METHODS[method], **{key: value for key, value in request.items() if value is not None}}


def ranking_strains_memory(ranking: Ranking) -> bool:
    """Whether nothing fits, or the best plan keeps states on the host or in 8 bits."""
    best = ranking.plans[0].request if ranking.plans else {}
    return not best or plan_offloads(best) or best.get("optimizer.name") == "adamw_8bit"


def _undone_savings(ranking: Ranking, chosen: Planned, scaled: Scaled) -> tuple[Undone, ...]:
    """Savings whose loss would make the step faster, the least missing first."""
    found = [
        one
        for saving in SAVINGS
        if (one := _plan_without_saving(ranking, chosen, saving, scaled)) is not None
        and one.gains_s > chosen.seconds * APART
    ]
    return tuple(sorted(found, key=lambda one: one.missing_bytes))


def _plan_without_saving(ranking: Ranking, chosen: Planned, saving: str, scaled: Scaled) -> Undone | None:
    request = {**chosen.request, **SAVINGS[saving]}
    if all(
        chosen.request.get(key) in (value, None) or (key == "zero" and chosen.request[key] != 3)
        for key, value in SAVINGS[saving].items()
    ):
        return None
    planned = _plan_if_legal(ranking.model, ranking.cluster, request, scaled)
    if planned is None or planned.time is None or chosen.time is None:
        return None
    missing = max(0, int(planned.verdict.device.value) - budget_of(ranking.cluster).capacity_bytes)
    return Undone(
        saving=saving, planned=planned, missing_bytes=missing, gains_s=chosen.seconds - planned.seconds
    )


def _plan_if_legal(model: ModelSpec, cluster: Cluster, request: Request, scaled: Scaled) -> Planned | None:
    """A plan accounted and timed; None where it is not legal."""
    try:
        return planned_of(
            model,
            cluster,
            {k: v for k, v in request.items() if v is not None},
            scaled(str(request["engine"])),
        )
    except InputError:
        return None


def _fastest_replicas(ranking: Ranking, scaled: Scaled) -> Replicas | None:
    """The fastest whole copies that fit, of an engine whose code somebody shards where there is one."""
    if ranking.cluster.count == 1 or not ranking.replicas:
        return None
    fastest = min(ranking.replicas, key=lambda one: one.seconds)
    plain = min(ranking.replicas, key=lambda one: (_sharder_of(one) is None, one.seconds))
    partner, count = _sharder_of(plain), ranking.cluster.count
    if partner is None:
        return Replicas(fastest=fastest)
    divided = {**plain.request, "engine": partner, "zero": 3, "mesh.dp_replicate": 1, "mesh.dp_shard": count}
    sharded = _plan_if_legal(ranking.model, ranking.cluster, divided, scaled)
    if sharded is None or sharded.time is None:
        return Replicas(fastest=fastest)
    told_of = [
        data_parallel_traffic(ranking.model, one.plan, ranking.cluster, efficiency=scaled(one.plan.engine))
        for one in (plain, sharded)
    ]
    return Replicas(
        fastest=fastest, plain=plain, sharded=sharded, plain_exchange=told_of[0], sharded_exchange=told_of[1]
    )


def _sharder_of(planned: Planned) -> str | None:
    engine = find_engine(planned.plan.engine)
    return None if engine is None else sharding_counterpart(engine)


def _other_methods(asked: Request) -> Iterator[str]:
    """Other things to train: adapters of a base in as many bits as it is asked in are no other thing where
    adapters are asked for.
    """
    asks = {key: value for key, value in asked.items() if value}
    for name in ("lora", "qlora"):
        made = {key: value for key, value in METHODS[name].items() if key not in asks}
        if made and not (name == "lora" and "quantization.weights" in asks):
            yield name


def _adapter_method_plan(
    ranking: Ranking, asked: Request, name: str, engines: tuple[str, ...], scaled: Scaled
) -> tuple[str, Planned | None, str]:
    """Another thing to train on the same cluster at its best, with AdamW's states on the cards where that
    fits.
    """
    request = {**asked, **METHODS[name]}
    for own in ({**request, **STATES_ON_CARDS}, request):
        found, reason = _best_ranked_plan(ranking.model, ranking.cluster, own, engines, scaled)
        if found is not None:
            break
    return name, found, reason


def _best_ranked_plan(
    model: ModelSpec, cluster: Cluster, request: Request, engines: tuple[str, ...], scaled: Scaled
) -> tuple[Planned | None, str]:
    """The best plan, and where there is none why."""
    own = with_own_adapters(engines, request) or engines
    try:
        found, result, notes = search_fastest_plan(model, cluster, request, own, scaled)
    except InputError as error:
        return None, str(error.problems[0].reason)
    if found is not None:
        return found, ""
    return None, NONE_FITS[result] if result else "; ".join(notes)


def _smallest_larger_cluster(
    ranking: Ranking, asked: Request, engines: tuple[str, ...], scaled: Scaled
) -> tuple[Cluster, Planned] | None:
    """The first of twice, four times … as many devices where a plan keeps AdamW's states on the cards."""
    for power in range(1, DOUBLINGS + 1):
        larger = _multiplied_cluster(ranking.cluster, 1 << power)
        if larger.count > MAX_DEVICES:
            return None
        found, _ = _best_ranked_plan(ranking.model, larger, {**asked, **STATES_ON_CARDS}, engines, scaled)
        if found is not None and found.verdict.result is Result.FITS:
            return larger, found
    return None


def _multiplied_cluster(cluster: Cluster, times: int) -> Cluster:
    """So many times the nodes; a part of a node is filled first."""
    whole = cluster.device.per_node or cluster.per_node
    if cluster.nodes == 1 and cluster.count * times <= whole:
        return replace(cluster, per_node=cluster.count * times)
    return replace(cluster, nodes=cluster.nodes * times)
