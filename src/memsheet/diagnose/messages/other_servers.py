"""Servers that say in their own words that memory ran out, most without figures.

The sentences are those of text-generation-inference (server/text_generation_server/models/flash_causal_lm.py,
warmup; backends/v3/src/lib.rs at 92fa7ac7, V3Error),
TensorRT-LLM (cpp/include/tensorrt_llm/common/cudaUtils.h, check; tensorrt_llm/_torch/pyexecutor/
py_executor_creator.py, _ExecutorMemoryMonitor), LM Studio, ExLlamaV2 (exllamav2/model.py,
load_autosplit_gen) and LMDeploy (src/turbomind/utils/cuda_utils.h, check;
lmdeploy/pytorch/engine/executor/base.py).
"""

from __future__ import annotations

import re

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.figures import OUTSIDE_MOST
from memsheet.diagnose.interval import Interval, at_least_words, printed_bytes, size_words
from memsheet.diagnose.message import MAYBE, NO, NUMBER, Cause, Cure, Form, Judgement, Message, Term
from memsheet.diagnose.messages.stated import card_of, halved, smaller_share, stated_number, stated_share
from memsheet.diagnose.named_cards import beyond_card
from memsheet.frozen import NamedTuple, replace
from memsheet.units import MIB

SIGNS = (
    b"prefill tokens", b"max_total_tokens=", b"CUDA runtime error in", b"Insufficient VRAM", b"could not be created", b"insufficient system resources", b"[TM][", b"No enough gpu memory",
)  # fmt: skip
FRACTIONS = (
    "kv_cache_free_gpu_memory_fraction",
    "free_gpu_memory_fraction",
    "kv_cache_free_gpu_mem_fraction",
)
PREFILL = "--max-batch-prefill-tokens"


def _refused_prefill(message: Message, _: Log) -> Judgement:
    """A trial run before there is a cache: no share of the card is given away yet, so that none can be too
    large (text_generation_server/models/flash_causal_lm.py, warmup).
    """
    count = int(message.words["count"])
    return Judgement(
        causes=(Cause.REAL_NEED,),
        because=f"the server lets in {count:,} tokens at once, and its trial run of so many has no room beside the weights and these "
        "tokens' cache, as it says (where nvidia-smi shows somebody else on the card, that is missing, too)",
        cures=(
            Cure(change="fewer tokens in one pass", helps=MAYBE, where=f"{PREFILL} {max(1, count // 2)}", why=f"the trial run is of {count:,} now"),
            Cure(change="the weights over more GPUs, or in fewer bits", helps=MAYBE, where="--num-shard N (or --quantize)"),
            Cure(change="another share of the card", helps=NO, why="the trial run comes before the cache, and asks for as much whatever the share"),
        ),
    )  # fmt: skip


_BLOCKS_OF_CACHE = re.compile(r"KV-cacheblocks:(?P<count>\d{1,9}),size:(?P<size>\d{1,5})")


def _refused_length(message: Message, log: Log) -> Judgement:
    """A request's longest length for which the cache has too few tokens (text-generation-inference,
    backends/v3/src/lib.rs, connect_backend: NotEnoughMemory).
    """
    length = int(message.words["count"])
    made = list(_BLOCKS_OF_CACHE.finditer(log.squeezed, 0, log.place_of(message.line)))
    room = int(made[-1]["count"]) * int(made[-1]["size"]) if made else 0
    fits = 0 < room < length
    told = (
        f"holds {room:,} tokens, and one request may have"
        if fits
        else "holds fewer tokens than one request may have:"
    )
    return Judgement(
        causes=(Cause.ENGINE_UNDERPROVISION,),
        because=f"the cache that fits beside the weights {told} {length:,}, as the server says: no request to the card failed",
        term=Term(component="kv_cache", path="model", shape=f"{length:,} tokens", exact=False, words="the KV cache of one request"),
        cures=(
            Cure(change="a shorter longest request", helps=MAYBE, where=f"--max-total-tokens {room if fits else 'N'} (and --max-input-tokens below it)"),
            Cure(change="a cache in eight bits", helps=MAYBE, where="--kv-cache-dtype fp8_e5m2", why="it holds twice the tokens"),
            Cure(change="the weights over more GPUs, in fewer bits, or on a larger card", helps=MAYBE, where="--num-shard N (or --quantize)"),
            Cure(change="fewer tokens in one pass", helps=MAYBE, where=f"{PREFILL} N", why="the cache gets what the trial run of one pass leaves"),
        ),
    )  # fmt: skip


