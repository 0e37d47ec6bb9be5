"""Model types whose code is another's, and what of them is not read."""

from __future__ import annotations

import pytest

from memsheet.errors import InputError
from memsheet.formulas.states.params import parameter_count
from memsheet.readers.families.llama import OTHERS_CODE
from memsheet.readers.hf_config import read_hf_config

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "intermediate_size": 80,
}


@pytest.mark.parametrize(("given", "model_type"), OTHERS_CODE.items())
def test_a_class_of_anothers_is_read_as_that_one(given: str, model_type: str) -> None:
    ours, theirs = (read_hf_config({**SMALL, "model_type": name}) for name in (given, model_type))
    assert ours.model_type == model_type
    assert parameter_count(ours) == parameter_count(theirs)


def test_layers_for_further_tokens_are_kept() -> None:
    assert read_hf_config({**SMALL, "model_type": "mimo", "num_nextn_predict_layers": 1}).ahead == 1


@pytest.mark.parametrize("tower", ["vision_config", "audio_config"])
def test_a_tower_that_is_not_read_is_refused(tower: str) -> None:
    config = {**SMALL, "model_type": "mimo_v2"}
    assert read_hf_config(config).model_type == "mimo_v2_flash"
    with pytest.raises(InputError, match=tower):
        read_hf_config({**config, tower: {"hidden_size": 32}})
