"""What choosing the next token of every sequence takes where no row is sorted."""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.plan.dtypes import FP32, DType
from memsheet.references import FLASHINFER, formula


@formula(
    cites=FLASHINFER,
    at=(
        "top_k_top_p_sampling_from_logits: masked logits and their softmax, beside the logits and their "
        "fp32 copy"
    ),
)
def masked_sampler_bytes(rows: Count, width: Count, dtype: DType) -> Count:
    """Bytes at the sampler's peak where no row is sorted; torch's own softmax and noise take as much."""
    return (
        dtype.nbytes(rows * width)
        + (0 if dtype is FP32 else FP32.nbytes(rows * width))
        + 2 * FP32.nbytes(rows * width)
    )
