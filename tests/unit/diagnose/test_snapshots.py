"""Snapshots of the allocator: read as data, replayed, and judged by the rules of messages."""

from __future__ import annotations

import gzip
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.diagnose.corpus import modern
from tests.unit.diagnose.snapshots import LAYERS, WEIGHTS, as_torch_has_it, pickled, pieces, steps

from memsheet.allocator.settings import Settings
from memsheet.cli import main
from memsheet.diagnose.message import NO, YES, Cause
from memsheet.diagnose.snapshot.categories import stack_meaning
from memsheet.diagnose.snapshot.findings import held_of
from memsheet.diagnose.snapshot.held import Meanings, live_at, run_of
from memsheet.diagnose.snapshot.history import Frame, is_snapshot, read_history
from memsheet.diagnose.snapshot.steps import step_places
from memsheet.diagnose.snapshot.what_if import replay_recorded
from memsheet.diagnose.verdict import Diagnosis
from memsheet.measure.snapshot import snapshot_document
from memsheet.questions.diagnose import diagnose_named_texts
from memsheet.report.json.diagnosis import Diagnosis as Document
from memsheet.report.json.diagnosis import diagnosis_document
from memsheet.report.json.memory_viewer import memory_snapshot
from memsheet.report.schema.documents import document_model
from memsheet.report.screen.died.diagnosis import render_diagnosis
from memsheet.report.shared.look import Look
from memsheet.sheet import Component, Instant
from memsheet.units import MIB
from timelines import Maker, timelines, training

LEAK = as_torch_has_it(steps(12, kept=20 * MIB), 560 * MIB)
NEED = as_torch_has_it(steps(3), 119 * MIB)
PIECES = as_torch_has_it(pieces(), 180 * MIB)
CASES = {"leak": LEAK, "need": NEED, "pieces": PIECES, "alive": as_torch_has_it(steps(8), None)}


def diagnosed(found: dict[str, Any], name: str = "x.pickle", **more: str) -> Diagnosis:
    return diagnose_named_texts({name: pickled(found), **more}, None, {})


# ---- read ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("name", CASES)
def test_a_pickle_and_the_same_as_json_are_one_history(name: str, protocol: int) -> None:
    first = read_history(pickled(CASES[name], protocol), "x")
    other = read_history(json.dumps(CASES[name]).encode(), "x")
    assert is_snapshot(pickled(CASES[name], protocol))
    assert is_snapshot(json.dumps(CASES[name]).encode())
    for column in first.events.__slots__:
        assert getattr(first.events, column) == getattr(other.events, column), column
    assert (first.stacks, first.segments, first.settings) == (other.stacks, other.segments, other.settings)


def test_of_several_devices_the_one_that_died_is_told() -> None:
    found = {**LEAK, "device_traces": [CASES["alive"]["device_traces"][0], LEAK["device_traces"][0]]}
    found["segments"] = [*CASES["alive"]["segments"], *({**each, "device": 1} for each in LEAK["segments"])]
    held = held_of(read_history(pickled(found), "x"))
    assert held.died
    assert held.reserved_bytes == held_of(read_history(pickled(LEAK), "x")).reserved_bytes


def test_a_history_as_measure_writes_it_is_read_too() -> None:
    raw = gzip.compress(json.dumps(snapshot_document(PIECES)).encode())
    told = diagnose_named_texts({"x.json.gz": raw}, None, {})
    assert told.cause is Cause.FRAGMENTATION
    assert told.facts["free_bytes"] == diagnosed(PIECES).facts["free_bytes"]


def test_the_oldest_snapshots_have_neither_addresses_nor_requested_sizes() -> None:
    segments = [
        {
            "device": 0, "address": 512, "total_size": 3 * MIB, "stream": 0,
            "blocks": [
                {"size": MIB, "state": "active_allocated", "history": [{"addr": 512, "real_size": 9, "frames": [{"filename": "a.py", "line": 1, "name": "f"}]}]},
                {"size": 2 * MIB, "state": "inactive"},
            ],
        }
    ]  # fmt: skip
    found = diagnosed({"segments": segments, "device_traces": [[]]})
    assert not found.found
    assert found.held is not None
    assert found.held.live_bytes == MIB
    assert found.held.lines[0].line == "a.py:1 f"


# ---- what is live ----------------------------------------------------------------------------------------