_LOADED = re.compile(rf"Loadedenginesize:(?P<size>{NUMBER})MiB")
_FREE_FOR_CACHE = re.compile(
    rf"Memoryusagewhencalculatingmaxtokensinpagedkvcache:total:{NUMBER}GiB,available:(?P<size>{NUMBER})GiB"
)
_CACHE_TAKEN = re.compile(rf"Allocated(?P<size>{NUMBER})GiBformaxtokensinpagedKVcache")
"""cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp, calculateMaxNumBlocks, and runtime/tllmRuntime.cpp."""


def _last_size(pattern: re.Pattern[str], unit: str, log: Log, line: int) -> Interval | None:
    """What the last line of its kind before a message says."""
    found = list(pattern.finditer(log.squeezed, 0, log.place_of(line)))
    return printed_bytes(found[-1]["size"], unit) if found else None


def _refused_beside_cache(message: Message, log: Log) -> tuple[Cause, str] | None:
    """Cause and reason by what the runtime said of its start: the cache's share of what was free, or an
    engine that is larger than the card.
    """
    free, taken = (_last_size(each, "GiB", log, message.line) for each in (_FREE_FOR_CACHE, _CACHE_TAKEN))
    if free and taken and (free - taken).high < OUTSIDE_MOST:
        return Cause.ENGINE_OVERCOMMIT, (
            f"its KV cache took {size_words(taken)} of the {size_words(free)} that were free, which leaves "
            f"{size_words((free - taken).positive)} for what a step makes: a call for more was refused"
        )
    engine = _last_size(_LOADED, "MiB", log, message.line)
    if engine and not free and (over := beyond_card(engine, card_of(log))):
        return Cause.REAL_NEED, f"the engine is {size_words(engine)}, and {over}"
    return None


def refused_runtime(message: Message, log: Log) -> Judgement:
    """A call of a server to the driver, judged by what its log says of its cache and of its weights."""
    batch = halved("--max_batch_size", stated_number(log, message.line, "max_batch_size"))
    told = _refused_beside_cache(message, log)
    if told and told[0] is Cause.REAL_NEED:
        spread = Cure(
            change="the weights over more GPUs, or in fewer bits",
            helps=MAYBE,
            where="--tp_size N (convert_checkpoint.py)",
        )
        return Judgement(causes=told[:1], because=told[1], cures=(spread,))
    if told:
        share = stated_share(log, message.line, *FRACTIONS)
        lower = smaller_share("--kv_cache_free_gpu_memory_fraction", share, _OF_FREE)
        return Judgement(
            causes=told[:1], because=told[1],
            cures=(*lower, *((Cure(change="fewer requests at once", helps=MAYBE, where=batch),) if batch else ())),
        )  # fmt: skip
    return Judgement(
        causes=(Cause.ENGINE_OVERCOMMIT, Cause.REAL_NEED, Cause.OTHER_PROCESS),
        because="a call of the server to the driver was refused memory, and the message has no figures: its KV cache may have taken too "
        "much, its weights and buffers need more than the card has, or others hold it (nvidia-smi shows them)",
        cures=(
            *smaller_share("--kv_cache_free_gpu_memory_fraction", stated_share(log, message.line, *FRACTIONS),
                           "of what is free for the KV cache"),
            *((Cure(change="fewer requests at once", helps=MAYBE, where=batch),) if batch else ()),
        ),
    )  # fmt: skip


_OF_FREE = "of what is free for the KV cache"
_CACHE_MADE = re.compile(r"KVcache:\d")
_TOKENS_SET = re.compile(
    r"kv_cache_config[^\n]{0,80}?\bmax_tokens[\"']?\s{0,2}[:=]\s{0,2}\d|^\s{0,8}max_tokens:\s?\d",
    re.MULTILINE,
)
"""A cache whose size is set in tokens (tensorrt_llm/llmapi/llm_args.py, KvCacheConfig.max_tokens)."""
_LENGTHS = {"Sampler": "max_seq_len", "Drafter": "max_draft_len", "Guideddecoder": "max_seq_len"}


