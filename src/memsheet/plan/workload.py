"""What a job is asked to do: the steps that it trains in, or the lengths that it serves."""

from __future__ import annotations

from memsheet.arith import Count, given_or
from memsheet.frozen import dataclass
from memsheet.plan.dtypes import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class PassShape:
    """What enters the layers at once: so many sequences, of so many tokens each."""

    sequences: Count
    tokens: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A micro-batch is ``microbatch`` sequences of ``seq_len`` tokens, of which pictures take
    ``image_tokens``. A step has a ``global_batch`` of sequences, None for one micro-batch on each
    data-parallel rank; ``varied``: seq_len is the longest of lengths that differ from step to step.
    ``virtual_tokens``: learned ones that an adapter puts before every sequence.
    """

    microbatch: Count
    seq_len: Count
    global_batch: Count | None = None
    image_tokens: Count = 0
    varied: bool = False
    virtual_tokens: int = 0

    @property
    def length(self) -> Count:
        """Tokens of a sequence in the layers."""
        return self.seq_len + self.virtual_tokens

    @property
    def shape(self) -> PassShape:
        """What one micro-batch brings into the layers."""
        return PassShape(sequences=self.microbatch, tokens=self.length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Lengths in tokens; ``max_sequences`` counts per replica, ``max_batched_tokens`` what one pass computes.
    The first ``shared_prefix_tokens`` of every prompt are the same for all. ``seq_len``: the length as it was
    said by training's word, which the document repeats and nothing else reads. ``phase``: "load" where the
    weights are loaded and no more. ``pooled``: sequences that a pool of pages is of where no card says its
    size; None: as many as may be started.
    """

    max_model_len: Count | None = None
    max_sequences: Count | None = None
    max_batched_tokens: Count | None = None
    prompt_tokens: Count | None = None
    output_tokens: Count | None = None
    shared_prefix_tokens: int = 0
    seq_len: int | None = None
    phase: str | None = None
    pooled: Count | None = None

    @property
    def cached_sequences(self) -> Count:
        """Sequences that a pool holds where no card says its size."""
        return given_or(self.pooled, given_or(self.max_sequences, 1))


Workload = Training | Serving
"""What a plan is for; its type says which of the two tasks it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCache:
    """Keys and values of what is served: their dtype, the tokens of a page, and the share of the card that
    weights and a pool of pages take; None where there is no such pool.
    """

    kv_dtype: DType | None = None
    page_tokens: int | None = None
    memory_fraction: float | None = None
