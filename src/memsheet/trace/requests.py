"""What a child is asked, and what it answers: a plan as JSON in, timelines as JSON out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from memsheet.errors import input_error
from memsheet.frozen import replace
from memsheet.plan.engine import Runner
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.plan import Plan, Schedule
from memsheet.plan.workload import Serving, Training
from memsheet.resolve import resolve_document
from memsheet.run.adapters import STAND_IN as QUANTIZED
from memsheet.run.model import build_config, parameters_of, text_config_of
from memsheet.timeline import Timeline, events_document
from memsheet.trace.custom import function_in, trace_custom
from memsheet.trace.fold import Depth
from memsheet.trace.job import How, trace_training
from memsheet.trace.scans import stand_ins


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """``{"timelines": [{"rank", "stage", "events", "facts"}]}`` for each rank that is asked."""
    how = How(device=request["device"], scratch=request["scratch"])
    major, _, minor = (request.get("capability") or "").partition(".")
    if major.isdigit():  # AMD's are names
        how = replace(how, capability=(int(major), int(minor)))
    if request.get("function"):
        return {
            "timelines": [
                traced_rank_document(0, 0, lambda: trace_custom(function_in(request["function"]), how))
            ]
        }
    plan = plan_from(request["plan"])
    stages = {rank: rank * plan.mesh.pp // plan.mesh.gpus for rank in request["ranks"]}
    with stand_ins(request["config"], how.device) as instead:
        found = [
            traced_rank_document(rank, stage, partial(_trace_requested_rank, request, plan, how, rank))
            for rank, stage in stages.items()
        ]
    if plan.quantization is not None:
        instead["stand_ins"].append(QUANTIZED[plan.quantization.weights.name.partition("-")[0]])
    more: dict[str, Any] = {key: names for key, names in instead.items() if names}
    if not request["depth"]:  # nobody who knows the family has counted them
        more["parameters"] = parameters_of(request["config"], plan)
    more["assumed"] = list(_assumed_inputs(build_config(request["config"], plan), plan))
    for each in found:
        each["facts"].update(more)
    return {"timelines": found}


def _assumed_inputs(config: Any, plan: Plan) -> Iterator[str]:
    """What the inputs are taken to be, where a model takes more than one kind (run/step.py tokens,
    run/serve.py begin).
    """
    for tower in ("vision", "audio"):
        if (
            getattr(config, f"{tower}_config", None) is not None
            and getattr(text_config_of(config), "vocab_size", None) is not None
        ):
            yield (
                f"inputs = text alone: the {tower} tower is not run, and its activations and gradients "
                "are left out"
            )
    if config.is_encoder_decoder and isinstance(plan.workload, Training):
        heard = getattr(config, "num_mel_bins", None)
        yield (
            f"inputs = {plan.workload.seq_len} tokens for the decoder, and "
            f"{'whole sounds' if heard else 'as many'} for the encoder"
        )


def plan_from(document: Mapping[str, Any]) -> Plan:
    """A whole plan, read back from JSON."""
    return resolve_document(document, real=True)


def traced_rank_document(rank: int, stage: int, run: Callable[[], Timeline]) -> dict[str, Any]:
    """A timeline as it travels from the child, with how long it took and under which torch."""
    start = time.perf_counter()
    timeline = run()
    facts = {
        "seconds": round(time.perf_counter() - start, 3),
        "events": len(timeline.events),
        "torch": torch.__version__,
    }
    return {"rank": rank, "stage": stage, "events": events_document(timeline), "facts": facts}


def _trace_requested_rank(request: Mapping[str, Any], plan: Plan, how: How, rank: int) -> Timeline:
    if isinstance(plan.workload, Serving):
        from memsheet.trace.serving_job import trace_serving

        return trace_serving(request["config"], plan, how, request.get("cache"))
    if plan.schedule is Schedule.NAIVE and how.device != "cuda":
        raise input_error("schedule", "naive", "puts layers on several cards, and a processor is one device")
    if plan.schedule is Schedule.NAIVE:  # one process, of which one card is watched
        return trace_training(request["config"], plan, replace(how, card=rank))
    depth = Depth(**request["depth"]) if request["depth"] else None
    if (
        plan.mesh.gpus > 1 or engine_of(plan).runner is Runner.SHARDED_UNITS
    ):  # torch's distributed half takes a second to import
        from memsheet.trace.distributed_job import trace_rank

        return trace_rank(request["config"], plan, how, rank, depth)
    return trace_training(request["config"], plan, how, depth)
