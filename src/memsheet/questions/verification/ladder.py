"""The rungs that a person can afford, from the cheapest: the trace of the whole plan; one process of this
machine; as many as it has under torchrun, with the plan's shape scaled down; the whole plan, where torchrun
has started all of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from memsheet.account import account_rank
from memsheet.catalog import model_names
from memsheet.errors import InputError, Problem, input_error
from memsheet.formulas.states.params import parameter_count
from memsheet.frozen import dataclass, replace
from memsheet.plan.document import plan_document
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan, RecomputeMode
from memsheet.plan.workload import Training
from memsheet.questions.measured import Options as MeasureOptions
from memsheet.questions.measured import check_device, measure_with_timeline
from memsheet.questions.question_parts import catalog_entry, parse_question
from memsheet.questions.traced import Options as TraceOptions
from memsheet.questions.traced import trace_with_timelines
from memsheet.questions.verification.scaled import (
    layers_of,
    mesh_shrinkage_words,
    shrink_plan,
    truncated_layers_config,
)
from memsheet.questions.verification.slurm import Queue, measured_by_job
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.model import Config, find_config
from memsheet.readers.sheet_json import sheets_within
from memsheet.report.json.record import record_document
from memsheet.report.shared.verification import RankWitnesses, Verification, VerificationRun
from memsheet.resolve import resolve_document, resolve_request
from memsheet.sheet import Sheet
from memsheet.trace.launch import launched_rank_count
from memsheet.trace.parent import available_bytes
from memsheet.units import format_bytes

Say = Callable[[str], None]
Answered = TypeVar("Answered")

FORWARDS = {False: 3, True: 4}
"""Forward passes that a step costs, by whether everything is recomputed: backward is two (arXiv:2205.05198,
section 5).
"""
MOST_TRACED = 8
"""Ranks that are traced one by one; of more, one of each pipeline stage."""
CPU_OPERATIONS = 3e12
"""What a processor's step may take: a minute or so on a few cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How far up the ladder. ``processes``: ranks that this machine runs at once; ``operations``:
    floating-point ones a step may take on a processor; ``slurm``: the partition on whose nodes, of
    ``per_node`` GPUs, the whole plan is run last; ``say`` is told what is under way.
    """

    device: str = "cpu"
    processes: int = 2
    steps: int = 1
    operations: float = CPU_OPERATIONS
    memory_bytes: int | None = None
    time_s: float = 600
    slurm: str | None = None
    per_node: int = 8
    say: Say = lambda _: None


def run_verification_ladder(plan: Any, how: Options, *, model: str | None = None) -> Verification:
    """Run what can be afforded of a plan, and put what was predicted beside it.

    ``plan``: a file or object of ``memsheet/plan/1`` for training, which may name the model. Raises
    InputError for a plan that is none.
    """
    check_device(how.device)
    name, request, _, _ = parse_question("train", model, {"plan": plan})
    if name is None:
        raise input_error("model", None, "is not named by the plan", "--model NAME")
    found = find_config(name, catalog=catalog_entry, names=model_names())
    if isinstance(found, ModelSpec):
        raise input_error(
            "model", found.name, "is a file without a config.json, and its code is built from one"
        )
    whole = resolve_request(
        request, read_hf_config(found.values, name=found.name, source=found.source), None, real=True
    ).plan
    if not isinstance(whole.workload, Training) or not whole.workload.seq_len:
        raise input_error(
            "seq_len", None, "is missing: a step of training is verified", "give the plan a seq_len"
        )
    return Verification(model=found.name, plan=whole, rungs=tuple(_verification_rungs(found, whole, how)))


def _verification_rungs(found: Config, whole: Plan, how: Options) -> Iterator[VerificationRun]:
    if started := _torchrun_rank_count(whole):
        yield _run_rung(
            found, whole, f"torchrun, {started} processes", "the whole plan", how, run=_measured_sheets
        )
        return
    yield _run_rung(
        found, whole, "trace", "the whole plan, on fake tensors", replace(how, device="cuda"), run=None
    )
    steps = dict.fromkeys((1, how.processes)) if whole.mesh.gpus > 1 else (1,)
    seen = set[Plan]()
    for processes in steps:
        plan = shrink_plan(whole, processes)
        if plan in seen:
            continue
        seen.add(plan)
        name = f"torchrun, {plan.mesh.gpus} processes" if plan.mesh.gpus > 1 else "one process"
        yield _affordable_rung(found, plan, name, mesh_shrinkage_words(whole, plan), how)
    if how.slurm is not None:
        yield _run_rung(
            found,
            whole,
            f"Slurm, {whole.mesh.gpus} processes",
            "the whole plan",
            replace(how, device="cuda"),
            run=_queued_job_sheets,
        )


def _torchrun_rank_count(whole: Plan) -> int | None:
    """Ranks that torchrun has started, if it has: as many as the plan has, or this is refused."""
    world = launched_rank_count()
    if world not in (None, whole.mesh.gpus):
        raise input_error(
            "mesh",
            whole.mesh.gpus,
            f"ranks are in the plan, and {world} were started",
            "start as many, or none",
        )
    return world


# ---- what a machine can afford -----------------------------------------------------------------------------


def _affordable_rung(found: Config, plan: Plan, name: str, what: str, how: Options) -> VerificationRun:
    """The rung with as many of the model's layers as memory and time allow."""
    if how.device != "cpu":
        return _run_rung(found, plan, name, what, how, run=_measured_sheets)
    layers = layers_of(found.values)
    cut, left = found, layers
    while reason := _too_much(cut, plan, how):
        if left is None or left // 2 < max(2, virtual_stage_count(plan)):
            of = f"with {left} of {layers} layers " if left != layers else ""
            return VerificationRun(
                name=name, what=what, device=how.device, plan=plan, refused={"measured": of + reason}
            )
        left //= 2
        cut = replace(found, values=truncated_layers_config(found.values, left))
    fewer = f"layers {layers} → {left}" if left != layers else ""
    return _run_rung(cut, plan, name, ", ".join(filter(None, (what, fewer))), how, run=_measured_sheets)


