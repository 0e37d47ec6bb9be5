"""What a dense decoder's config may not say; every problem is told at once and named by its key."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.errors import InputError
from memsheet.readers.hf_config import read_hf_config

WRONG: list[tuple[dict[str, Any], set[str]]] = [
    ({"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 5}, {"num_attention_heads"}),
    ({"model_type": "llama", "hidden_size": 8, "num_attention_heads": 32}, {"num_attention_heads"}),
    ({"model_type": "llama", "hidden_size": 4095, "num_attention_heads": 32}, {"hidden_size"}),
    ({"model_type": "llama", "hidden_size": "4096", "num_attention_heads": 32}, {"hidden_size"}),
    ({"model_type": "llama", "hidden_size": "big", "vocab_size": -1}, {"hidden_size", "vocab_size"}),
    ({"model_type": "phi3", "rope_scaling": {"partial_rotary_factor": 3.0}}, {"partial_rotary_factor"}),
    ({"model_type": "gemma2", "num_hidden_layers": 4, "layer_types": ["full_attention"]}, {"layer_types"}),
    ({"model_type": "qwen3", "num_hidden_layers": 1, "layer_types": ["chunked"]}, {"layer_types"}),
    ({"model_type": "smollm3", "num_hidden_layers": 3, "no_rope_layers": [1, 0]}, {"no_rope_layers"}),
    ({"model_type": "gpt2", "add_cross_attention": True}, {"add_cross_attention"}),
    ({"model_type": "gpt2", "n_embd": 100, "n_head": 12}, {"n_embd"}),
    ({"model_type": "gpt_neo", "num_layers": 5}, {"attention_types"}),
    ({"model_type": "gpt_neo", "attention_types": [[["global"], 10**40]]}, {"attention_types"}),
    ({"model_type": "gpt_neo", "attention_types": "global"}, {"attention_types"}),
]


@pytest.mark.parametrize(("config", "fields"), WRONG)
def test_refused_by_name(config: dict[str, Any], fields: set[str]) -> None:
    with pytest.raises(InputError) as caught:
        read_hf_config(config)
    assert fields <= {problem.field.rsplit(".", 1)[-1] for problem in caught.value.problems}


def test_a_number_in_quotes_is_told_to_lose_them() -> None:
    with pytest.raises(InputError) as caught:
        read_hf_config({"model_type": "llama", "hidden_size": "4096"})
    (problem,) = caught.value.problems
    assert (problem.reason, problem.hint) == (
        "is text, where a whole number is expected",
        "4096 without quotes",
    )
