"""What one token's cache is made of, as factors that a person can multiply."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from memsheet.formulas.serving.kv_cache import caching_layers, kv_elements_per_token
from memsheet.plan.dtypes import DType
from memsheet.plan.model import Attention, LatentAttention, Mixer, ModelSpec
from memsheet.report.screen.layout import join_phrases
from memsheet.report.shared.look import Look

SHOWN = 2
"""Kinds of layers on the line; with more, the sum says less than it hides."""


def token_factors(spec: ModelSpec, dtype: DType, total_bytes: int) -> str:
    """``28 layers × 2 (keys, values) × 4 heads × 128 wide × 2 bytes``; empty where those factors are not all
    of ``total_bytes``.
    """
    size = int(dtype.nbytes(1))
    counts: dict[tuple[tuple[int, str], ...], int] = {}
    for _, mixer, layers in caching_layers(spec):
        if kv_elements_per_token(mixer):
            counts[_cache_element_factors(mixer)] = counts.get(_cache_element_factors(mixer), 0) + layers
    bytes_ = sum(layers * size * prod(number for number, _ in factors) for factors, layers in counts.items())
    if bytes_ != total_bytes or not 0 < len(counts) <= SHOWN:
        return ""
    return " + ".join(
        " × ".join((f"{layers} layers", *(word for _, word in factors), f"{size} bytes"))
        for factors, layers in counts.items()
    )


def windowed_token_words(spec: ModelSpec, dtype: DType, look: Look) -> Iterator[str]:
    """What a token takes beyond the window of layers that keep no more than that, where they all have one
    window and an engine keeps no more of them; nothing of other models.
    """
    held = [(mixer, layers) for _, mixer, layers in caching_layers(spec) if kv_elements_per_token(mixer)]
    windows = {mixer.window for mixer, _ in held if isinstance(mixer, Attention) and mixer.window}
    whole = [(mixer, n) for mixer, n in held if not (isinstance(mixer, Attention) and mixer.window)]
    if len(windows) != 1:
        return
    a_token = sum(n * int(dtype.nbytes(kv_elements_per_token(mixer))) for mixer, n in whole)
    layers = sum(n for _, n in whole)
    beyond = f"Beyond a window of {windows.pop():,} tokens it takes"
    told = (f"{beyond} {look.need(a_token, 2)},", f"of the {layers} layers without one.")
    yield join_phrases(told if layers else (f"{beyond} no more.",), look.width, between=" ")


def _cache_element_factors(mixer: Mixer) -> tuple[tuple[int, str], ...]:
    """Elements of a layer and token as (number, words). Empty for a mixer without a cache that grows."""
    match mixer:
        case Attention():
            heads, wide = mixer.kv_heads, mixer.head_dim
            if mixer.kv_width != 2 * wide:
                both = f"({wide} of a key + {mixer.kv_width - wide} of a value)"
                return (heads, f"{heads} head{'s' * (heads > 1)}"), (mixer.kv_width, both)
            return (
                (2, "2 (keys, values)"),
                (heads, f"{heads} head{'s' * (heads > 1)}"),
                (wide, f"{wide} wide"),
            )
        case LatentAttention():
            latent, rotary = mixer.kv_lora_rank, mixer.qk_rope_head_dim
            return ((latent + rotary, f"({latent} latent + {rotary} rotary)"),)
        case _:
            return ()
