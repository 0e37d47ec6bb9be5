"""The search for the best plan: the same as asking every plan by itself, and every plan it names can be asked
again.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import memsheet
from memsheet.budget import Result
from memsheet.catalog import find_device, model_names
from memsheet.cli import main
from memsheet.errors import InputError, input_error
from memsheet.formulas.step_time import quick_s
from memsheet.frozen import replace
from memsheet.plan.device import cluster_of
from memsheet.questions.question_parts import catalog_entry
from memsheet.readers.model import read_model
from memsheet.report.shared.plans.words import plan_command
from memsheet.search.train.grid import account_plan_grid, result_masks
from memsheet.search.train.rank import (
    HOST_DOUBT,
    plan_effort_key,
    plan_offloads,
    rank_training_plans,
    search_engines,
)
from memsheet.search.train.space import space_of
from memsheet.search.train.timed import APART, planned_of

TINY = read_model("llama-tiny", catalog=catalog_entry, names=model_names())
FOUR = cluster_of(find_device("A100-80GB"), 4)
ASKED = {"seq_len": 512, "global_batch": 8}
COUNTED = ("tp", "cp", "ep", "dp_replicate", "dp_shard")


@pytest.fixture(scope="module")
def tiny():
    return rank_training_plans(TINY, FOUR, ASKED, ("fsdp2", "megatron"), top=6)


@pytest.mark.slow
def test_the_first_is_as_fast_as_any_plan_that_fits(tiny):
    fastest = []
    for engine in ("fsdp2", "megatron"):
        found = account_plan_grid(space_of(TINY, FOUR, {**ASKED, "engine": engine}))
        for one in found.graded:
            rows = np.flatnonzero(result_masks(one, found.space)[Result.FITS]).tolist()
            doubt = 1 + HOST_DOUBT * plan_offloads(one.stratum.request)
            fastest += [float(quick_s(TINY, one.stratum.plan_of(row), FOUR)) * doubt for row in rows]
    assert min(fastest) <= tiny.plans[0].seconds <= min(fastest) * (1 + APART) * (1 + 1e-9)
    assert len(fastest) == tiny.looked_at[Result.FITS]


def test_every_plan_shown_fits_and_is_what_it_is_when_asked_by_itself(tiny):
    assert 3 <= len(tiny.plans) <= 6  # of six some are beaten once their steps are played
    for planned in tiny.plans:
        again = planned_of(TINY, FOUR, planned.request)
        assert again.verdict == planned.verdict
        assert planned.verdict.result is Result.FITS


def test_families_hold_every_legal_plan_once(tiny):
    assert sum(family.plans for family in tiny.families) == tiny.legal
    assert sum(family.fit for family in tiny.families) == tiny.looked_at[Result.FITS]
    for family in tiny.families:
        assert bool(family.slower) == (
            family.seconds is not None and family.seconds > tiny.plans[0].seconds * (1 + APART)
        )
    assert all((family.seconds is None) == (family.fit == 0) for family in tiny.families)


def test_the_front_trades_memory_for_time(tiny):
    times, sizes = [point.seconds for point in tiny.front], [point.device_bytes for point in tiny.front]
    assert times == sorted(times)
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)


def test_of_equals_the_simplest_comes_first():
    counts = {"tp": 1, "cp": 1, "ep": 1, "dp_replicate": 1, "dp_shard": 4}
    plain = {"optimizer.name": "adamw", "recompute.mode": "none", "loss": "plain", "zero": 2}
    worse = [
        {"offload.optimizer": 1},
        {"optimizer.name": "adamw_8bit"},
        {"mesh.pp": 2},
        {"recompute.mode": "full"},
        {"loss": "fused"},
        {"zero": 3},
    ]
    efforts = [plan_effort_key({**plain, **change}, counts) for change in worse]
    assert efforts == sorted(efforts, reverse=True)
    assert all(each > plan_effort_key(plain, counts) for each in efforts)


def test_where_nothing_fits_the_plan_that_needs_least_is_told():
    large = read_model("llama-3-70b", catalog=catalog_entry, names=model_names())
    found = rank_training_plans(
        large,
        cluster_of(find_device("RTX4090"), 1),
        {"seq_len": 2048, "global_batch": 1},
        ("transformers",),
        top=3,
    )
    assert found.plans == ()
    assert found.least is not None
    assert found.least.verdict.result is Result.DOES_NOT_FIT
    assert all(family.missing_bytes > 0 for family in found.families)


def test_an_engine_that_cannot_be_asked_is_a_note_beside_others_and_an_error_alone():
    beside = rank_training_plans(TINY, FOUR, ASKED, ("internevo", "fsdp2"), top=1)
    assert beside.plans
    with pytest.raises(InputError):
        rank_training_plans(TINY, FOUR, {"seq_len": 512}, ("fsdp2",), top=1)


@pytest.mark.slow
def test_a_card_whose_rate_nobody_knows_is_still_searched(capsys, monkeypatch):
    def unknown(*_, **__):
        raise input_error("gpus", "a card", "has no known rate of arithmetic")

    monkeypatch.setattr("memsheet.search.train.timed.quick_s", unknown)
    monkeypatch.setattr("memsheet.search.train.timed.step_time", unknown)
    asked = [
        "plan",
        "train",
        "llama-tiny",
        "--gpus",
        "4xA100-80GB",
        "--seq-len",
        "512",
        "--global-batch",
        "8",
        "--engine",
        "fsdp2",
    ]
    assert main(asked) == 0
    assert "inf" not in (text := capsys.readouterr().out)
    assert "not timed" in text
    assert text.startswith("SIMPLEST PLAN")
    assert main([*asked, "--json"]) == 0
    assert "Infinity" not in capsys.readouterr().out


@pytest.mark.parametrize("size", [3.0, 4.0, 8.0, 80.0])
def test_where_no_step_is_timed_the_plan_that_asks_least_comes_first(size):
    """Whatever fits: never a plan on the host's memory, or of another optimizer, beside one without."""
    device = find_device("A10G")  # its rates are on no datasheet that was read
    bytes_of_card = int(size * 2**30)
    card = replace(
        device,
        framework_bytes=bytes_of_card,
        framework_low_bytes=bytes_of_card,
        framework_high_bytes=bytes_of_card,
    )
    cluster = cluster_of(card, 4)
    searched = search_engines(TINY, cluster, ASKED, ("fsdp2", "deepspeed"), lambda _: None)
    found = rank_training_plans(TINY, cluster, ASKED, (), top=5, searched=searched)
    efforts = [
        (plan_effort_key({**one.stratum.request, "engine": one.engine}, one.counts(row)), one, row)
        for one in searched.timed
        for row in map(int, one.fit)
    ]
    assert efforts, "a card on which nothing fits tests nothing"
    assert all(planned.time is None and planned.untimed_reason for planned in found.plans)
    shown = [
        plan_effort_key(planned.request, {axis: planned.request[f"mesh.{axis}"] for axis in COUNTED})
        for planned in found.plans
    ]
    assert shown == sorted(shown)
    sizes = [planned.verdict.device.value for planned in found.plans]
    assert sizes == sorted(set(sizes), reverse=True)
    for effort, one, row in efforts:  # what asks less than the first one does not fit once its step is played
        if effort < shown[0]:
            assert one.planned(cluster, row).verdict.result is not Result.FITS