def test_stacks_name_components_and_lines() -> None:
    held = diagnosed(NEED).held
    assert held is not None
    assert held.bytes_of(Component.PARAMETERS) == LAYERS * WEIGHTS
    assert {line.line for line in held.lines} >= {"model.py:3 __init__", "model.py:7 forward"}
    assert held.request_line == "model.py:7 forward"


def test_what_backward_makes_is_a_gradient_where_it_is_as_large_as_a_weight() -> None:
    history = read_history(pickled(CASES["alive"]), "x")
    run, meanings = run_of(history), Meanings(history)
    from memsheet.diagnose.snapshot.held import live_groups

    place = (
        max(
            n
            for n, size in enumerate(history.events.size)
            if size == WEIGHTS and history.events.action[n] == 0
        )
        + 1
    )
    components, _ = live_groups(live_at(run, place), meanings)
    assert {group.component: group.bytes for group in components}["gradients"] == LAYERS * WEIGHTS


@given(timelines(), st.booleans())
def test_what_is_live_at_the_end_is_what_the_blocks_say(timeline: Any, expandable: bool) -> None:
    found = memory_snapshot(timeline, Settings(expandable_segments=expandable))
    history = read_history(pickled(found), "x")
    run = run_of(history)
    live = live_at(run, len(history.events))
    blocks = {
        block["address"]: block["requested_size"]
        for segment in found["segments"] for block in segment["blocks"] if block["state"] == "active_allocated"
    }  # fmt: skip
    assert {address: held.size for address, held in live.items()} == blocks
    assert not run.before
    assert run.before_reserved == 0


def test_what_was_there_before_the_history_is_known_by_its_blocks() -> None:
    """The oldest events of a ring buffer are gone: what they made is still there, or is let go later."""
    whole = memory_snapshot(training())
    cut = {**whole, "device_traces": [whole["device_traces"][0][150:]]}
    long, short = (read_history(pickled(found), "x") for found in (whole, cut))
    there = live_at(run_of(long), 150)
    before = run_of(short).before
    assert {address: held.size for address, held in before.items()} == {
        a: held.size for a, held in there.items()
    }
    assert run_of(short).before_reserved > 0


@pytest.mark.parametrize(
    ("frames", "component"),
    [
        ([("torch/nn/modules/module.py", "_apply"), ("a.py", "main")], "parameters"),
        ([("torch/nn/functional.py", "relu"), ("torch/nn/modules/module.py", "_call_impl")], "saved_activations"),
        ([("torch/optim/adam.py", "_init_group"), ("torch/optim/optimizer.py", "step")], "optimizer_states"),
        ([("torch/optim/adam.py", "_multi_tensor_sgd"), ("torch/optim/optimizer.py", "step")], "temporaries"),
        ([("torch/distributed/fsdp/_a.py", "all_gather_into_tensor")], "unsharded_parameters"),
        ([("game.py", "step"), ("a.py", "main")], "unexplained"),
        ([("robot.py", "sample")], "unexplained"),
        ([("a.py", "f")], "unexplained"),
    ],
)  # fmt: skip
def test_what_a_stack_is_for(frames: list[tuple[str, str]], component: str) -> None:
    assert stack_meaning(tuple(Frame(file, 1, name) for file, name in frames)).component == component


# ---- steps -----------------------------------------------------------------------------------------------


def test_steps_are_seen_and_layers_are_none() -> None:
    history = read_history(pickled(CASES["alive"]), "x")
    run, meanings = run_of(history), Meanings(history)
    assert len(step_places(run, meanings)) == 8
    one = as_torch_has_it(steps(1), None)
    history = read_history(pickled(one), "x")
    assert not step_places(run_of(history), Meanings(history))


def test_what_is_let_go_without_a_stack_is_no_backward() -> None:
    """Where only allocations have stacks, layers of one forward are still no steps."""
    maker = Maker()
    for _ in range(40):
        kept = maker.take(14 * MIB, Component.SAVED_ACTIVATIONS, line="forward")
        maker.give(maker.take(9 * MIB, Component.TEMPORARIES, line="forward"))
    assert kept
    found = as_torch_has_it(maker.made(), None)
    for event in found["device_traces"][0]:
        if event["action"].startswith("free"):
            event["frames"] = []
    history = read_history(pickled(found), "x")
    assert not step_places(run_of(history), Meanings(history))


