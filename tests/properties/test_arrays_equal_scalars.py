"""One formula, many plans at once: arrays in a plan's counts give what each plan gives alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import (
    TRAINED,
    cluster,
    law,
    lengths,
    microbatches,
    model,
    plan_of,
    ranks,
    requests,
    with_counts,
)

from memsheet.account import account_rank
from memsheet.formulas.serving.kv_cache import cache_bytes
from memsheet.plan.dtypes import BF16
from memsheet.sheet import Sheet

Held = dict[tuple[str, str, str, str], Any]


ENDS = ("low", "value", "high")


def held(sheet: Sheet, ends: tuple[str, ...] = ENDS) -> Held:
    """Every number of a sheet by component, path, instant and end of its range, and the totals of
    instants.
    """
    found: Held = {}
    for item in sheet.items:
        for instant, size in item.at.items():
            for end in ends:
                found[item.component.value, item.path, instant.value, end] = getattr(size, end)
    for instant in sheet.instants:
        for end in ends:
            found["total", "allocated", instant.value, end] = getattr(sheet.at(instant), end)
        found["total", "device", instant.value, ends[-1]] = getattr(sheet.at(instant, without=()), ends[-1])
    return found


def compare(name: str, plan: Any, counts: dict[str, list[int]], ends: tuple[str, ...] = ENDS) -> None:
    spec, machines = model(name), cluster("H200-141GB", 8)
    arrays = {key: np.array(values, dtype=np.int64) for key, values in counts.items()}
    many = held(account_rank(spec, with_counts(plan, **arrays), machines), ends)
    for n in range(len(next(iter(counts.values())))):
        one = held(
            account_rank(
                spec, with_counts(plan, **{key: values[n] for key, values in counts.items()}), machines
            ),
            ends,
        )
        # an item that only some plans of the stratum have is there for all, with no bytes
        alone = {
            key: int(np.broadcast_to(many.get(key, 0), len(arrays[next(iter(arrays))]))[n])
            for key in {**many, **one}
        }
        assert alone == {key: one.get(key, 0) for key in alone}


@law(40)
@given(requests(), st.lists(st.tuples(microbatches, lengths, ranks, ranks), min_size=1, max_size=4))
def test_training(question: tuple[str, dict[str, Any]], rows: list[tuple[int, int, int, int]]) -> None:
    name, request = question
    request = {key: value for key, value in request.items() if key != "global_batch"} | {"loss": "plain"}
    columns = [list(column) for column in zip(*rows, strict=True)]
    counts = dict(zip(("microbatch", "seq_len", "dp_replicate", "dp_shard"), columns, strict=True))
    if request["engine"] == "transformers":
        counts["dp_shard"] = [1] * len(rows)
    compare(name, plan_of(name, request), counts)


@pytest.mark.parametrize("engine", ["transformers", "fsdp2"])
def test_gradient_accumulation(engine: str) -> None:
    """Strata share the choice whether to accumulate."""
    plan = plan_of("llama-tiny", {"task": "train", "engine": engine, "seq_len": 64, "global_batch": 960})
    compare("llama-tiny", plan, {"microbatch": [1, 2, 3], "seq_len": [8, 64, 65]})


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize(
    "more", [{}, {"recompute.mode": "full"}, {"offload.optimizer": 1}], ids=["plain", "recompute", "offload"]
)
def test_deepspeed(zero: int, more: dict[str, Any]) -> None:
    """Values only: a bucket's copy that a plan does not have at its peak has no range there, one of a stratum
    keeps it.
    """
    if zero == 0 and "offload.optimizer" in more:
        return
    plan = plan_of(
        "llama-tiny", {"task": "train", "engine": "deepspeed", "zero": zero, "seq_len": 64, **more}
    )
    over = "dp_shard" if zero else "dp_replicate"
    compare(
        "llama-tiny",
        plan,
        {"microbatch": [1, 2, 3, 8], "seq_len": [8, 64, 65, 1000], over: [2, 3, 4, 64]},
        ends=("value",),
    )


def test_a_stratum_whose_plans_differ_in_a_choice_is_refused() -> None:
    plan = plan_of(
        "llama-tiny", {"task": "train", "engine": "transformers", "seq_len": 64, "global_batch": 4}
    )
    with pytest.raises(ValueError, match="differ in a choice"):
        account_rank(model("llama-tiny"), with_counts(plan, microbatch=np.array([1, 4])))


@pytest.mark.parametrize("name", ["llama-3.2-1b", "mistral-7b", "gemma-3-1b"])
def test_serving(name: str) -> None:
    plan = plan_of(name, {"task": "infer", "serving.max_model_len": 4096})
    compare(name, plan, {"max_model_len": [16, 400, 510, 511], "max_sequences": [1, 3, 2, 64]})


def test_serving_beyond_windows() -> None:
    """Caches of windowed layers stop growing one plan at a time."""
    spec, lengths_ = model("gemma-3-1b"), np.array([100, 512, 513, 30000], dtype=np.int64)
    many = cache_bytes(spec, BF16, lengths_, 3)
    for n, length in enumerate(lengths_.tolist()):
        assert {path: int(size[n]) for path, size in many.items()} == cache_bytes(spec, BF16, length, 3)


def test_serving_over_tensor_parallel_ranks() -> None:
    plan = plan_of("llama-3.2-1b", {"task": "infer", "serving.max_model_len": 4096})
    compare(
        "llama-3.2-1b", plan, {"max_model_len": [16, 600, 5000], "max_sequences": [1, 3, 2], "tp": [1, 8, 32]}
    )


def test_inside_a_sliding_window() -> None:
    compare(
        "mistral-7b",
        plan_of("mistral-7b", {"task": "train", "engine": "fsdp2", "seq_len": 128}),
        {"seq_len": [128, 4094, 4095]},
    )


def test_beyond_a_sliding_window() -> None:
    """Each layer takes a mask there; a stratum lies on one side of where the window is filled."""
    compare(
        "mistral-7b",
        plan_of("mistral-7b", {"task": "train", "engine": "fsdp2", "seq_len": 128}),
        {"seq_len": [4096, 9000]},
    )


def test_fused_loss() -> None:
    compare(
        "llama-tiny",
        plan_of("llama-tiny", {"task": "train", "seq_len": 128, "loss": "fused"}),
        {"seq_len": [100, 130, 2049]},
    )


@pytest.mark.slow
@law(200)
@given(st.sampled_from(TRAINED), st.lists(st.tuples(microbatches, lengths, ranks), min_size=8, max_size=8))
def test_training_at_length(name: str, rows: list[tuple[int, int, int]]) -> None:
    counts = dict(
        zip(
            ("microbatch", "seq_len", "dp_shard"),
            ([*column] for column in zip(*rows, strict=True)),
            strict=True,
        )
    )
    compare(name, plan_of(name, {"task": "train", "engine": "fsdp2", "seq_len": 8}), counts)
