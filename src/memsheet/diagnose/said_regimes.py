"""A run that becomes another, as people say it: a phase that fitted and one that dies at its first step, a
sample that is far longer than those that fitted.
"""

from __future__ import annotations

import itertools
import re

from memsheet.diagnose.tongues import DIES, FINE, LONG, clause_with_all, clauses_of, says
from memsheet.patterns import late_pattern

_DIES = (
    r"(?:die[sd]?|dying|crash\w*|fail\w*|oom\w*|out of memory|cuda error|runs? out|blows? up|explode\w*|boom"
    r"|kill\w*|not fit)"
)
_FINE = (
    r"(?:fine|ok(?:ay)?|no problems?|no issues?|(?:without|w/o) (?:a |any |one )?(?:single )?(?:problems?|ooms?|issues?|hiccups?)|perfect(?:ly)?|good|well"
    r"|smooth(?:ly)?|happily|works?|worked|fits?|fitted|completed?|finished|done|stable)"
)  # fmt: skip
_RUN = r"\d[\d,.]{0,9}\s?k?\s(?:steps?|epochs?|iterations?|iters?|hours?|h|days?|minutes|min|updates?)"
_FITTED = late_pattern(
    rf"\b(?:(?:phase|stage|level|part) ?(?:[1A]|I|one)\b|(?:first|initial|previous) (?:phase|stage|level|part)|{_RUN})[^\n;]{{0,90}}?\b{_FINE}\b"
    rf"|\b(?:run|ran|runs|train|trains|trained) (?:for )?{_RUN}\b"
    rf"|\b{_FINE}\b[^\n.;]{{0,30}}?\b(?:for|in|during|until|till|through)\b[^\n.;]{{0,30}}?\b(?:(?:phase|stage|level) ?(?:[1A]|I|one)\b|{_RUN})",
    re.IGNORECASE,
)  # fmt: skip
"""How people say that a part of a run fitted."""
_NEXT = (
    r"(?:(?:phase|stage|level|part) ?(?:[2-9B]|II|two|three)\b|(?:second|next|third|last|final|2nd|3rd) (?:phase|stage|level|part|resolution)"
    r"|(?:at|with|to|on|then|from|of)(?: the)? (?:\d{3,4} ?(?:px|pixels)|\d{3,4} ?x ?\d{3,4}|(?:seq\w*|length|context|ctx|resolution)[ =]?\d{3,6}|\d{1,3}k (?:tokens|context|ctx)))"
)  # fmt: skip
_AT_ONCE = r"(?:first|1st|immediate\w*|right away|instant\w*|at once|straight ?away|directly)"
_NEXT_DIES = late_pattern(
    rf"\b(?:then|but|now|when|once|as soon as|and|,)\s[^\n;]{{0,40}}?{_NEXT}[^\n;]{{0,60}}?\b(?:{_DIES}\b|{_AT_ONCE}\b|[:]\s*$)"
    rf"|{_NEXT}[^\n;]{{0,40}}?\b{_DIES}\b[^\n.;]{{0,30}}?\b{_AT_ONCE}\b"
    rf"|\b{_DIES}\b[^\n.;]{{0,40}}?\b(?:{_AT_ONCE} (?:step|batch|iteration)s? (?:of|with|at|in|after) |in |of |at |with ){_NEXT}",
    re.IGNORECASE | re.MULTILINE,
)  # fmt: skip
"""How they say that another part of it died."""


def next_phase_dies(text: str) -> str:
    """By which words people say that a part of a run fitted and the next one did not; empty where they do
    not.
    """
    found = _NEXT_DIES.search(text) if _FITTED.search(text) else None
    return found.group().strip() if found and not _SHARDS.search(text) else ""


_SHARDS = late_pattern(r"\bstages? ?[0-3]\b[^\n]{0,24}\bzero\b|\bzero\b[^\n]{0,24}\bstages?\b", re.IGNORECASE)
"""Stages that are none of a run: ZeRO's."""
_SAMPLE = (
    r"(?:sample|sequence|example|batch|document|prompt|text|clip|audio|utterance|video|image|file"
    r"|conversation|answer|response|graph|molecule|protein|row)s?"
)
_LONG_SAMPLE = late_pattern(
    rf"\b(?:the|an?|one|some|my|single|few) (?:\w+ ){{0,2}}(?:longest|very long|really long|extremely long|unusually long|giant|huge|enormous|outlier|oversized|monster)\b[^\n.;]{{0,30}}?\b{_SAMPLE}\b"
    rf"|\b(?:one|an?|single|some) (?:\w+ ){{0,2}}{_SAMPLE} (?:is|has|of|with|that (?:is|has))\b[^\n.;]{{0,30}}?\d[\d,. ]{{2,9}}k?\s?(?:tokens|frames|nodes|atoms|residues|words|chars|seconds|s|px|pixels|k)\b"
    rf"[^\n]{{0,40}}?\b(?:others?|rest|most|usual\w*|average|mean|median|typical\w*)\b"
    r"|\b(?:on|at|with|hits?|meets?|reach\w*) (?:the|an?) (?:longest|outlier)\b"
    rf"|\b(?:hits?|meets?|reach\w*|comes? to|on) (?:an?|one|the) [^\n.;()]{{0,30}}?\b{_SAMPLE}\b[^\n.;()]{{0,20}}\((?:the |all )?(?:others?|rest|most|median|average|usual\w*|normal\w*)\b",
    re.IGNORECASE,
)  # fmt: skip
_RAN = late_pattern(rf"\b(?:after|for|at|in|around|until|trains?|runs?|ran)\b[^\n.;]{{0,20}}?\b(?:{_RUN}|(?:step|iteration|batch) \d{{2,9}})|\bfine\b|\brandom\w*\b", re.IGNORECASE)  # fmt: skip


