"""Gemma 1 to 3 (text): scaled embeddings, norms with an offset, from the second on a norm before and after
each branch.

Defaults and tensor names are those of the configuration and modeling classes in transformers 5.23.0.
"""

from __future__ import annotations

from memsheet.frozen import replace
from memsheet.plan.model import Arrangement, ModelSpec, NormKind
from memsheet.readers.dense import Ask, QkNorm, Recipe, Sizes, read_dense
from memsheet.readers.fields import Fields
from memsheet.readers.positions import every_nth_full

_BIAS = Ask("attention_bias")
_GEMMA = Recipe(
    sizes=Sizes(3072, 256000, 16, 16, 256, 24576, 28, 8192), norm=NormKind.RMS_OFFSET,
    qkv_bias=_BIAS, out_bias=_BIAS, activation="gelu_pytorch_tanh", embeddings_scaled=True, tied=True,
)  # fmt: skip
_GEMMA2 = replace(
    _GEMMA, sizes=Sizes(2304, 256000, 8, 4, 256, 9216, 26, 8192), arrangement=Arrangement.SANDWICH,
    norms=("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    activation_key="hidden_activation", positions=every_nth_full(2, 4096, fixed=True),
    softcap=50.0, head_softcap=("final_logit_softcapping", 30.0),
)  # fmt: skip
RECIPES: dict[str, Recipe] = {
    "gemma": replace(_GEMMA, gelu_means_tanh=True),
    "gemma2": _GEMMA2,
    # attn_logit_softcapping is in gemma3's configuration too, but its attention does not use it
    "gemma3_text": replace(
        _GEMMA2, sizes=Sizes(2304, 262208, 8, 4, 256, 9216, 26, 131072), qk_norm=QkNorm(over="head"),
        positions=every_nth_full(6, 4096, bidirectional=True), softcap=None, head_softcap=("final_logit_softcapping", None),
    ),
}  # fmt: skip


def read(config: Fields, prefix: str = "model") -> ModelSpec:
    return read_dense(config, RECIPES[config.text("model_type", default="gemma3_text")], prefix)
