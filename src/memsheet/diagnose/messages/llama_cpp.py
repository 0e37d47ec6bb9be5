"""llama.cpp's and Ollama's messages: which buffer was refused."""

from __future__ import annotations

import re

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.figures import OUTSIDE_MOST
from memsheet.diagnose.interval import Interval, at_least, more_than, printed_bytes, size_words, sum_intervals
from memsheet.diagnose.message import MAYBE, NO, NUMBER, Cause, Cure, Form, Judgement, Message, Term
from memsheet.diagnose.messages import ollama
from memsheet.diagnose.messages.holders import without_holders
from memsheet.diagnose.messages.host import MORE_HOST
from memsheet.diagnose.messages.nvidia_smi import (
    card_table,
    listed_holders,
    process_called,
    unsized_processes,
)
from memsheet.diagnose.messages.stated import card_of, halved, stated_number
from memsheet.diagnose.named_cards import LARGEST_CARD, NamedCard, card_in_text
from memsheet.diagnose.named_models import names_experts
from memsheet.frozen import replace

SIGNS = (
    b"cudaMalloc failed", b"failed to allocate", b"unable to allocate", b"retrying without pipeline", b"KV buffer size", b"MiB free",
)  # fmt: skip
FEWER_LAYERS = Cure(change="fewer layers on the GPU", helps=MAYBE, where="-ngl N")
EXPERTS_ON_HOST = Cure(
    change="routed experts of some layers on the host", helps=MAYBE, where="--n-cpu-moe N (or -ot exps=CPU)",
    why="a token reads few of them, and attention stays on the GPU: slower by less than whole layers are",
)  # fmt: skip
SHORTER = Cure(change="a shorter context", helps=MAYBE, where="-c N")
OF_ANY_LENGTH = Cure(change="a shorter context", helps=NO, why="weights are as large for any context")
LOWER_CACHE = Cure(change="a cache in eight bits", helps=MAYBE, where="-fa on -ctk q8_0 -ctv q8_0")
FLASH = Cure(change="attention without the matrix of scores", helps=MAYBE, where="-fa on")
ONE_COPY = Cure(
    change="one copy of the compute buffer in place of a pipeline's four",
    helps=MAYBE,
    where="-DGGML_SCHED_MAX_COPIES=1",
)
_FREE = re.compile(rf"(?:-|MiB,)(?P<free>{NUMBER})MiBfree")
_SUCCESS = re.compile(r"retryingwithoutpipelineparallelism")
_FAILS = re.compile(
    r"failedtoallocatecompute(?:pp)?buffers|failedtocreatecontext|failedtoinitializethecontext|"
    r"errorloadingmodel|failedtoloadmodel"
)
_CACHE_FAILS = re.compile(
    r"failedtoallocatebufferforkvcache|failedtoinitializethecontext(?!:failedtoallocatecompute)",
    re.IGNORECASE,
)
_LOAD_FAILS = re.compile(
    r"alloc_tensor_range|errorloadingmodel:(?:unable|failed)toallocate|unabletoallocate\S{0,40}?modelbuffer"
)
_GRAPH_FAILS = re.compile(
    r"gallocr|graph_reserve|failedtoallocatecompute|failedtocomputegraph|compute(?:pp|tg)?buffers?\b"
)
"""What the program says where tensors of a file have no room (src/llama-model.cpp, load_tensors;
ggml/src/ggml-alloc.c, alloc_tensor_range), and where its graph has none (src/llama-context.cpp,
graph_reserve): its own words alone, for "compute" stands in many a sentence besides.
"""
_IN_BYTES = re.compile(r"bufferofsize(\d{1,18})")
_NEXT_TRY = "cudaMallocfailed"
_COPIES = re.compile(r"n_copies=(\d{1,3})")

_WORDS = {
    "weights": ("parameters", "model", "the model's weights"),
    "compute": ("temporaries", "compute graph", "the compute graph's buffer"),
    "cache": ("kv_cache", "model", "the KV cache"),
}
_CURES = {
    "weights": (FEWER_LAYERS, OF_ANY_LENGTH),
    "compute": (FLASH, SHORTER),
    "cache": (SHORTER, LOWER_CACHE, FEWER_LAYERS),
}


