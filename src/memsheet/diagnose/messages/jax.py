"""XLA's messages, as JAX shows them: sizes asked for, compile-time sums, the dump of its pool."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from itertools import islice

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.frames import SCORES
from memsheet.diagnose.interval import (
    NOTHING,
    Interval,
    at_least,
    more_than,
    printed_bytes,
    size_words,
    sum_intervals,
)
from memsheet.diagnose.message import MAYBE, NO, NUMBER, Cause, Cure, Form, Judgement, Message, Term
from memsheet.diagnose.messages.holders import judged_by_table
from memsheet.diagnose.messages.stated import card_of, larger_share, smaller_share, stated_share
from memsheet.diagnose.named_cards import NamedCard, beyond_card
from memsheet.frozen import NamedTuple, replace

SIGNS = (
    b"RESOURCE_EXHAUSTED",
    b"CompileTimeHbmOom",
    b"Ran out of memory in memory space",
    b"hbm capacity",
    b"That was not possible",
    b"Failed to allocate request",
    b"Could not create cudnn handle",
    b"vmem",
)
PREALLOCATED = Cure(
    change="look at nvidia-smi for what the job needs", helps=NO,
    why="XLA takes 75 percent of the card or more at its start, whatever it needs",
)  # fmt: skip
SMALLER = Cure(
    change="a smaller batch per device, or recompute in backward", helps=MAYBE, where="jax.checkpoint"
)
_STATS = re.compile(
    r"(preallocatedtemp|maybe_live_out|parameter|constant|total)allocation:([\d.]{1,20})([KMGT]iB|B)"
)
_POOL = {
    name: re.compile(rf"{said}:(\d{{1,18}})")
    for name, said in (
        ("limit", "Limit"),
        ("in_use", "InUse"),
        ("largest_free", "(?:LargestFreeBlock|MaxFreeBlock)"),
    )
}
_BUFFER = re.compile(r"Shape:((?:bf16|f16|f32|f64|s32|u32|s8|u8|pred|f8\w{0,10})\[[\d,]{1,60}\])")


FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"


def _larger_pool(message: Message, log: Log) -> tuple[Cure, ...]:
    found = larger_share(FRACTION, stated_share(log, message.line, FRACTION))
    return tuple(replace(cure, where=cure.where.replace(" ", "=")) for cure in found)


def _counted_by_compiler(message: Message, log: Log) -> Judgement:
    used, held, over = (message.facts.get(each) for each in ("used", "capacity", "missing"))
    told = f"{size_words(used)} used of {size_words(held)}" if used and held else "more than the chip has"
    short = over or ((used - held).positive if used and held else None)
    term = _largest_of_program(log.squeezed[log.place_of(message.line) :])
    return Judgement(
        causes=(Cause.REAL_NEED,), missing=short, term=term, cures=(*((ON_CHIP,) if _is_square(term) else ()), SMALLER),
        because=f"the compiler counted {told}{f', {size_words(short)} too much' if short else ''}: no setting of a pool makes room",
    )  # fmt: skip


_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "f64": 8}
_WORDS = {"bf16": "bf16", "f16": "fp16", "f32": "fp32", "f64": "fp64"}
MOST_BUFFERS = 64


def _term_of_buffers(size: Interval | None, printed: str) -> Term | None:
    """The one shape among a program's buffers that is as large as what was asked for; where that is all
    temporaries at once, the largest of them, which XLA prints first.
    """
    found = dict.fromkeys(each[1] for each in islice(_BUFFER.finditer(printed), MOST_BUFFERS))
    fitting = []
    for shape in found:
        kind, _, axes = shape.rstrip("]").partition("[")
        counts = [int(each) for each in axes.split(",") if each]
        width = _BYTES.get(kind)
        if size and width and size.low <= width * math.prod(counts) <= size.high:
            fitting.append((kind, counts, width))
    if len(fitting) != 1:
        return _largest_temporary(size, printed)
    ((kind, counts, width),) = fitting
    term = _term_of_shape(kind, counts, width, "as XLA prints its buffers", exact=True)
    return _named_by_operator(term, printed, ",".join(map(str, counts)))


_OF_LOGITS = re.compile(
    r"logit|lm_?head|un_?embed|de_?embed|log_?softmax|cross_?entropy|output_projection|vocab_?proj|embed\w{0,20}[./](?:decode|attend)\b",
    re.IGNORECASE,
)  # fmt: skip
"""What code calls its logits, as XLA has it in the name of an operator; an embedding that decodes or attends
(flax, linen/linear.py, Embed.attend) makes them, too.
"""
_OF_SCORES = re.compile(
    r"attn|attention|->(?:\w{1,4})?(?:qk|qs|ts|ij|lm)(?![a-z])|softmax|\bscores?\b", re.IGNORECASE
)
"""The same of attention's scores: the module's name, or the axes of the product that makes them."""
IN_CHUNKS = Cure(
    change="the loss of a piece of the tokens at a time, so that whole logits are never made", helps=MAYBE, where="jax.lax.map(jax.checkpoint(loss_of_piece), pieces) (MaxText: num_vocab_tiling=N)",
    why="the largest buffer is the logits",
)  # fmt: skip


def _named_by_operator(term: Term | None, printed: str, axes: str) -> Term | None:
    """The same as logits or scores, where an operator's name says so that makes a buffer of the same axes."""
    if term is None:
        return None
    made = [
        printed[max(0, each.start() - MOST_OF_BUFFER) : each.start()].rpartition("Size:")[2]
        for each in islice(_BUFFER.finditer(printed), MOST_BUFFERS)
        if each[1].partition("[")[2] == f"{axes}]"
    ]
    names = [each.partition("source_file")[0] for each in made]
    if any(_OF_LOGITS.search(name) for name in names):
        return replace(term, path="loss", words=f"logits, {term.words}")
    if _is_square(term) and any(_OF_SCORES.search(name) for name in names):
        return replace(term, path=SCORES.path, words=f"{SCORES.words}, {term.words}")
    return term


