"""Steps as allocations: a model of four parts, each of one parameter, played by hand."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.allocator.settings import Settings
from memsheet.formulas.groups import StageLayers
from memsheet.formulas.replay.order import StepContext
from memsheet.formulas.replay.script import Script
from memsheet.formulas.replay.steps import (
    Replayed,
    Reserved,
    is_equal_step_replayable,
    replay_script,
    replay_within_room,
    script_of_steps,
    steady_reserved_bytes,
)
from memsheet.formulas.replay.tape_logs import GATHERS, REDUCES, Lifetimes
from memsheet.formulas.replay.whole import bucket_sizes
from memsheet.formulas.states.held import HeldTensor
from memsheet.frozen import replace
from memsheet.plan.dtypes import FP32, INT8
from memsheet.plan.engine import Sharding
from memsheet.plan.model import Role
from memsheet.plan.plan import Plan
from memsheet.sheet import Bytes
from small_stage import planned, stage

MIB = 2**20
END_2024 = "9dec370"
WHOLE, UNITS = Sharding.REPLICATED, Sharding.PER_PARAMETER_SHARDS


def told(script: Script, start: int = 0) -> list[str]:
    """``+12g``: twelve bytes in the stream that parameters are gathered in; ``r``: that of reductions."""
    streams = {GATHERS: "g", REDUCES: "r"}
    return [
        f"{'+' if event >= 0 else '-'}{script.sizes[number]}{streams.get(script.streams[number], '')}"
        for event in script.events[start:]
        for number in [event if event >= 0 else ~event]
    ]


def steps_of(
    walk: StageLayers, plan: Plan, sharding: Sharding = Sharding.PER_PARAMETER_SHARDS
) -> tuple[list[str], ...]:
    """What is there before the first step; it; and the last one."""
    script, start = script_of_steps(walk, plan, Lifetimes.RECORDED, StepContext(999), sharding)
    words = told(script)
    begin = words.index("+384")
    return words[:begin], words[begin:start], words[start:]


def words_of(*lines: str) -> list[str]:
    return " ".join(lines).split()


SHARDS = "+999 +48 +24 +24 +16"
MOMENTS = "+4 +48 +48 +4 +24 +24 +4 +24 +24 +4 +16 +16"
"""A count of steps on the device, and two moments, of each parameter."""


def test_units_are_gathered_for_either_pass() -> None:
    """torch 2.13 _fsdp_param_group.py: in forward a unit's buffer stays until the next has been copied out
    (426-489), the head's until the loss is there, and its parameters go after it; backward gathers the unit
    before ahead, embeddings too (576-585, 795), and copies at once; the input of a reduction stays until the
    next begins (639-658), gradients until they are copied into it (_fsdp_collectives.py:597-616). What is
    left of them goes before the next step.
    """
    forward = (
        "+384 +384",
        "+24g +96g -24g +96 +40 -96",
        "+12g +48g -12g +48 -96g +40 -48",
        "+12g +48g -12g +48 -48g +40 -48",
        "+8g +32g -8g +32 -48g +60 +4 -32g",  # the head's parameters stay for backward
    )
    backward = (
        "+60 -60 +12g +48g -12g +37 +40 -60 -40 -32 +64 -37 +16r",
        "+48 -48g +12g +48g -12g +53 +40 -40 -40 -48 -64 +96 -53 +24r",
        "+48 -48g +24g +96g -24g +53 +40 -40 -40 -48 -96 +96 -53 +24r",
        "+96 -96g +81 -40 -96 -96 +192 -81 +48r -192",
        "-384 -384",
    )
    loaded, first, last = steps_of(stage(), planned())
    assert loaded == words_of(SHARDS)
    assert last == words_of("-16r -24r -24r -48r", *forward, *backward)
    assert first == words_of(*forward, *backward, MOMENTS)


def test_units_that_stay_gathered_are_gathered_once() -> None:
    """Without resharding after forward, parameters stay from one pass to the other."""
    *_, last = steps_of(stage(), planned(zero=2))
    assert last == words_of(
        "-16r -24r -24r -48r +384 +384",
        "+24g +96g -24g +96 +40",
        "+12g +48g -12g +48 -96g +40",
        "+12g +48g -12g +48 -48g +40",
        "+8g +32g -8g +32 -48g +60 +4 -32g",
        "+60 -60 +37 +40 -60 -40 -32 +64 -37 +16r",
        "+53 +40 -40 -40 -48 -64 +96 -53 +24r",
        "+53 +40 -40 -40 -48 -96 +96 -53 +24r",
        "+81 -40 -96 -96 +192 -81 +48r -192",
        "-384 -384",
    )


def test_tied_ends_are_one_unit_that_is_gathered_first_and_reduced_last() -> None:
    """24 + 8 bytes are sent, 96 + 32 arrive, 192 + 64 are reduced to 48 + 16."""
    *_, last = steps_of(stage(tied=True), planned())
    assert last == words_of(
        "-24r -24r -64r +384 +384",
        "+32g +128g -32g +32 +96 +40",
        "+12g +48g -12g +48 -128g +40 -48",
        "+12g +48g -12g +48 -48g +40 -48",
        "+60 +4 -48g",
        "+60 -60 +12g +48g -12g +37 +40 -60 -40",
        "+48 -48g +12g +48g -12g +53 +40 -40 -40 -48 +96 -53 +24r",
        "+48 -48g +53 +40 -40 -40 -48 -96 +96 -53 +24r",
        "+81 -40 -32 -96 -96 +256 -37 -81 +64r -256",
        "-384 -384",
    )


NORM = HeldTensor(path="norm.weight", shape=(4,), dtype=FP32, trains=True, role=Role.NORM, times=1)


def with_norm(walk: StageLayers, *outer: HeldTensor) -> StageLayers:
    """The stage with a norm of four numbers in the head's group."""
    assert walk.head is not None
    head = replace(walk.head, parameters=(NORM, *walk.head.parameters))
    return replace(walk, head=head, outer_norms=outer, graded=True)


