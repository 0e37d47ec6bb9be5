"""Every plan that a search offers is exported to each tool of its engine, or the refusal names the flag that
makes one that is; and what files leave out of it they say.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.exchange import NAMES, find_format
from memsheet.questions.export import Exported, exported_files

LAUNCHERS = ("slurm", "torchrun", "kubernetes", "trainjob", "accelerate", "deepspeed")
TOOLS = [
    name
    for name in NAMES
    if name not in (*LAUNCHERS, "skypilot") and "train" in find_format(name).said.values()
]
QUESTIONS = (
    "qwen3-8b --gpus 1xRTX4090 --seq-len 2048 --global-batch 16 --method qlora",
    "qwen3-8b --gpus 1xRTX4090 --seq-len 2048 --global-batch 16 --method lora",
    "qwen3-0.6b --gpus 1xRTX4090 --seq-len 2048 --global-batch 16",
    "qwen3-8b --gpus 8xH100-80GB --seq-len 4096 --global-batch 64",
    "qwen3-8b --gpus 2xRTX4090 --seq-len 2048 --global-batch 16 --method qlora",
    "qwen3-30b-a3b --gpus 1xA100-80GB --seq-len 2048 --global-batch 16 --method qlora --lora-targets q_proj",
)
FLAGS = re.compile(r"plan it with (--.+)")
ROUNDS = 3


FOUND: dict[str, str] = {}
"""What was found of each question: several tools name the same flags."""


def plans_of(question: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    if question not in FOUND:
        code = main(["plan", "train", *shlex.split(question), "--json"])
        told = capsys.readouterr()
        assert code in (0, 11), (question, told.err)
        FOUND[question] = told.out
    document = json.loads(FOUND[question])
    return [one["plan"] for one in (*document["plans"], *(document.get("by_engine") or {}).values())]


def with_flags(question: str, flags: str) -> str:
    """A question with other flags in the place of those of the same name."""
    for name in re.findall(r"--[a-z-]+", flags):
        question = re.sub(rf"{name} \S+", "", question)
    return f"{question} {flags}"


def refused(plan: dict[str, Any], tool: str) -> InputError | None:
    try:
        exported_files(plan, [tool])
    except InputError as error:
        return error
    return None


def cases() -> Iterator[Any]:
    for number, question in enumerate(QUESTIONS):
        yield pytest.param(question, marks=[pytest.mark.slow] * (number > 0))


@pytest.mark.parametrize("question", cases())
def test_a_plan_is_exported_or_the_flag_is_named_that_makes_one(
    question: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: set[tuple[str, str, str]] = set()
    for plan in plans_of(question, capsys):
        for tool in TOOLS:
            error = refused(plan, tool) if plan["engine"] in find_format(tool).engines else None
            if error is not None:
                hints = {found[1] for one in error.problems if (found := FLAGS.match(one.hint))}
                assert hints, (tool, error)
                asked |= {(tool, plan["engine"], hint) for hint in hints}
    assert asked
    for tool, engine, first in sorted(asked):
        again, flags, refusal = question, first, None
        for _ in range(ROUNDS):
            again = with_flags(again, flags if "--engine" in flags else f"{flags} --engine {engine}")
            plan = plans_of(again, capsys)[0]
            refusal = refused(plan, tool)
            if refusal is None:
                break
            flags = next(found[1] for one in refusal.problems if (found := FLAGS.match(one.hint)))
        assert refusal is None, (tool, again, refusal)


def headers(exported: Exported, tools: list[str]) -> dict[str, str]:
    files = {find_format(tool).file: tool for tool in tools}
    return {
        name: text for name, text in exported.files.items() if name in files and not name.endswith(".json")
    }


@pytest.mark.parametrize(
    "tools", [["deepspeed", "accelerate", "torchrun"], ["accelerate"], ["torchrun"], ["slurm"]]
)
def test_files_that_leave_something_out_say_so(tools: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    job = "qwen3-8b --gpus 8xRTX4090 --seq-len 2048 --engine deepspeed --zero 2 --lora-rank 16"
    main(["train", *shlex.split(job), "--optimizer", "adamw_8bit", "--loss", "fused", "--json"])
    exported = exported_files(json.loads(capsys.readouterr().out)["plan"], tools)
    told = headers(exported, tools)
    assert told
    for text in (*told.values(), "\n".join(exported.notes)):
        assert "no file here says" in text
        assert "loss = fused" in text
        assert "optimizer.name = adamw_8bit" in text
        assert "adapter.rank = 16" in text


@pytest.mark.parametrize(
    ("tool", "question"),
    [
        *((tool, QUESTIONS[1]) for tool in ("trl", "axolotl", "llamafactory", "swift")),
        ("trl", f"{QUESTIONS[0]} --lora-dtype bf16"),
        ("unsloth", f"{QUESTIONS[0]} --loss chunked"),
    ],
)
def test_files_of_a_tool_that_says_all_leave_nothing_out(
    tool: str, question: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = next(one for one in plans_of(question, capsys) if one["engine"] == "transformers")
    exported = exported_files(plan, [tool])
    assert not any("no file here says" in text for text in (*exported.files.values(), *exported.notes))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_tool_of_other_engines_names_those_that_write_the_plan(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["infer", "qwen2.5-7b", "--gpus", "1xA100-80GB", "--engine", engine, "--json"])
    plan = json.loads(capsys.readouterr().out)["plan"]
    refusal = refused(plan, "kubernetes")
    assert refusal is not None
    named = re.search(r"--to (.+)", refusal.problems[0].hint)
    assert named
    assert engine in named[1].split(", ")
    for tool in named[1].split(", "):
        assert refused(plan, tool) is None, tool
