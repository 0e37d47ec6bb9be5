"""Pickles of strangers: nothing in one runs, and none costs more than its size allows for."""

from __future__ import annotations

import os
import pickle
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsheet.cli import main
from memsheet.diagnose.snapshot.history import read_history
from memsheet.errors import InputError
from memsheet.guard.pickled import MAX_BYTES, parse_pickle, read_pickle

MIB = 2**20


class Runs:
    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


class Built:
    def __init__(self) -> None:
        self.value = 1


def bomb(levels: int) -> list[Any]:
    found: list[Any] = ["x"]
    for _ in range(levels):
        found = [found] * 10
    return found


def itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


HOSTILE: dict[str, bytes] = {
    "reduce": pickle.dumps(Runs(), 2), "stacked reduce": pickle.dumps(Runs(), 4), "newest reduce": pickle.dumps([Runs()], 5),
    "build": pickle.dumps(Built(), 4), "an old build": pickle.dumps(Built(), 2), "a global": b"\x80\x02cos\nsystem\n.",
    "inst": b"\x80\x02(ios\nsystem\n.", "obj": b"\x80\x02(No.", "a persistent id": b"\x80\x04\x8c\x01aQ.",
    "an old persistent id": b"\x80\x02P0\n.", "an extension": b"\x80\x02\x82\x01.", "a buffer": b"\x80\x05\x97.",
    "nine bytes": b"\x80\x04Nr\xff\xff\xff\x0f.", "a memo that is not there": b"\x80\x04j\xff\xff\xff\x7f.", "nothing on the stack": b"\x80\x04\x94.",
    "marks": b"\x80\x04" + b"(" * 1_000_000, "lists in lists": b"\x80\x04" + b"](" * 500_000, "lists": b"\x80\x04(" + b"]" * 3_000_000,
    "dicts": b"\x80\x04(" + b"}" * 3_000_000, "memo": b"\x80\x04N" + b"\x94" * 30_000_000, "numbers": b"\x80\x04(" + b"N" * 30_000_000,
    "tuples": b"\x80\x04(" + b")" * 3_000_000, "a long number": b"\x80\x04\x8a\xff" + b"\xff" * 255 + b".",
    "a longer number": b"\x80\x04\x8b\xff\xff\xff\x7f.", "a long text": b"\x80\x04X\xff\xff\xff\x7f.", "bytes": b"\x80\x04C\x01a.",
    "a dup": b"\x80\x04N2.", "a pop": b"\x80\x04N0.", "protocol 0": pickle.dumps([1], 0), "protocol 6": b"\x80\x06N.", "two protocols": b"\x80\x04\x80\x04N.",
    "more behind": pickle.dumps([], 4) + b"x", "two values": b"\x80\x04NN.", "no end": pickle.dumps([1, 2, 3], 4)[:-1], "half": pickle.dumps({"a": [1] * 99}, 4)[:40],
    "keys that are none": pickle.dumps({1: 2}, 4), "an odd dict": b"\x80\x04}(\x8c\x01au.", "items of a list": b"\x80\x04](\x8c\x01aNu.",
    "appended to a dict": b"\x80\x04}(Ne.", "a frame that is too long": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xffN.",
    "a laugh": pickle.dumps(bomb(40), 4), "itself": pickle.dumps(itself(), 4), "no snapshot": pickle.dumps({"a": 1}, 4),
    "traces of themselves": pickle.dumps({"segments": [], "device_traces": itself()}, 4), "one trace often": pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 1}]] * 900}, 4),
    "events that are none": pickle.dumps({"segments": [], "device_traces": [[1, 2]]}, 4),
    "sizes that are none": pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": "x"}]]}, 4),
    "a size below nothing": pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": -1}]]}, 4),
    "a size beyond all": pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 2**70}]]}, 4),
    "actions that are lists": pickle.dumps({"segments": [], "device_traces": [[{"action": [], "addr": {}, "size": 1}]]}, 4),
    "frames that are none": pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 1, "frames": [3]}]]}, 4),
    "segments that are none": pickle.dumps({"segments": [None], "device_traces": []}, 4),
    "blocks that are none": pickle.dumps({"segments": [{"address": 1, "total_size": 1, "blocks": [7]}], "device_traces": []}, 4),
}  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_it_is_refused_at_once_and_for_little(
    data: bytes, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(InputError):
            read_history(data, "x.pickle")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 256 * MIB
    started = time.process_time()
    with pytest.raises(InputError):
        read_history(data, "x.pickle")
    assert time.process_time() - started < 2  # a tenth of that where nothing else runs
    assert not list(tmp_path.iterdir())


def test_the_command_refuses_it_too(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.pickle"
    file.write_bytes(HOSTILE["stacked reduce"])
    assert main(["diagnose", str(file)]) == 2
    assert "run code" in capsys.readouterr().err


def test_what_is_too_large_is_not_read(tmp_path: Any) -> None:
    file = tmp_path / "x.pickle"
    with file.open("wb") as held:
        held.write(b"\x80\x04")
        held.truncate(MAX_BYTES + 1)
    with pytest.raises(InputError, match="max_entries"):
        read_pickle(file)
    file.write_bytes(b"a log")
    assert read_pickle(file) is None


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=6) | st.lists(inner, max_size=5).map(tuple),
    max_leaves=60,
)  # fmt: skip


@given(values, st.integers(2, 5))
def test_plain_values_are_what_pickle_says(value: Any, protocol: int) -> None:
    assert parse_pickle(pickle.dumps(value, protocol), "x") == value


@given(
    st.lists(
        st.tuples(st.integers(0, 2**62), st.integers(-5, 2**40), st.integers(0, 3), st.booleans()),
        max_size=40,
    ),
    st.integers(2, 5),
)
def test_rows_that_are_alike_are_what_pickle_says(
    rows: list[tuple[int, int, int, bool]], protocol: int
) -> None:
    """Rows of one shape are read by one match each, whatever numbers they hold."""
    stacks = [
        [{"filename": "a.py", "line": n, "name": str(n)} for n in range(count)] for count in (0, 1, 2, 30)
    ]
    made = [
        {"action": "a", "size": size, "frames": list(stacks[stack]) if own else stacks[stack], "pool": (0, 0), "addr": place, "none": None}
        for place, size, stack, own in rows
    ]  # fmt: skip
    seen: list[Any] = []

    def taken(found: dict[str, Any]) -> Any:
        if "action" in found:
            seen.append(dict(found))
            return "row"
        return None

    found = parse_pickle(pickle.dumps({"rows": made}, protocol), "x", taken)
    assert found == {"rows": ["row"] * len(rows)}
    assert seen == made
