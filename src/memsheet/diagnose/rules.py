"""One message of an allocator → one verdict: a table of tests in their order.

The first that holds decides. Where one before it is open by the rounding of the figures, the answer is open
between the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from memsheet.diagnose.figures import OUTSIDE_LEAST, OUTSIDE_MOST, Figures, aligned_bytes
from memsheet.diagnose.interval import (
    NOTHING,
    Interval,
    all_hold,
    at_least,
    at_least_words,
    at_most_words,
    more_than,
    size_words,
)
from memsheet.diagnose.message import Cause, Judgement
from memsheet.diagnose.messages.colocated import shares_a_card
from memsheet.diagnose.named_cards import beyond_named_card
from memsheet.diagnose.regimes import Change
from memsheet.diagnose.signs import OF_SERVERS, PHASE_CAUSES, SERVERS, SERVING, Signs
from memsheet.frozen import NamedTuple
from memsheet.units import GIB

Test = Callable[[Figures, Signs], bool | None]


class Rule(NamedTuple):
    """A test, the cause that it shows, and why in words that close."""

    cause: Cause
    holds: Test
    because: Callable[[Figures, Signs], str]
    otherwise: tuple[Cause, ...] = ()
    """Causes that the test cannot tell from its own."""


def short_bytes(figures: Figures) -> Interval:
    """What is missing: at least where all that is kept could be used, at most where none of it can."""
    if figures.free is None:
        return NOTHING
    lacking = (figures.asked - figures.free).positive
    kept = figures.unallocated or NOTHING
    return Interval((figures.asked - figures.free - kept).positive.low, lacking.high)


def beyond_limit(figures: Figures) -> Interval:
    """What a request takes beyond the limit that is set."""
    held = figures.reserved or figures.allocated or NOTHING
    return (held + figures.asked - (figures.allowed or NOTHING)).positive


def _limit_set(of: Figures, _: Signs) -> bool | None:
    held = of.reserved or of.allocated
    if of.allowed is None or held is None:
        return False
    beyond = more_than(held + of.asked, of.allowed)
    return beyond if of.free is None or not of.free_is_said else all_hold(beyond, at_least(of.free, of.asked))


def _enough_free(of: Figures, _: Signs) -> bool | None:
    if of.free is None or of.allowed is not None or not of.free_is_said:
        return False
    return at_least(of.free, aligned_bytes(of.asked))


def _enough_free_at_its_end(of: Figures, signs: Signs) -> bool | None:
    """The same of a message that ends before it says what the process holds, and whether a limit is set."""
    return of.allocated is None and _enough_free(of, signs)


def _probs_in_full(of: Figures, signs: Signs) -> bool | None:
    """Log-probabilities of all tokens, where free and kept bytes do not reach their size: where they do,
    pieces may be what is wrong.
    """
    return _phase_says(Cause.REAL_NEED)(of, signs) and _kept_covers(of, signs) is not True


def _wakes_up(_: Figures, signs: Signs) -> bool | None:
    return signs.phase == "wake"


def _beyond_card(of: Figures, _: Signs) -> bool | None:
    return of.allocated is not None and of.capacity is not None and more_than(of.allocated, of.capacity)


def _phase_says(*causes: Cause) -> Test:
    def holds(_: Figures, signs: Signs) -> bool | None:
        of_server = signs.phase not in OF_SERVERS or signs.program in SERVERS
        return of_server and PHASE_CAUSES.get(signs.phase) in causes

    return holds


def _fits_alone(of: Figures) -> bool | None:
    """Whether this process and its request would fit a card of its own."""
    if of.capacity is None:
        return False
    held = of.process or of.reserved or of.allocated
    return False if held is None else at_least(of.capacity, held + of.asked)


def _large_neighbour(of: Figures, _: Signs) -> bool | None:
    """Others hold a tenth of the card or more, and without them the request is served."""
    if not of.others or of.free is None or of.capacity is None:
        return False
    held = of.others_total
    return all_hold(
        at_least(of.free + held, of.asked), at_least(held, of.capacity.times(1, 10)), _fits_alone(of)
    )


def _neighbour_of_server(of: Figures, signs: Signs) -> bool | None:
    """The same on a card of which a server took its share for itself, where no job is told that shares it."""
    served = signs.program in SERVERS and signs.phase in OF_SERVERS
    return _large_neighbour(of, signs) if served and not shares_a_card(signs.text) else False


def _unseen_neighbour(of: Figures, _: Signs) -> bool | None:
    """A tenth of the card or more is held by nobody that is named."""
    if of.others or of.unseen is None or of.free is None or of.capacity is None:
        return False
    return all_hold(
        at_least(of.unseen, of.capacity.times(1, 10)),
        at_least(of.free + of.unseen, of.asked),
        _fits_alone(of),
    )


def _much_outside(of: Figures, _: Signs) -> bool | None:
    """More is outside the allocator than a usual process has, and without it the request is served."""
    if of.outside is None or of.free is None:
        return False
    usual = Interval(OUTSIDE_MOST, OUTSIDE_MOST)
    return all_hold(more_than(of.outside, usual), at_least(of.free + (of.outside - usual).positive, of.asked))


def _kept_covers(of: Figures, _: Signs) -> bool | None:
    """What is kept beyond tensors covers what is missing, and is no trifle."""
    if of.unallocated is None or of.free is None or of.capacity is None:
        return False
    return all_hold(
        at_least(of.unallocated + of.free, of.asked), at_least(of.unallocated, of.capacity.times(1, 20))
    )


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


def _unnamed_gap(of: Figures, _: Signs) -> bool | None:
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


def _shared_gap(of: Figures, signs: Signs) -> bool | None:
    """What nobody is named for is more than a process has outside its allocator, on a card that is shared."""
    gap = _unnamed_gap(of, signs)
    return gap if gap is not False and _SHARED.search(signs.text) and not shares_a_card(signs.text) else False


def _says_shared_gap(of: Figures, _: Signs) -> str:
    return (
        f"{size_words(gap_of_card(of) or NOTHING)} of the card are neither free nor the allocator's, more than "
        "a process has outside it, and the card is said to be shared: others hold them"
    )  # fmt: skip


def _small_neighbour(of: Figures, _: Signs) -> bool | None:
    if not of.others or of.free is None or _cached_covers(of) is not False:
        return False
    return all_hold(at_least(of.free + of.others_total, of.asked), _fits_alone(of))


def _cached_covers(of: Figures) -> bool | None:
    """Whether free and kept bytes together reach the request."""
    if of.free is None or of.unallocated is None:
        return None
    return at_least(of.free + of.unallocated, of.asked)


def _too_little(of: Figures, _: Signs) -> bool | None:
    if of.free is None:
        return False
    covered = at_least(of.free + (of.unallocated or NOTHING), of.asked)
    return None if covered is None else not covered


_CACHE_SET = re.compile(
    r"\bgpu[_-]memory[_-]utilization\b|\bmem[_-]fraction[_-]static\b|\bcache[_-]max[_-]entry[_-]count\b"
    r"|free_gpu_memory_fraction\b|\bcache_size\b[\"']?\s{0,3}[:=]?\s{0,3}\d{4,7}\b"
)
"""How servers are told of a cache: vLLM, SGLang, LMDeploy, TensorRT-LLM, tabbyAPI."""


def _too_little_in_server(of: Figures, signs: Signs) -> bool | None:
    """The same where a server runs whose log does not say how far it had come, or a server's cache is set in
    a text that shows no training and no weights that are loaded: its cache may have what lacks.
    """
    serves = signs.task == SERVING
    is_set = not signs.task and signs.frame is None and not signs.trainer and _CACHE_SET.search(signs.text)
    return _too_little(of, signs) if not signs.phase and (serves or is_set) else False


_GROWS_SAID = re.compile(
    r"\b(?:memory|vram|usage|it)\b[^\n.]{0,30}?\b(?:creep|grow|climb|increas|ris|accumulat|pil)(?:e?s|ing|ed)?\b(?:[^\n.]{0,20}\b(?:up|slowly|steadily|each|every|over time|until))"
    r"|\b(?:second|2nd|third|3rd|next) (?:time|call|run)\b[^\n]{0,60}\b(?:die|crash|fail|oom|run out|out of memory)"
    r"|\bfirst (?:time|call|run|cell)\b[^\n.]{0,30}\b(?:work|fine|ok|run)[^\n]{0,60}\b(?:second|2nd|again|next)\b"
    r"|\btrial 0\b[^\n]{0,80}\btrial [1-9]\d{0,2}\b[^\n.]{0,30}\b(?:die|crash|fail|oom)"
    r"|\bafter \d{1,4} (?:messages|turns|questions|requests|calls|folds|trials)\b",
    re.IGNORECASE,
)  # fmt: skip
"""How people say that the same ran before, and that memory is not given back."""
_EVALUATION_SAID = re.compile(
    r"\b(?:die|crash|fail|oom|stop|break)(?:e?s|ed)?\b[^\n.]{0,30}?\b(?:in|at|during|when|once|on)\b[^\n.]{0,30}?\b(?:validation|evaluation|eval)\b"
    r"|\b(?:validation|evaluation|eval)\b (?:loop |step |pass |phase )?(?:always |then |still )?(?:die|crash|fail|oom)",
    re.IGNORECASE,
)  # fmt: skip
"""How people say that a training runs, and its evaluation does not."""


def _too_little_later(of: Figures, signs: Signs) -> bool | None:
    """The same where people say that it ran before and memory is not given back."""
    return _too_little(of, signs) if _GROWS_SAID.search(signs.text) else False


def _too_little_evaluated(of: Figures, signs: Signs) -> bool | None:
    """The same where people say that it died in an evaluation."""
    return _too_little(of, signs) if not signs.phase and _EVALUATION_SAID.search(signs.text) else False


def _beyond_named_card(of: Figures, signs: Signs) -> bool | None:
    """Of a message without the card's total: one request is more than the card has that the text names."""
    return of.capacity is None and of.free is None and bool(beyond_named_card(of.asked, signs.text))


