"""What expert routing decides is said first, at an even, a published and the worst routing, in that order."""

from __future__ import annotations

import re

import pytest

import memsheet
from memsheet.budget import Result


def decided(**options: object) -> memsheet.Answer:
    return memsheet.train(
        "qwen3-30b-a3b", gpus="32xH100-80GB", engine="megatron", seq_len=4096, fix=False, **options
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(("tp", "pp", "ep"), [(1, 1, 8), (2, 2, 8), (1, 4, 8), (2, 1, 16)])
def test_three_figures_in_order(tp: int, pp: int, ep: int) -> None:
    answer = decided(tp=tp, pp=pp, ep=ep)
    note = answer.notes[0]
    assert answer.verdict is not None
    assert note.startswith(
        "expert routing matters: "
        if answer.verdict.result is Result.FITS
        else ("expert routing decides: ", "expert routing matters: ")
    )
    even, uneven, worst = (float(size) for size in re.findall(r"([\d.]+) GiB", note))
    device, rounding = answer.verdict.device, 2**30 / 100
    assert even <= uneven <= worst
    assert device.low - rounding <= even * 2**30 <= device.value + rounding
    assert worst * 2**30 <= device.high + rounding
    assert "2408.15664" in note
    assert "--moe-balanced" in note
    assert "--moe-capacity-factor" in note


def test_an_even_routing_by_decree_and_experts_on_one_rank_leave_nothing_to_say() -> None:
    for options in (
        {"ep": 8, "moe_balanced": True},
        {"ep": 1},
        {"ep": 8, "moe_capacity_factor": 1.0, "moe_pad_to_capacity": True},
    ):
        assert not any("expert routing " in note for note in decided(tp=1, pp=2, **options).notes)


AIR = {
    "gpus": "512xH100-80GB",
    "engine": "megatron",
    "tp": 2,
    "pp": 8,
    "ep": 16,
    "seq_len": 4096,
    "layers_per_stage": [6, 6, 6, 6, 6, 6, 5, 5],
}


def test_the_screen_says_the_cause_beside_the_verdict_and_the_figures_next() -> None:
    from memsheet.report.screen.table import render_answer
    from memsheet.report.shared.look import Look

    answer = memsheet.train("glm-4.5-air", **AIR, fix=False)  # type: ignore[arg-type]
    assert answer.verdict is not None
    assert answer.verdict.result is Result.UNCERTAIN
    verdict, decides, helps, *rest = render_answer(answer, Look(width=120)).split("\n\n")
    assert "expert routing decides" in verdict
    assert decides.startswith("What decides  expert routing: ")
    assert "is sure to fit" in helps
    assert "the expected need does" in helps
    assert not any("expert routing decides" in part for part in rest)


@pytest.mark.parametrize(
    "recompute",
    [{}, {"recompute": "selective"}, {"recompute": "selective", "recompute_modules": "core_attn"}],
)
def test_changes_are_tried_whatever_is_recomputed_already(recompute: dict[str, str]) -> None:
    answer = memsheet.train("glm-4.5-air", **AIR, **recompute)  # type: ignore[arg-type]
    assert answer.verdict is not None
    fix = answer.verdict.cheapest_fix
    assert fix is not None
    assert [change.key for change in fix.changes] == ["recompute.mode"]
    again = memsheet.train("glm-4.5-air", **AIR, **{**recompute, "recompute": "full"}, fix=False)  # type: ignore[arg-type]
    assert again.verdict is not None
    assert again.verdict.result is Result.FITS
    assert again.verdict.device == fix.device


def test_decides_is_said_only_where_an_even_routing_is_sure_to_fit() -> None:
    for gpus in ("32xH100-80GB", "32xA100-40GB", "32xH200"):
        options = {
            "gpus": gpus,
            "engine": "megatron",
            "seq_len": 4096,
            "tp": 2,
            "pp": 2,
            "ep": 8,
            "fix": False,
        }
        answer, even = (
            memsheet.train("qwen3-30b-a3b", **options, **more) for more in ({}, {"moe_balanced": True})
        )  # type: ignore[arg-type]
        assert answer.verdict is not None
        assert even.verdict is not None
        apart = answer.verdict.result is not Result.FITS and even.verdict.result is Result.FITS
        assert any(note.startswith("expert routing decides: ") for note in answer.notes) == apart, gpus
