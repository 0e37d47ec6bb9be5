"""What would have served the request that failed, and what would not: by verdict, in the words of the
program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

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
    FEWER_TRAINED,
    KEEP_NO_CHAT,
    KEEP_NO_RUN,
    KEEP_NO_SESSION,
    KEEP_NOTHING,
    LARGER_SLICE,
    OF_GROWTH,
    OF_KEPT,
    OF_KERAS,
    OF_PHASE,
    OF_SLICES,
    SERVER_SHARE,
    SESSIONS,
    SEVERAL_RUNS,
    SHORTER_SAMPLES,
)
from memsheet.diagnose.cures.tensors import NOT_MADE
from memsheet.diagnose.cures.without_training import beside_own_cache, in_server, without_training
from memsheet.diagnose.figures import Figures
from memsheet.diagnose.frames import SERVING
from memsheet.diagnose.interval import NOTHING, at_least, size_words
from memsheet.diagnose.message import MAYBE, NO, YES, Cause, Cure, Term
from memsheet.diagnose.messages.colocated import SHARE, place_of_share
from memsheet.diagnose.signs import Signs
from memsheet.frozen import NamedTuple, replace

MOST = 4


NO_LIMIT = Cure(
    change="no limit", helps=NO, where="PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0", why="the machine has no more memory: it would swap, or stop",
)  # fmt: skip


AT_RISK = Cure(change="no limit, at the risk of the whole system's memory", helps=MAYBE, where=NO_LIMIT.where)
RAISED = Cure(
    change="raise or remove the limit on this process", helps=YES, where="torch.cuda.set_per_process_memory_fraction(1.0)"
)  # fmt: skip
PAGE_FILE = Cure(change="a larger page file", helps=MAYBE, where="System > Advanced > Performance > Virtual memory")  # fmt: skip
MORE_HOST = Cure(
    change="more host memory for the job (a container's limit, a scheduler's, fewer processes)", helps=MAYBE
)
SMALLER_BATCH = Cure(change="a smaller batch", helps=NO, why="the card has room for the request")
CACHE_GIVEN_BACK = Cure(
    change="return the trainer's cached memory before the server wakes", helps=MAYBE, where="torch.cuda.empty_cache()"
)  # fmt: skip
SMALLER_SHARE = Cure(change="a smaller share of the card for the server", helps=MAYBE)


UNTIL_FILLED = "until what grows has filled that too"


def cures_of(cause: Cause, figures: Figures, signs: Signs, term: Term | None, who: str) -> tuple[Cure, ...]:
    """At most four, what helps first, and before that what makes no such tensor at all: no smaller job does
    as well. ``who``: the device's kind, as the message has it.
    """
    offered = _BY_CAUSE.get(cause)
    found = list(dict.fromkeys(offered(_Case(figures, signs, term, who)) if offered else ()))
    order = {YES: 0, MAYBE: 1, NO: 2}
    helping = [cure for cure in found if cure.helps != NO][: MOST - 1]
    rest = [cure for cure in found if cure.helps == NO]
    first = {cure.change for cure in helping[:1] if cure.why == NOT_MADE}
    return tuple(
        sorted(
            (*helping, *rest[: MOST - len(helping)]),
            key=lambda cure: (cure.change not in first, order[cure.helps]),
        )
    )


class _Case(NamedTuple):
    """What is known of a failure. ``who``: the device's kind, as the message has it."""

    figures: Figures
    signs: Signs
    term: Term | None
    who: str

    @property
    def of_need(self) -> Iterator[Cure]:
        return for_need(self.figures, self.signs, self.term)

    @property
    def by_sum(self) -> Cure:
        return expandable_by_sum(self.figures, self.signs, self.who)


def _against_limit(of: _Case) -> Iterator[Cure]:
    if of.who.startswith("MPS"):
        yield AT_RISK
        yield from of.of_need
        return
    free, held, allowed = of.figures.free or NOTHING, of.figures.allocated, of.figures.allowed
    yield replace(RAISED, why=f"{size_words(free)} of the card are free")
    within = held is not None and allowed is not None and at_least(allowed, held + of.figures.asked) is True
    why = (
        "tensors and the request are within the limit; pages that are not used no longer count" if within
        else "the limit counts what is reserved, however it is laid out"
    )  # fmt: skip
    yield expandable_cure(of.figures, of.signs, of.who, covered=within, why=why)


