"""SGLang's messages at its start and of its pools. Its GB are 2^30 bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from decimal import Decimal

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import Interval, printed_bytes, size_words, sum_intervals
from memsheet.diagnose.message import MAYBE, NO, NUMBER, Cause, Cure, Form, Judge, Judgement, Message
from memsheet.diagnose.messages.nvidia_smi import Holder, card_table, listed_holders
from memsheet.diagnose.messages.stated import (
    MOST_SHARE,
    STEP,
    doubled,
    halved,
    larger_share,
    smaller_share,
    stated_number,
    stated_share,
)
from memsheet.frozen import replace

SIGNS = (
    b"mem-fraction-static", b"alloc_req_slots", b"Prefill out of memory", b"Decode out of memory", b"profiled value", b"Capture cuda graph failed",
    b"Capture CUDA graph failed", b"avail mem=", b"memory capacity is unbalanced", b"leave no GPU memory for the KV", b"SWA pool cap", b"state cache is too small", b"No space left for only one",
)  # fmt: skip
FRACTION = "--mem-fraction-static"
OF_BOTH = "for weights and cache"
NO_SMALLER_SHARE = Cure(change="a smaller share", helps=NO, why="the share has to hold the weights first")


def _stated_share(message: Message, log: Log) -> Decimal | None:
    return stated_share(log, message.line, "mem_fraction_static")


def _roomy_share(log: Log) -> tuple[Decimal, str]:
    """The share, in hundredths, that gives the cache half of what the weights leave, and what that comes to:
    the cache gets what is beyond that share of what was free before (sglang v0.5.8,
    model_runner_kv_cache_mixin.py:111: available - total × (1 - share)), and activations and graphs need the
    rest; 0 where the log does not say what was free before and behind.
    """
    facts = pool_facts(log)
    used, left = facts.get("weights_loaded_bytes"), facts.get("left_after_weights_bytes")
    if used is None or left is None or used.low <= 0:
        return Decimal(0), ""
    whole = used.high + left.low
    share = min((used.high + left.low // 2) * 100 // whole, int(MOST_SHARE * 100))
    cache = Interval(*(max(0, whole * share // 100 - used.high),) * 2)
    if not cache.high:
        return Decimal(1), ""
    from_share = Decimal(-(-used.high * 100 // whole)) / 100
    return Decimal(share) / 100, (
        f"leaves {size_words(cache)} for the cache and the rest of the {size_words(left)} that weights leave for activations "
        f"and graphs; up to {from_share} nothing is left for a cache"
    )  # fmt: skip


def _shares_for_cache(message: Message, log: Log) -> tuple[Cure, ...]:
    share, leaves = _roomy_share(log)
    found = larger_share(FRACTION, _stated_share(message, log), share, OF_BOTH)
    return tuple(replace(cure, why=". ".join(filter(None, (cure.why, leaves)))) for cure in found)


def _holders_before_weights(log: Log) -> tuple[Interval, tuple[Holder, ...]] | None:
    """What was gone of the card before weights were loaded, and the processes of nvidia-smi's table of one
    card that hold nine tenths of it or more.
    """
    table, left = card_table(log), pool_facts(log).get("left_before_weights_bytes")
    if table is None or left is None or len(table.cards) != 1:
        return None
    gone, holders = (table.cards[0][1] - left).positive, listed_holders(log)
    held = sum_intervals(each.size for each in holders)
    return (gone, holders) if holders and held.low * 10 >= gone.low * 9 and held.low <= gone.high else None


def _held_before(gone: Interval, holders: tuple[Holder, ...]) -> Judgement:
    whose = ", ".join(each.words for each in holders)
    return Judgement(
        causes=(Cause.OTHER_PROCESS,),
        because=f"{size_words(gone)} of the card were gone before weights were loaded: {whose}; the server's share is of what was "
        "left, and its weights take all of that",
        cures=(
            Cure(change="free what others hold of the card", helps=MAYBE, where="nvidia-smi"),
            Cure(change="another card", helps=MAYBE, where="CUDA_VISIBLE_DEVICES=N"),
            NO_SMALLER_SHARE,
        ),
    )  # fmt: skip


Offer = Callable[[Message, Log], Iterable[Cure]]
"""A change as a message and its log have it, where there is one."""


def _always(*cures: Cure) -> Offer:
    return lambda _, __: cures


def _larger(message: Message, log: Log) -> Iterable[Cure]:
    least = message.words.get("least")
    beyond = min(Decimal(least) + STEP, MOST_SHARE) if least else Decimal(0)
    return larger_share(FRACTION, _stated_share(message, log), beyond, OF_BOTH)


def _smaller(message: Message, log: Log) -> Iterable[Cure]:
    return smaller_share(FRACTION, _stated_share(message, log), OF_BOTH)


def _spread(message: Message, log: Log) -> Iterable[Cure]:
    parallel = stated_number(log, message.line, "tp_size", "tensor_parallel_size", "tp")
    yield Cure(
        change="the weights over more GPUs, or in fewer bits", helps=MAYBE, where=doubled("--tp", parallel)
    )


def _half_of(change: str, option: str) -> Offer:
    """A change that halves what an option states; none where one is left."""

    def offered(message: Message, log: Log) -> Iterable[Cure]:
        name = option.lstrip("-").replace("-", "_")
        half = halved(option, stated_number(log, message.line, name))
        return (Cure(change=change, helps=MAYBE, where=half),) if half else ()

    return offered


def _fewer_tokens_to_come(message: Message, log: Log) -> Iterable[Cure]:
    care = stated_number(log, message.line, "schedule_conservativeness")
    more = "" if care is None else f" {care + Decimal('0.3')}"
    yield Cure(
        change="let in fewer tokens that are still to come", helps=MAYBE, where=f"--schedule-conservativeness{more}",
    )  # fmt: skip


def _told(because: str, *offers: Offer, cause: Cause = Cause.ENGINE_UNDERPROVISION) -> Judge:
    """The judgement whose sentence is the same whatever a message's figures; groups of it may be named."""

    def judge(message: Message, log: Log) -> Judgement:
        cures = tuple(cure for offer in offers for cure in offer(message, log))
        return Judgement(causes=(cause,), because=because.format(**message.words), cures=cures[:4])

    return judge


