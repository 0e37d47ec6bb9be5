"""LMDeploy's cache as each release says it: what died beside one that stands, or that left little, lacks a
smaller share of it.
"""

from __future__ import annotations

import pytest

from memsheet.diagnose.message import NO, Cause
from memsheet.diagnose.verdict import diagnose_texts

ENDS = {
    "older": "[TM][ERROR] CUDA runtime error: out of memory /lmdeploy/src/turbomind/utils/allocator.h:231",
    "newer": "[TM][FATAL][0811.10:20:30.123456][allocator.cc:49] CUDA error: out of memory",
}
CACHES = {
    "whole MiB": "[TM][INFO] [BlockManager] block_size = 8 MB\n[TM][INFO] [BlockManager] max_block_count = 900",
    "decimals": "[TM][INFO] [BlockManager] block_size = 1.750 MB\n[TM][INFO] [BlockManager] max_block_count = 4100",
    "a pool": "[TM][INFO][0811.10:20:00.000001][turbomind.cc:305] Object cache budget: 11264.00 MB from free 20480.00 MB and ratio 0.550",
}  # fmt: skip
SERVES = (
    '10.0.0.7:40112 - "POST /v1/chat/completions HTTP/1.1" 200 OK', "HINT:    Please open http://0.0.0.0:23333 in a browser for detailed api usage!!!",
    "INFO: Uvicorn running on http://0.0.0.0:23333 (Press CTRL+C to quit)", "[TM][INFO][0811.10:20:05.000001][turbomind.cc:459] Warm-up finished in 3.20 seconds.",
    "[TM][INFO] [Forward][0] [64, 66)",
)  # fmt: skip


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)
@pytest.mark.parametrize("serves", [*SERVES, ""])
def test_what_dies_beside_a_cache_that_stands_lacks_a_smaller_one(end: str, cache: str, serves: str) -> None:
    found = diagnose_texts({"log": f"lmdeploy serve api_server m --cache-max-entry-count 0.9\n{cache}\n{serves}\n{end}"})  # fmt: skip
    assert found.found
    assert (found.cause is Cause.ENGINE_OVERCOMMIT) is bool(serves)
    assert "--cache-max-entry-count 0.85" in found.cures[0].where
    assert all(cure.helps == NO for cure in found.cures if "larger share" in cure.change)


@pytest.mark.parametrize(("free", "decided"), [("12000.00", True), ("30000.00", False)])
def test_a_pool_that_left_little_needs_no_sign_of_serving(free: str, decided: bool) -> None:
    cache = f"[TM][INFO] Object cache budget: 11264.00 MB from free {free} MB and ratio 0.950"
    found = diagnose_texts({"log": f"{cache}\n{ENDS['newer']}"})
    assert (found.cause is Cause.ENGINE_OVERCOMMIT) is decided


@pytest.mark.parametrize("cache", [*CACHES.values(), ""])
def test_a_request_that_the_whole_cache_does_not_hold_lacks_cache_and_no_card(cache: str) -> None:
    found = diagnose_texts(
        {
            "log": f"{cache}\n[TM][WARN][0811.10:21:00.000001][engine.cc:605] dp0 ID 7: cache out of memory, no request can be admitted; failing head-of-line request"
        }
    )  # fmt: skip
    assert found.cause is Cause.ENGINE_UNDERPROVISION
    assert found.term
    assert any("--session-len" in cure.where for cure in found.cures)
