"""The question behind ``memsheet trace``: a plan made whole, run in a child on fake tensors, and what lies
outside tensors added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from memsheet.allocator.settings import Settings
from memsheet.allocator.slack import slack_within
from memsheet.budget import Answer, budget_of, judge_sheets
from memsheet.catalog import model_names
from memsheet.errors import InputError, Problem, input_error, raise_if_problems
from memsheet.formulas.runtime import outside_tensors
from memsheet.formulas.states.params import active_parameter_count, parameter_count
from memsheet.plan.adapter_targets import LINEAR_MODULES
from memsheet.plan.defaults import ALL_LINEAR
from memsheet.plan.device import Cluster
from memsheet.plan.document import plan_document
from memsheet.plan.engine import Runner
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import Embeddings, Head, ModelSpec, Source
from memsheet.plan.plan import Implementation, Loss, Plan, Schedule
from memsheet.plan.real_step import offloads_inputs_alone, scales_loss
from memsheet.plan.workload import Training
from memsheet.questions.kept_traces import traced_once
from memsheet.questions.question_parts import catalog_entry, parse_question, task_of
from memsheet.questions.recordings import recording_of
from memsheet.questions.trained_embedders import config_as_trained
from memsheet.readers.hf_config import model_on_record, read_hf_config
from memsheet.readers.model import Config, find_config
from memsheet.resolve import Resolved, resolve_request
from memsheet.sheet import Component, Instant, Item, Sheet, sum_byte_ranges
from memsheet.timeline import Timeline, highest_peak, sheet_of, without_hidden
from memsheet.trace.child import error_answer
from memsheet.trace.fold import depth_of
from memsheet.trace.parent import MEMORY_BYTES, TIME_S, Traced, trace_in_child, trace_in_fork

CACHES = ("dynamic", "static", "quantized")
"""Kinds of transformers' caches: generate's own default, its cache_implementation="static" and "quantized".
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a trace is made. ``rank``: the one that is traced; ``ranks``: several in its place; ``all_stages``:
    one of each pipeline stage. ``full``: every layer is run; ``fresh``: even where it was before.

    ``cache``: that of inference, "dynamic", "static" or "quantized"; None means the one that the plan's
    kv_dtype asks for.
    """

    device: str = "cuda"
    scratch: bool = True
    full: bool = False
    rank: int = 0
    ranks: tuple[int, ...] = ()
    all_stages: bool = False
    cache: str | None = None
    memory_bytes: int = MEMORY_BYTES
    time_s: float = TIME_S
    debug: bool = False
    fresh: bool = False


def trace_with_timelines(model: Any, how: Options, **options: Any) -> tuple[Answer, tuple[Timeline, ...]]:
    """What the real code allocates: the answer, and the timeline of each rank that was traced.

    ``model`` and ``options`` as for ``memsheet.train``. Raises InputError for what cannot be traced.
    """
    name, request, cluster, where = parse_question(task_of(options), model, dict(options))
    if name is None:
        raise input_error(
            "model",
            None,
            "is missing",
            "a bundled name (`memsheet models`), a config.json, or FILE.py:FUNCTION",
        )
    found = find_config(name, catalog=catalog_entry, names=model_names())
    if isinstance(found, ModelSpec):
        raise input_error(
            "model", found.name, "is a file without a config.json, and a trace builds the model from one"
        )
    spec = _model_spec_if_known(found)
    resolved = resolve_request(request, spec or _adapted_spec(found, request), cluster, real=True)
    job = resolved.plan.workload
    if isinstance(job, Training) and not job.seq_len:
        raise input_error(
            "seq_len", None, "is missing; saved activations depend on it", "for example --seq-len 4096"
        )
    check_runs(resolved.plan)
    assumed = (*where["assumed"], *serving_assumed(resolved, how), *_routing_assumptions(resolved.plan))
    trains = isinstance(job, Training)
    config = config_as_trained(found.values, found.name) if trains else found.values
    asked = {
        "name": found.name, "config": dict(config), "plan": plan_document(resolved.plan), "device": how.device,
        "capability": cluster.device.compute_capability if cluster else None,
        "scratch": how.scratch, "depth": None if how.full else repeated_layer_depth(spec), "debug": how.debug, "ranks": _traced_ranks(resolved.plan, how), "cache": how.cache,
    }  # fmt: skip
    try:
        traced = traced_once(
            asked, memory_bytes=how.memory_bytes, time_s=how.time_s, fresh=how.fresh or how.debug
        )
    except InputError as error:
        if request.get("attention") is not None or error.problems[0].field != "attention":
            raise
        answer, timelines = trace_with_timelines(model, how, **options, attention="eager")
        return replace(
            answer, assumed=(*answer.assumed, "attention = eager (its code has no other)")
        ), timelines
    assumed = (*assumed, *traced[0].facts.get("assumed", ()))
    return _traced_answer(found, spec, resolved.plan, assumed, cluster, traced), tuple(
        t.timeline for t in traced
    )


def check_runs(plan: Plan, *, real: bool = False) -> None:
    """Raises InputError with all that a plan may say and the real code here would not do. ``real``: on real
    tensors, among real ranks.
    """
    runner = engine_of(plan).runner
    own_copies = runner is Runner.OWN_ENGINE
    if runner is None or (own_copies and not real):  # which takes real tensors alone
        hint = "fsdp2 or transformers; memsheet train predicts it, memsheet measure runs it"
        raise input_error("engine", plan.engine, "does not run on fake tensors", hint)
    found = {
        "loss": (plan.loss.value, plan.loss is Loss.PLAIN or _runs_on_one_rank(plan), "is not run over several ranks or by fsdp2", "plain; memsheet train predicts it"),
        "recompute": ("stretches", not plan.recompute.stretched or _runs_on_one_rank(plan), "are not run over several ranks or by fsdp2", "recompute every layer, or one GPU with engine transformers"),
        "precision.master_weights": ("fp32", plan.precision.master_weights is None or own_copies or _runs_on_one_rank(plan), "are kept on one rank by engine transformers here", "--precision fsdp2-mixed keeps fp32 shards"),
        "precision": ("fp16-autocast", not plan.staged or not (isinstance(plan.workload, Training) and scales_loss(plan)), "needs a gradient scaler, which is not run over pipelines", "bf16-autocast"),
        "offload.activations": (True, not plan.offload.activations or _runs_on_one_rank(plan) or offloads_inputs_alone(plan), "are moved of recomputed layers over several ranks, and not in pipelines", "--recompute full, or one GPU with engine transformers"),
        "optimizer.implementation": ("torchao", plan.optimizer is None or plan.optimizer.implementation is not Implementation.TORCHAO, "keeps states inside states, which nobody records yet", "bnb; memsheet train predicts it"),
        "mesh.tp": (plan.mesh.tp, plan.mesh.tp == 1 or plan.adapter is None, "cuts no adapters: transformers' plans name the layers that peft has wrapped", "fsdp2 without tp"),
        "schedule": ("naive", plan.schedule is not Schedule.NAIVE or not real, "is not run on real cards here", "memsheet trace runs it on fake tensors"),
        "vocab_multiple": (plan.vocab_multiple, plan.vocab_multiple == 1, "pads no embedding that transformers makes", "a config.json with the padded vocab_size"),
    }  # fmt: skip
    raise_if_problems(
        Problem(field=name, value=value, reason=why, hint=hint)
        for name, (value, runs, why, hint) in found.items()
        if not runs
    )


def _runs_on_one_rank(plan: Plan) -> bool:
    """Whether one rank runs it, with nothing around its layers."""
    alone = plan.schedule is Schedule.NAIVE or bool(plan.mesh.gpus == 1)
    return engine_of(plan).runner is Runner.WHOLE_MODULE and alone


def repeated_layer_depth(spec: ModelSpec | None) -> dict[str, int] | None:
    """Which layers may stand for others; None where the stack is short, several, or not known."""
    if spec is None or len(spec.stacks) != 1:
        return None
    depth = depth_of(spec.stacks[0])
    return asdict(depth) if depth else None


def trace_file(name: str, how: Options) -> tuple[Answer, tuple[Timeline, ...]]:
    """``FILE.py:FUNCTION``: the step that a person's own function makes. Raises InputError with their line
    where it cannot be traced.
    """
    asked = {"name": name, "function": name, "device": how.device, "scratch": how.scratch, "debug": how.debug}
    return _traced_step_answer(name, trace_in_child(asked, memory_bytes=how.memory_bytes, time_s=how.time_s))


def trace_step(build: Callable[[], Any], *, device: str = "cuda", scratch: bool = True) -> Answer:
    """What a training step of one's own allocates, on fake tensors: no GPU is needed and no memory taken.

    ``build`` is called inside the trace and returns ``(module, optimizer, step)`` or a step to call; tensors
    must be made in it or in the step. Two steps are taken and the second is the sheet's. ``scratch``: count
    what CUDA kernels allocate inside operations. Raises InputError for what cannot run without values, with
    the line and the usual cure.
    """
    name = getattr(build, "__qualname__", type(build).__name__)

    def run() -> dict[str, Any]:
        from memsheet.trace.custom import trace_custom
        from memsheet.trace.job import How
        from memsheet.trace.requests import traced_rank_document

        return {
            "timelines": [
                traced_rank_document(0, 0, lambda: trace_custom(build, How(device=device, scratch=scratch)))
            ]
        }

    answer, _ = _traced_step_answer(name, trace_in_fork(run, lambda error: error_answer(error, name)))
    return answer


def _traced_step_answer(name: str, traced: list[Traced]) -> tuple[Answer, tuple[Timeline, ...]]:
    (run,) = traced
    return own_answer(name, run), (run.timeline,)


def own_answer(name: str, run: Traced) -> Answer:
    """The answer to a step of which nobody knows the plan."""
    found = Config({"model_type": ""}, name, Source(kind="step", path=name))
    return Answer(
        model=unknown_model_spec(found),
        parameters=0,
        active_parameters=0,
        plan=resolve_request({}, None, None, real=True).plan,
        assumed=(),
        cluster=None,
        sheets=(sheet_of(run.timeline),),
        verdict=None,
        trace={"step": name, **trace_facts(run)},
    )


def serving_assumed(resolved: Resolved, how: Options) -> tuple[str, ...]:
    """What is assumed, with what a trace of inference takes for granted."""
    plan = resolved.plan
    if isinstance(plan.workload, Training):
        if how.cache is not None:
            raise input_error(
                "cache",
                how.cache,
                "is of inference, and this plan trains",
                "--max-model-len makes it a plan for inference",
            )
        return resolved.assumed
    if how.cache not in (None, *CACHES):
        raise input_error("cache", how.cache, "is none of transformers' caches", ", ".join(CACHES))
    if plan.serving.phase == "load":
        return resolved.assumed
    prompt = (
        ()
        if plan.serving.prompt_tokens is not None
        else (f"serving.prompt_tokens = {plan.serving.max_model_len}: the longest prompt, read at once",)
    )
    jump = (
        f"between the prompt and token {plan.serving.max_model_len} the cache is lengthened in one go; only "
        "the last tokens are made"
    )
    return (*resolved.assumed, *prompt, jump)


def _routing_assumptions(plan: Plan) -> tuple[str, ...]:
    """What a trace takes for granted of data."""
    return ("tokens spread evenly over the experts' ranks",) if plan.mesh.ep > 1 else ()


def _adapted_spec(found: Config, request: Mapping[str, Any]) -> ModelSpec | None:
    """A model that nobody wrote down, as its own code says it is, where adapters are to stand beside layers
    that nobody named; None where its code cannot be put on record.
    """
    named = request.get("adapter.targets")
    if request.get("adapter.rank") is None or named not in (None, [ALL_LINEAR], [LINEAR_MODULES]):
        return None
    with suppress(InputError):
        return model_on_record(found.values, recording_of, name=found.name, source=found.source)
    return None


def _model_spec_if_known(found: Config) -> ModelSpec | None:
    """The model as memsheet reads it; None for a family it does not know, which the real code may still
    run.
    """
    try:
        return read_hf_config(found.values, name=found.name, source=found.source)
    except InputError as error:
        if all(problem.field == "model_type" for problem in error.problems):
            return None
        raise


def _traced_ranks(plan: Plan, how: Options) -> list[int]:
    world, asked = int(plan.mesh.gpus), how.ranks or (how.rank,)
    for rank in asked:
        if not 0 <= rank < world:
            raise input_error("rank", rank, f"is none of the {world} ranks", f"0 to {world - 1}")
    return [stage * world // plan.mesh.pp for stage in range(plan.mesh.pp)] if how.all_stages else list(asked)


def _traced_answer(
    found: Config,
    spec: ModelSpec | None,
    plan: Plan,
    assumed: tuple[str, ...],
    cluster: Cluster | None,
    traced: list[Traced],
) -> Answer:
    sheets = tuple(_sheet_of_trace(t, plan, cluster) for t in traced)
    worst = max(traced, key=lambda t: highest_peak(t.timeline).bytes)
    count = parameter_count(spec) if spec else int(worst.facts.get("parameters", 0))
    active = active_parameter_count(spec) if spec else count
    return Answer(
        model=spec or unknown_model_spec(found),
        parameters=count,
        active_parameters=active,
        plan=plan,
        assumed=assumed,
        cluster=cluster,
        sheets=sheets,
        verdict=judge_sheets(sheets, budget_of(cluster)) if cluster else None,
        trace=trace_facts(worst),
        notes=found.source.notes,
    )


def unknown_model_spec(found: Config) -> ModelSpec:
    """A model of which only the name is known."""
    return ModelSpec(
        name=found.name,
        model_type=str(found.values.get("model_type")),
        hidden=0,
        vocab=0,
        embeddings=Embeddings(weights=()),
        stacks=(),
        head=Head(kind="none", width=0),
        source=found.source,
    )


def _sheet_of_trace(traced: Traced, plan: Plan, cluster: Cluster | None) -> Sheet:
    """The traced tensors, and beside them what no trace sees: context, communicators, slack."""
    sheet = sheet_of(traced.timeline, rank=traced.rank, stage=traced.stage)
    allocated = {instant: sheet.at(instant).value for instant in sheet.instants}
    has_workspaces = any(item.component is Component.WORKSPACES for item in sheet.items)
    own = (Component.ALLOCATOR_SLACK, *((Component.WORKSPACES,) if has_workspaces else ()))
    around = [item for item in outside_tensors(plan, cluster, allocated) if item.component not in own]
    if cluster is None:
        return replace(sheet, items=(*sheet.items, *around))
    settings = Settings(expandable_segments=plan.expandable_segments)
    return replace(
        sheet,
        items=(
            *sheet.items,
            *around,
            slack_within(traced.timeline, settings, _allocator_room_bytes(cluster, around)),
        ),
    )


def _allocator_room_bytes(cluster: Cluster, around: list[Item]) -> tuple[int, int, int]:
    """What a device leaves the allocator for tensors: at least, as expected, at most."""
    taken = [
        sum_byte_ranges(size for item in around if (size := item.at.get(instant)) is not None)
        for instant in Instant
    ]
    device = cluster.device
    most, expected, least = (
        max(int(getattr(size, end)) for size in taken) for end in ("high", "value", "low")
    )
    return (
        device.framework_low_bytes - most,
        device.framework_bytes - expected,
        device.framework_high_bytes - least,
    )


def trace_facts(traced: Traced) -> dict[str, Any]:
    """What a traced answer says besides its sheet."""
    top = highest_peak(traced.timeline)
    known = {key: value for key, value in traced.facts.items() if key != "assumed"}
    last = top.storage
    where = {"op": last.op, "path": last.path, "line": last.line, "request_bytes": last.bytes} if last else {}
    tensors = highest_peak(without_hidden(traced.timeline)).bytes
    return {
        **known,
        "tensors_bytes": tensors,
        "peak": {
            "rank": traced.rank,
            "instant": top.instant.value,
            "bytes": top.bytes,
            "event": top.at,
            **where,
        },
    }
