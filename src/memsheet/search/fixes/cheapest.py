"""The cheapest change that makes a job fit, else the shortest list found greedily; every candidate is
accounted again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
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
    tensors_fit,
    verdict_with_extra_bytes,
)
from memsheet.errors import InputError, raise_if_problems
from memsheet.frozen import dataclass, field, replace
from memsheet.plan.device import MAX_DEVICES, ONE_NODE, Cluster
from memsheet.plan.dtypes import FP32, INT8
from memsheet.plan.engine_registry import SEVERAL_GPUS, find_engine
from memsheet.plan.hardware import unsupported_choices
from memsheet.plan.library_defaults import implied_library_keys
from memsheet.plan.model import ModelSpec
from memsheet.plan.overriding import with_attention_of_engine
from memsheet.plan.plan import Loss, OptimizerName, Plan, RecomputeMode
from memsheet.plan.workload import Training
from memsheet.resolve import resolve_request
from memsheet.search.fixes.whole_plans import edited_cluster, edited_request, with_implied_keys
from memsheet.sheet import Sheet

Edits = Mapping[str, Any]
MAX_CHANGES = 5
TIERS = (2, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class _Tried:
    """A request after some changes, and what it comes to."""

    request: Mapping[str, Any]
    cluster: Cluster
    plan: Plan
    sheets: tuple[Sheet, ...]
    verdict: Verdict
    changes: tuple[Change, ...]
    library: LibraryUse | None = None
    further: dict[str, _Tried | None] = field(default_factory=dict, compare=False)
    """What became of changes on top of these, by their words: several lists begin alike."""

    @property
    def bytes(self) -> int:
        """What a search goes by: the high end, which must fit."""
        return int(self.verdict.device.high)

    @property
    def expected_bytes(self) -> int:
        return int(self.verdict.device.value)

    @property
    def falls(self) -> bool:
        """Whether every change so far lowers what is expected."""
        return all(change.after_bytes < change.before_bytes for change in self.changes)

    @property
    def fits(self) -> bool:
        """Whether it is a way to make the job fit."""
        return self.verdict.result is Result.FITS and self.falls

    def names(self, prefix: str) -> bool:
        """Whether the question gives a key of that kind."""
        return any(key.startswith(prefix) and value is not None for key, value in self.request.items())

    @property
    def host_bytes(self) -> int:
        return max(sheet.host_bytes for sheet in self.sheets)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kind of change: the keys it sets on top of a question (None where it does not apply), what it is
    called and what it costs.

    ``tier``: 0 costs nothing, 1 time, 2 another optimizer or host memory, 3 another layout of the same GPUs,
    4 more GPUs, 5 another kind of training. An edit names every key that must change, so that a person who
    adds them to the question gets what was promised.
    """

    tier: int
    words: str
    edit: Callable[[_Tried], Edits | None]
    needs: str = ""
    again: str = ""  # what it is called where it was made several times: from ``{before}`` to ``{after}``


def _fused_loss(asked: _Tried) -> Edits | None:
    return {"loss": "fused"} if asked.plan.loss is Loss.PLAIN else None


def _expandable_segments(asked: _Tried) -> Edits | None:
    return None if asked.plan.expandable_segments else {"allocator.expandable_segments": True}


def _full_recompute_edit(asked: _Tried) -> Edits | None:
    return {"recompute.mode": "full"} if asked.plan.recompute.mode is not RecomputeMode.FULL else None


def _graphs_off(asked: _Tried) -> Edits | None:
    """No graphs of a step, whose static buffers and pool are tensors of its own."""
    trains = isinstance(asked.plan.workload, Training)
    return {"cuda_graphs": False} if trains and asked.plan.cuda_graphs else None


def _full_recompute_without_graphs(asked: _Tried) -> Edits | None:
    """For engines that capture no layer that is recomputed whole."""
    graphs, recompute = _graphs_off(asked), _full_recompute_edit(asked)
    return {**recompute, **graphs} if graphs and recompute else None


