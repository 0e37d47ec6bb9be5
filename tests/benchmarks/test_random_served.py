"""Served models that nobody chose: sheet and trace say the same, sheets keep what must hold of any, and what
once was said too low or too high is not.
"""

import json
import sys
from pathlib import Path

import pytest

import warm_children

pytest.importorskip("torch")
pytest.importorskip("transformers")

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "random_served.py"
FOUND = Path(__file__).parents[1] / "found_served.py"
sys.path.insert(0, str(BENCHMARK.parent))

from random_served import PEAK_BAR, drawn_case, laws_broken  # noqa: E402

DRAWN, LESS_BAR = 30, 0.01
LAWFUL = (
    "llama",
    "qwen2_moe",
    "phi3",
    "falcon",
    "qwen3_next",
    "deepseek_v3",
    "gemma3_text",
    "gpt_oss",
    "jamba",
)


def test_a_case_is_its_number():
    assert drawn_case("llama", 3) == drawn_case("llama", 3) != drawn_case("llama", 4)


@pytest.mark.slow
def test_sheets_of_random_models_keep_what_holds_of_any():
    broken = {family: list(laws_broken(drawn_case(family, 7)[0])) for family in LAWFUL}
    assert {family: found for family, found in broken.items() if found} == {}


@pytest.mark.slow
def test_no_random_generation_takes_more_than_its_sheet_says():
    said = warm_children.printed(BENCHMARK, "--count", str(DRAWN), "--seed", "1", "--json")
    found = [json.loads(line) for line in said.splitlines()]
    run = [row for row in found if row["refused"] is None]
    assert len(run) >= DRAWN // 3
    assert {row["number"]: row["beyond"] for row in run if row["beyond"] > LESS_BAR} == {}
    exact = [(row["number"], off) for row in run for off in row["off"] if off["what"] == "parameters"]
    assert exact == []


@pytest.mark.slow
def test_what_once_was_said_too_low_or_high_is_not():
    found = json.loads(warm_children.printed(FOUND))
    assert {
        name: beyond for name, beyond in found.items() if isinstance(beyond, str) or abs(beyond) > PEAK_BAR
    } == {}