def virtual_stage_count(plan: Plan) -> int:
    """Pieces that a model's layers are cut into."""
    return plan.mesh.pp * plan.mesh.vpp


def _too_much(found: Config, plan: Plan, how: Options) -> str:
    """Why a processor should not run it; empty where it may."""
    spec = read_hf_config(found.values, name=found.name, source=found.source)
    tokens = int(
        plan.training.microbatch * plan.training.seq_len * plan.accumulation * plan.mesh.data_parallel
    )
    work = 2 * FORWARDS[plan.recompute.mode is RecomputeMode.FULL] * parameter_count(spec) * tokens
    if work > how.operations:
        return (
            f"a step takes {work:.2g} floating-point operations, more than the {how.operations:.2g} of "
            "--operations"
        )
    try:
        need = max(
            int(account_rank(spec, plan, stage=stage, device=how.device).peak.value)
            for stage in range(plan.mesh.pp)
        ) * int(plan.mesh.gpus)
    except InputError:  # nobody knows beforehand; the limit on the child's memory is what is left
        return ""
    free = available_bytes()
    return (
        f"it needs {format_bytes(need)} of {format_bytes(free, headroom=True)} free memory"
        if free and need > free
        else ""
    )


# ---- one rung ----------------------------------------------------------------------------------------------


Given = Mapping[str, Any]
Run = Callable[[Plan, Given, Options], tuple[tuple[Sheet, ...], Mapping[str, Any]]]
"""A way to run a plan: its ranks' sheets, and the record."""


