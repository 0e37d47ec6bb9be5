"""Steps whose states lie in buffers: how these are made, and in which order micro-batches pass."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.formulas.replay.buffers import GradientBuffers
from memsheet.formulas.replay.order import Buffers, Told
from memsheet.formulas.replay.script import Lifetimes, Script
from memsheet.formulas.replay.steps import is_equal_step_replayable, script_of_steps
from memsheet.plan.engine import Sharding
from small_stage import planned, stage

BUFFERED = Sharding.DISTRIBUTED_OPTIMIZER
TOLD = Told(beside=7, buffers=Buffers(800, 900, 120, 240), stepping=11)


def words(script: Script, start: int = 0) -> list[str]:
    return [
        f"{'+' if event >= 0 else '-'}{script.sizes[event if event >= 0 else ~event]}"
        for event in script.events[start:]
    ]


def planned_stages(gpus: int = 1, **request: Any) -> Any:
    return planned(gpus, engine="megatron", **request)


def test_parameters_are_made_one_by_one_and_moved_into_their_buffer() -> None:
    """Then come shards in fp32, of the parameters that lie last in the buffer first."""
    script, _ = script_of_steps(stage(layers=1), planned_stages(), Lifetimes.RECORDED, TOLD, BUFFERED)
    assert words(script)[:11] == [
        "+160",
        "+96",
        "+48",
        "+800",
        "+900",
        "-160",
        "-96",
        "-48",
        "+48",
        "+72",
        "+7",
    ]


def test_gradients_go_as_soon_as_they_are_added() -> None:
    script, start = script_of_steps(stage(layers=1), planned_stages(), Lifetimes.RECORDED, TOLD, BUFFERED)
    step = words(script, start)
    for gradient in ("37", "53", "81"):
        assert step[step.index(f"+{gradient}") + 1] == f"-{gradient}"
    assert step[-2:] == ["+11", "-11"]


def test_moments_are_made_in_the_first_step_alone() -> None:
    script, start = script_of_steps(stage(layers=1), planned_stages(), Lifetimes.RECORDED, TOLD, BUFFERED)
    first, second = words(script)[:start], words(script, start)
    assert first[-6:-2] == ["+48", "+72", "+48", "+72"]
    assert "+72" not in second


@pytest.mark.parametrize(("stage_number", "passes"), [(0, "ffbfbb"), (1, "fbfb")])
def test_a_stage_runs_as_many_micro_batches_ahead_as_stages_are_behind(
    stage_number: int, passes: str
) -> None:
    plan = planned_stages(2, **{"mesh.pp": 2, "global_batch": 3 * 8})
    told = Told(buffers=Buffers(0, 0, 0, 0), stage=stage_number)
    seen: list[str] = []

    class Seen(GradientBuffers):
        def forward(self) -> Any:
            seen.append("f")
            return [], None

        def backward(self, *_: Any) -> None:
            seen.append("b")

    Seen(stage(), plan, Lifetimes.RECORDED, told).step()
    assert "".join(seen) == passes


@pytest.mark.parametrize(
    ("request_", "played"),
    [
        ({}, True),
        ({"mesh.pp": 2}, True),
        ({"mesh.pp": 2, "recompute.mode": "full", "recompute.every": 2}, False),
    ],
)
def test_which_steps_are_played(request_: dict[str, Any], played: bool) -> None:
    assert is_equal_step_replayable(planned_stages(2, **request_), BUFFERED) is played
