"""The way from the naive run to a plan, as bars: what each change leaves, on paper and on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from memsheet.budget import Result
from memsheet.frozen import dataclass
from memsheet.report.shared.plans.words import format_seconds, plan_summary
from memsheet.sheet import Bytes
from memsheet.units import format_giga

if TYPE_CHECKING:
    from memsheet.search.fixes.savings_story import Step
    from memsheet.search.train.timed import Planned

CHOSEN, LEAST = "the plan to take first, of every legal one", "the plan that needs least, of every legal one"
NOTICED = 0.005
"""Of a step: what is said of the time that a change costs."""
CLIPPED = 8
"""Bars end at this many times what a GPU gives: longer ones are cut, and their figures say how long they are.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One change: its name and flag, what the worst GPU then needs, the high end before it, and the time that
    it costs. ``taken``: False where it was tried and taken back; ``chosen``: the plan that the search takes
    in the end.
    """

    name: str
    flag: str
    device: Bytes
    before_bytes: int
    seconds: float | None
    costs_s: float | None
    fits: bool
    taken: bool = True
    chosen: bool = False

    @property
    def high(self) -> int:
        return int(self.device.high)

    @property
    def saves_bytes(self) -> int:
        return self.before_bytes - self.high


def bars_of(steps: Sequence[Step], chosen: Planned | None = None) -> tuple[Bar, ...]:
    """A bar for each change that was made or tried, then one for the plan that the search chose."""
    return tuple(_change_bars(steps, chosen))


def _change_bars(steps: Sequence[Step], chosen: Planned | None) -> Iterator[Bar]:
    before: int | None = None
    for step in steps:
        if not step.change:
            continue
        high = int(step.device.high)
        yield Bar(
            name=step.change,
            flag=step.flag,
            device=step.device,
            before_bytes=high if before is None else before,
            seconds=step.seconds,
            costs_s=step.costs_s,
            fits=step.fits,
            taken=step.taken,
        )
        before = high if step.taken else before
    if chosen is not None:
        device, fits = chosen.verdict.device, chosen.verdict.result is Result.FITS
        yield Bar(
            name=plan_summary(chosen),
            flag=CHOSEN if fits else LEAST,
            device=device,
            before_bytes=int(device.high) if before is None else before,
            seconds=chosen.seconds if chosen.time is not None else None,
            costs_s=None,
            fits=fits,
            chosen=True,
        )


def scale_bytes(bars: Sequence[Bar], capacity_bytes: int) -> int:
    """Where the scale ends."""
    return min(
        max((capacity_bytes, *(max(bar.high, bar.before_bytes) for bar in bars))), CLIPPED * capacity_bytes
    )


def needed_size_text(bar: Bar, *, decimal: bool) -> str:
    return _format_bar_size(bar.high, decimal=decimal)


def _format_bar_size(size: int, *, decimal: bool) -> str:
    return f"{format_giga(size, decimal=decimal, digits=1)} {'GB' if decimal else 'GiB'}"


def saved_size_text(bar: Bar, *, decimal: bool) -> str:
    """Against the bar before; nothing where a saving is none."""
    if not bar.saves_bytes or bar.chosen:
        return ""
    sign = "−" if bar.saves_bytes > 0 else "+"
    return f"{sign}{_format_bar_size(abs(bar.saves_bytes), decimal=decimal)}"


def step_time(bar: Bar) -> str:
    return "" if bar.seconds is None else format_seconds(bar.seconds)


def step_time_change_text(bar: Bar) -> str:
    """The time that a change costs or gains, where a person would notice."""
    if bar.costs_s is None or bar.seconds is None or abs(bar.costs_s) < NOTICED * bar.seconds:
        return ""
    return f"{'+' if bar.costs_s > 0 else '−'}{format_seconds(abs(bar.costs_s))}"
