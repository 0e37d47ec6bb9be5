"""The question behind ``memsheet measure``: a plan made whole, its real step taken in a child, and what
nothing explains named.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from memsheet.budget import Answer, Result, Verdict, largest_components
from memsheet.catalog import model_names
from memsheet.errors import InputError, input_error
from memsheet.formulas.sharding.algorithm import algorithm_of
from memsheet.formulas.states.params import active_parameter_count, parameter_count
from memsheet.frozen import dataclass, replace
from memsheet.measure.categories import ALWAYS, profiler_category_bytes
from memsheet.plan.document import plan_document
from memsheet.plan.engine import Runner
from memsheet.plan.engine_registry import engine_of, runs_on_ranks
from memsheet.plan.model import ModelSpec
from memsheet.plan.packages import DEEPSPEED
from memsheet.plan.plan import Plan
from memsheet.plan.workload import Serving
from memsheet.questions.question_parts import catalog_entry, parse_question, task_of
from memsheet.questions.traced import Options as TraceOptions
from memsheet.questions.traced import check_runs, own_answer, serving_assumed, trace_facts
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.model import find_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Bytes, Component, Item, Measured, Sheet, Witness
from memsheet.timeline import Timeline, sheet_of
from memsheet.trace.launch import answers_together
from memsheet.trace.parent import TIME_S, Traced, available_bytes, read_answer, trace_in_child
from memsheet.units import GIB, format_bytes

MEMORY_BYTES = 64 * GIB
"""Where nobody says how much: real tensors take real memory. On a processor it is no more than there is, lest
the machine be the end.
"""
STEPS, VARIED_STEPS = 5, 20
DEVICES = ("cpu", "cuda")
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a step is measured. ``steps``: how many are timed besides the two whose memory is watched; None: 5,
    or 20 of varied lengths.

    ``data``: a text file to train on, else random tokens. ``vary_length``: steps from a quarter of seq_len to
    all of it, and what the allocator makes of them. ``memory_bytes``: what each process may take; None: 64
    GiB, on a processor no more than is free. ``progress``: a file in which one line says how far it is;
    ``snapshot``: one for the GPU allocator's history.
    """

    device: str = "cpu"
    steps: int | None = None
    data: str | None = None
    vary_length: bool = False
    progress: str | None = None
    snapshot: str | None = None
    memory_bytes: int | None = None
    time_s: float = TIME_S
    debug: bool = False


def measure_with_timeline(model: Any, how: Options, **options: Any) -> tuple[Answer, Timeline]:
    """What the real step allocates on a real device: the answer, and its timeline.

    ``model`` and ``options`` as for ``memsheet.train``; weights are random, nothing is downloaded. Several
    ranks are those that torchrun has started this process among, else it is started for them. Raises
    InputError for what cannot be measured here, and ``trace.launch.ElsewhereError`` in a process that is not
    the first of several, which has the answer.
    """
    check_device(how.device)
    name, request, cluster, where = parse_question(task_of(options), model, options)
    if name is None:
        raise input_error("model", None, "is missing", "a bundled name (`memsheet models`), or a config.json")
    if cluster is not None:
        raise input_error(
            "gpus", cluster.device.name, "is not what is measured: this machine is", "leave --gpus out"
        )
    found = find_config(name, catalog=catalog_entry, names=model_names())
    if isinstance(found, ModelSpec):
        raise input_error(
            "model", found.name, "is a file without a config.json, and its code is built from one"
        )
    spec = read_hf_config(found.values, name=found.name, source=found.source)
    resolved = resolve_request(request, spec, None, real=True)
    _check_measurable(resolved.plan, how)
    steps = how.steps or (VARIED_STEPS if how.vary_length else STEPS)
    asked = {
        "answers": "memsheet.measure.ranks" if runs_on_ranks(resolved.plan) else "memsheet.measure.requests", "name": found.name, "config": dict(found.values), "plan": plan_document(resolved.plan),
        "device": how.device, "steps": steps, "debug": how.debug, "data": how.data, "vary_length": how.vary_length, "progress": how.progress,
        "snapshot": how.snapshot, "environment": _allocator_settings(resolved.plan, how.device),
    }  # fmt: skip
    with _measures_words():
        runs = answers_together(asked, resolved.plan, memory_bytes=_memory_bytes(how), time_s=how.time_s)
    sheets = merge_equal_sheets([measured_sheet(each) for each in runs])
    sheet = max(sheets, key=lambda each: each.peak.value)
    run = next(each for each in runs if each.rank == sheet.rank)
    assumed = serving_assumed(resolved, TraceOptions())
    answer = Answer(
        model=spec,
        parameters=parameter_count(spec),
        active_parameters=active_parameter_count(spec),
        plan=resolved.plan,
        assumed=(*where["assumed"], *assumed, *_input_assumptions(how)),
        cluster=None,
        sheets=sheets,
        verdict=_out_of_memory_verdict(run, sheet),
        trace=_measured_facts(run, sheet),
        notes=(*found.source.notes, *_idle_option_notes(resolved.plan, how)),
    )
    return answer, run.timeline


