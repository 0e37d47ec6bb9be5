"""One message of an allocator → one verdict: a table of tests in their order.

The first that holds decides. Where one before it is open by the rounding of the figures, the answer is open
between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memsheet.diagnose.causes.growth import (
    is_stated_growth,
    leak_words,
    memory_grows,
    stated_growth_words,
)
from memsheet.diagnose.causes.limits import (
    beyond_card_words,
    beyond_limit,
    beyond_whole_machine,
    enough_free_words,
    is_beyond_card,
    is_beyond_named_card,
    is_enough_at_its_end,
    is_enough_free,
    is_limit_reached,
    limit_words,
    named_card_words,
    whole_machine_words,
)
from memsheet.diagnose.causes.neighbours import (
    cache_outside_words,
    gap_words,
    has_cache_outside,
    has_large_neighbour,
    has_much_outside,
    has_neighbour_of_server,
    has_shared_gap,
    has_small_neighbour,
    has_unnamed_gap,
    has_unseen_neighbour,
    neighbour_words,
    outside_words,
    shared_gap_words,
    unseen_words,
)
from memsheet.diagnose.causes.phases import (
    SAID,
    Test,
    change_words,
    first_update_words,
    is_said,
    lacks_room_for_states,
    long_batch_words,
    more_training_words,
    needs_probs_in_full,
    phase_tells,
    phase_words,
    resumption_words,
    wake_up_words,
    wakes_up,
    words_of_said,
)
from memsheet.diagnose.causes.shortages import (
    cached_covers,
    evaluation_alone_dies,
    evaluation_shortage_words,
    evaluation_words,
    fills_its_card,
    full_card_words,
    is_too_little,
    is_too_little_for_trial,
    is_too_little_in_evaluation,
    is_too_little_in_server,
    is_too_little_later,
    kept_covers,
    later_shortage_words,
    pieces_words,
    server_shortage_words,
    short_bytes,
    shortage_words,
    sum_words,
    trial_shortage_words,
)
from memsheet.diagnose.figures import Figures
from memsheet.diagnose.interval import (
    Interval,
    size_words,
)
from memsheet.diagnose.message import Cause, Judgement
from memsheet.diagnose.signs import Signs
from memsheet.frozen import NamedTuple


class Rule(NamedTuple):
    """A test, the cause that it shows, and why in words that close."""

    cause: Cause
    holds: Test
    because: Callable[[Figures, Signs], str]
    otherwise: tuple[Cause, ...] = ()
    """Causes that the test cannot tell from its own."""


RULES: tuple[Rule, ...] = (
    Rule(Cause.REAL_NEED, beyond_whole_machine, whole_machine_words),
    Rule(Cause.LIMIT_SET, is_limit_reached, limit_words),
    Rule(Cause.WAKE_UP_RACE, wakes_up, wake_up_words),
    Rule(Cause.NOT_GPU_MEMORY, is_enough_at_its_end, enough_free_words, (Cause.LIMIT_SET,)),
    Rule(Cause.NOT_GPU_MEMORY, is_enough_free, enough_free_words),
    Rule(Cause.REAL_NEED, is_beyond_card, beyond_card_words),
    Rule(Cause.LEAK, memory_grows, leak_words),
    Rule(Cause.REGIME_CHANGE, lambda _, signs: signs.changed_at is not None, change_words),
    Rule(Cause.REGIME_CHANGE, lambda _, signs: bool(signs.thaws), more_training_words),
    Rule(Cause.REGIME_CHANGE, lambda _, signs: signs.outsized is not None, long_batch_words),
    Rule(Cause.REGIME_CHANGE, lambda _, signs: signs.resumed, resumption_words),
    Rule(Cause.OTHER_PROCESS, has_neighbour_of_server, neighbour_words),
    Rule(Cause.ENGINE_OVERCOMMIT, phase_tells(Cause.ENGINE_OVERCOMMIT), phase_words),
    Rule(Cause.REGIME_CHANGE, phase_tells(Cause.REGIME_CHANGE), phase_words),
    Rule(Cause.REAL_NEED, needs_probs_in_full, phase_words),
    Rule(Cause.OTHER_PROCESS, has_large_neighbour, neighbour_words),
    Rule(Cause.ENGINE_OVERCOMMIT, has_cache_outside, cache_outside_words),
    Rule(Cause.OTHER_PROCESS, has_unseen_neighbour, unseen_words),
    Rule(Cause.OUTSIDE_ALLOCATOR, has_much_outside, outside_words),
    Rule(Cause.FRAGMENTATION, kept_covers, pieces_words),
    Rule(Cause.OTHER_PROCESS, has_shared_gap, shared_gap_words),
    Rule(Cause.OTHER_PROCESS, has_unnamed_gap, gap_words, (Cause.OUTSIDE_ALLOCATOR,)),
    Rule(Cause.OTHER_PROCESS, has_small_neighbour, neighbour_words),
    Rule(Cause.REAL_NEED, is_beyond_named_card, named_card_words),
    Rule(Cause.LEAK, is_stated_growth, stated_growth_words),
    Rule(Cause.ENGINE_UNDERPROVISION, is_too_little_for_trial, trial_shortage_words),
    Rule(Cause.REAL_NEED, is_too_little_in_server, server_shortage_words, (Cause.ENGINE_OVERCOMMIT,)),
    Rule(Cause.REAL_NEED, is_too_little_later, later_shortage_words, (Cause.LEAK,)),
    *(Rule(Cause.REGIME_CHANGE, is_said(sign), words_of_said(sign)) for sign in SAID),
    Rule(Cause.REGIME_CHANGE, evaluation_alone_dies, evaluation_words),
    Rule(Cause.REAL_NEED, is_too_little_in_evaluation, evaluation_shortage_words, (Cause.REGIME_CHANGE,)),
    Rule(Cause.REGIME_CHANGE, lacks_room_for_states, first_update_words),
    Rule(Cause.REAL_NEED, is_too_little, shortage_words),
    Rule(Cause.REAL_NEED, fills_its_card, full_card_words),
)


def judge_figures(figures: Figures, signs: Signs) -> Judgement:
    """The verdict on one message of an allocator, with the arithmetic behind it."""
    spoken = list(_rules_that_speak(figures, signs))
    if figures.free is None and not spoken:
        return Judgement(
            causes=(), because=f"{size_words(figures.asked)} were asked for; the message does not say what was free, and "
            "without that the cause cannot be told: the whole message has it, or nvidia-smi beside it",
        )  # fmt: skip
    causes = tuple(dict.fromkeys(cause for rule, _ in spoken for cause in (rule.cause, *rule.otherwise)))
    missing = (figures.asked - figures.free).positive if figures.free else None
    if spoken and spoken[-1][1]:
        rule = spoken[-1][0]
        if len(causes) == 1:
            return Judgement(
                causes=causes,
                because=rule.because(figures, signs),
                missing=_missing_bytes(rule.cause, figures),
            )
        if len(spoken) == 1:
            return Judgement(causes=causes, because=rule.because(figures, signs), missing=missing)
    elif len(causes) <= 1:
        causes = tuple(dict.fromkeys((*causes, Cause.FRAGMENTATION, Cause.REAL_NEED)))
    told = tuple(f"{rule.cause.value}: {rule.because(figures, signs)}" for rule, holds in spoken if holds)
    return Judgement(
        causes=causes[:3],
        because=_says_open(figures, unspoken=not spoken),
        arithmetic=told,
        missing=missing,
    )


def _says_open(of: Figures, *, unspoken: bool) -> str:
    """Why the figures leave it open: they are not said, few bytes lie in pieces, or rounding hides it."""
    asked = size_words(of.asked)
    if of.allocated is None and of.free is not None:
        return (
            f"{asked} were asked for and {size_words(of.free)} were free; the message ends before it says "
            "what is kept without tensors, which tells these apart"
        )
    if unspoken and cached_covers(of) is True:
        if of.capacity is None:
            return (
                f"{sum_words(of)}, enough in sum for the {asked} asked for; what the card has in all is not "
                "said, and so not whether that is more than a full card always keeps in pieces"
            )
        return (
            f"{sum_words(of)}, enough in sum for the {asked} asked for; but so little is kept on a card of "
            f"{size_words(of.capacity)} that it is full: a little less held would have served it, "
            "and so might what is kept, in one piece"
        )
    return (
        f"{sum_words(of)}, and {asked} were asked for: the figures are too near, or too rounded, to tell "
        "these apart"
    )


def _rules_that_speak(figures: Figures, signs: Signs) -> Iterator[tuple[Rule, bool | None]]:
    """The first that holds, behind those that the rounding leaves open."""
    for rule in RULES:
        holds = rule.holds(figures, signs)
        if holds is not False:
            yield rule, holds
        if holds is True:
            return


def _missing_bytes(cause: Cause, figures: Figures) -> Interval | None:
    match cause:
        case Cause.LIMIT_SET:
            return beyond_limit(figures)
        case Cause.NOT_GPU_MEMORY | Cause.WAKE_UP_RACE:
            return None
        case Cause.REAL_NEED | Cause.REGIME_CHANGE:
            return short_bytes(figures) if figures.free is not None else None
        case _:
            return (figures.asked - figures.free).positive if figures.free is not None else None
