"""A requested size → logits: tokens × vocabulary, whole or a rank's share, of a pass or an evaluation."""

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
    rows_of,
)
from memsheet.diagnose.figures import PAGE
from memsheet.diagnose.frames import BACKWARD, LOGITS, PREDICTIONS
from memsheet.diagnose.interval import Interval
from memsheet.diagnose.log_programs import SERVERS
from memsheet.diagnose.message import Term
from memsheet.diagnose.model_tensors import cut_in_text
from memsheet.diagnose.named_models import positions_of_models
from memsheet.diagnose.signs import Signs
from memsheet.diagnose.terms.of_model import USUAL_TOKENS
from memsheet.diagnose.terms.text_axes import flags_as_names, numbers_in_text
from memsheet.frozen import replace

VOCABULARIES = (
    32_000, 50_257, 50_304, 32_768, 49_152, 100_352, 102_400, 128_256, 129_280, 131_072, 151_936, 151_646, 152_064, 151_552,
    154_880, 201_088, 202_048, 248_320, 256_000, 256_128, 262_144, 250_880, 65_024, 92_544, 200_064, 163_840, 30_522,
)  # fmt: skip
"""Rows of the output projection that common model families have, as their configurations say."""
_SPLIT, _SHARES = "vocab_parallel", (1, 2, 4, 8)
"""How functions are called whose logits lie over ranks (megatron/core/tensor_parallel/cross_entropy.py)."""
_PAIRS = re.compile(r"concatenated_forward|\b(?:[Dd]po|DPO)(?:_|\b|Trainer|Config)|\brewards?/chosen")
"""What a trainer of preferences prints."""
_PADDED = re.compile(
    r"(?:\bdummy tokens \(new size: |\bpadded_vocab_size[\"']?\s{0,3}[:=]\s{0,3})(\d{3,9})\b"
)
_MULTIPLE = re.compile(r"\bmake_vocab_size_divisible_by[\"']?\s{0,3}[:=]?\s{0,3}(\d{1,5})\b")
USUAL_MULTIPLE = 128
"""Rows of a vocabulary for each rank that it is cut over, of which Megatron-LM makes a multiple
(megatron/training/tokenizer/tokenizer.py, _vocab_size_with_padding).
"""
CHUNKS = ("torchtitan trainer",)
_CHUNKED = re.compile(r"ce_chunked_output_loss|[Cc]hunked(?:CrossEntropy|_?[Ll]oss|OutputLoss)|torchtune")
"""Losses that take logits in eight pieces (pytorch/torchtune 67ab86b, modules/loss/ce_chunked_output_loss.py;
pytorch/torchtitan b5bcd76, torchtitan/components/loss.py).
"""
_SHIFTED = re.compile(r"\bshift_logits\b|logits\[\.\.\., :-1, :\]")
"""What makes a copy of all but the last of each sequence's logits."""
_ONE_MORE = re.compile(r"\blogits_to_keep\s?=\s?\w{1,40}\s?\+\s?1\b")
"""What asks the output projection for one row more than the tokens whose log-probabilities are wanted (TRL
v0.15.2, trl/trainer/grpo_trainer.py, _get_per_token_logps).
"""
_AS_MADE = re.compile(
    r"\bF\.linear\(|\blm_head\(|\breturn tensor\.float\(\)|torch\.tanh\(logits|torch\.matmul\(total_input"
    r"|final_logit_softcapping"
)
"""Lines that make logits, or all of them again: accelerate 1.15.0, utils/operations.py, _convert_to_fp32."""


def logits_terms(asked: Interval, signs: Signs, axes: Axes) -> Iterator[Candidate]:
    """Those of the pass that a job makes, of a vocabulary that may lie over ranks."""
    text = signs.text
    cut = cut_in_text(text)
    split = _SPLIT in text or (cut > 1 and signs.program == "Megatron-LM")
    padded = _padded_vocabularies(axes, text, cut) if split or signs.program == "Megatron-LM" else ()
    axes = axes._replace(vocabularies=tuple(dict.fromkeys((*axes.vocabularies, *padded))))
    shares = (1,) if not split else (cut,) if cut > 1 else _SHARES
    yield from _logits_of_tokens(
        asked,
        signs,
        axes,
        shares=shares,
        pairs=bool(_PAIRS.search(text)),
        widths=_widths_of_logits(signs, axes, asked),
    )


_BAR = re.compile(r"(?<![\d/.])(\d{1,7})/\d{1,7}(?:\s\[|\s*$)", re.MULTILINE)
"""How far a bar of progress has come."""


