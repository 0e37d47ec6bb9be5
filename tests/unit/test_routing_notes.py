"""What expert routing decides is said first, at an even, a published and the worst routing, in that order."""

from __future__ import annotations

import re

import pytest

import memsheet
from memsheet.budget import Result


def decided(**options: object) -> memsheet.Answer:
    return memsheet.train("qwen3-30b-a3b", gpus="32xH100-80GB", engine="megatron", seq_len=4096, fix=False, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("tp", "pp", "ep"), [(1, 1, 8), (2, 2, 8), (1, 4, 8), (2, 1, 16)])
def test_three_figures_in_order(tp: int, pp: int, ep: int) -> None:
    answer = decided(tp=tp, pp=pp, ep=ep)
    note = answer.notes[0]
    assert note.startswith("expert routing decides")
    even, uneven, worst = (float(size) for size in re.findall(r"([\d.]+) GiB", note))
    assert even <= uneven <= worst
    assert answer.verdict is not None
    assert worst * 2**30 <= answer.verdict.device.high + 2**27
    assert "2408.15664" in note
    assert "--moe-balanced" in note
    assert "--moe-capacity-factor" in note


def test_an_even_routing_by_decree_and_experts_on_one_rank_leave_nothing_to_say() -> None:
    for options in ({"ep": 8, "moe_balanced": True}, {"ep": 1}, {"ep": 8, "moe_capacity_factor": 1.0, "moe_pad_to_capacity": True}):
        assert not any("routing decides" in note for note in decided(tp=1, pp=2, **options).notes)


def test_the_screen_says_the_cause_beside_the_verdict() -> None:
    from memsheet.report.bars import Look
    from memsheet.report.table import render

    answer = memsheet.train("glm-4.5-air", gpus="512xH100-80GB", engine="megatron", tp=2, pp=8, ep=16, seq_len=4096,
                            layers_per_stage=[6, 6, 6, 6, 6, 6, 5, 5], fix=False)  # fmt: skip
    assert answer.verdict is not None
    assert answer.verdict.result is Result.UNCERTAIN
    assert "expert routing decides" in render(answer, Look(width=120)).split("\n\n")[0]
