"""Snapshots of traced steps: one that leaks, one whose memory lies in pieces, one that recomputes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memsheet.cli import main

pytest.importorskip("torch")
pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[3] / "examples"
STEPS = {
    "leak": ((f"{EXAMPLES}/leak.py:build", "--capacity", "420MiB"), "let go of what is kept from step to step"),
    "fragmentation": ((f"{EXAMPLES}/pieces.py:build", "--capacity", "1100MiB"), "expandable segments"),
    "real_need": (("llama-3.2-1b", "--gpus", "1xRTX4090", "--seq-len", "8192"), "recompute activations in backward"),
}  # fmt: skip


def diagnosed(words: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    file = str(folder / "snapshot.pickle")
    assert main(["trace", *words, "--snapshot", file]) in (0, 10)
    capsys.readouterr()
    assert main(["diagnose", file, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("verdict", STEPS)
def test_each_dies_of_what_it_does(verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, change = STEPS[verdict]
    found = diagnosed(words, tmp_path, capsys)
    assert found["verdict"] == verdict
    assert change in [cure["change"] for cure in found["cures"] if cure["helps"] != "no"]
    replay = found["snapshot"]["replay"]
    assert replay["matched"] == replay["events"] > 10


def test_with_recompute_it_is_no_real_need_any_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = (*STEPS["real_need"][0], "--recompute", "full", "--loss", "plain", "--precision", "bf16-pure")
    words = (*step, "--capacity", "20GiB")
    found = diagnosed(words, tmp_path, capsys)
    assert found["verdict"] == "fragmentation"
    assert [each["lived"] for each in found["snapshot"]["what_if"]] == [True, True, True]
