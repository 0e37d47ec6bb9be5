"""Any program's line that a setting is not for this card, or not with another setting: how such sentences
are built, whatever they are of. What is refused before memory is asked for died of no shortage.

Read only where a line is an error's (an exception's name, or a level in front) and the program does not
go on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.message import MAYBE, Cause, Cure, Judgement
from memsheet.frozen import NamedTuple, replace

_ERROR = re.compile(
    r"(?:[\w.]{1,120}(?:Error|Exception|Failure)\b|.{0,60}?\b(?:ERROR|FATAL|[Ee]rror|[Ff]atal)\b\]?\s?[:)\]])"
)
"""How a line begins that ends a program."""
_WORD = r"(?:--)?[\w`'./+=<>-]{1,40}"
_WHAT = rf"(?P<what>{_WORD}(?: {_WORD}){{0,6}}?)"
_OTHER = r"(?P<other>[^\n.;:\"()]{2,80}?)(?=[.;:,\"()]|$)"
_CARD = (
    r"(?:(?:this|the|your|current|given) )*(?:(?:GPU|CUDA|NVIDIA|AMD|ROCm) )*"
    r"(?:architecture|arch|devices?|GPUs?|cards?|hardware|platform|compute capabilit(?:y|ies)|capabilit(?:y|ies))\b"
)  # fmt: skip
_KIND = r"(?:compute capabilit(?:y|ies)|\bSM ?_?\d{2,3}|\bsm_?\d{2,3}|\bgfx\d{3,4}|Ampere|Ada\b|Hopper|Blackwell|Turing|Volta|MI\d{3}|[ABHLV]\d{2,3}\b|RTX)"  # fmt: skip
_NOT = r"(?:(?:currently|yet|still) )?(?:not (?:(?:yet|currently) )?(?:supported|implemented|available|compatible)|unsupported|incompatible)"  # fmt: skip
_OF_CARD = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_WHAT} (?:(?:is|are|was) )?{_NOT} (?:in|on|for|by|with) {_CARD}",
        rf"{_CARD}(?: [^\n.;:]{{1,40}})? (?:does not|do not|doesn't|don't|cannot) support {_WHAT}(?=[.;:,\"()]|$)",
        rf"{_WHAT} (?:requires?|needs?|(?:is|are) only (?:supported|available|implemented) (?:on|for|with)|only (?:supports?|works? (?:on|with))) [^\n.;:]{{0,60}}?{_KIND}",
    )
)  # fmt: skip
_TOGETHER = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_WHAT} (?:(?:is|are) )?{_NOT} (?:together )?(?:with|for|when|in combination with) {_OTHER}",
        rf"{_WHAT} (?:cannot|can not|can't|must not) be (?:used|enabled|combined|set)(?: together| simultaneously| at the same time)? (?:with|when|for) {_OTHER}",
        rf"{_WHAT} (?:does not|do not|doesn't|don't) (?:yet |currently )?(?:support|work with) {_OTHER}",
        rf"{_WHAT} (?:only|currently only|only currently) (?:supports?|accepts?|handles?|works? with) {_OTHER}",
        rf"(?:cannot|can not|can't|unable to) (?:use|enable|combine|run|set) {_WHAT} (?:together with|with|when|while|and|on|for) {_OTHER}",
        rf"{_WHAT} (?:is|are) not valid for (?P<other>this configuration)",
        rf"{_WHAT}(?: ?[(=] ?\d{{1,9}}\)?)? (?:(?:is|are) not (?:evenly )?divisible by|(?:must|should) be (?:evenly )?divisible by|(?:must|should) (?:evenly )?divide|is not a multiple of|must be a multiple of) (?P<other>[\w .=()-]{{1,60}}?)(?=[.;:,\"]|$)",
    )
)  # fmt: skip
_SETTINGS = re.compile(
    r"--\w|\w=\w|(?<![A-Za-z])(?:fp8|fp4|nvfp4|mxfp4|int[48]|[bf]f?(?:loat)?16|tf32|fp8e\w+|awq|gptq|marlin|quanti[sz]\w+|kv[-_ ]?cache|use_cache|prefix[- _]caching|chunked[- _]prefill|cuda[- _]?graphs?|sliding[- _]window"
    r"|lora|adapters?|speculative|draft|eagle|mtp|(?:tensor|pipeline|data|expert|context|sequence)[- _]?parallel\w*|zero(?:[- ]?\d| stage)?|fsdp\d?|deepspeed|offload\w*|checkpointing|recomput\w+"
    r"|flash\w*|attention|attn|sdpa|sinks?|backend|packing|compile|sleep mode|8-?bit|4-?bit|cutlass|triton|tma|moe|experts?"
    r"|batched|batch[- _]size|block[- _]?size|(?:per_)?partition|heads|thread|ranks?|gpus?|world[- _]size|low_cpu_mem\w*|device_map|sm_\d+|capabilit(?:y|ies))(?![A-Za-z])",
    re.IGNORECASE,
)  # fmt: skip
"""What people set: an option, a format of numbers, a way to cut, keep or compute."""
_FP8 = re.compile(r"fp8|e4m3|e5m2|float8", re.IGNORECASE)
_CACHE_TYPE = re.compile(
    r"kv[-_ ]?cache[-_ ]?(?:dtype|quant|in fp8)|\bfp8 (?:kv|cache)|(?:kv|cache) fp8|fp8 kv", re.IGNORECASE
)
CACHE_TYPE = Cure(
    change="a cache in a format that the card computes, or in 16 bits", helps=MAYBE, where="--kv-cache-dtype fp8_e5m2 (or auto)", why="the other values of the option need no such unit",
)  # fmt: skip
OTHER_NUMBERS = Cure(
    change="a format of numbers that the card computes (int8, AWQ, GPTQ, or 16 bits)", helps=MAYBE,
    why="a format that is computed in itself needs its own hardware",
)  # fmt: skip
LEFT_OUT = Cure(change="without what is refused", helps=MAYBE)
ONE_OF_TWO = Cure(change="one of the two left out", helps=MAYBE)
LATER_CARD = Cure(change="a newer card", helps=MAYBE)


class Refused(NamedTuple):
    """A line that refuses a setting: its number, what it refuses, and with which other (none: the card)."""

    line: int
    what: str
    other: str


_SPOKEN = re.compile(r"^[\w.]{1,120}\(|^[^:(\n]{0,140}: ?")
"""What stands before an error's sentence: its name with the bracket of a call, or a colon."""


