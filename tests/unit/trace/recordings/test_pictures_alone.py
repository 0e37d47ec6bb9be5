"""Models that read pictures: those that look no words up, and those whose words alone train."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import memsheet
from memsheet.sheet import Component, Instant

pytestmark = pytest.mark.usefixtures("warm_children")

PICTURES = {"model_type": "dinov2", "hidden_size": 192, "num_attention_heads": 3, "num_hidden_layers": 3}
STEP = {"gpus": "1xH200", "microbatch": 2, "seq_len": 256}


@pytest.mark.slow
def test_a_model_of_pictures_alone_is_put_on_record():
    (told,), (seen,) = (ask(PICTURES, **STEP).sheets for ask in (memsheet.train, memsheet.trace))
    assert told.allocated.value == pytest.approx(seen.allocated.value, rel=1e-3)
    assert any("a picture of its config's size" in note for note in told.notes)


SEEING = {
    "model_type": "qwen2_5_vl", "text_config": {"num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 4096},
    "vision_config": {"depth": 2, "hidden_size": 128, "num_heads": 4, "out_hidden_size": 256},
}  # fmt: skip


def test_words_train_beside_a_tower_where_the_written_layers_were_not_compared():
    answer = memsheet.train(SEEING, engine="deepspeed", zero=2, gpus="2xH200", seq_len=256, fix=False)
    assert answer.model.recording is not None
    assert (
        memsheet.train(SEEING, engine="fsdp2", gpus="2xH200", seq_len=256, fix=False).model.recording is None
    )
    held = sum(
        i.at[Instant.LOAD].value for i in answer.sheets[0].items if i.component is Component.PARAMETERS
    )
    assert held == 2 * answer.parameters  # zero 2 holds all of them, the tower's too
