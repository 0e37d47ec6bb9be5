"""Layers that read an earlier one's keys and values (Gemma 4): SGLang builds their projections and
their place in the pools all the same.
"""

from __future__ import annotations

from dataclasses import replace

from memsheet.plan.model import Attention, Block, Mixer, ModelSpec, Weight
from memsheet.references import SGLANG, formula


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 models/gemma4_causal.py:358 a projection to keys and values in every layer; "
        "configs/model_config.py:2703 get_hybrid_layer_ids: every layer has its place in a pool"
    ),
)
def with_unshared_layers(spec: ModelSpec) -> ModelSpec:
    """The model with keys and values of its own in every layer."""
    if not any(isinstance(mixer, Attention) and mixer.shares_kv for mixer in spec.mixers()):
        return spec
    stacks = tuple(
        replace(
            stack,
            runs=tuple(replace(run, pattern=tuple(map(_unshared_block, run.pattern))) for run in stack.runs),
        )
        for stack in spec.stacks
    )
    return replace(spec, stacks=stacks)


def _unshared_block(block: Block) -> Block:
    return replace(block, mixers=tuple(map(_unshared_mixer, block.mixers)))


def _unshared_mixer(mixer: Mixer) -> Mixer:
    if not isinstance(mixer, Attention) or not mixer.shares_kv:
        return mixer
    own = [
        _key_or_value(weight, mixer, name)
        for weight in mixer.weights
        if ".q_proj." in weight.path
        for name in ("k_proj", "v_proj")
    ]
    norm = mixer.qk_norm
    if norm is not None:
        keys = (replace(weight, path=weight.path.replace("q_norm", "k_norm")) for weight in norm.weights)
        norm = replace(norm, weights=(*norm.weights, *keys))
    return replace(mixer, shares_kv=False, qk_norm=norm, weights=(*mixer.weights, *own))


def _key_or_value(query: Weight, mixer: Attention, name: str) -> Weight:
    """The projection to keys or values as wide as the layer's own heads."""
    shape = (mixer.kv_heads * mixer.head_dim, *query.shape[1:])
    return replace(query, path=query.path.replace("q_proj", name), shape=shape, units=mixer.kv_heads)
