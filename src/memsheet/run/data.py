"""Micro-batches to train on: random tokens, those of a text file, all of one length or of many."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import repeat
from pathlib import Path
from typing import Any

import torch

from memsheet.errors import input_error
from memsheet.frozen import replace
from memsheet.plan.plan import Plan
from memsheet.run.model import text_config_of
from memsheet.run.step import random_token_batch

MULTIPLE = 8
"""Lengths are padded to it, as collators do for tensor cores (transformers 5.23, data/data_collator.py,
pad_to_multiple_of).
"""
SEED = 0
MAX_TEXT_BYTES = 2**28
Batch = Mapping[str, torch.Tensor]


def random_sequence_lengths(seq_len: int, count: int) -> list[int]:
    """``count`` lengths from a quarter of ``seq_len`` to all of it, multiples of 8 where it is one; the same
    ones every time.
    """
    draw, step = random.Random(SEED), MULTIPLE if seq_len % MULTIPLE == 0 else 1  # noqa: S311 - no secret
    least = max(seq_len // 4 // step, 1)
    return [step * draw.randint(least, seq_len // step) for _ in range(count)]


def microbatch_stream(
    config: Any, plan: Plan, device: str, *, text: bytes | None = None, varied: list[int] | None = None
) -> Iterator[Batch]:
    """Micro-batches without end, of the plan's length, or of each of ``varied`` once. ``config``: the built
    one.

    ``text``: bytes as token ids, modulo the vocabulary, from the beginning again when it ends; else random
    tokens. Raises InputError for text that a model does not take.
    """
    if text is None and varied is None:
        yield from repeat(random_token_batch(config, plan, device))
    at = 0
    for length in varied if varied is not None else repeat(int(plan.training.seq_len)):
        now = replace(plan, workload=replace(plan.training, seq_len=length))
        if text is None:
            yield random_token_batch(config, now, device)
        else:
            yield _of_text(config, now, device, text, at)
            at += int(plan.training.microbatch) * length


def _of_text(config: Any, plan: Plan, device: str, text: bytes, at: int) -> dict[str, torch.Tensor]:
    """The micro-batch whose first token is byte ``at`` of the text."""
    vocabulary = getattr(text_config_of(config), "vocab_size", None)
    if vocabulary is None or config.is_encoder_decoder:
        raise input_error(
            "data",
            None,
            f"is text, which {config.model_type} alone is not trained on",
            "leave it out: random inputs are made",
        )
    if plan.training.image_tokens:
        raise input_error(
            "data", None, "is text, and the plan asks for pictures", "leave it out: random inputs are made"
        )
    rows, length = int(plan.training.microbatch), int(plan.training.seq_len)
    start = at % len(text)
    taken = (text[start:] + text * (rows * length // len(text) + 1))[: rows * length]
    ids = (
        (torch.frombuffer(bytearray(taken), dtype=torch.uint8).long() % vocabulary)
        .reshape(rows, length)
        .to(device)
    )
    return {"input_ids": ids, "labels": ids.clone()}


def read_text(name: str) -> bytes:
    """The bytes of a text file. Raises InputError where it is none, is empty, or has more than 256 MiB."""
    path = Path(name)
    if not path.is_file():
        raise input_error("data", name, "is not a file")
    if path.stat().st_size > MAX_TEXT_BYTES:
        raise input_error(
            "data", name, f"has more than {MAX_TEXT_BYTES >> 20} MiB", "a part of it measures the same"
        )
    with path.open("rb") as file:
        text = file.read(MAX_TEXT_BYTES)
    if not text:
        raise input_error("data", name, "is empty")
    return text
