"""A requested size → the tensor that it is: a product of the model's axes, the text's lengths and a dtype.

A printed size has a width of some ten thousandths, and the allocator rounds what it must newly reserve up to
whole pages. So a product is only told where its factors are known, or where one alone fits.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator

from memsheet.diagnose.candidates import (
    BOTH_KNOWN,
    IN_16_BITS,
    OF_SHEET,
    WIDTHS,
    Axes,
    Candidate,
    fit_of,
    fits_by_chance,
    raises,
    rows_of,
)
from memsheet.diagnose.figures import PAGE
from memsheet.diagnose.frames import BACKWARD, LOGITS, PREDICTIONS, SCORES, STEP_SIZES, Frame
from memsheet.diagnose.interval import Interval
from memsheet.diagnose.log_programs import SERVERS
from memsheet.diagnose.message import Term
from memsheet.diagnose.model_tensors import (
    cut_in_text,
    has_scans,
    has_sinks,
    heads_of_models,
    heads_of_towers,
    patches_in_text,
)
from memsheet.diagnose.model_terms import USUAL_TOKENS, model_terms
from memsheet.diagnose.named_models import fixed_lengths, model_axes, positions_of_models
from memsheet.diagnose.signs import Signs
from memsheet.frozen import replace
from memsheet.units import MIB

LEAST = 10 * MIB
"""Smaller requests get no segment of their own size (c10/cuda/CUDACachingAllocator.h, kMinLargeAlloc)."""
VOCABULARIES = (
    32_000, 50_257, 50_304, 32_768, 49_152, 100_352, 102_400, 128_256, 129_280, 131_072, 151_936, 151_646, 152_064, 151_552,
    154_880, 201_088, 202_048, 248_320, 256_000, 256_128, 262_144, 250_880, 65_024, 92_544, 200_064, 163_840, 30_522,
)  # fmt: skip
"""Rows of the output projection that common model families have, as their configurations say."""
POWERS = frozenset(2**power for power in range(7, 21))
"""Counts of tokens that are common."""
_SPLIT, _SHARES = "vocab_parallel", (1, 2, 4, 8)
"""How functions are called whose logits lie over ranks (megatron/core/tensor_parallel/cross_entropy.py)."""
_PAIRS = re.compile(r"concatenated_forward|\b(?:[Dd]po|DPO)(?:_|\b|Trainer|Config)|\brewards?/chosen")
"""What a trainer of preferences prints."""
_VOCAB = re.compile(
    r"\b(?:padded_)?(?:vocab_size|n_vocab|vocab)[\"']?(?:/TP)?\s{0,3}[:=]?\s{0,3}(\d[\d,_]{2,9})\b",
    re.IGNORECASE,
)
_LENGTH = re.compile(
    r"\b(?:max[_ ]?seq[_ ]?len(?:gth)?|max[_ ]?len(?:gth)?|seq[_ ]?len(?:gth)?|sequence[_ ]?len(?:gth)?"
    r"|cutoff_?len|max_?model_?len|context(?:[_ ]?(?:length|size|window))?"
    r"|n_ctx|block_?size|model_max_length|seq|(?:input|source|target)[_ ]?len(?:gth)?"
    r"|(?:sequences?|prompts?|contexts?|inputs?|length) of|"
    r"max_(?:completion|response|new)_(?:length|tokens)|"
    r"max_?tokens(?:_?per_?gpu)?|(?:ppo_|log_prob_)?max_token_len(?:_per_gpu)?"
    r"|max_?num_?batched_?tokens|chunked_prefill_size|max_num_seqs|max_running_requests|num_seqs"
    r"|max_(?:batch_)?(?:prefill|input|total)_(?:tokens|len(?:gth)?)"
    r"|(?:padded|truncated|packed) to"
    r"|source_?len|frames|length|"
    r"tokens)[\"']?\s{0,3}[:=]?\s{0,3}(?:(?:is|of|was)\s(?:only\s)?)?"
    r"(\d[\d,_]{0,9})\b",
    re.IGNORECASE,
)
_BATCH = re.compile(
    r"(?:(?<![\w-])-b(?= \d)|\b(?:per_device_train_batch_size|micro_(?:train|rollout)_batch_size|micro[_ ]?batch(?:[_ ]?size)?"
    r"|(?:[a-z]{1,10}_){0,3}micro_batch_size_per_(?:gpu|device)"
    r"|(?:train|local|mini|eval)_batch_size|per_(?:gpu|device)_(?:train|eval)_batch_size"
    r"|batch size per device|batch[_ ]?size|max_sentences|bsz|m?bs|batch(?:es)? of|batch))"
    r"[\"']?\s{0,3}[:=]?\s{0,3}(?:(?:is|of|was)\s(?:only\s)?)?(\d{1,5})\b",
    re.IGNORECASE,
)  # fmt: skip
_BEAMS = re.compile(r"\b(?:generation_)?num_beams[\"']?\s{0,3}[:=]?\s{0,3}(\d{1,2})\b")
"""Beams of each sequence, which are rows of a batch (transformers v4.57.1, generation/utils.py)."""
_COUNTED_LENGTH = re.compile(
    r"(?<![\w.,=])(\d[\d,_]{1,9})[ -](?:tokens?|patches|frames|positions)\b"
    r"(?!\s?[/=:]|\s{1,2}(?:per|a|each|in|of|were|was|have|had|so far|seen|processed)\b|[ -]\w{0,10}/s)",
    re.IGNORECASE,
)
"""A length as people write of it; not a rate, nor what a run has seen."""
_COUNTED_BATCH = re.compile(
    r"(?<![\w.,])(\d{1,5}) (?:sequences|samples|rows|prompts|images|examples) (?:per|a|in (?:a|the|each)) (?:micro-?)?batch\b",
    re.IGNORECASE,
)  # fmt: skip
_TOTAL = re.compile(
    r"\b(?:num_(?:batch_)?tokens|total_tokens"
    r"|(?:total )?tokens (?:in|of) (?:the |this |a )?(?:micro-?)?batch)"
    r"[\"']?\s{0,3}[:=]?\s{0,3}(\d[\d,_]{1,9})\b",
    re.IGNORECASE,
)
"""Tokens of all sequences of a batch."""
_INPUTS = re.compile(r"\b(?:input_?ids|labels|targets)\b[^\n\[]{0,40}\[(\d{1,5}), (\d{1,7})\]")
"""Sequences and their length, as a tensor's shape is printed."""
_BATCH_BY_LENGTH = re.compile(
    r"\b(?:micro-?)?(?:batch(?:[ _]size)?|bsz?|mbs)[ =:]{0,3}(\d{1,4})\s{0,2}(?:[x×*@]|, ?(?=\d{3,6}[)\n]))\s{0,2}(\d{3,6})\b"
    r"(?!\s?(?:[x×.]|steps|epochs|px|pixels))",
    re.IGNORECASE,
)  # fmt: skip
"""The same as people write of it."""
_PROMPTS = re.compile(
    r"\b(?:(?:max_)?prompt_(?:max_)?(?:len(?:gth)?|tokens)[\"']?\s{0,3}[:=]?\s{0,3}|prompts?(?: of)? )"
    r"(\d[\d,_]{0,8})\b",
    re.IGNORECASE,
)
_ANSWERS = re.compile(
    r"\b(?:max_)?(?:completion|response|generate|new)_(?:max_)?(?:len(?:gth)?|tokens)"
    r"[\"']?\s{0,3}[:=]?\s{0,3}"
    r"(\d[\d,_]{0,8})\b",
    re.IGNORECASE,
)
"""The most tokens of a prompt and of an answer, as trainers by reinforcement learning call them: what is read
again is both (TRL v0.15.2, trl/trainer/grpo_trainer.py, _get_per_token_logps of prompt_completion_ids;
volcengine/verl, data.max_prompt_length and data.max_response_length; OpenRLHF, --prompt_max_len and
--generate_max_len).
"""
_CONTEXT_PARALLEL = re.compile(
    r"(?<![a-z])(?:context_(?:model_)?parallel(?:_size|_degree)?|cp_?(?:size|degree)?"
    r"|(?:ulysses_)?sequence_parallel_(?:size|degree)|ulysses_(?:size|degree)|sp_size)"
    r"[\"']?\s{0,3}[:=]?\s{0,3}(\d{1,3})\b",
    re.IGNORECASE,
)
"""Ranks over which each sequence is cut, as launchers and configurations call them."""
_DRAFTED = re.compile(
    r"\b(?:num_speculative_tokens|speculative_num_(?:draft_tokens|steps))[\"']?\s{0,3}[:=]?\s{0,3}(\d{1,3})\b"
)
_SEQUENCES = re.compile(r"\b(?:max_num_seqs|max_running_requests)[\"']?\s{0,3}[:=]?\s{0,3}(\d{1,5})\b")
_PADDED = re.compile(
    r"(?:\bdummy tokens \(new size: |\bpadded_vocab_size[\"']?\s{0,3}[:=]\s{0,3})(\d{3,9})\b"
)
_MULTIPLE = re.compile(r"\bmake_vocab_size_divisible_by[\"']?\s{0,3}[:=]?\s{0,3}(\d{1,5})\b")
USUAL_MULTIPLE = 128
"""Rows of a vocabulary for each rank that it is cut over, of which Megatron-LM makes a multiple
(megatron/training/tokenizer/tokenizer.py, _vocab_size_with_padding).
"""
_COUNTED_HEADS = re.compile(r"(?<![\w.])(\d{1,3})[ -](?:attention[ -])?heads\b", re.IGNORECASE)
_HEADS = re.compile(
    r"\b(?:num_attention_heads|num_heads|n_heads?|attention_heads|heads)[\"']?\s{0,3}[:=]?\s{0,3}(\d{1,4})\b",
    re.IGNORECASE,
)


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
    axes = _with_axes_of_text(known, signs.text)
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
    equals = sorted((each.term for each in best), key=lambda each: not each.exact)
    if len(equals) == 1 and signs.frame in (None, BACKWARD) and has_scans(signs.text):
        return replace(equals[0], exact=False)  # whose loops make tensors of many more sizes
    return _first_of(equals) if len(equals) <= MOST_NAMED else None


