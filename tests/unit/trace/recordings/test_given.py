"""What a step is given beside words: that of this step alone, once."""

import pytest

pytest.importorskip("torch")

from memsheet.recording import run_from
from memsheet.trace.recordings.process import ask_recorder

MELS, POSITIONS, WIDTH = 16, 96, 64
HEARD = {
    "model_type": "whisper", "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 500, "num_mel_bins": MELS, "max_source_positions": POSITIONS,
    "max_target_positions": 448, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
WAY = '{"attention": "eager", "precision": "fp32"}'


def test_sounds_of_earlier_steps_are_not_counted_again():
    asked = {"config": HEARD, "model": False, "ways": [WAY]}
    run = run_from(ask_recorder(asked)["runs"][WAY])
    assert run is not None  # a function of size: the same inputs at every one
    seen = 4 * MELS * 2 * POSITIONS  # fp32, two frames a position, of one sequence
    assert [one for one in run.shared if "/" not in one[0]] == [
        ("input_features", ((seen, 0, 0),)),
        ("decoder_input_ids", ((8, 1, 1),)),
    ]