def _buffer_kind(message: Message, log: Log) -> str:
    """Which buffer it was, by what is said right behind the failure, else before it."""
    if "buffer for kv cache" in log.lines[message.line].lower():
        return "cache"
    place = log.place_of(message.line)
    after = log.squeezed[place : place + 2500]
    own = after[: after.find(_NEXT_TRY, after.find(_NEXT_TRY) + 1)] if after.count(_NEXT_TRY) > 1 else after
    if _CACHE_FAILS.search(own) and not _GRAPH_FAILS.search(own):
        return "cache"
    line_before = "".join(log.lines[max(0, message.line - 1) : message.line]).replace(" ", "")
    if told := _first_told(own) or _first_told(line_before):
        return told
    return "cache" if "kvcache" in own.lower() or "kv_cache" in own.lower() or "K-shift" in own else ""


def _first_told(text: str) -> str:
    """Whether a failed load or a failed graph is told of first; empty where neither is."""
    kinds = (("weights", _LOAD_FAILS), ("compute", _GRAPH_FAILS))
    found = [(said.start(), kind) for kind, pattern in kinds if (said := pattern.search(text))]
    return min(found)[1] if found else ""


def _cures_of_buffer(kind: str, message: Message, log: Log) -> tuple[Cure, ...]:
    cures = (
        *_CURES.get(kind, (FEWER_LAYERS, SHORTER)),
        Cure(change="expandable segments", helps=NO, why="this program has no such allocator"),
    )
    if kind == "compute" and (
        fewer := halved("-ub", stated_number(log, message.line, "n_ubatch", "ubatch_size", "ub"))
    ):
        cures = (FLASH, Cure(change="fewer tokens at once", helps=MAYBE, where=fewer), *cures[1:])
    copies = _COPIES.search(log.squeezed)
    if copies and int(copies[1]) > 1 and kind == "compute":
        cures = (ONE_COPY, *cures)
    if kind in ("cache", "compute"):
        cures = (*ollama.fewer_at_once(log), *cures)
    return _in_own_words(_with_experts_apart(cures, log), log)


_PYTHON = re.compile(r"\bllama_cpp\b|\bllama-cpp-python\b|\bLlama\(")
_ARGUMENTS = {"-ngl": "n_gpu_layers=", "-c": "n_ctx=", "-ub": "n_ubatch=", "-fa": "flash_attn=True"}
_EIGHT_BITS = "flash_attn=True, type_k=8, type_v=8"
"""What llama-cpp-python calls the program's options (llama_cpp/llama.py, Llama.__init__; 8 is q8_0 of
ggml/include/ggml.h, ggml_type).
"""


def _in_own_words(cures: tuple[Cure, ...], log: Log) -> tuple[Cure, ...]:
    """Changes as the program that runs llama.cpp is told of them: Ollama, or a script in Python."""
    if ollama.speaks(log) or not _PYTHON.search(log.text):
        return ollama.in_own_words(cures, log)
    return tuple(replace(cure, where=_in_python(cure.where)) for cure in cures)


def _in_python(where: str) -> str:
    option, _, value = where.partition(" ")
    if where == LOWER_CACHE.where:
        return _EIGHT_BITS
    argument = _ARGUMENTS.get(option, "" if option[:2] == "--" else where)
    return f"{argument}{value}" if argument.endswith("=") else argument


def _with_experts_apart(cures: tuple[Cure, ...], log: Log) -> tuple[Cure, ...]:
    """The same, where the model has routed experts, with these on the host in front of whole layers there;
    Ollama has no such setting.
    """
    if FEWER_LAYERS not in cures or ollama.speaks(log) or not names_experts(log.text):
        return cures
    place = cures.index(FEWER_LAYERS)
    return (*cures[:place], EXPERTS_ON_HOST, *cures[place:])


_DEVICE = re.compile(r"(?:using device (?:CUDA|ROCm)|\bDevice )(\d{1,2})(?: \(|: )([^),\n]{3,60})")
"""What the program calls its devices as it starts (ggml/src/ggml-cuda/ggml-cuda.cu, src/llama.cpp)."""


def _card_of(message: Message, log: Log) -> NamedCard | None:
    """The card of a message's device, as the program names it, else as the text does."""
    names = dict(_DEVICE.findall(log.text))
    return card_in_text(names.get(message.words.get("device", ""), "")) if names else card_of(log)