def _moved_to_host(of: _Case) -> Iterator[Cure]:
    if of.signs.windows:
        yield PAGE_FILE
    yield from (MORE_HOST, SMALLER_BATCH)
    has_room = "the card has room for the request"
    why = f"unsupported on Windows, and {has_room}" if of.signs.windows else has_room
    yield expandable_cure(of.figures, of.signs, of.who, covered=False, why=why)


def _against_others(of: _Case) -> Iterator[Cure]:
    of_host = shares_with_host(of.signs) and not of.figures.others
    yield from without_host(of.figures) if of_host else without_others(of.figures, of.signs)
    yield of.by_sum


def _outside_allocator(of: _Case) -> Iterator[Cure]:
    yield from against_outside(of.figures, of.signs)
    yield of.by_sum


def _in_pieces(of: _Case) -> Iterator[Cure]:
    yield from against_pieces(of.figures, of.signs, of.who)


def _at_wake_up(of: _Case) -> Iterator[Cure]:
    share = place_of_share(of.signs.text, SERVER_SHARE.get(of.signs.program, SHARE))
    yield from (CACHE_GIVEN_BACK, replace(SMALLER_SHARE, where=share))


def _before_cache(of: _Case) -> Iterator[Cure]:
    yield from without_training(of.figures, replace(of.signs, task=SERVING, phase="profile"), of.term)


def _beside_cache(of: _Case) -> Iterator[Cure]:
    outside = not of.signs.task and has_cache_outside(of.figures, of.signs)
    yield from (beside_own_cache if outside else in_server)(of.figures, of.signs, of.term)
    yield of.by_sum


def _against_growth(of: _Case) -> Iterator[Cure]:
    yield without_growth(of.signs)
    pages = of.by_sum
    yield pages if pages.helps == NO else replace(pages, why=f"{pages.why}, {UNTIL_FILLED}")
    yield no_cache_clearing(of.who)


def _in_new_regime(of: _Case) -> Iterator[Cure]:
    yield from _of_new_regime(of.signs)
    yield from of.of_need
    yield of.by_sum


def _against_need(of: _Case) -> Iterator[Cure]:
    if OF_SLICES.search(of.signs.text):
        yield LARGER_SLICE
    if of.who.startswith("MPS") and beyond_whole_machine(of.figures, of.signs):
        yield NO_LIMIT
        yield from of.of_need
        return
    yield from of.of_need
    yield of.by_sum
    yield no_cache_clearing(of.who)


_BY_CAUSE: Mapping[Cause, Callable[[_Case], Iterator[Cure]]] = {
    Cause.LIMIT_SET: _against_limit, Cause.NOT_GPU_MEMORY: _moved_to_host, Cause.OTHER_PROCESS: _against_others, Cause.OUTSIDE_ALLOCATOR: _outside_allocator,
    Cause.FRAGMENTATION: _in_pieces, Cause.WAKE_UP_RACE: _at_wake_up, Cause.ENGINE_UNDERPROVISION: _before_cache, Cause.ENGINE_OVERCOMMIT: _beside_cache,
    Cause.LEAK: _against_growth, Cause.REGIME_CHANGE: _in_new_regime, Cause.REAL_NEED: _against_need,
}  # fmt: skip


def _of_new_regime(signs: Signs) -> Iterator[Cure]:
    """What makes a step again as those that fitted, by why it is another."""
    if signs.outsized or signs.long_said:
        yield SHORTER_SAMPLES
    if signs.resumed:
        yield from OF_PHASE["restore"]
    if signs.saves_said:
        yield from OF_PHASE["save"]
    if signs.thaws or signs.thaws_said or (signs.changed_at is not None and signs.changed_at.thaws):
        yield FEWER_TRAINED


def without_growth(signs: Signs) -> Cure:
    """What lets go of what grows, by what a text shows that it is."""
    if signs.kept:
        if signs.kept[0].what == "outputs" and SESSIONS.search(signs.text):
            return KEEP_NO_CHAT
        return OF_KEPT[signs.kept[0].what]
    if SEVERAL_RUNS.search(signs.text):
        return KEEP_NO_SESSION if OF_KERAS.search(signs.text) else KEEP_NO_RUN
    return next((cure for sign, cure in OF_GROWTH if sign.search(signs.text)), KEEP_NOTHING)