def test_where_events_are_missing_nothing_is_claimed() -> None:
    """As skip_actions leaves them out."""
    events = [event for event in LEAK["device_traces"][0] if not event["action"].startswith("free")]
    told = diagnosed({**LEAK, "device_traces": [events]})
    assert told.held is not None
    assert told.held.growth is None
    assert not told.held.what_if
    assert any("missing" in note for note in told.notes)


def test_private_pools_lend_nothing_and_are_left_out_of_the_replay() -> None:
    pool = {"segment_pool_id": (0, 7), "device": 0, "stream": 0, "is_expandable": False}
    graph = {
        "address": 2**50,
        "total_size": 64 * MIB,
        "blocks": [
            {
                "address": 2**50,
                "size": 64 * MIB,
                "requested_size": 64 * MIB,
                "state": "active_allocated",
                "frames": [],
            }
        ],
    }
    first = [
        {"action": action, "addr": 2**50, "size": 64 * MIB, "stream": 0, "time_us": 0, "frames": [], "pool_id": (0, 7)}
        for action in ("segment_alloc", "alloc")
    ]  # fmt: skip
    found = {
        **PIECES,
        "segments": [*PIECES["segments"], {**pool, **graph}],
        "device_traces": [[*first, *PIECES["device_traces"][0]]],
    }
    one, other = diagnosed(PIECES), diagnosed(found)
    assert one.held is not None
    assert other.held is not None
    assert other.held.what_if == one.held.what_if
    assert other.held.replayed == one.held.replayed
    assert other.held.reserved_bytes == one.held.reserved_bytes + 64 * MIB
    assert other.cause is Cause.FRAGMENTATION


def test_longer_steps_are_no_leak() -> None:
    found = diagnosed(as_torch_has_it(steps(12, lengths=tuple(range(1, 13))), None))
    assert not found.found


def test_a_leak_is_seen_before_it_kills() -> None:
    found = diagnosed(as_torch_has_it(steps(12, kept=20 * MIB), None))
    assert (found.found, found.cause) == (True, Cause.LEAK)
    assert found.held is not None
    assert found.held.growth is not None
    assert found.held.growth.bytes_per_step == 20 * MIB
    assert found.cures[0].where == "train.py:9 main"


# ---- replay ----------------------------------------------------------------------------------------------


@given(
    timelines(),
    st.sampled_from(["", "expandable_segments:True", "max_split_size_mb:32"]),
    st.integers(64, 2048),
)
def test_the_recorded_settings_reproduce_the_recorded_segments(timeline: Any, conf: str, room: int) -> None:
    settings = {"": Settings(), "expandable_segments:True": Settings(expandable_segments=True)}.get(
        conf, Settings(max_split_size_bytes=32 * MIB)
    )
    capacity = None if "split" in conf else room * MIB  # where oversize blocks go back one by one
    replayed = replay_recorded(
        run_of(read_history(pickled(memory_snapshot(timeline, settings, capacity)), "x"))
    )
    assert replayed is not None
    assert replayed.matched * 100 >= replayed.events * 99
    assert replayed.complete


def test_a_wrong_rule_would_show() -> None:
    found = {**PIECES, "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:32"}}
    told = diagnosed(found)
    assert told.held is not None
    assert told.held.replayed is not None
    assert not told.held.replayed.well_reproduced
    assert not [cure for cure in told.cures if cure.helps == YES and cure.where]


def test_a_history_that_lost_its_beginning_promises_nothing() -> None:
    cut = {**PIECES, "device_traces": [PIECES["device_traces"][0][9:]]}
    told = diagnosed(cut)
    assert told.held is not None
    assert not told.held.complete
    assert told.held.replayed is not None
    assert told.held.replayed.well_reproduced
    assert not [cure for cure in told.cures if cure.helps == YES]


