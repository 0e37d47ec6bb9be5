"""Random wrong questions end in an answer or a refusal: a sample of them here, and the classes that longer
runs found, each throughout.
"""

from __future__ import annotations

import math
import signal
from pathlib import Path
from typing import Any

import fuzzing
import pytest

import memsheet
from laws import every
from memsheet.errors import InputError
from memsheet.exchange import NAMES, find_format
from memsheet.exchange.joined_files import join_files
from memsheet.exchange.shared.file_format import read_format_values
from memsheet.plan.values import KINDS, option_problems

SAMPLE = 20
ODD: tuple[Any, ...] = (
    True,
    -1,
    10**18,
    1.5,
    "",
    "x",
    "\x1b[2J",
    "9" * 400,
    [],
    [None],
    [[1]],
    {},
    {"a": [1]},
    "auto",
    "cpu",
    "none",
)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="hangs are told by a timer of the process")
@pytest.mark.parametrize("kind", fuzzing.KINDS)
def test_a_sample_of_wrong_questions_is_answered_or_refused(kind: str, tmp_path: Path) -> None:
    faults = {
        number: said
        for number in range(SAMPLE)
        if (said := fuzzing.fault(fuzzing.question(kind, number), tmp_path))
    }
    assert not faults


def test_a_question_is_made_of_its_number_alone() -> None:
    for kind in fuzzing.KINDS:
        assert repr(fuzzing.question(kind, 7)) == repr(fuzzing.question(kind, 7))
        assert len({repr(fuzzing.question(kind, number)) for number in range(8)}) > 4


@pytest.mark.parametrize("name", NAMES)
def test_every_key_of_every_format_takes_or_refuses_anything(name: str) -> None:
    form = find_format(name)
    for at in (*(key.at for key in form.keys), *form.unmodelled):
        for value in ODD:
            try:
                found = read_format_values(form, {at: value})
            except InputError:
                continue
            if not found.problems:
                join_files({"a": found}, {}, {}, None)


HUGE = (10**5000, -(10**30), math.nan, math.inf, [1, [10**40]], {"a": math.inf}, {10**5000: 1})


@every("value", HUGE)
@every(
    "name",
    [
        "tp",
        "engine",
        "offload",
        "gpus",
        "host_memory",
        "nodes",
        "zero",
        "quantize",
        "cluster",
        "parameters",
        "top",
        "most",
    ],
)
def test_no_keyword_takes_a_number_that_no_file_may_hold(name: str, value: Any) -> None:
    (problem,) = option_problems({name: value})
    assert problem.field == name
    with pytest.raises(InputError):
        memsheet.train("llama-tiny", seq_len=64, **{name: value})


def test_what_is_usual_has_no_problem() -> None:
    usual = {
        "tp": 8,
        "dropout": 0.5,
        "lora_targets": ["q_proj"],
        "gpus": "8xL4",
        "nodes": 1,
        "plan": {"zero": 3},
        "cluster": Path("a.toml"),
        "top": None,
    }
    assert not list(option_problems(usual))
    cycle: list[Any] = []
    cycle.append(cycle)
    assert list(option_problems({"lora_targets": cycle}))


@pytest.mark.parametrize("value", [True, b"x", 1.5, object(), [1], print], ids=range(6))
def test_words_that_are_no_keys_of_a_plan_are_of_their_types(value: Any) -> None:
    for name in KINDS:
        assert list(option_problems({name: value}))


def _ask(function: str, *arguments: Any, **keywords: Any) -> None:
    with pytest.raises(InputError):
        getattr(memsheet, function)(*arguments, **keywords)


@pytest.mark.parametrize(
    "value", [3, 0.5, b"x", [1], {"a": 1}, {None: None}, object(), 10**5000], ids=range(8)
)
def test_arguments_of_another_type_are_refused(value: Any) -> None:
    _ask("explain", value)
    _ask("export", {"zero": 1}, value)
    _ask("export", value, "deepspeed")
    _ask("compare", value, value)
    _ask("check", value)
    _ask("solve", value, "llama-tiny", gpus="1xL4")
    _ask("train", value, seq_len=64)
    _ask("plan", "llama-tiny", gpus="1xL4", method=value)
    _ask(
        "plan_serving",
        "llama-tiny",
        gpus="1xL4",
        context=64,
        users=1,
        prompt_tokens=str(value) if isinstance(value, bytes) else [value],
    )


@pytest.mark.parametrize("what", ["seq_len", "microbatch", "sequences", "gpus"])
@pytest.mark.parametrize("most", [0, -1, 2**26 + 1, 10**18 - 1, 2**63 - 1])
def test_no_search_looks_further_than_any_plan_goes(what: str, most: int) -> None:
    _ask(
        "solve",
        what,
        "llama-tiny",
        gpus="L4" if what == "gpus" else "1xL4",
        engine="vllm" if what == "sequences" else "fsdp2",
        most=most,
    )