MOST_OF_BUFFER = 1200
"""Letters of a buffer's description before its shape that are read."""


def _term_of_shape(kind: str, counts: list[int], width: int, how: str, *, exact: bool) -> Term:
    return Term(
        component="temporaries", path="program", exact=exact,
        shape=f"[{', '.join(map(str, counts))}] {_WORDS.get(kind, kind)}",
        words=f"{' × '.join(f'{each:,}' for each in counts)} × {width} bytes, {how}",
    )  # fmt: skip


_TEMPORARIES = re.compile(r"preallocatedtempallocation:([\d.]{1,20})([KMGT]iB|B)")
_PARAMETER = re.compile(r"Operator:op_name=\"[^\"]{0,20}params|EntryParameterSubshape")


def _largest_temporary(size: Interval | None, printed: str) -> Term | None:
    """The first of the buffers that are printed, where what was asked for is all temporaries at once."""
    total = _TEMPORARIES.search(printed)
    held = printed_bytes(*total.groups()) if total else None
    found = _BUFFER.search(printed)
    if not (size and held and found and held.low <= size.high and size.low <= held.high):
        return None
    kind, _, axes = found[1].rstrip("]").partition("[")
    counts, width = [int(each) for each in axes.split(",") if each], _BYTES.get(kind)
    if width is None or _PARAMETER.search(printed, 0, found.start()) or width * math.prod(counts) > size.high:
        return None
    how = "the largest of the program's temporaries, which were asked for at once"
    term = _term_of_shape(kind, counts, width, how, exact=False)
    return _named_by_operator(term, printed, axes)


_LARGEST = re.compile(
    r"Largestprogramallocationsin\w{1,8}:1\.Size:[\d.]{1,12}[KMG]?B?"
    r"(?:Operator:op_name=\"(?P<made>[^\"]{1,300})\")?"
)
"""The list behind what XLA's compiler counts, the largest first; an operator's name is the traced program's
own, scope by scope.
"""


