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
from memsheet.report.shared.uncertain_fit import in_vain_words
from memsheet.search.fixes.candidates import CANDIDATES

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


FREE = [
    ("llama-3.1-70b", {"gpus": "64xH100-80GB", "engine": "megatron", "tp": 8, "pp": 4, "seq_len": 8192, "global_batch": 256}, {"sequence_parallel": True}),
    (
        "llama-3.1-8b",
        {"gpus": "8xH100-80GB", "engine": "megatron", "tp": 4, "zero": 0, "seq_len": 8192, "microbatch": 4, "global_batch": 64},
        {"sequence_parallel": True, "zero": 1},
    ),
    (
        "llama-3.1-70b",
        {
            "gpus": "32xH100-80GB", "engine": "fsdp2", "zero": 3, "seq_len": 8192, "global_batch": 128, "recompute": "full", "loss": "fused",
            "precision": "fsdp2-mixed", "gradient_sync": "last",
        },
        {"gradient_sync": "every"},
    ),
]  # fmt: skip
"""Jobs that fit once something is changed that costs neither time nor what is trained."""


@pytest.mark.parametrize(("model", "options", "edits"), FREE)
def test_what_costs_nothing_comes_before_what_costs_time(
    model: str, options: dict[str, Any], edits: dict[str, Any]
) -> None:
    found = fix_of(memsheet.train(model, **options))
    assert {change.key: change.after for change in found.changes} == edits
    again = memsheet.train(model, **{**options, **edits}).verdict
    assert again is not None
    assert (again.result, again.device) == (Result.FITS, found.device)


def test_fewer_activations_at_a_time_keep_no_whole_gradients() -> None:
    """Half a micro-batch is two of them: gradients that wait whole for the second would need more."""
    found = fix_of(
        asked("llama-3.1-8b", "8xA100-40GB", engine="fsdp2", zero=3, microbatch=32, recompute="full", loss="fused", seq_len=4096, offload="activations")
    )  # fmt: skip
    rows = [(change.key, *(row[0] for row in change.also)) for change in found.changes]
    assert ("microbatch", "global_batch", "gradient_sync") in rows


LONG = {"engine": "deepspeed", "zero": 3, "seq_len": 131072, "recompute": "full", "attention": "flash"}


def test_pairs_are_tried_before_nothing_is_said_to_help() -> None:
    """Neither fits alone; what is tried alone is accounted on top of others, too."""
    answer = asked("llama-3.1-8b", "8xA100-80GB", **LONG)
    found = fix_of(answer)
    assert {change.key for change in found.changes} == {"loss", "offload.activations"}
    without = [{"loss": "fused"}, {"offload": "activations"}]
    for options in without:
        alone = asked("llama-3.1-8b", "8xA100-80GB", **{**LONG, **options}, fix=False).verdict
        assert alone is not None
        assert alone.result is not Result.FITS


def test_a_full_fine_tuning_stays_one_where_states_in_pages_do() -> None:
    """The same optimizer in pages and a loss without logits come before adapters."""
    job = {"microbatch": 4, "global_batch": 16, "recompute": "full", "precision": "bf16-pure", "optimizer": "adamw_8bit"}  # fmt: skip
    found = fix_of(asked("llama-3.2-3b", "1xRTX4090", **job))
    keys = {change.key: change.after for change in found.changes}
    assert keys == {"loss": "fused", "optimizer.name": "paged_adamw_8bit"}


@pytest.mark.parametrize("tokens", [2048, 65536])
def test_an_engine_without_adapters_is_offered_none(tokens: int) -> None:
    answer = asked("llama-3.1-70b", "8xH100-80GB", engine="megatron", tp=8, seq_len=tokens)
    assert answer.verdict is not None
    assert answer.verdict.result is Result.DOES_NOT_FIT
    changes = answer.verdict.cheapest_fix.changes if answer.verdict.cheapest_fix else ()
    keys = {key for change in changes for key in (change.key, *(row[0] for row in change.also))} | {
        key for way in answer.ways_to_fit for key in way.changes
    }
    assert not any(key.startswith(("adapter.", "quantization.")) for key in keys)


def test_where_nothing_helps_what_was_tried_is_named() -> None:
    answer = asked("llama-3.1-405b", "1xRTX4090", engine="transformers", seq_len=1024)
    verdict = answer.verdict
    assert verdict is not None
    assert verdict.cheapest_fix is None
    assert {"recompute every layer", "8-bit AdamW", "LoRA, rank 16"} <= set(verdict.tried_changes)
    words = in_vain_words(verdict)
    assert all(one in words for one in verdict.tried_changes)
    assert "no change" not in words


def test_prices_of_the_candidates_are_in_order() -> None:
    """A search of one price takes the first that fits, and tells of the same key once."""
    prices = [candidate.price for candidate in CANDIDATES]
    assert prices == sorted(prices)
    assert len({candidate.words for candidate in CANDIDATES}) == len(CANDIDATES)


@pytest.mark.parametrize(("asked", "typed"), [("eager", "sdpa"), (None, "flash")])
def test_scores_that_are_written_out_are_the_first_change(asked: str | None, typed: str) -> None:
    """By whoever said so, or by a family whose own code does it of itself."""
    model = "llama-3.1-8b" if asked else "internlm2-7b"
    job = {"gpus": "1xA100-80GB", "seq_len": 4096, "lora_rank": 16}
    found = memsheet.train(model, attention=asked, **job)
    assert found.verdict is not None
    fix = found.verdict.cheapest_fix
    assert fix is not None
    assert [(change.key, change.after) for change in fix.changes] == [("attention", typed)]
    again = memsheet.train(model, attention=typed, **job)
    assert again.verdict is not None
    assert again.verdict.device.value == fix.changes[-1].after_bytes
