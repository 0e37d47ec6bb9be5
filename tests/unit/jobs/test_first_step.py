"""A job's first step, before an optimizer has states."""

from __future__ import annotations

from typing import Any

import memsheet
from memsheet.jobs.account import account_job
from memsheet.jobs.document import read_job
from memsheet.jobs.first_step import first_step
from memsheet.plan.job import Job
from memsheet.questions.job import resolve_job
from memsheet.sheet import Component, Instant, Sheet

MODEL = "qwen2.5-0.5b"
PHASES = [
    {"name": "gen", "active": "rollout"},
    {"name": "old_log_prob", "active": "actor", "work": "forward"},
    {"name": "update_actor", "active": "actor"},
]


def job_of(optimizer: str = "adamw", residents: str = "whole", rows: int = 1) -> tuple[Job, Sheet]:
    plan = {
        "task": "train", "engine": "transformers", "seq_len": 512, "microbatch": rows, "loss": "fused",
        "precision": "bf16-pure", "optimizer": {"name": optimizer}, "recompute": {"mode": "full"},
    }  # fmt: skip
    served: dict[str, Any] = {
        "task": "infer", "engine": "vllm", "serving": {"memory_fraction": 0.4, "max_model_len": 1024, "max_sequences": 8},
    }  # fmt: skip
    phases = [
        {**one, **({"residents": {"actor": residents}} if one["name"] == "gen" else {})} for one in PHASES
    ]
    roles = {"actor": {"model": MODEL, "plan": plan}, "rollout": {"model": MODEL, "plan": served}}
    cluster = memsheet.job({"roles": roles, "phases": phases}, gpus="1xL4").cluster
    job, _ = resolve_job(read_job({"roles": roles, "phases": phases}, 1), cluster)
    return job, account_job(job)[0]


def states(sheet: Sheet, when: str) -> int:
    return sum(
        int(item.at[Instant(when)].value)
        for item in sheet.items
        if item.component is Component.OPTIMIZER_STATES and Instant(when) in item.at
    )


def test_phases_before_the_first_update_are_without_the_states_that_it_makes() -> None:
    job, sheet = job_of()
    found = first_step(job, sheet)
    assert found is not None
    made = states(sheet, "gen/decode")
    assert made > 0
    assert found.made == {"actor": made}
    without = {
        when: int(sheet.at(when, without=()).value) - made
        for when in sheet.instants
        if when.step is not Instant.OPTIMIZER_STEP
    }
    own = Instant("update_actor/optimizer_step")
    assert found.size.value == max(*without.values(), int(sheet.at(own, without=()).value))
    assert found.size.value <= sheet.device.value


def test_states_that_leave_the_card_change_no_phase_before_the_update() -> None:
    job, sheet = job_of(residents="parameters")
    found = first_step(job, sheet)
    assert found is not None
    assert states(sheet, "gen/decode") == 0
    assert found.size.value <= sheet.device.value


def test_an_optimizer_without_states_makes_none() -> None:
    assert first_step(*job_of("sgd")) is None


def test_the_answer_says_which_step_dies() -> None:
    """A server's share beside which parameters fit, and parameters with states do not."""
    plan = {
        "task": "train", "engine": "transformers", "seq_len": 128, "microbatch": 1, "loss": "fused",
        "precision": "bf16-pure", "recompute": {"mode": "full"},
    }  # fmt: skip
    served = {"task": "infer", "engine": "vllm", "serving": {"memory_fraction": 0.8, "max_model_len": 512, "max_sequences": 4}}  # fmt: skip
    roles = {
        "actor": {"model": "qwen2.5-1.5b", "plan": plan},
        "rollout": {"model": "qwen2.5-1.5b", "plan": served},
    }
    phases = [{"name": "gen", "active": "rollout"}, {"name": "update_actor", "active": "actor", "residents": {"rollout": "asleep-2"}}]  # fmt: skip
    notes = memsheet.job({"roles": roles, "phases": phases}, gpus="1xL4").notes
    assert any("is expected to fit where the second is not" in note for note in notes)
