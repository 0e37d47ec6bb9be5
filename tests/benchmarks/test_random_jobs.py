"""Jobs that nobody chose: what a recipe of TRL's comes to is what its trainer's own loss allocates."""

import json
import sys
from pathlib import Path

import pytest

import warm_children

pytest.importorskip("torch")
pytest.importorskip("transformers")

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "agreement.py"
sys.path.insert(0, str(BENCHMARK.parent))

from random_jobs import METHODS, drawn_case, line  # noqa: E402

DRAWN = 4
METHODS_DRAWN = ("DPO", "KTO", "ORPO", "GRPO", "RLOO")
BAR = 0.01
"""Of the peak, where the range is wider than ``random_jobs.BAR``: formulas of one moment of a loss."""


def test_a_job_is_its_number():
    assert drawn_case(7) == drawn_case(7)
    assert drawn_case(7) != drawn_case(8)


def test_every_method_is_drawn():
    assert {drawn_case(number).method for number in range(200)} == set(METHODS)


def test_a_line_says_what_is_beyond_the_range():
    from random_jobs import PassRow

    row = PassRow(
        model="llama", name="1: DPO", phase="ref", traced_bytes=100, predicted_bytes=90, low=80, high=95
    )
    assert "BEYOND" in line(row)
    assert "refused: why" in line(PassRow(model="llama", name="1: DPO", phase="ref", refused="why"))


@pytest.mark.slow
def test_passes_of_random_jobs_are_what_their_trainers_allocate():
    pytest.importorskip("trl")
    pytest.importorskip("peft")
    said = warm_children.printed(
        BENCHMARK, "--jobs", "--random", str(DRAWN), "--seed", "5", "--method", *METHODS_DRAWN, "--family", "llama", "qwen2", "--json",
    )  # fmt: skip
    run = [row for row in map(json.loads, said.splitlines()) if row["refused"] is None]
    assert len(run) >= DRAWN
    beyond = {
        row["name"]: row["error"]
        for row in run
        if not (row["holds"] or row["low"] <= row["traced_bytes"] <= row["high"])
    }
    assert beyond == {}
    apart = {
        row["name"]: row["error"] for row in run if abs(row["error"]) > BAR and "use_peft" not in row["name"]
    }
    assert apart == {}
