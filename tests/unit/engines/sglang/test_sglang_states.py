"""SGLang's pools of recurrent states, against sums by hand from its source (v0.5.23 where no release is
named).
"""

from __future__ import annotations

from typing import Any

import pytest

import memsheet
from memsheet.engines.sglang.states import States, states_of
from memsheet.errors import InputError
from memsheet.sheet import Bytes, Component


def served(name: str, gpus: str = "1xH100-80GB", **options: Any) -> memsheet.Answer:
    return memsheet.infer(name, gpus=gpus, engine="sglang", **{"max_model_len": 8192, **options})


def facts(*args: Any, **options: Any) -> dict[str, Any]:
    return dict(served(*args, **options).serving or {})


def slots_of(answer: memsheet.Answer) -> int:
    line = next(line for line in (answer.serving or {})["start_up"] if line.startswith("Mamba Cache"))
    return int(line.split(": ")[1].split(",")[0])


def pool(answer: memsheet.Answer) -> int:
    return int(next(item.largest.value for item in answer.sheets[0].items if item.path == "mamba_pool"))


MAMBA_SLOT = 64 * (5120 * 3 * 2 + 5120 * 16 * 4)
"""Of mamba-2.8b: in 64 layers three inputs of 5120 channels in bf16 and a state of 16 for each in fp32
(configs/mamba_utils.py:276).
"""
NEXT_SLOT = 36 * (3 * (2 * 16 * 128 + 32 * 128) // 4 * 2 + 32 * 128 * 128 // 4 * 4)
"""Of qwen3-next-80b-a3b on one of four ranks: 36 layers of gated delta nets."""


def test_models_without_attention_keep_states_alone() -> None:
    found = served("mamba-2.8b")
    assert pool(found) == (slots_of(found) + 1) * MAMBA_SLOT
    serving = found.serving or {}
    assert serving["kv_tokens"] == 8192, "max_total_num_tokens is the context (pool_configurator.py:246)"
    assert serving["kv_bytes_per_token"] == 0
    assert "max-total-tokens" in serving["warning"]


@pytest.mark.parametrize("name", ["mamba-2.8b", "mamba-codestral-7b", "falcon-mamba-7b"])
def test_they_are_served_from_the_release_on_that_has_their_code(name: str) -> None:
    assert slots_of(served(name)) > 0
    with pytest.raises(InputError, match=r"since 0\.5\.20"):
        served(name, engine_version="0.5.12")


@pytest.mark.parametrize("name", ["jamba-v0.1", "bamba-9b", "zamba2-1.2b"])
def test_families_that_it_has_no_code_for_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="recurrent states"):
        served(name, max_model_len=4096)


@pytest.mark.parametrize(("name", "version", "each"), [
    ("qwen3-next-80b-a3b", "0.5.23", 5), ("qwen3-next-80b-a3b", "0.5.12", 3), ("qwen3-next-80b-a3b", "0.5.8", 3), ("mamba-2.8b", "0.5.23", 3),
])  # fmt: skip
def test_slots_of_a_request(name: str, version: str, each: int) -> None:
    """Three, and two of snapshots where batches overlap (kv_cache_configurator.py:3067; v0.5.12
    server_args.py:1187 has none by itself).
    """
    found = served(name, "4xH100-80GB", tp=4, engine_version=version)
    assert f"max_running_requests={slots_of(found) // each}," in (found.serving or {})["start_up"][-1]


def test_states_get_nine_tenths_of_what_tokens_get_or_as_asked() -> None:
    usual, more = (
        served("qwen3-next-80b-a3b", "4xH100-80GB", tp=4, **options) for options in ({}, {"state_ratio": 2.0})
    )
    tokens = [int(one.sheets[0].of(Component.KV_CACHE).value) - pool(one) for one in (usual, more)]
    assert pool(usual) / tokens[0] == pytest.approx(0.9, rel=0.01)
    assert pool(more) / tokens[1] == pytest.approx(2.0, rel=0.01)
    asked = served("qwen3-next-80b-a3b", "4xH100-80GB", tp=4, state_slots=100)
    assert pool(asked) == 101 * NEXT_SLOT
    assert "max_running_requests=20," in (asked.serving or {})["start_up"][-1]


def test_slots_that_are_asked_for_are_divided_among_groups() -> None:
    """kv_cache_configurator.py:3305; attention and its states are cut over a group's ranks alone."""
    found = served("qwen3-next-80b-a3b", "8xH100-80GB", tp=8, attn_dp=2, state_slots=100)
    assert slots_of(found) == 50
    assert pool(found) == 51 * NEXT_SLOT


def test_no_more_sequences_than_there_are_states_for() -> None:
    """Short requests leave the pool of tokens empty, and wait for slots."""
    found = facts("qwen3-next-80b-a3b", "4xH100-80GB", tp=4)
    assert found["max_sequences"]["1024"] == found["max_sequences"]["4096"] == found["capacity"]["limit"]


def test_too_few_slots_for_a_request_do_not_start() -> None:
    assert states_of(100, Bytes.exact(10**6)).lacks.high < 0
    assert states_of(10**6, Bytes.exact(3 * 10**6)) == States(slots=Bytes.exact(0), bytes=Bytes.exact(10**6))
    assert states_of(10**6, Bytes.exact(3 * 10**6)).lacks == Bytes.exact(3 * 10**6)
    found = served("qwen3-next-80b-a3b", "4xH100-80GB", tp=4, state_slots=4)
    assert found.verdict is not None
    assert found.verdict.result.value == "does_not_fit"


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_they_are_sglangs_own_words(engine: str) -> None:
    with pytest.raises(InputError, match="state_slots"):
        memsheet.infer("llama-3.1-8b", gpus="1xH100-80GB", engine=engine, max_model_len=1024, state_slots=8)