_EVALUATED = re.compile(r"\b(\d{1,6}) (?:eval(?:uation)?|validation) (?:batches|steps)\b", re.IGNORECASE)
"""The same as people write of it."""


def predictions_terms(asked: Interval, signs: Signs, axes: Axes) -> Iterator[Candidate]:
    """Logits of all samples of an evaluation so far: of the batches that its bar counts, and this one."""
    told = [int(each) for each in _EVALUATED.findall(signs.text)][-1:]
    counted = told or [int(each) for each in _BAR.findall(signs.text)][-1:]
    batches = dict.fromkeys(more for count in counted for more in (count + 1, count) if more)
    lengths = axes.lengths or positions_of_models(signs.text)
    for done, batch, length, rows, (width, dtype) in itertools.product(
        batches, axes.batches, lengths, axes.vocabularies, WIDTHS
    ):
        if fit := fit_of(asked, done * batch * length * rows * width):
            words = f"{dtype} logits of {done} batches of {batch}, each of {length:,} tokens × {rows:,} words × {width} bytes"  # fmt: skip
            yield Candidate((BOTH_KNOWN, fit), Term(
                component=PREDICTIONS.component, path=PREDICTIONS.path, shape=f"[{done * batch}, {length}, {rows}] {dtype}", exact=fit == 2 and bool(axes.lengths), words=words,
            ))  # fmt: skip


