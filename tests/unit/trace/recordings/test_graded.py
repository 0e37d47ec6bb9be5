"""Of which parameters a step leaves a gradient, and of which it leaves none."""

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from memsheet.recording import FROZEN, IDLE, TRAINED
from memsheet.trace.recordings import graded as steps
from memsheet.trace.recordings import record

SMALL = {
    "d_model": 64, "decoder_layers": 3, "decoder_attention_heads": 2, "decoder_ffn_dim": 128, "vocab_size": 500, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
TROCR = {
    "model_type": "trocr",
    **SMALL,
    "cross_attention_hidden_size": 32,
    "use_learned_position_embeddings": False,
}
HEARD = {
    "model_type": "whisper", **SMALL, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 128, "num_mel_bins": 16,
    "max_source_positions": 96, "max_target_positions": 448,
}  # fmt: skip
WORDS = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "vocab_size": 500,
}


def graded(config):
    found = record._stack_of(json.dumps(config)).model
    return {one.path: one.graded for one in (*found.layers[0], *found.others) if one.kind != "buffer"}


def test_attention_that_no_encoder_feeds_gets_no_gradient():
    found = graded(TROCR)
    idle = {path for path, how in found.items() if how == IDLE}
    assert idle == {path for path in found if "encoder_attn" in path}
    assert idle
    assert found["self_attn.q_proj.weight"] == TRAINED


def test_a_table_of_sines_is_frozen():
    found = graded(HEARD)
    assert {path for path, how in found.items() if how != TRAINED} == {"model.encoder.embed_positions.weight"}
    assert found["model.encoder.embed_positions.weight"] == FROZEN


def test_a_model_whose_step_cannot_be_run_is_taken_to_train_whole(monkeypatch):
    def refused(*_):
        raise RuntimeError

    monkeypatch.setattr(steps, "random_token_batch", refused)
    assert set(graded({**TROCR, "vocab_size": 501}).values()) == {TRAINED}


def test_a_tied_table_trains_under_either_name():
    found = graded({"model_type": "llama", **WORDS, "tie_word_embeddings": True})
    assert set(found.values()) == {TRAINED}
    assert "lm_head.weight" not in found
