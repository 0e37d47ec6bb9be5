"""vLLM: decoders that read an encoder, whose output has a group of the pool."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.errors import InputError
from memsheet.questions.accounted import infer

WHISPER = {"model_type": "whisper", "d_model": 384, "encoder_layers": 2, "decoder_layers": 3}


def facts(config: dict[str, Any] = WHISPER, **options: Any) -> dict[str, Any]:
    asked = {"max_model_len": 448, "gpus": "1xA100-80GB", **options}
    return dict(infer(config, engine="vllm", **asked).serving or {})


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_a_sequence_takes_blocks_of_both_groups(tp):
    found = facts(tp=tp, gpus=f"{tp}xA100-80GB")
    heads = 6 // tp
    assert found["groups"] == ["3 layers that keep all tokens", "3 layers that keep what an encoder made"]
    assert found["page_bytes_per_rank"] == 3 * 16 * 2 * heads * 64 * 2
    assert found["max_sequences"]["448"] == found["pages"] // (448 // 16 + -(-1500 // 16))


@pytest.mark.parametrize("heard", [16, 160, 1500])
def test_what_is_heard_longer_leaves_room_for_fewer(heard):
    found = facts({**WHISPER, "max_source_positions": heard})
    assert found["max_sequences"]["448"] == found["pages"] // (448 // 16 + -(-heard // 16))
    assert found["kv_bytes_per_token"] == 3 * 2 * 6 * 64 * 2


@pytest.mark.parametrize(("config", "version"), [
    (WHISPER, "0.8.5"),
    ({"model_type": "mllama"}, "0.33.0"),
    ({"model_type": "bart"}, "0.33.0"),
    ({"model_type": "t5"}, "0.33.0"),
])  # fmt: skip
def test_what_no_release_reads_is_refused_by_name(config, version):
    with pytest.raises(InputError) as refusal:
        facts(config, engine_version=version)
    assert config["model_type"] in str(refusal.value)
