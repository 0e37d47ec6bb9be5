"""Figures of one message that cannot all be of one card at one time: where they are, no verdict is
claimed.
"""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.diagnose.figures import Figures
from memsheet.diagnose.interval import NOTHING, Interval, more_than, size_words, sum_intervals
from memsheet.diagnose.message import Judgement, Message
from memsheet.frozen import replace


def contradictions_of(message: Message, figures: Figures) -> Iterator[str]:
    """Each pair that does not close beyond the rounding. More tensors than the card has are none: a sleeping
    server's pool and memory of the host that the card reaches count in there.
    """
    said, card = message.facts, figures.capacity
    allocated, reserved = said.get("allocated"), said.get("reserved")
    if allocated is not None and reserved is not None and more_than(allocated, reserved):
        yield (
            f"{size_words(allocated)} allocated is more than the {size_words(reserved)} reserved that hold it"
        )
    if card is None:
        return
    shared = message.words.get("who") == "HIP"
    """A GPU that shares the host's memory counts that as free beyond what it calls its own."""
    free = said.get("free")
    if free is not None and not shared and more_than(free, card):
        yield f"{size_words(free)} are free of a card of {size_words(card)}"
    held = figures.reserved
    if not (free is None or held is None or shared or more_than(held, card)) and more_than(held + free, card):
        yield (
            f"{size_words(held)} reserved + {size_words(free)} free is more than the "
            f"{size_words(card)} of the card"
        )
    elif held is not None and more_than(held, card) and _within(figures.allocated, card):
        yield f"{size_words(held)} are reserved on a card of {size_words(card)}"
    process = figures.process
    if process is not None and not shared and more_than(process, card) and _within(held, card):
        yield f"this process holds {size_words(process)} of a card of {size_words(card)}"
    named = sum_intervals(size for size in (figures.process, *(size for _, size in figures.others)) if size)
    if figures.others and more_than(named, card):
        yield f"its processes hold {size_words(named)} together, and the card has {size_words(card)}"


def _within(size: Interval | None, card: Interval) -> bool:
    return size is not None and not more_than(size, card)


def judge_contradictions(words: tuple[str, ...]) -> Judgement:
    """No cause, and what does not close."""
    return Judgement(
        causes=(), arithmetic=words[1:],
        because=f"the figures contradict one another: {words[0]}. They are not all of this card at one time (edited or "
        "mixed messages, a slice of a card, memory of the host that counts in), so that no sum of them decides",
    )  # fmt: skip


def without_doubtful_process(figures: Figures) -> Figures:
    """A process that is said to hold less than its allocator keeps is not all of that process: what lies
    outside the allocator, and what nobody is named for, does not follow from it.
    """
    if None in (figures.process, figures.reserved) or not more_than(figures.reserved, figures.process):  # type: ignore[arg-type]
        return figures
    return replace(figures, process=None, outside=None, unseen=None)


def doubtful_process_words(figures: Figures) -> str:
    """The same for a reader."""
    return (
        f"this process is said to hold {size_words(figures.process or NOTHING)} and its allocator to keep "
        f"{size_words(figures.reserved or NOTHING)}: what it holds outside that, and whether "
        f"somebody else is on the card, "
        "does not follow"
    )