def test_settings_that_are_not_modelled_are_not_replayed() -> None:
    told = diagnosed({**PIECES, "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}})
    assert told.held is not None
    assert told.held.replayed is None
    assert told.found


# ---- judged ----------------------------------------------------------------------------------------------


def test_a_step_that_leaks() -> None:
    told = diagnosed(LEAK)
    assert told.cause is Cause.LEAK
    assert told.cures[0].where == "train.py:9 main"
    assert not [cure for cure in told.cures if cure.helps == YES]


def test_memory_in_pieces_would_have_served_with_expandable_segments() -> None:
    told = diagnosed(PIECES)
    assert told.cause is Cause.FRAGMENTATION
    assert told.cures[0].change == "expandable segments"
    assert told.cures[0].helps == YES


def test_where_nothing_recomputes_that_is_what_would_help() -> None:
    told = diagnosed(NEED)
    assert told.cause is Cause.REAL_NEED
    assert "recompute activations in backward" in {cure.change for cure in told.cures if cure.helps != NO}
    (useless,) = [cure for cure in told.cures if cure.change == "expandable segments"]
    assert useless.helps == NO


@pytest.mark.parametrize(
    ("made", "ends", "seen"), [("forward", False, None), ("forward", True, False), ("backward", True, True)]
)
def test_recompute_is_seen_where_activations_are_made_anew(made: str, ends: bool, seen: bool | None) -> None:
    maker = Maker()
    maker.mark(Instant(made))
    maker.take(9 * MIB, Component.SAVED_ACTIVATIONS, "mlp/output")
    maker.mark(Instant.OPTIMIZER_STEP)
    if ends:
        maker.take(MIB, Component.TEMPORARIES, "optimizer")
    assert held_of(read_history(pickled(memory_snapshot(maker.made())), "x")).checkpoints is seen


def test_a_request_that_had_room_is_no_shortage_of_the_card() -> None:
    events = [
        {**event, "device_free": 2**40} if event["action"] == "oom" else event
        for event in NEED["device_traces"][0]
    ]
    told = diagnosed({**NEED, "device_traces": [events]})
    assert told.cause is Cause.NOT_GPU_MEMORY


def test_beside_a_message_each_says_what_it_knows() -> None:
    other = modern("2.00 GiB", "79.18 GiB", "1.00 GiB", "40.00 GiB", "39.00 GiB", "100.00 MiB").replace(
        "Including", "Process 77 has 38.00 GiB memory in use. Including"
    )
    both = diagnosed(NEED, log=other)
    assert both.cause is Cause.OTHER_PROCESS
    assert both.held is not None
    assert diagnosed(NEED, log="nothing in it").cause is Cause.REAL_NEED


def test_of_several_ranks_the_one_that_died_is_told() -> None:
    texts = {"rank0.pickle": pickled(CASES["alive"]), "rank1.pickle": pickled(NEED)}
    told = diagnose_named_texts(texts, None, {})
    assert told.cause is Cause.REAL_NEED
    assert told.held is not None
    assert [(rank.name, rank.died) for rank in told.held.ranks] == [
        ("rank0.pickle", False),
        ("rank1.pickle", True),
    ]


def test_the_plans_sheet_stands_beside_what_was_live() -> None:
    texts = {"x.pickle": pickled(NEED)}
    plan = {"gpus": "1xH100-80GB", "seq_len": 4096, "fix": False}
    told = diagnose_named_texts(texts, "llama-3.2-1b", plan)
    assert "predicted" in render_diagnosis(told, Look(width=100))
    assert not any("recomputes" in note for note in told.notes)
    small = {**plan, "seq_len": 16, "recompute": "full"}
    assert any("recomputes" in note for note in diagnose_named_texts(texts, "llama-tiny", small).notes)


@pytest.mark.parametrize("name", CASES)
def test_a_document_is_what_its_schema_says(name: str) -> None:
    document = diagnosis_document(diagnosed(CASES[name]))
    document_model(Document).model_validate_json(json.dumps(document))
    assert document["snapshot"]["events"]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("full", [False, True])
def test_a_screen_keeps_its_width(name: str, width: int, full: bool) -> None:
    told = diagnosed(CASES[name])
    assert told.held is not None
    ranked = replace(told, held=replace(told.held, name="\x1b[31m" + "x" * 200))
    screen = render_diagnosis(ranked, Look(width=width, full=full))
    assert max(map(len, screen.splitlines())) <= width
    assert "\x1b" not in screen
    assert "Live" in screen


def test_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "snapshot.pickle").write_bytes(pickled(PIECES))
    assert main(["diagnose", str(tmp_path / "snapshot.pickle")]) == 0
    assert capsys.readouterr().out.startswith("DIED OF  fragmentation")
    (tmp_path / "snapshot.json").write_text(json.dumps(LEAK))
    assert main(["diagnose", str(tmp_path / "snapshot.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "leak"
    assert pickle.loads(pickled(PIECES)) == PIECES
