"""Encoders of pictures that llama.cpp loads beside a model."""

from __future__ import annotations

from memsheet import catalog
from memsheet.formulas.serving.projectors import projector_bytes
from memsheet.formulas.states.params import tower_tensors
from memsheet.plan.model import ModelSpec
from memsheet.readers.model import read_model


def model(name: str) -> ModelSpec:
    return read_model(name, catalog=catalog.find_model, names=catalog.model_names())


def test_a_bound_holds_the_weights_in_fp32_and_a_batch_of_pictures() -> None:
    spec = model("gemma-3-27b")
    weights = sum(weight.elements * times for _, weight, times in tower_tensors(spec))
    found, picture = projector_bytes(spec), 4 * 4096 * (8 * 1152 + 3 * 4304)
    assert found is not None
    assert found.high == 4 * weights + 4 * picture  # four of 256 tokens in a batch of 1,024


def test_pictures_of_any_size_have_none_and_a_model_without_a_tower_neither() -> None:
    assert projector_bytes(model("qwen2.5-vl-7b")) is None
    assert projector_bytes(model("llama-3.1-8b")) is None
