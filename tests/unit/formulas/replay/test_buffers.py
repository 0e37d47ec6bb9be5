"""Steps whose states lie in buffers: how these are made, and in which order micro-batches pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import memsheet
from memsheet.formulas.replay.buffers import GradientBuffers
from memsheet.formulas.replay.order import Buffers, StepContext
from memsheet.formulas.replay.script import Script
from memsheet.formulas.replay.steps import REPLAYED_SHARES, is_equal_step_replayable, script_of_steps
from memsheet.formulas.replay.tape_logs import Lifetimes
from memsheet.plan.engine import Sharding
from memsheet.plan.model import Role
from memsheet.sheet import Component
from small_stage import part, planned, stage

BUFFERED = Sharding.DISTRIBUTED_OPTIMIZER
TOLD = StepContext(beside=7, buffers=Buffers(800, 900, 304, 608), stepping=11)


def words(script: Script, start: int = 0) -> list[str]:
    return [
        f"{'+' if event >= 0 else '-'}{script.sizes[event if event >= 0 else ~event]}"
        for event in script.events[start:]
    ]


def planned_stages(gpus: int = 1, **request: Any) -> Any:
    return planned(gpus, engine="megatron", **{"zero": 1, **request})


def loaded(told: StepContext, gpus: int = 1, **request: Any) -> list[str]:
    run = GradientBuffers(stage(layers=1), planned_stages(gpus, **request), Lifetimes.RECORDED, told)
    run.load()
    return words(run.script)


def test_parameters_are_made_one_by_one_and_moved_into_their_buffer() -> None:
    """Then come shards in fp32, of the parameters that lie last in the buffer first, each copied and then
    raised.
    """
    made = ["+160", "+96", "+48", "+800", "+900", "-160", "-96", "-48"]
    raised = ["+48", "+48", "-48", "+96", "+96", "-96", "+160", "+160", "-160"]
    assert loaded(TOLD) == [*made, *raised, "+7"]


def test_without_a_distributed_optimizer_parameters_stay_where_they_were_made() -> None:
    assert loaded(TOLD, zero=0)[:4] == ["+160", "+96", "+48", "+900"]
    assert "-160" not in loaded(TOLD, zero=0)[:5]


@pytest.mark.parametrize("share", range(4))
def test_ranks_divide_the_buffer_wherever_a_parameter_ends(share: int) -> None:
    """76 elements, 12 of the head, 24 of the layer and 40 of the embeddings, 19 a rank."""
    of_rank = [[12, 7], [17, 2], [19], [19]][share]
    told = replace(TOLD, buffers=Buffers(800, 900, 76, 152), share=share)
    raised = loaded(told, 4)[8:-1]
    assert [int(word[1:]) // 4 for word in raised[1::3]] == of_rank


def test_shares_are_the_whole_together() -> None:
    runs = [
        GradientBuffers(stage(), planned_stages(4), Lifetimes.RECORDED, replace(TOLD, share=share))
        for share in range(4)
    ]
    assert sum(one.elements for run in runs for one in run.parts) == 12 + 2 * 24 + 40


def test_experts_have_a_buffer_and_ranks_of_their_own() -> None:
    """Two experts of 12 elements beside 52 others: on four ranks that share experts by twos, each of a pair
    has one expert's elements, and a quarter of the others.
    """
    one = stage(layers=1)
    layer = one.layers[0].pattern[0]
    (held,) = layer.parameters
    expert = replace(held, shape=(2, 4, 3), role=Role.EXPERT)
    walk = replace(one, layers=(replace(one.layers[0], pattern=(replace(layer, parameters=(expert,)),)),))
    plan = planned_stages(4)
    plan = replace(plan, mesh=replace(plan.mesh, ep=2))
    runs = [GradientBuffers(walk, plan, Lifetimes.RECORDED, replace(TOLD, share=share)) for share in range(4)]
    parts = [[part.elements for part in run.parts if part.expert] for run in runs]
    assert parts == [[12], [12], [12], [12]]
    assert [sum(part.elements for part in run.parts if not part.expert) for run in runs] == [13] * 4
    runs[0].load()
    assert words(runs[0].script)[:4] == ["+160", "+48", "+48", "+48"], "each expert is made by itself"
    assert words(runs[0].script)[4:6] == [f"+{800 - 800 * 24 // 76}", f"+{900 - 900 * 24 // 76}"]


def test_a_layers_matrices_are_joined() -> None:
    """Where they are as many elements as the layer's; else it is not known how they are joined."""
    assert loaded(replace(TOLD, matrices=((20, 4),)))[:4] == ["+160", "+80", "+16", "+48"]
    assert loaded(replace(TOLD, matrices=((20, 5),)))[:3] == ["+160", "+96", "+48"]


