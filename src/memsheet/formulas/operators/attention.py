"""Attention's arithmetic: keys that a query sees, and what a head multiplies for each."""

from __future__ import annotations

from typing import Any

from memsheet.arith import Count, minimum
from memsheet.plan.model import Attention, CrossAttention, LatentAttention
from memsheet.references import DEEPSEEK_V2, FLASH, formula

Attending = Attention | LatentAttention | CrossAttention


@formula(cites=FLASH, at="section 3: a head multiplies queries by keys, and what it makes of them by values")
def head_width(mixer: Attending) -> Count:
    """Elements of a key and a value of one head."""
    if isinstance(mixer, LatentAttention):
        return mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim
    return 2 * mixer.head_dim


@formula(
    cites=DEEPSEEK_V2, at="section 2.1.2: the up-projections absorbed, a head multiplies the latent itself"
)
def decoding_head_width(mixer: Attending) -> Count:
    """The same while one token is made over a cache."""
    if isinstance(mixer, LatentAttention):
        return 2 * mixer.kv_lora_rank + mixer.qk_rope_head_dim
    return head_width(mixer)


@formula(
    cites=FLASH, at="section 3.1.1: a causal mask leaves half of the scores; a window or chunk fewer of them"
)
def mean_attended_keys(mixer: Attending, before: Count, fresh: Count) -> Any:
    """Keys that a query sees, on average over ``fresh`` tokens after ``before`` others, of a causal mask."""
    if getattr(mixer, "window", None) is None and getattr(mixer, "chunk", None) is None:
        return before + fresh / 2
    after = before + fresh
    return (_attended_pairs(mixer, after) - _attended_pairs(mixer, before)) / fresh


def _attended_pairs(mixer: Attending, tokens: Count) -> Any:
    """Pairs of a query and a key among the first tokens of a sequence."""
    chunk = getattr(mixer, "chunk", None)
    if chunk is not None and getattr(mixer, "window", None) is None:
        last = tokens % chunk
        return (tokens - last) * chunk / 2 + last * last / 2
    seen = minimum(tokens, mixer.window)  # type: ignore[union-attr, arg-type]
    return seen * tokens - seen * seen / 2
