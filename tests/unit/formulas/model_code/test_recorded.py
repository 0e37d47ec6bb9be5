"""What a recording of one kernel stands for."""

from __future__ import annotations

from typing import Any

import pytest

import memsheet

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 500,
}
TOLD = "attention is on record as sdpa's kernel"


@pytest.mark.parametrize("engine", ["transformers", "fsdp2"])
def test_flash_is_on_record_as_sdpa(engine: str) -> None:
    """The package's kernel runs on no fake tensors, and keeps what sdpa's does; a note says so."""
    pytest.importorskip("transformers")
    asked: dict[str, Any] = {"gpus": "2xH100-80GB", "seq_len": 128, "engine": engine}
    model = {"model_type": "persimmon", **SMALL}
    flash, sdpa = (memsheet.train(model, attention=kind, **asked) for kind in ("flash", "sdpa"))
    assert flash.model.recording is not None
    assert flash.sheets[0].peak == sdpa.sheets[0].peak
    assert any(TOLD in note for note in flash.sheets[0].notes)
    assert not any(TOLD in note for note in sdpa.sheets[0].notes)
