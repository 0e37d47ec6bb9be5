"""What SGLang leaves of its share of memory beside an encoder of pictures, where nobody says a share."""

from __future__ import annotations

from memsheet.engines.sglang.releases import Release, Reserve
from memsheet.plan.model import ModelSpec, Tower
from memsheet.references import SGLANG, formula

USUAL_LAYERS, USUAL_WIDTH = 24, 1024
"""A ViT-L/14, and what is taken where a vision_config has no num_hidden_layers or no hidden_size (v0.5.23
arg_groups/memory_hook.py:440-445).
"""
USUAL_SHARE, LAYERS_COST, LEAST, MOST = 0.95, 0.1, 0.8, 1.05
"""Left beside that encoder, what each such encoder's worth of weights costs, and the least and most of that
factor (:437, 459-461).
"""
COUNTED_AS_DEPTH = frozenset({
    "ernie4_5_vl_moe", "exaone4_5", "gemma3n", "gemma4_unified", "glm4v", "glm4v_moe", "qwen2_5_vl", "qwen2_vl", "qwen3_5",
    "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe",
})  # fmt: skip
"""Types whose vision_config has no num_hidden_layers: layers are its depth, or a name (transformers 5.19.0,
which v0.5.23 requires, and 4.57.1, which v0.5.4.post3 does: models/*/configuration_*.py; v0.5.23
configs/qwen3_vl.py, qwen3_5.py). transformers 5.23 has depth under that name too, which no release read
here runs on.
"""
AS_DECODER = frozenset({"qwen2_vl"})
"""Types whose vision_config says the decoder's width as hidden_size (configuration_qwen2_vl.py)."""
WITHOUT_TOWER = frozenset({"gemma4_unified"})
"""Types with a vision_config and no encoder, and neither layers nor a width in it."""
WITHOUT_CONFIG = frozenset(
    {"glmasr", "qwen2_5_omni", "qwen2_audio", "qwen3_asr", "qwen3_omni_moe", "voxtral", "whisper"}
)
"""Types that see nothing, and types whose vision_config lies below another config, where it is not looked
for (getattr of hf_config).
"""
BLIND = frozenset({"gemma3", "llama4", "step3_vl", "inkling"})
"""Types that see nothing unless --enable-multimodal says so (v0.5.23 configs/model_config.py:692,
v0.5.4.post3 :136).
"""
SHRINKING = (Reserve.TOKENS, Reserve.TOKENS_AND_CHUNKS)
"""Releases with the rule, which v0.4.8.post1 does not have."""


def encoder_of_pictures(model: ModelSpec) -> Tower | None:
    """The tower that is a vision_config's."""
    return next((tower for tower in model.towers if "audio" not in tower.path), None)


def has_vision_config(model: ModelSpec) -> bool:
    """Whether SGLang finds a vision_config, and heeds it."""
    if model.model_type in WITHOUT_CONFIG | BLIND:
        return False
    return encoder_of_pictures(model) is not None or model.model_type in WITHOUT_TOWER


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 arg_groups/memory_hook.py:417 adjust_mem_fraction_for_vlm; v0.5.4.post3 server_args.py:3890"
    ),
    counts="int",
)
def vision_share(model: ModelSpec) -> float:
    """What is left of mem_fraction_static beside a model's encoder of pictures, 0.76 to 0.9975; 1 without."""
    if not has_vision_config(model):
        return 1.0
    tower, kind = encoder_of_pictures(model), model.model_type
    layers, width = USUAL_LAYERS, USUAL_WIDTH
    if tower is not None:
        layers = USUAL_LAYERS if kind in COUNTED_AS_DEPTH else tower.stack.layers
        width = model.hidden if kind in AS_DECODER else tower.stack.hidden
    weights = layers * width**2 / (USUAL_LAYERS * USUAL_WIDTH**2)
    return USUAL_SHARE * max(LEAST, min(MOST, 1 - LAYERS_COST * (weights - 1)))


def leaves_share(release: Release) -> bool:
    """Whether a release lowers the share by this rule."""
    return release.reserve in SHRINKING
