"""A requested size → a tensor of the model that a text names or prints: a weight, weights gathered whole, a
rank's flat states, what a layer makes of its tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from memsheet.diagnose.candidates import BOTH_KNOWN, WIDTHS, Axes, Candidate, fit_of, fits_by_chance
from memsheet.diagnose.interval import Interval
from memsheet.diagnose.message import Term
from memsheet.diagnose.model_tensors import (
    ranks_in_text,
    units_of_models,
    weights_of_models,
    widths_of_models,
)
from memsheet.diagnose.named_models import printed_weights
from memsheet.diagnose.signs import BACKWARD, LOGITS, SERVERS, STEP_SIZES, Frame, Signs

OF_WEIGHTS = ("parameters", "optimizer_states", "unsharded_parameters", "master_weights", "gradients")
"""Components of which a single tensor may be a whole weight, or as large as one."""
FLAT = ("optimizer_states", "master_weights", "gradients", "unsharded_parameters")
"""Components that wrappers keep as one tensor of many weights."""
FUSED_LOSS = re.compile(r"\bfused_linear_cross_entropy(?:_forward)?\b|LigerFusedLinearCrossEntropy")
GRADIENT = Frame("gradients", "head", "the output projection's gradient, which such a loss makes in forward")
"""linkedin/Liger-Kernel v0.6.2, src/liger_kernel/ops/fused_linear_cross_entropy.py."""
WEIGHT_GRADIENT = Frame("gradients", "model", "a weight's gradient, made in backward")
LAYER = Frame("saved_activations", "model", "a layer")
_DTYPE = re.compile(r"\b(?:torch_)?dtype[\"']?\s{0,3}[=:]\s{0,3}[\"']?(?:torch\.)?b?f(?:loat|p)?(16|32)\b")
"""Bits in which weights are loaded, where a text says it."""


class Sized(NamedTuple):
    """A tensor before its size is compared."""

    component: str
    path: str
    axes: tuple[int, ...]
    width: int
    dtype: str
    words: str
    rank: int = BOTH_KNOWN

    @property
    def size(self) -> int:
        size = self.width
        for axis in self.axes:
            size *= axis
        return size


def model_terms(asked: Interval, signs: Signs, axes: Axes) -> Iterator[Candidate]:
    """All that fit."""
    yield from _fitting(asked, [*_weights(signs), *_units(signs)])
    made = [
        each
        for each in _activations(signs, axes)
        if each.size // 2 <= asked.high and asked.low <= 2 * each.size
    ]
    if made and not fits_by_chance(asked, -(-len({each.size for each in made}) // 2)):
        yield from _fitting(asked, made)


def _fitting(asked: Interval, tensors: list[Sized]) -> Iterator[Candidate]:
    for each in tensors:
        if fit := fit_of(asked, each.size):
            yield Candidate((each.rank, fit), Term(
                component=each.component, path=each.path, shape=f"[{', '.join(map(str, each.axes))}] {each.dtype}",
                exact=fit == 2, words=each.words,
            ))  # fmt: skip


def _weights(signs: Signs) -> Iterator[Sized]:
    """A weight, its gradient or a state of it, whole or a share of its rows."""
    frame = _frame_of_weights(signs)
    if frame is None:
        return
    fused = signs.program in SERVERS
    halves = frame.component not in ("optimizer_states", "master_weights") and set(
        _DTYPE.findall(signs.text)
    ) == {"16"}
    shapes = {axes: words for words, axes in printed_weights(signs.text, fused=fused)}
    shapes |= {each.axes: each.words for each in weights_of_models(signs.text, fused=fused)}
    for (rows, *others), words in shapes.items():
        for parts in (1, 2, 4, 8) if fused or signs.program == "Megatron-LM" else (1,):
            for width, dtype in WIDTHS[1:] if fused or halves else WIDTHS:
                if rows % parts == 0:
                    part, share = rows // parts, f" of {parts} ranks" if parts > 1 else ""
                    product = " × ".join(f"{axis:,}" for axis in (part, *others))
                    yield Sized(
                        frame.component, frame.path, (part, *others), width, dtype,
                        f"{dtype} {words}{share}, {product} × {width} bytes ({frame.words})",
                        BOTH_KNOWN if parts == 1 else BOTH_KNOWN - 1,
                    )  # fmt: skip


def _frame_of_weights(signs: Signs) -> Frame | None:
    frame = signs.frame
    if frame is LOGITS:
        return GRADIENT if FUSED_LOSS.search(signs.text) else None
    if frame is BACKWARD:
        return WEIGHT_GRADIENT
    return frame if frame is STEP_SIZES or (frame and frame.component in OF_WEIGHTS) else None


def _units(signs: Signs) -> Iterator[Sized]:
    """Many weights as one tensor, whole or a rank's share."""
    frame = signs.frame
    if frame is None or frame.component not in FLAT:
        return
    for elements, words in ((each.elements, each.words) for each in units_of_models(signs.text)):
        for ranks in ranks_in_text(signs.text) if frame.component != "unsharded_parameters" else (1,):
            part, share = -(-elements // ranks), f", one of {ranks} ranks' share" if ranks > 1 else ""
            for width, dtype in WIDTHS:
                yield Sized(
                    frame.component, frame.path, (part,), width, dtype,
                    f"{words} as one{share}: {part:,} × {width} bytes in {dtype} ({frame.words})",
                )  # fmt: skip


def _activations(signs: Signs, axes: Axes) -> Iterator[Sized]:
    """What a layer makes of the tokens that a text names; of equal products that of the most tokens, as a
    length is given with its batch.
    """
    frame = signs.frame
    if frame is not None and frame is not BACKWARD and frame.component != "saved_activations":
        return
    told = frame if frame is not None and frame is not BACKWARD else LAYER
    rank = BOTH_KNOWN if told is frame else BOTH_KNOWN - 1
    found: dict[tuple[str, int], Sized] = {}
    for of_token in widths_of_models(signs.text):
        for count in axes.counts:
            product = " × ".join(f"{axis:,}" for axis in (count, *of_token.axes))
            for width, dtype in WIDTHS:
                made = Sized(
                    told.component, told.path, (count, *of_token.axes), width, dtype,
                    f"{dtype} {of_token.words} of {count:,} tokens: {product} × {width} bytes", rank,
                )  # fmt: skip
                found[of_token.words, made.size] = made
    yield from found.values()
