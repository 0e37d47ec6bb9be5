"""What a script keeps from step to step, by its own lines or as people say it: sums and lists of tensors,
memory that only grows.
"""

from __future__ import annotations

import re

from memsheet.diagnose.denials import said_of
from memsheet.diagnose.script_lines import Kept, kept_by_script
from memsheet.diagnose.tongues import growth_clause

_LATER_BATCH = re.compile(
    r"(?<![\d.])(?!1st)(?:[2-9]|[1-9]\d{1,6})(?:st|nd|rd|th) (?:batch|iteration|step|sample|image|file|prompt)\b"
    r"|\bafter (?:about |around |~)?(?:[2-9]|[1-9]\d{1,6}) (?:batches|iterations|steps|samples|images|files|prompts)\b"
    r"|\b(?:iteration|step|batch #|batch_idx|(?:around|at|near|after|in|on|until) batch)[ =:#]{0,6}(?:[2-9]|[1-9]\d{1,6})\b"
    r"|\|\s{0,3}(?:[2-9]|[1-9]\d{1,6})/\d{1,7}\b|\b(?:at|with|when|after) (?:i|idx|n|k|it) ?={1,2} ?(?:[2-9]|[1-9]\d{1,6})\b",
    re.IGNORECASE,
)  # fmt: skip
"""A batch that is not the first."""
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?![\d,]))")
"""What parts a number's thousands."""
_GROWS = re.compile(
    r"(?<!cpu )(?<!host )(?<!system )(?<!disk )\b(?:memory|vram|usage|footprint|consumption|allocat\w+|nvidia-smi|gpu(?: mem)?|it)\b[^\n.]{0,40}?"
    r"(?:\b(?:creep|grow|climb|increas|ris|accumulat|leak)(?:e?s|ing|ed)?\b"
    r"[^\n.]{0,60}\b(?:up|slowly|steadily|linearly|constantly|continuously|each|every|over time|the whole time|all the time|until|higher|bit by bit|little by little|MB|GB)"
    r"|\b(?:pil|go|went|fill)(?:e?s|ing|ed)?\b[^\n.]{0,12}\b(?:up|higher)\b[^\n.]{0,30}\b(?:slowly|steadily|each|every|over time|until|bit|little|with))"
    r"|\b(?:slowly|steadily|gradually|constantly|continuously)\s(?:eat|fill|creep|grow|climb|increas|ris|us|tak|consum)\w{0,4}\b[^\n.]{0,30}\b(?:memory|vram|gpu|card)\b"
    r"|\b(?:memory|vram|gpu|it)\b[^\n.]{0,30}\b(?:slowly|steadily|gradually|constantly|continuously)\b[^\n.]{0,12}\b(?:creep|grow|climb|increas|ris|go|fill)\w{0,4}\b"
    r"|\b(?:starts?|begins?) (?:at|with) (?:about |around |~)?\d{1,3}(?:\.\d)? ?(?:GB|GiB|gigs?)\b[^\n]{0,80}\b(?:after|until|then|and)\b[^\n]{0,60}\b(?:gone|full|\d{2,3}(?:\.\d)? ?(?:GB|GiB|gigs?))\b"
    r"|\bleak(?:s|ed|ing)?\b[^\n.]{0,12}\b(?:memory|vram|gpu)\b|\bmemory leak\b[^\n.]{0,60}\bfill\b"
    r"|\b(?:memory|vram|tensors?)\b[^\n.]{0,20}\b(?:isn'?t|is not|are not|aren'?t|never|not) (?:being |getting |ever )?(?:freed|released|given back|returned)\b"
    r"|\b(?:memory|vram|usage|allocat\w+)\b[^\n.]{0,30}\b\d+ ?(?:MB|MiB|GB|GiB) (?:higher|more) (?:than before|each|every)\b",
    re.IGNORECASE,
)  # fmt: skip
"""How people say that what is held only grows."""
_DIES_LATE = re.compile(
    r"\b(?:after|at|around|by|in|on|until|till|near|about|every|takes|~)\s{0,2}(?:about |around |the |some |~ ?|roughly |exactly )?"
    r"(?:(?:iteration|step|iter|batch|request|image|file|episode|update) ?#? ?~?(?:[2-9]\d|[1-9]\d{2,6})"
    r"|(?:[2-9]\d|[1-9]\d{2,6}|\d{1,3}k|several|many|a few (?:hundred|thousand)|some (?:hundred|thousand)|hundreds of|thousands of) ?"
    r"(?:iterations?|steps?|iters?|batches|requests?|images?|files?|episodes?|updates?|prompts?|messages|samples|queries|documents|pages|frames|clips|users|sessions|chats|conversations|clients|turns|calls|jobs)"
    r"|(?:epoch ?#? ?(?:[2-9]|[1-9]\d)|(?:second|third|fourth|[2-9](?:nd|rd|th)) epoch|\d{1,3} epochs)"
    r"|(?:\d{1,3}|a few|several|some) (?:hours?|hrs?|h|days?|minutes|min)\b)"
    r"|\bnever at the (?:start|beginning)\b|\beventually\b"
    r"|\b(?:works?|worked|runs?|ran|fine|ok(?:ay)?|survives?) for (?:the first )?(?:about |around |~ ?|some )?(?:[2-9]|[1-9]\d{1,6}) (?:prompts?|images?|files?|samples?|batches|steps|iterations|requests?|documents|clips|videos)\b",
    re.IGNORECASE,
)  # fmt: skip
_PART_DONE = re.compile(
    r"(?<![\d.])[1-9]\d?(?:\.\d)? ?% (?:of|done|through|in\b|complete)|\b(?:[2-9]|[1-9]\d{1,5}) (?:epochs|steps|iterations|batches|files|rounds)\b[^\n.;]{0,16}\b(?:ok(?:ay)?|fine|good|work(?:ed|s)?|done|finished)\b",
    re.IGNORECASE,
)  # fmt: skip
"""How they say that several rounds ran."""
_ONLY_LATER = re.compile(
    r"\b(?:smaller|half|halv\w+|reduc\w+|lower\w*|less|bigger|larger|with|batch)\b[^\n.;]{0,60}?"
    r"\b(?:(?:crash|die|fail|oom|stop|happen)\w* (?:at|on|around|after|only)? ?~?\d[\d,]{0,6} instead|(?:just |only )?(?:delays?|postpones?)"
    r"|(?:crash|die|fail|oom|stop|happen)\w* (?:just |only )?(?:later|twice as late)|(?:always|just|only) later|lasts? (?:longer|twice))\b",
    re.IGNORECASE,
)  # fmt: skip
"""The same with a smaller batch or a larger card, later."""
_KEEPS_SAID = re.compile(
    r"\b(?:stor|keep|kept|sav|collect|append|put|accumulat|cach|record|log)\w{0,5}\b[^\n.;]{0,40}?"
    r"\b(?:activations?|outputs?|hidden states?|features?|embeddings?|logits|attention (?:maps?|weights)|predictions?|losses|tensors?)\b[^\n;]{0,50}?"
    r"\b(?:lists?|dict\w*|cache|buffer|append|in memory|history|self\.\w+)\b"
    r"|\b(?:activations?|outputs?|hidden states?|features?|embeddings?|logits|attention (?:maps?|weights)|predictions?|losses|tensors?)\b[^\n.;]{0,40}?"
    r"\b(?:go(?:es)?|put|append\w*|added|pushed|stored|kept|saved|collected|cached|ends? up|logged)\b (?:in|into|to|on|onto|inside) [^\n.;]{0,24}?(?:\blists?\b|\bdict\w*|\w*cache\b|\w*buffer\b|\w*history\b|\bself\.\w+)",
    re.IGNORECASE,
)  # fmt: skip
_MOVED = re.compile(r"\.cpu\(\)|\bto (?:the )?(?:cpu|disk)\b|\.npy\b|\.numpy\(\)|\boffload", re.IGNORECASE)
"""How people say that what a model makes is kept; and that it leaves the card."""
_LENGTHS_VARY = re.compile(
    r"\b(?:longest|dynamic(?:ally)? pad\w*|variable[- ](?:length|size)|var(?:ying|ies) lengths?|different lengths?|longer (?:samples?|sequences?|prompts?|inputs?|texts?)|bucket\w* by length)\b",
    re.IGNORECASE,
)  # fmt: skip


def kept_over_rounds(text: str, *, several: bool) -> tuple[Kept, ...]:
    """What a script keeps from round to round as tensors: sums of losses, what is kept where several rounds
    ran, and what a loop shows to be kept, however many ran. ``several``: whether something else says so.
    """
    kept, text = kept_by_script(text), _THOUSANDS.sub("", text)
    ran = bool(kept) and (
        several or any(said.search(text) for said in (_LATER_BATCH, _DIES_LATE, _ONLY_LATER, _PART_DONE))
    )
    told = (each._replace(several=ran or each.what == "sum") for each in kept)
    return tuple(each for each in told if each.several or each.looped)


def growth_in_words(text: str) -> str:
    """By which words people say that what is held only grows, or that what a model makes is kept, and that
    the job died late of it, where they say nothing of lengths that differ; in other tongues by ``tongues``.
    """
    text = _THOUSANDS.sub("", text)
    grows = said_of(_GROWS, text) or (None if _MOVED.search(text) else said_of(_KEEPS_SAID, text))
    if _LENGTHS_VARY.search(text):
        return ""
    if grows is None:
        return growth_clause(text)
    return grows.group() if _ONLY_LATER.search(text) or _DIES_LATE.search(text) else ""
