"""The formulas and the trace say the same, item by item: small models of real families; the real sizes are
benchmarks/agreement.py.
"""

import json
import sys
from itertools import combinations, product
from pathlib import Path

import pytest

import warm_children

pytest.importorskip("torch")
pytest.importorskip("transformers")

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "agreement.py"
sys.path.insert(0, str(BENCHMARK.parent))

from agreement import ITEM_BAR as ITEM  # noqa: E402
from agreement import PEAK_BAR as PEAK  # noqa: E402
from agreement import PLACES, covering_plans  # noqa: E402

MODELS = ("llama-2-7b", "qwen2.5-7b", "llama-3.1-8b")
COLUMNS = ("model", "place", "precision", "attention", "recompute", "optimizer")


def rows(*arguments):
    said = warm_children.printed(BENCHMARK, "--small", "--json", "--processes", "1", *arguments)
    return [json.loads(line) for line in said.splitlines()]


def check(found):
    assert [row for row in found if row["refused"]] == []
    assert {row["plan"]: row["error"] for row in found if abs(row["error"]) > PEAK} == {}
    assert {row["plan"]: row["item"] for row in found if abs(row["item"]["share"]) > ITEM} == {}


SLOW = pytest.mark.slow
SWEPT = [
    ("llama-3.1-8b", "fsdp2 64 tp 8", "cuda", 4), pytest.param("qwen3-30b-a3b", "fsdp2 8", "cuda", 4, marks=SLOW),
    pytest.param("gemma-3-1b", "1 gpu", "cpu", 8, marks=SLOW),
]  # fmt: skip


@pytest.mark.parametrize(("model", "place", "device", "count"), SWEPT)
def test_formulas_and_trace_agree(model, place, device, count):
    """Dense and routed layers, on one GPU, sharded, cut and on a processor: every precision and recomputation
    of the place, attention in turn.
    """
    found = rows("--model", model, "--place", place, "--device", device, "--pairs")
    assert len(found) == count
    check(found)


def test_every_two_options_meet_in_the_plans_that_are_swept():
    swept = [(model, *name.split(", ", 4)) for model, name, _ in covering_plans(MODELS, PLACES)]
    for one, other in combinations(range(len(COLUMNS)), 2):
        met = {(row[one], row[other]) for row in swept}
        every = product({left for left, _ in met}, {right for _, right in met})
        placed = (COLUMNS[one], COLUMNS[other]) == ("place", "precision")
        possible = {pair for pair in every if not placed or pair[1] in PLACES[pair[0]][1]}
        assert met == possible, (COLUMNS[one], COLUMNS[other])
    assert [len({row[n] for row in swept}) for n in range(len(COLUMNS))] == [
        len(MODELS),
        len(PLACES),
        4,
        2,
        2,
        4,
    ]
    kinds = sum(len(precisions) for _, precisions in PLACES.values())
    assert len({(row[1], row[2], row[4]) for row in swept}) == kinds * 2, "precision and recomputation"
    assert len({(row[1], row[3], row[4]) for row in swept}) == len(PLACES) * 2 * 2, "what is computed"
    adapted = {
        row[0] for row in swept if row[1:3] == ("fsdp2 8 lora", "bf16-pure") and row[4] == "recompute full"
    }
    assert adapted == set(MODELS), "what a checkpoint keeps, of every model"


def test_phases_of_jobs_are_of_every_family_and_kind():
    from job_agreement import FAMILIES, FURTHER, LOGITS, cases

    asked = list(cases())
    names = {one.name for one in asked}
    assert len(names) == len(asked) == 15 * len(FAMILIES) + 3 * len(FURTHER)
    every = product(FAMILIES, ("read", *LOGITS, "rewards", "generated"))
    further = product(FURTHER, ("read", "learn", "pairs"))
    assert {(one.family, one.kind) for one in asked} == {*every, *further}


@pytest.mark.slow
def test_phases_of_jobs_are_what_the_code_allocates():
    from job_agreement import table

    assert [row.name for row, _ in table() if not row.holds] == []


@pytest.mark.slow
def test_formulas_and_trace_agree_in_every_place_with_every_optimizer():
    """Every place, precision and recomputation, with attention, models and optimizers in turn: a covering
    array, in which every two options meet (the test above), in place of the product of all, which is
    benchmarks/agreement.py --small --every.
    """
    pytest.importorskip("peft")
    found = rows("--model", *MODELS, "--pairs")
    assert len(found) >= 40
    check(found)