_COUNTED = re.compile(r"(?<![\w.:/-])(\d{1,3}(?:[,_]\d{3})+|\d{2,12})(?![\w:/]|\.\d)")
MOST_COUNTED, LEAST_AXIS, LEAST_FLAT = 48, 48, 10**6


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


Widths = tuple[tuple[int, str], ...]
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
_DASH = re.compile(r"(?<=[a-z])-(?=[a-z])")


_OF_PRODUCT = re.compile(r"\b(?:matmul|bmm|einsum)\(|\w @ \w")
_PICTURE = re.compile(
    r"\bheight[\"']?\s{0,3}[=:]\s{0,3}(\d{2,5})\b[^\n]{0,12}\bwidth[\"']?\s{0,3}[=:]\s{0,3}(\d{2,5})\b"
)
_SIDES = re.compile(r"(?<![\w.])(\d{3,5})\s?[x×]\s?(\d{3,5})(?![\w.])")
"""A picture's sides as people write them."""
MOST_PICTURES = 12
_AUTOENCODER, LATENT_SIDE = re.compile(r"\bautoencoder_kl\.py|\bvae\.(?:decode|encode)\("), 8
"""diffusers v0.31, models/autoencoders/vae.py: UNetMidBlock2D with heads as wide as all channels, behind
three halvings of each side.
"""


