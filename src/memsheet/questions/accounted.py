"""The questions: train and infer. The command line and the page ask them the same way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from memsheet.account import account_rank
from memsheet.budget import (
    Answer,
    LibraryUse,
    OtherEngine,
    Result,
    Verdict,
    WayToFit,
    answer_of,
    deciding_sheets,
    judge_plan,
    tensors_fit,
    verdict_on_held_sequences,
    verdict_on_start,
    verdict_with_extra_bytes,
)
from memsheet.catalog import model_names
from memsheet.errors import InputError, input_error, raise_if_problems
from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.plan.aliases import engine_word
from memsheet.plan.device import Cluster
from memsheet.plan.engine_registry import ONE_GPU, engine_of
from memsheet.plan.hardware import eight_bit_cache, emulated_bf16, unsupported_choices, written_scores
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.plan.workload import Serving
from memsheet.questions.question_parts import (
    BOUNDS,
    REPLAY,
    catalog_entry,
    parse_question,
    read_named_model,
    read_written_model,
)
from memsheet.resolve import Resolved, resolve_request
from memsheet.resolve.version import version_notes
from memsheet.sheet import Sheet

if TYPE_CHECKING:
    from memsheet.plan.options import InferOptions, Model, TrainOptions
with late_functions(__name__):
    from memsheet.formulas.states.params import tower_tensors
    from memsheet.questions.bare_counts import bare_answer, count_of
    from memsheet.report.shared.uncertain_fit import segment_notes, types_notes
    from memsheet.resolve.length import length_notes
    from memsheet.units import format_bytes


def train(model: Model | None = None, **options: Unpack[TrainOptions]) -> Answer:
    """What every GPU holds while ``model`` trains.

    ``model``: a bundled name, a path (config.json, folder, .gguf, .safetensors), a hub id or a config as a
    dict; or ``parameters`` for the states of a bare count. ``gpus`` ("8xH100-80GB"), ``nodes``, ``per_node``,
    ``host_memory`` describe the cluster, or all of it is in ``cluster``, a file or dict of
    ``memsheet/cluster/1``; ``plan`` is a dict or file of ``memsheet/plan/1``; every other keyword is a plan
    option by its short name (``seq_len``, ``zero``, ``lora_rank`` …) and overrides the plan. Raises
    InputError with every problem of the question.
    """
    return _answer_question("train", model, dict(options))


def infer(model: Model | None = None, **options: Unpack[InferOptions]) -> Answer:
    """What every GPU holds while ``model`` serves. Arguments as for ``train``."""
    return _answer_question("infer", model, dict(options))


def _answer_question(task: str, model: Any, options: dict[str, Any]) -> Answer:
    model, request, cluster, where = parse_question(task, model, options)
    if where["parameters"] is not None:
        if model is not None:
            raise input_error(
                "parameters", where["parameters"], "takes the place of a model", "give one or the other"
            )
        return bare_answer(count_of(where["parameters"]), request, cluster)
    if model is None:
        raise input_error(
            "model",
            None,
            "is missing",
            "a bundled name (`memsheet models`), a config.json, or --parameters 7e9",
        )
    spec, fix = read_named_model(model, task, request.get("engine")), where["fix"] is not False
    said = {"assumed": where["assumed"], "library": where["library"], "slack": where["slack"] or REPLAY}
    if task == "train" and request.get("seq_len") is None:
        from memsheet.search.solve.length_ladder import answer_on_ladder

        found = answer_on_ladder(
            spec,
            request,
            lambda asked, cures: answer_for_model(spec, asked, cluster, fix=fix and cures, **said),
        )
    else:
        found = answer_for_model(spec, request, cluster, fix=fix, wanted=where["wanted"], **said)
    if where["library"] is None or task != "train":
        return found
    from memsheet.exchange.libraries import beside_the_sheet

    return beside_the_sheet(
        found, where["library"], {key: request[key] for key in where["own"] if key in request}
    )


def answer_for_model(
    spec: ModelSpec,
    request: Mapping[str, Any],
    cluster: Cluster | None,
    *,
    fix: bool = True,
    wanted: int | None = None,
    assumed: tuple[str, ...] = (),
    library: str | None = None,
    slack: str = REPLAY,
) -> Answer:
    """The answer to a question about a model that has been read. ``fix``: look for changes when it does not
    fit; ``wanted``: sequences that were asked for, which the verdict is about then, as a server starts
    without room for all of them; ``assumed``: what was, before; ``library``: whose ways changes have, and
    what of it stands beside the sheet; ``slack``: whether steps are played through the allocator's rules
    always, unless tensors alone are too many, or never.
    """
    request, spec, resolved = _resolve_question(spec, request, cluster, wanted=wanted, assumed=assumed)
    plan, used = resolved.plan, library_use(library)
    replays, sheets = _question_sheets(spec, resolved, cluster, slack)
    serving = _serving_facts(spec, resolved, cluster, sheets) if isinstance(plan.workload, Serving) else None
    verdict = _question_verdict(spec, plan, cluster, sheets, serving, used) if cluster else None
    held = {**request, "engine": plan.engine}  # of which what else would hold them is asked, too
    if verdict and cluster and fix:
        verdict = _with_cheapest(spec, request, cluster, sheets, verdict, used)
        serving = serving and _with_server_changes(spec, held, plan, cluster, verdict, serving, wanted)
    if wanted and verdict and cluster and serving:
        verdict, serving = _verdict_on_sequences(spec, held, plan, cluster, verdict, serving, wanted, fix=fix)
    ways: tuple[WayToFit, ...] = ()
    if verdict and cluster and fix and _is_stuck(verdict, serving):
        from memsheet.search.fixes.ways_to_fit import ways_to_fit

        ways = ways_to_fit(spec, request, cluster, read_written_model, used)
    notes = (
        *_routing_notes(spec, plan, cluster, sheets, verdict, replays=replays),
        *spec.source.notes,
        *(() if serving is None or wanted else _sequence_limit_notes(request, plan, serving)),
        *(() if serving is None else _serving_notes(plan, spec)),
        *version_notes(plan),
        *(types_notes(verdict, sheets) if engine_of(plan).stores_gguf and plan.quantization else ()),
        *(segment_notes(verdict, sheets, cluster) if serving is None and replays else ()),
        *_hardware_cautions(plan, cluster, spec),
    )
    others = _other_engines(spec, request, cluster, plan) if fix else ()
    return replace(
        answer_of(spec, resolved, cluster, sheets, verdict),
        notes=notes, serving=serving, other_engines=others, ways_to_fit=ways, seeks_changes=fix,
    )  # fmt: skip


def _resolve_question(
    spec: ModelSpec,
    request: Mapping[str, Any],
    cluster: Cluster | None,
    *,
    wanted: int | None,
    assumed: tuple[str, ...],
) -> tuple[Mapping[str, Any], ModelSpec, Resolved]:
    """The request, its model with who drafts for it, and the whole plan, which the cluster can run."""
    request, said = with_method(request)
    spec = with_draft_model(spec, request)
    resolved = resolve_request(request, spec, cluster)
    resolved = resolved if cluster or wanted else _with_one_pooled(resolved)
    said = (*assumed, *said, *(cluster.device.assumed if cluster else ()))
    raise_if_problems(unsupported_choices(resolved.plan, cluster, spec) if cluster else ())
    return request, spec, replace(resolved, assumed=(*said, *resolved.assumed)) if said else resolved


def _question_sheets(
    spec: ModelSpec, resolved: Resolved, cluster: Cluster | None, slack: str
) -> tuple[bool, tuple[Sheet, ...]]:
    """Whether steps were played through the allocator's rules, and the sheets."""
    if slack != BOUNDS or cluster is None:
        return slack == REPLAY, sheets_of(spec, resolved, cluster, replays=slack == REPLAY)
    known = deciding_sheets(spec, resolved.plan, cluster)
    if not tensors_fit(known.values(), cluster):
        sheets = sheets_of(spec, resolved, cluster, replays=False, known=known)
        if _denied(spec, resolved.plan, cluster, sheets):
            return False, sheets
    return True, sheets_of(spec, resolved, cluster)


