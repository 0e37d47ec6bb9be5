"""What a snapshot shows → the verdict, by the rules of messages, and cures that were replayed."""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.diagnose.causes.shortages import short_bytes
from memsheet.diagnose.cures.allocator_settings import alloc_conf
from memsheet.diagnose.cures.choice import cures_of
from memsheet.diagnose.cures.tables import KEEP_NOTHING
from memsheet.diagnose.figures import Figures
from memsheet.diagnose.interval import NOTHING, Interval, size_words
from memsheet.diagnose.message import MAYBE, NO, YES, Cause, Cure, Judgement, Term
from memsheet.diagnose.rules import judge_figures
from memsheet.diagnose.signs import Signs, signs_of_names
from memsheet.diagnose.snapshot.findings import EXPANDABLE, SnapshotFacts
from memsheet.frozen import replace
from memsheet.sheet import Component

MOST = 4
WORTH_TELLING = 20
"""A leak is the cause where it grew by one part in so many of what is live, or by what is missing."""


def figures_of(held: SnapshotFacts) -> Figures | None:
    """The figures as a message would have them, to the byte; where the card is not said, it is what the
    allocator could have had.
    """
    if held.asked_bytes is None or held.free_bytes is None or held.room_bytes is None:
        return None
    live, kept = held.live_bytes, max(0, held.reserved_bytes - held.live_bytes)
    return Figures(
        asked=exact_size(held.asked_bytes), capacity=exact_size(held.most_bytes or held.room_bytes), free=exact_size(held.free_bytes), allocated=exact_size(live),
        unallocated=exact_size(kept), reserved=exact_size(held.reserved_bytes),
    )  # fmt: skip


def exact_size(size: int) -> Interval:
    return Interval(size, size)


def judge_held(held: SnapshotFacts) -> tuple[Judgement, Signs]:
    """The verdict on a snapshot in which a request failed."""
    figures = figures_of(held)
    assert figures is not None
    signs = _signs_of(held, figures)
    judged = judge_figures(figures, signs)
    if held.growth is not None and signs.growth:
        judged = replace(judged, because=growth_words(held), causes=(Cause.LEAK,))
    elif (
        _served_otherwise(held)
        and Cause.NOT_GPU_MEMORY not in judged.causes
        and Cause.LIMIT_SET not in judged.causes
    ):
        judged = replace(
            judged,
            causes=(Cause.FRAGMENTATION,),
            because=_pieces_words(figures),
            missing=(figures.asked - _free_bytes(figures)).positive,
        )
    arithmetic = tuple(_held_arithmetic(held))
    term = _term_of(held)
    return replace(
        judged,
        arithmetic=(*judged.arithmetic, *arithmetic),
        term=term,
        cures=held_cures(held, judged, figures, signs, term),
    ), signs


def _free_bytes(figures: Figures) -> Interval:
    return figures.free or NOTHING


def _signs_of(held: SnapshotFacts, figures: Figures) -> Signs:
    signs = signs_of_names([frame.name for frame in reversed(held.request_stack)])
    growth = held.growth
    if growth is not None:
        grown = growth.last_bytes - growth.first_bytes
        if grown >= short_bytes(figures).low and grown * WORTH_TELLING >= held.live_bytes:
            signs = replace(signs, growth=(exact_size(growth.first_bytes), exact_size(growth.last_bytes)))
    return replace(signs, expandable=EXPANDABLE in held.conf)


def _term_of(held: SnapshotFacts) -> Term | None:
    if not held.request_line:
        return None
    return Term(
        component=held.request_component or Component.UNEXPLAINED.value,
        path=held.request_line,
        shape="",
        exact=False,
        words=held.request_line,
    )


def growth_words(held: SnapshotFacts) -> str:
    growth = held.growth
    assert growth is not None
    asked = f", until {size_words(exact_size(held.asked_bytes))} have no room" if held.asked_bytes else ""
    return (
        f"the least that is live within a step only grows: {size_words(exact_size(growth.first_bytes))} → "
        f"{size_words(exact_size(growth.last_bytes))} over {growth.steps} steps, "
        f"{size_words(exact_size(growth.bytes_per_step))} a step{asked}"
    )


def _pieces_words(figures: Figures) -> str:
    kept, free = figures.unallocated or NOTHING, _free_bytes(figures)
    return (
        f"{size_words(free)} free + {size_words(kept)} kept without tensors, for "
        f"{size_words(figures.asked)} asked for: laid out otherwise, the same "
        f"requests are served (replayed)"
    )


def _served_otherwise(held: SnapshotFacts) -> bool:
    """Whether the same requests live on the same memory under other settings."""
    return replay_counts(held) and any(each.lived and each.conf for each in held.what_if)


def replay_counts(held: SnapshotFacts) -> bool:
    """Whether the replay reproduces what was recorded, so that it may be asked what would have been."""
    return held.replayed is not None and held.replayed.well_reproduced