def _largest_of_program(printed: str) -> Term | None:
    """The first of the allocations that the compiler lists, called as the operator that makes it."""
    listed = _LARGEST.search(printed)
    found = _BUFFER.search(printed, listed.end(), listed.end() + MOST_OF_BUFFER) if listed else None
    if listed is None or found is None:
        return None
    kind, _, axes = found[1].rstrip("]").partition("[")
    counts, width = [int(each) for each in axes.split(",") if each], _BYTES.get(kind)
    if width is None:
        return None
    how = "the largest of the program's allocations" + (
        f", which {listed['made']} makes" if listed["made"] else ""
    )
    return _named_by_operator(_term_of_shape(kind, counts, width, how, exact=False), printed, axes)


def _is_square(term: Term | None) -> bool:
    """Whether a tensor is as long as it is wide, as scores of attention are."""
    axes = term.shape.partition("]")[0].strip("[").split(", ") if term else []
    return len(axes) > 2 and axes[-1] == axes[-2] and int(axes[-1]) >= LEAST_LENGTH


LEAST_LENGTH = 512
FLASH = Cure(
    change="attention that writes no scores", helps=MAYBE, where='jax.nn.dot_product_attention(…, implementation="cudnn")',
    why="the largest buffer is as long as it is wide, as scores are",
)  # fmt: skip

ON_CHIP = replace(FLASH, where="jax.experimental.pallas.ops.tpu.flash_attention (or splash_attention)")


def _pool_request(message: Message, log: Log) -> Judgement:
    printed = log.squeezed[log.place_of(message.line) :]
    term = _term_of_buffers(message.facts.get("asked"), printed)
    judged = replace(_judged_request(message, log), term=term)
    if not judged.cures:
        return judged
    first = (FLASH,) if _is_square(term) else (IN_CHUNKS,) if term and term.path == "loss" else ()
    return replace(judged, cures=(*first, *judged.cures))


_FROM_DEVICE = re.compile(r"failedtoallocate[\d.]{1,12}[KMGT]iB\((\d{1,16})bytes\)fromdevice:")
_OF_DEVICE = re.compile(r"Memoryusage:(\d{1,16})bytesfree,(\d{1,16})bytestotal")
USUAL_SHARE = Decimal("0.75")
"""Of a card, which XLA takes at its start (xla/pjrt/gpu/gpu_helpers.h, GpuAllocatorConfig)."""


def _refused_at_start(message: Message, log: Log) -> Judgement | None:
    """Somebody else, where what the driver refused is the pool that XLA takes before all else, and next to
    nothing of the card is free.
    """
    asked, device = _FROM_DEVICE.search(log.squeezed), _OF_DEVICE.search(log.squeezed)
    if asked is None or device is None:
        return None
    size, (free, whole) = int(asked[1]), (int(each) for each in device.groups())
    share = stated_share(log, message.line, FRACTION) or USUAL_SHARE
    if abs(size - whole * share) * 50 > whole or free * 10 > whole:
        return None
    held, left, card = (Interval(each, each) for each in (whole - free, free, whole))
    there = judged_by_table(message, log, "")
    return Judgement(
        causes=(Cause.OTHER_PROCESS,), missing=(Interval(size, size) - left).positive,
        cures=(
            *(there.cures[:1] if there else (Cure(change="find who else is on the card", helps=MAYBE, where="nvidia-smi"),)),
            Cure(change="a smaller share for each that uses XLA", helps=MAYBE, where=f"{FRACTION}=.45 in each (or XLA_PYTHON_CLIENT_PREALLOCATE=false)"),
        ),
        because=f"the driver refused the {size_words(Interval(size, size))} that XLA takes at its start, {share:.0%} of {size_words(card)}: "
        f"{size_words(left)} were free, and the other {size_words(held)} were held before it",
    )  # fmt: skip


