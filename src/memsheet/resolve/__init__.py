"""A plan with gaps + its engine's defaults + the cluster → a whole, legal plan, or every problem at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.errors import InputError, Problem, raise_if_problems
from memsheet.frozen import dataclass, replace
from memsheet.late import late_functions
from memsheet.plan.check import Request, check_request, flatten_document
from memsheet.plan.contradictions import contradiction_problems
from memsheet.plan.defaults import OTHER_TASK, UNMODELLED
from memsheet.plan.device import Cluster
from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import (
    CANDIDATES,
    GGUF_SERVER,
    MODELLED,
    ONE_GPU,
    PAGED_SERVER,
    SHARDED,
    adapter_servers,
    find_engine,
    rules_of,
)
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.hardware import BF16_UNITS, format_problems, is_older_device, unsupported_choices
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import (
    Loss,
    Offload,
    Plan,
    Schedule,
)
from memsheet.plan.workload import KvCache, Serving
from memsheet.resolve.cache import kv_dtype_of
from memsheet.resolve.device_map import with_device_map
from memsheet.resolve.lora import served_adapters_of
from memsheet.resolve.mesh import mesh_of, mesh_product, resharding_of, zero_stage_of
from memsheet.resolve.options import optional_plan_fields
from memsheet.resolve.pipeline import (
    layers_per_stage_of,
    schedule_of,
    usual_loss,
    vocab_multiple_of,
)
from memsheet.resolve.precision import check_in_backward, check_moments, precision_of
from memsheet.resolve.quantization import quantization_of, tell_dequantized
from memsheet.resolve.recompute import recompute_of
from memsheet.resolve.serving import (
    attention_of,
    check_decodes,
    check_served_families,
    serves_in_pages,
    usual_options,
    workload_groups,
)
from memsheet.resolve.version import check_version
from memsheet.resolve.without_effect import check_effects
from memsheet.resolve.workload import max_model_len_of, sequences_of, training_of

with late_functions(__name__):
    from memsheet.resolve.adapters import adapter_of, in_base_dtype
    from memsheet.resolve.optimizer import asks_bitsandbytes, optimizer_of
    from memsheet.resolve.recorded_serving import check_recorded_serving
    from memsheet.resolve.speculative import speculative_of


@dataclass(frozen=True, slots=True)
class Resolved:
    """A whole plan and what it took for granted."""

    plan: Plan
    assumed: tuple[str, ...]


def resolve_request(
    request: Request,
    model: ModelSpec | None,
    cluster: Cluster | None = None,
    *,
    real: bool = False,
    frozen: bool = False,
) -> Resolved:
    """Fill every gap of ``request`` (checked first) for ``model``, None when only a parameter count is known.

    ``real``: the engine's own code will run the plan, so that what it can do but nobody has modelled is
    allowed. ``frozen``: the model is read beside another that trains, and may be quantized without adapters.

    Raises InputError with all problems: unknown keys, values out of range, meshes that do not multiply,
    degrees that do not divide, options that are not modelled.
    """
    raise_if_problems(check_request(request))
    if request.get("task") != "infer" or request.get("engine") is not None:
        return _resolve_for_engine(request, model, cluster, real=real, frozen=frozen)
    return _of_candidates(request, model, cluster, real=real)


def _resolve_for_engine(
    request: Request, model: ModelSpec | None, cluster: Cluster | None, *, real: bool, frozen: bool = False
) -> Resolved:
    """As ``resolve_request``, by the engine that is asked for, else by the usual one."""
    gaps = RequestResolver(request, frozen=frozen)
    gaps.assumed.extend(model.source.assumed if model else ())
    task = gaps.get("task", "train", silent=True)
    gpus = cluster.count if cluster else None
    engine = _resolve_engine(gaps, task, cluster, model)
    if real:
        engine = replace(
            engine,
            axes=(*engine.axes, *engine.real_axes),
            schedules=(*engine.schedules, *engine.real_schedules),
            zero=(*engine.zero, *engine.real_zero),
        )
    rules = rules_of(engine.name)
    _refuse_unread(gaps, engine, task)
    check_decodes(gaps, engine, model, task)
    check_served_families(gaps, engine, model, task)
    check_version(gaps, engine)
    zero = zero_stage_of(gaps, engine, task, gpus)
    mesh = mesh_of(gaps, engine, task, zero, gpus, model)
    beside = task == "infer" and rules.served_adapters is not None
    adapter = None if beside else adapter_of(gaps, model, engine)
    quantization = quantization_of(gaps, model, engine, task, adapter, cluster)
    precision = precision_of(gaps, engine, task, adapter, model, cluster.device if cluster else None)
    adapter = in_base_dtype(gaps, adapter, precision.parameters) if adapter is not None else None
    served_adapters = served_adapters_of(gaps, engine, model, mesh, precision)
    usual = usual_options(gaps, engine, mesh, model, cluster)
    sequences = sequences_of(gaps, task, usual.get("serving.max_sequences"))
    engine_version = gaps.get("engine_version", engine.tested, silent=not usual)
    reshard_after_forward = resharding_of(gaps, engine, zero)
    schedule = schedule_of(gaps, engine, mesh, task)
    layers_per_stage = layers_per_stage_of(gaps, engine, mesh, model)
    training = training_of(gaps, engine, mesh, model, task)
    if training is not None and adapter is not None and adapter.kind.before_text:
        training = replace(training, virtual_tokens=adapter.prompt_length)
    plan = Plan(
        engine=engine.name,
        engine_version=engine_version,
        mesh=mesh,
        zero=zero,
        reshard_after_forward=reshard_after_forward,
        schedule=schedule,
        layers_per_stage=layers_per_stage,
        vocab_multiple=vocab_multiple_of(gaps, engine, mesh),
        precision=precision,
        served_adapters=served_adapters,
        optimizer=optimizer_of(gaps, engine) if task == "train" else None,
        recompute=recompute_of(gaps, engine, model),
        attention=attention_of(gaps, engine, model, cluster),
        loss=gaps.choice("loss", usual_loss(gaps, engine, mesh), engine.losses, engine.name)
        if task == "train"
        else Loss.PLAIN,
        dropout=float(gaps.get("dropout", 0.0, silent=True)),
        adapter=adapter,
        quantization=quantization,
        offload=_resolve_offload(gaps, engine),
        expandable_segments=gaps.get("allocator.expandable_segments", False, silent=True),
        **workload_groups(
            gaps,
            usual,
            engine,
            model,
            KvCache(
                kv_dtype=kv_dtype_of(gaps, precision, engine, model, cluster.device if cluster else None)
            ),
            training
            or Serving(
                max_model_len=max_model_len_of(
                    gaps, model, engine, served=bool(usual) or engine.serving.shares_length
                ),
                max_sequences=sequences,
                seq_len=gaps.request.get("seq_len") or None,
                phase=gaps.request.get("phase"),
            ),
        ),
        optimizer_in_backward=gaps.get("optimizer_in_backward", False, silent=True),
        **optional_plan_fields(gaps, mesh, model, engine),
        before_ampere=cluster is not None and is_older_device(cluster.device, BF16_UNITS),
        speculative=speculative_of(gaps, engine, mesh, model, sequences=sequences, real=real)
        if request.get("speculative.method") is not None
        else None,
    )
    plan = with_device_map(gaps, plan, model, cluster.device.framework_bytes if cluster else None)
    if task == "infer" and model is not None and model.recording is not None:
        check_recorded_serving(gaps, plan, engine, model)
    tell_dequantized(gaps, model, engine, plan)
    check_effects(gaps, plan, engine, model)
    check_moments(gaps, plan)
    check_in_backward(gaps, plan, engine)
    gaps.problems += contradiction_problems(request, task)
    gaps.problems += format_problems(plan, cluster.device if cluster else None, model)
    raise_if_problems(gaps.problems)
    return Resolved(plan, tuple(gaps.assumed))


def _refuse_unread(gaps: RequestResolver, engine: Engine, task: str) -> None:
    """Options that nobody has modelled for the engine, and those of the other task."""
    request = gaps.request
    for key in [key for key in UNMODELLED if key in request]:
        value = request[key]
        if (
            value is not None
            and value not in UNMODELLED[key]
            and key not in engine.models
            and key not in OTHER_TASK[task]
        ):
            gaps.wrong(
                key,
                value,
                "is not modelled yet, and an option is never ignored",
                "leave it out to see the job without it",
            )
    other = OTHER_TASK[task]
    for key in [key for key in other if key in request]:
        value = request[key]
        if value is not None and value not in other[key] and key not in engine.models:
            beside = task == "infer" and key.startswith("adapter.")
            unread = (
                f"is not modelled for adapters that {engine.name} serves"
                if beside
                else f"has no meaning in {task}"
            )
            hint = (
                f"merged, an adapter costs nothing; beside a model: {', '.join(adapter_servers())}"
                if beside
                else "leave it out"
            )
            gaps.wrong(key, value, unread, hint)


DESCRIBED = ("schema", "model", "gpus")
"""Keys of a plan's document that are no choices of the plan."""