def long_sample_dies(text: str) -> str:
    """By which words people say that the run died at a sample that is far longer than those that fitted."""
    found = _LONG_SAMPLE.search(text) if _RAN.search(text) else None
    if found:
        return found.group().strip()
    fitted = clause_with_all(text, LONG, DIES) if clause_with_all(text, FINE) else ""
    return fitted or _clause_of_longer_sample(text)


_TOKENS = late_pattern(
    r"(?<![\w.,-])(?:\d{1,6}\s?[-–~]\s?)?(\d{2,7})\s?(k)?\s?(?:tokens?|toks?|токен\w*|jetons?|词元|トークン|토큰)(?!/)",
    re.IGNORECASE,
)  # fmt: skip
"""How long a sample is, as people say it: of a range its end."""
_USUAL = late_pattern(
    r"\b(?:usual\w*|typical\w*|normal\w*|most(?:ly)?|average|avg|mean|median|the rest|(?:the|all) others?|before|so far|обычно|в среднем|остальн\w*|meist\w*|sonst|durchschnitt\w*|en général|d'habitude|la plupart|moyenne"
    r"|suele\w?|promedio|geralmente|em média|di solito|in media|genel\w*|ortalama|thường|trung bình|zwykle|średnio)\b|通常|一般|平均|其他|其余|普段|たいてい|ほとんど|보통|평균|나머지",
    re.IGNORECASE,
)  # fmt: skip
_OF_SETTING = late_pattern(r"max|cutoff|limit|window|context|budget|上限|=", re.IGNORECASE)
_THOUSANDS = late_pattern(r"(?<=\d)[,.\u00a0 ](?=\d{3}(?!\d))")
LONGER = (3, 2)
"""How far beyond what is usual a sample is another."""


def _clause_of_longer_sample(text: str) -> str:
    """The clause by which people say that a run died at a sample of far more tokens than are usual."""
    said = [
        (clause, max(int(each[1]) * (1000 if each[2] else 1) for each in found))
        for clause in clauses_of(_THOUSANDS.sub("", text))
        if (found := list(_TOKENS.finditer(clause))) and not _OF_SETTING.search(clause)
    ]
    usual = max((tokens for clause, tokens in said if _USUAL.search(clause)), default=0)
    return next(
        (
            clause.strip()
            for clause, tokens in said
            if usual and tokens * LONGER[1] >= usual * LONGER[0] and not _USUAL.search(clause)
            and (says(clause, DIES) or _DIES_SAID.search(clause) or _RAN.search(clause))
        ),
        "",
    )  # fmt: skip


_EVENT = late_pattern(
    r"(?<![\w-])(?:(?:eval|validat|evaluat)\w{0,20}(?![\w=-])|(?:the )?(?:test|dev|validation) (?:set|loop|pass)|val(?:idation)? (?:loop|step|epoch|batch)"
    r"|sav(?:e|es|ed|ing)(?:_\w{2,20})? ?(?:\(\)|(?:of )?(?:the |a |my |first |model |full )*(?:checkpoint|model|state|weights|ckpt)\w*)|(?:save_(?:state|pretrained|model|checkpoint)|state_dict|torch\.save)\b|(?:full |consolidat\w* )(?:\w+ )?state[ _]dict|checkpoint(?:ing)? (?:is|gets|to|at|time|save)"
    r"|un-?fr[eo]+z(?:e|es|ed|en|ing)?\b(?!\s?[=(_])|requires_grad_?\(True\)|thaw\w*"
    r"|(?:gradient |r1 |path[ -]length )?(?:penalty|regulari[sz]ation)\b|(?:discriminator|adversarial|perceptual|GAN|distillation|teacher|EMA|SWA|mixup)\b[^\n]{0,12}\b(?:starts?|kicks? in|begins?|is (?:enabled|added|on)|phase|loss)"
    r"|sample generation|generat(?:es|ing) (?:sample|preview|image)\w*|sampling\b|preview (?:image|sample)s?|FID\b|(?:draws?|renders?|samples?|generates?) \d{1,4} (?:\w+ )?(?:images?|samples?|pictures?|videos?)|(?:full )?(?:fine-?tuning|finetune) (?:phase|stage|part))",
    re.IGNORECASE,
)  # fmt: skip
"""What a run does now and then, or from some place on, that its other steps do not."""
_PLACE = late_pattern(
    r"(?:\b(?:at|when|once|during|while|on|in|then|after|until|before|with|as soon as|every time|whenever|immediately|first|reach\w*|hits?|gets? to|trigger\w*|(?:at|during) the (?:first|end))\b|^)[^\n]{0,48}$",
    re.IGNORECASE,
)  # fmt: skip
_STEPS_FIT = late_pattern(
    rf"\b(?:train(?:s|ing|ed)?|steps?|epochs?|iterations?|iters|batches|hours?|phase|stage|{_RUN}|everything|all|loop|forward(?: and |/)backward|run(?:s|ning)?|ran|first \d+)\b[^\n;]{{0,60}}?\b(?:{_FINE}|no (?:trouble|crash|oom|error)\w*|without (?:any |a )?(?:trouble|hiccup|oom|issue|problem|crash|error)\w*|flat|constant|steady|stable|to the end|through|succeed\w*|trouble-free)\b"
    rf"|\b(?:{_FINE}|flat|constant|steady)\b[^\n.;]{{0,24}}?\b(?:in|during|for|while|through\w*|at) (?:the )?(?:train\w*|steps|\d[\d,.k]* (?:steps|iterations|epochs|hours))\b",
    re.IGNORECASE,
)  # fmt: skip
"""How they say that a run's other steps fit."""
_DIES_SAID = late_pattern(rf"\b{_DIES}\b|[:：]\s*$|\b(?:gets?|throws?|raises?|gives?|hits?|see)(?: (?:this|the|an?|me|us|it)\b[^\n]{{0,12}})?\s*$", re.IGNORECASE)  # fmt: skip