def test_the_command_that_is_shown_asks_for_that_plan(tiny, capsys):
    for planned in tiny.plans[:2]:
        assert main([*plan_command(tiny, planned).split()[1:], "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["verdict"]["result"] == "fits"
        assert shown["plan"]["mesh"] == {
            axis: int(getattr(planned.plan.mesh, axis)) for axis in shown["plan"]["mesh"]
        }


def test_the_command_line(capsys):
    asked = {"--gpus": "4xA100-80GB", "--seq-len": "512", "--global-batch": "8", "--engine": "fsdp2"}

    def planned(*more, **changed):
        flags = {**asked, **{f"--{key.replace('_', '-')}": value for key, value in changed.items()}}
        return main(
            ["plan", "train", "llama-tiny", *(word for pair in flags.items() for word in pair), *more]
        )

    assert planned("--top", "2", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["plans"]) == 2
    assert planned("--method", "nonsense") == 2
    for wrong in (
        {"zero": "4"},
        {"global_batch": "-1"},
        {"global_batch": "0"},
        {"engine": "vllm"},
        {"tp": "3"},
    ):
        assert planned(**wrong) == 2, wrong
        assert "twice" not in capsys.readouterr().err
    assert main(["plan", "guess", "llama-tiny", "--gpus", "4xA100-80GB"]) == 2


def test_adapters_are_planned_for_engines_that_have_them() -> None:
    asked: dict[str, Any] = {
        "gpus": "8xA100-80GB",
        "seq_len": 4096,
        "global_batch": 64,
        "method": "lora",
        "top": 3,
    }
    found = memsheet.plan("qwen2.5-7b", **asked)
    assert {one.plan.engine for one in found.ranking.plans}.isdisjoint({"megatron"})
    assert any("Megatron-Bridge" in note for note in found.ranking.notes)
    assert memsheet.plan("qwen2.5-7b", **asked, engine="megatron").ranking.plans[0].plan.engine == "megatron"


def test_an_engine_whose_sharding_divides_nothing_is_no_better_than_none() -> None:
    asked: dict[str, Any] = {"gpus": "1xRTX3090", "seq_len": 2048, "global_batch": 16, "method": "qlora"}
    best = memsheet.plan("llama-3.1-8b", **asked).ranking.plans[0]
    assert best.plan.engine == "transformers"
    assert best.plan.optimizer is not None
    assert best.plan.optimizer.name.value == "adamw"
