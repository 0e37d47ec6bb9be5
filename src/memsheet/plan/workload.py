"""What a job is asked to do: the batch that its layers are given at once, and the lengths that it serves."""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.frozen import dataclass
from memsheet.plan.dtypes import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What enters the layers at once: ``microbatch`` sequences of ``seq_len`` tokens, of which pictures take
    ``image_tokens``. A step of training has a ``global_batch`` of sequences, None for one micro-batch on each
    data-parallel rank; ``varied``: seq_len is the longest of lengths that differ from step to step.
    """

    microbatch: Count
    seq_len: Count
    global_batch: Count | None = None
    image_tokens: Count = 0
    varied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Lengths in tokens; ``max_sequences`` counts per replica, ``max_batched_tokens`` what one pass computes.
    The first ``shared_prefix_tokens`` of every prompt are the same for all.
    """

    max_model_len: Count | None = None
    max_sequences: Count | None = None
    max_batched_tokens: Count | None = None
    prompt_tokens: Count | None = None
    output_tokens: Count | None = None
    shared_prefix_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCache:
    """Keys and values of what is served: their dtype, the tokens of a page, and the share of the card that
    weights and a pool of pages take; None where there is no such pool.
    """

    kv_dtype: DType | None = None
    page_tokens: int | None = None
    memory_fraction: float | None = None