def test_a_norm_that_is_no_child_of_the_models_base_is_the_roots() -> None:
    """It is gathered before everything else, and the head alone without it: 32 bytes and not 40. The head's
    gradient is reduced as soon as it is there.
    """
    *_, beside = steps_of(with_norm(stage()), planned())
    *_, rooted = steps_of(with_norm(stage(), replace(NORM, path="model.words.norm.weight")), planned())
    assert words_of("+10g +40g -10g +8 +32") == beside[beside.index("+10g") :][:5]
    assert words_of("+384 +384 +2g +8g -2g +8 +24g +96g -24g +96 -8g") == rooted[rooted.index("+384") :][:11]
    assert words_of("+8g +32g -8g +32") == rooted[rooted.index("+60") - 5 :][:4]
    assert {"+40g", "+80"} <= {*beside} - {*rooted}
    assert {"+32g", "+64"} <= {*rooted} - {*beside}
    assert words_of("+37 -32 +64 -37 +16r +40 -60 -40") == rooted[rooted.index("+37") :][:8]


def test_gradients_of_the_roots_own_are_reduced_first_at_the_end() -> None:
    """Where the head's part makes one, of 37 bytes, it waits for the embeddings' backward; four shards of ten
    numbers in fp32 are 160 bytes.
    """
    own = replace(NORM, path="model.words.norm.weight", shape=(37,), dtype=INT8)
    *_, last = steps_of(replace(stage(), rest=(own,), graded=True), planned())
    assert last[last.index("+81") :] == words_of(
        "+81 -40 -96 +160 -37 +40r -96 -160 +192 -81 +48r -192", "-384 -384"
    )


