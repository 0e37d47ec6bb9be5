"""Presets of LM Studio, as llama.cpp loads a model with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.exchange.file_texts import read_text
from memsheet.questions.recognised_files import PARSERS


def preset(**more: Any) -> str:
    fields = {"contextLength": 16384, "llama.flashAttention": True, "llama.kCacheQuantizationType": {"checked": True, "value": "q8_0"}, **more}  # fmt: skip
    held = [{"key": f"llm.load.{at}", "value": value} for at, value in fields.items()]
    return json.dumps({"identifier": "@local:a", "operation": {"fields": []}, "load": {"fields": held}})


def test_fields_of_a_load() -> None:
    found = read_text("preset.json", preset(**{"llama.vCacheQuantizationType": {"checked": False, "value": "q4_0"}}), PARSERS)  # fmt: skip
    assert dict(found.request) == {
        "task": "infer", "engine": "llama.cpp", "serving.max_model_len": 16384, "attention": "flash", "serving.k_dtype": "gguf:Q8_0",
    }  # fmt: skip
    assert not found.unknown


@pytest.mark.parametrize(("ratio", "result"), [(1, "does_not_fit"), ("max", "does_not_fit"), (0.5, "uncertain"), (None, "uncertain")])  # fmt: skip
def test_a_part_of_the_layers_may_be_on_the_host(ratio: Any, result: str, tmp_path: Path) -> None:
    more = {} if ratio is None else {"llama.acceleration.offloadRatio": ratio}
    (tmp_path / "preset.json").write_text(preset(**more))
    found = memsheet.check(tmp_path / "preset.json", model="llama-3.1-70b:q4_k_m", gpus="1xL4")
    assert found.result is not None
    assert found.result.value == result