def _says_named_card(of: Figures, signs: Signs) -> str:
    return f"{size_words(of.asked)} were asked for at once, and {beyond_named_card(of.asked, signs.text)}"


_MACHINE = re.compile(
    r"\b(?:Mac(?:Book)?|iMac|M[1-5](?: (?:Pro|Max|Ultra))?)\b[^\n,;]{0,30}?(?<!\d)(\d{1,3})\s?GB\b(?! (?:free|used|swap))",
    re.IGNORECASE,
)  # fmt: skip
"""A machine's memory, which its GPU shares, as people say it."""


def beyond_whole_machine(of: Figures, signs: Signs) -> bool | None:
    """Whether what is held and asked for is more than all the memory of the machine that a text names, so
    that no limit is what is short.
    """
    machine, held = _MACHINE.search(signs.text), of.reserved or of.allocated
    whole = int(machine[1]) * GIB if machine else 0
    if held is None or of.allowed is None or not whole:
        return False
    return more_than(held + of.asked, Interval(whole, whole))


def _says_whole_machine(of: Figures, signs: Signs) -> str:
    machine = _MACHINE.search(signs.text)
    return (
        f"{size_words(of.reserved or of.allocated or NOTHING)} held + {size_words(of.asked)} asked for is more "
        f"than the machine has ({machine[1] if machine else ''} GB), whatever the limit"
    )  # fmt: skip


