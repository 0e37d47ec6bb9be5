"""A model that generates, put on record at a few sizes: what a trace of it shows at sizes that were not."""

import json
from dataclasses import replace
from functools import cache

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import memsheet
from memsheet.account import account_rank
from memsheet.errors import InputError
from memsheet.plan.words import request_from
from memsheet.readers.recorded import model_from_recording
from memsheet.recording import caches_from, recording_document, recording_from, run_from
from memsheet.resolve import resolve_request
from memsheet.sheet import Component, Instant
from memsheet.timeline import instant_peaks
from memsheet.trace.recordings.process import ask_recorder

SMALL = {
    "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 4000,
    "num_hidden_layers": 6, "max_position_embeddings": 8192,
}  # fmt: skip
TOWER = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
EAGER = ("blip", "cpmant", "git")
CONFIGS = {
    "lfm2": {**SMALL, "block_multiple_of": 32, "layer_types": ["conv", "conv", "full_attention"] * 2},
    "olmo3": {**SMALL, "sliding_window": 600, "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2},
    "llama": SMALL,
    "camembert": {**SMALL, "max_position_embeddings": 4200},
    "marian": {
        "d_model": 256, "encoder_layers": 3, "decoder_layers": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 704, "decoder_ffn_dim": 704, "vocab_size": 4000, "decoder_vocab_size": 4000, "pad_token_id": 0,
        "max_position_embeddings": 8192,
    },
    "git": {  # keeps a picture's keys ahead of a prompt's
        **SMALL, "num_hidden_layers": 3, "vision_config": {**TOWER, "image_size": 64, "num_hidden_layers": 4},
    },
    "cpmant": {  # and here a learned prefix's
        "hidden_size": 256, "dim_ff": 704, "num_attention_heads": 4, "dim_head": 64, "num_hidden_layers": 3, "vocab_size": 4000,
    },
    "kosmos-2": {  # reads a picture in a generate of its own, and asks its words' model for the rest
        "text_config": {
            "embed_dim": 256, "ffn_dim": 704, "layers": 4, "attention_heads": 4, "vocab_size": 4000, "max_position_embeddings": 8192,
        },
        "vision_config": {**TOWER, "num_hidden_layers": 2},
    },
    "blip": {  # whose own generate leaves the prompt's last word out
        "text_config": {
            "hidden_size": 256, "encoder_hidden_size": 64, "intermediate_size": 704, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 4000,
            "max_position_embeddings": 8192, "bos_token_id": 1, "sep_token_id": 2, "pad_token_id": 0,
        },
        "vision_config": {**TOWER, "image_size": 64, "num_hidden_layers": 2},
    },
    "zamba": {  # layers share the attention that stands in some of them
        **SMALL, "num_key_value_heads": 4, "attention_hidden_size": 512, "attention_head_dim": 128, "mamba_dt_rank": 16,
        "num_hidden_layers": 8, "attn_layer_period": 3, "attn_layer_offset": 2,
    },
    "hrm_text": {  # a layer is run in several turns, and keeps keys of each
        **SMALL, "num_layers_per_stack": 3, "num_hidden_layers": 24, "H_cycles": 2, "L_cycles": 3,
    },
}  # fmt: skip
OUTSIDE = (Component.ALLOCATOR_SLACK, Component.CONTEXT, Component.WORKSPACES)
INPUT_BYTES = 4096 * 3 * 40  # ids, positions and their like, which a record leaves out


@cache
def recorded(kind):
    config = {"model_type": kind, **CONFIGS[kind]}

    def make(key):
        return run_from(ask_recorder({"config": config, "model": False, "ways": [key]})["runs"][key])

    answer = ask_recorder({"config": config, "model": True, "ways": [], "caches": True})
    found = replace(recording_from(answer["recording"]), make=make, caches=caches_from(answer["caches"]))
    return config, found


def served(model, *, real, **words):
    asked = {"engine": "transformers", "precision": "bf16-pure", **words}
    return resolve_request({**request_from(asked), "task": "infer"}, model, None, real=real).plan


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize(
    ("sequences", "tokens", "prompt"), [(1, 1800, 1800), (3, 4096, 4096), (2, 2100, 600)]
)
def test_a_generation_on_record_is_as_its_trace_at_sizes_that_were_not_run(kind, sequences, tokens, prompt):
    from memsheet.trace.job import How
    from memsheet.trace.scans import kernel_stand_ins
    from memsheet.trace.serving_job import trace_serving

    config, recording = recorded(kind)
    words = {"max_model_len": tokens, "prompt_tokens": prompt, "sequences": sequences}
    words["attention"] = "eager" if kind in EAGER else "sdpa"
    model = model_from_recording(recording, config)
    sheet = account_rank(model, served(model, real=False, **words))
    with kernel_stand_ins(config):
        timeline = trace_serving(config, served(None, real=True, **words), How(scratch=False))
    for instant, peak in instant_peaks(timeline).items():
        if instant is Instant.LOAD:
            continue
        ours = sum(
            item.at[instant].value
            for item in sheet.items
            if instant in item.at and item.component not in OUTSIDE
        )
        assert ours == pytest.approx(peak.bytes, rel=1e-3, abs=INPUT_BYTES), instant


def test_a_picture_that_a_models_own_generate_has_read_is_held_while_tokens_are_made():
    _, recording = recorded("kosmos-2")
    words = {"precision": "bf16-pure", "attention": "sdpa", "generates": True, "sequences": 1, "tokens": 512}
    made = recording.generation_of(json.dumps(words, sort_keys=True))
    held = {made.decode.storages[place].path for what, place in made.decode.forward if what == "alloc"}
    assert {"pixel_values/aten.zeros", "image_embeds/aten.addmm"} <= held


def test_what_layers_keep_is_known_by_kind():
    caches = recorded("lfm2")[1].caches
    assert [
        (one.token_elements, one.window, one.state_elements, one.computed_elements) for one in caches
    ] == [
        (0, None, 0, 256 * 3),  # the convolution's last inputs
        (2 * 2 * 64, None, 0, 0),
    ]
    assert [one.window for one in recorded("olmo3")[1].caches] == [600, None]
    picture = 1 + (64 // 16) ** 2
    assert [(one.token_elements, one.computed_elements) for one in recorded("git")[1].caches] == [
        (512, 512 * picture)
    ]
    assert [one.token_elements for one in recorded("blip")[1].caches] == [2 * 256]


@pytest.mark.slow
def test_an_encoder_is_read_once_and_keeps_nothing():
    config, recording = recorded("camembert")
    assert recording.stacks == "encoder"
    assert [(one.token_elements, one.memory_elements) for one in recording.caches] == [(0, 0)]
    sheet = account_rank(
        model := model_from_recording(recording, config),
        served(model, real=False, max_model_len=512, prompt_tokens=512, sequences=2),
    )
    logits = 2 * 512 * 4000 * 2  # of every word, in bf16
    at = {
        i: sum(x.at[i].value for x in sheet.items if x.component is Component.TEMPORARIES)
        for i in Instant
        if all(i in x.at for x in sheet.items if x.component is Component.TEMPORARIES)
    }
    assert at[Instant.PREFILL] >= logits
    assert at[Instant.DECODE] == 0


@pytest.mark.slow
def test_a_decoder_keeps_what_its_encoder_read():
    recording = recorded("marian")[1]
    assert recording.stacks == "encoder-decoder"
    assert [(one.token_elements, one.memory_elements) for one in recording.caches] == [(512, 512)]


def test_a_record_of_a_generation_is_the_same_after_json():
    config, recording = recorded("lfm2")
    model = model_from_recording(recording, config)
    words = {"max_model_len": 2048, "prompt_tokens": 2048, "sequences": 2}
    before = account_rank(model, served(model, real=False, **words)).peak
    again = recording_from(json.loads(json.dumps(recording_document(recording))))
    other = model_from_recording(again, config)
    assert account_rank(other, served(other, real=False, **words)).peak == before


@pytest.mark.slow
@pytest.mark.usefixtures("warm_children")
def test_a_trace_takes_the_attention_that_there_is():
    config = {"model_type": "blip", **CONFIGS["blip"]}
    answer = memsheet.trace(config, gpus="1xH200", engine="transformers", max_model_len=64)
    assert answer.plan.attention.value == "eager"
    assert any("attention = eager" in word for word in answer.assumed)
    with pytest.raises(InputError, match="attention"):
        memsheet.trace(config, gpus="1xH200", engine="transformers", max_model_len=64, attention="sdpa")