def _refused_component(message: Message, log: Log) -> Judgement:
    """TensorRT-LLM's own account of its start: what is made, with what was free before and behind each."""
    name, free, card = message.words["name"], message.facts["free"], message.facts["capacity"]
    told = f"{size_words(free)} of {size_words(card)} were free before it was made"
    if name.startswith("KVcache") and _TOKENS_SET.search(log.text):
        return Judgement(
            causes=(Cause.ENGINE_UNDERPROVISION,),
            because=f"{told}; the KV cache is to hold a number of tokens that is set, and has no room for them",
            cures=(
                Cure(change="fewer tokens in the cache, or a share of what is free", helps=MAYBE, where="kv_cache_config.max_tokens"),
                Cure(change="fewer tokens in one pass", helps=MAYBE, where="max_num_tokens"),
                Cure(change="the weights over more GPUs, or in fewer bits", helps=MAYBE, where="tensor_parallel_size"),
            ),
        )  # fmt: skip
    if name.startswith("KVcache") or _CACHE_MADE.search(log.squeezed, log.place_of(message.line)):
        return Judgement(
            causes=(Cause.ENGINE_OVERCOMMIT,),
            because=f"{told}; the share of it that the KV cache is to take leaves too little for the rest",
            cures=(
                *smaller_share(FRACTIONS[1], stated_share(log, message.line, *FRACTIONS), _OF_FREE),
                Cure(change="fewer tokens in one pass", helps=MAYBE, where="max_num_tokens"),
            ),
        )  # fmt: skip
    used = (card - free).positive
    passed = Cure(change="fewer tokens in one pass", helps=MAYBE, where="max_num_tokens")
    spread = Cure(
        change="the weights over more GPUs, or in fewer bits", helps=MAYBE, where="tensor_parallel_size"
    )
    if name in ("Model", "Draftmodelforspeculativedecoding"):
        taken = name == "Model" and used.low > OUTSIDE_MOST
        return Judgement(
            causes=(Cause.OTHER_PROCESS, Cause.REAL_NEED) if taken else (Cause.REAL_NEED,), cures=(spread, passed),
            because=f"the model's weights and buffers have no room: {told}"
            + (f"; {size_words(used)} were in use before the server had made anything" if taken else ""),
        )  # fmt: skip
    length = _LENGTHS.get(name, "max_num_tokens")
    return Judgement(
        causes=(Cause.REAL_NEED,), because=f"what the server makes beside its weights, before its cache is sized, has no room: {told}",
        cures=(Cure(change="fewer or shorter sequences at once", helps=MAYBE, where=length) if name in _LENGTHS else passed, spread,
               Cure(change="another share for the KV cache", helps=NO, why="the cache is not sized yet")),
    )  # fmt: skip


def _refused_by_guard(message: Message, _: Log) -> Judgement:
    size = message.facts.get("asked")
    told = f" {size_words(size)} that it reckons with are" if size else " it reckons that the model is"
    return Judgement(
        causes=(Cause.LIMIT_SET,),
        because=f"LM Studio's guard refused to load the model:{told} more than its setting allows on this machine; nothing was asked "
        "of the card or the host yet",
        cures=(
            Cure(change="a shorter context, or a cache in fewer bits", helps=MAYBE, where="Context Length, K and V Cache Quantization Type"),
            Cure(change="weights in fewer bits", helps=MAYBE),
            Cure(change="a looser guard, at the risk of the whole system's memory", helps=MAYBE, where="Settings > Model loading guardrails"),
        ),
    )  # fmt: skip


