"""Code that loops over tokens is on record at single sizes, and that is known after two forwards."""

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from memsheet.trace.recordings import observe, record

SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 500, "num_hidden_layers": 3, "max_position_embeddings": 4096,
}  # fmt: skip
GATED = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
}  # fmt: skip
LOOPS = {
    "llama": ({**SMALL, "model_type": "llama"}, False),
    "ministral3": ({**SMALL, "model_type": "ministral3"}, False),
    "qwen3_5_text": ({**SMALL, **GATED, "model_type": "qwen3_5_text"}, True),
}


@pytest.mark.parametrize("kind", LOOPS)
def test_code_that_loops_over_tokens_is_no_function_of_size(kind, monkeypatch):
    config, loops = LOOPS[kind]
    backs = []
    real = observe._take_step_back
    monkeypatch.setattr(observe, "_take_step_back", lambda *given: (backs.append(1), real(*given)))
    key = json.dumps({"precision": "bf16-pure", "attention": "sdpa", "several": True})
    found = record.answer({"config": config, "model": False, "ways": [key]})["runs"][key]
    assert (found is None) == loops
    assert len(backs) == (0 if loops else len(record.SEVERAL))
    alone = json.dumps({"precision": "bf16-pure", "attention": "sdpa", "sequences": 2, "tokens": 128})
    assert record.answer({"config": config, "model": False, "ways": [alone]})["runs"][alone] is not None