def check_device(device: str) -> None:
    """That a device is one that can be measured. Raises InputError where it is not."""
    if device not in DEVICES:
        raise input_error("device", device, "is not measured", " or ".join(DEVICES))


@contextmanager
def _measures_words() -> Iterator[None]:
    """What goes wrong in a child that a trace has too, said of a measurement."""
    try:
        yield
    except InputError as error:
        raise InputError(
            [replace(one, field="measure") if one.field == "trace" else one for one in error.problems]
        ) from None


def _memory_bytes(how: Options) -> int:
    free = available_bytes() if how.device == "cpu" else None
    return min(MEMORY_BYTES, free or MEMORY_BYTES) if how.memory_bytes is None else how.memory_bytes


def _allocator_settings(plan: Plan, device: str) -> dict[str, str]:
    """What a GPU's allocator is told besides what it is told already, under its name and the one it had
    before torch 2.9.
    """
    if device != "cuda" or not plan.expandable_segments:
        return {}
    told = next((os.environ[name] for name in ALLOCATOR if os.environ.get(name)), "")
    return dict.fromkeys(ALLOCATOR, ",".join(filter(None, (told, "expandable_segments:True"))))


def _idle_option_notes(plan: Plan, how: Options) -> tuple[str, ...]:
    """What a plan says and this device has none of."""
    idle = plan.expandable_segments and how.device == "cpu" and not how.vary_length
    return ("expandable_segments changes nothing here: a processor has no caching allocator",) if idle else ()


def _input_assumptions(how: Options) -> tuple[str, ...]:
    """What the inputs are."""
    bounds = (
        "lengths from a quarter of seq_len to all of it, each padded to a multiple of 8, seed 0"
        if how.vary_length
        else ""
    )
    return tuple(filter(None, ("tokens = the bytes of a file" if how.data else "", bounds)))


def _out_of_memory_verdict(run: Traced, sheet: Sheet) -> Verdict | None:
    """What ran out of memory does not fit; what did not has shown nothing about another machine."""
    found = run.facts.get("died")
    if found is None:
        return None
    return Verdict(
        result=Result.DOES_NOT_FIT,
        rank=run.rank,
        instant=sheet.peak_instant,
        device=sheet.device,
        headroom_bytes=-(found["request_bytes"] or 0),
        largest=largest_components(sheet),
    )


def _measured_facts(run: Traced, sheet: Sheet) -> dict[str, Any]:
    """As a trace's, with the bytes of each instant under the framework's own names."""
    known = trace_facts(run)
    names = {component.value: name for component, name in ALWAYS.items()}
    return {
        **known,
        "measured": {
            **known["measured"],
            "framework": {"names": names, "instants": profiler_category_bytes(sheet)},
        },
    }


def recorded_options(how: Options) -> dict[str, Any]:
    """The part of the options that a record repeats."""
    return {
        "device": how.device,
        "steps": how.steps,
        "data": how.data,
        "vary_length": how.vary_length,
        "memory_bytes": how.memory_bytes,
    }


def config_of(name: str | None, answer: Answer) -> Mapping[str, Any] | None:
    """The config of a model that is not bundled, which a record needs to be asked about again."""
    if name is None or answer.model.source.kind == "bundled":
        return None
    found = find_config(name, catalog=catalog_entry, names=model_names())
    return None if isinstance(found, ModelSpec) else dict(found.values)


def _check_measurable(plan: Plan, how: Options) -> None:
    if how.snapshot and how.device != "cuda":
        raise input_error(
            "snapshot",
            how.snapshot,
            "is the history of a GPU's allocator, and this is a processor",
            "--events writes ours",
        )
    serves = isinstance(plan.workload, Serving)
    if serves:
        for field, value in (("data", how.data), ("vary_length", how.vary_length or None)):
            if value is not None:
                raise input_error(field, value, "is of training, and this plan serves", "leave it out")
    elif not plan.training.seq_len:
        raise input_error(
            "seq_len", None, "is missing; saved activations depend on it", "for example --seq-len 512"
        )
    if runs_on_ranks(plan) and (serves or how.vary_length):
        raise input_error(
            "mesh",
            plan.mesh.gpus,
            "ranks are measured in training, with steps of one length",
            "one rank of engine transformers",
        )
    check_runs(plan, real=True)
    if engine_of(plan).runner is Runner.OWN_ENGINE:
        _check_deepspeed(plan)
    if plan.quantization is not None:
        raise input_error(
            "quantize",
            plan.quantization.weights.name,
            "is a stand-in here, which is no measurement",
            "`memsheet trace` says so and runs it",
        )


def _check_deepspeed(plan: Plan) -> None:
    """Raises InputError where it is not installed, and for a plan that it has no form of."""
    if find_spec(DEEPSPEED) is None:
        raise input_error("engine", DEEPSPEED, "is not installed", "pip install deepspeed")
    algorithm_of(engine_of(plan).sharding).check(plan)


