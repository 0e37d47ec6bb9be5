"""What a script keeps from step to step, by its own lines or as people say it: sums and lists of tensors,
memory that only grows.
"""

from __future__ import annotations

import re
from itertools import islice

from memsheet.diagnose.tongues import said_to_grow

_SUM_NAMES = (
    r"(?=\w*(?:total|running|epoch|sum|cum|acc|train|avg|mean|all|history|log|val|test|dev))\w*loss\w*"
)
_LOSS_MADE = (
    r"(?:(?:(?:batch|step|iter|train|val|valid|test|cur|current)_?)?loss(?:es)?"
    r"|(?:\w{0,30}crit\w{0,20}|\w{0,30}loss\w{0,20}|objective|F\.\w{1,40}|(?:nn\.)?functional\.\w{1,40})"
    r"\((?:[^()\n]|\([^()\n]{0,80}\)){0,160}\)(?:\.(?:mean|sum)\(\))?)"
)
"""A loss, or the call that makes it, of which no number is taken."""
_LEAK = re.compile(
    rf"^[ >]*(?:self\.)?({_SUM_NAMES})(?:\[[^\]\n]{{0,40}}\])?\s*(?:\+=|=\s*(?:self\.)?\1\s*\+)\s*"
    rf"(?:self\.)?{_LOSS_MADE}(?:\s?[*/]\s?[\w.]{{1,30}}(?:\([^()\n]{{0,20}}\))?)?\s*(?:;|#|$)",
    re.MULTILINE | re.IGNORECASE,
)
"""A sum over steps, by its name; parts of one step's loss are added to ``loss``, or have other names."""
_LEAK_BY_NAME = re.compile(
    r"^[ >]*(?:self\.)?((?=\w*(?:total|running|epoch|sum|cum|acc|avg|mean|all|history|log))\w*(?:loss|err|cost)\w*)\s*\+=\s*(?:self\.)?(?P<made>\w*(?:loss|err|cost)\w*)\s*(?:;|#|$)",
    re.MULTILINE | re.IGNORECASE,
)  # fmt: skip
"""The same of a loss of any name, where the text shows its own backward pass: it is no part of another."""
_WITHOUT_GRAPH = re.compile(r"\bno_grad\b|\binference_mode\b|\bset_grad_enabled\(False\)")
GRAPHLESS_WITHIN = 12
"""Lines before a sum in which a script says that nothing is kept for backward."""
_KEPT_LOSS = re.compile(
    r"^[ >]*(?:self\.)?\w{0,40}(?:loss|history)\w{0,40}\.append\(\s{0,3}(?:self\.)?\w*loss\s{0,3}\)"
    r"\s*(?:#[^\n]{0,200})?$",
    re.MULTILINE | re.IGNORECASE,
)
"""A list of losses over steps: of tensors where memory grows with it."""
_MADE = (
    r"(?:outs?|outputs?|res(?:ults?)?|preds?|predictions?|logits|hidden(?:_states?)?|feat(?:ure)?s?|emb(?:edding)?s?"
    r"|attn|attention_maps?|activations?|model\([^\n]{0,80}\))"
    r"(?:\.(?:logits|hidden_states|last_hidden_state|pooler_output|attentions))?(?:\[[^\]\n]{0,20}\])?(?:\.(?:detach|clone)\(\)){0,2}"
)  # fmt: skip
_KEPT_OUTPUT = re.compile(
    rf"(?:^[ >]*|`)(?:self\.)?(\w+)(?:\[[^\]\n]{{0,40}}\])?\.(?:append|extend)\(\s{{0,3}}(?:[({{\[]\s{{0,3}}(?:[\"']\w{{1,20}}[\"']\s?:\s?)?)?"
    rf"(?:self\.)?{_MADE}\s{{0,3}}(?:,[^\n()]{{0,60}})?[)}}\]]?\s{{0,3}}\)\s*(?:;|#|$|`)"
    rf"|^[ >]*(?:self\.)?(?P<grown>\w+)\s?=\s?torch\.(?:cat|concat|vstack|hstack)\(\s?[(\[]\s?(?:self\.)?(?P=grown)\s?,\s?{_MADE}\s?[)\]]"
    rf"|^[ >]*(?:self\.)?\w+\s?\+=\s?\[\s?{_MADE}\s?\]\s*(?:;|#|$)",
    re.MULTILINE,
)  # fmt: skip
"""A list, or one tensor that grows, of what a model makes, which is not moved off the card."""
_OF_MODEL = re.compile(
    r"^[ >]*(\w{1,40})(?:, ?\w{1,40}){0,2}\s?=\s?(?:self\.)?(?:\w{0,20}(?:model|net|backbone|encoder|decoder|extractor|clip|vit|resnet|bert|pipe|generator)\w{0,20})"
    r"(?:\.(?:forward|encode|module|\w{0,20}features?))?\((?![^\n]*\)\.(?:cpu|numpy|item|tolist|to)\()[^\n]{0,200}\)\s*(?:;|#|$)",
    re.MULTILINE | re.IGNORECASE,
)  # fmt: skip
"""A name that a script gives to what a model makes, and nothing moved off the card."""
_LATER_BATCH = re.compile(
    r"(?<![\d.])(?!1st)(?:[2-9]|[1-9]\d{1,6})(?:st|nd|rd|th) (?:batch|iteration|step|sample|image|file|prompt)\b"
    r"|\bafter (?:about |around |~)?(?:[2-9]|[1-9]\d{1,6}) (?:batches|iterations|steps|samples|images|files|prompts)\b"
    r"|\b(?:iteration|step|batch #|batch_idx|(?:around|at|near|after|in|on|until) batch)[ =:#]{0,6}(?:[2-9]|[1-9]\d{1,6})\b"
    r"|\|\s{0,3}(?:[2-9]|[1-9]\d{1,6})/\d{1,7}\b|\b(?:at|with|when|after) (?:i|idx|n|k|it) ?={1,2} ?(?:[2-9]|[1-9]\d{1,6})\b",
    re.IGNORECASE,
)  # fmt: skip
"""A batch that is not the first."""
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
    r"(?:iterations?|steps?|iters?|batches|requests?|images?|files?|episodes?|updates?|prompts?|messages|samples|queries|documents|pages|frames|clips)"
    r"|(?:epoch ?#? ?(?:[2-9]|[1-9]\d)|(?:second|third|fourth|[2-9](?:nd|rd|th)) epoch|\d{1,3} epochs)"
    r"|(?:\d{1,3}|a few|several|some) (?:hours?|hrs?|h|days?|minutes|min)\b)"
    r"|\bnever at the (?:start|beginning)\b|\beventually\b"
    r"|\b(?:works?|worked|runs?|ran|fine|ok(?:ay)?|survives?) for (?:about |around |~ ?|some )?(?:[2-9]|[1-9]\d{1,6}) (?:prompts?|images?|files?|samples?|batches|steps|iterations|requests?|documents|clips|videos)\b",
    re.IGNORECASE,
)  # fmt: skip
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
    r"\b(?:lists?|dict\w*|cache|buffer|append|in memory|history|self\.\w+)\b",
    re.IGNORECASE,
)  # fmt: skip
_MOVED = re.compile(r"\.cpu\(\)|\bto (?:the )?(?:cpu|disk)\b|\.npy\b|\.numpy\(\)|\boffload", re.IGNORECASE)
"""How people say that what a model makes is kept; and that it leaves the card."""
_LENGTHS_VARY = re.compile(
    r"\b(?:longest|dynamic(?:ally)? pad\w*|variable[- ](?:length|size)|var(?:ying|ies) lengths?|different lengths?|longer (?:samples?|sequences?|prompts?|inputs?|texts?)|bucket\w* by length)\b",
    re.IGNORECASE,
)  # fmt: skip


