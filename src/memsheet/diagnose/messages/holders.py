"""A table of processes beside a message: who holds the card, and which of them failed."""

from __future__ import annotations

import re

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import Interval, size_words, sum_intervals
from memsheet.diagnose.message import MAYBE, Cause, Cure, Judgement, Message
from memsheet.diagnose.messages.colocated import shares_a_card
from memsheet.diagnose.messages.nvidia_smi import (
    NO_CARD,
    Holder,
    card_table,
    listed_holders,
    listed_processes,
)
from memsheet.diagnose.messages.stated import card_of
from memsheet.frozen import replace

FULL = (9, 10)
"""The share of a card that is held where it counts as full."""
_OF_OTHERS = re.compile(
    r"nvidia-smi\b[^\n]{0,60}\b(?:before\s(?:(?:I|we|it|my|the|our|this)\s)?(?:\w{1,12}\s)?(?:start|launch|run|load|begin)"
    r"|after(?:wards|\s(?:(?:it|the|this|my|that)\s)?(?:\w{1,12}\s)?(?:crash|die|fail|exit|end|oom|error|death|kill))"
    r"|(?:while|with|when) nothing)"
    r"|\b(?:not|n't) mine\b|\bnothing of mine\b"
    r"|\b(?:some(?:one|body) else|(?:an)?other (?:user|person|team|container)|colleague|co-?worker|lab-?mate)\b"
    r"|\b(?:zombie|defunct|orphan(?:ed)?|left-?over|stale|(?:old|previous|earlier) (?:process(?:es)?|notebook|kernel))\b",
    re.IGNORECASE,
)  # fmt: skip
"""How people say that what a table shows is not what failed."""


