"""Closed forms that papers and guides print, callable: ``memsheet.textbook.zero_states(7e9, stage=2,
ranks=8)``.

They know a parameter count, or a GPT block of 2022, where a sheet knows every tensor of the model that is
asked about. They are here to check published numbers with and to teach with; `memsheet train` and `memsheet
infer` never use them. Every one names its source, and where it errs. Sizes are bytes; counts may be ints,
floats that are whole (7e9), arrays or symbols.
"""

from __future__ import annotations

from memsheet.arith import Count, ceil_div
from memsheet.errors import input_error
from memsheet.plan.defaults import NAMED_PRECISIONS
from memsheet.plan.dtypes import INT8_ADAM, DType, dtype_named
from memsheet.plan.plan import Precision
from memsheet.references import (
    EIGHT_BIT,
    FLASH,
    LORA,
    MEGATRON_SP,
    PAGED,
    SUBLINEAR,
    TRANSFORMER,
    ZERO,
    formula,
)

__all__ = [
    "adam_states",
    "attention_scores",
    "eight_bit_moments",
    "gpt_block_activations",
    "gpt_block_activations_sequence_parallel",
    "hidden_rule_activations",
    "idle_share",
    "kv_token_bytes",
    "largest_model",
    "lora_parameters",
    "page_count",
    "paged_sequences",
    "recomputed_activations",
    "redundant_states",
    "tensor_pipeline_states",
    "weight_bytes",
    "zero_states",
]

# ---- weights and model states ------------------------------------------------------------------------------


@formula(cites=ZERO, at="section 3.1: 2 bytes a parameter in half precision, 4 in single")
def weight_bytes(parameters: Count | float, dtype: DType | str = "bf16") -> Count:
    """Bytes of a number of weights in one dtype (fp32, bf16, fp16, fp8, int8, int4, nf4 …).

    Where it errs: quantized checkpoints keep embeddings, norms and often the head in 16 bits; tied weights
    count once.
    """
    return _dtype_of(dtype).nbytes(_whole_count(parameters))


@formula(cites=ZERO, at="section 3.1: K = 12 under mixed precision, a master copy and two moments")
def adam_states(parameters: Count | float, precision: Precision | str = "bf16-master") -> Count:
    """Bytes of the master copy (where there is one) and Adam's two moments.

    Where it errs: engines add the step counts, flat buffers and padding; bf16-pure has moments of two bytes
    and no master.
    """
    named, count = _precision_of(precision), _whole_count(parameters)
    return (named.master_weights.nbytes(count) if named.master_weights else 0) + 2 * named.moments.nbytes(
        count
    )


@formula(
    cites=ZERO, at="section 5, figure 1: stage 1 divides optimizer states, 2 gradients too, 3 parameters too"
)
def zero_states(
    parameters: Count | float, precision: Precision | str = "bf16-master", *, stage: int = 0, ranks: Count = 1
) -> Count:
    """Bytes of parameters, gradients and Adam's states on one of ``ranks`` data-parallel ranks: 16 Φ at stage
    0.

    Where it errs: engines that accumulate gradients in fp32 take 18 or 20 Φ, autocast over fp32 weights 16;
    stage 3 gathers layers whole while they run, and none of it counts activations, buckets or the allocator.
    """
    named, count = _precision_of(precision), _whole_count(parameters)
    weights, gradients = named.parameters.nbytes(count), named.gradients.nbytes(count)
    sharded = [(weights, 3), (gradients, 2), (adam_states(count, named), 1)]
    return sum(ceil_div(size, ranks) if stage >= first else size for size, first in sharded)


@formula(cites=ZERO, at="section 3 and figure 1: every rank of plain data parallelism holds all states")
def redundant_states(
    parameters: Count | float, precision: Precision | str = "bf16-master", *, ranks: Count
) -> Count:
    """Bytes of a cluster that are copies: what ``ranks`` replicas hold beyond one set of states.

    Where it errs: a copy that another node would need to be fast is counted as waste all the same.
    """
    return (ranks - 1) * zero_states(parameters, precision)


