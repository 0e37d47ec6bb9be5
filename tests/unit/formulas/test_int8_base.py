"""Adapters over LLM.int8(): what its layers hold, what a checkpoint does not drop, how far outliers open the
range.
"""

import pytest

import memsheet
from memsheet.errors import InputError
from memsheet.sheet import Component, Instant

pytestmark = pytest.mark.usefixtures("warm_children")
CARD = "1xA100-80GB"
SMALL = {
    "model_type": "llama", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
INT8 = {
    "seq_len": 128,
    "microbatch": 2,
    "lora_rank": 4,
    "lora_targets": ("q_proj", "v_proj"),
    "quantize": "int8",
}
OUTSIDE = (Component.CONTEXT, Component.WORKSPACES, Component.ALLOCATOR_SLACK)


def predicted(**how):
    return memsheet.train(SMALL, gpus=CARD, fix=False, **{**INT8, **how}).sheets[0]


def tensors(sheet, instant):
    return sum(
        item.at[instant].value for item in sheet.items if instant in item.at and item.component not in OUTSIDE
    )


def saved(sheet, end="value", name=""):
    items = [
        item
        for item in sheet.items
        if item.component is Component.SAVED_ACTIVATIONS and item.path.endswith(name)
    ]
    return sum(getattr(item.at[Instant.LOSS], end) for item in items if Instant.LOSS in item.at)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(
    "precision",
    ["bf16-pure", *(pytest.param(other, marks=pytest.mark.slow) for other in ("bf16-autocast", "fp32"))],
)
def test_formulas_and_trace_agree_at_every_instant(precision, recompute):
    pytest.importorskip("peft")
    how = {**INT8, "precision": precision, "recompute": recompute}
    traced = memsheet.trace(SMALL, gpus=CARD, **how).sheets[0]
    sheet = predicted(**how)
    for instant in (Instant.LOAD, Instant.FORWARD, Instant.LOSS, Instant.BACKWARD, Instant.OPTIMIZER_STEP):
        assert tensors(sheet, instant) == pytest.approx(tensors(traced, instant), rel=0.005), instant


def test_a_row_has_a_scale_and_ends_stay_as_they_are():
    sheet = predicted(precision="bf16-pure")
    matrices = {
        "q": (64, 64),
        "k": (32, 64),
        "v": (32, 64),
        "o": (64, 64),
        "gate": (160, 64),
        "up": (160, 64),
        "down": (64, 160),
    }
    rows = [
        item for item in sheet.items if item.component is Component.PARAMETERS and item.path.endswith("_proj")
    ]
    assert sum(item.at[Instant.LOAD].value for item in rows) == 4 * sum(
        out * width + 4 * out for out, width in matrices.values()
    )
    (head,) = (
        item for item in sheet.items if item.component is Component.PARAMETERS and item.path == "lm_head"
    )
    assert head.at[Instant.LOAD].value == 2 * 320 * 64


@pytest.mark.parametrize("microbatch", [1, 3])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_outliers_are_none_to_all_columns_of_every_input_and_the_reason_is_said(recompute, microbatch):
    sheet = predicted(recompute=recompute, microbatch=microbatch)
    assert saved(sheet, "low", "outliers") == 0 < saved(sheet, "value", "outliers")
    assert saved(sheet, "high", "outliers") == 4 * 2 * microbatch * 128 * (6 * 64 + 160)
    assert any("outlier" in note for note in sheet.notes)


def test_a_checkpoint_drops_what_is_saved_and_not_what_a_layer_holds():
    kept = {
        item.path.split("*.")[-1]
        for item in predicted(recompute="full").items
        if item.component is Component.SAVED_ACTIVATIONS
    }
    assert {"input_layernorm/output", "post_attention_layernorm/output", "mlp/product"} <= kept
    four_bits, rows = saved(predicted(recompute="full", quantize="nf4")), predicted(recompute="full")
    assert saved(rows) > four_bits
    assert saved(rows, "low") == four_bits  # where it is reentrant, it drops them
    assert any("reentrant" in note for note in rows.notes)


REFUSED = [
    ({"engine": "fsdp2"}, "quantization.weights"), ({"engine": "torchtune"}, "quantization.weights"), ({"engine": "litgpt"}, "quantization.weights"),
    ({"engine": "torchtitan"}, "quantization.weights"), ({"engine": "megatron"}, "quantization.weights"),
    ({"engine": "deepspeed", "zero": 3}, "quantization.weights"), ({"plan": {"adapter": {"kind": "dora"}}}, "adapter.kind"), ({"lora_rank": None, "lora_targets": None}, "quantization.weights"),
    ({"recompute": "selective", "recompute_modules": ("mlp",)}, "recompute"), ({"recompute": "full", "recompute_every": 2}, "recompute"),
    ({"offload": "activations"}, "offload.activations"),
]  # fmt: skip


@pytest.mark.parametrize(("how", "field"), REFUSED)
def test_what_is_not_modelled_over_it_is_refused_by_name(how, field):
    asked = {key: value for key, value in {**INT8, **how}.items() if value is not None}
    with pytest.raises(InputError) as refused:
        memsheet.train(SMALL, gpus="2xA100-80GB" if "engine" in how else CARD, fix=False, **asked)
    assert field in {problem.field for problem in refused.value.problems}


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_deepspeed_keeps_it_whole(zero):
    sheet = memsheet.train(
        SMALL, gpus="2xA100-80GB", engine="deepspeed", zero=zero, fix=False, **INT8
    ).sheets[0]
    rows = {
        item.path: item.at[Instant.LOAD].value
        for item in sheet.items
        if item.component is Component.PARAMETERS and "_proj" in item.path
    }
    alone = {
        item.path: item.at[Instant.LOAD].value
        for item in predicted().items
        if item.component is Component.PARAMETERS
    }
    assert {path: size for path, size in rows.items() if "lora" not in path} == {
        path: alone[path] for path in rows if "lora" not in path
    }
    assert saved(sheet, "value", "outliers")