def _bare_words(words: str) -> str:
    return words.strip(" `'\"").removeprefix("type ").removeprefix("The ").removeprefix("the ")


def _is_set(words: str, text: str) -> bool:
    """Whether what a sentence calls so is an option of the same name in the text."""
    bare = _bare_words(words).lower()
    name = re.sub(r"[ -]", "_", bare)
    return name != bare and name in text.lower()


def _told_by_line(line: str, text: str) -> Iterator[tuple[str, str]]:
    """What an error's line says of the card, then of two settings. ``text``: of the whole log."""
    sentence = _SPOKEN.sub("", line, count=1)
    for pattern in _OF_CARD:
        if (found := pattern.search(sentence)) and _SETTINGS.search(found["what"]):
            yield _bare_words(found["what"]), ""
    for pattern in _TOGETHER:
        if (found := pattern.search(sentence)) and (
            _SETTINGS.search(f"{found['what']} {found['other']}")
            or any(_is_set(found[name], text) for name in ("what", "other"))
        ):
            yield _bare_words(found["what"]), _bare_words(found["other"])


def refused_together(log: Log) -> Refused | None:
    """The first such line, where there is one."""
    for number, line in enumerate(log.lines):
        if (
            len(line) < MOST_OF_LINE
            and _ERROR.match(line)
            and (told := next(_told_by_line(line, log.text), None))
        ):
            return Refused(number, *told)
    return None


MOST_OF_LINE = 1_000


def _written_in(refused: Refused, text: str) -> str:
    """Where a text sets what is refused, as it writes it; empty where it does not."""
    names = (re.sub(r"[ -]", "_", each.lower()) for each in (refused.what, refused.other))
    patterns = (
        rf"[\w-]{{2,60}}=[\w:,.]{{0,80}}?{re.escape(each)}[\w:.]{{0,20}}" for each in names if "_" in each
    )
    found = (re.search(pattern, text, re.IGNORECASE) for pattern in patterns)
    return next((f"without {each.group()}" for each in found if each), "")


def judge_refused(refused: Refused, log: Log) -> Judgement:
    """No shortage, in the program's own words."""
    of_cache = bool(_FP8.search(refused.what) and _CACHE_TYPE.search(log.text))
    if refused.other:
        because = f"the program refuses {refused.what} with {refused.other}, before it asks for memory"
        either = replace(ONE_OF_TWO, where=_written_in(refused, log.text))
        cures: tuple[Cure, ...] = (CACHE_TYPE, either) if of_cache else (either,)
    else:
        because = (
            f"this card does not take what is asked of it ({refused.what}), as the program says: no memory was "
            "short"
        )  # fmt: skip
        numbers = (OTHER_NUMBERS,) if _FP8.search(refused.what) else (LEFT_OUT,)
        cures = (CACHE_TYPE, LATER_CARD) if of_cache else (*numbers, LATER_CARD)
    return Judgement(causes=(Cause.UNSUPPORTED_SETTING,), because=because, cures=cures)
