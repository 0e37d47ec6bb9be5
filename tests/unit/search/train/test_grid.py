"""The search's arrays: each row is a plan that ``resolve`` makes and ``account`` accounts, none is missing,
and it fits as ``judge`` says.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from memsheet import catalog
from memsheet.account import account_rank
from memsheet.budget import Result, budget_of, host_shortage, judge_sheets
from memsheet.errors import InputError
from memsheet.formulas.alike_rows import PlanCode, plan_code
from memsheet.formulas.layers_of_plan import plan_of_layers
from memsheet.plan.device import Cluster, cluster_of
from memsheet.plan.hardware import unsupported_choices
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request
from memsheet.search.train import grid as searching
from memsheet.search.train.grid import (
    SAFE_BYTES,
    Grid,
    account_plan_grid,
    account_plan_grids,
    legal_plans,
    one_plan,
    result_masks,
    stratum_of_piece,
)
from memsheet.search.train.lattice import Tally, legal_count_rows
from memsheet.search.train.space import Space, divisors, space_of
from memsheet.sheet import Instant
from slow_cases import first_quick

PINS: dict[str, dict[str, tuple[Any, ...]]] = {
    "megatron": {
        "zero": (0, 1),
        "recompute.mode": ("none", "selective", "full"),
        "loss": ("fused", "plain"),
        "mesh.pp": (1, 2, 4),
    },
    "fsdp2": {
        "zero": (2, 3),
        "recompute.mode": ("none", "full"),
        "loss": ("plain", "fused"),
        "optimizer.name": ("adamw", "adamw_8bit"),
    },
    "deepspeed": {"zero": (0, 1, 2, 3), "recompute.mode": ("none", "full"), "loss": ("plain", "fused")},
    "transformers": {
        "recompute.mode": ("none", "full"),
        "loss": ("plain", "fused"),
        "optimizer.name": ("adamw", "adamw_8bit"),
    },
}
"""What a problem may pin, so that all plans of it can be tried one by one."""
CARDS = ("A100-40GB", "H100-80GB")


@cache
def model(name: str = "llama-tiny") -> ModelSpec:
    return read_model(name, catalog=catalog.find_model, names=catalog.model_names())


def cluster(count: int, card: str = "H100-80GB") -> Cluster:
    return cluster_of(catalog.find_device(card), count, nodes=1)


def problem(seed: int) -> Space:
    """A small problem: few cards, some choices pinned, a card that is nearly full so that all verdicts come
    up.
    """
    draw = random.Random(seed)
    engine = draw.choice(("megatron", "megatron", "fsdp2", "deepspeed", "transformers"))
    request: dict[str, Any] = {
        "engine": engine,
        "seq_len": draw.choice((64, 100)),
        "global_batch": draw.choice((4, 6, 8)),
    }
    request |= {
        key: draw.choice(values)
        for key, values in PINS[engine].items()
        if key == "loss" or draw.random() < 0.85
    }
    if request.get("mesh.pp") == 4:
        request["global_batch"] = 8
    count = (
        draw.choice((1, 2, 4, 8))
        if engine != "megatron"
        else max(request.get("mesh.pp", 1), draw.choice((2, 4)))
    )
    machines = cluster(count, draw.choice(CARDS))
    full = draw.choice((360_000_000, 1_300_000_000, 2_700_000_000, 4_300_000_000))
    device = replace(
        machines.device,
        framework_bytes=full,
        framework_low_bytes=full - 10_000_000,
        framework_high_bytes=full,
    )
    return space_of(model(), replace(machines, device=device), request, every=draw.random() < 0.2)


def tried(space: Space) -> Iterator[Plan]:
    """Every plan that ``resolve`` and ``account`` take, found by trying all."""
    degrees, batch = divisors(space.cluster.count), divisors(int(space.request["global_batch"]))
    axes = [
        degrees if axis in space.engine.axes else (1,) for axis in ("dp_replicate", "dp_shard", "cp", "tp")
    ]
    for pipeline, choice, mesh, micro in product(space.pipelines, space.choices, product(*axes), batch):
        if np.prod(mesh) * pipeline["mesh.pp"] != space.cluster.count:
            continue
        if space.plain_replicas and choice["zero"] == 0 and mesh[0] != space.cluster.count:
            continue  # stage 1 takes its place
        if (
            space.plain_replicas
            and choice["zero"]
            and space.cluster.count == 1
            and not choice.get("offload.optimizer")
        ):
            continue  # stage 0 is the same
        named = dict(zip(("mesh.dp_replicate", "mesh.dp_shard", "mesh.cp", "mesh.tp"), mesh, strict=True))
        request = {**space.request, **choice, **pipeline, **named, "microbatch": micro}
        if mesh[2] == 1:
            request.pop("context_parallel_comm", None)
        if mesh[3] == 1:
            request.pop("sequence_parallel", None)
        try:
            plan = resolve_request(request, space.model, space.cluster).plan
            if (
                list(unsupported_choices(plan, space.cluster))
                or plan.last_microbatch != plan.training.microbatch
            ):
                continue
            for stage in range(plan.mesh.pp):
                account_rank(space.model, plan, space.cluster, stage)
        except InputError:
            continue
        yield plan


@cache
def searched(seed: int) -> Grid:
    return account_plan_grid(problem(seed))


def planned(found: Grid) -> list[Plan]:
    return [one.stratum.plan_of(row) for one in found.graded for row in range(len(one))]


@pytest.mark.parametrize("block", first_quick(range(10), 3))
def test_rows_are_plans_and_no_plan_is_missing(block: int) -> None:
    for seed in range(10 * block, 10 * block + 10):
        found = searched(seed)
        space, plans = found.space, planned(found)
        assert len(set(plans)) == len(plans)
        assert set(plans) == {one_plan(one.stratum, row) for one in found.graded for row in range(len(one))}
        assert set(plans) == set(tried(space)), f"seed {seed}: {dict(space.request)}"


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_bytes_and_verdicts_are_those_of_one_plan(block: int) -> None:
    for seed in range(10 * block, 10 * block + 10):
        compare(searched(seed))


def compare(found: Grid) -> None:
    """Every row beside the account of its plan."""
    space = found.space
    for one in found.graded:
        masks = result_masks(one, space)
        for row in range(len(one)):
            plan = one_plan(one.stratum, row)
            sheets = tuple(
                account_rank(space.model, plan, space.cluster, stage) for stage in range(plan.mesh.pp)
            )
            for end in ("low", "value", "high"):
                assert getattr(one.device, end)[row] == max(getattr(sheet.device, end) for sheet in sheets), (
                    end,
                    plan,
                )
            verdict = judge_sheets(sheets, budget_of(space.cluster)).result
            if host_shortage(sheets, space.cluster):
                verdict = Result.DOES_NOT_FIT
            assert [result for result, mask in masks.items() if mask[row]] == [verdict]
            for stage, size in one.stages.items():
                assert size.value[row] == sheets[stage].device.value


@pytest.mark.parametrize("pipeline", [{"mesh.pp": 1}, {"mesh.pp": 2, "mesh.vpp": 2}])
def test_experts(pipeline: dict[str, int]) -> None:
    request = {
        "engine": "megatron",
        "seq_len": 512,
        "global_batch": 8,
        "zero": 1,
        "recompute.mode": "none",
        "loss": "fused",
        "mesh.cp": 1,
    }
    found = account_plan_grid(
        space_of(model("granite-3.1-1b-a400m"), cluster(8), {**request, **pipeline, "microbatch": 1})
    )
    assert found.plans > 20
    assert {one.stratum.plan_of(row) for one in found.graded for row in range(len(one))} == {
        one_plan(one.stratum, row) for one in found.graded for row in range(len(one))
    }
    compare(found)


def sample(found: Grid, number: int, seed: int = 0) -> None:
    """Some rows beside the account of their plans."""
    space, every = found.space, [(one, row) for one in found.graded for row in range(len(one))]
    for one, row in random.Random(seed).sample(every, number):
        plan = one_plan(one.stratum, row)
        sheets = [account_rank(space.model, plan, space.cluster, stage) for stage in sorted(one.stages)]
        for end in ("low", "value", "high"):
            sizes = [getattr(sheet.device, end) for sheet in sheets]
            assert [int(getattr(one.stages[sheet.stage], end)[row]) for sheet in sheets] == sizes, (end, plan)
            assert getattr(one.device, end)[row] == max(sizes)


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
def test_pipelines_are_accounted_together(mode: str) -> None:
    """Numbers of layers, stages and chunks as arrays."""
    asked = {
        "engine": "megatron",
        "seq_len": 2048,
        "global_batch": 64,
        "zero": 1,
        "recompute.mode": mode,
        "mesh.cp": 1,
    }
    found = account_plan_grid(space_of(model("llama-3.1-70b"), cluster(64), {**asked, "microbatch": 1}))
    assert {(one.stratum.plan.mesh.pp, one.stratum.plan.mesh.vpp) for one in found.graded} >= {
        (1, 1),
        (2, 1),
        (8, 1),
        (2, 4),
        (4, 2),
        (8, 2),
        (8, 5),
    }
    sample(found, 40)


def test_uneven_pipelines_of_unlike_layers_are_accounted_together() -> None:
    asked = {
        "engine": "megatron",
        "seq_len": 1024,
        "global_batch": 256,
        "zero": 1,
        "recompute.mode": "none",
        "mesh.cp": 1,
        "mesh.tp": 1,
    }
    found = account_plan_grid(space_of(model("deepseek-v3"), cluster(64), {**asked, "microbatch": 1}))
    assert len({one.stratum.plan.mesh.pp for one in found.graded}) > 3
    sample(found, 12)


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 1])
def test_plans_told_by_fewer(zero: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What divides the states, worked out by itself."""
    monkeypatch.setattr(searching, "MANY", 1)
    asked = {
        "engine": "megatron",
        "seq_len": 512,
        "global_batch": 32,
        "zero": zero,
        "recompute.mode": "none",
        "mesh.cp": 1,
    }
    many = account_plan_grid(space_of(model("granite-3.1-1b-a400m"), cluster(8), asked))
    assert len(many.graded) > 20
    sample(many, 60)
    monkeypatch.setattr(searching, "CHUNK", 3)
    assert account_plan_grid(many.space).counts() == many.counts()


