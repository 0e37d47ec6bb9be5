"""What of a card others hold, or this process outside its allocator."""

from __future__ import annotations

import re

from memsheet.diagnose.causes.shortages import cached_covers
from memsheet.diagnose.denials import said_of
from memsheet.diagnose.figures import OUTSIDE_LEAST, OUTSIDE_MOST, Figures
from memsheet.diagnose.frames import OF_SERVERS
from memsheet.diagnose.interval import (
    NOTHING,
    Interval,
    all_hold,
    at_least,
    more_than,
    size_words,
)
from memsheet.diagnose.log_programs import SERVERS
from memsheet.diagnose.messages.colocated import shares_a_card
from memsheet.diagnose.signs import Signs
from memsheet.diagnose.tongues import SHARES, clause_with_all
from memsheet.units import GIB


def _fits_alone(of: Figures) -> bool | None:
    """Whether this process and its request would fit a card of its own."""
    if of.capacity is None:
        return False
    held = of.process or of.reserved or of.allocated
    return False if held is None else at_least(of.capacity, held + of.asked)


def has_large_neighbour(of: Figures, _: Signs) -> bool | None:
    """Others hold a tenth of the card or more, and without them the request is served."""
    if not of.others or of.free is None or of.capacity is None:
        return False
    held = of.others_total
    return all_hold(
        at_least(of.free + held, of.asked), at_least(held, of.capacity.times(1, 10)), _fits_alone(of)
    )


def has_neighbour_of_server(of: Figures, signs: Signs) -> bool | None:
    """The same on a card of which a server took its share for itself, where no job is told that shares it."""
    served = signs.program in SERVERS and signs.phase in OF_SERVERS
    return has_large_neighbour(of, signs) if served and not shares_a_card(signs.text) else False


def has_unseen_neighbour(of: Figures, _: Signs) -> bool | None:
    """A tenth of the card or more is held by nobody that is named."""
    if of.others or of.unseen is None or of.free is None or of.capacity is None:
        return False
    return all_hold(
        at_least(of.unseen, of.capacity.times(1, 10)),
        at_least(of.free + of.unseen, of.asked),
        _fits_alone(of),
    )


def has_much_outside(of: Figures, _: Signs) -> bool | None:
    """More is outside the allocator than a usual process has, and without it the request is served."""
    if of.outside is None or of.free is None:
        return False
    usual = Interval(OUTSIDE_MOST, OUTSIDE_MOST)
    return all_hold(more_than(of.outside, usual), at_least(of.free + (of.outside - usual).positive, of.asked))


_OWN_CACHE = re.compile(
    r"\bcache_max_entry_count\b|\[BlockManager\]|\bObject cache budget: |\b(?:kv_cache_)?free_gpu_memory_fraction\b"
    r"|max tokens in paged KV cache"
)  # fmt: skip
"""How servers are known whose cache stands outside PyTorch's allocator: LMDeploy's TurboMind,
TensorRT-LLM.
"""


def has_cache_outside(of: Figures, signs: Signs) -> bool | None:
    """Much is outside, in the process of a server that made its cache there."""
    return has_much_outside(of, signs) if _OWN_CACHE.search(signs.text) else False


def gap_of_card(of: Figures) -> Interval | None:
    """What of the card is neither free nor the allocator's, where nobody is named for it."""
    if (
        of.process is not None
        or of.others
        or None in (of.capacity, of.free, of.reserved)
        or not of.free_is_said
    ):
        return None
    return of.capacity - of.free - of.reserved  # type: ignore[operator]


def has_unnamed_gap(of: Figures, _: Signs) -> bool | None:
    gap = gap_of_card(of)
    if gap is None or of.free is None:
        return False
    most = OUTSIDE_LEAST if of.unsized else OUTSIDE_MOST
    usual = Interval(most, most)
    return all_hold(more_than(gap, usual), at_least(of.free + gap, of.asked), _fits_alone(of))


_SHARED = re.compile(
    r"\bshared? (?:(?:gpu|lab|dev|compute) )?(?:server|machine|node|box|cluster|workstation|card|gpu|host)\b"
    r"|\b(?:server|machine|node|box|workstation|card|gpus?)\b[^\n.]{0,20}\bshared\b|\bshar(?:e|ed|ing) (?:\w{1,10} ){0,3}with\b"
    r"|\b(?:several|other|many) (?:users|people|students)\b",
    re.IGNORECASE,
)  # fmt: skip
"""How people say that others use the card."""


def has_shared_gap(of: Figures, signs: Signs) -> bool | None:
    """What nobody is named for is more than a process has outside its allocator, on a card that is shared."""
    gap = has_unnamed_gap(of, signs)
    shared = said_of(_SHARED, signs.text) or clause_with_all(signs.text, SHARES)
    return gap if gap is not False and shared and not shares_a_card(signs.text) else False


