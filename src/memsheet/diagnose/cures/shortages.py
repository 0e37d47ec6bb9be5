"""Changes where a job needs more than is left: by what runs, then by what the request is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

from memsheet.diagnose.cures.tables import (
    BUCKETS,
    CHUNKED,
    EIGHT_BITS,
    FUSED_LOSS,
    FUSED_ON,
    MORE_CHUNKS,
    OF_COMPONENT,
    OF_PHASE,
    ONE_BY_ONE,
    ONE_SEQUENCE,
    RECOMPUTE,
    SMALL_STATES,
    SMALLER_BUCKETS,
    SMALLER_UNITS,
    SPREAD_STATES,
    STATED_SHARDS,
    STATES,
    STEPS,
    TRAINERS,
    UNITS,
)
from memsheet.diagnose.cures.tensors import NOT_MADE, grows_with_batch, place_of_scoreless, without_scores
from memsheet.diagnose.cures.without_training import without_training
from memsheet.diagnose.figures import Figures, aligned_bytes
from memsheet.diagnose.frames import GATHER, REDUCED, STEP_SIZES
from memsheet.diagnose.interval import Interval, at_least, size_words
from memsheet.diagnose.message import MAYBE, NO, YES, Cure, Term
from memsheet.diagnose.named_models import largest_model, names_experts
from memsheet.diagnose.signs import Signs
from memsheet.frozen import replace

OF_PREFERENCES = "use_liger_loss=True (use_liger_kernel=True in later releases)"


PREFERS = re.compile(r"\btrl/trainer/(?:dpo|grpo|kto)_|\b(?:DPO|GRPO|KTO)(?:Config|Trainer)\b")
"""TRL's trainers of preferences, whose option it is (huggingface/trl v0.25.0, trl/trainer/dpo_config.py)."""


def _place_of_shards(text: str) -> str:
    """Where a configuration that stands in the text is told of more shards; empty where none does."""
    for pattern, more, host in STATED_SHARDS:
        if found := pattern.findall(text):
            return host if found[-1] in ("3", "FULL_SHARD") else more
    return ""


LESS_OF_ONE = "half the length: the loss takes one sequence at a time"


HALF, HALF_LENGTH = "half the micro-batch or half the length", "half the length: one row is a micro-batch"


_ROWS = re.compile(
    r"(?<![a-z])(?:per_device_train_batch_size|micro_(?:train_)?batch_size(?:_per_gpu)?|local_batch_size"
    r"|instantaneous batch size per device|micro[_ ]?batch(?:[_ ]?size)?|mbs|bs)"
    r"[\"']?\s{0,3}[:=]?\s{0,3}(\d{1,5})\b",
    re.IGNORECASE,
)
"""Rows of a micro-batch, as trainers call them."""


def _trains_single_rows(signs: Signs) -> bool:
    """Whether every micro-batch that a text says is of one row, or the plan's is."""
    return signs.single_rows or set(_ROWS.findall(signs.text.replace("-", "_"))) == {"1"}


def _unless_in_eight_bits(cure: Cure, signs: Signs) -> Cure:
    if cure.change != SMALL_STATES or not (signs.eight_bits or EIGHT_BITS.search(signs.text)):
        return cure
    return replace(cure, helps=NO, where="", why="they are in eight bits already")


def for_need(figures: Figures, signs: Signs, term: Term | None) -> Iterator[Cure]:
    """By what runs, then by what the request is."""
    if signs.task:
        yield from without_training(figures, signs, term)
        return
    phase = signs.phase or (signs.frame.phase if signs.frame else "")
    if found := OF_PHASE.get(signs.phase) or (OF_PHASE[phase] if phase in ("save", "restore") else ()):
        unapplied = tuple(_in_four_bits(figures, signs))
        yield from unapplied or _in_sixteen_bits(signs, term)
        yield from (cure for cure in found if not unapplied or cure.change != FEWER_BITS)
        return
    if states := tuple(_for_states(signs, term)):
        yield from states
        if term is None or term.component != "gradients":
            return
    if signs.frame is GATHER:
        yield replace(SMALLER_UNITS, where=UNITS.get(signs.trainer, SMALLER_UNITS.where))
    if signs.frame is REDUCED:
        yield replace(SMALLER_BUCKETS, where=BUCKETS.get(signs.trainer, SMALLER_BUCKETS.where))
    if term is not None and term.path == "loss/log_probs":
        yield from _for_log_probs(figures, signs, term)
        return
    if term is not None and term.path == "loss" and grows_with_batch(term):
        yield _for_loss(figures, signs)
    elif term is not None and term.path == "attention/scores":
        yield without_scores(figures, place_of_scoreless(signs))
    yield from _for_micro_batch(figures, signs, term)


