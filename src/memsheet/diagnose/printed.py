"""What a log prints of memory beside what the plan's sheet predicts of the same, of a run that lives too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from memsheet.diagnose.interval import Interval, size_words
from memsheet.diagnose.message import Term
from memsheet.frozen import NamedTuple
from memsheet.sheet import STATES, Bytes, Component, Instant, Sheet

if TYPE_CHECKING:
    from memsheet.budget import Answer


class Printed(NamedTuple):
    """One figure of a log by the name of its fact, and the same of the sheet: the least and the most."""

    fact: str
    words: str
    printed: Interval
    predicted: Interval
    expected_bytes: int


PREDICTED: dict[str, tuple[str, Callable[[Sheet], Bytes]]] = {
    "weights_loaded_bytes": ("weights", lambda sheet: sheet.of(Component.PARAMETERS)),
    "kv_available_bytes": ("KV cache", lambda sheet: sheet.of(Component.KV_CACHE)),
    "kv_allocated_bytes": ("KV cache", lambda sheet: sheet.of(Component.KV_CACHE)),
    "graphs_took_bytes": ("CUDA graphs", lambda sheet: sheet.of(Component.CUDA_GRAPHS)),
    "allocated_peak_before_bytes": ("most allocated", lambda sheet: sheet.allocated),
    "reserved_peak_before_bytes": ("most reserved", lambda sheet: sheet.reserved),
    "summary_allocated_peak_bytes": ("most allocated", lambda sheet: sheet.allocated),
    "summary_reserved_peak_bytes": ("most reserved", lambda sheet: sheet.reserved),
}  # fmt: skip
"""By the fact of a log."""


_INSTANTS = (
    ("optimizer", Instant.OPTIMIZER_STEP),
    ("backward", Instant.BACKWARD),
    ("loss", Instant.LOSS),
)
"""By what the paths of a term begin with: when a step asks for it."""
ONCE_MORE = (3, 100)
"""How near what is held beyond a sheet comes to one of its terms that it may be."""


def held_beside(
    term: Term | None, facts: Mapping[str, Interval], answer: Answer
) -> tuple[Printed, str] | None:
    """What tensors and the request that failed come to, beside the most that the sheet has of tensors when a
    step asks for such a request, at any time where that is not known; None where that is no more than the
    sheet has, or is not said. With it which of the sheet's terms that is beside, in words.
    """
    held, asked = facts.get("allocated_bytes"), facts.get("asked_bytes")
    if held is None or asked is None:
        return None
    worst = max(answer.sheets, key=lambda sheet: sheet.device.high)
    instant = _instant_of(term, worst)
    size = worst.at(instant) if instant else worst.allocated
    wanted = held + asked
    if wanted.low <= int(size.high):
        return None
    when = f" in {instant.value.replace('_', ' ')}" if instant else ""
    ends = Interval(int(size.low), int(size.high))
    beside = Printed("allocated_bytes", f"tensors and the request{when}", wanted, ends, int(size.value))
    return beside, _beyond_words(wanted, worst, instant or worst.peak_instant)


def _instant_of(term: Term | None, sheet: Sheet) -> Instant | None:
    found = next((instant for begins, instant in _INSTANTS if term and term.path.startswith(begins)), None)
    return found if found in sheet.instants else None


def _beyond_words(wanted: Interval, sheet: Sheet, instant: Instant) -> str:
    """How much is held beyond a sheet, and beside which of its terms: states follow from the parameters, and
    what a batch makes does not.
    """
    row = sheet.sums()[instant]
    beyond = wanted - Interval(int(sheet.at(instant).high), int(sheet.at(instant).high))
    states = sum(int(row[each].value) for each in STATES if each in row)
    made, had = (wanted - Interval(states, states)).positive, int(sheet.at(instant).value) - states
    told = f"the run held {size_words(beyond.positive)} more than the sheet has at the most"
    near = (each for each in STATES if each in row and abs(int(row[each].value) - beyond.middle) * ONCE_MORE[1] <= beyond.middle * ONCE_MORE[0])  # fmt: skip
    if (copied := next(near, None)) is not None:
        return f"{told}: as much as its {copied.value.replace('_', ' ')} once more, a copy of them or twice their width"  # fmt: skip
    if had <= 0:
        return told
    return (
        f"{told}: beside weights, gradients and states ({size_words(Interval(states, states))}) it made "
        f"{size_words(made)} of a batch, and the sheet has {size_words(Interval(had, had))} ({made.middle / had:.1f} times): "
        "a larger micro-batch, a longer length, or less made again in backward than the plan says"
    )  # fmt: skip


def printed_beside(facts: Mapping[str, Interval], answer: Answer) -> Iterator[Printed]:
    """Every figure of ``facts`` that the sheet of the worst rank has, too."""
    worst = max(answer.sheets, key=lambda sheet: sheet.device.high)
    for fact, (words, of_sheet) in PREDICTED.items():
        if fact in facts:
            size = of_sheet(worst)
            if int(size.high):
                ends = Interval(
                    *sorted((int(size.low), int(size.high)))
                )  # a cache is least where the rest is most
                yield Printed(fact, words, facts[fact], ends, int(size.value))