def _beyond_known_card(message: Message, log: Log, told: str, total: Interval | None) -> Judgement | None:
    """A need of more than the card has that the message says or the text names, or of nearly all of it; or
    somebody else on it, where what was refused is what XLA takes at its start. ``total``: of the whole
    program.
    """
    size, card, named = message.facts.get("asked"), message.facts.get("capacity"), card_of(log)
    whole = f"{told}; the program needs {size_words(total or NOTHING)} in all"
    need = Judgement(causes=(Cause.REAL_NEED,), because=whole, cures=(SMALLER, PREALLOCATED))
    if total is not None and card is not None and more_than(total, card):
        return replace(
            need, missing=(total - card).positive, because=f"{whole}, and the card has {size_words(card)}"
        )
    if over := beyond_card(total, named):
        return replace(need, because=f"{whole}, and {over}")
    if over := beyond_card(size, named):
        return replace(need, because=f"{told}, and {over}")
    if refused := _refused_at_start(message, log):
        return refused
    if total is None or named is None or total.low * LARGE[1] <= named.most * LARGE[0]:
        return None
    return replace(
        need, cures=(SMALLER, *_larger_pool(message, log), PREALLOCATED),
        because=f"{whole}, more than nine tenths of the {named.name} that the text names, whoever else is on it",
    )  # fmt: skip


def _judged_request(message: Message, log: Log) -> Judgement:
    size = message.facts.get("asked")
    text, lines = log.squeezed, log.text
    pool = pool_figures(text)
    stats = {
        name: printed_bytes(number, unit)
        for name, number, unit in _STATS.findall(text[log.place_of(message.line) :][:20000])
    }
    buffer = _BUFFER.search(text, log.place_of(message.line))
    largest = f"; the largest buffer is {buffer[1]}" if buffer else ""
    told = f"{size_words(size)} were asked for{largest}" if size else f"memory ran out{largest}"
    if "pinned" in lines and "pinned host" in lines:
        return Judgement(causes=(Cause.NOT_GPU_MEMORY,), because=f"{told}, of the host's page-locked memory")
    if size and "limit" in pool and "in_use" in pool:
        share = stated_share(log, message.line, FRACTION)
        raised = Cure(change="a larger share of the card for the pool", helps=MAYBE, where=FRACTION)
        limit = Limit(share is not None, raised, card_of(log), share)
        return judge_pool(size, pool, told, (SMALLER,), (*_larger_pool(message, log), PREALLOCATED), limit)
    held = [part for name in ("maybe_live_out", "preallocatedtemp") if (part := stats.get(name)) is not None]
    total = stats.get("total") or (sum_intervals(held) if len(held) > 1 else None)
    if judged := _beyond_known_card(message, log, told, total):
        return judged
    if total is None and (judged := judged_by_table(message, log, told)):
        return judged
    parts = [
        f"{name.replace('atedtemp', 'ated temp')} {size_words(held)}"
        for name, held in stats.items()
        if held is not None and name != "total"
    ]
    whole = f"; the program's buffers: {', '.join(parts)}" if parts else ""
    return Judgement(
        causes=(Cause.REAL_NEED, Cause.OTHER_PROCESS), cures=(SMALLER, *_larger_pool(message, log), PREALLOCATED),
        because=f"{told}{whole}; what the pool held, and who else is on the card, is not said",
    )  # fmt: skip


def _refused_by_chip(message: Message, _: Log) -> Judgement:
    """A TPU's own refusal at run time; a chip is one process's, so what is not free is the job's."""
    asked, free = message.facts.get("asked"), message.facts.get("free")
    if asked is None or free is None:
        return Judgement(
            causes=(Cause.REAL_NEED, Cause.FRAGMENTATION), because="the chip had no room", cures=(SMALLER,)
        )
    told = f"{size_words(asked)} were asked for and {size_words(free)} of the chip were free"
    if more_than(asked, free):
        return Judgement(
            causes=(Cause.REAL_NEED,), because=told, missing=(asked - free).positive, cures=(SMALLER,)
        )
    return Judgement(causes=(Cause.FRAGMENTATION, Cause.REAL_NEED), because=told, cures=(SMALLER,))