def _question_verdict(
    spec: ModelSpec,
    plan: Plan,
    cluster: Cluster,
    sheets: tuple[Sheet, ...],
    serving: Mapping[str, Any] | None,
    used: LibraryUse | None,
) -> Verdict:
    """The verdict, with what a server needs to start and what a library holds beside the sheet."""
    verdict = judge_plan(spec, plan, cluster, sheets)
    if serving and "short_bytes" in serving:
        verdict = verdict_on_start(verdict, serving["short_bytes"])
    return verdict_with_extra_bytes(verdict, cluster, *used.extra_bytes(spec, plan)) if used else verdict


def _with_cheapest(
    spec: ModelSpec,
    request: Mapping[str, Any],
    cluster: Cluster,
    sheets: tuple[Sheet, ...],
    verdict: Verdict,
    used: LibraryUse | None,
) -> Verdict:
    """The verdict with the cheapest change that makes the job fit, where it is not sure to."""
    if verdict.result is Result.FITS:
        return verdict
    from memsheet.search.fixes.cheapest import search_changes

    fix, tried = search_changes(spec, request, cluster, sheets, verdict, used)
    return replace(verdict, cheapest_fix=fix, tried_changes=tried)


def _with_server_changes(
    spec: ModelSpec,
    request: Mapping[str, Any],
    plan: Plan,
    cluster: Cluster,
    verdict: Verdict,
    serving: Mapping[str, Any],
    wanted: int | None,
) -> Mapping[str, Any]:
    """What is known of a server, with the prompts that fit where nobody says how long they are, and what
    makes room where it would not start.
    """
    if verdict.result is Result.UNCERTAIN and _prompts_unknown(plan):
        from memsheet.search.serve.prompt_lengths import prompts_that_fit

        serving = {**serving, **prompts_that_fit(spec, request, cluster)}
    if "short_bytes" in serving and serving["short_bytes"].high > 0:
        from memsheet.search.fixes.startup import WANTED, makes_room

        asked = {**request, WANTED: wanted}
        serving = {**serving, **makes_room(spec, asked, cluster, serving["short_bytes"])}
    return serving