def _says_limit(of: Figures, _: Signs) -> str:
    held = of.reserved or of.allocated or NOTHING
    while_free = (
        f", while {size_words(of.free)} of the card are free"
        if of.free is not None and of.free_is_said
        else ""
    )
    return (
        f"{size_words(held)} held + {size_words(of.asked)} asked is more than the "
        f"{size_words(of.allowed or NOTHING)} "
        f"that a limit allows this process{while_free}"
    )


def _says_enough_free(of: Figures, signs: Signs) -> str:
    over = of.capacity is not None and of.free is not None and more_than(of.free, of.capacity)
    where = (
        "Windows' commit limit (page file)" if signs.windows
        else "the memory that the GPU shares with the host" if over
        else "the host's memory or commit limit, a container's limit, or another process that took and gave back"
    )  # fmt: skip
    return (
        f"{size_words(of.asked)} were asked for and {size_words(of.free or NOTHING)} of the card are free: "
        f"it is no "
        f"shortage of the card; what refuses is {where}"
    )


def _says_wake_up(_: Figures, __: Signs) -> str:
    return "a server that slept takes its memory back while somebody else still holds the card"


def _says_beyond_card(of: Figures, _: Signs) -> str:
    return (
        f"{size_words(of.allocated or NOTHING)} are allocated on a card of "
        f"{size_words(of.capacity or NOTHING)}: memory of "
        "the host counts in (shared or managed memory, or a sleeping server's pool), and the card is full"
    )