def resolve_document(
    document: Mapping[str, Any], model: ModelSpec | None = None, *, real: bool = False
) -> Plan:
    """The plan that ``report.json.sheet.plan_document`` wrote down. Raises InputError as ``resolve_request``
    does.
    """
    return resolve_request(
        {key: value for key, value in flatten_document(document).items() if key not in DESCRIBED},
        model,
        None,
        real=real,
    ).plan


def _of_candidates(
    request: Request, model: ModelSpec | None, cluster: Cluster | None, *, real: bool
) -> Resolved:
    """The usual engine's answer; where it has problems, that of the first candidate that has none, else the
    problems of the one with fewer.
    """
    usual, refused = _try_resolve(request, model, cluster, real=real)
    if usual is not None and not refused:
        return usual
    fewest, name = refused, usual_engine(request, cluster, model)
    for other in _candidate_engines(cluster, model, name):
        found, problems = _try_resolve({**request, "engine": other}, model, cluster, real=real)
        if found is not None and not problems:
            why = f"{name} does not take {', '.join(dict.fromkeys(problem.field for problem in refused))}"
            return replace(found, assumed=(f"engine = {other} ({why})", *found.assumed))
        fewest = problems if _problem_fields(problems) < _problem_fields(fewest) else fewest
    if usual is not None and fewest is refused:
        return usual  # what its card lacks is told where cards are asked
    raise InputError(fewest)


