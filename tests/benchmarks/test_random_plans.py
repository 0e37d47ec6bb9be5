"""Models and plans that nobody chose: sheet and trace say the same, and so do those in which they once did
not.
"""

import json
import random
import sys
from pathlib import Path

import pytest

import warm_children

pytest.importorskip("torch")
pytest.importorskip("transformers")

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "agreement.py"
FOUND = Path(__file__).parents[1] / "found_disagreements.py"
sys.path.insert(0, str(BENCHMARK.parent))

from agreement import RANDOM_BAR  # noqa: E402
from random_plans import drawn_plan  # noqa: E402

DRAWN = 20


def test_a_case_is_its_number():
    first, again, other = (drawn_plan(random.Random(number)) for number in (3, 3, 4))
    assert first == again
    assert first != other


@pytest.mark.slow
def test_sheets_of_random_models_and_plans_are_what_their_code_allocates():
    said = warm_children.printed(BENCHMARK, "--random", str(DRAWN), "--seed", "3", "--json")
    found = [json.loads(line) for line in said.splitlines()]
    run = [row for row in found if row["refused"] is None]
    assert len(found) == DRAWN
    assert len(run) >= DRAWN // 5
    assert {row["plan"]: row["error"] for row in run if abs(row["error"]) > RANDOM_BAR} == {}
    assert {row["plan"]: row["parameters_off"] for row in run if row["parameters_off"]} == {}


@pytest.mark.slow
def test_what_once_was_not_so_is():
    found = json.loads(warm_children.printed(FOUND))
    assert {name: error for name, error in found.items() if abs(error) > RANDOM_BAR} == {}
