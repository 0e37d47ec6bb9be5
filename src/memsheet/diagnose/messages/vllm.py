"""vLLM's start-up checks, its sampler's warm-up and its sleep: what its own lines say.

The sentences are those of vllm/v1/worker/utils.py (request_memory), vllm/v1/core/kv_cache_utils.py
(check_enough_kv_cache_memory), vllm/v1/worker/gpu_worker.py and vllm/device_allocator/cumem.py. Its GiB are
2^30.
"""

from __future__ import annotations

import re
from decimal import Decimal

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import Interval, at_least, at_least_words, printed_bytes, size_words
from memsheet.diagnose.message import MAYBE, NO, NUMBER, YES, Cause, Cure, Form, Judgement, Message, Term
from memsheet.diagnose.messages.colocated import place_of_share, shares_a_card
from memsheet.diagnose.messages.stated import (
    MOST_SHARE,
    card_of,
    doubled,
    halved,
    larger_share,
    smaller_share,
    stated_number,
    stated_share,
)
from memsheet.diagnose.named_cards import LARGEST_CARD
from memsheet.diagnose.named_models import least_parameters, model_axes
from memsheet.frozen import replace
from memsheet.units import GIB

SIGNS = (
    b"on startup is less than desired", b"No available memory for the cache blocks", b"KV cache is needed", b"maximum number of tokens that can be stored",
    b"warming up sampler", b"Model loading took", b"Loading model weights took", b"Available KV cache memory", b"GPU KV cache size", b"Sleep mode freed", b"GPU blocks: 0", b"wake_up", b"Error in memory profiling",
)  # fmt: skip
FREE_THE_CARD = "free what others hold of the card"
UTILIZATION = "--gpu-memory-utilization"
OVERHEAD = 3 * GIB
"""The most of a context and communicators (see figures.OUTSIDE_MOST)."""
_SEQUENCES = re.compile(r"max_num_seqs[=:'\"]{1,3}(\d{1,6})")


_WHOLE_BITS = re.compile(r"dtype=(?:torch\.)?(?:bfloat16|float16)\b")
_FEW_BITS = re.compile(
    r"quantization=(?!None)|\b(?:awq|gptq|fp8|nvfp4|mxfp4|bitsandbytes|int[48]|w[48]a\d{1,2})\b",
    re.IGNORECASE,
)