def _held_at_start(message: Message, free: Interval | None, log: Log) -> str:
    """In words what others held of the card that a text names before the program had loaded anything, where
    the request fits that card; of one that nobody knows, what processes are listed with that hold more than
    was free, and so are not it. Empty where it does not fit, or nobody holds more than a context.
    """
    card, asked = _card_of(message, log), message.facts.get("asked")
    if asked is None or free is None:
        return ""
    if card is None:
        listed = sum_intervals(each.size for each in listed_holders(log) if each.size.low > free.high)
        return size_words(listed) if (listed + free).low >= asked.high else ""
    if asked.high > card.sizes[0]:
        return ""
    whole = Interval(card.sizes[0], card.most)
    held = (whole - free).positive
    return f"{size_words(held)} of the {card.name}" if held.low > OUTSIDE_MOST else ""


def _refused_beside_others(judged: Judgement, held: str, log: Log) -> Judgement:
    """The same request where others hold what it lacks."""
    largest = sorted(listed_holders(log), key=lambda each: -each.size.middle)[:2]
    who = ", ".join(each.words for each in largest)
    cures = without_holders(who) or (
        Cure(change="find who else is on the card", helps=MAYBE, where="nvidia-smi"),
    )
    return replace(
        judged, causes=(Cause.OTHER_PROCESS,), cures=(*cures, *judged.cures)[:4],
        because=f"{judged.because}: others held {held} by then{f' ({who})' if who else ''}",
    )  # fmt: skip


def _refused_llama_buffer(message: Message, log: Log) -> Judgement:
    asked, kind = message.facts.get("asked"), _buffer_kind(message, log)
    component, path, words = _WORDS.get(kind, ("temporaries", "buffer", "a buffer"))
    free = _free_on_card(log, message)
    term = (
        Term(
            component=component,
            path=path,
            shape=_size_in_bytes(message, log, asked),
            exact=False,
            words=words,
        )
        if kind
        else None
    )
    cures = _cures_of_buffer(kind, message, log)
    told = f"{size_words(asked)} were asked for, {words}" if asked else f"{words} was refused"
    if asked and free and more_than(asked, free):
        lacks = Judgement(
            causes=(Cause.REAL_NEED,), term=term, cures=cures[:4], missing=(asked - free).positive,
            because=f"{told}, and {size_words(free)} of the card were free before the model was loaded",
        )  # fmt: skip
        held = _held_at_start(message, free, log)
        return _refused_beside_others(lacks, held, log) if held else lacks
    card = _card_of(message, log)
    if asked and card is not None and asked.low > card.most:
        whole = size_words(Interval(card.most, card.most))
        return Judgement(
            causes=(Cause.REAL_NEED,), term=term, cures=cures[:4],
            because=f"{told}, in one piece, and the {card.name} has {whole} at the most: no other process is the cause",
        )  # fmt: skip
    if asked and kind == "weights" and (beside := _beside_table(asked, log)):
        return Judgement(
            causes=(Cause.OTHER_PROCESS,), term=term, cures=(*without_holders(beside[0]), *cures)[:4], because=f"{told}: {beside[1]}",
        )  # fmt: skip
    if (asked and asked.low > LARGEST_CARD) or kind in ("compute", "cache"):
        return Judgement(
            causes=(Cause.REAL_NEED,), term=term, cures=cures[:4],
            because=f"{told}, in one piece, beside what the program had loaded before; what others held of the card is not said",
        )  # fmt: skip
    return Judgement(
        causes=(Cause.REAL_NEED, Cause.OTHER_PROCESS),
        because=f"{told}; what else is on the card is not said",
        cures=cures[:4],
        term=term,
    )


def _beside_table(asked: Interval, log: Log) -> tuple[str, str] | None:
    """Who holds the only card of a table, in words, and how much, where weights have no room beside that and
    the whole card has: none of them were on it when they were refused.
    """
    table = card_table(log)
    if table is None or len(table.cards) != 1:
        return None
    used, whole = table.cards[0]
    names = [process_called(pid, table.names.get(pid, "")) for _, pid, _ in table.processes] or [
        *unsized_processes(log)
    ]
    fits = at_least(whole - Interval(0, OUTSIDE_MOST), asked) is True
    if not names or not fits or more_than(asked, whole - used) is not True or used.low <= OUTSIDE_MOST:
        return None
    free = size_words((whole - used).positive)
    return ", ".join(
        names
    ), f"{size_words(used)} of the card's {size_words(whole)} are held, which leaves {free}"


