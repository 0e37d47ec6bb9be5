"""What a text says of axes: how long sequences are, how many there are at once, heads, words, pictures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from memsheet.diagnose.candidates import Axes
from memsheet.diagnose.frames import EVALUATION
from memsheet.diagnose.model_tensors import heads_of_models
from memsheet.diagnose.named_models import model_axes
from memsheet.diagnose.signs import Signs

_COUNTED_WORDS = re.compile(
    r"(?<![\w.])(\d[\d,]{2,7}\d)[ -](?:word |token |entry )?(?:vocab\w*|tokenizer)\b", re.IGNORECASE
)
"""Words of a vocabulary as people write of them."""
_VOCAB = re.compile(
    r"\b(?:padded_)?(?:vocab_size|n_vocab|vocab(?:ulary)?(?: size)?)[\"']?(?:/TP)?\s{0,3}[:=]?\s{0,3}(?:(?:of|is|padded to)\s)?(\d[\d,_]{2,9})\b",
    re.IGNORECASE,
)  # fmt: skip
_LENGTH = re.compile(
    r"\b(?:max[_ ]?seq[_ ]?len(?:gth)?|max[_ ]?len(?:gth)?|seq[_ ]?len(?:gth)?|sequence[_ ]?len(?:gth)?"
    r"|cutoff_?len|max_?model_?len|context(?:[_ ]?(?:length|size|window))?"
    r"|n_ctx|block_?size|block(?= (?:is|of|=) )|(?:source|target|ctx|len)(?=[ =:]{1,2}\d{3,6}\b)|model_max_length|seq|(?:max_)?(?:input|source|target|sequence)[_ ]?len(?:gth)?"
    r"|(?:sequences?|prompts?|contexts?|inputs?|length) of|"
    r"max_(?:completion|response|new)_(?:length|tokens)|"
    r"max_?tokens(?:_?per_?gpu)?|(?:ppo_|log_prob_)?max_token_len(?:_per_gpu)?"
    r"|max_?num_?batched_?tokens|chunked_prefill_size|max_num_seqs|max_running_requests|num_seqs"
    r"|max_(?:batch_)?(?:prefill|input|total)_(?:tokens|len(?:gth)?)"
    r"|(?<!vocab )(?:padded|truncated|packed) to"
    r"|source_?len|frames|length|"
    r"tokens)[\"']?\s{0,3}[:=]?\s{0,3}(?:(?:is|of|was)\s(?:only\s)?)?"
    r"(\d[\d,_]{0,9})\b",
    re.IGNORECASE,
)  # fmt: skip
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
    r"(?<![\w.,=])(\d[\d,_]{1,9})[ -](?:tokens?|patches|frames|positions|ctx|context)\b"
    r"(?!\s?[/=:]|\s{1,2}(?:per|a|each(?=\s\w)|in|of|were|was|have|had|so far|seen|processed)\b|[ -]\w{0,10}/s)",
    re.IGNORECASE,
)  # fmt: skip
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
    r"(?!\s?(?:[x×]|\.\d|steps|epochs|px|pixels))",
    re.IGNORECASE,
)  # fmt: skip
"""The same as people write of it."""
_BY_LETTERS = re.compile(
    r"\bB\s{0,2}=\s{0,2}(\d{1,4})\b[,;]?\s{1,3}(?:and\s)?[TSLN]\s{0,2}=\s{0,2}(\d{2,6})\b(?![.,]\d)"
)
"""The same by the letters that papers and scripts give these axes."""
_BARE_PRODUCT = re.compile(
    r"(?<![\w.,×*/-])(\d{1,2}) ?[x×] ?(\d{3,6})\b(?! ?(?:[x×*]|px|pixels|[KMGT]i?B\b|steps|epochs)|[.,]?\d|\w)"
)  # fmt: skip
"""The same without a word, where the second is a length as they are usually chosen."""
LENGTHS_STEP = 256
_EVALUATION_SAID = re.compile(r"eval_batch|Batch size = \d")
OF_TRANSFORMERS, USUAL_EVALUATION = ("Trainer", "TRL", "LLaMA-Factory", "unsloth"), 8
"""Programs whose options are the Trainer's, and sequences of a batch of its evaluation."""
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
_COUNTED_HEADS = re.compile(r"(?<![\w.])(\d{1,3})[ -](?:attention[ -])?heads\b", re.IGNORECASE)
_HEADS = re.compile(
    r"\b(?:num_attention_heads|num_heads|n_heads?|attention_heads|heads)[\"']?\s{0,3}[:=]?\s{0,3}(\d{1,4})\b",
    re.IGNORECASE,
)
_DASH = re.compile(r"(?<=[a-z])-(?=[a-z])")
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


