"""What a script writes down when a request fails, and what a diagnosis makes of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.diagnose.snapshots import LAYERS, WEIGHTS, as_torch_has_it, steps

import memsheet
from memsheet.cli import main
from memsheet.diagnose.message import Cause
from memsheet.errors import InputError
from memsheet.sheet import Component
from memsheet.units import GIB, MIB

torch = pytest.importorskip("torch")
Observer = Callable[[int, int, int, int], None]


@pytest.fixture
def observers(monkeypatch: pytest.MonkeyPatch) -> list[Observer]:
    """A device whose allocator has died; what is attached to it."""
    found: list[Observer] = []
    snapshot = as_torch_has_it(steps(3), 119 * MIB)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", found.append, raising=False)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **_: None)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda _=None: snapshot)
    return found


def test_without_a_device_nothing_is_watched_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "memsheet"):
        assert memsheet.on_oom(tmp_path / "oom.json") is False
    assert "no CUDA device" in caplog.text
    assert not list(tmp_path.iterdir())


def test_a_failure_is_written_down_and_diagnosed(
    observers: list[Observer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "3")
    told: list[dict[str, Any]] = []
    plan = {
        "schema": "memsheet/plan/1",
        "model": "llama-3.2-1b",
        "task": "train",
        "gpus": "1xH100-80GB",
        "seq_len": 4096,
    }
    assert memsheet.on_oom(tmp_path / "oom-{rank}.json", plan=plan, callback=told.append)
    observers[0](0, 14 * MIB, GIB, 5 * MIB)
    file = tmp_path / "oom-3.json"
    assert told == [json.loads(file.read_text())]
    assert "site-packages" not in file.read_text()
    found = memsheet.diagnose(file)
    assert found.cause is Cause.REAL_NEED
    assert found.held is not None
    assert found.held.bytes_of(Component.PARAMETERS) == LAYERS * WEIGHTS
    assert found.answer is not None
    assert main(["diagnose", str(file)]) == 0
    assert "model.py:7 forward" in capsys.readouterr().out


def test_a_callback_that_fails_and_a_full_disk_stop_nothing(
    observers: list[Observer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: dict[str, Any]) -> None:
        raise ValueError

    folder = tmp_path / "folder"
    folder.mkdir()
    memsheet.on_oom(folder / "a.json", callback=fails)
    observers[0](0, 1, 2, 0)
    (folder / "a.json").unlink()
    folder.rmdir()
    observers[0](0, 1, 2, 0)
    assert "callback" in caplog.text
    assert "not written down" in caplog.text
    with pytest.raises(InputError):
        memsheet.on_oom(tmp_path / "none" / "a.json")


@pytest.mark.parametrize(
    "change",
    [
        {"live": None},
        {"live": [1]},
        {"live": [{"bytes": -1, "blocks": 1}]},
        {"asked_bytes": "x"},
        {"free_bytes": True},
        {"plan": {"schema": "x"}},
    ],
)
def test_what_is_no_such_document_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    sizes = dict.fromkeys(
        (
            "asked_bytes",
            "free_bytes",
            "most_bytes",
            "allocated_bytes",
            "reserved_bytes",
            "largest_free_bytes",
        ),
        1,
    )
    file = tmp_path / "x.json"
    file.write_text(json.dumps({"schema": "memsheet/oom/1", **sizes, "live": [], **change}))
    with pytest.raises(InputError):
        memsheet.diagnose(file)
