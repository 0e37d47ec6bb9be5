"""The change that would make a job fit: accounted again, cheapest first, nothing in the list that is not
needed.
"""

from __future__ import annotations

from typing import Any

import pytest

import memsheet
from memsheet.budget import Fix, Result
from memsheet.catalog import find_device
from memsheet.errors import InputError

KEYS = {
    "recompute.mode": "recompute",
    "adapter.rank": "lora_rank",
    "optimizer.name": "optimizer",
    "quantization.weights": "quantize",
}


def asked(model: str, gpus: str, **options: Any) -> memsheet.Answer:
    return memsheet.train(model, gpus=gpus, **{"seq_len": 2048, **options})


def fix_of(answer: memsheet.Answer) -> Fix:
    assert answer.verdict is not None
    assert answer.verdict.cheapest_fix is not None
    return answer.verdict.cheapest_fix


def test_a_job_that_fits_needs_nothing() -> None:
    answer = asked("llama-3.2-1b", "1xA100-80GB")
    assert answer.verdict is not None
    assert answer.verdict.result is Result.FITS
    assert answer.verdict.cheapest_fix is None


@pytest.mark.parametrize(
    ("model", "gpus", "options"),
    [
        ("llama-3.2-1b", "1xA100-40GB", {"microbatch": 8}),
        ("llama-3-8b", "8xA100-40GB", {"microbatch": 2}),
        ("llama-3-8b", "1xA100-80GB", {}),
        ("llama-3-70b", "8xA100-80GB", {"microbatch": 4}),
    ],
)
def test_what_is_proposed_fits_when_it_is_accounted_again(
    model: str, gpus: str, options: dict[str, Any]
) -> None:
    answer = asked(model, gpus, **options)
    found = fix_of(answer)
    assert found.changes
    device = find_device(gpus.split("x", 1)[1])
    assert found.device.high <= device.framework_low_bytes
    assert len({change.key for change in found.changes}) == len(found.changes)
    assert all(change.words and change.before != change.after for change in found.changes)


def test_a_change_of_the_plan_can_be_asked_for_by_hand_and_says_the_same() -> None:
    """One plain change: the device bytes of the fix are those of the job that has it."""
    answer = asked("llama-3.2-1b", "1xA100-40GB", microbatch=8)
    found = fix_of(answer)
    options: dict[str, Any] = {"microbatch": 8}
    for change in found.changes:
        options[KEYS.get(change.key, change.key)] = change.after
        if change.key == "microbatch":
            options["global_batch"] = 8
    again = asked("llama-3.2-1b", "1xA100-40GB", **options)
    assert again.verdict is not None
    assert again.verdict.result is Result.FITS
    assert again.verdict.device == found.device


def test_free_changes_come_before_dear_ones() -> None:
    """What costs another kind of training is never proposed where time alone would do."""
    found = fix_of(asked("llama-3.2-1b", "1xA100-40GB", microbatch=8))
    assert {change.key for change in found.changes} <= {
        "loss",
        "recompute.mode",
        "microbatch",
        "zero",
        "engine",
    }


def test_no_change_of_a_list_can_be_left_out() -> None:
    found = fix_of(asked("llama-3-70b", "8xA100-80GB", microbatch=4))
    assert {change.key for change in found.changes} == {"recompute.mode", "offload.optimizer"}
    every = {"recompute": "full", "offload": "optimizer,parameters"}
    whole = asked("llama-3-70b", "8xA100-80GB", microbatch=4, **every)
    assert whole.verdict is not None
    assert whole.verdict.device == found.device
    for left_out in every:
        rest = asked(
            "llama-3-70b",
            "8xA100-80GB",
            microbatch=4,
            fix=False,
            **{key: value for key, value in every.items() if key != left_out},
        )
        assert rest.verdict is not None
        assert rest.verdict.result is not Result.FITS


@pytest.mark.slow
def test_host_memory_that_a_fix_needs_must_be_there() -> None:
    rich = fix_of(asked("llama-3-70b", "8xA100-80GB", microbatch=4, host_memory="4TB"))
    poor = asked("llama-3-70b", "8xA100-80GB", microbatch=4, host_memory="64GB")
    assert poor.verdict is not None
    assert rich.host_bytes * 8 <= 4 * 10**12
    found = poor.verdict.cheapest_fix
    assert found is None or found.host_bytes * 8 <= 64 * 10**9


def test_nothing_is_looked_for_when_nobody_asks() -> None:
    answer = asked("llama-3-70b", "8xA100-80GB", microbatch=4, fix=False)
    assert answer.verdict is not None
    assert answer.verdict.result is Result.DOES_NOT_FIT
    assert answer.verdict.cheapest_fix is None


def test_a_question_with_a_mistake_is_refused_before_any_fix() -> None:
    with pytest.raises(InputError):
        asked("llama-3-70b", "8xA100-80GB", microbatch=-4)


@pytest.mark.parametrize(
    ("options", "edits"),
    [
        ({"seq_len": 32768, "global_batch": 8}, {"recompute": "full", "cuda_graphs": False}),
        ({"seq_len": 4096, "global_batch": 512}, {"cuda_graphs": False}),
    ],
)
def test_graphs_are_given_up_where_they_take_the_room_or_forbid_a_change(
    options: dict[str, Any], edits: dict[str, Any]
) -> None:
    job = {"engine": "megatron", "tp": 2, "sequence_parallel": True, **options}
    found = fix_of(asked("llama-3.1-8b", "8xH100-80GB", cuda_graphs=["transformer_engine", "attn"], **job))
    (change,) = found.changes
    assert {
        KEYS.get(key, key): after for key, _, after in ((change.key, "", change.after), *change.also)
    } == edits
    again = asked("llama-3.1-8b", "8xH100-80GB", **job, **edits).verdict
    assert again is not None
    assert (again.result, again.device) == (Result.FITS, found.device)


def test_no_step_of_a_list_raises_the_need_and_a_layout_of_the_same_cards_comes_before_more() -> None:
    """Ranks that share a layer are as many as a node has before anybody is asked for more nodes."""
    answer = asked("llama-3.1-70b", "32xH100-80GB", engine="megatron", tp=4, pp=2, seq_len=8192, microbatch=2)
    found = fix_of(answer)
    assert all(change.after_bytes < change.before_bytes for change in found.changes)
    keys = {change.key: change for change in found.changes}
    assert "gpus" not in keys
    assert (keys["mesh.tp"].before, keys["mesh.tp"].after) == (4, 8)
