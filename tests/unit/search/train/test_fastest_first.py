"""The fastest plan alone: the one that a search of all plans puts first, on cards from too small to large
enough, and with plans left out that are slower.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import answers
from memsheet.budget import Result
from memsheet.catalog import find_device
from memsheet.plan.device import Cluster, cluster_of
from memsheet.search.train import fastest_first
from memsheet.search.train.fastest_first import search_fastest_plan
from memsheet.search.train.rank import fastest_fitting_plan, search_engines

ENGINES = ("megatron", "fsdp2", "deepspeed", "transformers")
ASKED = {"seq_len": 512, "global_batch": 8, "optimizer.name": "adamw", "offload.optimizer": 0}
MIB = 1 << 20


def cards(size: int) -> Cluster:
    device = replace(
        find_device("A100-80GB"), framework_bytes=size, framework_low_bytes=size, framework_high_bytes=size
    )
    return cluster_of(device, 4)


@pytest.mark.parametrize("size", [MIB, 2400 * MIB, 2640 * MIB, 80_000 * MIB])
@pytest.mark.parametrize("engines", [ENGINES, ENGINES[::-1]], ids=["fastest first", "fastest last"])
def test_it_is_the_first_of_all_plans(size: int, engines: tuple[str, ...]) -> None:
    model, cluster = answers.model("llama-tiny"), cards(size)
    found, result, notes = search_fastest_plan(model, cluster, ASKED, engines, lambda _: None)
    every, expected, said = fastest_fitting_plan(
        search_engines(model, cluster, ASKED, engines, lambda _: None), cluster
    )
    assert result is expected
    assert (found and found.request) == (every and every.request)
    assert (found and found.verdict) == (every and every.verdict)
    assert result is Result.FITS or notes == said


def test_what_is_slower_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would be no quicker."""
    pieces = list[tuple[int, int]]()
    graded = fastest_first.graded_pieces

    def noting(legal, numbers):
        own = list(numbers)
        pieces.append((len(own), len(legal.pieces)))
        return graded(legal, own)

    monkeypatch.setattr(fastest_first, "graded_pieces", noting)
    found, *_ = search_fastest_plan(
        answers.model("llama-tiny"), cards(80_000 * MIB), ASKED, ENGINES, lambda _: None
    )
    assert found is not None
    assert pieces[0][0] == pieces[0][1]
    assert sum(few for few, _ in pieces[1:]) < sum(most for _, most in pieces[1:]) // 2
