"""What vLLM's samplers take, by release: a sort of each row, a copy of the logits, counts that are kept of
every request.
"""

from __future__ import annotations

from memsheet.arith import Count, at_least, ceil_div, where
from memsheet.engines.vllm.releases import Sampler
from memsheet.formulas.serving.sampling import masked_sampler_bytes
from memsheet.plan.dtypes import FP32, INT32, INT64, DType
from memsheet.references import PAGED_SERVER_CODE, TORCH_SORT, formula

SEGMENTED_ROWS, WIDE_ROW = 128, 1_000_000
"""From so many rows on torch sorts them as segments, and rows from this length on one by one (Sort.cu,
launch_stable_sort_kernel).
"""


@formula(
    cites=TORCH_SORT,
    at=(
        "launch_stable_sort_kernel: indices of 8 bytes and cub's second copies of keys and indices; below "
        "128 rows two of (row, place) more"
    ),
)
def sort_scratch_bytes(rows: Count, width: Count) -> Count:
    """Bytes beside the sorted values and indices while fp32 rows are sorted."""
    segments = rows * (INT64.nbytes(width) + FP32.nbytes(width) + INT64.nbytes(width))
    whole = rows * (2 * INT64.nbytes(width) + 2 * FP32.nbytes(width) + INT64.nbytes(width))
    one_by_one = INT64.nbytes(width) + FP32.nbytes(width) + INT64.nbytes(width)
    by_count = where(at_least(rows, SEGMENTED_ROWS), segments, where(at_least(rows, 2), whole, one_by_one))
    return where(at_least(width, WIDE_ROW), one_by_one, by_count)


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 v1/sample/sampler.py:85 to float32, ops/topk_topp_sampler.py:157 sort, with the logits of "
        "the model still there"
    ),
)
def sorted_sampler_bytes(rows: Count, width: Count, dtype: DType) -> Count:
    """Bytes at the sampler's peak: logits, their fp32 copy, sorted values, their places, and the sort's
    own.
    """
    logits = dtype.nbytes(rows * width) + (0 if dtype is FP32 else FP32.nbytes(rows * width))
    return logits + FP32.nbytes(rows * width) + INT64.nbytes(rows * width) + sort_scratch_bytes(rows, width)


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 v1/worker/gpu/sample/penalties.py:43: how often each token was made, and a bit for each "
        "of the prompt's"
    ),
)
def sampler_state_bytes(sequences: Count, width: Count) -> Count:
    """Bytes that a stateful sampler keeps for all sequences it may serve."""
    return INT32.nbytes(sequences * width) + INT32.nbytes(sequences * ceil_div(width, INT32.bits))


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.24.0 v1/worker/gpu/sample/sampler.py: an fp32 copy; v0.30.0: none where no request asks for "
        "anything"
    ),
)
def unmasked_sampler_bytes(rows: Count, width: Count, dtype: DType, *, copied: bool) -> Count:
    """Bytes at the sampler's peak where nothing is filtered: the logits, and their fp32 copy."""
    return dtype.nbytes(rows * width) + (FP32.nbytes(rows * width) if copied else 0)


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v1/sample/ops/topk_topp_sampler.py: which sampler is the default of a release "
        "(memsheet/engines/vllm/facts.py)"
    ),
)
def sampler_bytes(sampler: Sampler, rows: Count, width: Count, dtype: DType) -> Count:
    """Bytes at the peak of a release's sampler."""
    match sampler:
        case Sampler.SORTED:
            return sorted_sampler_bytes(rows, width, dtype)
        case Sampler.MASKED | Sampler.COUNTED:
            return masked_sampler_bytes(rows, width, dtype)
        case Sampler.COPIED | Sampler.PLAIN:
            return unmasked_sampler_bytes(rows, width, dtype, copied=sampler is Sampler.COPIED)
