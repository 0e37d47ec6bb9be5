"""Every activation that a configuration may name, as transformers runs it (ACT2FN)."""

from __future__ import annotations

import pytest

import memsheet
from memsheet.formulas.model_code.transformers.feed_forward import ACTIVATIONS
from memsheet.sheet import Component, Instant

pytestmark = pytest.mark.usefixtures("warm_children")
SMALL = {
    "model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "hidden_size": 64, "intermediate_size": 1024, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 320, "max_position_embeddings": 512, "rotary_pct": 0.25, "tie_word_embeddings": False,
}  # fmt: skip
OUTSIDE = (Component.CONTEXT, Component.WORKSPACES, Component.ALLOCATOR_SLACK, Component.BUFFERS)
UNLISTED = {"gelu_10", "gelu_python", "laplace", "prelu", "sqrtsoftplus", "xielu"}
"""Of the library's: what a clip and erf keep is not written down, nor one that trains, nor two that no
language model's feed-forward has; one is of its family.
"""
OF_FAMILIES = {"bloom_gelu"}


def tensors(sheet, instant):
    return sum(
        item.at[instant].value for item in sheet.items if instant in item.at and item.component not in OUTSIDE
    )


USUAL = ("gelu_fast", "gelu_new", "silu")


@pytest.mark.parametrize(
    "activation",
    [
        *USUAL,
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in sorted({*ACTIVATIONS} - OF_FAMILIES - {*USUAL})
        ),
    ],
)
@pytest.mark.parametrize("precision", ["bf16-pure", "bf16-autocast"])
def test_formulas_and_trace_agree_at_every_instant(activation, precision):
    config = {**SMALL, "hidden_act": activation}
    how = {"seq_len": 512, "microbatch": 1, "precision": precision}
    traced = memsheet.trace(config, gpus="1xA100-80GB", **how).sheets[0]
    sheet = memsheet.train(config, gpus="1xA100-80GB", fix=False, **how).sheets[0]
    for instant in Instant.FORWARD, Instant.LOSS, Instant.BACKWARD, Instant.OPTIMIZER_STEP:
        assert tensors(sheet, instant) == pytest.approx(tensors(traced, instant), rel=1e-3), instant


def test_every_activation_of_the_library_is_listed_or_said_to_be_none():
    transformers = pytest.importorskip("transformers.activations")
    assert set(transformers.ACT2CLS) - set(ACTIVATIONS) == UNLISTED


def test_no_bundled_models_activation_is_missing():
    from memsheet import catalog

    keys = ("hidden_act", "activation_function", "hidden_activation")
    named = {
        config[key]
        for name in catalog.model_names()
        for config in [catalog.find_model(name)["config"]]
        for key in keys
        if isinstance(config.get(key), str)
    }
    assert "gelu_fast" in named
    in_own_code = {"swigluoai"}  # gate and product of MiniMax-M3's layers, in no table of the library
    assert not named - set(ACTIVATIONS) - UNLISTED - in_own_code
