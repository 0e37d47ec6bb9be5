"""What is free and kept without tensors, beside what is asked for: too little, or enough in pieces."""

from __future__ import annotations

import re

from memsheet.diagnose.denials import said_of
from memsheet.diagnose.figures import Figures
from memsheet.diagnose.frames import SERVING, TRIAL_CACHE
from memsheet.diagnose.interval import (
    NOTHING,
    Interval,
    all_hold,
    at_least,
    at_least_words,
    at_most_words,
    size_words,
)
from memsheet.diagnose.regimes import evaluates_first, says_evaluation_dies, says_training_fits
from memsheet.diagnose.signs import Signs


def short_bytes(figures: Figures) -> Interval:
    """What is missing: at least where all that is kept could be used, at most where none of it can."""
    if figures.free is None:
        return NOTHING
    lacking = (figures.asked - figures.free).positive
    kept = figures.unallocated or NOTHING
    return Interval((figures.asked - figures.free - kept).positive.low, lacking.high)


def kept_covers(of: Figures, _: Signs) -> bool | None:
    """What is kept beyond tensors covers what is missing, and is no trifle."""
    if of.unallocated is None or of.free is None or of.capacity is None:
        return False
    return all_hold(
        at_least(of.unallocated + of.free, of.asked), at_least(of.unallocated, of.capacity.times(1, 20))
    )


def cached_covers(of: Figures) -> bool | None:
    """Whether free and kept bytes together reach the request."""
    if of.free is None or of.unallocated is None:
        return None
    return at_least(of.free + of.unallocated, of.asked)


def is_warm_up(of: Figures) -> bool:
    """Whether nearly all that is reserved is empty."""
    kept, held, card = of.unallocated, of.allocated, of.capacity
    return None not in (kept, held, card) and kept.low * 2 > card.high and kept.low > held.high * 10  # type: ignore[union-attr]


def is_too_little(of: Figures, _: Signs) -> bool | None:
    if of.free is None:
        return False
    covered = at_least(of.free + (of.unallocated or NOTHING), of.asked)
    return None if covered is None else not covered


def fills_its_card(of: Figures, _: Signs) -> bool:
    """What is free and kept is a fiftieth of the card together, or less: tensors fill it, whatever pieces
    the rest lies in. Of a message that does not say what is free: tensors alone take all but a twentieth, and
    what is kept beside them is less than what is asked for.
    """
    if None in (of.allocated, of.capacity, of.unallocated, of.free):
        return False
    kept, card = of.unallocated or NOTHING, of.capacity or NOTHING
    if of.free_is_said:
        return at_least((of.free or NOTHING) + kept, card.times(1, 50)) is False
    part = card.times(1, 20)
    full = at_least((of.allocated or NOTHING) + part, card) is True
    return full and at_least(kept, part) is False and at_least(kept, of.asked) is False


def full_card_words(of: Figures, _: Signs) -> str:
    left = (
        f"{sum_words(of)}, less than a fiftieth of the card's {size_words(of.capacity or NOTHING)}" if of.free_is_said
        else f"tensors take {size_words(of.allocated or NOTHING)} of the card's {size_words(of.capacity or NOTHING)}, what is kept beside "
        f"them is {size_words(of.unallocated or NOTHING)}, and what was free is not said"
    )  # fmt: skip
    return f"{left}: the card is full, and {size_words(of.asked)} more were asked for"


_CACHE_SET = re.compile(
    r"\bgpu[_-]memory[_-]utilization\b|\bmem[_-]fraction[_-]static\b|\bcache[_-]max[_-]entry[_-]count\b"
    r"|free_gpu_memory_fraction\b|\bcache_size\b[\"']?\s{0,3}[:=]?\s{0,3}\d{4,7}\b"
)
"""How servers are told of a cache: vLLM, SGLang, LMDeploy, TensorRT-LLM, tabbyAPI."""


def is_too_little_in_server(of: Figures, signs: Signs) -> bool | None:
    """The same where a server runs whose log does not say how far it had come, or a server's cache is set in
    a text that shows no training and no weights that are loaded: its cache may have what lacks.
    """
    serves = signs.task == SERVING
    is_set = not signs.task and signs.frame is None and not signs.trainer and _CACHE_SET.search(signs.text)
    return is_too_little(of, signs) if not signs.phase and (serves or is_set) else False


def is_too_little_for_trial(of: Figures, signs: Signs) -> bool | None:
    """The same where a server makes the cache of its trial run, before all else that it would serve."""
    return lacks_room(of, signs) if signs.frame is TRIAL_CACHE else False


