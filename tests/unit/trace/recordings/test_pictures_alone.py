"""A model that reads pictures and looks no words up, beside a trace of its code."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import memsheet

PICTURES = {"model_type": "dinov2", "hidden_size": 192, "num_attention_heads": 3, "num_hidden_layers": 3}
STEP = {"gpus": "1xH200", "microbatch": 2, "seq_len": 256}


def test_a_model_of_pictures_alone_is_put_on_record():
    (told,), (seen,) = (ask(PICTURES, **STEP).sheets for ask in (memsheet.train, memsheet.trace))
    assert told.allocated.value == pytest.approx(seen.allocated.value, rel=1e-3)
    assert any("a picture of its config's size" in note for note in told.notes)
