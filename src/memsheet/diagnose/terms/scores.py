"""A requested size → attention scores written out: sequences × heads × length², or a mask of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from memsheet.diagnose.candidates import (
    BOTH_KNOWN,
    IN_16_BITS,
    POWERS,
    WIDTHS,
    Axes,
    Candidate,
    Widths,
    fit_of,
    fits_by_chance,
    raises,
)
from memsheet.diagnose.figures import PAGE
from memsheet.diagnose.frames import SCORES
from memsheet.diagnose.interval import Interval
from memsheet.diagnose.log_programs import DRAWS
from memsheet.diagnose.message import Term
from memsheet.diagnose.model_tensors import (
    cut_in_text,
    has_sinks,
    heads_of_towers,
    patches_in_text,
)
from memsheet.diagnose.named_models import fixed_lengths
from memsheet.diagnose.signs import Signs
from memsheet.diagnose.terms.text_axes import latents_of_pictures, latents_of_unets

_OF_PRODUCT = re.compile(r"\b(?:matmul|bmm|einsum)\(|\w @ \w")


_IN_FULL = re.compile(r"--no-half(?!-vae)\b|--precision[ =]full\b|--force-fp32\b|\bprecision: float32\b")
"""What takes weights in 32 bits where 16 are usual (AUTOMATIC1111/stable-diffusion-webui v1.10.1,
modules/cmd_args.py; comfyanonymous/ComfyUI v0.3.10, comfy/cli_args.py; invoke-ai/InvokeAI, precision).
"""


def scores_terms(asked: Interval, signs: Signs, axes: Axes) -> Iterator[Candidate]:
    """Sequences × heads × length²: of what is named alone; where scores asked and no length is named, of a
    common one.
    """
    cut = cut_in_text(signs.text)
    shares = [heads // cut for heads in axes.heads if cut > 1 and heads % cut == 0]
    heads_of_rank = tuple(dict.fromkeys((*axes.heads, *shares)))
    batches = tuple(dict.fromkeys((*axes.batches, 1)))
    sizes = {
        (batch, heads, length): BOTH_KNOWN - (bool(axes.batches) and batch not in axes.batches)
        for length in axes.lengths for heads in (*heads_of_rank, MASK) for batch in batches
    }  # fmt: skip
    sizes |= {
        (1, heads, count): BOTH_KNOWN for heads in heads_of_towers(signs.text) for count in patches_in_text(signs.text)
    }  # fmt: skip
    sizes |= {
        (batch, heads, positions): BOTH_KNOWN for heads, positions in fixed_lengths(signs.text) for batch in batches
    }  # fmt: skip
    sizes |= {
        (batch, 1, tokens): BOTH_KNOWN for tokens in latents_of_pictures(signs.text) for batch in batches
    }
    if signs.frame is SCORES and not axes.lengths:
        common = [
            (batch, heads, length)
            for length in sorted(POWERS) for heads in heads_of_rank for batch in axes.batches
        ]  # fmt: skip
        by_chance = fits_by_chance(asked, 2 * len(axes.batches) * len(heads_of_rank))
        sizes = {**dict.fromkeys([] if by_chance else common, BOTH_KNOWN - 1), **sizes}
    found = dict.fromkeys(_solved_scores(asked, signs, axes)) if signs.frame is SCORES else {}
    solved = [each for each in found if each not in sizes]
    sizes |= dict.fromkeys(solved, BOTH_KNOWN - 1)
    sinks = has_sinks(signs.text)
    makes_mask = signs.frame is SCORES or "mask" in signs.code or bool(_MAKES_MASK.search(signs.text))
    for width, dtype in _widths_of_scores(signs):
        for ((batch, heads, length), rank), more in itertools.product(
            sizes.items(), (0, 1) if sinks else (0,)
        ):
            if fit := fit_of(asked, batch * max(heads, 1) * length * (length + more) * width):
                counted = f"{batch} × {heads} heads" if heads else f"{batch}"
                what = "attention scores" if heads else "a mask of attention"
                words = f"{dtype} {what} of {counted} × {length:,}²"
                words += f" and a sink × {width} bytes" if more else f" × {width} bytes"
                yield Candidate((rank, fit), Term(
                    component="saved_activations", path=SCORES.path if heads else "attention/mask", words=words,
                    exact=(batch, heads, length) not in solved and (batch in axes.batches or not axes.batches)
                    and (heads != MASK or makes_mask),
                    shape=f"[{batch}, {max(heads, 1)}, {length}, {length + more}] {dtype}",
                ))  # fmt: skip


HEADS = (4, 6, 8, 10, 12, 14, 16, 20, 24, 25, 28, 32, 36, 40, 48, 52, 56, 64, 71, 80, 96, 112, 128)
HEADS_OF_UNETS = (8, 16, 5, 10)
"""Heads of the widest attention of Stable Diffusion 1 and 2, of a picture and of one beside what it is to be
without its prompt (CompVis/stable-diffusion, configs/stable-diffusion/v1-inference.yaml, num_heads: 8;
Stability-AI/stablediffusion, configs/stable-diffusion/v2-inference.yaml, num_head_channels: 64 of 320).
"""
ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256)
"""Heads that models have, and rows of a batch."""
OF_HEADS, OF_ROWS = 5, 3
"""The most of each between a number and its double."""


def _solved_scores(asked: Interval, signs: Signs, axes: Axes) -> Iterator[tuple[int, int, int]]:
    """Sequences, heads and length where attention scores asked, of which a text says two: the third is what
    the size leaves, where that is a common number and not so by chance; the same of a picture's latents.
    """
    fixed = () if axes.batches else fixed_lengths(signs.text)
    counted = itertools.product(axes.batches or (1,), axes.lengths) if not axes.heads else ()
    pairs = dict.fromkeys((*counted, *((1, length) for length in latents_of_unets(signs.text))))
    of_heads = [pair for pair in pairs if pair[1] not in POWERS]  # of which any power of two is a multiple
    rounded = Interval(max(1, asked.low - PAGE), asked.high)
    if fits_by_chance(rounded, OF_HEADS * len(of_heads) + OF_ROWS * len(fixed)):
        return
    for width, _ in _widths_of_scores(signs):
        for length, heads in itertools.product(latents_of_unets(signs.text), HEADS_OF_UNETS):
            if length in POWERS and fit_of(asked, heads * length * length * width):
                yield 1, heads, length
        for (batch, length), heads in itertools.product(of_heads, HEADS):
            if fit_of(asked, batch * heads * length * length * width):
                yield batch, heads, length
        for (heads, length), batch in itertools.product(fixed, ROWS):
            if fit_of(asked, batch * heads * length * length * width):
                yield batch, heads, length


MASK = 0
"""In place of heads: what all of them have in common; its length is any width's, too."""
_MAKES_MASK = re.compile(r"\w*mask\w*\s?=\s?torch\.")


def _widths_of_scores(signs: Signs) -> Widths:
    """Bytes of an element, where the line of code that asked says whether scores are raised there, or are
    what a product of queries and keys in 16 bits is.
    """
    if raises(signs.code):
        return WIDTHS[:1]
    if signs.program in DRAWS and not _IN_FULL.search(signs.text):
        return tuple(reversed(WIDTHS))
    return WIDTHS[1:] if _OF_PRODUCT.search(signs.code) and IN_16_BITS.search(signs.text) else WIDTHS