def _try_resolve(
    request: Request, model: ModelSpec | None, cluster: Cluster | None, *, real: bool
) -> tuple[Resolved | None, tuple[Problem, ...]]:
    """The whole plan if there is one, and all that is wrong with it, on its card too."""
    try:
        found = _resolve_for_engine(request, model, cluster, real=real)
    except InputError as error:
        return None, error.problems
    return found, tuple(unsupported_choices(found.plan, cluster, model)) if cluster else ()


def _problem_fields(problems: tuple[Problem, ...]) -> set[str]:
    return {problem.field for problem in problems}


def _candidate_engines(cluster: Cluster | None, model: ModelSpec | None, usual: str) -> Iterator[str]:
    """Engines besides the usual one, of those that are accounted on the device; servers for what is served in
    pages.
    """
    there = cluster.device.engines if cluster else None
    known = CANDIDATES if serves_in_pages(model) else (ONE_GPU,)
    return (name for name in known if name != usual and (there is None or name in there))


def usual_engine(request: Request, cluster: Cluster | None, model: ModelSpec | None) -> str:
    """What a question is usually run by where nobody names an engine."""
    task = request.get("task") or "train"
    several = (cluster.count if cluster else mesh_product(request)) > 1
    alone = request.get("zero") == 0 or request.get("schedule") == Schedule.NAIVE.value
    sharded = task == "train" and several and not (alone or _needs_whole_tensors(request))
    paged = task == "infer" and serves_in_pages(model)
    default = SHARDED if sharded else PAGED_SERVER if several and paged else ONE_GPU
    if task == "infer" and model is not None and model.in_gguf:
        default = GGUF_SERVER
    if default == ONE_GPU and paged and cluster and model and _asks_a_server(request):
        default = PAGED_SERVER if _server_takes_question(PAGED_SERVER, request, model, cluster) else default
    if cluster and cluster.device.engines is not None:
        default = _engine_there(cluster.device.engines, task) or default
    return default