def _with_axes_of_text(known: Axes, text: str) -> Axes:
    flags = _DASH.sub("_", text)  # spelled either way
    lengths = (*known.lengths, *_numbers_in(_LENGTH, flags), *_numbers_in(_COUNTED_LENGTH, text))
    said = tuple(n for n in _numbers_in(_VOCAB, flags) if n >= 256)
    rows, heads = model_axes(text) if not (known.vocabularies and known.heads) else ((), ())
    said_shapes = (*_INPUTS.findall(text), *_BATCH_BY_LENGTH.findall(text))
    shapes = [(int(batch), int(length)) for batch, length in said_shapes][:4]
    lengths = (
        *lengths, *(length for _, length in shapes), *_drafted_rows(flags),
        *(asked + given for asked in _numbers_in(_PROMPTS, flags, 3) for given in _numbers_in(_ANSWERS, flags, 3)),
    )  # fmt: skip
    batches = (
        *_numbers_in(_BATCH, flags), *_numbers_in(_COUNTED_BATCH, text), *(batch for batch, _ in shapes)
    )  # fmt: skip
    batches = (*batches, *(beams * batch for beams in _numbers_in(_BEAMS, flags, 2) for batch in batches))
    totals = _numbers_in(_TOTAL, flags)
    counted = (*_numbers_in(_HEADS, flags), *_numbers_in(_COUNTED_HEADS, flags))
    return known._replace(
        vocabularies=tuple(dict.fromkeys((*known.vocabularies, *(said or rows)))),
        tokens=tuple(
            dict.fromkeys((*known.tokens, *totals, *lengths, *_shares_of_sequences(lengths, flags)))
        ),
        lengths=tuple(dict.fromkeys(lengths)),
        batches=tuple(dict.fromkeys((*known.batches, *batches))),
        heads=tuple(dict.fromkeys((*known.heads, *(counted or heads or heads_of_models(text))))),
    )


