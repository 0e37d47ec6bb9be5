"""A pool that a command sizes itself."""

from __future__ import annotations

import pytest

import memsheet
from memsheet.budget import Answer, Result
from memsheet.sheet import Bytes, Component, Instant
from memsheet.units import GIB, MIB

BLOCK = 16 * 128 * 1024  # tokens, and bytes of one in llama-3.1-8b
LENGTH = 8192


def served(gpus: str | None = "1xH100-80GB", **options: object) -> Answer:
    return memsheet.infer("llama-3.1-8b", gpus=gpus, engine="vllm", max_model_len=LENGTH, **options)  # type: ignore[arg-type]


def pool(answer: Answer) -> Bytes:
    return answer.sheets[0].of(Component.KV_CACHE, instant=Instant.DECODE)


def test_the_pool_is_as_large_as_it_is_said() -> None:
    for gpus in ("1xH100-80GB", "1xL4", None):
        assert pool(served(gpus, kv_cache_bytes=4 * GIB)) == Bytes.exact(4 * GIB)
        assert pool(served(gpus, kv_blocks=1000)) == Bytes.exact(1000 * BLOCK)
    assert pool(served(kv_cache_bytes=4 * GIB, kv_blocks=1000)) == Bytes.exact(1000 * BLOCK)
    shares = [pool(served(kv_cache_bytes=4 * GIB, memory_fraction=share)) for share in (0.3, 0.9)]
    assert shares[0] == shares[1]


def test_what_is_larger_than_the_card_does_not_fit() -> None:
    found = served(kv_cache_bytes=80 * GIB).verdict
    assert found is not None
    assert found.result is Result.DOES_NOT_FIT


@pytest.mark.parametrize(
    ("options", "result"),
    [
        ({"kv_cache_bytes": GIB - MIB}, Result.DOES_NOT_FIT),  # a sequence takes a GiB
        ({"kv_cache_bytes": GIB}, Result.DOES_NOT_FIT),  # of which a block is nobody's
        ({"kv_cache_bytes": GIB + BLOCK}, Result.FITS),
        ({"kv_blocks": 100}, Result.DOES_NOT_FIT),
        ({"kv_cache_bytes": GIB, "engine_version": "0.11.0"}, Result.UNCERTAIN),
        ({"kv_blocks": 100, "engine_version": "0.11.0"}, Result.UNCERTAIN),
    ],
)
def test_a_pool_without_one_sequence_does_not_start(options: dict[str, object], result: Result) -> None:
    found = served(**options).verdict
    assert found is not None
    assert found.result is result


def test_older_releases_have_no_such_flag() -> None:
    with pytest.raises(memsheet.InputError, match="does not exist in that release"):
        served(kv_cache_bytes=GIB, engine_version="0.9.2")
