"""Configs that name their family's decoder, without the encoder or the towers that it is usually beside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from memsheet.errors import InputError
from memsheet.frozen import replace
from memsheet.guard import parse_json
from memsheet.plan.model import ModelSpec
from memsheet.readers.hf_config import read_hf_config
from memsheet.recording import RecordedParameter, Recording

TEXTS = {
    "llama4": ("llama4_text", "Llama4ForCausalLM"),
    "qwen3_5": ("qwen3_5_text", "Qwen3_5ForCausalLM"),
    "qwen3_5_moe": ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"),
}
BESIDE = {
    "bart": "BartForCausalLM", "mbart": "MBartForCausalLM", "pegasus": "PegasusForCausalLM", "whisper": "WhisperForCausalLM",
    "mllama": "MllamaForCausalLM",
}  # fmt: skip


def recorded(config: Mapping[str, Any]) -> Recording:
    return Recording(
        model_type=config["model_type"], versions={}, hidden=8, vocab=16, stack="model.decoder.layers", kinds=(0,),
        layers=((RecordedParameter(path="fc.weight", shape=(8, 8), kind="linear"),),), table="model.embed", projection="", tied=True,
        others=(RecordedParameter(path="model.embed.weight", shape=(16, 8), kind="embedding"),),
    )  # fmt: skip


@pytest.mark.parametrize("kind", TEXTS)
def test_a_text_model_is_the_same_inside_the_config_of_one_that_sees(kind: str) -> None:
    alone, decoder = TEXTS[kind]
    inside = read_hf_config(
        {"model_type": kind, "architectures": [decoder], "text_config": {"hidden_size": 512}}
    )
    apart = read_hf_config({"model_type": alone, "architectures": [decoder], "hidden_size": 512})
    assert replace(inside, name=apart.name) == apart
    assert not inside.towers


@pytest.mark.parametrize(("kind", "decoder"), BESIDE.items())
def test_a_decoder_without_what_is_beside_it_is_put_on_record(kind: str, decoder: str) -> None:
    config = {"model_type": kind, "architectures": [decoder]}
    found = read_hf_config(config, recorder=recorded)
    assert found.recording is not None
    with pytest.raises(InputError, match="is not a class memsheet counts"):
        read_hf_config(config)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "bart", "architectures": ["OtherForCausalLM"]},
        {"model_type": "bart", "architectures": ["BartForSomething"]},
        {"model_type": "bart", "architectures": ["BartForCausalLM"], "d_model": -1},
    ],
)
def test_nothing_else_is_put_on_record(config: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        read_hf_config(config, recorder=recorded)


def test_an_end_that_is_open_stays_as_the_library_writes_it() -> None:
    both = '{"a": {"time_step_limit": [0.0, %s]}}'
    tagged = parse_json(both % '{"__float__": "Infinity"}', "config.json")
    assert parse_json(both % "Infinity", "config.json") == tagged


@pytest.mark.parametrize(
    "text",
    [
        '{"rope_theta": Infinity}', "[Infinity]", '{"time_step_limit": Infinity}', '{"time_step_limit": [[NaN]]}',
        '{"time_step_limit": [Infinity], "other": [Infinity]}',
    ],
)  # fmt: skip
def test_no_other_number_is_beyond_all(text: str) -> None:
    with pytest.raises(InputError, match="is not a number that JSON knows"):
        parse_json(text, "config.json")


def test_an_open_end_does_not_stop_a_reader() -> None:
    config = parse_json('{"model_type": "falcon_h1", "time_step_limit": [0.0, Infinity]}', "config.json")
    assert isinstance(read_hf_config(config), ModelSpec)
