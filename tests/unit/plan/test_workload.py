"""A plan holds the workload of its own task alone; what a pass takes depends on its shape."""

from __future__ import annotations

import ast
from dataclasses import fields, replace

import pytest

from answers import model
from laws import every
from memsheet.engines.transformers.forward_work import Work
from memsheet.engines.transformers.widest_layer import largest_layer_bytes
from memsheet.plan.document import plan_document
from memsheet.plan.engine_registry import MODELLED, engine_of, find_engine
from memsheet.plan.plan import Plan
from memsheet.plan.workload import PassShape, Serving, Training
from memsheet.resolve import resolve_document, resolve_request
from parsed_files import PACKAGE, files_with

LENGTHS = {
    "train": {"seq_len": 64, "microbatch": 2},
    "infer": {"serving.max_model_len": 64, "serving.max_sequences": 2},
}
ENGINES_WITH_TASKS = [
    (name, task) for name in MODELLED if (found := find_engine(name)) for task in sorted(found.tasks)
]
SERVED = ("llama-tiny", "gpt2", "qwen3-0.6b", "deepseek-v2-lite", "mamba-2.8b", "mixtral-8x7b")


def plan_of(engine: str, task: str, **more: object) -> Plan:
    alone = {"phase": "load"} if engine == "deepspeed" and task == "infer" else {}
    return resolve_request({"engine": engine, "task": task, **LENGTHS[task], **alone, **more}, None).plan


@pytest.mark.parametrize(("engine", "task"), ENGINES_WITH_TASKS)
def test_a_plan_has_the_workload_of_its_task_and_none_of_the_other(engine: str, task: str) -> None:
    plan = plan_of(engine, task)
    own, other = ("training", "serving") if task == "train" else ("serving", "training")
    assert plan.task == task
    assert getattr(plan, own) is plan.workload
    with pytest.raises(AssertionError):
        getattr(plan, other)


@every("engine, task", ENGINES_WITH_TASKS)
@every("said", [{}, {"seq_len": 64}])
def test_a_workload_is_read_back_as_it_was_written(engine: str, task: str, said: dict[str, int]) -> None:
    plan = plan_of(engine, task, **said)
    written = plan_document(plan)
    assert written["seq_len"] == (64 if task == "train" or said else None)
    assert resolve_document(written).workload == plan.workload


def test_the_two_workloads_share_no_word_but_the_length_that_both_are_asked_by() -> None:
    trained, served = ({field.name for field in fields(kind)} for kind in (Training, Serving))
    assert trained & served == {"seq_len"}


def test_a_workload_is_made_where_a_plan_is_resolved_and_nowhere_else() -> None:
    makers = {
        path.relative_to(PACKAGE).parts[0]
        for path in files_with(("Training(", "Serving("))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Training", "Serving")
    }
    assert makers == {"resolve"}


def test_a_micro_batch_is_a_pass_of_its_shape() -> None:
    assert plan_of("fsdp2", "train").training.shape == PassShape(sequences=2, tokens=64)


@pytest.mark.parametrize("name", SERVED)
def test_what_a_pass_takes_follows_from_its_work_and_not_from_what_the_server_is_made_for(name: str) -> None:
    spec = model(name)
    asked = {"task": "infer", "engine": "transformers", **LENGTHS["infer"]}
    plan = resolve_request(asked, spec).plan
    longer = replace(plan, workload=replace(plan.serving, max_model_len=4096, max_sequences=16))
    for work in (Work(sequences=2, tokens=32), Work(sequences=2, tokens=1, cached=32)):
        assert largest_layer_bytes(spec, plan, engine_of(plan), work) == largest_layer_bytes(
            spec, longer, engine_of(plan), work
        )