_FULL_OF_WEIGHTS = "weights take all of the server's share of the card: nothing is left for the KV cache"
_FEWER_REQUESTS = Cure(change="fewer requests at once", helps=MAYBE, where="--max-running-requests N")
_EIGHT_BITS = Cure(change="a cache in eight bits", helps=MAYBE, where="--kv-cache-dtype fp8_e4m3")
_too_little = _told(_FULL_OF_WEIGHTS, _shares_for_cache, _spread, _always(NO_SMALLER_SHARE))
_beyond_share = _told(
    f"{_FULL_OF_WEIGHTS}; the server says that any share above {{least}} leaves something", _larger, _spread, _always(NO_SMALLER_SHARE),
)  # fmt: skip
"""sglang 0.5.23, srt/mem_cache/kv_cache_configurator.py:3050: the least share that leaves anything."""
_without_states = _told(
    "what the weights leave of the server's share has no room for the states of one request (Mamba, linear attention)",
    _larger, _always(Cure(change="states in bf16", helps=MAYBE, where="--mamba-ssm-dtype bfloat16")), _spread,
)  # fmt: skip
"""sglang 0.5.23, srt/mem_cache/kv_cache_configurator.py:3150."""
_refused_capture = _told(
    "the capture of CUDA graphs has no room beside weights and cache", _smaller, _half_of("graphs of fewer sequences", "--cuda-graph-max-bs"),
    _always(Cure(change="a larger share for weights and cache", helps=NO, why="graphs stand outside that share")),
    cause=Cause.ENGINE_OVERCOMMIT,
)  # fmt: skip
_spent_slots = _told(
    "slots for requests ran out, which are a count and no bytes",
    _always(Cure(change="more requests at once", helps=MAYBE, where="--max-running-requests N")),
)
_full_pool = _told(
    "the pool of cached tokens is full for the requests that were let in", _always(_FEWER_REQUESTS), _fewer_tokens_to_come,
    _half_of("shorter pieces of a prompt", "--chunked-prefill-size"),
)  # fmt: skip
_short_of_one = _told(
    "the pool of cached tokens does not hold the one request that is left: its prompt and what it has written are longer",
    _always(Cure(change="shorter requests", helps=MAYBE, where="--context-length N (or fewer max_new_tokens)")),
    _larger, _always(_EIGHT_BITS), _spread,
)  # fmt: skip
"""sglang 0.5.23, srt/managers/schedule_batch.py, retract_decode: all others have given their tokens back."""


def _weights_left_none(message: Message, log: Log) -> Judgement:
    held = _holders_before_weights(log)
    return _held_before(*held) if held else _too_little(message, log)


def _beyond_window(message: Message, log: Log) -> Judgement:
    """Of sglang 0.5.23, srt/model_executor/pool_configurator.py:1025."""
    taken, left = message.facts["taken"], message.facts["left"]
    return Judgement(
        causes=(Cause.ENGINE_UNDERPROVISION,), missing=(taken - left).positive, cures=(_FEWER_REQUESTS, *_larger(message, log)),
        because=f"the cache of sliding windows, as large as the requests that are let in, takes {size_words(taken)} of the {size_words(left)} "
        "that weights leave: nothing is left for the cache of the other layers",
    )  # fmt: skip


