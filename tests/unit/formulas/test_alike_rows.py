"""Plans of a stratum taken apart by what a formula asks of them, and laid together again."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from memsheet import catalog
from memsheet.arith import Term, agreed, row_codes
from memsheet.formulas.alike_rows import (
    FEW_PLANS,
    AlikeParts,
    by_alike_rows,
    count_code,
    plan_code,
    plan_of_rows,
)
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath, bags_laid_together
from memsheet.frozen import replace
from memsheet.plan.device import cluster_of
from memsheet.plan.plan import Plan
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request
from memsheet.sheet import Component

REQUEST = {"task": "train", "engine": "megatron", "seq_len": 4096, "mesh.tp": 2}
SIZES = (3, FEW_PLANS, 4 * FEW_PLANS)


def plan_of(counts: dict[str, Any]) -> Plan:
    cluster = cluster_of(catalog.find_device("H100-80GB"), 2)
    plan = resolve_request(REQUEST, read_model("llama-3-8b", catalog=catalog.find_model), cluster).plan
    mesh = replace(plan.mesh, tp=counts["tp"], cp=counts["cp"])
    return replace(plan, mesh=mesh, workload=replace(plan.training, microbatch=counts["microbatch"]))


def random_counts(size: int) -> dict[str, Any]:
    seeded = random.Random(size)
    columns = {"tp": (1, 2, 4, 8), "cp": (1, 2), "microbatch": (1, 2, 3, 8)}
    return {name: np.array(seeded.choices(values, k=size)) for name, values in columns.items()}


def test_plans_have_one_code_where_they_are_equal_place_by_place() -> None:
    counts = random_counts(SIZES[0])
    plan = plan_of(counts)
    copied = plan_of({name: column.copy() for name, column in counts.items()})
    assert plan_code(plan) == plan_code(copied) == plan_code(replace(plan))
    assert hash(plan_code(plan)) == hash(plan_code(copied))
    for name, column in counts.items():
        changed = column.copy()
        changed[-1] *= 16
        assert plan_code(plan_of({**counts, name: changed})) != plan_code(plan)
    single = plan_of({name: int(column[0]) for name, column in counts.items()})
    assert plan_code(single) == plan_code(replace(single)) != plan_code(replace(single, zero=3))
    assert plan_code(single)[0] == hash(single)
    assert count_code(Term("a + b")) == count_code(Term("a") + Term("b")) != count_code(Term("a"))


def told_apart(plan: Plan) -> Any:
    """What no stratum can be asked: it depends on three conditions of counts."""
    size = plan.training.microbatch * 100
    if agreed(plan.mesh.tp > 1):
        size = size + (7 if agreed(plan.training.microbatch > 1) else plan.mesh.cp)
    return size + plan.mesh.tp if agreed(plan.mesh.cp > 1) else size


def laid_together(found: list[Any], parts: AlikeParts) -> Any:
    return parts.together(found)


@pytest.mark.parametrize("size", SIZES)
def test_what_is_made_of_parts_is_what_is_made_of_each_plan(size: int) -> None:
    counts = random_counts(size)
    found = by_alike_rows(plan_of(counts), told_apart, laid_together)
    alone = [
        told_apart(plan_of({name: int(column[row]) for name, column in counts.items()}))
        for row in range(size)
    ]
    assert np.broadcast_to(found, (size,)).tolist() == alone


def test_plans_of_the_same_counts_are_asked_about_once() -> None:
    asked = list[int]()

    def make(plan: Plan) -> Any:
        asked.append(np.size(plan.training.microbatch * plan.mesh.tp * plan.mesh.cp))
        return plan.training.microbatch * plan.mesh.tp * plan.mesh.cp

    counts = random_counts(SIZES[-1])
    found = by_alike_rows(plan_of(counts), make, laid_together)
    assert found.tolist() == (counts["microbatch"] * counts["tp"] * counts["cp"]).tolist()
    assert asked == [len(set(zip(*(column.tolist() for column in counts.values()), strict=True)))]


def test_parts_that_were_found_once_are_asked_about_at_once_again() -> None:
    plan, asked = plan_of(random_counts(SIZES[0])), list[Plan]()

    def make(own: Plan) -> Any:
        asked.append(own)
        return told_apart(own)

    first = by_alike_rows(plan, make, laid_together)
    failing, asked = len(asked), []
    assert by_alike_rows(plan, make, laid_together).tolist() == first.tolist()
    assert len(asked) < failing


def test_a_part_of_plans_has_plain_numbers_where_they_agree() -> None:
    plan = plan_of({"tp": np.array([2, 2, 4]), "cp": np.array([1, 1, 2]), "microbatch": np.array([1, 5, 9])})
    part = plan_of_rows(plan, np.array([0, 1]))
    assert (part.mesh.tp, part.mesh.cp) == (2, 1)
    assert part.training.microbatch.tolist() == [1, 5]  # type: ignore[attr-defined]


def test_a_bag_has_the_parts_of_each_and_nothing_where_one_lacks_it() -> None:
    parts = AlikeParts((), (2, 1), np.array([2, 0, 1]))
    table, mask = (Component.TEMPORARIES, "table"), (Component.TEMPORARIES, "mask")
    bag = bags_laid_together(
        [BytesByPath.of([(table, np.array([5, 6]))]), BytesByPath.of([(table, 7), (mask, 1)])], parts
    )
    assert np.asarray(bag.total).tolist() == [8, 5, 6]
    assert {key: np.asarray(size).tolist() for key, size in bag.held.items()} == {
        table: [7, 5, 6],
        mask: [1, 0, 0],
    }
    size, there = bag.part(mask)
    assert (np.asarray(size).tolist(), there.tolist()) == ([1, 0, 0], [True, False, False])
    assert bags_laid_together([EMPTY, EMPTY], parts) is EMPTY


def test_rows_have_one_number_where_they_are_alike_and_fill_more_than_a_word() -> None:
    seeded = random.Random(7)
    columns = [np.array(seeded.choices((0, 1, 1 << 40), k=200)) for _ in range(5)]
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    codes = row_codes(columns).tolist()
    assert len(set(codes)) == len(set(rows)) == len({*zip(codes, rows, strict=True)})