def _refused_library(message: Message, log: Log) -> Judgement:
    """cuDNN, which stands outside XLA's pool (xla/stream_executor/cuda/cuda_dnn.cc)."""
    free, card = message.facts.get("free"), message.facts.get("capacity")
    told = (
        f"{size_words(free)} of {size_words(card)} were free"
        if free and card
        else "what was free is not said"
    )
    share = stated_share(log, message.line, FRACTION)
    lower = smaller_share(FRACTION, share, "of the card for the pool, which leaves room beside it")
    return Judgement(
        causes=(Cause.OUTSIDE_ALLOCATOR, Cause.OTHER_PROCESS),
        because=f"cuDNN was refused what it makes outside XLA's pool: {told}; the pool takes most of the card at its start, and others may hold the rest",
        cures=(*(replace(cure, where=cure.where.replace(" ", "=")) for cure in lower), Cure(change="find who else is on the card", helps=MAYBE, where="nvidia-smi")),
    )  # fmt: skip


def pool_figures(text: str) -> dict[str, int]:
    """The dump of a BFC pool in a text without spaces, in bytes: ``limit``, ``in_use``, ``largest_free``."""
    return {name: int(found[1]) for name, pattern in _POOL.items() if (found := pattern.search(text))}


class Limit(NamedTuple):
    """Whether a text sets a pool's limit, what raises it, the card that it names, and the share of a card
    that the limit is, where that is said.
    """

    is_set: bool
    raised: Cure
    card: NamedCard | None = None
    share: Decimal | None = None

    def card_ends(self, limit: int) -> tuple[int, int]:
        """The fewest and the most bytes of the card as far as the text says it; nothing where it does not."""
        whole = int(limit / self.share) if self.share else 0
        if self.card is None or (whole and len(self.card.sizes) > 1):
            return whole, whole
        return self.card.least_above(limit), self.card.most


LARGE = (9, 10)
"""The share of a card that a pool may have beside contexts and libraries."""


def _share_for(limit: Limit, needed: int, card: int) -> str:
    """Where the limit is set, with the least share that has room where it is a share."""
    if limit.share is None:
        return limit.raised.where
    return f"{limit.raised.where}=0.{-(-needed * 100 // card):02d} (or more, while nobody else uses the card)"


def _too_little_in_pool(
    pool: dict[str, int],
    needed: int,
    told: str,
    smaller: tuple[Cure, ...],
    besides: tuple[Cure, ...],
    limit: Limit,
) -> Judgement:
    """Where the pool had less left than was asked for: its limit's doing, where a setting made that so low
    that the card has room. ``needed``: bytes of the pool with the request.
    """
    least, most = limit.card_ends(pool["limit"])
    if limit.is_set and needed * LARGE[1] <= least * LARGE[0]:
        return Judgement(
            causes=(Cause.LIMIT_SET,), cures=(replace(limit.raised, where=_share_for(limit, needed, least)), *smaller),
            because=f"{told}; that limit is a setting's, and the card has {size_words(Interval(least, most))}",
        )  # fmt: skip
    if limit.is_set and (not most or needed * LARGE[1] <= most * LARGE[0]):
        return Judgement(
            causes=(Cause.LIMIT_SET, Cause.REAL_NEED), cures=(limit.raised, *smaller),
            because=f"{told}; that limit is a setting's, and what the card has is not said"
            + (f" ({size_words(Interval(least, most))})" if most else ""),
        )  # fmt: skip
    return Judgement(causes=(Cause.REAL_NEED,), because=told, cures=(*smaller, *besides))


