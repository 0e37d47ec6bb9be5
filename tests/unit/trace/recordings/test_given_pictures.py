"""Pictures that a step is given stand in its record once, whatever steps ran before it."""

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import memsheet
from memsheet.sheet import Component, Instant
from memsheet.trace.recordings import record

pytestmark = pytest.mark.usefixtures("warm_children")

TEXT = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 500,
    "num_hidden_layers": 5, "cross_attention_layers": [1, 3], "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 64, "attention_heads": 4, "num_hidden_layers": 2, "num_global_layers": 1,
    "image_size": 56, "intermediate_layers_indices": [0], "vision_output_dim": 64,
}  # fmt: skip
MLLAMA = {"model_type": "mllama", "text_config": TEXT, "vision_config": VISION}
TILES, POINTS = 4, 3 * 56 * 56


@pytest.mark.parametrize("size", [{"several": True}, {"sequences": 3, "tokens": 1024}])
def test_pictures_are_on_record_once(size):
    words = {"attention": "sdpa", "precision": "bf16-pure", **size}
    run = record.record_run(
        MLLAMA,
        record._plan_of({key: words[key] for key in ("attention", "precision")}),
        record._stack_of(json.dumps(MLLAMA)),
        record._sizes_of(words, None),
    )
    pictures = [terms for path, terms in run.shared if path == "pixel_values"]
    a_sequence = 2 * TILES * POINTS
    assert pictures == [((a_sequence, 1, 0),) if "several" in size else ((3 * a_sequence, 0, 0),)]
    assert len(run.layers) == 2  # that attend to words, and to the picture


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_tower_before_the_layers_is_run_again_as_they_are(recompute):
    """Instant by instant: what the tower keeps, autocast's copies of its weights, and what goes with each."""
    plan = {"seq_len": 320, "precision": "bf16-autocast", "attention": "eager", "recompute": recompute}
    predicted, traced = (ask(MLLAMA, microbatch=2, **plan) for ask in (memsheet.train, memsheet.trace))
    for instant in (Instant.FORWARD, Instant.LOSS, Instant.BACKWARD):
        said, seen = (tensor_bytes(answer.sheets[0], instant) for answer in (predicted, traced))
        assert said == pytest.approx(seen, rel=2e-3), instant


def tensor_bytes(sheet, instant):
    """Of all tensors of a model: the answers are of no device, whose libraries have memory of their own."""
    own = {Component.WORKSPACES, Component.CONTEXT, Component.ALLOCATOR_SLACK}
    held = (one for one in sheet.items if one.component not in own)
    return sum(int(one.at[instant].value) for one in held if instant in one.at)
