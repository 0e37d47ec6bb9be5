"""What would have served the request that failed, and what would not: by verdict, in the words of the
program.
"""

from __future__ import annotations

from collections.abc import Iterator

from memsheet.diagnose.causes.limits import beyond_whole_machine
from memsheet.diagnose.causes.neighbours import has_cache_outside, shares_with_host
from memsheet.diagnose.cures.allocator_settings import (
    against_pieces,
    expandable_by_sum,
    expandable_cure,
    no_cache_clearing,
)
from memsheet.diagnose.cures.neighbours import against_outside, without_host, without_others
from memsheet.diagnose.cures.shortages import for_need
from memsheet.diagnose.cures.tables import (
    CACHES,
    FEWER_TRAINED,
    KEEP_FEWER,
    KEEP_NO_RUN,
    KEEP_NO_SESSION,
    KEEP_NOTHING,
    KEEP_NUMBERS,
    KEEP_ON_HOST,
    OF_KERAS,
    OF_PHASE,
    SERVER_SHARE,
    SEVERAL_RUNS,
    SHORTER_SAMPLES,
    SUM_NUMBERS,
)
from memsheet.diagnose.cures.without_training import beside_own_cache, in_server, without_training
from memsheet.diagnose.figures import Figures
from memsheet.diagnose.frames import SERVING
from memsheet.diagnose.interval import NOTHING, at_least, size_words
from memsheet.diagnose.message import MAYBE, NO, YES, Cause, Cure, Term
from memsheet.diagnose.messages.colocated import SHARE, place_of_share
from memsheet.diagnose.signs import Signs
from memsheet.frozen import replace

MOST = 4


NO_LIMIT = Cure(
    change="no limit", helps=NO, where="PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0", why="the machine has no more memory: it would swap, or stop",
)  # fmt: skip


UNTIL_FILLED = "until what grows has filled that too"


def cures_of(cause: Cause, figures: Figures, signs: Signs, term: Term | None, who: str) -> tuple[Cure, ...]:
    """At most four, what helps first. ``who``: the device's kind, as the message has it."""
    found = list(dict.fromkeys(_cures_for(cause, figures, signs, term, who)))
    order = {YES: 0, MAYBE: 1, NO: 2}
    helping = [cure for cure in found if cure.helps != NO][: MOST - 1]
    rest = [cure for cure in found if cure.helps == NO]
    return tuple(sorted((*helping, *rest[: MOST - len(helping)]), key=lambda cure: order[cure.helps]))


def _cures_for(cause: Cause, figures: Figures, signs: Signs, term: Term | None, who: str) -> Iterator[Cure]:
    match cause:
        case Cause.REAL_NEED if who.startswith("MPS") and beyond_whole_machine(figures, signs):
            yield NO_LIMIT
            yield from for_need(figures, signs, term)
        case Cause.LIMIT_SET if who.startswith("MPS"):
            yield Cure(
                change="no limit, at the risk of the whole system's memory",
                helps=MAYBE,
                where="PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0",
            )
            yield from for_need(figures, signs, term)
        case Cause.LIMIT_SET:
            yield Cure(
                change="raise or remove the limit on this process",
                helps=YES,
                where="torch.cuda.set_per_process_memory_fraction(1.0)",
                why=f"{size_words(figures.free or NOTHING)} of the card are free",
            )
            held, allowed = figures.allocated, figures.allowed
            within = (
                held is not None and allowed is not None and at_least(allowed, held + figures.asked) is True
            )
            yield expandable_cure(
                figures,
                signs,
                who,
                covered=within,
                why="the limit counts what is reserved, however it is laid out"
                if not within
                else "tensors and the request are within the limit; pages that are not used no longer count",
            )
        case Cause.NOT_GPU_MEMORY:
            if signs.windows:
                yield Cure(
                    change="a larger page file",
                    helps=MAYBE,
                    where="System > Advanced > Performance > Virtual memory",
                )
            yield Cure(
                change="more host memory for the job (a container's limit, a scheduler's, fewer processes)",
                helps=MAYBE,
            )
            yield Cure(change="a smaller batch", helps=NO, why="the card has room for the request")
            yield expandable_cure(
                figures,
                signs,
                who,
                covered=False,
                why="unsupported on Windows, and the card has room"
                if signs.windows
                else "the card has room for the request",
            )
        case Cause.OTHER_PROCESS:
            yield from (
                without_host(figures)
                if shares_with_host(signs) and not figures.others
                else without_others(figures, signs)
            )
            yield expandable_by_sum(figures, signs, who)
        case Cause.OUTSIDE_ALLOCATOR:
            yield from against_outside(figures, signs)
            yield expandable_by_sum(figures, signs, who)
        case Cause.FRAGMENTATION:
            yield from against_pieces(figures, signs, who)
        case Cause.WAKE_UP_RACE:
            yield Cure(
                change="return the trainer's cached memory before the server wakes",
                helps=MAYBE,
                where="torch.cuda.empty_cache()",
            )
            yield Cure(
                change="a smaller share of the card for the server",
                helps=MAYBE,
                where=place_of_share(signs.text, SERVER_SHARE.get(signs.program, SHARE)),
            )
        case Cause.ENGINE_UNDERPROVISION:
            yield from without_training(figures, replace(signs, task=SERVING, phase="profile"), term)
        case Cause.ENGINE_OVERCOMMIT if not signs.task and has_cache_outside(figures, signs):
            yield from beside_own_cache(figures, signs, term)
            yield expandable_by_sum(figures, signs, who)
        case Cause.ENGINE_OVERCOMMIT:
            yield from in_server(figures, signs, term)
            yield expandable_by_sum(figures, signs, who)
        case Cause.LEAK:
            yield without_growth(signs)
            pages = expandable_by_sum(figures, signs, who)
            yield pages if pages.helps == NO else replace(pages, why=f"{pages.why}, {UNTIL_FILLED}")
            yield no_cache_clearing(who)
        case Cause.REGIME_CHANGE:
            yield from _of_new_regime(signs)
            yield from for_need(figures, signs, term)
            yield expandable_by_sum(figures, signs, who)
        case Cause.REAL_NEED:
            yield from for_need(figures, signs, term)
            yield expandable_by_sum(figures, signs, who)
            yield no_cache_clearing(who)
        case _:
            return


def _of_new_regime(signs: Signs) -> Iterator[Cure]:
    """What makes a step again as those that fitted, by why it is another."""
    if signs.outsized or signs.long_said:
        yield SHORTER_SAMPLES
    if signs.resumed:
        yield from OF_PHASE["restore"]
    if signs.thaws or signs.thaws_said or (signs.changed_at is not None and signs.changed_at.thaws):
        yield FEWER_TRAINED


def without_growth(signs: Signs) -> Cure:
    """What lets go of what grows, by what a text shows that it is."""
    if signs.sums_losses:
        return SUM_NUMBERS
    if signs.keeps_losses:
        return KEEP_NUMBERS
    if signs.keeps_outputs:
        return KEEP_ON_HOST
    if SEVERAL_RUNS.search(signs.text):
        return KEEP_NO_SESSION if OF_KERAS.search(signs.text) else KEEP_NO_RUN
    return KEEP_FEWER if CACHES.search(signs.text) else KEEP_NOTHING
