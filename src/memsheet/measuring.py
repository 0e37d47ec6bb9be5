"""The question behind ``memsheet measure``: a plan made whole, its real step taken in a child, and what nothing explains named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from memsheet.api import catalogued, question
from memsheet.budget import Answer
from memsheet.catalog import model_names
from memsheet.errors import refuse
from memsheet.formulas.params import active_parameter_count, parameter_count
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.model import find_config
from memsheet.report.json import plan_document
from memsheet.resolve import resolve
from memsheet.sheet import Bytes, Component, Item, Measured, Sheet, Witness
from memsheet.spec.model import ModelSpec
from memsheet.spec.plan import Plan
from memsheet.timeline import Timeline, sheet_of
from memsheet.trace.parent import TIME_S, Traced, trace_in_child
from memsheet.tracing import check_runs, facts
from memsheet.units import GIB

MEMORY_BYTES = 64 * GIB
"""Real tensors take real memory; the machine's own end comes first on most."""
STEPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a step is measured. ``steps``: how many are timed besides the two whose memory is watched."""

    device: str = "cpu"
    steps: int = STEPS
    memory_bytes: int = MEMORY_BYTES
    time_s: float = TIME_S
    debug: bool = False


def measure(model: Any, how: Options, **options: Any) -> tuple[Answer, Timeline]:
    """What the real step allocates on a real device: the answer, and its timeline.

    ``model`` and ``options`` as for ``memsheet.train``; weights are random, nothing is downloaded. Raises InputError for what cannot
    be measured here.
    """
    if how.device not in ("cpu", "cuda"):
        raise refuse("device", how.device, "is not measured", "cpu or cuda")
    name, request, cluster, _ = question("train", model, options)
    if name is None:
        raise refuse("model", None, "is missing", "a bundled name (`memsheet models`), or a config.json")
    if cluster is not None:
        raise refuse("gpus", cluster.device.name, "is not what is measured: this machine is", "leave --gpus out")
    found = find_config(name, catalog=catalogued, names=model_names())
    if isinstance(found, ModelSpec):
        raise refuse("model", found.name, "is a file without a config.json, and its code is built from one")
    spec = read_hf_config(found.values, name=found.name, source=found.source)
    resolved = resolve(request, spec, None, real=True)
    _check(resolved.plan)
    asked = {
        "answers": "memsheet.measure.requests", "name": found.name, "config": dict(found.values), "plan": plan_document(resolved.plan),
        "device": how.device, "steps": how.steps, "debug": how.debug,
    }  # fmt: skip
    (run,) = trace_in_child(asked, memory_bytes=how.memory_bytes, time_s=how.time_s)
    answer = Answer(
        model=spec, parameters=parameter_count(spec), active_parameters=active_parameter_count(spec), plan=resolved.plan,
        assumed=resolved.assumed, cluster=None, sheets=(measured_sheet(run),), verdict=None, trace=facts(run), notes=found.source.notes,
    )  # fmt: skip
    return answer, run.timeline


def _check(plan: Plan) -> None:
    if not plan.seq_len:
        raise refuse("seq_len", None, "is missing; saved activations depend on it", "for example --seq-len 512")
    if plan.mesh.gpus > 1:
        raise refuse("mesh", plan.mesh.gpus, "ranks are not measured together yet", "one rank; `memsheet trace` runs one of many")
    check_runs(plan)
    if plan.engine != "transformers":
        raise refuse("engine", plan.engine, "is not measured yet", "transformers; `memsheet trace` runs fsdp2")
    if plan.quantization is not None:
        raise refuse(
            "quantize",
            plan.quantization.weights.name,
            "is a stand-in here, which is no measurement",
            "`memsheet trace` says so and runs it",
        )


def measured_sheet(run: Traced) -> Sheet:
    """The tensors of a real step by what they are, and at each instant what the device counted besides."""
    sheet = sheet_of(run.timeline, rank=run.rank, stage=run.stage)
    record = f"torch {run.facts['torch']}, {run.facts['measured']['device']}: tensors seen in a real step"
    items = tuple(replace(item, evidence=Measured(record)) for item in sheet.items)
    return replace(sheet, witness=Witness.MEASURED, items=(*items, *_besides(sheet, run.facts["measured"])))


def _besides(sheet: Sheet, measured: Mapping[str, Any]) -> list[Item]:
    """What the device counted at an instant's high-water mark beyond the tensors seen at theirs (negative where it counted less), what
    it reserved beyond that, and what else of it is taken.
    """
    counted, reserved = measured["instants"], measured.get("reserved", {})
    known = [i for i in sheet.instants if i.value in counted]
    rows = [
        (Component.UNEXPLAINED, "kernels", {i: counted[i.value] - sheet.at(i).value for i in known}, "its own count of allocations"),
        (Component.ALLOCATOR_SLACK, "allocator", {i: reserved[i.value] - counted[i.value] for i in known if reserved}, "its own count"),
        (Component.CONTEXT, "driver", {i: measured["device_bytes"] - max(reserved.values()) for i in known if reserved}, "mem_get_info"),
    ]  # fmt: skip
    return [
        Item(component, path, {i: Bytes.exact(size) for i, size in at.items() if size}, Measured(f"{measured['device']}: {how}"))
        for component, path, at, how in rows
        if any(at.values())
    ]