def test_a_rank_alone_copies_its_parameters_and_gathers_nothing() -> None:
    """_fsdp_param_group.py:392-402, 437-461; its gradients are copied all the same
    (_fsdp_collectives.py:597-631).
    """
    loaded, _, last = steps_of(stage(layers=1), planned(1, zero=3))
    assert loaded == words_of("+999 +160 +96 +48")
    assert last == words_of(
        "-48r -96r -160r +384 +384",
        "+80 +40 -80 +48 +40 -48 +24 +60 +4",
        "+60 -60 +37 +40 -60 -40 -24 +48 -37 +48r",
        "+48 +53 +40 -40 -40 -48 -48 +96 -53 +96r",
        "+80 +81 -40 -80 -96 +160 -81 +160r -160",
        "-384 -384",
    )


def test_two_ranks_gather_halves() -> None:
    """Five rows of ten, 20 elements in bf16."""
    *_, last = steps_of(stage(), planned(2))
    assert last[4:9] == words_of("+384 +384 +40g +80g -40g")


def test_a_last_layer_that_stays_is_not_gathered_again() -> None:
    """torchtitan's units until 2025: embeddings and head with the root, and no resharding of the layer whose
    backward comes first.
    """
    *_, last = steps_of(stage(), planned(engine="torchtitan", engine_version=END_2024))
    assert last == words_of(
        "-24r -24r -64r +384 +384",
        "+32g +128g -32g +96 +32 +40",
        "+12g +48g -12g +48 -128g +40 -48",
        "+12g +48g -12g +48 -48g +40",
        "+60 -48g +4",
        "+60 -60 +37 +40 -60 -40",
        "+12g +48g -12g +53 +40 -40 -40 -48 +96 -53 +24r",
        "+48 -48g +53 +40 -40 -40 -48 -96 +96 -53 +24r",
        "+81 -40 -96 -32 -96 +256 -37 -81 +64r -256",
        "-384 -384",
    )


def test_a_step_of_a_model_that_is_not_divided() -> None:
    """Gradients stay until the next step; AdamW over lists makes one tensor a parameter while it steps."""
    plan = planned(1, engine="transformers", **{"optimizer.implementation": "foreach"})
    loaded, first, last = steps_of(stage(layers=1), plan, Sharding.REPLICATED)
    passes = "+384 +384 +40 +40 +60 +4 +60 -60 +37 +40 -60 -40 +53 +40 -40 -40 +81 -40 -384 -384"
    stepping = "+160 +96 +48 -160 -96 -48"
    assert loaded == words_of("+999 +160 +96 +48")
    assert first == words_of(passes, "+160 +160 +96 +96 +48 +48", stepping)
    assert last == words_of("-37 -53 -81", passes, stepping)


def test_adagrad_has_its_sums_before_the_first_step() -> None:
    """It makes them when it is made itself, so that no step leaves memory in pieces for them."""
    plan = planned(
        1, engine="transformers", **{"optimizer.name": "adagrad", "optimizer.implementation": "foreach"}
    )
    loaded, first, last = steps_of(stage(layers=1), plan, Sharding.REPLICATED)
    assert loaded == words_of("+999 +160 +96 +48 +160 +96 +48")
    assert last == words_of("-37 -53 -81", *first)