def judge_pool(
    size: Interval,
    pool: dict[str, int],
    told: str,
    smaller: tuple[Cure, ...],
    besides: tuple[Cure, ...],
    limit: Limit,
) -> Judgement:
    """A request of a BFC pool by what the pool had left. ``smaller``: cures that ask for less;
    ``besides``: what is said where the pool had too little; ``limit``: whose the pool's limit is.
    """
    left = Interval(max(0, pool["limit"] - pool["in_use"]), max(0, pool["limit"] - pool["in_use"]))
    sum_words = (
        f"{told}; of the pool's limit {size_words(Interval(pool['limit'], pool['limit']))} were "
        f"{size_words(left)} left"
    )
    held = Interval(pool["in_use"], pool["in_use"])
    facts = {"pool_limit_bytes": held + left, "pool_in_use_bytes": held}
    if pool["in_use"] > pool["limit"]:
        return Judgement(
            causes=(),
            because=f"{told}; more is in use of the pool than its limit: its figures contradict one another",
            facts=facts,
        )
    if more_than(size, left):
        lacks = _too_little_in_pool(pool, pool["in_use"] + size.high, sum_words, smaller, besides, limit)
        return replace(lacks, missing=(size - left).positive, facts=facts)
    largest = pool.get("largest_free")
    if largest is not None and at_least(left, size) and size.low > largest > 0:
        return Judgement(
            causes=(Cause.FRAGMENTATION,),
            because=f"{sum_words}, the largest piece {largest:,} bytes",
            cures=smaller,
            facts=facts,
        )
    return Judgement(
        causes=(Cause.FRAGMENTATION, Cause.REAL_NEED), because=sum_words, cures=smaller, facts=facts
    )


_CARD = (
    rf"(?:(?:\S{{0,4000}}?)(?:totalmemory|cardof|GPUof|"
    rf"memory:)(?P<capacity>{NUMBER})(?P<capacity_unit>[MG]iB))?"
)
FORMS = (
    Form("chip", re.compile(rf"Attemptingto(?:reserve|allocate)(?P<asked>{NUMBER})(?P<asked_unit>[KMG])?(?:atthebottomofmemory)?\.Thatwasnotpossible\.Thereare(?P<free>{NUMBER})(?P<free_unit>[KMG])free"), _refused_by_chip),
    Form("compiler", re.compile(rf"Used(?P<used>{NUMBER})(?P<used_unit>[KMG])of(?P<capacity>{NUMBER})(?P<capacity_unit>[KMG])hbm(?:\.Exceededhbmcapacityby(?P<missing>{NUMBER})(?P<missing_unit>[KMG]))?"), _counted_by_compiler),
    Form("library", re.compile(r"Couldnotcreatecudnnhandle:CUDNN_STATUS_INTERNAL_ERROR(?:\S{0,300}?Memoryusage:(?P<free>\d{1,16})bytesfree,(?P<capacity>\d{1,16})bytestotal)?"), _refused_library, {"free": "bytes", "capacity": "bytes"}),
    Form("compiler", re.compile(r"CompileTimeHbmOom|Ranoutofmemoryinmemoryspacehbm"), _counted_by_compiler),
    Form("XLA", re.compile(rf"RESOURCE_EXHAUSTED:(?:Outofmemory)?\S{{0,40}}?(?:allocate|allocating)(?P<asked>{NUMBER})(?P<asked_unit>bytes|[KMGT]iB)?{_CARD}"), _pool_request, {"asked": "bytes"}),
    Form("XLA", re.compile(rf"Failedtoallocaterequestfor(?P<asked>{NUMBER})(?P<asked_unit>bytes|[KMGT]iB)\S{{0,40}}?ondeviceordinal"), _pool_request, {"asked": "bytes"}),
    Form("XLA", re.compile(r"RESOURCE_EXHAUSTED:\S{0,40}?(?:[Oo]utofmemory|OOM|CUDA_ERROR_OUT_OF_MEMORY)"), _pool_request),
)  # fmt: skip