def _unlike_cards(message: Message, _: Log) -> Judgement:
    least, here = message.facts.get("least_free"), message.facts.get("free")
    told = f"the fullest card of the group has {size_words(least)} free, this one {size_words(here)}" if least and here else (
        "one card of the group has much less free than another"
    )  # fmt: skip
    return Judgement(
        causes=(Cause.OTHER_PROCESS,),
        because=f"{told}, before anything is loaded: somebody else holds the fullest card, unless the cards are of several sizes",
        missing=(here.times(9, 10) - least).positive if least and here else None,
        cures=(
            Cure(change="free what others hold of the cards", helps=MAYBE, where="nvidia-smi"),
            Cure(change="other cards", helps=MAYBE, where="CUDA_VISIBLE_DEVICES=N,M"),
            Cure(change="a smaller share of the card", helps=NO, why="the check is of what is free, whatever the share"),
        ),
    )  # fmt: skip


OWN_FORMS = (
    Form("server start", re.compile(rf"(?:Value|Runtime)Error:Thememorycapacityisunbalanced\.SomeGPUsmaybeoccupiedbyotherprocesses\.(?:(?:pre_model_load_memory|min_per_gpu_memory)=(?P<least_free>{NUMBER})\d{{0,20}},local_gpu_memory=(?P<free>{NUMBER}))?"), _unlike_cards, {"least_free": "GB", "free": "GB"}),
    Form(
        "server start",
        re.compile(r"Notenoughmemory\.Pleasetrytoincrease(?:--)?mem-fraction-static"),
        _weights_left_none,
    ),
    Form("server start", re.compile(r"LoadedweightsleavenoGPUmemoryfortheKVcache\S{0,60}?Raise--mem-fraction-staticabove(?P<least>0\.\d{1,6})"), _beyond_share),
    Form("server start", re.compile(rf"SWApoolcap\(\d{{1,12}}tokens,(?P<taken>{NUMBER})GiB\)leavesnoroomforthefullKVpoolwithintheavailable(?P<left>{NUMBER})GiB"), _beyond_window, {"taken": "GiB", "left": "GiB"}),
    Form("server start", re.compile(r"statecacheistoosmalltoserveanyrequests"), _without_states),
    Form("server start", re.compile(r"profiledvalue\S{0,20}?-\d{1,12}"), _weights_left_none),
    Form("graphs", re.compile(r"Capture(?:cuda|CUDA)graphfailed"), _refused_capture),
    Form("slots", re.compile(r"alloc_req_slotsrunsoutofmemory"), _spent_slots),
    Form("pool", re.compile(r"Nospaceleftforonlyonerequest"), _short_of_one),
    Form("pool", re.compile(r"(?:Prefill|Decode)outofmemory\.Trytolower"), _full_pool),
)  # fmt: skip
_LEFT = {
    "left_before_weights": re.compile(rf"Loadweightbegin\.availmem=(?P<size>{NUMBER})GB"),
    "left_after_weights": re.compile(rf"Loadweightend\.\S{{0,200}}?availmem=(?P<size>{NUMBER})GB"),
    "weights_loaded": re.compile(rf"Loadweightend\.\S{{0,200}}?memusage=(?P<size>{NUMBER})GB"),
    "left_after_pool": re.compile(rf"Memorypoolend\.availmem=(?P<size>{NUMBER})GB"),
    "left_after_graphs": re.compile(
        rf"Capture(?:cuda|CUDA)graphend\.\S{{0,120}}?availmem=(?P<size>{NUMBER})GB"
    ),
}
_POOL = re.compile(
    rf"KVCacheisallocated\.\S{{0,60}}?Ksize:(?P<keys>{NUMBER})GB,Vsize:(?P<values>{NUMBER})GB", re.IGNORECASE
)


def pool_facts(log: Log) -> dict[str, Interval]:
    """What its lines at the start say: weights, the pool of cached tokens, what was left beside them."""
    found = {name: pattern.search(log.squeezed) for name, pattern in _LEFT.items()}
    sizes = {f"{name}_bytes": printed_bytes(said["size"], "GB") for name, said in found.items() if said}
    if pool := _POOL.search(log.squeezed):
        keys, values = printed_bytes(pool["keys"], "GB"), printed_bytes(pool["values"], "GB")
        sizes["kv_allocated_bytes"] = keys + values if keys and values else None
    return {name: size for name, size in sizes.items() if size is not None}