@pytest.mark.parametrize(
    ("gpus", "sharding", "request_", "replayed"),
    [
        (1, WHOLE, {"engine": "transformers"}, True),
        (2, WHOLE, {"engine": "transformers"}, True),
        (1, WHOLE, {"engine": "transformers", "global_batch": 12}, True),
        (1, WHOLE, {"engine": "transformers", "optimizer.name": "sgd"}, True),
        (1, WHOLE, {"engine": "transformers", "optimizer.name": "muon"}, True),
        (8, UNITS, {}, True),
        (2, UNITS, {"global_batch": 6}, True),
        (2, UNITS, {"global_batch": 12}, True),  # two micro-batches
        (4, UNITS, {"engine": "torchtitan", "mesh.pp": 2, "global_batch": 6}, True),
        (2, UNITS, {"optimizer.name": "sgd"}, True),
        (2, UNITS, {"offload.optimizer": 1.0, "offload.parameters": 1.0}, True),
        (2, Sharding.FLAT_SHARDS, {"engine": "fsdp1"}, True),
        (1, Sharding.FLAT_SHARDS, {"engine": "fsdp1"}, False),
        (2, Sharding.FLAT_SHARDS, {"engine": "fsdp1", "global_batch": 12}, True),
        (2, Sharding.PARTITIONED, {"engine": "deepspeed", "zero": 0}, True),
        (2, Sharding.PARTITIONED, {"engine": "deepspeed", "zero": 1, "global_batch": 12}, True),
        (2, Sharding.PARTITIONED, {"engine": "deepspeed", "zero": 2, "optimizer.name": "lion"}, True),
        (2, Sharding.PARTITIONED, {"engine": "deepspeed", "zero": 2, "offload.optimizer": 1.0}, True),
        (2, Sharding.PARTITIONED, {"engine": "deepspeed", "zero": 1, "precision.gradients": "fp32"}, False),
        (2, Sharding.PARTITIONED, {"engine": "deepspeed", "zero": 3, "global_batch": 12}, True),
        (1, Sharding.PARTITIONED, {"engine": "deepspeed", "zero": 3}, False),
        (2, Sharding.PARTITIONED, {"engine": "deepspeed", "zero": 3, "offload.parameters": 1.0}, True),
    ],
)
def test_which_steps_are_replayed(
    gpus: int, sharding: Sharding, request_: dict[str, Any], replayed: bool
) -> None:
    plan = planned(gpus, **request_)
    assert is_equal_step_replayable(plan, sharding) is replayed


def told_of(found: Replayed | None) -> tuple[int, bool]:
    assert found is not None
    return found.most, found.flushes


# ---- what is reserved --------------------------------------------------------------------------------------


def played(*words: int) -> Script:
    """MiB that are asked for, or ``~n`` that go."""
    script = Script()
    for word in words:
        if word >= 0:
            script.take(word * MIB)
        else:
            script.give([~word])
    return script


@pytest.mark.parametrize(
    ("words", "in_blocks"),
    [((30,), 30), ((33, ~0, 31), 34), ((33, ~0, 33), 34), ((34, ~0, 31), 34), ((11, 11), 24)],
)
def test_a_block_may_hold_more_than_is_asked_for(words: tuple[int, ...], in_blocks: int) -> None:
    """Large requests are of multiples of 2 MiB; a rest above 1 MiB is split off, one of 1 MiB is not
    (should_split).
    """
    found = replay_script(played(*words), 0, Settings())
    assert found is not None
    assert found.in_blocks == in_blocks * MIB


@pytest.mark.parametrize(
    ("words", "start", "most"),
    [
        ((), 0, 0),
        ((0,), 0, 0),
        ((30,), 0, 30),
        ((30, ~0), 1, 30),  # what is cached is reserved
        ((30, ~0, 12), 1, 30),  # and serves what is smaller
        ((30, ~0, 40), 1, 70),
        ((30, ~0, 40), 2, 70),
    ],
)
def test_the_most_that_is_reserved_from_an_event_on(words: tuple[int, ...], start: int, most: int) -> None:
    """Above 10 MiB a request has a segment of its own, of a multiple of 2 MiB."""
    assert told_of(replay_script(played(*words), start, Settings())) == (most * MIB, False)


def test_cached_blocks_go_back_where_there_is_no_room_beside_them() -> None:
    script = played(30, ~0, 40)
    assert told_of(replay_script(script, 1, Settings(), 70 * MIB)) == (70 * MIB, False)
    assert told_of(replay_script(script, 2, Settings(), 69 * MIB)) == (40 * MIB, True)
    assert told_of(replay_script(script, 1, Settings(), 69 * MIB)) == (40 * MIB, True)
    assert replay_script(script, 1, Settings(), 39 * MIB) is None
    assert told_of(replay_within_room(script, 1, Settings(), 39 * MIB)) == (70 * MIB, False)