@formula(cites=ZERO, at="section 3.1 the other way round: what is left for activations is nothing")
def largest_model(
    device_bytes: Count, precision: Precision | str = "bf16-master", *, stage: int = 0, ranks: Count = 1
) -> Count:
    """Parameters whose states alone fill ``ranks`` devices: a bound, not a plan.

    Where it errs: always too large, for activations, gathered layers, buffers and the context take room as
    well (`memsheet solve parameters` leaves room for what it can know).
    """
    return _whole_count(device_bytes) * ranks // zero_states(ranks, precision, stage=stage, ranks=ranks)


@formula(cites=ZERO, at="section 3.1, on an even share of the parameters a tensor and pipeline rank")
def tensor_pipeline_states(
    parameters: Count | float,
    precision: Precision | str = "bf16-master",
    *,
    tp: int,
    pp: int,
    dp: int = 1,
    stage: int = 1,
) -> Count:
    """Bytes of states on one rank of tp · pp · dp, the parameters split evenly over tp · pp.

    Where it errs: the first and the last stage hold the embeddings and the head, norms are whole on every tp
    rank, and layers that pp does not divide leave stages uneven.
    """
    return zero_states(ceil_div(_whole_count(parameters), tp * pp), precision, stage=stage, ranks=dp)


@formula(cites=EIGHT_BIT, at="section 2: two moments of 8 bits, and an fp32 scale a block of each")
def eight_bit_moments(parameters: Count | float) -> Count:
    """Bytes of both moments of an 8-bit Adam, scales included.

    Where it errs: tensors below 4,096 elements and embeddings keep fp32 moments; a master copy, where there
    is one, stays.
    """
    return 2 * INT8_ADAM.nbytes(_whole_count(parameters))


@formula(cites=LORA, at="section 4.1: two matrices of r · (in + out) beside each one that is adapted")
def lora_parameters(rank: Count, *shapes: tuple[Count, Count]) -> Count:
    """Trained parameters of LoRA on matrices of ``shapes`` (out, in).

    Where it errs: fused projections (one matrix for q, k, v) are one matrix, not three; DoRA adds a vector a
    matrix.
    """
    return sum(rank * (out + into) for out, into in shapes)


# ---- activations of the GPT block of 2022 ------------------------------------------------------------------


@formula(
    cites=MEGATRON_SP,
    at="section 4.1, equation 2: 10 outside tensor parallelism, 24 inside, the last term for unfused scores",
)
def gpt_block_activations(
    s: Count, b: Count, h: Count, a: Count, t: Count = 1, *, fused: bool = False
) -> Count:
    """Bytes one layer saves, s b h (10 + 24/t + 5 a s/(h t)): 34 s b h + 5 a s² b at t = 1; ``fused``
    attention drops the last.

    Where it errs: it is the block of 2022: 16-bit, dropout masks of one byte, GELU over 4 h, as many key
    heads as query heads. A Llama's block has a gated feed-forward, RMS norms, no dropout and grouped heads.
    """
    whole = 10 * s * b * h + ceil_div(24 * s * b * h, t)
    return whole if fused else whole + ceil_div(5 * a * s * s * b, t)


@formula(cites=MEGATRON_SP, at="section 4.2.2, equation 4: sequence parallelism divides everything")
def gpt_block_activations_sequence_parallel(
    s: Count, b: Count, h: Count, a: Count, t: Count, *, fused: bool = False
) -> Count:
    """Bytes one layer saves when the regions outside tensor parallelism are split along the sequence.

    Where it errs: as ``gpt_block_activations``; and inputs that are gathered for a matrix product are kept
    split or whole depending on the engine.
    """
    return ceil_div(gpt_block_activations(s, b, h, a, fused=fused), t)


@formula(
    cites=MEGATRON_SP,
    at="section 4.1 counts 34 bytes, 17 elements, a hidden unit; guides say 12 without naming a block",
)
def hidden_rule_activations(
    layers: Count, s: Count, b: Count, h: Count, dtype: DType | str = "bf16", *, elements: int = 12
) -> Count:
    """The rule of thumb of ``elements`` a hidden unit, token and layer: 12 B T H.

    Where it errs: nobody says which block it is of; the feed-forward's width, the heads and the loss are not
    in it, and the logits of a large vocabulary may be larger than all of it.
    """
    return layers * _dtype_of(dtype).nbytes(elements * b * s * h)


