"""Nothing is said to fail that may fit: of plans and of values that are solved for, over cards from too small
to large enough.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import answers
from memsheet import cli
from memsheet.budget import Result
from memsheet.catalog import find_device
from memsheet.plan.device import Cluster, cluster_of
from memsheet.report.json.plans import plans_document
from memsheet.report.json.solution import solution_document
from memsheet.report.screen.plans.ranking import render_plans
from memsheet.report.screen.solution import render_solution
from memsheet.report.shared.look import Look
from memsheet.search.advice import Advice
from memsheet.search.solve import targets as solve
from memsheet.search.train.rank import Ranking, rank_training_plans

TINY = answers.model("llama-tiny")
WORDS = {
    Result.FITS: ("BEST PLAN", "FITS"),
    Result.UNCERTAIN: ("UNCERTAIN",),
    Result.DOES_NOT_FIT: ("NOTHING FITS",),
}
ASKED = {"seq_len": 512, "global_batch": 4, "loss": "plain", "optimizer.name": "adamw"}
ENGINES = ("fsdp2", "deepspeed")


def cards(size: int) -> Cluster:
    device = replace(
        find_device("A100-80GB"), framework_bytes=size, framework_low_bytes=size, framework_high_bytes=size
    )
    return cluster_of(device, 2)


def found(size: int, engine: str) -> Ranking:
    return rank_training_plans(TINY, cards(size), ASKED, (engine,), top=2)


def sizes(low: int, high: int) -> list[int]:
    """One byte below, at both ends, and in between."""
    return [low - 1, low, (low + high) // 2, high - 1, high]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_search_says_that_nothing_fits_only_where_nothing_can(engine):
    alone = found(10**6, engine).least
    assert alone is not None
    roomy = found(2 * int(alone.verdict.device.high), engine).plans  # where the allocator's steps are played
    device = min((each.verdict.device for each in roomy), key=lambda size: size.high)
    results = []
    for size in sizes(int(device.low), int(device.high)):
        ranking = found(size, engine)
        text, document = (
            render_plans(Advice(ranking=ranking), Look(width=100)),
            plans_document(Advice(ranking=ranking), seconds=1.0),
        )
        assert ranking.result is not None
        results.append(ranking.result)
        assert text.startswith(WORDS[ranking.result])
        assert document["result"] == ranking.result.value
        uncertain = ranking.result is Result.UNCERTAIN
        assert ("nothing is sure to fit" in text) == uncertain
        assert uncertain or not ranking.unsure  # the nearest are played, and may be denied; others may fit
        assert all(planned.verdict.result is Result.UNCERTAIN for planned in ranking.unsure)
        assert [each["verdict"] for each in document["unsure"]] == ["uncertain"] * len(ranking.unsure)
        possible = ranking.looked_at[Result.FITS] + ranking.looked_at[Result.UNCERTAIN]
        assert (ranking.result is Result.DOES_NOT_FIT) == (possible == 0)
    assert Result.UNCERTAIN in results
    assert Result.DOES_NOT_FIT not in results[1:]
    assert results[-1] is Result.FITS


@pytest.mark.parametrize("target", ["seq-len", "microbatch"])
def test_a_value_that_may_fit_is_never_said_to_fail(target, monkeypatch):
    monkeypatch.setattr(solve, "_fix_for_least_value", lambda *_: None)
    monkeypatch.setattr(solve, "_ways_for_least_value", lambda *_: ())
    request = {"task": "train", "engine": "fsdp2", "zero": 3, "seq_len": 64, "microbatch": 1}
    search = solve.solve_sequence_length if target == "seq-len" else solve.most_sequences
    alone = search(TINY, request, cards(10**6), most=64).least
    assert alone is not None
    device, results = alone.verdict.device, []
    low, high = int(device.low), int(device.high)
    for size in (low - 1, low + (high - low) // 8, low + (high - low) // 4, 2 * high):
        solution = search(TINY, request, cards(size), most=64)
        document = solution_document(solution)
        text = render_solution(solution, Look(width=100))
        results.append(solution.result)
        assert text.startswith(WORDS[solution.result])
        assert document["result"] == solution.result.value
        assert (
            (document["possible"] is not None)
            == ("nothing is sure to" in text)
            == (solution.result is Result.UNCERTAIN)
        )
        said = {each.verdict.result for each in solution.tried}
        assert (solution.result is Result.DOES_NOT_FIT) == (said == {Result.DOES_NOT_FIT})
    assert set(results) == set(Result)


@pytest.mark.parametrize("json_too", [False, True])
def test_the_exit_code_is_the_searchs_own(capsys, monkeypatch, json_too):
    low = found(10**6, "fsdp2").least
    assert low is not None
    asked = ["plan", "train", "llama-tiny", "--seq-len", "512", "--global-batch", "4", "--loss", "plain", "--optimizer", "adamw",
             "--engine", "fsdp2", "--gpus", "2xA100-80GB"]  # fmt: skip
    for size, code in ((10**6, 10), ((low.verdict.device.low + low.verdict.device.high) // 2, 11)):
        with monkeypatch.context() as patched:
            patched.setattr(
                "memsheet.questions.question_parts._cluster_from_gpus", lambda *_, size=size: cards(int(size))
            )
            assert cli.main([*asked, *(["--json"] if json_too else [])]) == code
        text = capsys.readouterr().out
        assert not json_too or json.loads(text)["result"] == {10: "does_not_fit", 11: "uncertain"}[code]
