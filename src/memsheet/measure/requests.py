"""What a measuring child is asked, and what it answers: a plan as JSON in, one rank's real allocations as
JSON out.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from memsheet.errors import InputError, input_error
from memsheet.measure.cuda import clear_cuda_caches, count_cuda_peaks
from memsheet.measure.died import NO_MEMORY, out_of_memory_record, ran_out, request_bytes, stop_of
from memsheet.measure.environment import check_there, runtime_environment
from memsheet.measure.lengths import Many, over_steps
from memsheet.measure.profiler import profile_memory_peaks
from memsheet.plan.engine_registry import runs_on_ranks
from memsheet.plan.workload import Serving
from memsheet.run.data import microbatch_stream, read_text
from memsheet.run.model import build_config
from memsheet.run.train import build_trainer
from memsheet.sheet import Instant
from memsheet.timeline import Timeline
from memsheet.trace.collective_pauses import wait_for_gloo_threads
from memsheet.trace.job import STEPS, How, recorded_micro_batches, trace_training
from memsheet.trace.requests import plan_from, traced_rank_document
from memsheet.units import format_bytes

Marked = Callable[[Instant | None], None]


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """As ``trace.requests.answer``; the facts hold ``measured``: bytes by instant, seconds of a step, tokens
    a second, or ``out_of_memory_record``.
    """
    device = request["device"]
    check_there(device)
    about = {"device": device, "threads": torch.get_num_threads(), "environment": runtime_environment(device)}
    try:
        found = (
            _measure_custom_function(request) if request.get("function") else _measure_planned_job(request)
        )
    except NO_MEMORY as error:
        stop = stop_of(error)
        if stop is None and ran_out(error):
            raise _unrecorded_oom_error(error) from error
        if stop is None:
            raise
        found = out_of_memory_record(stop, error, getattr(error, "step", None))
        found["facts"]["measured"] = about
        found["facts"]["died"].update(_memory_limits(device, request.get("memory_bytes")))
        return {"timelines": [found]}
    found["facts"]["measured"].update(about)
    return {"timelines": [found]}


def _unrecorded_oom_error(error: BaseException) -> InputError:
    """Memory that no recorder saw run out: what a recorded step had enough of is too little for the profiler
    beside it, or a timed one.
    """
    asked = request_bytes(error)
    why = (
        "ran out after a step was recorded, as it was counted or "
        f"timed{f', for {format_bytes(asked)} more' if asked else ''}"
    )
    return input_error("memory_limit", None, why, "--memory-limit gives it more")


def _measure_custom_function(request: Mapping[str, Any]) -> dict[str, Any]:
    """A person's own step: ``FILE.py:FUNCTION``."""
    from memsheet.measure.custom import measure_custom
    from memsheet.trace.custom import function_in

    progress_writer(request.get("progress"))("recording, counting and timing steps")
    return measure_custom(function_in(request["function"]), request["device"], int(request["steps"]))


def _measure_planned_job(request: Mapping[str, Any]) -> dict[str, Any]:
    """A model's training or generation, as its plan says."""
    text = read_text(request["data"]) if request.get("data") else None
    many = Many(
        config=request["config"],
        plan=plan_from(request["plan"]),
        device=request["device"],
        steps=int(request["steps"]),
        text=text,
        tell=progress_writer(request.get("progress")),
    )
    if isinstance(many.plan.workload, Serving):
        return _measure_generation(many)
    _write_allocator_history(many, request.get("snapshot"))
    return _measure_training(many, varied=bool(request.get("vary_length")))


def _memory_limits(device: str, memory_bytes: int | None) -> dict[str, Any]:
    """What there was to take: the process's limit, libraries included; of a GPU all of it, and what the
    allocator had of it.
    """
    if device == "cpu":
        return {"limit_bytes": memory_bytes}
    return {"limit_bytes": torch.cuda.mem_get_info()[1], "reserved_bytes": torch.cuda.memory_reserved()}


def progress_writer(name: str | None) -> Callable[[str], object]:
    """Who is told how far it is: a file whose one line the parent shows."""
    return str if name is None else partial(Path(name).write_text, encoding="utf-8")


def _measure_training(many: Many, *, varied: bool) -> dict[str, Any]:
    many.tell("recording two steps")
    torch.manual_seed(0)
    how = How(device=many.device, fake=False, scratch=False, text=many.text)
    found = traced_rank_document(0, 0, lambda: _record_training(many, how))
    _release_run_memory(many.device)
    many.tell("counting two steps")
    measured = _device_counted_bytes(lambda at: _run_watched_steps(many, at), many.device)
    _release_run_memory(many.device)
    if varied:
        measured["over_steps"] = over_steps(many, torch.cuda if many.device == "cuda" else None)
        _release_run_memory(many.device)
    found["facts"]["measured"] = {**measured, **_step_speed(many, varied=varied)}
    return found


def _record_training(many: Many, how: How) -> Timeline:
    if not runs_on_ranks(many.plan):
        return trace_training(many.config, many.plan, how)
    from memsheet.trace.distributed_job import record_rank

    return record_rank(many.config, many.plan, how.device)