def _half_microbatch(asked: _Tried) -> Edits | None:
    """Half the micro-batch; the global batch stays what it was, so gradients accumulate."""
    job = asked.plan.workload
    if not isinstance(job, Training) or job.microbatch < 2 or job.microbatch % 2:
        return None
    batch = job.global_batch or job.microbatch * asked.plan.mesh.data_parallel
    return {"microbatch": job.microbatch // 2, "global_batch": batch}


def _zero_up(asked: _Tried) -> Edits | None:
    plan, engine = asked.plan, find_engine(asked.plan.engine)
    if engine is None or asked.cluster.count == 1 or plan.zero >= 3:
        return None
    reshard = {"reshard_after_forward": True} if asked.request.get("reshard_after_forward") is False else {}
    if engine.divides_states:
        return {"zero": plan.zero + 1, **reshard}
    mesh = {"mesh.dp_replicate": 1, "mesh.dp_shard": asked.cluster.count} if asked.names("mesh.") else {}
    sharder = find_engine(SEVERAL_GPUS)
    assert sharder is not None
    precision = _named_precision_edit(asked, sharder.default_precision)
    return {"engine": sharder.name, "zero": 3, **reshard, **mesh, **precision}


def _named_precision_edit(asked: _Tried, name: str) -> Edits:
    """A named precision in place of the one that was asked for, if one was."""
    return {"precision.name": name} if asked.names("precision.") else {}


def _eight_bit(asked: _Tried) -> Edits | None:
    optimizer = asked.plan.optimizer
    if optimizer is None or optimizer.name is not OptimizerName.ADAMW or asked.plan.offload.optimizer:
        return None
    implementation = {"optimizer.implementation": "bnb"} if asked.names("optimizer.implementation") else {}
    return {"optimizer.name": "adamw_8bit", **implementation}


def _state_offload_edit(asked: _Tried) -> Edits | None:
    plan, engine = asked.plan, find_engine(asked.plan.engine)
    if engine is None or "optimizer" not in engine.offload or plan.offload.optimizer:
        return None
    kept = (
        {"offload.activations": True} if plan.offload.activations else {}
    )  # said again: the flag replaces what it said before
    if plan.zero < engine.offloads_parameters_at:
        return {"offload.optimizer": 1, **kept}
    return {"offload.optimizer": 1, "offload.parameters": 1, **kept}


def _more_tensor_parallel(asked: _Tried) -> Edits | None:
    """Twice the ranks that share a layer, of one node and of half as many replicas; the global batch stays
    what it was. Of a job that shares its layers already: elsewhere nobody chose an engine for it.
    """
    plan, job, count = asked.plan, asked.plan.workload, asked.plan.mesh.tp * 2
    if not isinstance(job, Training) or plan.mesh.tp == 1 or count > asked.cluster.per_node:
        return None
    halved = next((axis for axis in ("dp_shard", "dp_replicate") if getattr(plan.mesh, axis) % 2 == 0), None)
    if halved is None:
        return None
    key = f"mesh.{halved}"
    mesh = {key: getattr(plan.mesh, halved) // 2} if asked.names(key) else {}
    return {
        "mesh.tp": count,
        "global_batch": job.global_batch or job.microbatch * plan.mesh.data_parallel,
        **mesh,
    }


def _more_gpus(asked: _Tried) -> Edits | None:
    cluster = asked.cluster
    only = cluster.file or cluster.device.alone
    if not asked.plan.zero or cluster.count * 2 > MAX_DEVICES or only:
        return None
    mesh = {"mesh.dp_shard": asked.plan.mesh.dp_shard * 2} if asked.names("mesh.dp_shard") else {}
    gpus = {"gpus": f"{cluster.count * 2}x{cluster.device.name}"}
    return {**gpus, **_nodes_edit(cluster), **mesh}


def _nodes_edit(cluster: Cluster) -> Edits:
    """The nodes of twice the GPUs, where their number alone lays them out in others."""
    device, count = cluster.device, cluster.count * 2
    usual = min(count, device.per_node or ONE_NODE)
    room = cluster.nodes == 1 and count <= (device.per_node or cluster.per_node)
    per_node = count if room else cluster.per_node
    known = device.per_node is not None or count <= ONE_NODE
    return {} if known and per_node == usual else {"nodes": count // per_node}


def _lora_edit(asked: _Tried) -> Edits | None:
    return None if asked.plan.adapter else {"adapter.rank": 16, **_named_precision_edit(asked, "bf16-pure")}


def _sixteen_bit_base(asked: _Tried) -> Edits | None:
    """A frozen base that is loaded in fp32, in sixteen bits."""
    plan = asked.plan
    wide = plan.precision.parameters is FP32 and plan.quantization is None
    return {"precision.name": "bf16-pure"} if plan.adapter and wide else None


def _sixteen_bit_states(asked: _Tried) -> Edits | None:
    plan = asked.plan
    wide = plan.precision.parameters is FP32 or plan.precision.master_weights is not None
    return {"precision.name": "bf16-pure"} if wide and not plan.adapter else None


def _four_bit_base(asked: _Tried) -> Edits | None:
    """A base that bitsandbytes holds in eight bits, in four."""
    quantized = asked.plan.quantization
    eight = asked.plan.adapter is not None and quantized is not None and quantized.weights is INT8
    return {"quantization.weights": "nf4"} if eight else None


def _qlora_edit(asked: _Tried) -> Edits | None:
    return (
        {**(_lora_edit(asked) or {}), "quantization.weights": "nf4"}
        if asked.plan.quantization is None
        else None
    )


CANDIDATES = (
    Candidate(0, "fused loss (logits never exist whole)", _fused_loss),
    Candidate(0, "expandable segments (fewer gaps in the allocator)", _expandable_segments),
    Candidate(1, "no CUDA graphs", _graphs_off, "kernels launched one by one"),
    Candidate(1, "recompute every layer", _full_recompute_edit, "about a third more time"),
    Candidate(
        1,
        "recompute every layer, without CUDA graphs",
        _full_recompute_without_graphs,
        "about a third more time, kernels launched one by one",
    ),
    Candidate(
        1,
        "half the micro-batch",
        _half_microbatch,
        "the same global batch in more steps",
        "micro-batch {before} to {after}",
    ),
    Candidate(
        1,
        "shard more states (ZeRO up)",
        _zero_up,
        "more communication",
        "shard more states (zero {before} to {after})",
    ),
    Candidate(1, "frozen base in bf16", _sixteen_bit_base, "the base rounded to bf16"),
    Candidate(2, "8-bit AdamW", _eight_bit, "another optimizer"),
    Candidate(2, "offload states to host memory", _state_offload_edit, "host memory and a much slower step"),
    Candidate(
        3,
        "twice the tensor parallelism",
        _more_tensor_parallel,
        "fewer replicas of the model, more communication in every layer",
        "tensor parallelism {before} to {after}",
    ),
    Candidate(3, "nf4 base in place of int8", _four_bit_base, "the base rounded to four bits"),
    Candidate(
        4, "weights and states in bf16", _sixteen_bit_states, "no fp32 copy that small updates add up in"
    ),
    Candidate(4, "twice the GPUs", _more_gpus, "more GPUs", "from {before} to {after}"),
    Candidate(5, "LoRA, rank 16", _lora_edit, "trains adapters only"),
    Candidate(5, "QLoRA, nf4 base and rank 16", _qlora_edit, "trains adapters on a quantized base"),
)


def cheapest_fix(
    spec: ModelSpec,
    request: Mapping[str, Any],
    cluster: Cluster,
    sheets: tuple[Sheet, ...],
    verdict: Verdict,
    library: LibraryUse | None = None,
) -> Fix | None:
    """The cheapest single change that fits, else the shortest list found greedily; None when it fits or
    nothing helps. ``library``: whose ways a change has.
    """
    if verdict.result is Result.FITS or request.get("task") != "train":
        return None
    start = _Tried(
        request, cluster, resolve_request(request, spec, cluster).plan, sheets, verdict, (), library
    )
    singles: list[_Tried] = []
    for tier in TIERS:
        singles += _applicable_changes(spec, start, (tier,) if singles else range(tier + 1))
        found = _greedy_fitting_changes(spec, start, singles, tier)
        if found:
            found = _told_once(spec, start, _drop_needless_changes(spec, start, found))
            changes = with_implied_keys(spec, request, cluster, start.plan, found.changes, library)
            return Fix(changes=changes, device=found.verdict.device, host_bytes=found.host_bytes)
    return None


def _applicable_changes(spec: ModelSpec, state: _Tried, tiers: Container[int]) -> list[_Tried]:
    """Changes of some tiers that apply, in order of cost, as far as the first that fits."""
    found: list[_Tried] = []
    for candidate in CANDIDATES:
        tried = _account_change(spec, state, candidate) if candidate.tier in tiers else None
        if tried is not None:
            found.append(tried)
            if tried.fits:
                break
    return found


def _greedy_fitting_changes(
    spec: ModelSpec, start: _Tried, singles: list[_Tried], tier: int
) -> _Tried | None:
    """The first change that fits alone; else the one that saves most, then the next, until it fits."""
    state, options = start, singles
    for _ in range(MAX_CHANGES):
        fitting = [t for t in options if t.fits]
        if fitting:
            return fitting[0]
        helping = [t for t in options if t.bytes < state.bytes and t.falls]
        if not helping:
            return None
        state = min(helping, key=lambda t: t.bytes)
        options = _applicable_changes(spec, state, range(tier + 1))
    return None


def _drop_needless_changes(spec: ModelSpec, start: _Tried, found: _Tried) -> _Tried:
    """Changes that turned out not to be needed are taken out again; of two, neither was enough alone."""
    best, changed = found, True
    while changed and len(best.changes) > 2:
        changed = False
        for left_out in best.changes:
            again: _Tried | None = start
            for change in best.changes:
                if change is not left_out and again is not None:
                    again = _account_change(
                        spec, again, next(c for c in CANDIDATES if c.words == change.words)
                    )
            if again is not None and again.fits:
                best, changed = again, True
                break
    return best


def _told_once(spec: ModelSpec, start: _Tried, found: _Tried) -> _Tried:
    """A change that was made several times as one, where making it at once comes to the same and no step
    raises the need: it is made where it was made first, else where it was made last.
    """
    every = [change.words for change in found.changes]
    first = list(dict.fromkeys(every))
    if len(first) == len(every):
        return found
    for names in (first, list(dict.fromkeys(every[::-1]))[::-1]):
        told = _made_in_order(spec, start, found, names)
        if told is not None and told.fits:
            return told
    return found


def _made_in_order(spec: ModelSpec, start: _Tried, found: _Tried, names: list[str]) -> _Tried | None:
    """The changes of a list kind by kind, each kind as one."""
    state: _Tried | None = start
    told: list[Change] = []
    for words in names:
        before, candidate = state, next(c for c in CANDIDATES if c.words == words)
        for _ in range(sum(change.words == words for change in found.changes)):
            state = _account_change(spec, state, candidate) if state else None
        if before is None or state is None:
            return None
        told.append(_as_one(candidate, before, state.changes[len(before.changes) :]))
    return replace(state, changes=tuple(told), further={}) if state else None


def _as_one(candidate: Candidate, before: _Tried, made: tuple[Change, ...]) -> Change:
    """Changes of one kind, one after another, as one."""
    if len(made) == 1:
        return made[0]
    first, last = made[0], made[-1]
    rows = {
        key: after for change in made for key, _, after in ((change.key, None, change.after), *change.also)
    }
    return Change(
        key=last.key,
        before=_previous_value(before, last.key),
        after=last.after,
        before_bytes=first.before_bytes,
        after_bytes=last.after_bytes,
        words=candidate.again.format(before=_previous_value(before, last.key), after=last.after),
        needs=candidate.needs,
        also=tuple(
            (key, _previous_value(before, key), after) for key, after in rows.items() if key != last.key
        ),
    )


def _account_change(spec: ModelSpec, state: _Tried, candidate: Candidate) -> _Tried | None:
    """A change on top of others, accounted once; None where it does not apply, is not legal or needs more
    host memory than there is.
    """
    if candidate.words not in state.further:
        state.further[candidate.words] = _change_accounted(spec, state, candidate)
    return state.further[candidate.words]


def _change_accounted(spec: ModelSpec, state: _Tried, candidate: Candidate) -> _Tried | None:
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
        sheets, verdict = _sheets_and_verdict(spec, plan, cluster, library)
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
    return _Tried(request, cluster, plan, sheets, verdict, (*state.changes, change), library)


def _sheets_and_verdict(
    spec: ModelSpec, plan: Plan, cluster: Cluster, library: LibraryUse | None
) -> tuple[tuple[Sheet, ...], Verdict]:
    """Sheets and verdict of a plan with what a library holds besides."""
    sheets, verdict = judged_sheets(spec, plan, cluster)
    return sheets, verdict_with_extra_bytes(
        verdict, cluster, *library.extra_bytes(spec, plan)
    ) if library else verdict


@lru_cache(maxsize=64)
def judged_sheets(spec: ModelSpec, plan: Plan, cluster: Cluster) -> tuple[tuple[Sheet, ...], Verdict]:
    """Sheets and verdict of a plan, to which changes come in several orders; the step is replayed, as it is
    for a question, where that could decide.
    """
    for replays in (True,) if tensors_fit(spec, plan, cluster) else (False, True):
        sheets = tuple(
            account_rank(spec, plan, cluster, stage, replays=replays) for stage in range(plan.mesh.pp)
        )
        verdict = judge_plan(spec, plan, cluster, sheets)
        if verdict.result is Result.DOES_NOT_FIT:
            break
    return sheets, verdict


def _previous_value(state: _Tried, key: str) -> Any:
    """What a key was: as asked, else as resolved."""
    plan = state.plan
    resolved = {
        "gpus": f"{state.cluster.count}x{state.cluster.device.name}", "nodes": state.cluster.nodes, "loss": plan.loss.value, "recompute.mode": plan.recompute.mode.value,
        "zero": plan.zero, "engine": plan.engine, "cuda_graphs": list(plan.cuda_graphs) or False, "allocator.expandable_segments": plan.expandable_segments,
        "optimizer.name": plan.optimizer.name.value if plan.optimizer else None, "offload.optimizer": plan.offload.optimizer,
        "offload.parameters": plan.offload.parameters, "mesh.dp_shard": plan.mesh.dp_shard, "mesh.dp_replicate": plan.mesh.dp_replicate,
        "mesh.tp": plan.mesh.tp,
    }  # fmt: skip
    given = state.request.get(key)
    if given is None and key in ("microbatch", "global_batch"):
        return getattr(plan.training, key)
    return resolved.get(key) if given is None else given
