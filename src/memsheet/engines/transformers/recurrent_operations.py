"""What layers with a state take in torch's plain operations, where their optional kernels are not installed:
gated delta nets and state spaces.
"""

from __future__ import annotations

from functools import reduce

from memsheet.arith import Count, ceil_div, maximum
from memsheet.engines.transformers.forward_work import Work
from memsheet.formulas.model_code.transformers.blocks import unmodelled_block_reason
from memsheet.formulas.serving.kv_cache import recurrent_elements
from memsheet.plan.dtypes import FP32
from memsheet.plan.model import Block, LinearAttention, StateSpace
from memsheet.plan.plan import Plan
from memsheet.references import TRANSFORMERS, formula
from memsheet.sheet import Bytes


def runs_delta_rule(block: Block) -> bool:
    """Whether a layer's mixer is a gated delta net, whose operations are listed for training."""
    return unmodelled_block_reason(block) is None and any(
        isinstance(m, LinearAttention) for m in block.mixers
    )


@formula(
    cites=TRANSFORMERS,
    at=(
        "torch_recurrent_gated_delta_rule (modeling_qwen3_next.py:512-577), which runs where "
        "flash-linear-attention is not installed: the decayed state, its update and their sum; rows in fp32"
    ),
)
def delta_step_bytes(mixer: LinearAttention, work: Work) -> Count:
    """A token over a gated delta net's state."""
    rows = mixer.value_heads * (2 * mixer.key_head_dim + 4 * mixer.value_head_dim)
    return work.sequences * work.tokens * FP32.nbytes(rows + 3 * recurrent_elements(mixer))


def scan_bytes(block: Block, plan: Plan, work: Work) -> Bytes:
    """What a state space's scan takes in torch's plain operations. Low: with mamba-ssm's kernels."""
    scans = [m for m in block.mixers if isinstance(m, StateSpace)]
    if isinstance(work.cached, int) and work.cached == 0:
        sizes = [_chunked_scan_bytes(m, work) for m in scans if m.kind == "mamba2"]
    else:
        sizes = [_state_step_bytes(m, plan, work) for m in scans if m.kind in ("mamba", "mamba2")]
    most = reduce(maximum, sizes, 0)
    return Bytes(0, most, most)


@formula(
    cites=TRANSFORMERS,
    at=(
        "mamba2_chunk_scan (modeling_mamba2.py:257): what is named at its last sum, and while einsum copies "
        "M, then C, for a product, in fp32"
    ),
)
def _chunked_scan_bytes(mixer: StateSpace, work: Work) -> Count:
    """A scan in chunks over prompts: at its last sum, at the products inside chunks and at those with the
    chunks' states. Each names so many tensors of the width, of heads with a state, of heads with a chunk.
    """
    chunks = ceil_div(work.tokens, mixer.chunk)  # which prompts are padded to (chunk_size of the config)
    tokens, state = work.sequences * chunks * mixer.chunk, work.sequences * mixer.inner * mixer.state

    def named(widths: int, states: int, pairs: int, of_chunks: Count) -> Count:
        a_token = widths * mixer.inner + mixer.heads * (states * mixer.state + pairs * mixer.chunk + 4)
        return FP32.nbytes(tokens * a_token + of_chunks * state)

    moments = (named(7, 3, 3, chunks + 2), named(4, 2, 4, 0), named(4, 4, 3, 2 * chunks + 2))
    return reduce(maximum, moments)


@formula(
    cites=TRANSFORMERS,
    at=(
        "mamba2_selective_state_update (modeling_mamba2.py:195) and mamba_selective_state_update "
        "(modeling_falcon_mamba.py:143): dA, dB, dBx, the decayed state and their sum"
    ),
)
def _state_step_bytes(mixer: StateSpace, plan: Plan, work: Work) -> Count:
    """A token over a state: five tensors of its size, of which Mamba 2 makes dB and dBx as it computes, and
    there B for every head.
    """
    elements = work.sequences * mixer.inner * mixer.state
    if mixer.kind == "mamba":
        return 5 * FP32.nbytes(elements)
    repeated = work.sequences * mixer.heads * mixer.state
    return 3 * FP32.nbytes(elements) + plan.precision.compute.nbytes(2 * elements + repeated)