def sums_losses(text: str) -> bool:
    """Whether a script adds losses up over steps as tensors, with their graphs."""
    for found in _LEAK_BY_NAME.finditer(text):
        if re.search(rf"\b{re.escape(found['made'])}\.backward\(", text):
            return True
    for found in _LEAK.finditer(text):
        before = text[: found.start()].split("\n")[-GRAPHLESS_WITHIN:]
        of_one_step = re.search(rf"\b{re.escape(found[1])}\b[^\n]{{0,40}}\.backward\(", text)
        if not of_one_step and not any(_WITHOUT_GRAPH.search(each) for each in before):
            return True
    return False


def lists_losses(text: str) -> bool:
    """Whether a script puts losses on a list as they are."""
    return bool(_KEPT_LOSS.search(text))


def keeps_outputs(text: str, *, several: bool) -> bool:
    """Whether a script keeps what a model makes on the card from batch to batch, of which several ran.
    ``several``: whether something else says so.
    """
    kept = _KEPT_OUTPUT.search(text) or _keeps_by_name(text)
    return bool(kept and (several or _LATER_BATCH.search(text)))


def _keeps_by_name(text: str) -> bool:
    """The same by the name that the script gives to what the model makes."""
    names = dict.fromkeys(found[1] for found in islice(_OF_MODEL.finditer(text), MOST_NAMES))
    return any(
        re.search(rf"^[ >]*(?:self\.)?\w+\.append\(\s?{re.escape(each)}(?:\.detach\(\))?\s?\)\s*(?:;|#|$)", text, re.MULTILINE)
        for each in names
    )  # fmt: skip


MOST_NAMES = 32


def growth_in_words(text: str) -> str:
    """By which words people say that what is held only grows, or that what a model makes is kept, and that
    the job died late of it, where they say nothing of lengths that differ; in other tongues by ``tongues``.
    """
    grows = _GROWS.search(text) or (None if _MOVED.search(text) else _KEEPS_SAID.search(text))
    if _LENGTHS_VARY.search(text):
        return ""
    if grows is None:
        return said_to_grow(text)
    return grows.group() if _ONLY_LATER.search(text) or _DIES_LATE.search(text) else ""
