"""``torch.nn.DataParallel``: one process with a copy of the model on every card. A batch is divided over
them, and the first card gathers what the copies return and the gradients of all of them (pytorch/pytorch
v2.13.0 torch/nn/parallel/data_parallel.py, forward; torch/nn/parallel/_functions.py, Broadcast, Gather).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memsheet.exchange.shared.file_format import Moved, Values
from memsheet.exchange.shared.read_only_rows import positive_count

DATA_PARALLEL, DEVICES = "data_parallel", "devices"
"""What wraps the model, and how many cards it is given where the text lists them."""
OF_LOGIT, OF_OWN_LOSS = 4, 4 + 4 + 4
"""Bytes a gathered logit at most, in fp32: itself; a cast of it, its logarithm and its gradient, where a
script makes the loss of what was gathered.
"""
OF_CACHE = 2 * 4
"""Keys and values of an element of a layer, which a model of transformers' returns beside its logits where
nothing switches its cache off, as the Trainer does (trainer.py, use_cache): gathered, too.
"""


def rows_of_card(batch: Any, devices: Any, ranks: int) -> int | None:
    """Rows of the largest part of a batch that is divided over the cards (torch/nn/parallel/comm.py, scatter:
    as torch.chunk does); None where the batch is not known.
    """
    rows, cards = positive_count(batch), min(ranks, positive_count(devices) or ranks)
    return -(-rows // cards) if rows else None


def gathered_moves(asked: Values, *, own_loop: bool) -> Iterator[Moved]:
    """What the first card has beside a process of its own, in bytes: a gradient of each parameter once more,
    as Broadcast.backward adds all of them up at once, and outputs of the other cards. Gradients are added up
    when the activations are gone already. ``own_loop``: of a script that may do anything with outputs.
    """
    others = asked["@ranks"] - 1
    if others < 1:
        return
    outputs = asked["@vocab"] * OF_LOGIT
    if own_loop:
        outputs += asked["@vocab"] * OF_OWN_LOSS + asked["@layers"] * asked["@hidden"] * OF_CACHE
    gathered = (others + 1) * asked["@tokens"] * outputs
    why = (
        f"one process runs a copy of the model on each of {others + 1} cards and divides its batch over "
        "them; the first card, which the sheet is of, gathers outputs and gradients of all, and the others "
        "need less"
    )
    yield Moved(
        at="nn.DataParallel",
        why=why,
        low_bytes=-asked["@exchanged"],
        high_bytes=asked["@exchanged"] + gathered,
    )
