"""How to serve a model, as JSON (``memsheet/serve-plans/1``): every plan can be asked again; keys as in
``memsheet/plans/1`` where they mean the same.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from memsheet.plan.document import model_reference, plan_document
from memsheet.report.json.document import ByteRange, Document, Natural, Plan, Result, read_from
from memsheet.report.json.plans import Interval
from memsheet.report.shared.plans.serving_words import parallel_group_words, serving_command
from memsheet.search.serve import load
from memsheet.search.serve.cuts import Deployment, best_plan_per_cut
from memsheet.sheet import Instant

Holds = Literal["yes", "perhaps", "no"]


class Load(Document):
    """What is to be held; what nobody asked is null."""

    context: Natural
    users: Natural | None
    ttft_s: float | None
    tpot_s: float | None
    prompt_tokens: Natural | None
    output_tokens: Natural | None


class Looked(Document):
    """``plans``: cuts that were tried; ``legal``: those that could be accounted."""

    plans: Natural
    legal: Natural
    seconds: float | None
    engines: list[str]


class Reason(Document):
    """One thing that is asked of a plan, and its answer."""

    asks: Literal["memory", "users", "tpot", "ttft"]
    holds: Holds = read_from(lambda reason: _holds_word(reason.holds))
    words: str


class CountBounds(Document):
    """At least, and as expected."""

    low: Natural
    value: Natural


class _Candidate(NamedTuple):
    one: load.Served
    found: Deployment


def _serving_request(at: _Candidate) -> dict[str, Any]:
    return plan_document(at.one.plan, model=model_reference(at.found.model), cluster=at.found.cluster)


class ServePlan(Document):
    """One plan, accounted and timed; ``plan`` can be asked again. ``sequences``: of the context, on all
    replicas; ``users``: of those, within the latency asked; ``decode_s``: between tokens while
    ``decode_batch`` sequences decode on a replica; ``prefill_s``: to the first token.
    """

    plan: Plan = read_from(_serving_request)
    assumed: list[str] = read_from("one.assumed")
    cut: str = read_from(lambda at: parallel_group_words(at.one.plan))
    holds: Holds = read_from(lambda at: _holds_word(at.one.holds))
    reasons: list[Reason] = read_from("one.reasons")
    verdict: Result = read_from("one.verdict.result")
    device: ByteRange = read_from("one.verdict.device")
    capacity_bytes: Natural = read_from("found.cluster.device.framework_bytes")
    headroom_bytes: int = read_from("one.verdict.headroom_bytes")
    rank: int = read_from("one.verdict.rank")
    instant: Instant = read_from("one.verdict.instant")
    weights_bytes: Natural = read_from("one.weights_bytes")
    kv_cache_bytes: Natural = read_from("one.kv_bytes")
    replicas: Natural = read_from("one.replicas")
    gpus_per_replica: Natural = read_from("one.gpus_each")
    sequences_per_replica: CountBounds = read_from("one.sequences")
    sequences: Natural = read_from("one.in_all")
    users: Natural = read_from(lambda at: at.one.users * at.one.replicas)
    users_low: Natural = read_from(lambda at: at.one.within[0] * at.one.replicas)
    users_per_gpu: float = read_from("one.users_per_gpu")
    decode_batch: Natural = read_from("one.batch")
    tokens_per_s: float | None = read_from("one.tokens_per_s")
    decode_s: Interval | None = read_from("one.decode")
    decode_parts_s: dict[str, float] | None = read_from("one.decode.parts")
    prefill_s: Interval | None = read_from("one.prefill")
    command: str = read_from(lambda at: serving_command(at.found, at.one))


class Rejected(Document):
    family: str
    reason: str


def _rejected_cuts(found: Deployment) -> Iterator[tuple[str, str]]:
    for one in found.plans:
        if one.holds is load.Holds.NO:
            failed = (reason.words for reason in one.reasons if reason.holds is load.Holds.NO)
            yield parallel_group_words(one.plan), "; ".join(failed)
    for out in found.refused:
        yield " ".join(f"{key.removeprefix('mesh.')} {size}" for key, size in out.mesh.items()), out.words


class Way(Document):
    """A change under which the load is held."""

    change: str
    best: ServePlan


class ServePlans(Document):
    """The best plan first; ``comparison``: the places of those without stages, by size of group."""

    schema_: str = "memsheet/serve-plans/1"
    model: str = read_from("model.name")
    gpus: str = read_from(lambda found: f"{found.cluster.count}x{found.cluster.device.name}")
    load: Load
    search: Looked
    holds: Holds = read_from(lambda found: _holds_word(found.plans[0].holds) if found.plans else "no")
    plans: list[ServePlan] = read_from(lambda found: [_Candidate(one, found) for one in found.plans])
    comparison: list[Natural] = read_from(
        lambda found: [found.plans.index(one) for one in best_plan_per_cut(found)]
    )
    rejected: list[Rejected] = read_from(_rejected_cuts)
    ways: list[Way] = read_from(
        lambda found: [
            (way.words, _Candidate(way.found.best, way.found)) for way in found.ways if way.found.best
        ]
    )
    notes: list[str]


def serving_document(found: Deployment, *, seconds: float | None = None) -> dict[str, Any]:
    """The search as plain values. ``seconds``: how long it took."""
    plans = len(found.plans)
    looked = (plans + len(found.refused), plans, seconds, [found.engine])
    return ServePlans.document_of(found, search=looked)


def _holds_word(holds: load.Holds) -> str:
    return holds.name.lower()
