"""A model of few of its layers, built of few or cut down: of the same kinds, numbered anew."""

import json
import math

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from memsheet.run.model import build_config, build_model, layers_of, without_layers
from memsheet.trace.recordings import record
from memsheet.trace.recordings.kinds import layer_kinds
from memsheet.trace.recordings.observe import NotRecordableError
from memsheet.trace.recordings.shallow import Shallow, build_shallow_model

SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 500,
    "num_hidden_layers": 12, "max_position_embeddings": 4096,
}  # fmt: skip
PLAN = record._plan_of({"precision": "bf16-pure", "attention": "eager"})
MIXED = ["sliding_attention", "sliding_attention", "full_attention"] * 4
CONFIGS = {
    "llama": SMALL,
    "olmo3": {**SMALL, "sliding_window": 64, "layer_types": MIXED},
    "zamba2": {
        **SMALL, "attention_head_dim": 32, "num_key_value_heads": 4, "n_mamba_heads": 2, "mamba_d_state": 16,
        "hybrid_layer_ids": [3, 9], "layers_block_type": ["hybrid" if n in (3, 9) else "mamba" for n in range(12)],
    },
}  # fmt: skip


@pytest.mark.parametrize("built_whole", [False, True])
@pytest.mark.parametrize("kind", CONFIGS)
def test_few_layers_are_those_of_the_whole_model_and_numbered_anew(kind, built_whole):
    config = {"model_type": kind, **CONFIGS[kind]}
    whole = layer_kinds(build_model(build_config(config, PLAN), PLAN, "meta"))
    kept = (0, 1, 3, 4, 11)
    model = build_shallow_model(config, PLAN, Shallow(kept, built_whole=built_whole), "meta")
    found = layer_kinds(model)
    assert [whole[n] == whole[m] for n in kept for m in kept] == [a == b for a in found for b in found]
    for place, layer in enumerate(layers_of(model)):
        numbers = {vars(module).get("layer_idx") for module in layer.modules()}
        assert numbers <= {place, None, -1}  # -1: of the shared block, which has none


def test_lists_of_layer_numbers_follow_the_layers():
    settings = build_config({"model_type": "zamba2", **CONFIGS["zamba2"]}, PLAN)
    assert without_layers(settings, {1, 2, 9}).hybrid_layer_ids == [1]
    assert len(settings.layers_block_type) == settings.num_hidden_layers == 9


def test_last_layers_that_take_others_keys_stay_the_last():
    """A config of fewer layers than those is refused, and a model that is cut down instead has tables for
    all layers of the whole one."""
    config = {
        "model_type": "gemma4_text", **SMALL, "layer_types": MIXED, "num_kv_shared_layers": 5,
        "hidden_size_per_layer_input": 16,
    }  # fmt: skip
    assert without_layers(build_config(config, PLAN), {1, 2, 8, 10}).num_kv_shared_layers == 3
    stack = record._stack_of(json.dumps(config))
    assert stack.shallow.whole
    assert record.record_run(config, PLAN, stack, record.ONE)


@pytest.mark.parametrize("kind", ["beam", "big_bird", "diffllama"])
def test_layers_that_say_their_own_place_in_any_words_are_of_one_kind(kind):
    config = {"model_type": kind, "num_hidden_layers": 8}
    found = record._stack_of(json.dumps(config))
    assert len(set(found.model.kinds)) < 8
    assert len(found.shallow.kept) < 8


def test_weights_that_layers_share_are_counted_once_and_train_on_no_record():
    config = {"model_type": "zamba2", **CONFIGS["zamba2"]}
    stack = record._stack_of(json.dumps(config))
    layers, sizes = stack.model.layers, [sum(map(elements, layer)) for layer in stack.model.layers]
    assert len(layers) > 1
    counted = sum(sizes[kind] for kind in stack.model.kinds) + sum(map(elements, stack.model.others))
    built = build_model(build_config(config, PLAN), PLAN, "meta")
    assert counted == sum(one.numel() for one in built.parameters())
    with pytest.raises(NotRecordableError, match="share weights"):
        record.record_run(config, PLAN, stack, record.ONE)


def elements(one):
    return 0 if one.kind == "buffer" else math.prod(one.shape)
