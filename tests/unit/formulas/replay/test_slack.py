"""What the replay of a step is given."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet import train
from memsheet.formulas.replay import varied
from memsheet.sheet import AGREEMENT_PER_MILLE, Bytes, Component, Instant


def test_gradients_of_earlier_micro_batches_are_there_before_lengths_vary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside what is loaded: those that the next forward finds."""
    given = list[int]()

    def recorded(*told: Any) -> Bytes:
        given.append(told[2])
        return Bytes.exact(told[2])

    monkeypatch.setattr(varied, "varied_reserved_bytes", recorded)
    config = {
        "model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    }  # fmt: skip
    plan = {
        "engine": "ms-swift", "seq_len": 64, "seq_len_kind": "maximum", "attention": "flash", "recompute.mode": "full", "global_batch": 4,
    }  # fmt: skip
    (sheet,) = train(config, gpus="1xH100-80GB", plan=plan).sheets
    outside = (Component.CONTEXT, Component.WORKSPACES, Component.ALLOCATOR_SLACK)
    tensors = [item for item in sheet.items if item.component not in outside]
    loaded = sum(item.at[Instant.LOAD].value for item in tensors if Instant.LOAD in item.at)
    gradients = sheet.of(Component.GRADIENTS, instant=Instant.FORWARD).value
    assert gradients > 0
    assert given[0] == loaded + gradients


@pytest.mark.parametrize(("card", "ends"), [("RTX4090", True), ("H100-80GB", False)])
def test_a_range_that_ends_at_the_card_is_told_as_that(card: str, ends: bool) -> None:
    found = train(
        "llama-3.1-8b",
        gpus=f"1x{card}",
        seq_len=3520,
        precision="bf16-pure",
        lora_rank=16,
        recompute="full",
    )
    assert found.verdict is not None
    assert found.cluster is not None
    assert any("the range ends there" in note for note in found.sheets[0].notes) is ends
    assert (found.verdict.device.high == found.cluster.device.framework_bytes) is ends


OPEN_TENSORS: dict[str, dict[str, Any]] = {
    "past a checkpoint": {"model": "llama-3.2-1b", "quantize": "int8", "lora_rank": 8, "recompute": "full"},
    "outliers": {"model": "llama-3.2-1b", "quantize": "int8", "lora_rank": 8},
    "none": {"model": "llama-3.2-1b", "lora_rank": 8},
}


@pytest.mark.parametrize("of", OPEN_TENSORS)
def test_the_least_that_is_reserved_follows_the_least_of_the_tensors(of: str) -> None:
    """What is reserved at the peak stays at the other instants: where the peak's tensors may be fewer, so may
    what stays of it.
    """
    options = dict(OPEN_TENSORS[of])
    (sheet,) = train(
        options.pop("model"), gpus="1xH100-80GB", seq_len=2048, microbatch=4, precision="bf16", **options
    ).sheets
    peak = sheet.peak_instant
    slack = sheet.of(Component.ALLOCATOR_SLACK, instant=peak)
    margin = sheet.device.value * AGREEMENT_PER_MILLE // 1000
    assert sheet.reserved.low <= sheet.at(peak).low + slack.low + margin
    assert (sheet.reserved.value - sheet.reserved.low > sheet.reserved.value // 10) is (
        of == "past a checkpoint"
    )