def axes_with_text(known: Axes, text: str) -> Axes:
    """What is known, and what a text says beside it."""
    flags = flags_as_names(text)
    lengths = (*known.lengths, *numbers_in_text(_LENGTH, flags), *numbers_in_text(_COUNTED_LENGTH, text))
    said = tuple(
        n for n in (*numbers_in_text(_VOCAB, flags), *numbers_in_text(_COUNTED_WORDS, text)) if n >= 256
    )
    rows, heads = model_axes(text) if not (known.vocabularies and known.heads) else ((), ())
    said_shapes = (*_INPUTS.findall(text), *_BATCH_BY_LENGTH.findall(text), *_BY_LETTERS.findall(text))
    shapes = [(int(batch), int(length)) for batch, length in said_shapes or _bare_products(text)][:4]
    lengths = (
        *lengths, *(length for _, length in shapes), *_drafted_rows(flags),
        *(asked + given for asked in numbers_in_text(_PROMPTS, flags, 3) for given in numbers_in_text(_ANSWERS, flags, 3)),
    )  # fmt: skip
    batches = (
        *numbers_in_text(_BATCH, flags), *numbers_in_text(_COUNTED_BATCH, text), *(batch for batch, _ in shapes)
    )  # fmt: skip
    batches = (*batches, *(beams * batch for beams in numbers_in_text(_BEAMS, flags, 2) for batch in batches))
    totals = numbers_in_text(_TOTAL, flags)
    counted = (*numbers_in_text(_HEADS, flags), *numbers_in_text(_COUNTED_HEADS, flags))
    return known._replace(
        vocabularies=tuple(dict.fromkeys((*known.vocabularies, *(said or rows)))),
        tokens=tuple(
            dict.fromkeys((*known.tokens, *totals, *lengths, *_shares_of_sequences(lengths, flags)))
        ),
        lengths=tuple(dict.fromkeys(lengths)),
        batches=tuple(dict.fromkeys((*known.batches, *batches))),
        heads=tuple(dict.fromkeys((*known.heads, *(counted or heads or heads_of_models(text))))),
    )


def axes_of_evaluation(axes: Axes, signs: Signs) -> Axes:
    """The same with the batch that an evaluation has where none is said (transformers v4.57.1,
    training_args.py, per_device_eval_batch_size).
    """
    usual = (
        signs.task == EVALUATION
        and signs.trainer in OF_TRANSFORMERS
        and not _EVALUATION_SAID.search(signs.text)
    )
    return axes._replace(batches=(*axes.batches, USUAL_EVALUATION)) if usual else axes


def _bare_products(text: str) -> Iterator[tuple[str, str]]:
    """Sequences by their length where a text says so by two numbers alone."""
    yield from (pair for pair in _BARE_PRODUCT.findall(text) if int(pair[1]) % LENGTHS_STEP == 0)


def _shares_of_sequences(lengths: Iterable[int], flags: str) -> Iterator[int]:
    """Tokens of one rank where a text says that sequences are cut over several."""
    for ranks in numbers_in_text(_CONTEXT_PARALLEL, flags):
        yield from (length // ranks for length in lengths if ranks > 1 and length % ranks == 0)


def _drafted_rows(flags: str) -> Iterator[int]:
    """Rows of logits of a server that drafts tokens: of those alone, and with one that is sampled besides."""
    for drafted in numbers_in_text(_DRAFTED, flags):
        for sequences in numbers_in_text(_SEQUENCES, flags):
            yield from (sequences * drafted, sequences * (drafted + 1))


def numbers_in_text(pattern: re.Pattern[str], text: str, most: int = 12) -> tuple[int, ...]:
    """The first different counts that a pattern finds."""
    found = (
        int(each.replace(",", "").replace("_", "")) for each in pattern.findall(text) if each.strip(",_")
    )
    return tuple(n for n in dict.fromkeys(found) if n > 0)[:most]


def flags_as_names(text: str) -> str:
    """The same with options as they are called in code: a flag is spelled either way."""
    return _DASH.sub("_", text)


_UNET = re.compile(r"\bldm[/\\]modules|\bunet_\w{0,20}\.py|\bhires\b|\battention_processor\.py")


def latents_of_unets(text: str) -> Iterator[int]:
    """Tokens of the widest attention of a picture that is made from latents: an eighth of each side."""
    if _UNET.search(text):
        for height, width in tuple(dict.fromkeys(_SIDES.findall(text)))[:MOST_PICTURES]:
            yield (int(height) // LATENT_SIDE) * (int(width) // LATENT_SIDE)


def latents_of_pictures(text: str) -> Iterator[int]:
    """Tokens of the one attention of a picture's autoencoder, which has one head: an eighth of each side."""
    if _AUTOENCODER.search(text):
        said = (*_PICTURE.findall(text), *_SIDES.findall(text))
        for height, width in tuple(dict.fromkeys(said))[:MOST_PICTURES]:
            yield (int(height) // LATENT_SIDE) * (int(width) // LATENT_SIDE)