def _needs_whole_tensors(request: Request) -> bool:
    """Whether the optimizer that is asked for steps no parts of tensors, and nobody divides them."""
    return request.get("zero") is None and asks_bitsandbytes(request)


def _resolve_engine(
    gaps: RequestResolver, task: str, cluster: Cluster | None, model: ModelSpec | None
) -> Engine:
    several = (cluster.count if cluster else mesh_product(gaps.request)) > 1
    name = gaps.get(
        "engine", None if gaps.request.get("engine") else usual_engine(gaps.request, cluster, model)
    )
    if name == SHARDED and task == "train" and not gaps.request.get("engine"):
        gaps.assumed[-1] += OTHER_LAYOUT
    if name == ONE_GPU and task == "train" and several and not gaps.request.get("engine"):
        gaps.assumed[-1] += BITSANDBYTES_LAYOUT if _needs_whole_tensors(gaps.request) else ""
    engine = find_engine(name)
    if engine is None or task not in engine.tasks:
        known = [e for e in MODELLED if (found := find_engine(e)) and task in found.tasks]
        gaps.wrong("engine", name, f"is not modelled for {task} yet", f"modelled: {', '.join(known)}")
        raise_if_problems(gaps.problems)
    assert engine is not None
    if engine.alone is not None and not several:
        return engine.alone
    adapts = any(gaps.request.get(f"adapter.{key}") is not None for key in ("rank", "kind"))
    return engine.adapted if engine.adapted is not None and adapts and task == "train" else engine


OTHER_LAYOUT = " (GPUs share states; --zero 0 keeps a whole copy on each, as DDP does)"
BITSANDBYTES_LAYOUT = " (a whole copy on each GPU: bitsandbytes steps no parts of tensors that fsdp2 divides)"
"""What is told where nobody says how several GPUs train."""


SERVERS_KEYS = (
    "serving.max_model_len",
    "serving.max_sequences",
    "serving.max_batched_tokens",
    "serving.memory_fraction",
)
"""What nobody says but of a server."""


def _asks_a_server(request: Request) -> bool:
    return any(request.get(key) is not None for key in SERVERS_KEYS)


def _server_takes_question(engine: str, request: Request, model: ModelSpec, cluster: Cluster) -> bool:
    """Whether a server takes the question as it stands."""
    try:
        plan = resolve_request({**request, "engine": engine}, model, cluster).plan
    except InputError:
        return False
    return not any(unsupported_choices(plan, cluster, model))


def _engine_there(names: tuple[str, ...], task: str) -> str | None:
    """The first engine of those accounted on a device that has the task."""
    return next((name for name in names if (engine := find_engine(name)) and task in engine.tasks), None)


_INSTEAD = {"activations": "--recompute full drops them; or engine fsdp2 or deepspeed"}


def _resolve_offload(gaps: RequestResolver, engine: Engine) -> Offload:
    wanted = {key: gaps.request.get(f"offload.{key}") for key in ("optimizer", "parameters", "activations")}
    for key, value in wanted.items():
        if value and key not in engine.offload:
            if reason := engine.never_offloads.get(key):
                gaps.wrong(f"offload.{key}", value, reason, _INSTEAD.get(key, "leave it out"))
                continue
            has = (
                f"it offloads {', '.join(engine.offload)}"
                if engine.offload
                else "engine deepspeed offloads optimizer and parameters"
            )
            gaps.wrong(f"offload.{key}", value, f"is not modelled for {engine.name} yet", has)
    return Offload(
        optimizer=float(wanted["optimizer"] or 0),
        parameters=float(wanted["parameters"] or 0),
        activations=bool(wanted["activations"]),
    )