def _routing_notes(
    spec: ModelSpec,
    plan: Plan,
    cluster: Cluster | None,
    sheets: tuple[Sheet, ...],
    verdict: Verdict | None,
    *,
    replays: bool,
) -> tuple[str, ...]:
    """What a training is told of how its tokens may be routed."""
    if isinstance(plan.workload, Serving) or not (cluster and verdict and plan.routing):
        return ()
    from memsheet.search.train.routing import routing_notes

    return routing_notes(spec, plan, cluster, sheets, verdict, replays=replays)


def _denied(spec: ModelSpec, plan: Plan, cluster: Cluster, sheets: tuple[Sheet, ...]) -> bool:
    """Whether a job does not fit whatever the allocator reserves: a share begins at nothing beyond tensors.
    What a step reserves at the most is no multiple of its tensors, so that no share tells what fits.
    """
    return judge_plan(spec, plan, cluster, sheets).result is Result.DOES_NOT_FIT


def _is_stuck(verdict: Verdict, serving: Mapping[str, Any] | None) -> bool:
    """Whether a job does not fit and nothing found so far makes it; what makes room in a server's pool is
    looked for elsewhere.
    """
    short = (serving or {}).get("short_bytes")
    return verdict.result is Result.DOES_NOT_FIT and verdict.cheapest_fix is None and short is None


def _other_engines(
    spec: ModelSpec, request: Mapping[str, Any], cluster: Cluster | None, plan: Plan
) -> tuple[OtherEngine, ...]:
    """The same batch without a server, where a server was taken because nobody named an engine."""
    pools = engine_of(plan).serving.pools_cache  # which takes what is left, whatever the batch needs
    if cluster is None or not pools or request.get("engine") is not None:
        return ()
    try:
        found = answer_for_model(spec, {**request, "engine": ONE_GPU}, cluster, fix=False)
    except InputError:
        return ()
    verdict = found.verdict
    return (OtherEngine(engine=ONE_GPU, device=verdict.device, result=verdict.result),) if verdict else ()


def _verdict_on_sequences(
    spec: ModelSpec,
    request: Mapping[str, Any],
    plan: Plan,
    cluster: Cluster,
    verdict: Verdict,
    serving: Mapping[str, Any],
    wanted: int,
    *,
    fix: bool,
) -> tuple[Verdict, Mapping[str, Any]]:
    """The verdict about the sequences that were asked for, and what would hold them."""
    from memsheet.search.serve.asked_sequences import holds_instead, requested_sequences

    found = requested_sequences(spec, plan, cluster, wanted)
    if found is None:
        return verdict, serving
    about = verdict_on_held_sequences(verdict, found.wanted, found.held, found.missing_bytes)
    starts = verdict.result is not Result.DOES_NOT_FIT
    ways = (
        holds_instead(spec, request, cluster, found)
        if fix and starts and about.result is not Result.FITS
        else []
    )
    return about, {**serving, "asked": {**found.facts, "starts": verdict.result.value, "holds_instead": ways}}


