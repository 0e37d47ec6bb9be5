"""Closed forms that papers and guides print: to check their numbers, never to answer a question (the sheet does that).

They know a parameter count or a GPT block of 2022 where the sheet knows every tensor, so the two agree only where those shapes do.
"""

from __future__ import annotations

from memsheet.arith import Count, ceil_div
from memsheet.references import FLASH, MEGATRON_SP, PAGED, SUBLINEAR, ZERO, formula
from memsheet.spec.dtypes import DType
from memsheet.spec.plan import Precision

# ---- model states --------------------------------------------------------------------------------------------------------


@formula(cites=ZERO, at="section 3.1: K = 12 under mixed precision, a master copy and two moments")
def adam_states(parameters: Count, precision: Precision) -> Count:
    """Bytes of the master copy (where there is one) and Adam's two moments."""
    master = precision.master_weights
    return (master.nbytes(parameters) if master else 0) + 2 * precision.moments.nbytes(parameters)


@formula(cites=ZERO, at="section 5, figure 1: stage 1 divides optimizer states, 2 gradients too, 3 parameters too")
def zero_states(parameters: Count, precision: Precision, *, stage: int = 0, ranks: Count = 1) -> Count:
    """Bytes of parameters, gradients and Adam's states on one of ``ranks`` data-parallel ranks."""
    weights, gradients = precision.parameters.nbytes(parameters), precision.gradients.nbytes(parameters)
    sharded = [(weights, 3), (gradients, 2), (adam_states(parameters, precision), 1)]
    return sum(ceil_div(size, ranks) if stage >= first else size for size, first in sharded)


@formula(cites=ZERO, at="section 3.1 the other way round: what is left for activations is nothing")
def largest_model(device_bytes: Count, precision: Precision, *, stage: int = 0, ranks: Count = 1) -> Count:
    """Parameters whose states alone fill a device: a bound, not a plan."""
    return device_bytes * ranks // zero_states(ranks, precision, stage=stage, ranks=ranks)


# ---- activations of the GPT block of 2022 ----------------------------------------------------------------------------------


@formula(cites=MEGATRON_SP, at="section 4.1, equation 2: 10 outside tensor parallelism, 24 inside, the last term for unfused scores")
def gpt_block_activations(s: Count, b: Count, h: Count, a: Count, t: Count = 1, *, fused: bool = False) -> Count:
    """Bytes one layer saves: 16-bit, dropout masks of one byte, GELU over 4 h, as many key heads as query heads."""
    whole = 10 * s * b * h + ceil_div(24 * s * b * h, t)
    return whole if fused else whole + ceil_div(5 * a * s * s * b, t)


@formula(cites=MEGATRON_SP, at="section 4.2.2, equation 4: sequence parallelism divides everything")
def gpt_block_activations_sequence_parallel(s: Count, b: Count, h: Count, a: Count, t: Count, *, fused: bool = False) -> Count:
    """Bytes one layer saves when the regions outside tensor parallelism are split along the sequence."""
    return ceil_div(gpt_block_activations(s, b, h, a, fused=fused), t)


@formula(cites=MEGATRON_SP, at="section 4.1 counts 34 bytes, 17 elements, a hidden unit; guides say 12 without naming a block")
def elements_rule(layers: Count, s: Count, b: Count, h: Count, dtype: DType, *, elements: int = 12) -> Count:
    """The rule of thumb of ``elements`` a hidden unit, token and layer."""
    return layers * dtype.nbytes(elements * b * s * h)


@formula(cites=FLASH, at="section 2.2: standard attention materialises the scores S of N x N a head")
def attention_scores(b: Count, a: Count, s: Count, dtype: DType) -> Count:
    """Bytes of one score matrix of one layer, which fused attention never has."""
    return dtype.nbytes(b * a * s * s)


@formula(cites=SUBLINEAR, at="section 4: the input of every segment, and the inside of one")
def segmented(layers: Count, every: Count, layer_bytes: Count, input_bytes: Count) -> Count:
    """Activations at the peak when segments of ``every`` layers are recomputed, for equal layers."""
    return ceil_div(layers, every) * input_bytes + every * layer_bytes


# ---- paged caches ----------------------------------------------------------------------------------------------------------


@formula(cites=PAGED, at="section 4.1: a block holds the keys and values of a fixed number of tokens")
def pages(cache_bytes: Count, bytes_per_token: Count, page_tokens: Count) -> Count:
    """Whole pages that fit into a cache."""
    return cache_bytes // (bytes_per_token * page_tokens)


@formula(cites=PAGED, at="section 4.3: a sequence's last block is the only one that may be partly empty")
def paged_sequences(page_count: Count, tokens: Count, page_tokens: Count) -> Count:
    """Sequences of ``tokens`` each that a number of pages can hold."""
    return page_count // ceil_div(tokens, page_tokens)


@formula(cites=PAGED, at="section 3.1, figure 2: slots reserved and never written")
def idle_share(used: float, reserved: float) -> float:
    """The share of a reservation that holds nothing."""
    return 1 - used / reserved