FEWER_BITS = OF_PHASE["load"][0].change
_ASKS_FOUR_BITS = re.compile(
    r"\bload_in_4bit[\"']?\s{0,3}[=:]\s{0,3}[Tt]rue\b|\bbnb_4bit_quant_type\b"
    r"|--load[-_]in[-_]4bit\b(?!\s{0,3}[= ]\s{0,3}[Ff]alse)"
)
_TAKES_CONFIG = re.compile(r"\bquantization_config\s{0,3}=(?!=)")
NF4_BYTES = Fraction(1, 2) + Fraction(4, 64)
"""Bytes of a weight in four bits, with its share of a scale in fp32 for every 64 (bitsandbytes at 95f9af30,
functional.py:918).
"""


def _in_four_bits(figures: Figures, signs: Signs) -> Iterator[Cure]:
    """Of a load that is asked for weights in four bits, and holds more than all of them are in these, though
    embeddings and output projection took 4 bytes a number. Experts that are one tensor stay whole, and are
    not judged.
    """
    asked = figures.allocated is not None and signs.phase == "load" and _ASKS_FOUR_BITS.search(signs.text)
    whole = largest_model(signs.text) if asked and not names_experts(signs.text) else None
    if whole is None or figures.allocated is None:
        return
    parameters, embedded = whole
    most = int(parameters * NF4_BYTES) + 2 * 4 * embedded
    if figures.allocated.low <= most:
        return
    unpassed = "BitsAndBytesConfig" in signs.text and not _TAKES_CONFIG.search(signs.text)
    yield Cure(
        change="weights in four bits, as they are asked for: the load seems not to apply it", helps=MAYBE,
        where="from_pretrained(…, quantization_config=bnb_config)" if unpassed else "quantization_config of the call that loads",
        why=f"{size_words(figures.allocated)} of tensors are more than the {size_words(Interval(most, most))} that the whole model takes in nf4",
    )  # fmt: skip


_OF_TRANSFORMERS = re.compile(r"\bfrom_pretrained\b|\btransformers\b")
_READS_HALF = re.compile(
    r"\b(?:torch_)?dtype\s{0,3}[=:]\s{0,3}[\"']?(?:torch\.)?(?:b?float16|half|auto|bf16|fp16)\b"
    r"|\.(?:half|bfloat16)\(\)"
)


def _in_sixteen_bits(signs: Signs, term: Term | None) -> Iterator[Cure]:
    """Of weights of four bytes a number that are being loaded: what reads them as two."""
    every = (term, *term.others) if term is not None else ()
    whole = every and all(each.component == "parameters" and each.shape.endswith(" fp32") for each in every)
    if signs.phase == "load" and whole and not _READS_HALF.search(signs.text):
        ours = _OF_TRANSFORMERS.search(signs.text)
        yield Cure(
            change="weights in 16 bits", helps=MAYBE, why="they are loaded with four bytes a number",
            where='from_pretrained(…, torch_dtype="auto")' if ours else "model.half() before .to(device)",
        )  # fmt: skip


