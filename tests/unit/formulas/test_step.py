"""A step's moments, put together by hand."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet import catalog
from memsheet.account import account_rank
from memsheet.formulas import layers_of_plan, pipeline, step
from memsheet.formulas.sharding import partitioned_flow
from memsheet.formulas.sharding.states_of_plan import RecentStates
from memsheet.formulas.step import _pad_with_last
from memsheet.plan.device import cluster_of
from memsheet.plan.plan import Plan
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request
from memsheet.sheet import Sheet

MEGATRON: dict[str, Any] = {"engine": "megatron", "mesh.pp": 4, "global_batch": 32}
QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("llama-3-8b", {**MEGATRON, "microbatch": 1}),
    ("llama-3-8b", {**MEGATRON, "mesh.vpp": 2}),
    ("llama-3-8b", {**MEGATRON, "recompute.mode": "full", "loss": "fused"}),
    ("llama-3-8b", {"engine": "torchtitan", "mesh.pp": 4, "global_batch": 32}),
    ("llama-3-8b", {"engine": "deepspeed", "zero": 2, "global_batch": 16}),
    ("llama-3-8b", {"engine": "deepspeed", "zero": 2, "global_batch": 8}),
    ("llama-3-8b", {"engine": "deepspeed", "zero": 3}),
    ("mixtral-8x7b", {"engine": "megatron", "mesh.ep": 4, "mesh.pp": 2, "global_batch": 16}),
    ("mixtral-8x7b", {"engine": "megatron", "mesh.ep": 4, "mesh.pp": 2, "global_batch": 16, "moe.balanced": True}),
]  # fmt: skip


def sheets_of_stages(name: str, asked: dict[str, Any]) -> tuple[Sheet, ...]:
    spec = read_model(name, catalog=catalog.find_model)
    cluster = cluster_of(catalog.find_device("H100-80GB"), 8)
    plan: Plan = resolve_request({"task": "train", "seq_len": 1024, **asked}, spec, cluster).plan
    return tuple(account_rank(spec, plan, cluster, stage) for stage in range(plan.mesh.pp))


def test_what_is_kept_of_steps_before_changes_no_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    together = [sheets_of_stages(*one) for one in QUESTIONS]
    again = [sheets_of_stages(*one) for one in reversed(QUESTIONS)][::-1]
    alone = []
    for one in QUESTIONS:
        for module, name in (
            (step, "_recent_steps"), (step, "_recent_peaks"), (layers_of_plan, "_recent"), (pipeline, "_recent"),
            (partitioned_flow, "_recent"), (partitioned_flow, "_recent_places"),
        ):  # fmt: skip
            monkeypatch.setattr(module, name, ())
        monkeypatch.setattr(step, "_recent_states", RecentStates(16, 1 << 15))
        alone.append(sheets_of_stages(*one))
    assert together == again == alone


def test_a_question_at_many_lengths_keeps_no_more_than_one_at_few() -> None:
    for length in range(1024, 1024 + 64 * 40, 64):
        sheets_of_stages("llama-3-8b", {**MEGATRON, "seq_len": length})
    assert len(step._recent_peaks) <= step.MOST_PEAKS
    assert len(step._recent_steps) <= step.MOST_STEPS
    for _ in range(20):
        sheets_of_stages("llama-3-8b", MEGATRON)
    assert all(len(known.walks) <= layers_of_plan.MOST_WALKS for known in layers_of_plan._recent)


def test_a_plan_of_fewer_moments_has_its_last_one_again() -> None:
    assert _pad_with_last([(1, 2), (3, 4)], 4) == [(1, 2), (3, 4), (3, 4), (3, 4)]
    assert _pad_with_last([(1, 2), (3, 4)], 2) == [(1, 2), (3, 4)]