def refused_call(log: Log) -> Judgement:
    """A call to the driver that failed while it ran (ggml/src/ggml-cuda/ggml-cuda.cu, ggml_cuda_error)."""
    cures = _with_experts_apart((*ollama.fewer_at_once(log), FEWER_LAYERS, SHORTER, FLASH), log)
    placed = ollama.placed_sizes(log)
    if placed and (placed[0] - placed[1]).high < OUTSIDE_MOST:
        free, taken, cache = placed
        return Judgement(
            causes=(Cause.ENGINE_OVERCOMMIT,), cures=_in_own_words((ollama.OVERHEAD, *cures), log)[:4],
            because=f"Ollama placed {size_words(taken)} on the card, {size_words(cache)} of cache among them, where {size_words(free)} were free: that "
            f"leaves {size_words((free - taken).positive)} for what it does not reckon with, and a call for more was refused",
        )  # fmt: skip
    return Judgement(
        causes=(Cause.REAL_NEED, Cause.OTHER_PROCESS), cures=_in_own_words(cures, log)[:4],
        because="a call of the program to the driver was refused memory while it ran, and the message has no figures: the card may be "
        "too small for its buffers, or others hold it (nvidia-smi shows them)",
    )  # fmt: skip


def _size_in_bytes(message: Message, log: Log, asked: Interval | None) -> str:
    """The buffer's exact size, which the next line says; else what is printed of it."""
    place = log.place_of(message.line)
    said = _IN_BYTES.search(log.squeezed, place, place + 800)
    if said and asked and asked.low <= int(said[1]) <= asked.high:
        return f"{int(said[1]):,} bytes"
    return size_words(asked) if asked else ""


def _free_on_card(log: Log, message: Message) -> Interval | None:
    """What the program found free on the card when it started, where one card is named."""
    found = {each["free"] for each in _FREE.finditer(log.squeezed, 0, log.place_of(message.line))}
    if len(found) == 1:
        return printed_bytes(found.pop(), "MiB")
    return None if found else ollama.free_on_card(log, log.place_of(message.line))


def _host_buffer(message: Message, log: Log) -> Judgement:
    """The same of the host, whose cache is there where it is told to stay off the card."""
    asked, kind = message.facts.get("asked"), _buffer_kind(message, log)
    component, path, words = _WORDS.get(kind, ("temporaries", "buffer", "a buffer"))
    size = f" of {size_words(asked)}" if asked else ""
    shape = _size_in_bytes(message, log, asked)
    of_cache = (SHORTER, LOWER_CACHE, MORE_HOST)
    other = (SHORTER, Cure(change="more layers on the GPU", helps=MAYBE, where="-ngl N"), MORE_HOST)
    return Judgement(
        causes=(Cause.NOT_GPU_MEMORY,), because=f"{words}{size} was refused by the host's memory, not the card's",
        cures=_in_own_words(of_cache if kind == "cache" else other, log),
        term=Term(component=component, path=path, shape=shape, exact=False, words=words) if kind else None,
    )  # fmt: skip


def retry_succeeds(message: Message, log: Log) -> bool:
    """Whether a refused buffer was only the first try: the program asks for less, and goes on."""
    place = log.place_of(message.line)
    retried = _SUCCESS.search(log.squeezed, place)
    return bool(
        retried
        and not _FAILS.search(log.squeezed, retried.end())
        and "cudaMallocfailed" not in log.squeezed[retried.end() :]
    )


FORMS = (
    Form("llama", re.compile(rf"allocating(?P<asked>{NUMBER})MiBondevice(?P<device>\d{{1,3}}):cudaMallocfailed"), _refused_llama_buffer, {"asked": "MiB"}),
    Form("llama host", re.compile(r"(?:ggml_backend_cpu_buffer_type_alloc_buffer:failedtoallocatebufferofsize|failedtoallocateCPUbufferofsize)(?P<asked>\d{1,18})"), _host_buffer, {"asked": "bytes"}),
    Form("llama host", re.compile(r"failedtoallocateCPUbuffer|unabletoallocateCPU|failedtoallocatebufferofsize\d{1,18}\S{0,20}?CPU"), _host_buffer),
    Form("llama", re.compile(r"failedtoallocate(?:CUDA|ROCm|Vulkan|SYCL|Metal)\d{0,3}bufferofsize(?P<asked>\d{1,18})"), _refused_llama_buffer, {"asked": "bytes"}),
    Form("llama", re.compile(r"failedtoallocatebufferforkvcache"), _refused_llama_buffer),
    Form("llama", re.compile(r"ggml_vulkan:vk::\S{1,60}?ErrorOutOfDeviceMemory"), _refused_llama_buffer),
    Form("llama", re.compile(r"unabletoallocate(?:CUDA|ROCm|Vulkan|SYCL|Metal)\d{0,3}buffer"), _refused_llama_buffer),
)  # fmt: skip