def _write_allocator_history(many: Many, file: str | None) -> None:
    """First of all, while nothing is allocated: the GPU allocator's own history of two steps."""
    if file is None:
        return
    from memsheet.measure.snapshot import record_allocator_history, write_packed_history

    many.tell("recording the allocator's history of two steps")
    torch.manual_seed(0)
    with suppress(torch.OutOfMemoryError):  # the same step dies again below, where it is asked what was there
        write_packed_history(
            record_allocator_history(
                lambda: _run_watched_steps(many, _ignore_instant_mark), torch.cuda.memory
            ),
            Path(file),
        )
    _release_run_memory(many.device)


def _release_run_memory(device: str) -> None:
    """A run is over: what it left behind is no part of the next."""
    gc.collect()
    if device == "cuda":
        clear_cuda_caches(torch.cuda)


def _device_counted_bytes(run: Callable[[Marked], None], device: str) -> dict[str, Any]:
    """Bytes that the device itself counted: of each instant, and on a GPU of what is reserved and taken in
    all.
    """
    torch.manual_seed(0)
    if device == "cpu":
        return {"instants": dict(profile_memory_peaks(run).instants)}
    return count_cuda_peaks(run, torch.cuda).facts


def _run_watched_steps(many: Many, at: Marked) -> None:
    """Two steps under watch: the first makes the optimizer's states."""
    batch = (
        None
        if many.text is None
        else next(
            microbatch_stream(build_config(many.config, many.plan), many.plan, many.device, text=many.text)
        )
    )
    with wait_for_gloo_threads() if runs_on_ranks(many.plan) else nullcontext():
        step = build_trainer(many.config, many.plan, many.device, at, recorded_micro_batches(many.plan))
        for _ in range(STEPS):
            step(batch)


# ---- speed -------------------------------------------------------------------------------------------------


def _step_speed(many: Many, *, varied: bool) -> dict[str, Any]:
    """Seconds of each step and tokens a second, with nothing watching."""
    seconds, tokens = _timed_step_seconds(many, varied=varied)
    whole, rows = sum(seconds), int(many.plan.accumulation)
    return {
        "steps": len(seconds), "step_s": round(statistics.median(seconds), 4), "fastest_s": round(min(seconds), 4),
        "slowest_s": round(max(seconds), 4), "tokens_per_s": round(tokens * rows / (whole if varied else len(seconds) * statistics.median(seconds)), 1),
    }  # fmt: skip


def _timed_step_seconds(many: Many, *, varied: bool) -> tuple[list[float], int]:
    """Seconds of each step after the first, and the tokens of their micro-batches."""
    step, found, tokens = (
        build_trainer(many.config, many.plan, many.device, _ignore_instant_mark, int(many.plan.accumulation)),
        list[float](),
        0,
    )
    step()
    for number, batch in enumerate(_timing_batches(many, varied=varied)):
        many.tell(f"timing step {number + 1} of {many.steps}")
        start = time.perf_counter()
        step(batch)
        if many.device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
        tokens += int(many.plan.training.microbatch) * (
            many.lengths[number] if varied else int(many.plan.training.seq_len)
        )
    return found, tokens


def _timing_batches(many: Many, *, varied: bool) -> Iterator[Mapping[str, Any] | None]:
    """None stands for the trainer's own."""
    if varied:
        return iter(many.batches())
    if many.text is None:
        return iter([None] * many.steps)
    return islice(
        microbatch_stream(build_config(many.config, many.plan), many.plan, many.device, text=many.text),
        many.steps,
    )


def _measure_generation(many: Many) -> dict[str, Any]:
    """A prompt and the tokens after it."""
    from memsheet.measure.serving import generation_seconds, run_once
    from memsheet.trace.serving_job import trace_serving

    plan = many.plan
    many.tell("recording a prompt and its last tokens")
    torch.manual_seed(0)
    found = traced_rank_document(
        0, 0, lambda: trace_serving(many.config, plan, How(device=many.device, fake=False, scratch=False))
    )
    _release_run_memory(many.device)
    many.tell("counting them")
    measured = _device_counted_bytes(lambda at: run_once(many.config, plan, many.device, at), many.device)
    if plan.serving.phase != "load":
        many.tell("timing")
        prompt = int(
            plan.serving.prompt_tokens
            if plan.serving.prompt_tokens is not None
            else plan.serving.max_model_len or 0
        )
        room = max(int(plan.serving.max_model_len or 0) - prompt - 1, 0)
        spent = generation_seconds(many.config, plan, many.device, max(min(many.steps, room), 1))
        step_s, rows = statistics.median(spent["decode_s"]), int(plan.serving.max_sequences or 1)
        measured |= {
            "steps": len(spent["decode_s"]), "prefill_s": round(spent["prefill_s"], 4), "step_s": round(step_s, 5),
            "fastest_s": round(min(spent["decode_s"]), 5), "slowest_s": round(max(spent["decode_s"]), 5),
            "tokens_per_s": round(rows / step_s, 1), "prompt_tokens_per_s": round(rows * prompt / spent["prefill_s"], 1),
        }  # fmt: skip
    found["facts"]["measured"] = measured
    return found


def _ignore_instant_mark(_: Instant | None) -> None:
    """Nobody asks where the step is."""