_BLOCKS_TAKEN = re.compile(
    r"\[BlockManager\]block_size=(?:(?P<size>\d{1,5}(?:\.\d{1,3})?)MB|(?P<bytes>\d{4,12})(?![\d.])).{0,400}?"
    r"max_block_count=(?P<count>\d{1,9})"
)
"""What TurboMind says of its cache right before it takes the first chunk of it (src/turbomind/models/llama/
BlockManager.cc, BlockManager: whole MiB, cut off, in older releases, three decimals in later ones).
"""
_POOL_TAKEN = re.compile(
    rf"Objectcachebudget:(?P<size>{NUMBER})MBfromfree(?P<free>{NUMBER})MBandratio(?P<share>{NUMBER})"
)
"""The same of its releases since 0.15, in MiB (InternLM/lmdeploy at 1263d5cd, src/turbomind/turbomind.cc,
CreateEngine).
"""
_READS_REQUESTS = re.compile(
    r"\[ProcessInferRequests\]|\[Forward\]\[|Uvicornrunningon|Requestfor\d{1,19},received|Warm-upfinishedin"
    r"|Pleaseopenhttps?://\S{1,60}?inabrowserfordetailedapiusage|\"(?:POST|GET)/\S{1,60}?HTTP/1\.\d\"\d{3}"
)
_ANSWERS = re.compile(r"\"POST/\S{1,60}?HTTP/1\.\d\"200")
"""What it and its HTTP server say once the cache stands (src/turbomind/models/llama/LlamaBatch.cc;
src/turbomind/turbomind.cc, WarmUp; lmdeploy/serve, the server's hint and uvicorn's line of a request).
"""


class _Cache(NamedTuple):
    """A cache that a server took: in words what of, where its line ends, its bytes, what was left free."""

    words: str
    end: int
    size: Interval
    left: Interval | None = None


def _cache_taken(log: Log, place: int) -> _Cache | None:
    """TurboMind's cache, as its last line before a place says it."""
    if pools := list(_POOL_TAKEN.finditer(log.squeezed, 0, place)):
        size, free = (printed_bytes(pools[-1][name], "MiB") for name in ("size", "free"))
        if size and free:
            return _Cache(
                f"{pools[-1]['share']} of what was free", pools[-1].end(), size, (free - size).positive
            )
    if not (blocks := list(_BLOCKS_TAKEN.finditer(log.squeezed, 0, place))):
        return None
    said, count = blocks[-1]["size"], int(blocks[-1]["count"])
    if said is None:
        whole = int(blocks[-1]["bytes"])
        return _Cache(f"{count:,} blocks", blocks[-1].end(), Interval(whole, whole).times(count))
    block = (
        printed_bytes(said, "MiB") if "." in said else Interval(int(said) * MIB, (int(said) + 1) * MIB - 1)
    )
    return _Cache(f"{count:,} blocks of {said} MiB", blocks[-1].end(), block.times(count)) if block else None


def _refused_turbomind(message: Message, log: Log) -> Judgement:
    share = stated_share(log, message.line, "cache_max_entry_count")
    lower = smaller_share("--cache-max-entry-count", share, _OF_FREE)
    place = log.place_of(message.line)
    cache = _cache_taken(log, place)
    reads = (
        _READS_REQUESTS.search(log.squeezed, cache.end, place)
        if cache
        else _ANSWERS.search(log.squeezed, 0, place)
    )
    serves = reads is not None
    little = cache is not None and cache.left is not None and cache.left.high < OUTSIDE_MOST
    if not (serves or little):
        return replace(refused_runtime(message, log), cures=lower)
    left = f", which left {size_words(cache.left)}" if cache and cache.left else ""
    when = "stood, and the server read requests" if serves else "was taken"
    taken = f" of {cache.words}, {at_least_words(cache.size)} at least{left}," if cache else ""
    return Judgement(
        causes=(Cause.ENGINE_OVERCOMMIT,),
        because=f"its cache{taken} {when}: what is left beside the cache is too little for what a "
        "pass of tokens makes",
        cures=(
            *lower,
            Cure(change="fewer tokens in one pass", helps=MAYBE, where="--max-prefill-token-num N"),
            Cure(change="a larger share for the cache", helps=NO, why="what it takes is what the pass lacks"),
        ),
    )  # fmt: skip


