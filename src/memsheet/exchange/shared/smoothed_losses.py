"""What options of transformers' Trainer come to beside a step: noise on embeddings, labels that are smoothed
outside of the model's own loss, and a cache that is emptied inside the step (trainer.py:2085-2089).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import Moved

NOISE = ("neftune_noise_alpha", "noisy_embedding_alpha")
"""NEFTune, as the Trainer and axolotl's older releases call it."""
SMOOTHING, EMPTIES = "label_smoothing_factor", "torch_empty_cache_steps"
FP32_BYTES = 4
BESIDE_PLAIN, BESIDE_PIECES = 3, 5
"""Matrices of fp32 logits at the most, beside a loss of the whole logits, which holds them and their
logarithms itself, and beside one in pieces, which holds neither: the Trainer takes the labels away from the
model (transformers 5.23.0 trainer.py:2155), and LabelSmoother keeps the logits, their logarithms and the
opposites of these, backward two gradients of the logarithms, their sum and its opposite
(trainer_pt_utils.py:449-480).
"""


def smoothing_moves(values: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[Moved]:
    """The most that each adds, none of it at the least: a method with a loss of its own smooths nothing,
    and noise is gone before the peak of most steps.
    """
    tokens, hidden, vocab = (int(asked.get(at) or 0) for at in ("@tokens", "@hidden", "@vocab"))
    if _is_asked(values.get(EMPTIES)):
        why = "cached blocks go back before backward: less may be reserved, as much is allocated"
        yield Moved(at=EMPTIES, why=why, low_bytes=0, high_bytes=0)
    for at in NOISE:
        if _is_asked(values.get(at)):
            # the noise and the sum stand beside the embeddings (integrations/neftune.py:46-47)
            most = 2 * tokens * hidden * FP32_BYTES
            yield Moved(at=at, why="noise on embeddings, and their sum", low_bytes=0, high_bytes=most)
    if _is_asked(values.get(SMOOTHING)):
        matrices = BESIDE_PLAIN if asked.get("@loss") == "plain" else BESIDE_PIECES
        yield Moved(
            at=SMOOTHING,
            why="logarithms of the logits, their opposites and gradients, outside of the model's loss",
            low_bytes=0,
            high_bytes=matrices * tokens * vocab * FP32_BYTES,
        )


def _is_asked(value: Any) -> bool:
    return value not in (None, False, 0, 0.0, "", "null", "none", "0", "0.0")
