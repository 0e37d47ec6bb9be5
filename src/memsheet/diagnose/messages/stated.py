"""What a log states of a setting, and a value beyond it on the side that helps: where nothing is stated, or
nothing is left on that side, no number is said.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import cache

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.message import MAYBE, Cure
from memsheet.diagnose.named_cards import NamedCard, card_in_text

STEP, MOST_SHARE = Decimal("0.05"), Decimal("0.97")
"""A step of a share of the card, and the largest that is worth a try: a context needs the rest."""


def card_of(log: Log) -> NamedCard | None:
    """The card that is told beside a text, else the largest that it names."""
    return log.card or card_in_text(log.text)


@cache
def _stated_pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    either = "|".join(re.escape(name).replace("_", "[-_]") for name in names)
    return re.compile(
        rf"(?<![A-Za-z0-9_])(?:{either})[`\"']{{0,2}}\]?"
        r"(?:[ \t]{0,12}[=: \t][ \t]{0,2}|,?\s{1,40}[\"']?value[\"']?:\s?)[\"']?"
        r"(\d{1,9}(?:\.\d{1,6})?|\.\d{1,6})(?![\w.])"
    )


def stated_number(log: Log, line: int, *names: str) -> Decimal | None:
    """The last value of a setting before a line, else the first behind it. ``names``: in snake case."""
    pattern = _stated_pattern(names)
    before = pattern.findall("\n".join(log.lines[:line]))
    found = before[-1:] or pattern.findall("\n".join(log.lines[line:]))[:1]
    return Decimal(found[0]) if found else None


SHARES = (
    ("gpu_memory_utilization", re.compile(r"gpu[_-]memory[_-]utilization|\bEngineCore|\bvllm serve\b|GPU KV cache size: ")),
    ("mem_fraction_static", re.compile(r"mem[_-]fraction[_-]static|\bsglang[./]")),
    ("cuda_memory_fraction", re.compile(r"cuda[_-]memory[_-]fraction|\btext[_-]generation[_-](?:launcher|server)\b")),
)  # fmt: skip
"""How a server calls its share of the card, by what its logs and commands hold."""


def share_called(text: str) -> str:
    """What the server of a text calls its share of the card; empty where it shows none that has one."""
    return next((name for name, sign in SHARES if sign.search(text)), "")


def only_share(text: str, name: str) -> Decimal | None:
    """The share that a text states; None where it states none, or several."""
    found = {Decimal(number) for number in _stated_pattern((name,)).findall(text)}
    return next(iter(found)) if len(found) == 1 and 0 < min(found) <= 1 else None


def stated_share(log: Log, line: int, *names: str) -> Decimal | None:
    """The same of a share; what is none is not taken."""
    stated = stated_number(log, line, *names)
    return stated if stated is not None and 0 < stated <= 1 else None


def larger_share(
    option: str,
    stated: Decimal | None,
    least: Decimal = Decimal(0),
    words: str = "of the card, where nobody else uses it",
) -> tuple[Cure, ...]:
    """A larger share, of ``least`` or more; nothing where none is left. ``words``: of what and for what."""
    said = max(least, min(stated + STEP, MOST_SHARE)) if stated is not None else least
    if said > MOST_SHARE or (stated is not None and stated >= MOST_SHARE):
        return ()
    return (
        Cure(
            change=f"a larger share {words}", helps=MAYBE,
            where=f"{option} {said.normalize()}" if said else option,
            why=f"it is {stated} now" if stated is not None else "",
        ),
    )  # fmt: skip


def smaller_share(option: str, stated: Decimal | None, words: str = "of the card") -> tuple[Cure, ...]:
    """A smaller share; nothing where none is left. ``words``: of what and for what."""
    if stated is not None and stated <= STEP:
        return ()
    return (
        Cure(
            change=f"a smaller share {words}", helps=MAYBE,
            where=option if stated is None else f"{option} {(stated - STEP).normalize()}",
            why=f"it is {stated} now" if stated is not None else "",
        ),
    )  # fmt: skip


def halved(option: str, stated: Decimal | None) -> str | None:
    """An option with half of what is stated; without a number where nothing is; None where one is left."""
    if stated is None:
        return f"{option} N"
    return f"{option} {int(stated) // 2}" if stated >= 2 else None


def doubled(option: str, stated: Decimal | None) -> str:
    """An option with twice what is stated, without a number where nothing is."""
    return f"{option} {'N' if stated is None else int(stated) * 2}"
