"""What would make a job fit that no change on its cards makes fit: layers or experts on the host, fewer bits,
more cards, a smaller model.

Every way is a whole question, resolved, accounted and judged as `memsheet train` and `memsheet infer` do it;
of each kind the mildest that is sure to fit is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from memsheet.account import account_rank
from memsheet.budget import LibraryUse, Result, WayToFit, judge_plan, verdict_with_extra_bytes, worst_sheet
from memsheet.catalog import find_model, model_names
from memsheet.errors import InputError, raise_if_problems
from memsheet.formulas.states.params import parameter_count
from memsheet.plan.check import flatten_document
from memsheet.plan.device import MAX_DEVICES, ONE_NODE, Cluster, cluster_of
from memsheet.plan.document import plan_document
from memsheet.plan.dtypes import BF16
from memsheet.plan.engine_registry import HOST_LAYERS_SERVER, engine_of
from memsheet.plan.hardware import unsupported_choices
from memsheet.plan.library_defaults import implied_library_keys
from memsheet.plan.model import ModelSpec, Moe
from memsheet.plan.overriding import with_attention_of_engine
from memsheet.plan.plan import Plan
from memsheet.plan.sequence_length import derived_max_length
from memsheet.plan.workload import Training
from memsheet.resolve import resolve_request
from memsheet.sheet import Sheet

Edits = Mapping[str, Any]
Request = Mapping[str, Any]
DOUBLINGS = 10
LENGTH_STEP = 1024  # tokens
LENGTHS = ("serving.max_model_len", "serving.prompt_tokens", "serving.output_tokens")
ADAPTERS: tuple[tuple[str, Edits], ...] = (
    ("LoRA, rank 16", {"adapter.rank": 16, "recompute.mode": "full"}),
    (
        "QLoRA, nf4 base and rank 16",
        {"adapter.rank": 16, "quantization.weights": "nf4", "recompute.mode": "full"},
    ),
    (
        "QLoRA, nf4 base, rank 16 and a fused loss",
        {"adapter.rank": 16, "quantization.weights": "nf4", "recompute.mode": "full", "loss": "fused"},
    ),
)
RECOMPUTED: tuple[tuple[str, Edits], ...] = (
    ("every layer recomputed", {"recompute.mode": "full"}),
    ("every layer recomputed, a fused loss", {"recompute.mode": "full", "loss": "fused"}),
)
IN_BITS = "gguf:Q4_K_M"


def ways_to_fit(
    spec: ModelSpec,
    request: Request,
    cluster: Cluster,
    read: Callable[[str], ModelSpec | None] | None = None,
    library: LibraryUse | None = None,
) -> tuple[WayToFit, ...]:
    """The ways found, those on the same cards first. ``read``: a bundled model by its name, None
    where it is not written down; without it no
    smaller one is looked at; ``library``: whose ways a change has.
    """
    try:
        plan = resolve_request(request, spec, cluster).plan
    except InputError:
        return ()
    kinds = (
        _training_ways(spec, request, cluster, plan, library)
        if isinstance(plan.workload, Training)
        else _serving_ways(spec, request, cluster, plan)
    )
    smaller = _smaller_model_way(spec, request, cluster, plan, read, library) if read is not None else None
    return tuple(way for way in (*kinds, smaller) if way is not None)


def _training_ways(
    spec: ModelSpec, request: Request, cluster: Cluster, plan: Plan, library: LibraryUse | None
) -> Iterator[WayToFit | None]:
    yield _shorter_training_way(spec, request, cluster, plan, library)
    yield _on_more(spec, request, cluster, (("", {}), *recomputed_edits(request)), library)
    if edits := adapter_edits(request, plan):
        yield next(_fitting_edits(spec, request, cluster, edits, library), None) or _on_more(
            spec, request, cluster, edits, library
        )


def _shorter_training_way(
    spec: ModelSpec, request: Request, cluster: Cluster, plan: Plan, library: LibraryUse | None
) -> WayToFit | None:
    """The longest sequences that are sure to fit, with what makes them longest."""
    steps = int(plan.training.seq_len) // LENGTH_STEP - 2

    def tried(words: str, edits: Edits, at: int) -> WayToFit | None:
        tokens = (at + 1) * LENGTH_STEP
        said = f"sequences of {tokens:,} tokens{f', {words}' if words else ''}"
        return _way_with_edits(spec, request, cluster, {"seq_len": tokens, **edits}, said, library)

    kinds = reversed((("", {}), *recomputed_edits(request))) if steps >= 0 else ()
    found = (_last_that_fits(steps, partial(tried, words, edits)) for words, edits in kinds)
    return next(filter(None, found), None)


def recomputed_edits(request: Request) -> tuple[tuple[str, Edits], ...]:
    """Every layer recomputed, where nobody says what is; no graphs of layers, which hold none of these."""
    if any(key.startswith("recompute.") for key in request):
        return ()
    if not request.get("cuda_graphs"):
        return RECOMPUTED
    return tuple((f"{words}, no CUDA graphs", {**edits, "cuda_graphs": False}) for words, edits in RECOMPUTED)


def adapter_edits(request: Request, plan: Plan) -> tuple[tuple[str, Edits], ...]:
    """Adapters instead of a whole model, where it is trained whole and its engine has any."""
    if plan.adapter is not None or plan.quantization is not None or engine_of(plan).adapters_apart:
        return ()
    free = bool(recomputed_edits(request))
    return tuple(
        (words, {key: value for key, value in each.items() if free or key != "recompute.mode"})
        for words, each in ADAPTERS
    )


def _serving_ways(
    spec: ModelSpec, request: Request, cluster: Cluster, plan: Plan
) -> Iterator[WayToFit | None]:
    alone, files = cluster.count == 1, {} if plan.quantization else {"quantization.weights": IN_BITS}
    engine = engine_of(plan)
    keeps_host_layers = "serving.gpu_layers" in engine.models
    yield from _shorter_ways(spec, request, cluster, plan)
    yield _half_precision_way(spec, request, cluster, plan)
    if alone and keeps_host_layers:
        yield from host_ways(spec, request, cluster, {})
    if plan.quantization is None:
        yield next(
            _fitting_edits(
                spec,
                request,
                cluster,
                tuple((name, {"quantization.weights": name}) for name in engine.serving.fewer_bits),
            ),
            None,
        )
    if alone and (not keeps_host_layers or files) and not spec.in_gguf:
        yield from host_ways(spec, request, cluster, {"engine": HOST_LAYERS_SERVER, **files})
    yield _on_more(spec, request, cluster, (("", {}),))


def _half_precision_way(spec: ModelSpec, request: Request, cluster: Cluster, plan: Plan) -> WayToFit | None:
    """Weights in sixteen bits of a model that was released in more, where nobody said in which."""
    named = any(key.startswith("precision.") and value is not None for key, value in request.items())
    if named or plan.quantization is not None or plan.precision.parameters.bits <= BF16.bits:
        return None
    edits = {"precision.name": "bf16-pure"}
    return _way_with_edits(spec, request, cluster, edits, f"in bf16, not {plan.precision.parameters.name}")


def _shorter_ways(
    spec: ModelSpec, request: Request, cluster: Cluster, plan: Plan
) -> Iterator[WayToFit | None]:
    """The longest sequences that are sure to fit, else that are expected to, where no pool has a say and
    nobody said how long they are, or the number said is the size of a cache that they share; the same over a
    cache of fewer bits, where the engine has one and nobody says which.
    """
    serving = engine_of(plan).serving
    said = {key for key in LENGTHS if request.get(key) is not None}
    if serving.pools_cache or said - ({"serving.max_model_len"} if serving.shares_length else set()):
        return
    free = all(request.get(key) is None for key in CACHE_TYPES)
    yield _longest_way(spec, request, cluster, plan, {}, "")
    for name in serving.fewer_bit_caches if free else ():
        beside = f", a cache in {name.removeprefix('gguf:').lower()}"
        yield _longest_way(spec, request, cluster, plan, dict.fromkeys(CACHE_TYPES, name), beside)


def _longest_way(
    spec: ModelSpec, request: Request, cluster: Cluster, plan: Plan, kept: Edits, beside: str
) -> WayToFit | None:
    """The longest sequences with some changes, whole where those suffice: first what is sure to fit, then
    what is expected to.
    """

    def tried(tokens: int | None, *, likely: bool) -> WayToFit | None:
        length = f"sequences of {tokens:,} tokens" if tokens else "sequences as long"
        edits = {**kept, "serving.max_model_len": tokens} if tokens else kept
        words = f"{length}{beside}{EXPECTED * likely}"
        return _way_with_edits(spec, request, cluster, edits, words, likely=likely)

    steps = int(plan.serving.max_model_len or 0) // LENGTH_STEP - 2

    def longest(*, likely: bool) -> WayToFit | None:
        return _last_that_fits(steps, lambda number: tried((number + 1) * LENGTH_STEP, likely=likely))

    whole = (tried(None, likely=False) or tried(None, likely=True)) if kept else None
    return whole or longest(likely=False) or longest(likely=True)


CACHE_TYPES = ("serving.k_dtype", "serving.kv_dtype")
EXPECTED = " (expected to fit, not sure)"


def host_ways(spec: ModelSpec, request: Request, cluster: Cluster, edits: Edits) -> Iterator[WayToFit]:
    """What a server keeps on the host so that the rest fits a card: the experts of as few layers as suffice,
    and whole layers. The number is the last that fits where one more does not.
    """
    blocks = [
        block
        for stack in spec.stacks
        for run in stack.runs
        for _ in range(run.count)
        for block in run.pattern
    ]
    if any(
        request.get(key) is not None
        for key in (
            "serving.gpu_layers",
            "serving.host_experts",
            "serving.tensor_overrides",
            "offload.parameters",
        )
    ):
        return
    named = f", {edits['engine']}" if "engine" in edits else ""
    named += f" in {edits['quantization.weights']}" if "quantization.weights" in edits else ""

    def tried(key: str, value: int) -> WayToFit | None:
        words = (
            f"the experts of {value} layers on the host{named}"
            if key.endswith("experts")
            else f"{value} of {len(blocks) + 1} layers on the card{named}"
        )
        return _way_with_edits(spec, request, cluster, {**edits, key: value}, words)

    if any(isinstance(block.feed_forward, Moe) for block in blocks):
        found = _last_that_fits(
            len(blocks), lambda on_card: tried("serving.host_experts", len(blocks) - on_card)
        )
        if found is not None and found.changes["serving.host_experts"]:
            yield found
            return
    layers = _last_that_fits(len(blocks) + 1, lambda number: tried("serving.gpu_layers", number))
    if layers is not None:
        yield layers


def _last_that_fits(most: int, at: Callable[[int], WayToFit | None]) -> WayToFit | None:
    """Of 0 to ``most`` the last that fits with the next not fitting; None where not even 0 does."""
    best = at(0)
    low, high = 0, most + 1
    while best is not None and high - low > 1:
        middle = (low + high) // 2
        found = at(middle)
        low, high, best = (middle, high, found) if found is not None else (low, middle, best)
    return best


def _on_more(
    spec: ModelSpec,
    request: Request,
    cluster: Cluster,
    kinds: tuple[tuple[str, Edits], ...],
    library: LibraryUse | None = None,
) -> WayToFit | None:
    """The fewest cards, in doublings, on which one of some changes fits. A mesh that was asked for stays, so
    that only free degrees grow; a cluster in a file is all there is, and so is a machine's only device.
    """
    for power in range(1, 0 if cluster.file or cluster.device.alone else DOUBLINGS):
        count = cluster.count << power
        try:
            per_node = None if cluster.device.per_node else min(count, ONE_NODE)
            larger = (
                cluster_of(cluster.device, count, per_node=per_node, host_bytes=cluster.host_bytes)
                if count <= MAX_DEVICES
                else None
            )
        except InputError:
            continue
        if larger is None:
            return None
        gpus: dict[str, Any] = {"gpus": f"{count}x{cluster.device.name}"}
        gpus |= {"per_node": per_node} if per_node and count > per_node else {}
        for words, edits in kinds:
            found = _way_with_edits(
                spec,
                request,
                larger,
                {**edits, **gpus},
                f"{count} GPUs{f', {words}' if words else ''}",
                library,
            )
            if found is not None:
                return found
    return None


def _fitting_edits(
    spec: ModelSpec,
    request: Request,
    cluster: Cluster,
    kinds: tuple[tuple[str, Edits], ...],
    library: LibraryUse | None = None,
) -> Iterator[WayToFit]:
    return (
        found
        for words, edits in kinds
        if (found := _way_with_edits(spec, request, cluster, edits, words, library)) is not None
    )


SMALLEST_SHARE = 100
"""A model of less than a hundredth of what was asked is no answer to it."""


def _kin_names(letters: str, model_type: str) -> list[str]:
    """Bundled models whose names begin alike, of one family: no other is read for its layers."""
    alike = (name for name in model_names() if _model_name_letters(name) == letters)
    return [
        name for name in alike if (found := find_model(name)) and found["config"]["model_type"] == model_type
    ]


def _tokens_of_sequence(plan: Plan) -> int:
    """Tokens of a sequence."""
    trains = isinstance(plan.workload, Training)
    return int((plan.training.seq_len if trains else plan.serving.max_model_len) or 0)


def _bits_of_name(request: Request, plan: Plan) -> Edits:
    """The format of weights that nobody asked for: it is of what the model's own name or files say, which is
    not said of another.
    """
    if plan.quantization is None or request.get(BITS) is not None:
        return {}
    return {BITS: flatten_document(plan_document(plan))[BITS]}


BITS = "quantization.weights"


def _smaller_model_way(
    spec: ModelSpec,
    request: Request,
    cluster: Cluster,
    plan: Plan,
    read: Callable[[str], ModelSpec | None],
    library: LibraryUse | None,
) -> WayToFit | None:
    """The largest bundled model of the same kind that fits, as it is asked or with adapters; those of the
    same series first, and of one size those that are as long as is asked.
    """
    own, letters = int(parameter_count(spec)), _model_name_letters(spec.name)
    if not letters or request.get("speculative.model") is not None:
        return None
    near = filter(None, map(read, _kin_names(letters, spec.model_type)))
    smaller = [model for model in near if own // SMALLEST_SHARE <= int(parameter_count(model)) < own]
    in_bits, length = _bits_of_name(request, plan), _tokens_of_sequence(plan)
    adapters = adapter_edits(request, plan) if isinstance(plan.workload, Training) else ()
    kinds: tuple[tuple[str, Edits], ...] = (("as it is asked", {}), *adapters)
    for model in sorted(
        smaller,
        key=lambda model: (
            _model_series(model.name) != _model_series(spec.name),
            -int(parameter_count(model)),
            (derived_max_length(model) or length) < length,
        ),
    ):
        for words, edits in kinds:
            found = _way_with_edits(
                model,
                request,
                cluster,
                {"model": model.name, **in_bits, **edits},
                f"{model.name}, {words}",
                library,
            )
            if found is not None:
                return found
    return None


def _model_name_letters(name: str) -> str:
    """What a name begins with: llama of llama-3.1-70b."""
    found = re.match(r"[a-z]+", name.lower())
    return found[0] if found else ""


def _model_series(name: str) -> str:
    """A name without its size: llama-3.1 of llama-3.1-70b."""
    return re.sub(r"-\d+(\.\d+)?[bm]\b.*$", "", name.lower())


def _way_with_edits(
    spec: ModelSpec,
    request: Request,
    cluster: Cluster,
    edits: Edits,
    words: str,
    library: LibraryUse | None = None,
    *,
    likely: bool = False,
) -> WayToFit | None:
    """The question with some changes, where it is sure to fit; None elsewhere. ``likely``: where it is
    expected to.
    """
    edits = with_attention_of_engine(edits, request)
    asked = {
        key: value for key, value in {**request, **edits}.items() if key not in ("gpus", "per_node", "model")
    }
    library = library if "engine" not in edits else None  # another engine is no library's
    asked |= implied_library_keys(library.name, asked) if library else {}
    try:
        plan = resolve_request(asked, spec, cluster).plan
        raise_if_problems(unsupported_choices(plan, cluster, spec))
        sheets = _surely_fitting_sheets(spec, plan, cluster, likely=likely)
    except InputError:
        return None
    if sheets is None:
        return None
    if (
        library
        and verdict_with_extra_bytes(
            judge_plan(spec, plan, cluster, sheets), cluster, *library.extra_bytes(spec, plan)
        ).result
        is not Result.FITS
    ):
        return None
    found = worst_sheet(sheets)
    return WayToFit(
        words=words,
        changes=dict(edits),
        device=found.device,
        host_bytes=max(sheet.host_bytes for sheet in sheets),
    )


def _surely_fitting_sheets(
    spec: ModelSpec, plan: Plan, cluster: Cluster, *, likely: bool = False
) -> tuple[Sheet, ...] | None:
    """The sheets of a job that is sure to fit, its steps replayed where that could decide, or that is
    expected to, where that is enough (``likely``); None of others.
    """
    sheets: tuple[Sheet, ...] = ()
    for replays in (False, True):
        sheets = tuple(
            account_rank(spec, plan, cluster, stage, replays=replays) for stage in range(plan.mesh.pp)
        )
        result = judge_plan(spec, plan, cluster, sheets).result
        if result is Result.DOES_NOT_FIT:
            return None
    verdict = judge_plan(spec, plan, cluster, sheets)
    fits = verdict.result is Result.FITS or (likely and verdict.headroom_bytes >= 0)
    return None if not fits or _pool_is_short(spec, plan, cluster, sheets) else sheets


def _pool_is_short(spec: ModelSpec, plan: Plan, cluster: Cluster, sheets: tuple[Sheet, ...]) -> bool:
    """Whether a server may refuse to start for want of cache."""
    if not engine_of(plan).serving.pools_cache:
        return False
    from memsheet.formulas.serving.servers import server_facts

    short = server_facts(spec, plan, cluster, sheets).get("short_bytes")
    return short is not None and short.high > 0