def _weights_of_start(message: Message, log: Log) -> int | None:
    """Bytes a card of the weights that a server is about to load: of the smallest model that its log names,
    in 16 bits where the log says these and nothing of fewer; else None.
    """
    parameters = least_parameters(log.text)
    if parameters is None or not _WHOLE_BITS.search(log.text) or _FEW_BITS.search(log.text):
        return None
    cut = [stated_number(log, message.line, f"{kind}_parallel_size") or 1 for kind in ("tensor", "pipeline")]
    return int(2 * parameters // (cut[0] * cut[1]))


def _refused_start(message: Message, log: Log) -> Judgement:
    free, card, desired = (message.facts[name] for name in ("free", "capacity", "desired"))
    share = message.words["share"]
    used = (card - free).positive
    lower = free.low * 100 // card.high
    fits = Cure(
        change=f"a share that is free: {UTILIZATION} 0.{lower:02d}", helps=YES if free.low * 2 > desired.high else MAYBE, where=f"{UTILIZATION} 0.{lower:02d}",
        why=f"passes this check: 0.{lower:02d} × {size_words(card)} ≤ {size_words(free)}; weights and cache get no more than these together",
    )  # fmt: skip
    weights = _weights_of_start(message, log)
    if weights is not None and weights > free.high:
        weighed = size_words(Interval(weights, weights))
        fits = replace(
            fits, helps=NO, why=f"the weights alone are {weighed} on a card, and {size_words(free)} are free"
        )
    lines = (
        f"{share} × {size_words(card)} = {size_words(desired)} wanted, {size_words(free)} free",
        f"{size_words(card)} - {size_words(free)} free = {size_words(used)} in use before the start",
    )
    missing = (desired - free).positive
    others = Cure(
        change=FREE_THE_CARD, helps=YES if at_least(card - Interval(OVERHEAD, OVERHEAD), desired) else MAYBE, saves_bytes=used.high, where="nvidia-smi",
        why=f"{size_words(used)} are in use before the start",
    )  # fmt: skip
    if shares_a_card(log.text):
        held = (
            f"{size_words(used)} of the card were held before the server started, as a rule by the trainer "
            "on the same card"
        )
        option = place_of_share(log.text)
        return Judgement(
            causes=(Cause.ENGINE_OVERCOMMIT,), because=held, arithmetic=lines, missing=missing,
            cures=(
                replace(fits, change=f"a share that is free: {option} 0.{lower:02d}", where=f"{option}=0.{lower:02d}"),
                Cure(change="the trainer's weights and states off the card while the server starts", helps=MAYBE, saves_bytes=used.high),
                replace(others, helps=MAYBE, why="nvidia-smi tells whether somebody else is there, too"),
            ),
        )  # fmt: skip
    if used.low * 10 > card.high or used.low > OVERHEAD:
        return Judgement(
            causes=(Cause.OTHER_PROCESS,),
            because=f"somebody held {size_words(used)} of the card before the server started",
            arithmetic=lines,
            missing=missing,
            cures=(fits, others) if fits.helps == YES != others.helps else (others, fits),
        )
    return Judgement(
        causes=(Cause.ENGINE_OVERCOMMIT,), arithmetic=lines, missing=missing, cures=(fits,),
        because=f"a share of {share} leaves less than what a driver's context and the like take before the server starts",
    )  # fmt: skip


def _stated_share(message: Message, log: Log) -> Decimal | None:
    return stated_share(log, message.line, "gpu_memory_utilization")


_LACKING = re.compile(rf"AvailableKVcachememory:-(?P<size>{NUMBER})GiB")
"""What is beyond the server's share before it has a cache (vllm/v1/worker/gpu_worker.py)."""


def _share_of_more(message: Message, log: Log, lacking: Interval | None) -> tuple[Cure, ...]:
    """A larger share that adds what is lacking; of a card that a text names, no help where less is left."""
    stated, card = _stated_share(message, log), card_of(log)
    if lacking is None or stated is None:
        why = f"{size_words(lacking)} more are needed" if lacking else ""
        return tuple(replace(cure, why=why or cure.why) for cure in larger_share(UTILIZATION, stated))
    left = max(Decimal(0), MOST_SHARE - stated)
    most = card.most if card else LARGEST_CARD
    told = f"{size_words(lacking)} more are needed, and it is {stated} already"
    if left * most < lacking.low:
        room = int(left * most)
        beyond = (
            f": {MOST_SHARE} of the {card.name} is {size_words(Interval(room, room))} more"
            if card and room
            else ""
        )
        return (
            Cure(change="a larger share of the card", helps=NO, where=UTILIZATION, why=f"{told}{beyond}"),
        )
    of_cards = at_least_words(Interval(*(int(lacking.low / left),) * 2))
    why = "" if card else f"; {left}, the most that is left, is that of a card of {of_cards} or more"
    least = stated + Decimal(lacking.low * 100 // most + 1) / 100
    return tuple(replace(cure, why=f"{told}{why}") for cure in larger_share(UTILIZATION, stated, least))


def _no_blocks(message: Message, log: Log) -> Judgement:
    lacking = _LACKING.search(log.squeezed)
    passed = halved("--max-num-batched-tokens", stated_number(log, message.line, "max_num_batched_tokens"))
    parallel = stated_number(log, message.line, "tensor_parallel_size", "tp")
    cures = (
        *_share_of_more(message, log, printed_bytes(lacking["size"], "GiB") if lacking else None),
        Cure(change="fewer tokens in one pass", helps=MAYBE, where=passed or "", why="the trial run before the cache is sized needs less"),
        Cure(change="the weights over more GPUs, or in fewer bits", helps=MAYBE, where=doubled("--tensor-parallel-size", parallel)),
        Cure(change="fewer requests at once, or a shorter context", helps=MAYBE, where="--max-num-seqs N, --max-model-len N"),
    )  # fmt: skip
    return Judgement(
        causes=(Cause.ENGINE_UNDERPROVISION,),
        cures=cures,
        because="weights and the server's trial run take all of its share of the card: nothing is left for "
        "the KV cache",
    )


def _one_request(message: Message, log: Log) -> Judgement:
    needed, held = message.facts["needed"], message.facts["available"]
    length = int(message.words["length"].replace(",", ""))
    estimate = message.words.get("estimate")
    estimate_tokens = (
        int(estimate.replace(",", "")) if estimate else max(0, held.low * length // max(1, needed.high))
    )
    missing = (needed - held).positive
    shorter = Cure(
        change=f"a context of {estimate_tokens:,} tokens at the most", helps=YES if estimate_tokens > 0 and "rank" not in message.words else MAYBE,
        saves_bytes=missing.high, where=f"--max-model-len {estimate_tokens}", why=f"{size_words(needed)} × {estimate_tokens:,} / {length:,} = {size_words(held)}",
    )  # fmt: skip
    half = Interval(needed.low // 2, -(-needed.high // 2))
    eight = (
        "fp8" in log.text
        and "kv_cache_dtype" in log.text
        and re.search(r"kv_cache_dtype[=:'\" ]{1,4}fp8", log.text)
    )
    enough = at_least(held, half)
    in_eight_bits = Cure(
        change="a cache in eight bits", helps=NO if enough is False else MAYBE, saves_bytes=needed.high // 2, where="--kv-cache-dtype fp8",
        why=f"half of {size_words(needed)} is {size_words(half)}, {'within' if enough else 'more than'} {size_words(held)}",
    )  # fmt: skip
    spread = Cure(
        change="the weights over more GPUs, or in fewer bits", helps=MAYBE, why="leaves more of each card for the cache",
        where=doubled("--tensor-parallel-size", stated_number(log, message.line, "tensor_parallel_size", "tp")),
    )  # fmt: skip
    cures = (shorter, *(() if eight else (in_eight_bits,)), *_share_of_more(message, log, missing), spread)
    per_token = needed.middle // max(1, length)
    return Judgement(
        causes=(Cause.ENGINE_UNDERPROVISION,), missing=missing, cures=cures,
        because=f"one request of {length:,} tokens needs {size_words(needed)} of KV cache, and {size_words(held)} are left for it",
        arithmetic=(
            f"{size_words(needed)} / {length:,} tokens = {per_token:,} bytes a token; {size_words(held)} hold {estimate_tokens:,} tokens{', as the server says' if estimate else ''}",
            *_stage_shares(log, needed, held),
        ),
        term=Term(component="kv_cache", path="model", shape=f"[{length}] tokens", exact=False, words="the KV cache of one request"),
    )  # fmt: skip


def _stage_shares(log: Log, needed: Interval, held: Interval) -> tuple[str, ...]:
    """What each stage of a pipeline holds of it, where the layers of each are told."""
    found = re.search(r"layers_per_stage\D{1,6}([\d,]{3,80})", log.squeezed) or re.search(
        r"(?:VLLM_PP_LAYER_PARTITION)[=:\"']{1,3}([\d,]{3,80})", log.squeezed
    )
    parts = [int(each) for each in found[1].split(",") if each] if found else []
    whole = sum(parts)
    if len(parts) < 2 or not whole:
        return ()
    each_one = (
        f"rank {rank} with {layers} of {whole} layers {size_words(needed.times(layers, whole))}"
        for rank, layers in enumerate(parts)
    )
    return (
        f"that is of all {whole} layers; of one request {', '.join(each_one)}; {size_words(held)} available",
    )


def _old_length(message: Message, log: Log) -> Judgement:
    stored = int(message.words["stored"])
    return Judgement(
        causes=(Cause.ENGINE_UNDERPROVISION,),
        term=Term(component="kv_cache", path="model", shape=f"[{message.words['length']}] tokens", exact=False, words="the KV cache of one request"),
        because=f"one request of {int(message.words['length']):,} tokens is longer than the {stored:,} tokens that the cache holds",
        cures=(
            Cure(change=f"a context of {stored:,} tokens at the most", helps=YES if stored else NO, where=f"--max-model-len {stored}"),
            *larger_share(UTILIZATION, _stated_share(message, log)),
        ),
    )  # fmt: skip


def _sampler_trial(message: Message, log: Log) -> Judgement:
    count = int(message.words["count"])
    rows, _ = model_axes(log.text)
    vocabulary = str(rows[0]) if len(rows) == 1 else "vocabulary"
    words = (
        f"fp32 logits of {count:,} requests × {rows[0]:,} words × 4 bytes"
        if len(rows) == 1
        else "the sampler's logits"
    )
    return Judgement(
        causes=(Cause.ENGINE_OVERCOMMIT,),
        because=f"the sampler's trial run of {count:,} requests has no room beside the cache: the server took too much for it",
        cures=(
            Cure(change="fewer requests at once", helps=MAYBE, where=f"--max-num-seqs {max(1, count // 2)}", why="the sampler is requests × vocabulary wide"),
            *smaller_share(UTILIZATION, _stated_share(message, log)),
            Cure(change="a larger share of the card", helps=NO, why="the cache grows by all that is added, and the sampler stays without room"),
        ),
        term=Term(component="temporaries", path="sampler", shape=f"[{count}, {vocabulary}] fp32", exact=False, words=words),
    )  # fmt: skip


def _disturbed_profile(message: Message, _: Log) -> Judgement:
    before, now = message.facts["free_before"], message.facts["free"]
    return Judgement(
        causes=(Cause.OTHER_PROCESS,),
        because=f"{size_words(before)} were free as the server's trial run began and {size_words(now)} behind it: somebody else on "
        "the card gave memory back meanwhile, and the server cannot tell what is its own",
        cures=(
            Cure(change="start again once nobody else takes or gives back memory of the card", helps=MAYBE, where="nvidia-smi"),
            Cure(change="servers of one card started one after the other", helps=MAYBE),
            Cure(change="another share of the card", helps=NO, why="the check is of what is free before and behind, whatever the share"),
        ),
    )  # fmt: skip


_GB = (
    rf"(?P<needed>{NUMBER})GiBKVcacheisneeded,whichislargerthantheavailableKVcachememory"
    rf"\((?P<available>{NUMBER})GiB\)"
)
OWN_FORMS = (
    Form("server start", re.compile(rf"(?:Freememoryondevice(?:cuda:\d{{1,3}})?)\(?(?P<free>{NUMBER})/(?P<capacity>{NUMBER})GiB\)onstartupislessthandesiredGPUmemoryutilization\((?P<share>[\d.]{{1,8}}),(?P<desired>{NUMBER})GiB\)"), _refused_start, {"free": "GiB", "capacity": "GiB", "desired": "GiB"}),
    Form("cache of one request", re.compile(rf"maxseqlen\((?P<length>[\d,]{{1,12}})\),?\(?{_GB}(?:\S{{0,80}}?estimatedmaximummodellengthis(?P<estimate>[\d,]{{1,12}}?)\.)?"), _one_request, {"needed": "GiB", "available": "GiB"}),
    Form("no cache", re.compile(r"Noavailablememoryforthecacheblocks|#(?:GPU|CUDA|cuda)blocks:0\b"), _no_blocks),
    Form("cache of one request", re.compile(r"maxseqlen\((?P<length>\d{1,9})\)islargerthanthemaximumnumberoftokensthatcanbestoredinKVcache\((?P<stored>\d{1,9})\)"), _old_length),
    Form("profile", re.compile(rf"Errorinmemoryprofiling\.Initialfreememory(?P<free_before>{NUMBER})(?P<free_before_unit>GiB)?,currentfreememory(?P<free>{NUMBER})(?P<free_unit>GiB)?"), _disturbed_profile, {"free_before": "bytes", "free": "bytes"}),
    Form("sampler", re.compile(r"warmingupsamplerwith(?P<count>\d{1,7})dummyrequests"), _sampler_trial),
)  # fmt: skip
_FACTS = {
    "weights_loaded": re.compile(rf"(?:Modelloadingtook|Loadingmodelweightstook)(?P<size>{NUMBER})G(?:iB|B)"),
    "kv_available": re.compile(rf"AvailableKVcachememory:(?P<size>{NUMBER})GiB"),
    "sleep_freed": re.compile(rf"Sleepmodefreed(?P<size>{NUMBER})GiB"),
    "still_in_use": re.compile(rf"GiBmemory,(?P<size>{NUMBER})GiBmemoryisstillinuse"),
    "graphs_took": re.compile(rf"Graphcapturingfinishedin\d{{1,6}}secs,took(?P<size>{NUMBER})GiB"),
}


def server_facts(log: Log) -> dict[str, Interval]:
    """What its lines say of memory besides."""
    found = {name: pattern.search(log.squeezed) for name, pattern in _FACTS.items()}
    sizes = {f"{name}_bytes": printed_bytes(said["size"], "GiB") for name, said in found.items() if said}
    return {name: size for name, size in sizes.items() if size is not None}


def sampled_sequences(log: Log) -> int | None:
    """How many requests run at once, where the log says it."""
    found = _SEQUENCES.search(log.squeezed)
    return int(found[1]) if found else None
