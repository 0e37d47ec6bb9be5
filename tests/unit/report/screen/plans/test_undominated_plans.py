"""Plans that are printed: none beside one that is both faster and smaller; none that divides what one GPU
has; commands that a shell reads as they stand.
"""

from __future__ import annotations

import shlex
from itertools import pairwise
from typing import Any

import pytest

import memsheet
from memsheet.report.screen.layout import command_row, render_parts
from memsheet.report.shared.look import Look
from memsheet.search.train.rank import other_costs

CASES = [
    ("llama-3.1-70b", "64xH100-80GB", {"seq_len": 8192, "global_batch": 256, "engine": "megatron"}),
    ("llama-3.1-8b", "8xA100-80GB", {"seq_len": 4096, "global_batch": 64}), ("llama-3.1-8b", "16xA100-40GB", {"seq_len": 4096, "global_batch": 64}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "gpus", "asked"), CASES)
def test_no_printed_plan_is_slower_and_larger_than_another(
    name: str, gpus: str, asked: dict[str, Any]
) -> None:
    plans = memsheet.plan(name, gpus=gpus, top=5, **asked).ranking.plans
    assert plans
    for one in plans:
        for other in plans:
            faster, smaller = (
                other.seconds <= one.seconds,
                other.verdict.device.value <= one.verdict.device.value,
            )
            as_plain = not other_costs(other.request) & ~other_costs(one.request)
            same = (other.seconds, other.verdict.device.value) == (one.seconds, one.verdict.device.value)
            assert not (faster and smaller and as_plain and not same)


@pytest.mark.parametrize(
    ("name", "gpus", "asked"), [pytest.param(*case, marks=pytest.mark.slow) for case in CASES[1:]]
)
def test_the_front_falls_from_each_point_to_the_next(name: str, gpus: str, asked: dict[str, Any]) -> None:
    front = memsheet.plan(name, gpus=gpus, top=1, **asked).ranking.front
    assert all(a.seconds <= b.seconds and a.device_bytes > b.device_bytes for a, b in pairwise(front))


@pytest.mark.parametrize("engine", ["fsdp2", "deepspeed", "transformers", "megatron"])
def test_one_gpu_divides_nothing(engine: str) -> None:
    ranking = memsheet.plan(
        "llama-3.2-1b", gpus="1xH100-80GB", seq_len=2048, global_batch=8, engine=engine, top=3
    ).ranking
    assert ranking.plans
    for planned in ranking.plans:
        moved = planned.request.get("offload.optimizer") or planned.request.get("offload.parameters")
        assert moved or not planned.request.get("zero")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("stages", [4, 30, 200])
def test_a_printed_command_is_copied_whole(width: int, stages: int) -> None:
    command = f"memsheet train m --gpus 512xH100-80GB --layers-per-stage {','.join(['12'] * stages)} --pp 8"
    text = render_parts([command_row("Run", command, Look(width=width))], Look(width=width))
    assert all(len(line) <= width for line in text.splitlines())
    assert shlex.split(text.strip().removeprefix("Run").replace("\\\n", "")) == shlex.split(command)