def _says_phase(of: Figures, signs: Signs) -> str:
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


def _says_changed(of: Figures, signs: Signs) -> str:
    change = signs.changed_at or Change("", "")
    told = (
        "more is trained, so that more is kept for backward" if change.thaws
        else "a step is another one than those that fitted"
    )  # fmt: skip
    where = "at that epoch's beginning" if change.unit == "epoch" else "in the step behind it"
    return f"{change.words} and the run died {where}: from there on {told}; {size_words(of.asked)} were asked for"  # fmt: skip


def _says_thawed(of: Figures, signs: Signs) -> str:
    return (
        f'the run said that it trains more ("{signs.thaws}") and died before its second step from there on: '
        "more is kept for backward, and gradients and states of it are made; "
        f"{size_words(of.asked)} were asked for"
    )


def are_siblings(of: Figures) -> bool:
    """Whether the others are alike and no larger than a context: ranks of the same job that never chose their
    own card.
    """
    sizes = [size for _, size in of.others]
    alike = bool(sizes) and max(size.low for size in sizes) <= min(size.high for size in sizes)
    return len(sizes) > 1 and alike and max(size.high for size in sizes) <= GIB


def _says_neighbour(of: Figures, _: Signs) -> str:
    held = of.others_total
    if are_siblings(of):
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


_SHARED_WITH_HOST = re.compile(r"\bGB10\b|\bDGX Spark\b|\bJetson\b|\bTegra\b|\bOrin\b")
"""Devices whose memory is the host's, of which files that the host keeps are not told as free (NVIDIA, CUDA
for Tegra, "Estimating Total Allocatable Device Memory on an Integrated GPU Device").
"""


def shares_with_host(signs: Signs) -> bool:
    """Whether a text names a device whose memory is the host's."""
    return bool(_SHARED_WITH_HOST.search(signs.text))


def _says_unseen(of: Figures, signs: Signs) -> str:
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


def _says_outside(of: Figures, signs: Signs) -> str:
    server = "; a server in the same process counts in" if shares_a_card(signs.text) else ""
    return (
        f"{size_words(of.process or NOTHING)} of this process - {size_words(of.reserved or NOTHING)} of "
        f"the allocator = "
        f"{size_words(of.outside or NOTHING)} outside it, where a usual process has less than "
        f"{size_words(Interval(OUTSIDE_MOST, OUTSIDE_MOST))}{server}"
    )


def _sum_words(of: Figures) -> str:
    kept = of.unallocated or NOTHING
    free = of.free or NOTHING
    whole = free + kept
    wide = "to" in size_words(kept).split() or "to" in size_words(free).split()
    total = f"{at_least_words(whole)} to {at_most_words(whole)}" if wide else size_words(whole)
    return f"{size_words(free)} free + {size_words(kept)} kept without tensors = {total}"