def merge_equal_sheets(sheets: Sequence[Sheet]) -> tuple[Sheet, ...]:
    """The sheets that differ; a rank that holds what another does, item by item, is named on that one's."""
    kept: list[Sheet] = []
    for sheet in sheets:
        like = next(
            (n for n, other in enumerate(kept) if (other.stage, other.items) == (sheet.stage, sheet.items)),
            None,
        )
        if like is None:
            kept.append(sheet)
        else:
            kept[like] = replace(kept[like], same_as=(*kept[like].same_as, sheet.rank))
    return tuple(kept)


def measured_sheet(run: Traced) -> Sheet:
    """The tensors of a real step by what they are, and at each instant what the device counted besides."""
    sheet = sheet_of(run.timeline, rank=run.rank, stage=run.stage)
    if "died" in run.facts and not sheet.items:
        found = run.facts["died"]
        asked = (
            "" if found["request_bytes"] is None else f" asked for {format_bytes(found['request_bytes'])} and"
        )
        raise input_error(
            "memory_limit",
            None,
            f"is too little for anything: {found['op']}{asked} was the first tensor",
            "--memory-limit gives it more",
        )
    record = f"torch {run.facts['torch']}, {run.facts['measured']['device']}: tensors seen in a real step"
    items = tuple(replace(item, evidence=Measured(record)) for item in sheet.items)
    besides = () if "died" in run.facts else _device_counted_items(sheet, run.facts["measured"])
    return replace(sheet, witness=Witness.MEASURED, items=(*items, *besides))


def _device_counted_items(sheet: Sheet, measured: Mapping[str, Any]) -> list[Item]:
    """What the device counted at an instant's high-water mark beyond the tensors seen at theirs (negative
    where it counted less), what its blocks and then its segments are larger, and what else of it is taken.
    """
    counted, reserved = measured["instants"], measured.get("reserved", {})
    requested = measured.get("requested", counted)
    seen = "NVML, this process" if measured.get("process_bytes") else "mem_get_info"
    taken = measured.get("process_bytes") or measured.get("device_bytes", 0)
    known = [i for i in sheet.instants if i.value in counted]
    rows = [
        (Component.UNEXPLAINED, "kernels", {i: requested[i.value] - sheet.at(i).value for i in known}, "its own count of allocations"),
        (Component.UNEXPLAINED, "rounding", {i: counted[i.value] - requested[i.value] for i in known}, "blocks are multiples of 512 bytes"),
        (Component.ALLOCATOR_SLACK, "allocator", {i: reserved[i.value] - counted[i.value] for i in known if reserved}, "its own count"),
        (Component.CONTEXT, "driver", {i: taken - max(reserved.values()) for i in known if reserved}, seen),
    ]  # fmt: skip
    return [
        Item(
            component,
            path,
            {i: Bytes.exact(size) for i, size in at.items() if size},
            Measured(f"{measured['device']}: {how}"),
        )
        for component, path, at, how in rows
        if any(at.values())
    ]


def measure_file(name: str, how: Options) -> tuple[Answer, Timeline]:
    """``FILE.py:FUNCTION``: the step that a person's own function makes, really run, in a child. As
    ``measure_step`` besides.
    """
    check_device(how.device)
    for field, value in (
        ("data", how.data),
        ("vary_length", how.vary_length or None),
        ("snapshot", how.snapshot),
    ):
        if value is not None:
            raise input_error(
                field, value, "has no meaning for a step of one's own", "say it in the step's code"
            )
    asked = {
        "answers": "memsheet.measure.requests", "name": name, "function": name, "device": how.device, "steps": how.steps or STEPS,
        "debug": how.debug, "progress": how.progress,
    }  # fmt: skip
    with _measures_words():
        (run,) = trace_in_child(asked, memory_bytes=_memory_bytes(how), time_s=how.time_s)
    return _measured_step_answer(name, run), run.timeline


def _measured_step_answer(name: str, run: Traced) -> Answer:
    sheet, answer = measured_sheet(run), own_answer(name, run)
    return replace(
        answer,
        sheets=(sheet,),
        verdict=_out_of_memory_verdict(run, sheet),
        trace={"step": name, **_measured_facts(run, sheet)},
    )


def measure_step(build: Callable[[], Any], *, device: str = "cpu", steps: int = STEPS) -> Answer:
    """What a training step of one's own really allocates, and how long it takes: on real tensors, in this
    process.

    ``build`` returns ``(module, optimizer, step)`` or a step to call, and is called three times: for a record
    of every allocation (two steps, of which the second is the sheet's), for the device's own count of it, and
    for ``steps`` timed steps. Tensors must be made in it or in the step. What the step raises is raised here.
    Raises InputError for what cannot be measured.
    """
    if steps < 1:
        raise input_error("steps", steps, "is not a positive whole number")
    check_device(device)
    from memsheet.measure.custom import measure_custom

    (run,) = read_answer({"timelines": [measure_custom(build, device, steps)]})
    return _measured_step_answer(getattr(build, "__qualname__", type(build).__name__), run)