def _held_arithmetic(held: SnapshotFacts) -> Iterator[str]:
    growth = held.growth
    if growth is not None:
        whose = f"{growth.component.replace('_', ' ')}, " if growth.component else ""
        share = exact_size(growth.line_bytes_per_step)
        where = growth.line or "a place without frames"
        yield f"it grows most at {where} ({whose}{size_words(share)} a step)"
    if held.least_bytes is not None and held.room_bytes is not None and held.least_bytes > held.room_bytes:
        yield (
            f"tensors and the request come to {size_words(exact_size(held.least_bytes))}, what was to be "
            f"had to {size_words(exact_size(held.room_bytes))}"
        )


# ---- cures -----------------------------------------------------------------------------------------------


def held_cures(
    held: SnapshotFacts, judged: Judgement, figures: Figures, signs: Signs, term: Term | None
) -> tuple[Cure, ...]:
    """At most four: what was replayed speaks in place of what a message's sums could only guess."""
    cause = judged.causes[0] if len(judged.causes) == 1 else Cause.REAL_NEED
    frame = signs.frame
    known = Term(component=frame.component, path=frame.path, shape="", exact=False) if frame else term
    guessed = cures_of(cause, figures, signs, known, "CUDA")
    replayed = (
        tuple(_replayed_cures(held, leaks=cause is Cause.LEAK))
        if cause not in (Cause.NOT_GPU_MEMORY, Cause.LIMIT_SET)
        else ()
    )
    names = {cure.change for cure in replayed}
    own = tuple(_by_component(held, figures)) if cause in (Cause.REAL_NEED, Cause.REGIME_CHANGE) else ()
    if cause is Cause.LEAK:
        own = (leak_cure(held),)
        guessed = tuple(cure for cure in guessed if cure.helps == NO)
    names |= {cure.change for cure in own}
    rest = tuple(cure for cure in guessed if cure.change not in names)
    order = {YES: 0, MAYBE: 1, NO: 2}
    every = sorted((*own, *replayed, *rest), key=lambda cure: order[cure.helps])
    helping = [cure for cure in every if cure.helps != NO]
    useless = [cure for cure in every if cure.helps == NO]
    kept = helping[: MOST - min(1, len(useless))]
    return (*kept, *useless[: MOST - len(kept)])


def leak_cure(held: SnapshotFacts) -> Cure:
    """To let go of what grows, at its line."""
    line = held.growth.line if held.growth else ""
    return replace(KEEP_NOTHING, where=line, why="its tensors outlive the step that made them")


def _replayed_cures(held: SnapshotFacts, *, leaks: bool) -> Iterator[Cure]:
    sure = replay_counts(held) and held.replayed is not None and held.replayed.complete
    for each in held.what_if:
        if not each.conf:  # more memory is what a replay shows, and no line that somebody can write
            continue
        helps = (YES if each.lived and not leaks else MAYBE if each.lived else NO) if sure else MAYBE
        said = (
            "replayed, it dies all the same"
            if not each.lived
            else "replayed, it only dies some steps later"
            if leaks
            else "replayed, the request is served"
        )
        most = (
            f", reserving {size_words(exact_size(each.reserved_bytes))} at the most"
            if each.reserved_bytes is not None
            else ""
        )
        where = f"PYTORCH_CUDA_ALLOC_CONF={each.conf}"
        saves = (
            held.room_bytes - each.reserved_bytes
            if each.lived and each.reserved_bytes is not None and held.room_bytes
            else None
        )
        yield Cure(
            change=each.change,
            helps=helps,
            saves_bytes=saves if saves and saves > 0 else None,
            where=where,
            why=f"{said}{most}",
        )
    impossible = (
        held.least_bytes is not None and held.room_bytes is not None and held.least_bytes > held.room_bytes
    )
    if impossible:
        yield Cure(
            change="expandable segments", helps=NO, where=alloc_conf("CUDA"),
            why="tensors and the request alone are more than the memory, however they are laid out",
        )  # fmt: skip


def _by_component(held: SnapshotFacts, figures: Figures) -> Iterator[Cure]:
    """What less of one component comes to, beside what is missing."""
    missing = short_bytes(figures)
    kept = held.bytes_of(Component.SAVED_ACTIVATIONS)
    if kept and not held.checkpoints:
        unseen = ", and no stack recomputes any" if held.checkpoints is False else ""
        enough = kept >= missing.low
        words = size_words(exact_size(kept))
        yield Cure(
            change="recompute activations in backward",
            helps=MAYBE if enough else NO,
            saves_bytes=kept,
            where="gradient_checkpointing=True",
            why=f"{words} of activations are kept{unseen}" if enough else f"activations are {words} in all",
        )
    states = held.bytes_of(Component.OPTIMIZER_STATES)
    if states and states * 3 // 4 >= missing.low > 0:
        yield Cure(
            change="an optimizer with smaller states", helps=MAYBE, saves_bytes=states * 3 // 4, where='optim="adamw_8bit"',
            why=f"states are {size_words(exact_size(states))}",
        )  # fmt: skip
