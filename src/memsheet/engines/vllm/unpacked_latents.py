"""Families whose latents vLLM unpacks before it caches them: a key and a value of every head."""

from __future__ import annotations

from memsheet.formulas.serving.loaded import with_blocks
from memsheet.frozen import replace
from memsheet.plan.model import Attention, Block, LatentAttention, Mixer, ModelSpec

UNPACKED = frozenset({"minicpm3"})
"""By model type (v0.33.0 model_executor/models/minicpm3.py:126, Attention with as many key heads as heads;
:173, values are padded to a key's width; transformers_utils/model_arch_config_convertor.py:294 does not name
it).
"""


def with_own_caches(spec: ModelSpec) -> ModelSpec:
    """The model with what its layers keep here."""
    return with_blocks(spec, _unpacked_block) if spec.model_type in UNPACKED else spec


def _unpacked_block(block: Block) -> Block:
    return replace(block, mixers=tuple(map(_unpacked_mixer, block.mixers)))


def _unpacked_mixer(mixer: Mixer) -> Mixer:
    if not isinstance(mixer, LatentAttention):
        return mixer
    return Attention(
        path=mixer.path,
        heads=mixer.heads,
        kv_heads=mixer.heads,
        head_dim=mixer.qk_nope_head_dim + mixer.qk_rope_head_dim,
        weights=mixer.weights,
    )