def test_what_went_back_counts_where_it_was_there_after_the_event() -> None:
    """A request of up to 1 MiB takes a segment of 2 MiB, which finds no room beside 60 MiB of 61."""
    assert told_of(replay_script(played(60, ~0, 1), 0, Settings(), 61 * MIB)) == (60 * MIB, True)
    assert told_of(replay_script(played(60, ~0, 1), 2, Settings(), 61 * MIB)) == (2 * MIB, True)


@pytest.mark.parametrize(
    ("least", "found"),
    [(20, Bytes(10, 20, 20)), (25, Bytes(10, 25, 25)), (19, Bytes(10, 30, 30))],
)
def test_what_fits_at_its_most_is_not_given_more(
    monkeypatch: pytest.MonkeyPatch, least: int, found: Bytes
) -> None:
    """Layers that keep all to their end reserve 20 where the device leaves least; then those that keep less
    need no more than is left there, though they would cache more in more.
    """
    script, start = script_of_steps(stage(), planned(), Lifetimes.RECORDED, StepContext(), UNITS)
    tensors = script.live_peak(start)
    ends = iter([Replayed(30, True, tensors), Replayed(10, False, 0), Replayed(20, False, 0)])
    monkeypatch.setattr("memsheet.formulas.replay.steps.replay_within_room", lambda *_: next(ends))
    room = Bytes(least, 40, 50)
    assert steady_reserved_bytes(
        stage(), planned(), room, StepContext(), UNITS, Bytes.exact(tensors), tensors
    ) == Reserved(found, True)


def test_a_script_that_leaves_something_out_decides_nothing() -> None:
    script, start = script_of_steps(stage(), planned(), Lifetimes.RECORDED, StepContext(), UNITS)
    tensors = script.live_peak(start)
    assert (
        steady_reserved_bytes(stage(), planned(), None, StepContext(), UNITS, Bytes.exact(tensors), tensors)
        is not None
    )
    assert (
        steady_reserved_bytes(
            stage(), planned(), None, StepContext(), UNITS, Bytes.exact(2 * tensors), tensors
        )
        is None
    )


def test_later_micro_batches_add_their_gradients_to_the_first_ones() -> None:
    """autograd's accumulate_grad.h: the first gradient is kept as it is, those of later ones are added."""
    plan = planned(1, engine="transformers", global_batch=6)
    _, _, last = steps_of(stage(layers=1), plan, WHOLE)
    first = "+384 +384 +40 +40 +60 +4 +60 -60 +37 +40 -60 -40 +53 +40 -40 -40 +81 -40 -384 -384"
    later = "+384 +384 +40 +40 +60 +4 +60 -60 +37 -37 +40 -60 -40 +53 -53 +40 -40 -40 +81 -81 -40 -384 -384"
    assert last == words_of("-37 -53 -81", first, later)


def test_gradients_that_are_set_to_zero_stay() -> None:
    plan = planned(1, engine="transformers")
    script, start = script_of_steps(
        stage(layers=1), plan, Lifetimes.RECORDED, StepContext(keeps_gradients=True), WHOLE
    )
    passes = "+384 +384 +40 +40 +60 +4 +60 -60 +37 -37 +40 -60 -40 +53 -53 +40 -40 -40 +81 -81 -40 -384 -384"
    assert told(script, start) == words_of(passes)


def test_what_the_loop_still_names_stays_to_the_end_of_the_step() -> None:
    plan = planned(1, engine="transformers")
    script, start = script_of_steps(stage(layers=1), plan, Lifetimes.RECORDED, StepContext(named=7), WHOLE)
    words = told(script, start)
    assert words[-1] == "-7"
    assert words.index("+7") < words.index("+4")


@pytest.mark.parametrize(
    ("gradients", "buckets"),
    [
        ([], []),
        ([10], [10]),
        ([MIB, 10], [MIB, 10]),
        ([MIB // 2, MIB, 30 * MIB, 5], [MIB * 3 // 2, 30 * MIB, 5]),
    ],
)
def test_buckets_are_closed_when_they_hold_their_size(gradients: list[int], buckets: list[int]) -> None:
    assert bucket_sizes(gradients) == buckets
