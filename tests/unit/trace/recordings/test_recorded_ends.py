"""What lies before and around the layers on record, beside a trace of the same code."""

from functools import partial

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

import memsheet

pytestmark = pytest.mark.usefixtures("warm_children")
NO_MORE_THAN = 1e-3
slow = partial(pytest.param, marks=pytest.mark.slow)
STEP = {"attention": "eager", "optimizer": "sgd", "microbatch": 2, "seq_len": 160}
ONE = {**STEP, "gpus": "1xH200", "recompute": "full"}
FUSED = {**ONE, "loss": "fused", "attention": "sdpa"}
EIGHT = {**STEP, "gpus": "8xH200", "engine": "fsdp2"}
PER_LAYER = {
    "model_type": "gemma4_text", "vocab_size": 20_000, "vocab_size_per_layer_input": 30_000, "hidden_size": 512,
    "intermediate_size": 1024, "num_hidden_layers": 12,
}  # fmt: skip
POSITIONS = {
    "model_type": "biogpt",
    "num_hidden_layers": 3,
    "max_position_embeddings": 4096,
    "vocab_size": 4096,
}
ENCODED = {"model_type": "blenderbot-small", "encoder_layers": 6, "decoder_layers": 3, "vocab_size": 4096}

SEVERAL_TABLES = {
    "model_type": "marian", "encoder_layers": 2, "decoder_layers": 3, "vocab_size": 4096, "decoder_vocab_size": 4096, "pad_token_id": 4095,
}  # fmt: skip
WRITTEN = {"model_type": "bert", "num_hidden_layers": 3, "vocab_size": 4096}
SHARED_BIAS = {"model_type": "camembert", "num_hidden_layers": 3, "vocab_size": 4096}
PARTS = {"model_type": "mbart", "encoder_layers": 2, "decoder_layers": 3, "vocab_size": 4096}
HEADS = {
    "model_type": "musicgen", "text_encoder": {"model_type": "t5", "num_layers": 2, "d_model": 256},
    "audio_encoder": {"model_type": "encodec"}, "decoder": {"model_type": "musicgen_decoder", "num_hidden_layers": 3, "hidden_size": 512},
}  # fmt: skip
NAMED_TUPLES = {
    **HEADS, "model_type": "musicgen_melody",
    "decoder": {"model_type": "musicgen_melody_decoder", "num_hidden_layers": 12, "hidden_size": 512},
}  # fmt: skip
"""Whose loop over layers names what each returned until the next has: attention's weights."""
COLLECTED_STATES = {
    "model_type": "deberta-v2", "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 9, "num_attention_heads": 4,
    "type_vocab_size": 0,
}  # fmt: skip
"""Whose loop over layers collects the states of all of them, whoever asks for them."""
SHARED_POSITIONS = {
    "model_type": "udop", "d_model": 256, "d_ff": 512, "num_layers": 2, "num_decoder_layers": 4, "num_heads": 8, "d_kv": 32, "vocab_size": 2048,
    "tie_word_embeddings": False, "decoder_start_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
"""Whose first layer makes a bias that all layers add to and that asks for a gradient."""
UNTIED = {
    "model_type": "persimmon", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 8000,
    "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "plan"),
    [
        (UNTIED, FUSED),  # the gradient of its head is made in forward
        slow(UNTIED, {**FUSED, "gradient_accumulation": 2}),
        slow(
            PER_LAYER, {**ONE, "precision": "bf16-pure"}
        ),  # a table whose gradients come behind the first layer
        slow(PER_LAYER, {**EIGHT, "recompute": "full"}),  # the root's own
        slow(POSITIONS, EIGHT),
        slow(ENCODED, {**ONE, "precision": "bf16-autocast"}),  # an encoder, whose layers run again too
        slow(SEVERAL_TABLES, EIGHT),  # one weight in four modules, of which one never runs; a buffer in fp32
        slow(WRITTEN, EIGHT),  # layers that are written down, with a head that was compared on one GPU alone
        slow(SHARED_BIAS, EIGHT),  # a head that shares its bias with what is around it
        (SHARED_BIAS, {**ONE, "lora_rank": 8}),  # looked up words that ask for a gradient, and wait for it
        (NAMED_TUPLES, {**ONE, "seq_len": 640}),
        (COLLECTED_STATES, {**ONE, "recompute": "none", "precision": "bf16-autocast"}),
        slow(SHARED_POSITIONS, {**ONE, "seq_len": 1300}),
        (PARTS, EIGHT),  # layers of which the library names parts
        slow(ENCODED, {**EIGHT, "zero": 2}),  # an encoder whose layers stay gathered until their backward
        slow(HEADS, EIGHT),  # a list of heads; a table of which a holder never runs
    ],
)
def test_a_record_says_at_the_peak_what_a_trace_says(config, plan):
    (told,), (seen,) = (ask(config, **plan).sheets for ask in (memsheet.train, memsheet.trace))
    assert told.allocated.value == pytest.approx(seen.allocated.value, rel=NO_MORE_THAN)
    assert told.peak_instant is seen.peak_instant


def test_layers_are_whole_where_the_library_names_parts_of_them():
    (sheet,) = memsheet.train(PARTS, **EIGHT, fix=False).sheets
    assert any("fsdp_transformer_layer_cls_to_wrap: MBartDecoderLayer,MBart" in note for note in sheet.notes)


def test_a_list_of_heads_that_accelerate_groups_is_named():
    (sheet,) = memsheet.train(HEADS, **EIGHT, fix=False).sheets
    assert any("accelerate groups decoder.lm_heads" in note for note in sheet.notes)


def test_a_weight_that_two_groups_would_have_is_named():
    (sheet,) = memsheet.train(SEVERAL_TABLES, **EIGHT, fix=False).sheets
    assert any(
        "model.encoder.embed_tokens.weight" in note and "torch 2.13 refuses" in note for note in sheet.notes
    )