_GROWS_SAID = re.compile(
    r"(?<!cpu )(?<!host )(?<!system )\b(?:memory|vram|usage|it)\b[^\n.]{0,30}?\b(?:creep|grow|climb|increas|ris|accumulat|pil)(?:e?s|ing|ed)?\b(?:[^\n.]{0,20}\b(?:up|slowly|steadily|each|every|over time|until))"
    r"|\b(?:second|2nd|third|3rd|next) (?:time|call|run)\b[^\n]{0,60}\b(?:die|crash|fail|oom|run out|out of memory)"
    r"|\bfirst (?:time|call|run|cell|execution)\b[^\n.]{0,30}\b(?:work|fine|ok|run)[^\n]{0,60}\b(?:second|2nd|again|next)\b|\b(?:run|execute|call)\w{0,4} (?:it|the (?:cell|function|script|same))\b[^\n.]{0,12}\b(?:again|twice)\b[^\n.]{0,20}\b(?:oom|out of memory|die|crash|fail)"
    r"|\btrial 0\b[^\n]{0,80}\btrial [1-9]\d{0,2}\b[^\n.]{0,30}\b(?:die|crash|fail|oom)"
    r"|\bafter \d{1,4} (?:messages|turns|questions|requests|calls|folds|trials)\b",
    re.IGNORECASE,
)  # fmt: skip
"""How people say that the same ran before, and that memory is not given back."""


def is_too_little_later(of: Figures, signs: Signs) -> bool | None:
    """The same where people say that it ran before and memory is not given back."""
    return lacks_room(of, signs) if said_of(_GROWS_SAID, signs.text) else False


def is_too_little_in_evaluation(of: Figures, signs: Signs) -> bool | None:
    """The same where people say that it died in an evaluation."""
    if signs.phase or evaluates_first(signs.text):
        return False
    return lacks_room(of, signs) if says_evaluation_dies(signs.text) else False


def lacks_room(of: Figures, signs: Signs) -> bool | None:
    """Whether tensors fill the card, or what is free and kept is too little."""
    return True if fills_its_card(of, signs) else is_too_little(of, signs)


def evaluation_alone_dies(_: Figures, signs: Signs) -> bool:
    """The same where they say besides that the steps of the training fit."""
    dies = not signs.phase and says_evaluation_dies(signs.text)
    return bool(dies and says_training_fits(signs.text))


def evaluation_words(of: Figures, _: Signs) -> str:
    return (
        f"the training's steps are said to fit, and its evaluation to die: {size_words(of.asked)} were asked for there, "
        "more than what the steps leave"
    )  # fmt: skip


def sum_words(of: Figures) -> str:
    kept = of.unallocated or NOTHING
    free = of.free or NOTHING
    whole = free + kept
    wide = "to" in size_words(kept).split() or "to" in size_words(free).split()
    total = f"{at_least_words(whole)} to {at_most_words(whole)}" if wide else size_words(whole)
    return f"{size_words(free)} free + {size_words(kept)} kept without tensors = {total}"


def pieces_words(of: Figures, _: Signs) -> str:
    warm = is_warm_up(of)
    how = (
        "; small tensors hold one big segment that a warm-up of the loader made" if warm
        else ", but in pieces between tensors"
    )  # fmt: skip
    return f"{sum_words(of)}, enough for the {size_words(of.asked)} asked for{how}"


def shortage_words(of: Figures, _: Signs) -> str:
    return (
        f"{sum_words(of)} < {size_words(of.asked)} asked for, short by {at_least_words(short_bytes(of))} "
        f"at least: "
        "no setting of the allocator makes room"
    )


def server_shortage_words(of: Figures, signs: Signs) -> str:
    return (
        f"{shortage_words(of, signs)}; whether the server had made its cache, "
        "which leaves what is short, its log does not say"
    )


def lacking_words(of: Figures, signs: Signs) -> str:
    """What of ``lacks_room`` holds."""
    return full_card_words(of, signs) if fills_its_card(of, signs) else shortage_words(of, signs)


def trial_shortage_words(of: Figures, signs: Signs) -> str:
    return (
        f"{lacking_words(of, signs)}; it was {TRIAL_CACHE.words}: what is left beside the weights does not hold as many "
        "tokens as it is to read in one pass"
    )  # fmt: skip


def later_shortage_words(of: Figures, signs: Signs) -> str:
    return (
        f"{shortage_words(of, signs)}; but the same is said to have run before: "
        "what is not given back may be what lacks"
    )


def evaluation_shortage_words(of: Figures, signs: Signs) -> str:
    return (
        f"{shortage_words(of, signs)}; but it is said to die in its evaluation, "
        "which may need more than the steps that fitted"
    )