@formula(cites=FLASH, at="section 2.2: standard attention materialises the scores S of N x N a head")
def attention_scores(b: Count, a: Count, s: Count, dtype: DType | str = "bf16") -> Count:
    """Bytes of one score matrix of one layer, b · a · s²; fused attention keeps one number a row instead (4
    bytes · b · a · s).

    Where it errs: eager attention keeps more than one of them (scores, their softmax in fp32, dropout's
    mask).
    """
    return _dtype_of(dtype).nbytes(b * a * s * s)


@formula(cites=SUBLINEAR, at="section 4: the input of every segment, and the inside of one")
def recomputed_activations(layers: Count, every: Count, layer_bytes: Count, input_bytes: Count) -> Count:
    """Activations at the peak when segments of ``every`` layers are recomputed, for equal layers.

    Where it errs: while a segment is recomputed its gradients and temporaries are alive as well, and the
    logits are not in it.
    """
    return ceil_div(layers, every) * input_bytes + every * layer_bytes


# ---- caches ------------------------------------------------------------------------------------------------


@formula(cites=TRANSFORMER, at="section 3.2: a key and a value of head_dim for every head and layer")
def kv_token_bytes(layers: Count, kv_heads: Count, head_dim: Count, dtype: DType | str = "bf16") -> Count:
    """Bytes of one token's keys and values: layers · 2 · kv_heads · head_dim · bytes.

    Where it errs: sliding windows stop growing, latent attention keeps a compressed pair, state spaces a
    state of fixed size; ranks beyond kv_heads hold copies.
    """
    return layers * _dtype_of(dtype).nbytes(2 * kv_heads * head_dim)


@formula(cites=PAGED, at="section 4.1: a block holds the keys and values of a fixed number of tokens")
def page_count(cache_bytes: Count, bytes_per_token: Count, page_tokens: Count = 16) -> Count:
    """Whole pages that fit into a cache.

    Where it errs: servers keep a page back for padding, and group layers of different windows into pages of
    one size.
    """
    return cache_bytes // (bytes_per_token * page_tokens)


@formula(cites=PAGED, at="section 4.3: a sequence's last block is the only one that may be partly empty")
def paged_sequences(pages: Count, tokens: Count, page_tokens: Count = 16) -> Count:
    """Sequences of ``tokens`` each that a number of pages can hold.

    Where it errs: shared prefixes are stored once, and sequences are rarely all at their longest.
    """
    return pages // ceil_div(tokens, page_tokens)


@formula(cites=PAGED, at="section 3.1, figure 2: slots reserved and never written")
def idle_share(used: float, reserved: float) -> float:
    """The share of a reservation that holds nothing, 0 to 1.

    Where it errs: it is of one sequence, not of a cache whose sequences come and go.
    """
    return 1 - used / reserved


# ---- what people write -------------------------------------------------------------------------------------


def _dtype_of(dtype: DType | str) -> DType:
    found = dtype_named(dtype) if isinstance(dtype, str) else dtype
    if found is None:
        raise input_error(
            "dtype", dtype, "is none that memsheet knows", "for example fp32, bf16, fp8, int8, int4 or nf4"
        )
    return found


def _precision_of(precision: Precision | str) -> Precision:
    if isinstance(precision, Precision):
        return precision
    if precision not in NAMED_PRECISIONS:
        raise input_error(
            "precision", precision, "is none that has a name", f"one of {', '.join(NAMED_PRECISIONS)}"
        )
    return NAMED_PRECISIONS[precision]


def _whole_count(count: Count | float) -> Count:
    """7e9 as 7000000000: the way people write counts."""
    if isinstance(count, float):
        if not count.is_integer():
            raise input_error("count", count, "is not a whole number", "write for example 7e9")
        return int(count)
    return count
