"""A limit that is set, a card or a machine that is too small, a refusal while the card has room."""

from __future__ import annotations

import re

from memsheet.diagnose.figures import Figures, aligned_bytes
from memsheet.diagnose.interval import (
    NOTHING,
    Interval,
    all_hold,
    at_least,
    more_than,
    size_words,
)
from memsheet.diagnose.named_cards import beyond_card
from memsheet.diagnose.signs import Signs
from memsheet.units import GIB


def beyond_limit(figures: Figures) -> Interval:
    """What a request takes beyond the limit that is set."""
    held = figures.reserved or figures.allocated or NOTHING
    return (held + figures.asked - (figures.allowed or NOTHING)).positive


def is_limit_reached(of: Figures, _: Signs) -> bool | None:
    held = of.reserved or of.allocated
    if of.allowed is None or held is None:
        return False
    beyond = more_than(held + of.asked, of.allowed)
    return beyond if of.free is None or not of.free_is_said else all_hold(beyond, at_least(of.free, of.asked))


def is_enough_free(of: Figures, _: Signs) -> bool | None:
    if of.free is None or of.allowed is not None or not of.free_is_said:
        return False
    return at_least(of.free, aligned_bytes(of.asked))


def is_enough_at_its_end(of: Figures, signs: Signs) -> bool | None:
    """The same of a message that ends before it says what the process holds, and whether a limit is set."""
    return of.allocated is None and is_enough_free(of, signs)


def is_beyond_card(of: Figures, _: Signs) -> bool | None:
    return of.allocated is not None and of.capacity is not None and more_than(of.allocated, of.capacity)


def is_beyond_named_card(of: Figures, signs: Signs) -> bool | None:
    """Of a message without the card's total: one request is more than the card has that the text names."""
    return of.capacity is None and of.free is None and bool(beyond_card(of.asked, signs.card))


_MACHINE = re.compile(
    r"\b(?:Mac(?:Book)?|iMac|M[1-5](?: (?:Pro|Max|Ultra))?)\b[^\n,;]{0,30}?(?<!\d)(\d{1,3})\s?GB\b(?! (?:free|used|swap))",
    re.IGNORECASE,
)  # fmt: skip
"""A machine's memory, which its GPU shares, as people say it."""


def beyond_whole_machine(of: Figures, signs: Signs) -> bool | None:
    """Whether what is held and asked for is more than all the memory of the machine that a text names, so
    that no limit is what is short.
    """
    machine, held = _MACHINE.search(signs.text), of.reserved or of.allocated
    whole = int(machine[1]) * GIB if machine else 0
    if held is None or of.allowed is None or not whole:
        return False
    return more_than(held + of.asked, Interval(whole, whole))


def limit_words(of: Figures, _: Signs) -> str:
    held = of.reserved or of.allocated or NOTHING
    while_free = (
        f", while {size_words(of.free)} of the card are free"
        if of.free is not None and of.free_is_said
        else ""
    )
    return (
        f"{size_words(held)} held + {size_words(of.asked)} asked is more than the "
        f"{size_words(of.allowed or NOTHING)} "
        f"that a limit allows this process{while_free}"
    )


def enough_free_words(of: Figures, signs: Signs) -> str:
    over = of.capacity is not None and of.free is not None and more_than(of.free, of.capacity)
    where = (
        "Windows' commit limit (page file)" if signs.windows
        else "the memory that the GPU shares with the host" if over
        else "the host's memory or commit limit, a container's limit, or another process that took and gave back"
    )  # fmt: skip
    return (
        f"{size_words(of.asked)} were asked for and {size_words(of.free or NOTHING)} of the card are free: "
        f"it is no "
        f"shortage of the card; what refuses is {where}"
    )


def beyond_card_words(of: Figures, _: Signs) -> str:
    return (
        f"{size_words(of.allocated or NOTHING)} are allocated on a card of "
        f"{size_words(of.capacity or NOTHING)}: memory of "
        "the host counts in (shared or managed memory, or a sleeping server's pool), and the card is full"
    )


def named_card_words(of: Figures, signs: Signs) -> str:
    return f"{size_words(of.asked)} were asked for at once, and {beyond_card(of.asked, signs.card)}"


def whole_machine_words(of: Figures, signs: Signs) -> str:
    machine = _MACHINE.search(signs.text)
    return (
        f"{size_words(of.reserved or of.allocated or NOTHING)} held + {size_words(of.asked)} asked for is more "
        f"than the machine has ({machine[1] if machine else ''} GB), whatever the limit"
    )  # fmt: skip
