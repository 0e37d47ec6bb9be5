"""What a sheet is said to add up to without its items is what its items add up to."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from memsheet.account import account_rank, step_peak_bytes
from memsheet.catalog import find_device, model_names
from memsheet.frozen import replace
from memsheet.plan.device import Cluster, cluster_of
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan, Spread
from memsheet.questions.question_parts import catalog_entry
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request
from memsheet.sheet import Component

ASKED: list[tuple[str, int, dict[str, Any]]] = [
    ("llama-3.2-1b", 1, {}),
    ("gemma-3-1b", 8, {"engine": "fsdp2", "recompute.mode": "full"}),
    ("llama-3.2-1b", 8, {"engine": "deepspeed", "zero": 2}),  # whose flushes are a range
    ("llama-3.2-1b", 8, {"engine": "deepspeed", "zero": 3, "offload.parameters": 1.0}),
    ("qwen3-30b-a3b", 16, {"engine": "megatron", "mesh.pp": 2, "mesh.ep": 8, "global_batch": 64}),  # routed
    ("mixtral-8x7b", 8, {"engine": "megatron", "mesh.ep": 8, "moe.balanced": True}),
]


def asked_plan(name: str, gpus: int, asked: dict[str, Any]) -> tuple[ModelSpec, Plan, Cluster]:
    model = read_model(name, catalog=catalog_entry, names=model_names())
    cluster = cluster_of(find_device("H100-80GB"), gpus)
    return model, resolve_request({"task": "train", "seq_len": 1024, **asked}, model, cluster).plan, cluster


@pytest.mark.parametrize(("name", "gpus", "asked"), ASKED)
def test_items_that_nobody_has_read_add_up_as_they_do_when_read(
    name: str, gpus: int, asked: dict[str, Any]
) -> None:
    model, plan, cluster = asked_plan(name, gpus, asked)
    for stage in range(plan.mesh.pp):
        sheet = account_rank(model, plan, cluster, stage)
        told = {instant: dict(row) for instant, row in sheet.sums().items()}
        read = replace(sheet, items=tuple(sheet.items))
        assert told == read.sums()
        assert list(told) == list(read.sums())
        assert (sheet.device, sheet.reserved, sheet.allocated) == (read.device, read.reserved, read.allocated)
        assert sheet == read
        assert read == sheet
        for again in (pickle.loads(pickle.dumps(sheet)), copy.copy(sheet), replace(sheet, notes=())):
            assert again.items == read.items
            assert again.sums() == told


@pytest.mark.parametrize(("name", "gpus", "asked"), ASKED)
def test_a_steps_peaks_are_those_of_its_sheet(name: str, gpus: int, asked: dict[str, Any]) -> None:
    model, plan, cluster = asked_plan(name, gpus, asked)
    routings = [replace(plan.routing, spread=spread) for spread in Spread] if plan.routing else [None]
    for one in (replace(plan, routing=routing) for routing in routings):
        for stage in range(plan.mesh.pp):
            found = step_peak_bytes(model, one, cluster, stage)
            sheet = account_rank(model, one, cluster, stage)
            assert found.allocated == sheet.allocated.value
            assert found.reserved == sheet.reserved.value
            assert found.device == sheet.device.value


@pytest.mark.parametrize(("name", "gpus", "asked"), ASKED[:4])
def test_the_allocators_settings_change_no_tensor(name: str, gpus: int, asked: dict[str, Any]) -> None:
    model, plan, cluster = asked_plan(name, gpus, asked)
    found = [
        account_rank(model, replace(plan, expandable_segments=expandable), cluster).items
        for expandable in (False, True)
    ]
    slack = Component.ALLOCATOR_SLACK
    tensors, again = ([item for item in items if item.component is not slack] for items in found)
    assert tensors == again
    assert found[0] != found[1]