def _serving_facts(
    spec: ModelSpec, resolved: Resolved, cluster: Cluster | None, sheets: tuple[Sheet, ...]
) -> Mapping[str, Any]:
    from memsheet.formulas.serving.servers import server_facts

    return server_facts(spec, resolved.plan, cluster, sheets)


def _with_one_pooled(resolved: Resolved) -> Resolved:
    """A server's pool without a card as one sequence of its longest needs it: a pool is what the card leaves,
    and how many may start says nothing of its size.
    """
    plan = resolved.plan
    if not isinstance(plan.workload, Serving) or plan.cache.memory_fraction is None:
        return resolved
    return replace(resolved, plan=replace(plan, workload=replace(plan.workload, pooled=1)))


def _sequence_limit_notes(
    request: Mapping[str, Any], plan: Plan, serving: Mapping[str, Any]
) -> Iterator[str]:
    """That a number of sequences in the engine's own words is the most it starts, where it has no room for
    as many.
    """
    limit, word = request.get("serving.max_sequences"), engine_word("serving.max_sequences", plan.engine)
    worst = (serving.get("capacity") or {}).get("worst")
    sized = plan.serving.pooled is None
    if sized and limit and word and worst is not None and int(worst) < int(limit):
        yield (
            f"{limit:,} sequences are the most that {plan.engine} runs at once (--{word}), and the verdict "
            f"is about one; --sequences {limit} asks for room for all"
        )


def _serving_notes(plan: Plan, spec: ModelSpec) -> Iterator[str]:
    if _prompts_unknown(plan):
        yield (
            "prefill is a range from one-token prompts to the whole batch at full length; --prompt-tokens "
            "says how long prompts are"
        )
    if spec.towers and engine_of(plan).stores_gguf:
        size = format_bytes(2 * sum(weight.elements * times for _, weight, times in tower_tensors(spec)))
        yield (
            f"{plan.engine} has the projector of {spec.name} in a file of its own (mmproj): neither it, "
            f"{size} in F16, nor what a picture takes is in the sheet"
        )
    yield from length_notes(plan, spec)


def _hardware_cautions(plan: Plan, cluster: Cluster | None, spec: ModelSpec) -> tuple[str, ...]:
    found = (
        (
            eight_bit_cache(plan, cluster.device, spec),
            emulated_bf16(plan, cluster.device),
            written_scores(plan, cluster.device, spec),
        )
        if cluster
        else ()
    )
    return tuple(words for words in found if words)


def _prompts_unknown(plan: Plan) -> bool:
    """Whether prefill is a range because nobody says how long prompts are."""
    return (
        engine_of(plan).prefill_unknown and plan.serving.phase is None and plan.serving.prompt_tokens is None
    )


NO_SHEETS: Mapping[int, Sheet] = MappingProxyType({})


def sheets_of(
    spec: ModelSpec,
    resolved: Resolved,
    cluster: Cluster | None,
    *,
    replays: bool = True,
    known: Mapping[int, Sheet] = NO_SHEETS,
) -> tuple[Sheet, ...]:
    """One sheet a pipeline stage; ranks of a stage are alike. ``replays``: steps are played through the
    allocator's rules. ``known``: the sheets of some stages.
    """
    return tuple(
        known.get(stage) or account_rank(spec, resolved.plan, cluster, stage, replays=replays)
        for stage in range(resolved.plan.mesh.pp)
    )


def with_method(request: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The request with a method of drafting where it names a model that drafts and no method, and what was
    taken for granted.
    """
    if (
        request.get("task") != "infer"
        or request.get("speculative.model") is None
        or request.get("speculative.method") is not None
    ):
        return request, ()
    return {**request, "speculative.method": "draft"}, (
        "speculative.method = draft (a model that drafts is named)",
    )


def with_draft_model(spec: ModelSpec, request: Mapping[str, Any]) -> ModelSpec:
    """The model with who drafts for it, read where a request names one."""
    if request.get("speculative.model") is None:
        return spec
    from memsheet.readers.draft import with_draft

    return with_draft(spec, request, catalog=catalog_entry, names=model_names())


def library_use(library: str | None) -> LibraryUse | None:
    """The library of that name with what it holds beside the sheet of a plan; None where none is named."""
    if not library:
        return None
    from memsheet.exchange.libraries import bytes_beside

    return LibraryUse(library, lambda model, plan: bytes_beside(library, model, plan))