def _run_rung(
    found: Config, plan: Plan, name: str, what: str, how: Options, *, run: Run | None
) -> VerificationRun:
    """What the witnesses say of one plan. ``run``: how it is really run; None where it is traced alone."""
    start, refused = time.perf_counter(), dict[str, str]()
    given = {"model": {**found.values, "_name_or_path": found.name}, "plan": plan_document(plan)}

    def heard(witness: str, ask: Callable[[], Answered]) -> Answered | None:
        how.say(f"{name}: {witness}")
        try:
            return ask()
        except InputError as error:
            refused[witness] = "; ".join(map(_in_a_line, error.problems))
            return None

    predicted = heard("predicted", lambda: _predicted_sheets(found, plan, how.device)) or {}
    measured = (
        heard("measured", lambda: run(plan, given, how)) if run else None
    )  # first: other ranks go no farther
    sheets, record = measured or ((), None)
    world, one_a_stage = (
        int(plan.mesh.gpus),
        tuple(int(s * plan.mesh.gpus // plan.mesh.pp) for s in range(plan.mesh.pp)),
    )
    ranks = tuple(range(world)) if run else one_a_stage
    traced = (
        heard("traced", lambda: _traced_sheets(given, ranks if world <= MOST_TRACED else one_a_stage, how))
        or ()
    )
    return VerificationRun(
        name=name,
        what=what,
        device=how.device,
        plan=plan,
        refused=refused,
        seconds=time.perf_counter() - start,
        ranks=tuple(_compared_ranks(plan, ranks, predicted, traced, sheets)),
        record=record,
    )


def _in_a_line(problem: Problem) -> str:
    hint = f" ({problem.hint})" if problem.hint else ""
    return " ".join(f"{replace(problem, hint='')}{hint}".split())


def _predicted_sheets(found: Config, plan: Plan, device: str) -> dict[int, Sheet]:
    """By stage. Raises InputError for what runs and is not modelled."""
    spec = read_hf_config(found.values, name=found.name, source=found.source)
    resolve_document(plan_document(plan), spec)
    return {stage: account_rank(spec, plan, stage=stage, device=device) for stage in range(plan.mesh.pp)}


def _traced_sheets(given: Mapping[str, Any], ranks: tuple[int, ...], how: Options) -> tuple[Sheet, ...]:
    options = TraceOptions(device=how.device, scratch=False, ranks=ranks, time_s=how.time_s)
    return trace_with_timelines(given["model"], options, plan=given["plan"])[0].sheets


def _measured_sheets(_: Plan, given: Given, how: Options) -> tuple[tuple[Sheet, ...], Mapping[str, Any]]:
    options = MeasureOptions(
        device=how.device, steps=how.steps, memory_bytes=how.memory_bytes, time_s=how.time_s
    )
    answer = measure_with_timeline(given["model"], options, plan=given["plan"])[0]
    _check_alive(answer.trace)
    asked = {**given, "model": answer.model.name, "config": given["model"], "device": how.device}
    return answer.sheets, record_document(answer, asked=asked)


def _queued_job_sheets(plan: Plan, given: Given, how: Options) -> tuple[tuple[Sheet, ...], Mapping[str, Any]]:
    words = ["--device", how.device, "--steps", str(how.steps), "--time-limit", str(int(how.time_s))]
    with TemporaryDirectory(
        prefix="memsheet-", dir="."
    ) as folder:  # where every node looks, as a home on a cluster is
        queue = Queue(partition=how.slurm, per_node=how.per_node, time_s=how.time_s)
        record = measured_by_job(given, int(plan.mesh.gpus), words, Path(folder), queue)
    _check_alive((record.get("sheet") or {}).get("trace"))
    return sheets_within(record, "the job").sheets, record


def _check_alive(facts: Mapping[str, Any] | None) -> None:
    """Raises InputError where a step ran out of memory: what was there then is no step's peak."""
    if died := (facts or {}).get("died"):
        held = format_bytes(died["resident_bytes"])
        raise input_error(
            "memory",
            None,
            f"ran out in {died['instant']} of step {died['step']}, {held} of tensors were there",
            "--memory-limit",
        )


def _compared_ranks(
    plan: Plan,
    ranks: tuple[int, ...],
    predicted: Mapping[int, Sheet],
    traced: tuple[Sheet, ...],
    measured: tuple[Sheet, ...],
) -> Iterator[RankWitnesses]:
    """Every rank that was asked about, with its sheets."""
    by_rank = [
        {rank: sheet for sheet in sheets for rank in (sheet.rank, *sheet.same_as)}
        for sheets in (traced, measured)
    ]
    one_a_stage = len(ranks) < plan.mesh.gpus
    for rank in ranks:
        stage = int(rank * plan.mesh.pp // plan.mesh.gpus)
        yield RankWitnesses(
            rank=rank,
            stage=stage,
            predicted=predicted.get(stage),
            traced=by_rank[0].get(rank),
            measured=by_rank[1].get(rank),
            same_as=tuple(range(rank + 1, int((stage + 1) * plan.mesh.gpus // plan.mesh.pp)))
            if one_a_stage
            else (),
        )