def test_what_a_modules_first_backward_leaves_is_there_from_then_on() -> None:
    """Once its input's gradient is made; what no tape knows the module of, at the end of the first step."""
    linear = part((40, 40, 40, 53, 40), "+1", "+2 +3 g3 +4 -2 -4", {0}, 1)
    assert linear.played is not None
    tape, *rest = linear.played
    entries = tuple(
        replace(entry, path="mlp.fc1/backward") if n == 4 else entry for n, entry in enumerate(tape.entries)
    )
    named = replace(linear, played=(replace(tape, entries=entries), *rest))
    one = stage(layers=1)
    layers = (replace(one.layers[0], pattern=(replace(one.layers[0].pattern[0], part=named),)),)
    told = replace(TOLD, kept={"fc1": 17, "fc9": 19})
    walk = replace(one, layers=layers)
    script, start = script_of_steps(walk, planned_stages(), Lifetimes.RECORDED, told, BUFFERED)
    first, second = words(script)[:start], words(script, start)
    assert first[first.index("+53") :][:4] == ["+53", "-53", "+40", "+17"]
    assert first.count("+17") == first.count("+19") == 1
    assert not {"-17", "-19", "+17", "+19"} & {*first[first.index("+17") + 1 :], *second} - {"+19"}


def test_gradients_go_as_soon_as_they_are_added() -> None:
    script, start = script_of_steps(stage(layers=1), planned_stages(), Lifetimes.RECORDED, TOLD, BUFFERED)
    step = words(script, start)
    for gradient in ("37", "53", "81"):
        assert step[step.index(f"+{gradient}") + 1] == f"-{gradient}"
    assert step[-2:] == ["+11", "-11"]


def test_moments_are_made_in_the_first_step_alone() -> None:
    script, start = script_of_steps(stage(layers=1), planned_stages(), Lifetimes.RECORDED, TOLD, BUFFERED)
    first, second = words(script)[:start], words(script, start)
    assert first[-8:-2] == ["+48", "+48", "+96", "+96", "+160", "+160"]
    assert not {"+48", "+96", "+160"} & {*second}


@pytest.mark.parametrize(("stage_number", "passes"), [(0, "ffbfbb"), (1, "fbfb")])
def test_a_stage_runs_as_many_micro_batches_ahead_as_stages_are_behind(
    stage_number: int, passes: str
) -> None:
    plan = planned_stages(2, **{"mesh.pp": 2, "global_batch": 3 * 8})
    told = StepContext(buffers=Buffers(0, 0, 0, 0), stage=stage_number)
    seen: list[str] = []

    class Seen(GradientBuffers):
        def forward(self, _: int = 0) -> Any:
            seen.append("f")
            return [], None

        def backward(self, *_: Any) -> None:
            seen.append("b")

    Seen(stage(), plan, Lifetimes.RECORDED, told).step()
    assert "".join(seen) == passes


@pytest.mark.parametrize(("pp", "vpp"), [(2, 2), (4, 2), (4, 4)])
def test_interleaved_chunks_hold_what_the_sheet_says(pp: int, vpp: int) -> None:
    """The bytes of a script of chunks in turn are those of the sheet's moments, which come of another walk,
    so that the reserved bytes are a replay's on every stage.
    """
    answer = memsheet.train(
        "llama-3-8b", gpus="32xH100-80GB", engine="megatron", seq_len=1024, microbatch=1, global_batch=128,
        pp=pp, vpp=vpp, fix=False,
    )  # fmt: skip
    slack = [
        item for sheet in answer.sheets for item in sheet.items if item.component is Component.ALLOCATOR_SLACK
    ]
    assert len(slack) == pp
    assert all(item.evidence == REPLAYED_SHARES for item in slack)


@pytest.mark.parametrize(
    ("request_", "played"),
    [
        ({}, True),
        ({"mesh.pp": 2}, True),
        ({"mesh.pp": 2, "recompute.mode": "full", "recompute.every": 2}, True),
    ],
)
def test_which_steps_are_played(request_: dict[str, Any], played: bool) -> None:
    assert is_equal_step_replayable(planned_stages(2, **request_), BUFFERED) is played