def _padded_vocabularies(axes: Axes, text: str, cut: int) -> Iterator[int]:
    """Rows as Megatron-LM keeps them: what its own line says, else the next multiple."""
    if said := numbers_in_text(_PADDED, text):
        yield from said
        return
    multiple = next(iter(numbers_in_text(_MULTIPLE, flags_as_names(text))), USUAL_MULTIPLE) * cut
    yield from (-(-rows // multiple) * multiple for rows in axes.vocabularies)


def _logits_of_tokens(
    asked: Interval, signs: Signs, axes: Axes, *, shares: tuple[int, ...], pairs: bool, widths: Widths
) -> Iterator[Candidate]:
    """Tokens × vocabulary: of lengths and vocabularies that are named, of one of them and a power of two, and
    where the loss asked and a vocabulary is named, of as many tokens as the size says. ``shares``: over how
    many ranks the vocabulary may lie; where that is not known, tokens have to be named; ``pairs``: whether a
    row may be two, one that is preferred and one that is not; ``widths``: bytes of an element that they may
    have.
    """
    frame = signs.frame
    if shares != (1,):
        raised = frame is LOGITS and widths is WIDTHS
        yield from _split_logits_terms(asked, axes, shares, WIDTHS[:1] if raised else widths)
        return
    at_loss = frame is not None and frame.path.partition("/")[0] in ("loss", "sampler", "prompt_logprobs")
    tokens = _tokens_of_pass(signs, axes, pairs=pairs)
    likely = {
        count for count in tokens
        if signs.outsized or count in axes.likely_counts or count not in axes.counts
    }  # fmt: skip
    named = set(axes.vocabularies)
    unnamed = [each for each in VOCABULARIES if each not in named]
    told = named if not signs.outsized else {*named, *unnamed}
    common = set() if not at_loss or fits_by_chance(asked, len(unnamed)) else POWERS
    if not at_loss:
        likely |= set() if tokens else set(USUAL_TOKENS)
        unnamed = _vocabularies_beyond_chance(asked, signs, unnamed, named, len(tokens))
    for vocabulary, (width, dtype) in itertools.product((*axes.vocabularies, *unnamed), widths):
        for count in sorted(tokens | (POWERS if vocabulary in named else common)):
            if width != 4 and at_loss and count not in tokens:
                continue  # a loss and a sampler raise what they read to fp32
            if fit := fit_of(asked, count * vocabulary * width):
                known = (vocabulary in named) * 2 + (count in likely)
                rows = None if count in tokens else rows_of(asked, vocabulary * width)
                exact = rows is None and count in tokens and vocabulary in told
                term = _term_of_logits(signs, count, vocabulary, (width, dtype), rows)
                yield Candidate((known + 1, fit), replace(term, exact=exact, rows=rows))
    if at_loss and len(named) == 1:
        yield Candidate((2, 3), _term_of_any_count(signs, asked, *named))


def _tokens_of_pass(signs: Signs, axes: Axes, *, pairs: bool) -> set[int]:
    """Counts of tokens whose logits a pass may make, by what a text says of it."""
    tokens = {signs.outsized[0]} if signs.outsized else set(axes.counts)
    if signs.program in CHUNKS or _CHUNKED.search(signs.text):
        tokens |= {count // 8 for count in axes.counts}
    tokens |= {2 * count for count in tokens} if pairs else set()
    tokens |= set(axes.shifted_counts) if _SHIFTED.search(signs.text) else set()
    one_more = _AS_MADE.search(signs.code) and _ONE_MORE.search(signs.text)
    return set(axes.lengthened_counts) if one_more else tokens


def _vocabularies_beyond_chance(
    asked: Interval, signs: Signs, unnamed: list[int], named: set[int], tokens: int
) -> list[int]:
    """Vocabularies that no text names and that may still be told by a product, where no loss asked.
    ``tokens``: how many counts are tried.
    """
    of_layer = bool(signs.code) and signs.frame is not BACKWARD
    rounded = Interval(max(1, asked.low - PAGE), asked.high)
    by_chance = named or of_layer or fits_by_chance(rounded, len(unnamed) * max(1, tokens))
    return [] if by_chance else [each for each in unnamed if _odd_part(each) > MOST_OF_WIDTHS]


def _path_of_logits(signs: Signs) -> str:
    return signs.frame.path if signs.frame and signs.frame.component == LOGITS.component else "loss"


def _term_of_logits(
    signs: Signs, count: int, vocabulary: int, kind: tuple[int, str], rows: tuple[int, int] | None
) -> Term:
    """Logits of so many tokens. ``kind``: an element's bytes and dtype; ``rows``: the fewest and the most
    tokens that come to the same figure, where several do.
    """
    width, dtype = kind
    theirs = (
        ", or their gradient," if signs.frame in (None, BACKWARD) and signs.program not in SERVERS else ""
    )
    near = f" (of {rows[0]:,} to {rows[1]:,} tokens that come to the same figure)" if rows else ""
    return Term(
        component="temporaries", path=_path_of_logits(signs), shape=f"[{count}, {vocabulary}] {dtype}", exact=False,
        words=f"{dtype} logits{theirs} of {count:,} tokens × {vocabulary:,} words × {width} bytes{near}",
    )  # fmt: skip


def _term_of_any_count(signs: Signs, asked: Interval, vocabulary: int) -> Term:
    """Logits of as many tokens as a size says, of the one vocabulary that is named."""
    count = asked.middle // (4 * vocabulary)
    words = (
        f"about {count:,} tokens × {vocabulary:,} words × 4 bytes of logits "
        f"(or {2 * count:,} in 2 bytes), if nothing else was asked for"
    )
    shape = f"[{count}, {vocabulary}] fp32"
    return Term(component="temporaries", path=_path_of_logits(signs), shape=shape, exact=False, words=words)


MOST_OF_WIDTHS = 125
"""The largest odd factor that widths and lengths commonly have together: 49,152 is also 16 heads of
3 × 1,024, and 32,000 a thousand tokens of 32 heads. A vocabulary of such a size is told by no product.
"""


def _odd_part(count: int) -> int:
    return count // (count & -count)


def _widths_of_logits(signs: Signs, axes: Axes, asked: Interval) -> Widths:
    """Bytes of an element, where the line of code that asked says whether logits are raised to fp32 there, or
    are still what the output projection makes of weights in 16 bits: unless the tokens that a text names
    come to the size in fp32 alone.
    """
    if raises(signs.code):
        return WIDTHS[:1]
    if not (_AS_MADE.search(signs.code) and IN_16_BITS.search(signs.text)):
        return WIDTHS
    named = list(itertools.product(axes.likely_counts, axes.vocabularies))
    in_16_bits, in_fp32 = (
        any(fit_of(asked, count * rows * width) for count, rows in named) for width in (2, 4)
    )
    return WIDTHS if in_fp32 and not in_16_bits else WIDTHS[1:]


def _split_logits_terms(
    asked: Interval, axes: Axes, shares: tuple[int, ...], widths: Widths
) -> Iterator[Candidate]:
    """The same of a vocabulary that lies over ranks: such a loss raises what it reads to fp32."""
    for vocabulary, count, share, (size, dtype) in itertools.product(
        axes.vocabularies or VOCABULARIES, axes.counts, shares, widths
    ):
        rows = vocabulary // share
        if vocabulary % share == 0 and (fit := fit_of(asked, count * rows * size)):
            split = f", one of {share} ranks' share," if share > 1 else ""
            named = (vocabulary in axes.vocabularies) + (len(shares) == 1 and count in axes.likely_counts)
            yield Candidate((2 + named, fit), Term(
                component=LOGITS.component, path=LOGITS.path, shape=f"[{count}, {rows}] {dtype}", exact=True,
                words=f"{dtype} logits of {count:,} tokens × {rows:,} words{split} × {size} bytes",
            ))  # fmt: skip
