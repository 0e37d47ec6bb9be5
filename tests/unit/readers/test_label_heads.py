"""A decoder is read with the head of the class that its configuration names."""

from __future__ import annotations

import pytest

from memsheet.catalog import find_model
from memsheet.formulas.states.params import parameter_count
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.label_heads import OF_LABELS


@pytest.mark.parametrize("head", OF_LABELS)
@pytest.mark.parametrize(
    ("name", "tied"), [("llama-3.1-8b", False), ("qwen2.5-0.5b", True), ("mixtral-8x7b", False)]
)
def test_a_decoder_that_tells_labels_apart_has_no_output_matrix(name: str, tied: bool, head: str) -> None:
    entry = find_model(name)
    assert entry is not None
    config = entry["config"]
    usual = read_hf_config(config)
    own = str(config["architectures"][0]).replace("ForCausalLM", head)
    told = read_hf_config({**config, "architectures": [own]})
    matrix = 0 if tied else config["vocab_size"] * config["hidden_size"]
    assert parameter_count(usual) - parameter_count(told) == matrix
    assert told.head.kind == "none"
    assert any("labels" in note for note in told.source.notes)
    assert read_hf_config({**config, "architectures": []}) == usual