def has_small_neighbour(of: Figures, _: Signs) -> bool | None:
    if not of.others or of.free is None or cached_covers(of) is not False:
        return False
    return all_hold(at_least(of.free + of.others_total, of.asked), _fits_alone(of))


_LAUNCHED = re.compile(
    r"\btorchrun\b|--?nproc[_-]per[_-]node|\blocal_rank\b|\baccelerate launch\b"
    r"|\bmpirun\b|\bdeepspeed --|\bsrun\b|\[rank\d"
)
"""What starts several processes for one job, or is said by one of them."""
ALIKE = (20, 21)
STRANGERS = 3
"""Processes that hold the same to the last digit, or more, are none to one another."""


def are_siblings(of: Figures, text: str) -> bool:
    """Whether the others are alike and no larger than a context, or larger and of a launcher's job: ranks of
    the same job that never chose their own card, or put their weights on the first.
    """
    sizes = [size for _, size in of.others]
    least, most = min((size.low for size in sizes), default=0), max((size.high for size in sizes), default=0)
    alike = bool(sizes) and max(size.low for size in sizes) <= min(size.high for size in sizes)
    launched = least * ALIKE[1] >= most * ALIKE[0] and bool(_LAUNCHED.search(text))
    return len(sizes) > 1 and ((alike and (most <= GIB or len(sizes) >= STRANGERS)) or launched)


_SHARED_WITH_HOST = re.compile(r"\bGB10\b|\bDGX Spark\b|\bJetson\b|\bTegra\b|\bOrin\b")
"""Devices whose memory is the host's, of which files that the host keeps are not told as free (NVIDIA, CUDA
for Tegra, "Estimating Total Allocatable Device Memory on an Integrated GPU Device").
"""


def shares_with_host(signs: Signs) -> bool:
    """Whether a text names a device whose memory is the host's."""
    return bool(_SHARED_WITH_HOST.search(signs.text))


def neighbour_words(of: Figures, signs: Signs) -> str:
    held = of.others_total
    if are_siblings(of, signs.text):
        return (
            f"{len(of.others)} processes hold {size_words(of.others[0][1])} each of the same card, as "
            f"ranks of this job do "
            f"that never chose their own: {size_words(held)} with the {size_words(of.free or NOTHING)} "
            f"free cover the "
            f"{size_words(of.asked)} asked for"
        )
    largest = sorted(of.others, key=lambda other: -other[1].middle)
    named = ", ".join(f"process {of.process_words(pid)} {size_words(size)}" for pid, size in largest[:3])
    return (
        f"{named} on the same card: {size_words(of.free or NOTHING)} free + {size_words(held)} of others "
        f"cover the "
        f"{size_words(of.asked)} asked for"
    )


def unseen_words(of: Figures, signs: Signs) -> str:
    who = (
        "the host's programs and the files that it keeps in memory, which is this device's too"
        if shares_with_host(signs)
        else "somebody who is not named (another container)"
    )
    return (
        f"{size_words(of.capacity or NOTHING)} - {size_words(of.free or NOTHING)} free - "
        f"{size_words(of.process or NOTHING)} "
        f"of this process leave {size_words(of.unseen or NOTHING)} held by {who}"
    )


def cache_outside_words(of: Figures, signs: Signs) -> str:
    return (
        f"{outside_words(of, signs)}: the server's weights and cache stand there, and the cache took so much that "
        f"{size_words(of.asked)} have no room beside it"
    )  # fmt: skip


def outside_words(of: Figures, signs: Signs) -> str:
    server = "; a server in the same process counts in" if shares_a_card(signs.text) else ""
    return (
        f"{size_words(of.process or NOTHING)} of this process - {size_words(of.reserved or NOTHING)} of "
        f"the allocator = "
        f"{size_words(of.outside or NOTHING)} outside it, where a usual process has less than "
        f"{size_words(Interval(OUTSIDE_MOST, OUTSIDE_MOST))}{server}"
    )


def gap_words(of: Figures, _: Signs) -> str:
    return (
        f"{size_words(gap_of_card(of) or NOTHING)} of the card are neither free nor the allocator's, and "
        f"the message does not "
        "say whose: another process's, or this one's outside the allocator"
    )


def shared_gap_words(of: Figures, _: Signs) -> str:
    return (
        f"{size_words(gap_of_card(of) or NOTHING)} of the card are neither free nor the allocator's, more than "
        "a process has outside it, and the card is said to be shared: others hold them"
    )  # fmt: skip