def judged_by_table(message: Message, log: Log, told: str, least: int = 0) -> Judgement | None:
    """Another process, where a table shows a card that is full: two hold it or more, of which one at the most
    is what failed; or what failed had ended, or not begun, when the table was taken. ``told``: what was
    refused; ``least``: what all but the largest have to hold, a tenth of the card where it is not given. None
    where the table decides nothing.
    """
    if larger := larger_neighbours(log):
        return Judgement(
            causes=(Cause.OTHER_PROCESS,), cures=without_holders(larger),
            because=f"{told}: the card is full, and most of it is held by {larger}",
        )  # fmt: skip
    table, holders = card_table(log), listed_holders(log)
    others = (
        bool(_OF_OTHERS.search(log.text))
        or shown_after_end(message, log)
        or _shown_before_start(message, log)
        or _says_another_number(log, holders)
        or _holds_little_itself(log, holders)
        or _run_other_scripts(log, holders)
        or _run_other_programs(message, log, holders)
    )
    named = card_of(log)
    for card in dict.fromkeys(each.card for each in holders):
        there = [each for each in holders if each.card == card]
        known = table is not None and 0 <= card < len(table.cards)
        whole = table.cards[card][1].high if table is not None and known else named.most if named else 0
        held = sum_intervals(each.size for each in there)
        besides = held.low - max(each.size.high for each in there)
        shared = besides >= (least or whole // 10) and not shares_a_card(log.text)
        if not whole or held.low * FULL[1] < whole * FULL[0] or not (shared or others):
            continue
        if card == NO_CARD and held.low > whole:  # of several cards
            continue
        place = "the card" if card == NO_CARD else f"card {card}"
        words = ", ".join(each.words for each in there[:3])
        who = (
            f"{words} hold {size_words(held)} of the {size_words(Interval(whole, whole))} of {place}"
            if len(there) > 1
            else f"{words} holds {place} of {size_words(Interval(whole, whole))}"
        )
        which = "" if others else ": whichever of them failed, the rest hold what it lacks"
        alone = (
            Cure(change="one of them at a time, or each on a card of its own", helps=MAYBE, where="CUDA_VISIBLE_DEVICES=N"),
        )  # fmt: skip
        return Judgement(
            causes=(Cause.OTHER_PROCESS,), cures=without_holders(words) if others else alone, because=f"{told}, and {who}{which}",
        )  # fmt: skip
    return None


def _run_other_scripts(log: Log, holders: tuple[Holder, ...]) -> bool:
    """Whether every process that a table shows runs a script by its name, and none of them the
    traceback's.
    """
    failed = {part for found in _SCRIPT.findall(log.text) for part in found if part}
    listed = [set(_NAMED_SCRIPT.findall(each.name)) for each in holders]
    return bool(failed and listed) and all(each and not each & failed for each in listed)


_NATIVE = re.compile(
    r"ollama|llama[-_.](?:server|cli|swap)|lm[ -]?studio|tritonserver|blender", re.IGNORECASE
)
"""Programs that keep a card and are none of Python's, by what their processes are called."""
_OF_PYTHON = re.compile(r"^[\w.]{1,80}(?:Error|Exception)\b")


def _run_other_programs(message: Message, log: Log, holders: tuple[Holder, ...]) -> bool:
    """Whether Python failed and every process that a table shows is of a program that is none of its."""
    raised = _OF_PYTHON.match(log.lines[message.line])
    return bool(raised and holders) and all(_NATIVE.search(each.name) for each in holders)


_NAMED_SCRIPT = re.compile(r"(?<![\w.-])[\w-]{1,80}\.py\b")
_OWN_NUMBER = re.compile(
    r"\b(?:new|this|failing|failed|crash(?:ed|ing|es)|script|job|run|training|program)\b[^\n.;]{0,20}?[ (](?:pid|PID|process)[ =:#]{1,3}(\d{2,10})\b"
    r"|\b(?:[Mm]y|[Oo]ur|[Mm]ine is|I am|I'm) (?:own )?(?:pid|PID|process(?: number| id)?)(?: is| was)?[ =:#]{1,3}(\d{2,10})\b"
)  # fmt: skip
"""The number of the process that failed, as people say it."""
_OF_ANOTHER = re.compile(
    r"\b(?:old|previous|earlier|last|first|other|another|dead|kill(?:ed)?|stale|zombie|finished|stopped)\b",
    re.IGNORECASE,
)
"""Words of one that is not it."""
BEFORE_NUMBER = 30
_CONTAINED = re.compile(
    r"\b(?:docker|container|kubernetes|k8s|pods?|kubectl|podman|singularity)\b", re.IGNORECASE
)


def _holds_little_itself(log: Log, holders: tuple[Holder, ...]) -> bool:
    """Whether the process that failed has a number that a table shows, with a tenth of what all hold there or
    less.
    """
    own = [each for each in holders if each.pid in _own_numbers(log)]
    whole = sum(each.size.low for each in holders if own and each.card == own[0].card)
    return len(own) == 1 and own[0].size.high * 10 <= whole


def _says_another_number(log: Log, holders: tuple[Holder, ...]) -> bool:
    """Whether the process that failed has a number that a table does not show; in a container numbers are
    others than its host's.
    """
    said, listed = _own_numbers(log), {each.pid for each in holders}
    return (
        bool(said)
        and min(listed, default=0) >= 0
        and not _CONTAINED.search(log.text)
        and listed.isdisjoint(said)
    )


def _own_numbers(log: Log) -> tuple[int, ...]:
    """Numbers that the text says the process has that failed."""
    return tuple(
        int(found[1] or found[2])
        for found in _OWN_NUMBER.finditer(log.text)
        if not _OF_ANOTHER.search(log.text, max(0, found.start() - BEFORE_NUMBER), found.end())
    )


_ASKS_FOR_TABLE = re.compile(r"(?:^\$|[\w~)\]/\\][$#%>])\s?nvidia-smi\s{0,3}$")
"""A shell's prompt, at which a table is asked for."""


def shown_after_end(message: Message, log: Log) -> bool:
    """Whether a shell was asked for the table behind a message: the process that failed is no more then."""
    behind = list(log.lines[message.line + 1 :])
    shown = next((place for place, each in enumerate(behind) if "NVIDIA-SMI" in each), 0)
    return any(_ASKS_FOR_TABLE.search(each) for each in behind[:shown])


_SHOWS = r"(?:nvidia-smi|gpustat|nvtop|nvitop|rocm-smi|amd-smi|npu-smi|watch)\b"
_PROMPT = r"^(?:[(\[][^\n$#]{1,60}[$#%>]|[\w.-]{1,40}@[^\n$#]{1,80}[$#%>]|[$%])\s?"
_SHOWN = re.compile(rf"{_PROMPT}(?:\w{{1,30}}=\S{{1,60}} )*{_SHOWS}")
_STARTED = re.compile(
    rf"{_PROMPT}(?:\w{{1,30}}=\S{{1,60}} )*(?!{_SHOWS}|(?:ls|cd|cat|ps|free|df|kill|grep|tail|dmesg)\b)[\w./-]{{2,80}}(?:\s|$)"
)  # fmt: skip
"""A prompt at which a program is started that is no look at the machine."""


def _shown_before_start(message: Message, log: Log) -> bool:
    """Whether a shell was asked for the table and only then for the program that failed."""
    shown = next((at for at, each in enumerate(log.lines[: message.line]) if _SHOWN.match(each)), None)
    return shown is not None and any(_STARTED.match(each) for each in log.lines[shown + 1 : message.line])


_SCRIPT = re.compile(
    r"\bFile \"(?:[^\"\n]{0,200}[\\/])?([\w.-]{1,80}\.py)\""
    r"|\b([\w.-]{1,80}\.py)\b (?:is (?:mine|the one (?:that|which) )|(?:fails|failed|dies|died|crashes|crashed|ooms|oomed)\b)"
    r"|\b(?:my|mine is|I (?:start|run|launch)(?:ed)?) (?:python3? )?([\w.-]{1,80}\.py)\b",
    re.IGNORECASE,
)  # fmt: skip
"""The script that failed: a traceback's, or the one that people say."""


def larger_neighbours(log: Log) -> str:
    """Processes of a list that hold more than the one whose script the traceback names; empty where none of
    them is known for it.
    """
    said = (part for found in _SCRIPT.findall(log.text) for part in found)
    scripts, listed = {part for part in said if part}, listed_processes(log)
    own = {name for name in listed if scripts & {part.rpartition("/")[2] for part in name.split()}}
    others = {name: size for name, size in listed.items() if name not in own}
    if not own or sum(size.low for size in others.values()) <= sum(listed[name].high for name in own):
        return ""
    return ", ".join(f"{name} ({size_words(size)})" for name, size in others.items())


MOST_NAMED = 3


def name_holders(cures: tuple[Cure, ...], log: Log) -> tuple[Cure, ...]:
    """Changes that send to nvidia-smi, with the processes that a table or a list in the same text shows, the
    largest first.
    """
    if not any(cure.where.startswith("nvidia-smi") for cure in cures):
        return cures
    largest = sorted(listed_holders(log), key=lambda each: -each.size.middle)[:MOST_NAMED]
    words = ", ".join(each.words for each in largest)
    return tuple(
        replace(cure, change=f"{cure.change}: listed are {words}")
        if words
        and cure.where.startswith("nvidia-smi")
        and not any(str(each.pid) in cure.change or each.words in cure.change for each in largest)
        else cure
        for cure in cures
    )


def without_holders(there: str) -> tuple[Cure, ...]:
    if not there:
        return ()
    return (
        Cure(change=f"end or move what holds the card: {there}", helps=MAYBE, where="nvidia-smi"),
        Cure(change="another card", helps=MAYBE, where="CUDA_VISIBLE_DEVICES=N"),
    )
