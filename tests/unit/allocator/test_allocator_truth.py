"""A GPU allocator's own history against the simulation: read as data, replayed, compared."""

import gzip
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import allocator_truth

from memsheet.allocator.recorded import compare_with_replay
from memsheet.errors import InputError
from memsheet.measure.snapshot import record_allocator_history, snapshot_document
from memsheet.readers.snapshot import read_snapshot, recorded_from

MIB = 2**20
BASE = 0x7F0000000000


def event(action, addr, size, stream=0, **more):
    return {
        "action": action,
        "addr": BASE + addr,
        "size": size,
        "stream": stream,
        "time_us": 1,
        "frames": [],
        "pool_id": (0, 0),
        **more,
    }


def freed(addr, size):
    return [event("free_requested", addr, size), event("free_completed", addr, size)]


def segment(addr, size, pool=(0, 0)):
    block = {"address": BASE + addr, "size": size, "requested_size": 0, "state": "inactive", "frames": []}
    return {
        "device": 0, "address": BASE + addr, "total_size": size, "allocated_size": 0, "active_size": 0, "requested_size": 0, "stream": 0,
        "segment_type": "large", "segment_pool_id": pool, "is_expandable": False, "frames": [], "blocks": [block],
    }  # fmt: skip


def snapshot():
    """What torch records of six requests: small ones share 2 MiB, those below 10 MiB share 20 MiB, larger
    ones have segments of their own that are multiples of 2 MiB; a request that a free block serves takes
    nothing, and no rest of up to 1 MiB is split off.
    """
    trace = [
        event("segment_alloc", 0, 2 * MIB), event("alloc", 0, 1000),
        event("alloc", 1024, 500_000),
        event("segment_alloc", 1 << 31, 16 * MIB), event("alloc", 1 << 31, 15 * MIB),
        event("segment_alloc", 1 << 30, 20 * MIB), event("alloc", 1 << 30, 3 * MIB),
        *freed(1 << 31, 15 * MIB),
        event("alloc", 1 << 31, 14 * MIB + 5),
        *freed(1 << 30, 3 * MIB),
        event("alloc", 1 << 30, 9 * MIB),
    ]  # fmt: skip
    segments = [segment(0, 2 * MIB), segment(1 << 30, 20 * MIB), segment(1 << 31, 16 * MIB)]
    return {
        "segments": segments,
        "device_traces": [[], trace],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""},
    }


def on_device_1(found):
    return {**found, "segments": [{**one, "device": 1} for one in found["segments"]]}


def written(tmp_path, found, name="x.history.json.gz"):
    file = tmp_path / name
    file.write_bytes(gzip.compress(json.dumps(found).encode()))
    return file


def test_a_history_is_replayed_to_the_byte(tmp_path):
    found = read_snapshot(written(tmp_path, snapshot_document(on_device_1(snapshot()))))
    truth = compare_with_replay(found)
    assert truth.requests == 6
    assert truth.recorded_peak_bytes == truth.replayed_peak_bytes == 38 * MIB
    assert (truth.worst_bytes, truth.before_bytes, truth.unknown, truth.error) == (0, 0, 0, 0)


def test_a_snapshot_as_torch_has_it_is_read_too(tmp_path):
    file = tmp_path / "x.json"
    file.write_text(json.dumps(on_device_1(snapshot())))
    assert compare_with_replay(read_snapshot(file)).replayed_peak_bytes == 38 * MIB


def test_a_wrong_rule_would_show():
    found = on_device_1(snapshot())
    found["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "large_segment_size_mb:32"
    truth = compare_with_replay(recorded_from(json.loads(json.dumps(snapshot_document(found)))))
    assert truth.replayed_peak_bytes - truth.recorded_peak_bytes == truth.worst_bytes == 12 * MIB


def test_segments_that_went_back_go_back_in_the_replay():
    found = on_device_1(snapshot())
    found["device_traces"][1] += [
        *freed(1 << 31, 14 * MIB + 5), event("segment_free", 1 << 31, 16 * MIB), event("segment_alloc", 1 << 32, 64 * MIB),
        event("alloc", 1 << 32, 64 * MIB),
    ]  # fmt: skip
    found["segments"] = [*found["segments"][:2], {**segment(1 << 32, 64 * MIB), "device": 1}]
    truth = compare_with_replay(recorded_from(json.loads(json.dumps(snapshot_document(found)))))
    assert truth.recorded_end_bytes == truth.replayed_end_bytes == 86 * MIB
    assert truth.worst_bytes == 0


def test_what_was_there_before_and_private_pools_are_said():
    found = on_device_1(snapshot())
    found["segments"] += [
        {**segment(1 << 33, 4 * MIB), "device": 1},
        {**segment(1 << 34, 2 * MIB, pool=(0, 1)), "device": 1},
    ]
    found["device_traces"][1] += [*freed(1 << 33, 4 * MIB), event("alloc", 1 << 34, 9, pool_id=(0, 1))]
    recorded = recorded_from(json.loads(json.dumps(snapshot_document(found))))
    truth = compare_with_replay(recorded)
    assert (truth.before_bytes, truth.unknown, recorded.other_pools) == (4 * MIB, 1, 1)
    assert truth.recorded_peak_bytes == truth.replayed_peak_bytes == 42 * MIB


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x80\x04.", "is a pickle"), (b"[]", "holds no object"), (b"{}", "holds no events"), (b'{"events": [1], "segments": []}', "no objects"),
        (b'{"events": [{"action": "alloc", "addr": -1, "size": 1, "stream": 0}], "segments": []}', "whole number"),
        (b'{"events": [{"action": "alloc", "addr": 1, "size": true, "stream": 0}], "segments": []}', "whole number"),
        (gzip.compress(b"{}", mtime=0)[:-9], "ends early"), (b"\x1f\x8bnonsense", "not compressed"),
    ],
)  # fmt: skip
def test_what_is_no_history_is_refused(tmp_path, data, words):
    file = tmp_path / "x.json"
    file.write_bytes(data)
    with pytest.raises(InputError, match=words):
        read_snapshot(file)


def test_a_folder_of_histories_is_printed(tmp_path, capsys):
    written(tmp_path, snapshot_document(on_device_1(snapshot())))
    (tmp_path / "record.json").write_text('{"schema": "memsheet/record/1"}')
    assert allocator_truth.main([str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert f"{38 * MIB:,}" in told
    assert "1 histories, 1 within 1 %" in told
    assert allocator_truth.main([str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["error"] == 0


class Memory:
    """torch.cuda.memory's private recorder, as it is called."""

    def __init__(self, found):
        self.found, self.calls = found, []

    def _record_memory_history(self, enabled="all", **how):
        self.calls.append((enabled, how))

    def _snapshot(self):
        return self.found


def test_the_history_is_on_while_the_steps_run_and_off_after_a_failure():
    memory = Memory(on_device_1(snapshot()))
    ran = []
    found = record_allocator_history(lambda: ran.append(len(memory.calls)), memory)
    assert ran == [1]
    assert [enabled for enabled, _ in memory.calls] == ["all", None]
    assert memory.calls[0][1]["context"] is None  # no stacks, which are most of it
    assert set(found["events"][0]) == {"action", "addr", "size", "stream", "pool_id"}
    assert "frames" not in json.dumps(found)
    with pytest.raises(ZeroDivisionError):
        record_allocator_history(lambda: 1 / 0, memory)
    assert memory.calls[-1][0] is None