def _refused_head(_: Message, log: Log) -> Judgement:
    """A request for which TurboMind's cache is too small with nobody else in it (src/turbomind/engine/
    engine.cc at 1263d5cd, "failing head-of-line request").
    """
    cache = _cache_taken(log, len(log.squeezed))
    held = f" of {size_words(cache.size)}" if cache else ""
    return Judgement(
        causes=(Cause.ENGINE_UNDERPROVISION,),
        because=f"the cache{held} has no room for the oldest request alone, which the server gives up: no request to the card failed",
        term=Term(component="kv_cache", path="model", shape="", exact=False, words="the KV cache of one request"),
        cures=(
            Cure(change="a shorter longest request", helps=MAYBE, where="--session-len N"),
            Cure(change="a cache in fewer bits", helps=MAYBE, where="--quant-policy 8 (or 4)", why="it holds more tokens"),
            Cure(change="a larger share of what is free for the KV cache", helps=MAYBE, where="--cache-max-entry-count"),
            Cure(change="the weights over more GPUs, or in fewer bits", helps=MAYBE, where="--tp N (or a model in AWQ)"),
        ),
    )  # fmt: skip


def _refused_split(_: Message, __: Log) -> Judgement:
    return Judgement(
        causes=(Cause.REAL_NEED, Cause.OTHER_PROCESS),
        because="the last card was full before all layers and their cache were loaded; what was free, and who else is on the cards, is not "
        "said",
        cures=(
            Cure(change="a shorter context", helps=MAYBE, where="max_seq_len"),
            Cure(change="a cache in fewer bits", helps=MAYBE, where="ExLlamaV2Cache_Q4"),
            Cure(change="weights in fewer bits, or over more cards", helps=MAYBE),
        ),
    )  # fmt: skip


def _without_runtime(_: Message, __: Log) -> Judgement:
    return Judgement(
        causes=(Cause.ENGINE_UNDERPROVISION,),
        because="beside the weights too little of the card is free for one pass of a prompt, or for a block of the cache; what was free is "
        "not said",
        cures=(
            Cure(change="fewer tokens in one pass", helps=MAYBE, where="--max-prefill-token-num N"),
            Cure(change="the weights over more GPUs, or in fewer bits", helps=MAYBE, where="--tp N (or a model in AWQ)"),
            Cure(change="what others hold of the card given back", helps=MAYBE, where="nvidia-smi"),
        ),
    )  # fmt: skip


OWN_FORMS = (
    Form("component", re.compile(rf"couldnotbecreated:(?P<name>\w{{1,40}}?)(?:\(\S{{1,80}}?\))?TotalGPUmemory\(GiB\):(?P<capacity>{NUMBER})FreeGPUmemorybeforecomponentcreationattempt\(GiB\):(?P<free>\d{{1,4}}\.\d\d)"), _refused_component, {"capacity": "GiB", "free": "GiB"}),
)  # fmt: skip
"""What says more than the bytes of the request that failed before it."""
STAND_INS = (
    Form("prefill", re.compile(r"Notenoughmemorytohandle(?P<count>\d{1,9})prefilltokens"), _refused_prefill),
)  # fmt: skip
"""What speaks for a request before it whose message is cut before its figures."""
FORMS = (
    Form("guard", re.compile(rf"(?:stopped|aborted)duetoinsufficientsystemresources(?:\S{{0,80}}?requiresapproximately(?P<asked>{NUMBER})GBofmemory)?"), _refused_by_guard, {"asked": "GB"}),
    Form("length", re.compile(r"Notenoughmemorytohandle`?max_total_tokens`?=(?P<count>\d{1,9})"), _refused_length),
    Form("request", re.compile(r"cacheoutofmemory,norequestcanbeadmitted"), _refused_head),
    Form("runtime", re.compile(r"\[TM\]\[(?:ERROR|FATAL)\]\S{0,120}?outofmemory"), _refused_turbomind),
    Form("runtime", re.compile(r"CUDAruntimeerrorin\S{1,300}?:outofmemory"), refused_runtime),
    Form("runtime", re.compile(r"Noenoughgpumemoryfor(?:runtime|kvcache)"), _without_runtime),
    Form("split", re.compile(r"InsufficientVRAMformodelandcache"), _refused_split),
)  # fmt: skip