def _shares_of_sequences(lengths: Iterable[int], flags: str) -> Iterator[int]:
    """Tokens of one rank where a text says that sequences are cut over several."""
    for ranks in _numbers_in(_CONTEXT_PARALLEL, flags):
        yield from (length // ranks for length in lengths if ranks > 1 and length % ranks == 0)


def _drafted_rows(flags: str) -> Iterator[int]:
    """Rows of logits of a server that drafts tokens: of those alone, and with one that is sampled besides."""
    for drafted in _numbers_in(_DRAFTED, flags):
        for sequences in _numbers_in(_SEQUENCES, flags):
            yield from (sequences * drafted, sequences * (drafted + 1))


def _numbers_in(pattern: re.Pattern[str], text: str, most: int = 12) -> tuple[int, ...]:
    found = (
        int(each.replace(",", "").replace("_", "")) for each in pattern.findall(text) if each.strip(",_")
    )
    return tuple(n for n in dict.fromkeys(found) if n > 0)[:most]


def _candidate_terms(asked: Interval, signs: Signs, axes: Axes) -> Iterator[Candidate]:
    frame, text = signs.frame, signs.text
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
        cut = cut_in_text(text)
        split = _SPLIT in text or (cut > 1 and signs.program == "Megatron-LM")
        padded = _padded_vocabularies(axes, text, cut) if split or signs.program == "Megatron-LM" else ()
        axes = axes._replace(vocabularies=tuple(dict.fromkeys((*axes.vocabularies, *padded))))
        shares = (1,) if not split else (cut,) if cut > 1 else _SHARES
        yield from _logits_terms(
            asked,
            signs,
            axes,
            shares=shares,
            pairs=bool(_PAIRS.search(text)),
            widths=_widths_of_logits(signs, axes, asked),
        )
    if unsaid or frame in (SCORES, BACKWARD):
        yield from _scores_terms(asked, signs, axes)
    if frame is PREDICTIONS:
        yield from _predictions_terms(asked, signs, axes)


_BAR = re.compile(r"(?<![\d/.])(\d{1,7})/\d{1,7}(?:\s\[|\s*$)", re.MULTILINE)
"""How far a bar of progress has come."""


_EVALUATED = re.compile(r"\b(\d{1,6}) (?:eval(?:uation)?|validation) (?:batches|steps)\b", re.IGNORECASE)
"""The same as people write of it."""


def _predictions_terms(asked: Interval, signs: Signs, axes: Axes) -> Iterator[Candidate]:
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
    if said := _numbers_in(_PADDED, text):
        yield from said
        return
    multiple = next(iter(_numbers_in(_MULTIPLE, _DASH.sub("_", text))), USUAL_MULTIPLE) * cut
    yield from (-(-rows // multiple) * multiple for rows in axes.vocabularies)


def _logits_terms(
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
    path = frame.path if frame and frame.component == LOGITS.component else "loss"
    theirs = ", or their gradient," if frame in (None, BACKWARD) and signs.program not in SERVERS else ""
    named = set(axes.vocabularies)
    at_loss = frame is not None and frame.path.partition("/")[0] in ("loss", "sampler", "prompt_logprobs")
    unnamed = [each for each in VOCABULARIES if each not in named]
    tokens = {signs.outsized[0]} if signs.outsized else set(axes.counts)
    if signs.program in CHUNKS or _CHUNKED.search(signs.text):
        tokens |= {count // 8 for count in axes.counts}
    tokens |= {2 * count for count in tokens} if pairs else set()
    tokens |= set(axes.shifted_counts) if _SHIFTED.search(signs.text) else set()
    if _AS_MADE.search(signs.code) and _ONE_MORE.search(signs.text):
        tokens = set(axes.lengthened_counts)
    likely = {
        count for count in tokens
        if signs.outsized or count in axes.likely_counts or count not in axes.counts
    }  # fmt: skip
    common = set() if not at_loss or fits_by_chance(asked, len(unnamed)) else POWERS
    if not at_loss:
        likely |= set() if tokens else set(USUAL_TOKENS)
        by_chance = named or fits_by_chance(asked, len(unnamed) * max(1, len(tokens)))
        unnamed = [] if by_chance else [each for each in unnamed if each not in POWERS]  # any width is 2^n
    for vocabulary in (*axes.vocabularies, *unnamed):
        for width, dtype in widths:
            for count in sorted(tokens | (POWERS if vocabulary in named else common)):
                known = (vocabulary in named) * 2 + (count in likely)
                if width != 4 and at_loss and count not in tokens:
                    continue  # a loss and a sampler raise what they read to fp32
                if fit := fit_of(asked, count * vocabulary * width):
                    rows = None if count in tokens else rows_of(asked, vocabulary * width)
                    near = (
                        f" (of {rows[0]:,} to {rows[1]:,} tokens that come to the same figure)"
                        if rows
                        else ""
                    )
                    yield Candidate((known + 1, fit), Term(
                        component="temporaries", path=path, shape=f"[{count}, {vocabulary}] {dtype}", exact=rows is None and count in tokens, rows=rows,
                        words=f"{dtype} logits{theirs} of {count:,} tokens × {vocabulary:,} words × {width} bytes{near}",
                    ))  # fmt: skip
    if at_loss and len(named) == 1:
        (vocabulary,) = named
        count = asked.middle // (4 * vocabulary)
        words = (
            f"about {count:,} tokens × {vocabulary:,} words × 4 bytes of logits "
            f"(or {2 * count:,} in 2 bytes), if nothing else was asked for"
        )
        yield Candidate(
            (2, 3),
            Term(
                component="temporaries",
                path=path,
                shape=f"[{count}, {vocabulary}] fp32",
                exact=False,
                words=words,
            ),
        )


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


def _scores_terms(asked: Interval, signs: Signs, axes: Axes) -> Iterator[Candidate]:
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
    sizes |= {(batch, 1, tokens): BOTH_KNOWN for tokens in _latents_of_pictures(signs) for batch in batches}
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
    for (batch, heads, length), rank in sizes.items():
        for more, (width, dtype) in itertools.product((0, 1) if sinks else (0,), _widths_of_scores(signs)):
            if fit := fit_of(asked, batch * max(heads, 1) * length * (length + more) * width):
                counted = f"{batch} × {heads} heads" if heads else f"{batch}"
                what = "attention scores" if heads else "a mask of attention"
                words = f"{dtype} {what} of {counted} × {length:,}²"
                words += f" and a sink × {width} bytes" if more else f" × {width} bytes"
                yield Candidate((rank, fit), Term(
                    component="saved_activations", path=SCORES.path if heads else "attention/mask", words=words,
                    exact=(batch, heads, length) not in solved,
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
    pairs = dict.fromkeys((*counted, *((1, length) for length in _latents_of_unets(signs))))
    of_heads = [pair for pair in pairs if pair[1] not in POWERS]  # of which any power of two is a multiple
    rounded = Interval(max(1, asked.low - PAGE), asked.high)
    if fits_by_chance(rounded, OF_HEADS * len(of_heads) + OF_ROWS * len(fixed)):
        return
    for width, _ in _widths_of_scores(signs):
        for length, heads in itertools.product(_latents_of_unets(signs), HEADS_OF_UNETS):
            if length in POWERS and fit_of(asked, heads * length * length * width):
                yield 1, heads, length
        for (batch, length), heads in itertools.product(of_heads, HEADS):
            if fit_of(asked, batch * heads * length * length * width):
                yield batch, heads, length
        for (heads, length), batch in itertools.product(fixed, ROWS):
            if fit_of(asked, batch * heads * length * length * width):
                yield batch, heads, length


MASK = 0
"""In place of heads: what all of them have in common."""


def _widths_of_scores(signs: Signs) -> Widths:
    """Bytes of an element, where the line of code that asked says whether scores are raised there, or are
    what a product of queries and keys in 16 bits is.
    """
    if raises(signs.code):
        return WIDTHS[:1]
    return WIDTHS[1:] if _OF_PRODUCT.search(signs.code) and IN_16_BITS.search(signs.text) else WIDTHS


_UNET = re.compile(r"\bldm[/\\]modules|\bunet_\w{0,20}\.py|\bhires\b|\battention_processor\.py")


def _latents_of_unets(signs: Signs) -> Iterator[int]:
    """Tokens of the widest attention of a picture that is made from latents: an eighth of each side."""
    if _UNET.search(signs.text):
        for height, width in tuple(dict.fromkeys(_SIDES.findall(signs.text)))[:MOST_PICTURES]:
            yield (int(height) // LATENT_SIDE) * (int(width) // LATENT_SIDE)


def _latents_of_pictures(signs: Signs) -> Iterator[int]:
    """Tokens of the one attention of a picture's autoencoder, which has one head: an eighth of each side."""
    if _AUTOENCODER.search(signs.text):
        said = (*_PICTURE.findall(signs.text), *_SIDES.findall(signs.text))
        for height, width in tuple(dict.fromkeys(said))[:MOST_PICTURES]:
            yield (int(height) // LATENT_SIDE) * (int(width) // LATENT_SIDE)