def _says_gap(of: Figures, _: Signs) -> str:
    return (
        f"{size_words(gap_of_card(of) or NOTHING)} of the card are neither free nor the allocator's, and "
        f"the message does not "
        "say whose: another process's, or this one's outside the allocator"
    )


def _says_cached(of: Figures, _: Signs) -> str:
    warm = is_warm_up(of)
    how = (
        "; small tensors hold one big segment that a warm-up of the loader made" if warm
        else ", but in pieces between tensors"
    )  # fmt: skip
    return f"{_sum_words(of)}, enough for the {size_words(of.asked)} asked for{how}"


def is_warm_up(of: Figures) -> bool:
    """Whether nearly all that is reserved is empty."""
    kept, held, card = of.unallocated, of.allocated, of.capacity
    return None not in (kept, held, card) and kept.low * 2 > card.high and kept.low > held.high * 10  # type: ignore[union-attr]


def _says_lacking(of: Figures, _: Signs) -> str:
    return (
        f"{_sum_words(of)} < {size_words(of.asked)} asked for, short by {at_least_words(short_bytes(of))} "
        f"at least: "
        "no setting of the allocator makes room"
    )


def _says_lacking_in_server(of: Figures, signs: Signs) -> str:
    return (
        f"{_says_lacking(of, signs)}; whether the server had made its cache, "
        "which leaves what is short, its log does not say"
    )


def _says_lacking_later(of: Figures, signs: Signs) -> str:
    return (
        f"{_says_lacking(of, signs)}; but the same is said to have run before: "
        "what is not given back may be what lacks"
    )


def _says_lacking_evaluated(of: Figures, signs: Signs) -> str:
    return (
        f"{_says_lacking(of, signs)}; but it is said to die in its evaluation, "
        "which may need more than the steps that fitted"
    )


def _memory_grows(of: Figures, signs: Signs) -> bool | None:
    """What is reserved grows with tensors where next to nothing is kept without them."""
    if signs.sums_losses or signs.keeps_losses or signs.keeps_outputs:
        return True
    if signs.growth:
        return at_least(signs.growth[-1] - signs.growth[0], short_bytes(of))
    held = signs.reserved_growth or signs.used_growth
    return bool(held) and not _may_be_pieces(of, held)


def _may_be_pieces(of: Figures, grown: tuple[Interval, ...]) -> bool:
    return of.unallocated is None or of.unallocated.high * 2 > (grown[-1] - grown[0]).low


def _says_leak(of: Figures, signs: Signs) -> str:
    if grown_sizes := signs.growth or signs.reserved_growth or signs.used_growth:
        grown = " → ".join(size_words(size) for size in grown_sizes)
        what = "allocated" if signs.growth else "reserved" if signs.reserved_growth else "used"
        return (
            f"what is {what} only grows from step to step: {grown}, until {size_words(of.asked)} have no room"
        )
    if signs.keeps_outputs and not signs.sums_losses:
        return (
            "what the model makes is put on a list batch by batch and stays on the card: memory grows with each "
            f"until one request ({size_words(of.asked)}) has no room"
        )  # fmt: skip
    return (
        f"losses are {'summed' if signs.sums_losses else 'kept'} as tensors, which keeps every step's graph "
        "alive: "
        f"memory grows with each step until one request ({size_words(of.asked)}) has no room"
    )


def _says_outsized(of: Figures, signs: Signs) -> str:
    tokens, most = signs.outsized or (0, 0)
    return (
        f"the step that died has {tokens:,} tokens, and those before it had {most:,} at the most: "
        f"{size_words(of.asked)} were asked for, more than they needed"
    )


def _says_resumed(of: Figures, _: Signs) -> str:
    return (
        "the run fits from its beginning and dies where it goes on from a checkpoint: what was read of it is still "
        f"held beside the job; {size_words(of.asked)} were asked for"
    )  # fmt: skip


