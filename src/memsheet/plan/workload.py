"""What a job is asked to do: train on sequences, or serve them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """``global_batch`` is in sequences per optimizer step; None means one micro-batch per data-parallel
    rank.
    """

    seq_len: int
    global_batch: int | None = None
    target_len: int | None = None
    image_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Lengths in tokens; ``max_sequences`` counts per replica."""

    max_model_len: int
    max_sequences: int
    max_batched_tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None


Workload = Training | Serving
