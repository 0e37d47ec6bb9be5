"""Ranks of tensor parallelism that share out a sequence's cache."""

from __future__ import annotations

import pytest

import memsheet
from memsheet.budget import Answer
from memsheet.sheet import Component, Instant

DEEP, WIDE = "deepseek-v3", "qwen3-30b-a3b"  # latents, and four key heads


def served(model: str = DEEP, **options: object) -> Answer:
    return memsheet.infer(model, gpus="8xH200", engine="vllm", max_model_len=32768, **options)  # type: ignore[arg-type]


def test_tokens_of_a_rank_are_shared_out_and_its_bytes_are_not() -> None:
    whole, shared = (served(dcp=ranks).serving for ranks in (1, 8))
    assert whole is not None
    assert shared is not None
    assert shared["kv_bytes_per_token_per_rank"] == whole["kv_bytes_per_token_per_rank"] // 8
    assert shared["page_bytes_per_rank"] == whole["page_bytes_per_rank"]
    assert shared["page_tokens"] == 8 * whole["page_tokens"]
    assert shared["kv_bytes_per_token"] == whole["kv_bytes_per_token"]
    assert shared["kv_tokens"] > 7.5 * whole["kv_tokens"]


def test_what_ranks_gather_comes_on_top_of_the_pool() -> None:
    whole, shared = (served(dcp=ranks).sheets[0] for ranks in (1, 2))
    pools = [sheet.of(Component.KV_CACHE, instant=Instant.DECODE).value for sheet in (whole, shared)]
    assert pools[0] == pools[1]
    works = [sheet.of(Component.WORKSPACES, instant=Instant.DECODE) for sheet in (whole, shared)]
    assert works[1].low > works[0].low  # latents of earlier chunks have a rank's own part beside them
    assert works[1].high > works[0].high


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        (DEEP, {"dcp": 3}, "does not divide --tp 8"),
        ("qwen3-32b", {"dcp": 2}, "needs more ranks than the model's 8 key heads"),
        (WIDE, {"dcp": 4}, "is more than the 2 ranks"),
        (DEEP, {"dcp": 2, "engine_version": "0.9.2"}, "0.10.2 or newer"),
        ("gpt-oss-20b", {"dcp": 1}, ""),
    ],
)
def test_what_the_engine_refuses(model: str, options: dict[str, object], reason: str) -> None:
    if not reason:
        assert served(model, **options).sheets
        return
    with pytest.raises(memsheet.InputError, match=reason):
        served(model, **options)
    assert served(WIDE, dcp=2).sheets
