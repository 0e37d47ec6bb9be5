"""SGLang's messages at its start and of its pools. Its GB are 2^30 bytes."""

from __future__ import annotations

import re

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import Interval, printed_bytes
from memsheet.diagnose.message import MAYBE, NO, NUMBER, Cause, Cure, Form, Judgement, Message

SIGNS = (
    b"mem-fraction-static", b"alloc_req_slots", b"Prefill out of memory", b"Decode out of memory", b"profiled value", b"Capture cuda graph failed",
    b"Capture CUDA graph failed", b"avail mem=",
)  # fmt: skip
FRACTION = "--mem-fraction-static"


def _too_little(_: Message, __: Log) -> Judgement:
    return Judgement(
        causes=(Cause.ENGINE_UNDERPROVISION,),
        because="weights take all of the server's share of the card: nothing is left for the KV cache",
        cures=(
            Cure(change="a larger share for weights and cache", helps=MAYBE, where=f"{FRACTION} 0.9"),
            Cure(change="the weights over more GPUs, or in fewer bits", helps=MAYBE, where="--tp 2"),
            Cure(change="a smaller share", helps=NO, why="the share has to hold the weights first"),
        ),
    )


def _refused_capture(_: Message, __: Log) -> Judgement:
    return Judgement(
        causes=(Cause.ENGINE_OVERCOMMIT,),
        because="the capture of CUDA graphs has no room beside weights and cache",
        cures=(
            Cure(change="a smaller share for weights and cache", helps=MAYBE, where=f"{FRACTION} 0.8"),
            Cure(change="graphs of fewer sequences", helps=MAYBE, where="--cuda-graph-max-bs 16"),
            Cure(
                change="a larger share for weights and cache", helps=NO, why="graphs stand outside that share"
            ),
        ),
    )


def _spent_slots(_: Message, __: Log) -> Judgement:
    return Judgement(
        causes=(Cause.ENGINE_UNDERPROVISION,),
        because="slots for requests ran out, which are a count and no bytes",
        cures=(Cure(change="more requests at once", helps=MAYBE, where="--max-running-requests N"),),
    )


def _full_pool(_: Message, __: Log) -> Judgement:
    return Judgement(
        causes=(Cause.ENGINE_UNDERPROVISION,),
        because="the pool of cached tokens is full for the requests that were let in",
        cures=(
            Cure(change="fewer requests at once", helps=MAYBE, where="--max-running-requests N"),
            Cure(
                change="let in fewer tokens that are still to come",
                helps=MAYBE,
                where="--schedule-conservativeness 1.3",
            ),
            Cure(change="shorter pieces of a prompt", helps=MAYBE, where="--chunked-prefill-size 4096"),
        ),
    )


FORMS = (
    Form(
        "server start",
        re.compile(r"Notenoughmemory\.Pleasetrytoincrease(?:--)?mem-fraction-static"),
        _too_little,
    ),
    Form("server start", re.compile(r"profiledvalue\S{0,20}?-\d{1,12}"), _too_little),
    Form("graphs", re.compile(r"Capture(?:cuda|CUDA)graphfailed"), _refused_capture),
    Form("slots", re.compile(r"alloc_req_slotsrunsoutofmemory"), _spent_slots),
    Form("pool", re.compile(r"(?:Prefill|Decode)outofmemory\.Trytolower"), _full_pool),
)
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
