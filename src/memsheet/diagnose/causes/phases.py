"""What a run was doing: a phase that needs more than the steps before it, a server that wakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memsheet.diagnose.causes.shortages import kept_covers, lacking_words, lacks_room
from memsheet.diagnose.figures import Figures
from memsheet.diagnose.frames import FIRST_UPDATE, OF_SERVERS, PHASE_CAUSES
from memsheet.diagnose.interval import (
    size_words,
)
from memsheet.diagnose.log_programs import SERVERS
from memsheet.diagnose.message import Cause
from memsheet.diagnose.regimes import Change
from memsheet.diagnose.signs import Signs

Test = Callable[[Figures, Signs], bool | None]


def phase_tells(*causes: Cause) -> Test:
    def holds(_: Figures, signs: Signs) -> bool | None:
        of_server = signs.phase not in OF_SERVERS or signs.program in SERVERS
        return of_server and PHASE_CAUSES.get(signs.phase) in causes

    return holds


def needs_probs_in_full(of: Figures, signs: Signs) -> bool | None:
    """Log-probabilities of all tokens, where free and kept bytes do not reach their size: where they do,
    pieces may be what is wrong.
    """
    return phase_tells(Cause.REAL_NEED)(of, signs) and kept_covers(of, signs) is not True


def lacks_room_for_states(of: Figures, signs: Signs) -> bool | None:
    """An optimizer makes its states in its first update: forward and backward fitted, every further step
    holds these beside what they needed.
    """
    return lacks_room(of, signs) if signs.frame is FIRST_UPDATE else False


def first_update_words(of: Figures, signs: Signs) -> str:
    return (
        "forward and backward fitted, and the optimizer makes its states in its first update: from there on every step "
        f"holds them, too; {lacking_words(of, signs)}"
    )  # fmt: skip


def wakes_up(_: Figures, signs: Signs) -> bool | None:
    return signs.phase == "wake"


def wake_up_words(_: Figures, __: Signs) -> str:
    return "a server that slept takes its memory back while somebody else still holds the card"


def phase_words(of: Figures, signs: Signs) -> str:
    step = "a step of the running server" if signs.phase in OF_SERVERS else "the step"
    when = signs.frame.words if signs.frame else step
    free = f", and {size_words(of.free)} were free" if of.free is not None and of.free_is_said else ""
    told = f"{size_words(of.asked)} were asked for by {when}{free}"
    match PHASE_CAUSES[signs.phase]:
        case Cause.ENGINE_OVERCOMMIT:
            return f"{told}: the server took so much for its cache that this has no room beside it"
        case Cause.REGIME_CHANGE:
            return f"{told}: it holds more than the steps before it, which fitted"
        case _:
            return told


def change_words(of: Figures, signs: Signs) -> str:
    change = signs.changed_at or Change("", "")
    told = (
        "more is trained, so that more is kept for backward" if change.thaws
        else "a step is another one than those that fitted"
    )  # fmt: skip
    where = "at that epoch's beginning" if change.unit == "epoch" else "in the step behind it"
    return f"{change.words} and the run died {where}: from there on {told}; {size_words(of.asked)} were asked for"  # fmt: skip


def more_training_words(of: Figures, signs: Signs) -> str:
    return (
        f'the run said that it trains more ("{signs.thaws}") and died before its second step from there on: '
        "more is kept for backward, and gradients and states of it are made; "
        f"{size_words(of.asked)} were asked for"
    )


def long_batch_words(of: Figures, signs: Signs) -> str:
    tokens, most = signs.outsized or (0, 0)
    return (
        f"the step that died has {tokens:,} tokens, and those before it had {most:,} at the most: "
        f"{size_words(of.asked)} were asked for, more than they needed"
    )


def resumption_words(of: Figures, _: Signs) -> str:
    return (
        "the run fits from its beginning and dies where it goes on from a checkpoint: what was read of it is still "
        f"held beside the job; {size_words(of.asked)} were asked for"
    )  # fmt: skip


SAID: Mapping[str, str] = {
    "thaws_said": "more is trained from some place of the run on ({}) and its steps before fitted: more is kept for backward, and gradients and states of it are made",
    "long_said": "the steps before fitted and it died at a long sample ({}), which needs more than they did",
    "saves_said": "the steps fitted and it died as it saved a checkpoint ({})",
    "phase_said": "other steps of the run fitted and it died at something else ({}): a step is another one there",
}  # fmt: skip
"""What people say of a run that becomes another, by the sign that holds their words, as rules go."""


def is_said(sign: str) -> Test:
    """The test whether people say so."""
    return lambda _, signs: bool(getattr(signs, sign))


def words_of_said(sign: str) -> Callable[[Figures, Signs], str]:
    """The sentence that quotes them."""

    def because(of: Figures, signs: Signs) -> str:
        told = SAID[sign].format(f'"{getattr(signs, sign)}"')
        return f"the text says that {told}; {size_words(of.asked)} were asked for there"

    return because
