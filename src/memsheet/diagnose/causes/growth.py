"""Memory that only grows from step to step."""

from __future__ import annotations

from memsheet.diagnose.causes.shortages import cached_covers, short_bytes
from memsheet.diagnose.figures import Figures
from memsheet.diagnose.growing_figures import reaches_what_was_held
from memsheet.diagnose.interval import (
    NOTHING,
    Interval,
    at_least,
    more_than,
    size_words,
)
from memsheet.diagnose.message import Cause, Judgement
from memsheet.diagnose.signs import Signs


def memory_grows(of: Figures, signs: Signs) -> bool | None:
    """What is reserved grows with tensors where next to nothing is kept without them."""
    if _keeps_what_fills(of, signs) or _series_of_held(of, signs) or _rounds_that_fill(of, signs):
        return True
    if signs.growth:
        return at_least(signs.growth[-1] - signs.growth[0], short_bytes(of))
    held = signs.reserved_growth or signs.used_growth
    of_card = bool(held) and (of.capacity is None or not more_than(held[-1], of.capacity))
    return of_card and not _may_be_pieces(of, held)


SMALL = 20
"""A request is a part of what is held, or less, which one round does not make."""
PIECES = 5
"""A part of the card that is kept without tensors, or more, which tensors that stay do not explain."""


def _keeps_what_fills(of: Figures, signs: Signs) -> bool:
    """What several rounds keep; where how many ran is not said, tensors hold many times what one asks."""
    small = of.allocated is not None and of.asked.high * SMALL <= of.allocated.low
    kept = of.unallocated or NOTHING
    if of.capacity is not None and kept.low * PIECES >= of.capacity.high and cached_covers(of) is True:
        return any(each.what == "sum" for each in signs.kept)
    return any(each.several or small for each in signs.kept)


def _series_of_held(of: Figures, signs: Signs) -> tuple[Interval, ...]:
    """Figures of the text that grew to what was held, unless weights were being loaded."""
    if signs.phase == "load":
        return ()
    return next((sizes for each in signs.series if (sizes := reaches_what_was_held(each, of))), ())


FILLS = (3, 10)
"""What of the memory held rounds have to come to that fill it."""


def _rounds_that_fill(of: Figures, signs: Signs) -> tuple[Interval, int] | None:
    """What a round is said to add, and as many rounds as are said, where both come to most of what was held
    and to no more.
    """
    held = of.allocated
    if held is None or signs.phase == "load":
        return None
    least = held.times(*FILLS).low
    return next((pair for pair in signs.rates if least <= pair[0].middle * pair[1] <= held.high), None)


def is_stated_growth(_: Figures, signs: Signs) -> bool | None:
    """People say so, and that the job died late of it."""
    return bool(signs.grows_said)


def stated_growth_words(of: Figures, signs: Signs) -> str:
    return (
        f'the text says that memory grows or is kept ("{signs.grows_said}") and that the job dies late: what is held from step '
        f"to step fills the card, until {size_words(of.asked)} have no room"
    )  # fmt: skip


def _may_be_pieces(of: Figures, grown: tuple[Interval, ...]) -> bool:
    return of.unallocated is None or of.unallocated.high * 2 > (grown[-1] - grown[0]).low


MOST_SAID = 6


def leak_words(of: Figures, signs: Signs) -> str:
    if not signs.kept and (sizes := _series_of_held(of, signs)):
        return (
            f"figures of the text only grow, {' → '.join(size_words(size) for size in sizes[-MOST_SAID:])}, to the "
            f"{size_words(of.allocated or NOTHING)} of tensors at the end, until {size_words(of.asked)} have no room"
        )  # fmt: skip
    if not signs.kept and (filled := _rounds_that_fill(of, signs)):
        added, rounds = filled
        return (
            f"a round is said to add {size_words(added)}: {rounds:,} of them hold {size_words(added.times(rounds))} of "
            f"the {size_words(of.allocated or NOTHING)} of tensors at the end"
        )  # fmt: skip
    if grown_sizes := signs.growth or signs.reserved_growth or signs.used_growth:
        grown = " → ".join(size_words(size) for size in grown_sizes)
        what = "allocated" if signs.growth else "reserved" if signs.reserved_growth else "used"
        return (
            f"what is {what} only grows from step to step: {grown}, until {size_words(of.asked)} have no room"
        )
    kept = signs.kept[0]
    return (
        f"{_KEPT_WORDS[kept.what].format(kept.name)}: memory grows with each round until one request "
        f"({size_words(of.asked)}) has no room"
    )


_KEPT_WORDS = {
    "sum": "losses are summed as tensors in {}, which keeps every step's graph alive",
    "losses": "losses are kept as tensors in {}, which keeps every step's graph alive",
    "outputs": "what the model makes is kept in {} round by round and stays on the card",
    "graph": "{} goes from round to round with the graph of all rounds before it, which retain_graph keeps",
}
"""What is kept, by ``Kept.what``."""


def growth_of_steps(signs: Signs) -> Judgement | None:
    """A leak, of a message that leaves its cause open: what is allocated or used only grew before it, by a
    tenth or more, or people say so.
    """
    held = signs.growth or signs.used_growth
    if held and (held[-1] - held[0]).low * 10 >= held[-1].low:
        grown = " → ".join(size_words(size) for size in held)
        what = "allocated" if signs.growth else "used"
        return Judgement(
            causes=(Cause.LEAK,), because=f"what is {what} only grows: {grown}, until a request has no room"
        )
    if any(each.several for each in signs.kept):
        kept = signs.kept[0]
        return Judgement(causes=(Cause.LEAK,), because=f"{_KEPT_WORDS[kept.what].format(kept.name)}")
    if not signs.grows_said:
        return None
    return Judgement(
        causes=(Cause.LEAK,),
        because=f'the text says that memory grows or is kept ("{signs.grows_said}") and that the job '
        "dies late",
    )
