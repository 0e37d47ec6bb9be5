"""The cheapest change that makes a job fit, else the shortest list found greedily; every candidate is
accounted again.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import lru_cache
from typing import Any

from memsheet.account import account_rank
from memsheet.budget import (
    Change,
    Fix,
    LibraryUse,
    Result,
    Verdict,
    judge_plan,
    verdict_with_extra_bytes,
)
from memsheet.errors import InputError, raise_if_problems
from memsheet.frozen import replace
from memsheet.plan.device import Cluster
from memsheet.plan.hardware import unsupported_choices
from memsheet.plan.library_defaults import implied_library_keys
from memsheet.plan.model import ModelSpec
from memsheet.plan.overriding import with_attention_of_engine
from memsheet.plan.plan import Plan
from memsheet.resolve import resolve_request
from memsheet.search.fixes.candidates import CANDIDATES, Candidate, ChangedJob, Price
from memsheet.search.fixes.whole_plans import edited_cluster, edited_request, with_implied_keys
from memsheet.sheet import Sheet

MAX_CHANGES = 5


def cheapest_fix(
    spec: ModelSpec,
    request: Mapping[str, Any],
    cluster: Cluster,
    sheets: tuple[Sheet, ...],
    verdict: Verdict,
    library: LibraryUse | None = None,
) -> Fix | None:
    """The change that fits and costs least, else the list whose dearest change does, found greedily; None
    when it fits or nothing helps. ``library``: whose ways a change has.
    """
    return search_changes(spec, request, cluster, sheets, verdict, library)[0]


def search_changes(
    spec: ModelSpec,
    request: Mapping[str, Any],
    cluster: Cluster,
    sheets: tuple[Sheet, ...],
    verdict: Verdict,
    library: LibraryUse | None = None,
) -> tuple[Fix | None, tuple[str, ...]]:
    """The cheapest fix, and where there is none what was tried, in words."""
    if verdict.result is Result.FITS or request.get("task") != "train":
        return None, ()
    start = ChangedJob(
        request, cluster, resolve_request(request, spec, cluster).plan, sheets, verdict, (), library
    )
    singles, all_made = list[ChangedJob](), start
    for price in Price:
        singles += _applicable_changes(spec, start, (price,))
        alone = next((tried for tried in singles if tried.fits), None)
        all_made = all_made if alone else _all_changes(spec, all_made, price)
        if found := alone or _fitting_list(spec, start, singles, all_made, price):
            found = _merge_same_key(spec, start, _drop_needless_changes(spec, start, found))
            changes = with_implied_keys(spec, request, cluster, start.plan, found.changes, library)
            return Fix(changes=changes, device=found.verdict.device, host_bytes=found.host_bytes), ()
    tried = (*(one.made[0] for one in singles), *all_made.made)
    return None, tuple(dict.fromkeys(one.words.partition(" (")[0] for one in tried))


def _applicable_changes(spec: ModelSpec, state: ChangedJob, prices: Container[int]) -> list[ChangedJob]:
    """Changes of some prices that apply, in order of cost, as far as the first that fits."""
    found: list[ChangedJob] = []
    for candidate in CANDIDATES:
        tried = _account_change(spec, state, candidate) if candidate.price in prices else None
        if tried is not None:
            found.append(tried)
            if tried.fits:
                break
    return found


def _all_changes(spec: ModelSpec, state: ChangedJob, price: Price) -> ChangedJob:
    """Every change of a price that helps on top of others, as often as it does, until they may fit: without a
    step replayed, which could only say more of one that may.
    """
    for candidate in CANDIDATES:
        while candidate.price == price and state.verdict.result is Result.DOES_NOT_FIT:
            tried = _account_change(spec, state, candidate, replays=False)
            if tried is None or not tried.falls or tried.bytes >= state.bytes:
                break
            state = tried
    return state


def _fitting_list(
    spec: ModelSpec, start: ChangedJob, singles: list[ChangedJob], all_made: ChangedJob, price: Price
) -> ChangedJob | None:
    """The change that saves most, then the next, until it fits; else all together. Nothing where not even
    those may.
    """
    if all_made.verdict.result is Result.DOES_NOT_FIT:
        return None
    if found := _greedy_fitting_changes(spec, start, singles, price):
        return found
    again: ChangedJob | None = start
    for candidate in all_made.made:
        again = _account_change(spec, again, candidate) if again else None
    return again if again and again.fits else None


def _greedy_fitting_changes(
    spec: ModelSpec, start: ChangedJob, singles: list[ChangedJob], price: Price
) -> ChangedJob | None:
    """The change that saves most, then the next, until it fits."""
    state, options = start, singles
    for _ in range(MAX_CHANGES):
        fitting = [t for t in options if t.fits]
        if fitting:
            return fitting[0]
        helping = [t for t in options if t.bytes < state.bytes and t.falls]
        if not helping:
            return None
        state = min(helping, key=lambda t: t.bytes)
        options = _applicable_changes(spec, state, range(price + 1))
    return None


def _drop_needless_changes(spec: ModelSpec, start: ChangedJob, found: ChangedJob) -> ChangedJob:
    """Changes that turned out not to be needed are taken out again, the dearest first; of two, neither was
    enough alone.
    """
    best, changed = found, True
    while changed and len(best.changes) > 2:
        changed = False
        for left_out in sorted(range(len(best.made)), key=lambda at: -best.made[at].price):
            again: ChangedJob | None = start
            for at, candidate in enumerate(best.made):
                if at != left_out and again is not None:
                    again = _account_change(spec, again, candidate)
            if again is not None and again.fits:
                best, changed = again, True
                break
    return best


def _merge_same_key(spec: ModelSpec, start: ChangedJob, found: ChangedJob) -> ChangedJob:
    """Changes of one key as one, where making them at once comes to the same and no step raises the need:
    they are made where the first was, else where the last was.
    """
    every = [change.key for change in found.changes]
    first = list(dict.fromkeys(every))
    if len(first) == len(every):
        return found
    for keys in (first, list(dict.fromkeys(every[::-1]))[::-1]):
        told = _changes_in_order(spec, start, found, keys)
        if told is not None and told.fits:
            return told
    return found


def _changes_in_order(
    spec: ModelSpec, start: ChangedJob, found: ChangedJob, keys: list[str]
) -> ChangedJob | None:
    """The changes of a list key by key, those of each as one."""
    state: ChangedJob | None = start
    told: list[Change] = []
    for key in keys:
        before, of_key = (
            state,
            [made for made, change in zip(found.made, found.changes, strict=True) if change.key == key],
        )
        for candidate in of_key:
            state = _account_change(spec, state, candidate) if state else None
        if before is None or state is None:
            return None
        told.append(_as_one(of_key[-1], before, state.changes[len(before.changes) :]))
    return replace(state, changes=tuple(told), further={}) if state else None


def _as_one(candidate: Candidate, before: ChangedJob, made: tuple[Change, ...]) -> Change:
    """Changes of one key, one after another, as one."""
    if len(made) == 1:
        return made[0]
    first, last = made[0], made[-1]
    rows = {
        key: after for change in made for key, _, after in ((change.key, None, change.after), *change.also)
    }
    again = candidate.again.format(before=_previous_value(before, last.key), after=last.after)
    return Change(
        key=last.key,
        before=_previous_value(before, last.key),
        after=last.after,
        before_bytes=first.before_bytes,
        after_bytes=last.after_bytes,
        words=again or candidate.words,
        needs=candidate.needs,
        also=tuple(
            (key, _previous_value(before, key), after) for key, after in rows.items() if key != last.key
        ),
    )


def _account_change(
    spec: ModelSpec, state: ChangedJob, candidate: Candidate, *, replays: bool = True
) -> ChangedJob | None:
    """A change on top of others, accounted once; None where it does not apply, is not legal or needs more
    host memory than there is.
    """
    made = candidate.words, replays
    if made not in state.further:
        state.further[made] = _change_accounted(spec, state, candidate, replays=replays)
    return state.further[made]


def _change_accounted(
    spec: ModelSpec, state: ChangedJob, candidate: Candidate, *, replays: bool
) -> ChangedJob | None:
    edits = candidate.edit(state)
    if edits is None:
        return None
    edits = with_attention_of_engine(edits, state.request)
    cluster, request = edited_cluster(state.cluster, edits), edited_request(state.request, edits)
    library = state.library if "engine" not in edits else None  # another engine is no library's
    request |= implied_library_keys(library.name, request) if library else {}
    try:
        plan = resolve_request(request, spec, cluster).plan
        raise_if_problems(unsupported_choices(plan, cluster, spec))
        if plan.engine != state.plan.engine and edits.keys().isdisjoint(("engine", "gpus")):
            return None  # what another engine takes is no change of this job
        sheets, verdict = _sheets_and_verdict(spec, plan, cluster, library, replays=replays)
    except InputError:
        return None
    if verdict.host_short_bytes:
        return None
    (key, after), *rest = edits.items()
    change = Change(
        key=key,
        before=_previous_value(state, key),
        after=after,
        words=candidate.words,
        before_bytes=state.expected_bytes,
        after_bytes=int(verdict.device.value),
        needs=candidate.needs,
        also=tuple((k, _previous_value(state, k), v) for k, v in rest),
    )
    made = (*state.made, candidate)
    return ChangedJob(request, cluster, plan, sheets, verdict, (*state.changes, change), library, made)


def _sheets_and_verdict(
    spec: ModelSpec, plan: Plan, cluster: Cluster, library: LibraryUse | None, *, replays: bool
) -> tuple[tuple[Sheet, ...], Verdict]:
    """Sheets and verdict of a plan with what a library holds besides; the step is replayed, as it is for a
    question, where that could decide.
    """
    sheets, verdict = judged_sheets(spec, plan, cluster)
    if replays and verdict.result is not Result.DOES_NOT_FIT:
        sheets, verdict = judged_sheets(spec, plan, cluster, replays=True)
    return sheets, verdict_with_extra_bytes(
        verdict, cluster, *library.extra_bytes(spec, plan)
    ) if library else verdict


@lru_cache(maxsize=128)
def judged_sheets(
    spec: ModelSpec, plan: Plan, cluster: Cluster, *, replays: bool = False
) -> tuple[tuple[Sheet, ...], Verdict]:
    """Sheets and verdict of a plan, to which changes come in several orders."""
    sheets = tuple(account_rank(spec, plan, cluster, stage, replays=replays) for stage in range(plan.mesh.pp))
    return sheets, judge_plan(spec, plan, cluster, sheets)


def _previous_value(state: ChangedJob, key: str) -> Any:
    """What a key was: as asked, else as resolved."""
    plan = state.plan
    resolved = {
        "gpus": f"{state.cluster.count}x{state.cluster.device.name}", "nodes": state.cluster.nodes, "loss": plan.loss.value, "recompute.mode": plan.recompute.mode.value,
        "attention": plan.attention.value, "zero": plan.zero, "engine": plan.engine, "cuda_graphs": list(plan.cuda_graphs) or False, "allocator.expandable_segments": plan.expandable_segments,
        "optimizer.name": plan.optimizer.name.value if plan.optimizer else None, "offload.optimizer": plan.offload.optimizer,
        "offload.parameters": plan.offload.parameters, "mesh.dp_shard": plan.mesh.dp_shard, "mesh.dp_replicate": plan.mesh.dp_replicate,
        "mesh.tp": plan.mesh.tp, "mesh.cp": plan.mesh.cp, "sequence_parallel": plan.sequence_parallel, "offload.activations": plan.offload.activations,
        "gradient_sync": plan.gradient_sync.value if plan.gradient_sync else None,
    }  # fmt: skip
    given = state.request.get(key)
    if given is None and key in ("microbatch", "global_batch"):
        return getattr(plan.training, key)
    return resolved.get(key) if given is None else given