def bytes_of_requests(found: Grid) -> dict[str, tuple[int, ...]]:
    """What each plan holds, by what would be asked to get it."""
    return {
        str(sorted(one.stratum.request_of(row).items(), key=str)): (
            *(int(np.asarray(getattr(one.device, end))[row]) for end in ("low", "value", "high")),
            int(one.host_bytes[row]),
        )
        for one in found.graded
        for row in range(len(one))
    }


def at_batches(space: Space, batches: tuple[int, ...]) -> list[Space]:
    return [replace(space, request={**space.request, "global_batch": batch}) for batch in batches]


@pytest.mark.parametrize("seed", first_quick(range(12), 4))
def test_global_batches_searched_together_are_those_searched_alone(seed: int) -> None:
    spaces = at_batches(problem(seed), (8, 16, 64))
    for together, space in zip(account_plan_grids(spaces), spaces, strict=True):
        alone = account_plan_grid(space)
        assert together.plans
        assert bytes_of_requests(together) == bytes_of_requests(alone)
        assert together.refused == alone.refused


@pytest.mark.parametrize("engine", ["deepspeed", "fsdp2"])
def test_one_process_makes_the_layers_that_plans_share(engine: str) -> None:
    """Every batch is in one task, and of those of as many plans the ones that have the same layers are in the
    same.
    """
    space = space_of(model(), cluster(8), {"engine": engine, "seq_len": 512, "global_batch": 16})
    pieces = dict(enumerate(legal_plans([space]).pieces))
    tasks = list(searching._batches_a_task(pieces))
    assert sorted(number for task in tasks for batch in task for number in batch) == list(pieces)
    makers: dict[tuple[PlanCode, ...], set[int]] = {}
    for maker, task in enumerate(tasks):
        for batch in task:
            plans = (plan_of_layers(stratum_of_piece(pieces[number]).plan) for number in batch)
            makers.setdefault(tuple(map(plan_code, plans)), set()).add(maker)
    assert all(len(own) == 1 for own in makers.values())
    assert len(makers) < len(pieces) / 2


