"""The snapshot for PyTorch's memory viewer: blocks that never overlap, and a file that both of its readers
take.
"""

import pickle
import pickletools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsheet.allocator.settings import Settings
from memsheet.errors import InputError
from memsheet.report.json.memory_viewer import PROTOCOL, memory_snapshot, write_snapshot
from memsheet.sheet import Component, Instant
from memsheet.timeline import held_bytes_after_events, live_storages
from timelines import Maker, timelines, training

# What unpickle() of torch/utils/viz/MemoryViz.js knows (pytorch/pytorch at 00067369c93), by the names of
# pickletools
OPCODES = {
    "PROTO", "APPEND", "APPENDS", "LIST", "TUPLE", "NEWFALSE", "NEWTRUE", "NONE", "BINGET", "BININT", "BININT1", "BININT2", "EMPTY_DICT",
    "EMPTY_LIST", "FRAME", "LONG1", "LONG_BINGET", "MARK", "MEMOIZE", "BINPUT", "LONG_BINPUT", "SETITEMS", "SETITEM", "DICT",
    "SHORT_BINUNICODE", "BINUNICODE", "STOP", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "BINFLOAT",
}  # fmt: skip


def test_the_pickle_holds_only_what_the_viewer_can_read():
    data = pickle.dumps(memory_snapshot(training(layers=20)), protocol=PROTOCOL)
    assert {opcode.name for opcode, _, _ in pickletools.genops(data)} <= OPCODES


def replayed(document):
    """Bytes held after each event, as the viewer adds them up; blocks must not overlap, and what is freed
    must be there.
    """
    held, blocks = [0], {}
    for event in document["device_traces"][0]:
        if event["action"] == "alloc":
            start, end = event["addr"], event["addr"] + event["size"]
            assert start % 512 == 0
            assert end < 2**53
            assert all(end <= other or start >= other + size for other, size in blocks.items())
            blocks[start] = event["size"]
            held.append(held[-1] + event["size"])
        elif event["action"] == "free_completed":
            assert blocks.pop(event["addr"]) == event["size"]
            held.append(held[-1] - event["size"])
    return held[1:], blocks


@given(timelines())
def test_the_viewer_sees_the_curve_of_the_timeline(timeline):
    held, blocks = replayed(memory_snapshot(timeline))
    curve = [
        size
        for size, event in zip(held_bytes_after_events(timeline), timeline.events, strict=True)
        if timeline.storages[event if event >= 0 else ~event].bytes
    ]
    assert held == curve
    left = sorted(timeline.storages[number].bytes for number in live_storages(timeline, len(timeline.events)))
    assert sorted(blocks.values()) == [size for size in left if size]


@given(timelines())
def test_segments_are_made_of_their_blocks(timeline):
    document = memory_snapshot(timeline)
    _, live = replayed(document)
    found = {}
    for segment in document["segments"]:
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
            if block["state"] == "active_allocated":
                found[block["address"]] = block["requested_size"]
        assert at == segment["address"] + segment["total_size"]
    assert found == live


@given(timelines(), st.booleans())
def test_segments_come_and_go_as_they_are_recorded(timeline, expandable):
    """What the segment events add up to is what is there at the end, and in them lie all blocks."""
    document = memory_snapshot(timeline, Settings(expandable_segments=expandable), 2**30)
    given = {}
    for event in document["device_traces"][0]:
        if event["action"] in ("segment_alloc", "segment_map"):
            assert event["addr"] not in given
            given[event["addr"]] = event["size"]
        elif event["action"] in ("segment_free", "segment_unmap"):
            assert given.pop(event["addr"]) == event["size"]
        elif event["action"] == "alloc":
            assert any(at <= event["addr"] < at + size for at, size in given.items())
    assert sum(given.values()) == sum(segment["total_size"] for segment in document["segments"])


def test_where_a_device_ends_the_history_ends_with_the_request_that_failed():
    *_, failed, end = memory_snapshot(training(), capacity_bytes=2**30)["device_traces"][0]
    assert (failed["action"], end["action"]) == ("oom", "snapshot")
    assert 0 <= failed["device_free"] < failed["size"]


def test_an_event_says_operation_module_line_and_instant():
    events = memory_snapshot(training())["device_traces"][0]
    softmax = next(event for event in events if event["action"] == "alloc" and event["size"] == 3 * 2**30)
    assert softmax["frames"] == [
        {"filename": "aten._log_softmax.default", "line": 0, "name": "loss/fp32"},
        {"filename": "train.py", "line": 43, "name": ""},
        {"filename": "step", "line": 0, "name": "loss"},
    ]
    assert softmax["category"] == "temporaries"
    assert events[0]["frames"][-1]["name"] == "before the steady step"


def test_there_is_always_the_category_that_the_viewer_looks_for():
    """Where there are categories and "unknown" is none of them, MemoryViz.js misspells its own list and
    stops.
    """
    maker = Maker()
    maker.mark(Instant.LOAD)
    maker.take(8, Component.PARAMETERS)
    events = memory_snapshot(maker.made())["device_traces"][0]
    categories = {event["category"] for event in events if "category" in event}
    assert categories == {"parameters", "unknown"}


def test_torchs_own_tools_take_the_file(tmp_path):
    pytest.importorskip("torch")
    from torch.cuda import _memory_viz as viz

    write_snapshot(training(), tmp_path / "snapshot.pickle")
    document = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    summary = viz.segsum(document)
    assert "total_allocated: 3.0GiB" in summary  # states and inputs are what is left after the step
    assert "del" in viz.trace(document)
    flames = viz.memory(document, format_flamegraph=str)
    assert sum(int(line.rpartition(" ")[2]) for line in flames.splitlines()) == sum(
        segment["total_size"] for segment in document["segments"]
    )
    for plot in (viz.trace_plot, viz.segment_plot):
        assert "snapshot.pickle" in plot(document)


def test_it_is_written_whole_or_not_at_all(tmp_path):
    with pytest.raises(InputError, match="folder"):
        write_snapshot(training(), tmp_path)
    assert list(tmp_path.iterdir()) == []
