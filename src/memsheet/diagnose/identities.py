"""A requested size → the tensor that it is: a product of the model's axes, the text's lengths and a dtype.

A printed size has a width of some ten thousandths, and the allocator rounds what it must newly reserve up to
whole pages. So a product is only told where its factors are known, or where one alone fits.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

from memsheet.diagnose.candidates import BOTH_KNOWN, OF_SHEET, Axes, Candidate, fit_of
from memsheet.diagnose.frames import BACKWARD, LOGITS, PREDICTIONS, SCORES, STEP_SIZES, Frame
from memsheet.diagnose.interval import Interval
from memsheet.diagnose.message import Term
from memsheet.diagnose.model_tensors import has_scans
from memsheet.diagnose.signs import Signs
from memsheet.diagnose.terms.logits import logits_terms, predictions_terms
from memsheet.diagnose.terms.of_model import EITHER, WEIGHT, model_terms
from memsheet.diagnose.terms.scores import scores_terms
from memsheet.diagnose.terms.text_axes import axes_of_evaluation, axes_with_text
from memsheet.frozen import replace
from memsheet.units import MIB

LEAST = 10 * MIB
"""Smaller requests get no segment of their own size (c10/cuda/CUDACachingAllocator.h, kMinLargeAlloc)."""
MOST_NAMED, MOST_NEAR = 8, 2
"""More tensors than these are told apart by nothing that a text says."""
SEGMENTS = (2 * MIB, 20 * MIB)
"""What the allocator takes for smaller requests (c10/cuda/CUDACachingAllocator.h, kSmallBuffer,
kLargeBuffer): says nothing of their own size.
"""


def tensor_of(asked: Interval, signs: Signs, known: Axes) -> Term | None:
    """The tensor that a request is, or the first of those that it may as well be; None where nothing fits, or
    too much does.
    """
    if asked.high < LEAST or any(asked.low <= size <= asked.high for size in SEGMENTS):
        return None
    axes = axes_of_evaluation(axes_with_text(known, signs.text), signs)
    found: dict[tuple[str, str, str], Candidate] = {}
    terms = (
        *model_terms(asked, signs, axes),
        *_candidate_terms(asked, signs, axes),
        *_buffer_terms(asked, signs),
    )
    for each in terms:
        key = each.term.component, each.term.path, each.term.shape
        known_as = found.get(key)
        if known_as is None or each.rank > known_as.rank:
            found[key] = each
        elif each.rank == known_as.rank and each.term.words not in known_as.term.words:
            found[key] = known_as._replace(term=_called_both(known_as.term, each.term))
    founded = max((each.rank[0] for each in found.values()), default=0)
    best = sorted(
        (each for each in found.values() if each.rank[0] == founded), key=lambda each: -each.rank[1]
    )
    if not best:
        return None
    if founded < BOTH_KNOWN - 1:
        fitting = [each for each in best if each.rank[1] == best[0].rank[1]]
        near = [each.term for each in best[1:] if each.rank[1] == 1]
        few = len(fitting) == 1 and best[0].rank[1] == 2 and len(near) <= MOST_NEAR
        return _first_of([best[0].term, *(near if few else ())]) if len(fitting) == 1 else None
    if founded == OF_SHEET:
        fits = [each.term for each in best if each.rank[1] == best[0].rank[1]]
        products = [each.term for each in found.values() if each.rank[0] == BOTH_KNOWN and each.term.exact]
        return _term_of_sheet(fits, products[0] if len(products) == 1 and best[0].rank[1] == 2 else None)
    in_step = signs.frame is None and not signs.code and axes.tokens
    equals = sorted(
        (each.term for each in best),
        key=lambda each: (not each.exact, EITHER in each.shape, bool(in_step) and each.component == WEIGHT.component),
    )  # fmt: skip
    if len(equals) == 1 and signs.frame in (None, BACKWARD) and has_scans(signs.text):
        return replace(equals[0], exact=False)  # whose loops make tensors of many more sizes
    return _first_of(equals) if len(equals) <= MOST_NAMED else None


_COUNTED = re.compile(r"(?<![\w.:/-])(\d{1,3}(?:[,_]\d{3})+|\d{2,12})(?![\w:/]|\.\d)")
MOST_COUNTED, LEAST_AXIS, LEAST_FLAT = 48, 48, 10**6


_HIDDEN = re.compile(
    r"\b(?:hidden(?:[_ ]?(?:size|dim))?|d_model|n_embd|embedding[_ ](?:size|dim))[\"']?"
    r"(?:\s{0,2}[:=]\s{0,2}|\s)(\d{2,5})\b",
    re.IGNORECASE,
)
"""The width of a model, as configurations and people call it."""


def _is_embedding(axes: tuple[int, ...], text: str) -> bool:
    """Whether two counts are what a text calls its vocabulary and its width."""
    vocabularies = axes_with_text(Axes(), text).vocabularies
    widths = {int(each) for each in _HIDDEN.findall(text)}
    return len(axes) == 2 and any(
        one in vocabularies and other in widths for one, other in (axes, axes[::-1])
    )


def product_of_text(asked: Interval, text: str) -> Term | None:
    """What an exact number of bytes is a product of: one count or two that a text says, or three of which two
    are alike, and the bytes of an element. A power of two is a product of anything.
    """
    size = asked.low
    if asked.high != size or size < LEAST or size & (size - 1) == 0:
        return None
    said = (int(re.sub("[,_]", "", each)) for each in _COUNTED.findall(text))
    counts = [each for each in dict.fromkeys(said) if LEAST_AXIS <= each < size][:MOST_COUNTED]
    flat = [(each,) for each in counts if each >= LEAST_FLAT]
    pairs = [
        pair for pair in itertools.combinations_with_replacement(counts, 2) if max(pair) >= 2 * LEAST_AXIS
    ]
    for axes, width in itertools.product((*flat, *pairs), (4, 2, 8, 1)):
        if math.prod(axes) * width == size:
            product = " × ".join(f"{axis:,}" for axis in axes)
            if _is_embedding(axes, text):
                return Term(
                    component="parameters", path="embeddings", shape=f"[{', '.join(map(str, axes))}] of {width} bytes", exact=False,
                    words=f"embedding or output projection, {product} × {width} bytes, of numbers that the text says",
                )  # fmt: skip
            return Term(
                component="temporaries", path="tensor", shape=f"[{', '.join(map(str, axes))}] of {width} bytes", exact=True,
                words=f"{product} × {width} bytes, of numbers that the text says",
            )  # fmt: skip
    return None


_PRODUCT = re.compile(r"(?P<what>.+?)(?P<its>, or its gradient,)? (?P<count>of [\d,]+ \w+): (?P<product>.+)", re.DOTALL)  # fmt: skip


def _called_both(term: Term, other: Term) -> Term:
    """A tensor with what another is called that is the same product; of the same units their names alone."""
    one, two = _PRODUCT.fullmatch(term.words), _PRODUCT.fullmatch(other.words)
    if one is None or two is None or one["product"] != two["product"]:
        return replace(term, words=f"{term.words}, or {other.words}")
    if one["what"].count(", or ") >= MOST_CALLED:
        return term
    what = two["what"].partition(" ")[2]  # without its dtype
    return replace(term, words=f"{one['what']}, or {what}{one['its'] or ''} {one['count']}: {one['product']}")


MOST_CALLED = 1
"""More names of one tensor than these tell nobody more."""


def _first_of(equals: list[Term]) -> Term:
    """Tensors that fit and are as well founded, as one that has the others beside it."""
    first, *others = equals
    if not others:
        return first
    return replace(first, exact=False, others=tuple(replace(each, exact=False) for each in others))


def _buffer_terms(asked: Interval, signs: Signs) -> Iterator[Candidate]:
    """The buffer that the line of code writes out which asked for it."""
    shape, dtype = signs.buffer or ((), "")
    size, short = {"float32": (4, "fp32"), "bfloat16": (2, "bf16"), "float16": (2, "fp16")}.get(
        dtype, (0, "")
    )
    if shape and (fit := fit_of(asked, math.prod(shape) * size)):
        frame = signs.frame or Frame("temporaries", "buffer", "")
        words = (
            f"{' × '.join(f'{axis:,}' for axis in shape)} × {size} bytes, as the traceback's last line says"
        )
        yield Candidate((BOTH_KNOWN, fit), Term(
            component=frame.component, path=frame.path, shape=f"[{', '.join(map(str, shape))}] {short}", exact=fit == 2, words=words,
        ))  # fmt: skip


def _term_of_sheet(equals: list[Term], product: Term | None) -> Term | None:
    """Tensors of a sheet that fit equally as one, where they are of one module; ``product``: what that size
    is a product of.
    """
    modules = {(term.component, term.path.partition("/")[0]) for term in equals}
    if len(modules) > 1:
        return product
    path = equals[0].path if len(equals) == 1 else equals[0].path.partition("/")[0]
    if product is None:
        return replace(equals[0], path=path, words=f"{path} of the plan's sheet")
    return replace(product, component=equals[0].component, path=path)


def _candidate_terms(asked: Interval, signs: Signs, axes: Axes) -> Iterator[Candidate]:
    frame = signs.frame
    for component, path, size in axes.sheet:
        if fit := fit_of(asked, size):
            yield Candidate(
                (5, fit),
                Term(
                    component=component,
                    path=path,
                    shape=f"{size:,} bytes",
                    exact=fit == 2,
                    words=f"{path} of the plan's sheet",
                ),
            )
    unsaid = frame is None or (frame.component, frame.path) == ("saved_activations", "model")
    at_loss = unsaid or (
        frame is not None and frame.component == LOGITS.component and frame is not STEP_SIZES
    )
    if at_loss:
        yield from logits_terms(asked, signs, axes)
    if unsaid or frame in (SCORES, BACKWARD):
        yield from scores_terms(asked, signs, axes)
    if frame is PREDICTIONS:
        yield from predictions_terms(asked, signs, axes)