_UPDATE = late_pattern(
    r"\boptim(?:izer|iser)?\.step\b|\b(?:optimi[sz]er|weight|parameter)[ -](?:step|update)\b|\bfirst update\b"
    r"|\bOptimizer-?Schritt|优化器(?:的)?(?:更新|步)|参数更新|パラメータの?更新|옵티마이저",
    re.IGNORECASE,
)
_FIRST = late_pattern(
    r"\b(?:(?:first|1st)(?! \d)|step [01](?!\d)|erste\w{0,2}|premi[eè]re?|primer[ao]?|primeir[ao]|prim[ao]|перв\w{1,3})\b"
    r"|第一|首次|初回|最初|첫",
    re.IGNORECASE,
)  # fmt: skip


def first_update_dies(words: str) -> bool:
    """Whether people say that a run died at its first update of weights, where an optimizer makes its
    states.
    """
    dies = any(
        _UPDATE.search(clause) and (_DIES_SAID.search(clause) or says(clause, DIES))
        for clause in clauses_of(words)
    )
    return dies and bool(_FIRST.search(words))


def fits_otherwise(words: str) -> bool:
    """Whether people say that a run's other steps fit."""
    return bool(_STEPS_FIT.search(words))


_DIES_THERE = late_pattern(
    rf"\s*(?:(?:it|which|that|and|then|this|always|here|there|where) ){{0,3}}{_DIES}\b", re.IGNORECASE
)
"""How the next clause goes on."""
_STEP_LINE = late_pattern(r"\bloss\b|\bit/s\b|[=:]\s?[\"']?(?:true|false|none|\d)|--\w", re.IGNORECASE)
"""What is a step's line, or a setting's."""


def event_dies(words: str, last: str, *, stepped: bool) -> str:
    """By which clause people say that a run died at something that its other steps do not do, where these are
    said, or shown (``stepped``), to have fitted. ``words``: those before a message and behind it, without its
    traceback; ``last``: the last line before it.
    """
    if not (_EVENT.search(words) and (stepped or fits_otherwise(words))):
        return ""
    if stepped and _EVENT.search(last) and not (_NOT_THERE.search(last) or _STEP_LINE.search(last)):
        return last.strip()
    clauses = list(clauses_of(words))
    for clause, behind in itertools.zip_longest(clauses, clauses[1:], fillvalue=""):
        found = _EVENT.search(clause)
        dies = found and (_DIES_SAID.search(clause) or _DIES_THERE.match(behind))
        if (
            found
            and dies
            and _PLACE.search(clause[: found.start()])
            and not (_NOT_THERE.search(clause) or (_SHARDS.search(words) and _STAGE.search(clause)))
        ):
            return clause.strip()
    return ""


_STAGE = late_pattern(r"\bstages?\b", re.IGNORECASE)
_SAVES = late_pattern(r"\bsav(?:e|es|ed|ing)\b|save_|state_dict|checkpoint", re.IGNORECASE)


def saves_event(clause: str) -> bool:
    """Whether what a clause says a run died at is the saving of a checkpoint."""
    return bool(_SAVES.search(clause))


_NOT_THERE = late_pattern(
    r"\b(?:not|no|never|isn'?t|without|before|disabled?|skip\w*|off)\b[^\n]{0,16}\b(?:eval|valid|sav|checkpoint|unfr|stage|phase|penalty|sampl)|[=:]\s?(?:no|none|false|off)\b",
    re.IGNORECASE,
)  # fmt: skip
"""How a clause says that it was none of these."""