@pytest.mark.parametrize("pipeline", [{"mesh.pp": 2}, {"mesh.pp": 4, "mesh.vpp": 3}])
def test_a_full_pipeline_stands_for_longer_ones(
    pipeline: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans told by fewer, among them those of which a smaller batch fills the pipeline as well."""
    pinned = {"engine": "megatron", "seq_len": 512, "recompute.mode": "none", "mesh.cp": 1, "mesh.tp": 1}
    asked = {**pinned, **pipeline, "zero": 1, "microbatch": 1, "global_batch": 32}
    space = space_of(model("granite-3.1-1b-a400m"), cluster(8), asked)
    spaces = at_batches(space, (8, 32, 512))
    alone = [account_plan_grid(one) for one in spaces]
    monkeypatch.setattr(searching, "MANY", 1)
    for told, found in zip(account_plan_grids(spaces), alone, strict=True):
        assert told.plans
        assert bytes_of_requests(told) == bytes_of_requests(found)


@pytest.mark.parametrize("mesh", [{"pp": 2, "ep": 2}, {"tp": 2, "ep": 2, "etp": 2}])
def test_experts_are_divided_over_the_ranks_there_are(mesh: dict[str, int]) -> None:
    asked = {
        "task": "train",
        "engine": "megatron",
        "seq_len": 64,
        **{f"mesh.{axis}": degree for axis, degree in mesh.items()},
    }
    with pytest.raises(InputError, match=r"times etp \d+ does not divide"):
        resolve_request(asked, model("granite-3.1-1b-a400m"), cluster(2))


def test_all_verdicts_come_up() -> None:
    counts = sum((searched(seed).counts() for seed in range(40)), start=searched(0).counts())
    assert all(counts[result] > 0 for result in Result)


def test_what_does_not_divide_is_counted_not_lost() -> None:
    space = space_of(
        model(), cluster(8), {"engine": "megatron", "seq_len": 64, "global_batch": 8, "mesh.pp": 1, "zero": 1}
    )
    tally = Tally()
    rows = legal_count_rows(space, space.pipelines[0], tally)
    every = 4**3 * 4  # degrees of tp, cp and dp_shard, and micro-batches
    assert len(rows["tp"]) + sum(tally.refused.values()) == every
    assert all("divide" in reason for reason in tally.refused)


def test_a_batch_or_length_is_needed() -> None:
    with pytest.raises(InputError, match="global_batch"):
        space_of(model(), cluster(2), {"engine": "fsdp2", "seq_len": 64})


def test_more_than_int64_counts_is_refused() -> None:
    space = space_of(
        model("llama-3.1-70b"),
        cluster(8),
        {"engine": "fsdp2", "seq_len": 2**20, "global_batch": 2**23, "microbatch": 2**20},
    )
    with pytest.raises(OverflowError, match=str(SAFE_BYTES)):
        account_plan_grid(space)


def test_layers_that_no_stages_divide_are_dealt_out() -> None:
    request = {
        "engine": "megatron",
        "seq_len": 512,
        "global_batch": 64,
        "recompute.mode": "full",
        "mesh.tp": 1,
        "mesh.ep": 8,
        "mesh.etp": 1,
    }
    found = account_plan_grid(
        space_of(
            model("deepseek-v3"),
            cluster(64),
            {**request, "mesh.pp": 8, "mesh.vpp": 1, "mesh.cp": 1, "microbatch": 1},
        )
    )
    assert found.plans
    assert {plan.layers_per_stage for plan in planned(found)} == {(7, 8, 8, 8, 8, 8, 7, 7)}
    compare(found)


def interleaved(**more: Any) -> Plan:
    request = {
        "task": "train",
        "engine": "megatron",
        "seq_len": 64,
        "mesh.pp": 2,
        "mesh.vpp": 2,
        "schedule": "interleaved",
        **more,
    }
    return resolve_request(request, model(), cluster(2)).plan


def test_as_many_microbatches_as_stages_still_run_backward() -> None:
    """All forwards of the first stage are warming up then."""
    for stage in (0, 1):
        assert (
            Instant.BACKWARD in account_rank(model(), interleaved(global_batch=2), cluster(2), stage).instants
        )


def test_chunks_take_turns_in_whole_groups() -> None:
    with pytest.raises(InputError, match="no multiple of 2 stages"):
        account_rank(model(), interleaved(global_batch=3), cluster(2))


def test_pinned_options_stay() -> None:
    request = {
        "engine": "megatron",
        "seq_len": 64,
        "global_batch": 8,
        "mesh.tp": 2,
        "zero": 1,
        "recompute.mode": "full",
        "microbatch": 2,
    }
    found = account_plan_grid(space_of(model(), cluster(4), request))
    plans = planned(found)
    assert plans
    assert {(p.mesh.tp, p.zero, p.recompute.mode.value, p.training.microbatch) for p in plans} == {
        (2, 1, "full", 2)
    }
