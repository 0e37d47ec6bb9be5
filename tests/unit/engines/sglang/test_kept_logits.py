"""Logits that SGLang's graphs keep, by release."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.engines.sglang.graphs import kept_logits_bytes
from memsheet.questions.accounted import infer
from memsheet.sheet import Component, Instant


def kept(**options: Any) -> int:
    sheet = infer("llama-3.1-8b", gpus="1xH100-80GB", engine="sglang", max_model_len=8192, **options).sheets[
        0
    ]
    found = [item for item in sheet.items if item.path == "captured_logits"]
    assert all(item.component is Component.CUDA_GRAPHS for item in found)
    return sum(int(item.at[Instant.PREFILL].value) for item in found)


def test_each_size_keeps_its_own_until_all_share_a_buffer() -> None:
    rows = sum((1, 2, 4, 8, *range(16, 161, 8)))
    assert kept_logits_bytes(160, 1) == 4 * rows
    assert kept(engine_version="0.4.6.post5") == 4 * rows * 128256
    assert kept(engine_version="0.4.9") > kept(engine_version="0.5.4")
    assert kept(engine_version="0.5.4") == kept() == 4 * 256 * 128256
    assert kept(engine_version="0.5.4", graph_sequences=16) == 4 * 16 * 128256
    assert kept(engine_version="0.4.6", cuda_graphs=False) == 0


@pytest.mark.parametrize("largest", [1, 3, 8, 20])
def test_the_largest_is_recorded_too(largest: int) -> None:
    assert kept_logits_bytes(largest, 1) == 4 * (sum(n for n in (1, 2, 4, 8, 16) if n < largest) + largest)