def growth_of_steps(signs: Signs) -> Judgement | None:
    """A leak, of a message without figures: what is allocated only grew before it, by a tenth or more."""
    if not signs.growth or (signs.growth[-1] - signs.growth[0]).low * 10 < signs.growth[-1].low:
        return None
    grown = " → ".join(size_words(size) for size in signs.growth)
    return Judgement(
        causes=(Cause.LEAK,), because=f"what is allocated only grows: {grown}, until a request has no room"
    )


RULES: tuple[Rule, ...] = (
    Rule(Cause.REAL_NEED, beyond_whole_machine, _says_whole_machine),
    Rule(Cause.LIMIT_SET, _limit_set, _says_limit),
    Rule(Cause.WAKE_UP_RACE, _wakes_up, _says_wake_up),
    Rule(Cause.NOT_GPU_MEMORY, _enough_free_at_its_end, _says_enough_free, (Cause.LIMIT_SET,)),
    Rule(Cause.NOT_GPU_MEMORY, _enough_free, _says_enough_free),
    Rule(Cause.REAL_NEED, _beyond_card, _says_beyond_card),
    Rule(Cause.LEAK, _memory_grows, _says_leak),
    Rule(Cause.REGIME_CHANGE, lambda _, signs: signs.changed_at is not None, _says_changed),
    Rule(Cause.REGIME_CHANGE, lambda _, signs: bool(signs.thaws), _says_thawed),
    Rule(Cause.REGIME_CHANGE, lambda _, signs: signs.outsized is not None, _says_outsized),
    Rule(Cause.REGIME_CHANGE, lambda _, signs: signs.resumed, _says_resumed),
    Rule(Cause.OTHER_PROCESS, _neighbour_of_server, _says_neighbour),
    Rule(Cause.ENGINE_OVERCOMMIT, _phase_says(Cause.ENGINE_OVERCOMMIT), _says_phase),
    Rule(Cause.REGIME_CHANGE, _phase_says(Cause.REGIME_CHANGE), _says_phase),
    Rule(Cause.REAL_NEED, _probs_in_full, _says_phase),
    Rule(Cause.OTHER_PROCESS, _large_neighbour, _says_neighbour),
    Rule(Cause.OTHER_PROCESS, _unseen_neighbour, _says_unseen),
    Rule(Cause.OUTSIDE_ALLOCATOR, _much_outside, _says_outside),
    Rule(Cause.FRAGMENTATION, _kept_covers, _says_cached),
    Rule(Cause.OTHER_PROCESS, _shared_gap, _says_shared_gap),
    Rule(Cause.OTHER_PROCESS, _unnamed_gap, _says_gap, (Cause.OUTSIDE_ALLOCATOR,)),
    Rule(Cause.OTHER_PROCESS, _small_neighbour, _says_neighbour),
    Rule(Cause.REAL_NEED, _beyond_named_card, _says_named_card),
    Rule(Cause.REAL_NEED, _too_little_in_server, _says_lacking_in_server, (Cause.ENGINE_OVERCOMMIT,)),
    Rule(Cause.REAL_NEED, _too_little_later, _says_lacking_later, (Cause.LEAK,)),
    Rule(Cause.REAL_NEED, _too_little_evaluated, _says_lacking_evaluated, (Cause.REGIME_CHANGE,)),
    Rule(Cause.REAL_NEED, _too_little, _says_lacking),
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
    if unspoken and _cached_covers(of) is True:
        return (
            f"{_sum_words(of)}, enough in sum for the {asked} asked for; but so little is kept on a card of "
            f"{size_words(of.capacity or NOTHING)} that it is full: a little less held would have served it, "
            "and so might what is kept, in one piece"
        )
    return (
        f"{_sum_words(of)}, and {asked} were asked for: the figures are too near, or too rounded, to tell "
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
        case Cause.REAL_NEED:
            return short_bytes(figures) if figures.free is not None else None
        case _:
            return (figures.asked - figures.free).positive if figures.free is not None else None