def _for_states(signs: Signs, term: Term | None) -> Iterator[Cure]:
    """Of a tensor of the optimizer or a weight, which no batch makes smaller; nothing where it is none."""
    in_step = signs.frame is STEP_SIZES
    component = "optimizer_states" if in_step else term.component if term else ""
    if in_step:
        yield replace(ONE_BY_ONE, where=STEPS.get(signs.trainer, ONE_BY_ONE.where))
    own = STATES.get(signs.trainer, {})
    stated = {SPREAD_STATES: place} if (place := _place_of_shards(signs.text)) else {}
    places = {**own, **stated}
    for cure in OF_COMPONENT.get(component, ()):
        yield _unless_in_eight_bits(replace(cure, where=places.get(cure.change, cure.where)), signs)


def _for_log_probs(figures: Figures, signs: Signs, term: Term) -> Iterator[Cure]:
    """Of log-probabilities of all tokens, of which no loss in chunks makes the logits smaller."""
    if not grows_with_batch(term):
        return
    lines = TRAINERS.get(signs.trainer, {})
    yield Cure(
        change="fewer tokens in one pass", helps=MAYBE, saves_bytes=figures.asked.times(1, 2).high,
        where=lines.get("tokens", lines.get("batch", "")), why="logits are tokens × vocabulary wide",
    )  # fmt: skip
    if signs.trainer == "verl":
        yield Cure(
            change="log-probabilities without full logits", helps=MAYBE, where=lines["loss"], why=NOT_MADE
        )  # fmt: skip
    if signs.trainer == "TRL" and not FUSED_ON.search(signs.text):
        yield Cure(
            change=FUSED_LOSS, helps=MAYBE, where=OF_PREFERENCES,
            why="the loss then makes the logits of one sequence at a time; what is read without a loss is not made smaller",
        )  # fmt: skip
    else:
        yield Cure(change="a loss in chunks", helps=NO, why="logits exist in full before such a loss begins")


def _for_loss(figures: Figures, signs: Signs) -> Cure:
    """Of logits in full: a loss that never holds them, unless it is on."""
    if CHUNKED in signs.text:
        return MORE_CHUNKS
    if FUSED_ON.search(signs.text):
        by_sequence = "it is on already: one sequence's logits are made at a time"
        why = (
            by_sequence
            if ONE_SEQUENCE.search(signs.text)
            else "it is on already, and this pass makes them all the same"
        )
        return Cure(change=FUSED_LOSS, helps=NO, why=why)  # fmt: skip
    place = OF_PREFERENCES if PREFERS.search(signs.text) else TRAINERS.get(signs.trainer, {}).get("loss", "")
    return Cure(
        change=FUSED_LOSS, helps=MAYBE, saves_bytes=figures.asked.middle, where=place, why=NOT_MADE
    )  # fmt: skip


def _for_micro_batch(figures: Figures, signs: Signs, term: Term | None) -> Iterator[Cure]:
    """Fewer tokens, and activations made again, where fewer tokens alone may not do."""
    lines, proportional = TRAINERS.get(signs.trainer, {}), grows_with_batch(term)
    half = figures.asked.times(1, 2)
    free = figures.free if figures.free_is_said else None
    known = term is not None and (term.exact or term.rows is not None)
    served = (
        free is not None and proportional and known and at_least(free, aligned_bytes(half)) is True
    )  # fmt: skip
    single = _trains_single_rows(signs)
    if single and term is not None and term.path == "attention/scores":
        half = figures.asked.times(1, 4)  # as long as it is wide
    by_sequence = term is not None and term.path == "loss" and bool(ONE_SEQUENCE.search(signs.text))
    yield Cure(
        change=LESS_OF_ONE if by_sequence else HALF_LENGTH if single else HALF,
        helps=YES if served else MAYBE,
        saves_bytes=(figures.asked - half).middle if proportional else None,
        where="" if by_sequence or single else lines.get("batch", ""),
        why=f"the request is then {size_words(half)}" if proportional else "",
    )
    if not served or term is None or term.component == "saved_activations":
        yield Cure(
            change=RECOMPUTE,
            helps=NO if signs.recomputes else MAYBE,
            where=lines.get("recompute", "torch.utils.checkpoint"),
            why="it is on already" if signs.recomputes else "",
        )
