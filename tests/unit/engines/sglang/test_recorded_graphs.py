"""Graphs of SGLang, what its attention keeps for them, and the table of its requests, by release and card."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.engines.sglang.graphs import recorded_sizes
from memsheet.questions.accounted import infer
from memsheet.sheet import Bytes, Component, Instant
from memsheet.units import GIB, MIB

LENGTH = 8192


def of(path: str, gpus: str, model: str = "llama-3.1-8b", **options: Any) -> Bytes:
    asked = {"max_model_len": LENGTH, "engine": "sglang", **options}
    items = infer(model, gpus=gpus, **asked).sheets[0].items
    return next((item.at[Instant.DECODE] for item in items if item.path == path), Bytes.exact(0))


def test_sizes_that_are_recorded() -> None:
    assert [recorded_sizes(n) for n in (1, 8, 48, 50, 256, 512)] == [1, 4, 10, 11, 36, 52]
    assert recorded_sizes(8, drafts=True) == 8


@pytest.mark.parametrize(
    ("version", "pieces"), [("0.4.9", False), ("0.5.9", False), ("0.5.12", True), ("0.5.23", True)]
)
def test_a_small_model_on_a_small_card_has_small_graphs(version: str, pieces: bool) -> None:
    size = of("captured", "1xL4", "qwen2.5-1.5b", engine_version=version)
    assert size.low <= size.value <= size.high
    assert (size.high > 0.4 * GIB) is pieces  # those of chunks, which newer releases record by themselves
    assert size.high < GIB


def test_graphs_grow_with_the_largest_size() -> None:
    few, many = (of("captured", "1xH100-80GB", engine_version="0.5.9", graph_sequences=n) for n in (8, 256))
    assert few.high < many.high
    assert of("captured", "1xH100-80GB", cuda_graphs=False) == Bytes.exact(0)


def test_flashinfer_has_a_workspace_and_flash_attention_a_table_alone() -> None:
    workspace = 384 * MIB
    sixteen = {"graph_sequences": 16, "engine_version": "0.5.23"}
    assert of("attention", "1xH100-80GB", **sixteen) == Bytes.exact(4 * 16 * LENGTH)
    wrappers = recorded_sizes(16) + 4
    found = of("attention", "1xA100-80GB", **sixteen)
    assert found.value == found.high == workspace + 5 * 16 * LENGTH + 8 * MIB * wrappers
    assert found.low < workspace  # Triton's, where FlashInfer is not installed
    assert of("attention", "1xH100-80GB", engine_version="0.4.3.post4").value > workspace
    without = of("attention", "1xA100-80GB", cuda_graphs=False)
    assert without.value == workspace + 8 * MIB * 4
    assert of("attention", "1xA100-80GB", "qwen2.5-7b", **sixteen).value == found.value + 128 * MIB


def rows(version: str, **options: Any) -> float:
    """Rows of the table of requests, each of which has a place for every token and four."""
    asked = {"engine": "sglang", "engine_version": version, "max_model_len": 131072, **options}
    sheet = infer("llama-3.1-8b", gpus="1xH100-80GB", **asked).sheets[0]
    assert sheet.of(Component.BUFFERS).value
    items = {item.path: item.largest.value for item in sheet.items}
    return items["req_to_token_pool"] / 4 / (131072 + 4) - 1


def test_the_table_of_requests_is_what_the_release_takes() -> None:
    for version in ("0.4.9", "0.5.12", "0.5.23"):
        assert rows(version) == 2048
        assert rows(version, sequences=512) == 512
    assert rows("0.5.9", sequences=3000) == 3000
    assert rows("0.5.12", sequences=3000) == 2048
    assert rows("0.5.23", sequences=3000) == 3000
