"""Buffers of DeepEP as SGLang sizes them, for many tokens and for few: by ranks and width alone."""

from __future__ import annotations

from memsheet.arith import Count, maximum, round_up
from memsheet.formulas.serving.deepep import NODE
from memsheet.plan.dtypes import BF16, FP32, INT32, INT64
from memsheet.references import DEEPEP_BUFFERS, formula

CHANNELS, ALIGNED, FAST_TOKENS = 20 // 2, 128, 128
"""Half of the multiprocessors that send, what sizes are multiples of (csrc/kernels/legacy/compiled.cuh:9),
and tokens of a rank in the fast mode (SGLang v0.5.23 environ.py:1439).
"""
MOST_CHOICES, MOST_SCALES, META, VECTOR = 128, 128, 8, 16
"""Experts and scales that a token is reckoned to have, its source, and an int4 (csrc/legacy/config.hpp:57,
csrc/kernels/legacy/internode.cu:22).
"""
RECEIVED = {
    2: 256,
    4: 256,
    8: 256,
    16: 288,
    24: 288,
    32: 288,
    48: 288,
    64: 288,
    96: 480,
    128: 560,
    144: 720,
    160: 720,
}
"""Tokens of a channel that a rank takes over NVLink, by ranks (deep_ep/buffers/legacy.py:245)."""
SENT_AT_ONCE = {16: 20, **dict.fromkeys((24, 32, 48, 64), 8), **dict.fromkeys((96, 128, 144, 160), 12)}
FAR_RECEIVED = 128
"""Tokens of a channel that are sent and taken over the network; the latter are rounded up to a multiple of
the former (config.hpp:46).
"""


def _token_bytes(hidden: Count) -> Count:
    """A token in bf16 with its source, its experts, their weights and its scales."""
    beside = INT64.nbytes(MOST_CHOICES) + FP32.nbytes(MOST_CHOICES) + FP32.nbytes(MOST_SCALES)
    return BF16.nbytes(hidden) + META + beside


@formula(cites=DEEPEP_BUFFERS, at="csrc/legacy/config.hpp:54 get_nvl_buffer_size_hint")
def near_bytes(hidden: Count, ranks: int) -> Count:
    """Bytes of a rank's buffer for ranks that NVLink joins."""
    far, near = max(ranks // NODE, 1), min(ranks, NODE)
    size = CHANNELS * near * ((2 * far + 3) * INT32.nbytes(1) + RECEIVED[ranks] * _token_bytes(hidden))
    return round_up(size, ALIGNED)


@formula(cites=DEEPEP_BUFFERS, at="csrc/legacy/config.hpp:78 get_rdma_buffer_size_hint")
def far_bytes(hidden: Count, ranks: int) -> Count:
    """Bytes of a rank's buffer for other nodes; nothing inside one."""
    if ranks <= NODE:
        return 0
    taken = round_up(FAR_RECEIVED, SENT_AT_ONCE[ranks])
    size = (
        CHANNELS
        * (ranks // NODE)
        * ((NODE * 2 + 2) * 2 * INT32.nbytes(1) + 2 * taken * (_token_bytes(hidden) + VECTOR))
    )
    return round_up(size, ALIGNED)


@formula(
    cites=DEEPEP_BUFFERS,
    at="csrc/legacy/config.hpp:136 LowLatencyLayout: two of each, for sending, receiving and signals",
)
def fast_bytes(hidden: Count, experts: Count, tokens: Count = FAST_TOKENS) -> Count:
    """Bytes of a rank's buffer for the fast mode, in which every expert may be sent all of a rank's
    tokens.
    """
    scales = hidden // 128
    sent = VECTOR + maximum(BF16.nbytes(hidden), hidden + FP32.nbytes(scales))
    back = scales * 2 * BF16.nbytes(1) + BF16.nbytes(hidden)
    sending = maximum(tokens * sent, experts * tokens * back)
    size = 2 * (sending + experts * tokens * maximum(sent, back) + round_up(INT32.nbytes(experts), ALIGNED))
    return (size + ALIGNED) // ALIGNED * ALIGNED


@formula(
    cites=DEEPEP_BUFFERS,
    at="csrc/legacy/config.hpp:54, 78, 136: a buffer inside a node, and one that both modes share",
    counts="int",
)
def both_modes_bytes(hidden: int, experts: int, ranks: int) -> int:
    """Bytes of a rank's buffers: inside a node, and the larger of those of both modes besides."""
    return near_bytes(hidden, ranks) + maximum(far_bytes(hidden, ranks), fast_bytes(hidden, experts))
