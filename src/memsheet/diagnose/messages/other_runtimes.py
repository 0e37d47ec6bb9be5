"""Runtimes that are no PyTorch and no XLA: TensorFlow's BFC allocator, ONNX Runtime's arena, TensorRT's
allocator, CuPy's pool. Each says what was asked for, and none what was free, but for the dump of
TensorFlow's pool.

The sentences are those of tensorflow/core/framework/op_kernel.cc (allocate_tensor),
onnxruntime/core/framework/bfc_arena.cc, TensorRT's defaultAllocator and CuPy v13.6.0,
cupy/cuda/memory.pyx:63-69 (CUPY_GPU_MEMORY_LIMIT: docs/source/reference/environment.rst).
"""

from __future__ import annotations

import math
import re

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import Interval, at_least, more_than, size_words
from memsheet.diagnose.message import MAYBE, NO, NUMBER, Cause, Cure, Form, Judgement, Message, Term
from memsheet.diagnose.messages.holders import judged_by_table
from memsheet.diagnose.messages.jax import Limit, judge_pool, pool_figures
from memsheet.diagnose.messages.stated import card_of
from memsheet.diagnose.named_cards import beyond_card
from memsheet.frozen import replace

SIGNS = (
    b"No executable batch size found", b"offload_dir", b"offload_folder", b"offload the whole model", b"CPU or disk offload", b"_bfc) ran out of memory",
    b"ResourceExhaustedError", b"OOM when allocating tensor", b"BFCArena", b"requested buffer of size", b"Cuda Runtime (out of memory)", b"Error Code 2: OutOfMemory",
    b"GPU memory (", b"OutOfMemory (Requested size", b"Out of memory allocating", b"out of memory to allocate",
)  # fmt: skip
_TYPE_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "bool": 1, "int16": 2, "uint16": 2, "int32": 4,
    "uint32": 4, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""tensorflow/core/framework/types.cc: the names that messages print."""
SMALLER = Cure(change="a smaller batch", helps=MAYBE)
GROWTH = Cure(
    change="look at nvidia-smi for what the job needs", helps=NO,
    why="TensorFlow takes nearly the whole card at its start, whatever it needs",
)  # fmt: skip


def undecided_need(
    told: str,
    *cures: Cure,
    asked: Interval | None = None,
    message: Message | None = None,
    log: Log | None = None,
) -> Judgement:
    """What has no figures beside the size: decided where that is more than the card has that a text names, or
    where a table shows who holds the card.
    """
    if log is not None and (over := beyond_card(asked, card_of(log))):
        return Judgement(causes=(Cause.REAL_NEED,), because=f"{told}, and {over}", cures=cures)
    if log is not None and message is not None and (judged := judged_by_table(message, log, told)):
        return judged
    return Judgement(
        causes=(Cause.REAL_NEED, Cause.OTHER_PROCESS),
        because=f"{told}; what was free, and who else is on the card, is not said",
        cures=cures,
    )


def _refused_tensor(message: Message, log: Log) -> Judgement:
    shape, width = message.words.get("shape"), _TYPE_BYTES.get(message.words.get("type", ""))
    if shape is None:
        return undecided_need("a tensor was refused", SMALLER)
    axes = ", ".join(axis for axis in shape.split(",") if axis)
    tensor = f"a tensor [{axes}] of {message.words['type']}"
    if width is None:
        return _of_device(message, log, None, f"{tensor} was refused")
    size = math.prod(int(axis) for axis in shape.split(",") if axis) * width
    asked = Interval(size, size)
    found = _of_device(message, log, asked, f"{size_words(asked)} were asked for, {tensor}")
    term = Term(
        component="temporaries",
        path="tensor",
        shape=f"[{axes}] {message.words['type']}",
        exact=True,
        words=tensor,
    )
    return replace(found, term=term, facts={**found.facts, "asked_bytes": asked})


def _ran_out(message: Message, log: Log) -> Judgement:
    """The allocator's own line, with its pool's figures behind it, of which nothing else tells."""
    asked = message.facts["asked"]
    return _of_device(message, log, asked, f"{size_words(asked)} were asked for")


_LIMITED = re.compile(
    r"\bmemory_limit[\"']?\s{0,3}[:=]\s{0,3}\d|per_process_gpu_memory_fraction[\"']?\s{0,3}[:=]\s{0,3}[\d.]"
)
"""How TensorFlow is told of a limit on its pool (tf.config.LogicalDeviceConfiguration, GPUOptions)."""


def _of_device(message: Message, log: Log, asked: Interval | None, told: str) -> Judgement:
    if "CPU" in message.words["place"]:
        return Judgement(causes=(Cause.NOT_GPU_MEMORY,), because=f"{told}, of the host's memory")
    pool = pool_figures(log.squeezed)
    if asked is not None and {"limit", "in_use"} <= pool.keys():
        raised = Cure(
            change="raise or remove the limit of the pool",
            helps=MAYBE,
            where="memory_limit (or per_process_gpu_memory_fraction)",
        )
        limit = Limit(bool(_LIMITED.search(log.text)), raised, card_of(log))
        return judge_pool(asked, pool, told, (SMALLER,), (GROWTH,), limit)
    return undecided_need(told, SMALLER, GROWTH, asked=asked, message=message, log=log)


def _refused_arena(message: Message, _: Log) -> Judgement:
    asked = message.facts.get("asked")
    told = (
        f"{size_words(asked)} were asked for by ONNX Runtime's arena"
        if asked
        else "ONNX Runtime's arena was refused memory"
    )
    return Judgement(
        causes=(Cause.REAL_NEED, Cause.OTHER_PROCESS, Cause.NOT_GPU_MEMORY), cures=(SMALLER,),
        because=f"{told}; whether of the card's or the host's memory, and what was free of it, is not said",
    )  # fmt: skip


_ARENA = re.compile(r"gpu_mem_limit[\"']?\s{0,3}[:=,]\s{0,3}[\"']?((?:\d{1,15}\s{0,2}\*{0,2}\s{0,2}){1,6})")


def _limit_of_arena(log: Log) -> Interval | None:
    """The arena's limit, of plain numbers and their products, where a text says it."""
    found = _ARENA.search(log.text)
    if found is None or "**" in found[1]:
        return None
    size = math.prod(int(each) for each in re.findall(r"\d+", found[1]))
    return Interval(size, size)


def _beyond_arena(message: Message, log: Log) -> Judgement:
    """An arena whose limit nobody sets has none (onnxruntime/core/providers/cuda,
    cuda_execution_provider_info.h, gpu_mem_limit); one that is set to what the card has is the card's.
    """
    left, asked, limit = message.facts["left"], message.facts["asked"], _limit_of_arena(log)
    card = card_of(log)
    may_be_whole = (
        limit is not None and card is not None and limit.low * 10 >= card.least_above(limit.low) * 9
    )
    whole = limit is not None and card is not None and limit.low * 10 >= card.most * 9
    open_causes = (Cause.LIMIT_SET, Cause.REAL_NEED) if may_be_whole else (Cause.LIMIT_SET,)
    causes = (Cause.REAL_NEED,) if whole else open_causes
    of = f"its limit of {size_words(limit)}" if limit else "its limit"
    return Judgement(
        causes=causes, missing=(asked - left).positive,
        cures=(Cure(change="raise or remove the arena's limit", helps=NO if whole else MAYBE, where="gpu_mem_limit"), SMALLER),
        because=f"{size_words(asked)} were asked for of an arena that has {size_words(left)} left of {of}, "
        + ("which is all that the card has" if whole else "which may be all that the card has, or a part that a setting gives it" if may_be_whole
           else "which a setting gives it: no total of the card"),
    )  # fmt: skip


def _refused_engine(message: Message, log: Log) -> Judgement:
    asked = message.facts.get("asked")
    told = (
        f"{size_words(asked)} were asked for by TensorRT"
        if asked
        else "TensorRT was refused memory by the driver"
    )
    return undecided_need(
        told, Cure(change="a smaller workspace while the engine is built", helps=MAYBE, where="--memPoolSize=workspace:N"), SMALLER,
        asked=asked, message=message, log=log,
    )  # fmt: skip


_LEFT_OUT = re.compile(r"Skippingtactic\S{0,60}?duetoinsufficientmemory|Skippingtactic\S{0,60}?duetooom")
_NONE_LEFT = "Couldnotfindanyimplementation"


def tactic_left_out(log: Log) -> bool:
    """Whether what a build of TensorRT was refused were kernels that it only tried, and it found others: its
    builder leaves those out that have no room, and fails where none is left.
    """
    return bool(_LEFT_OUT.search(log.squeezed)) and _NONE_LEFT not in log.squeezed


def _refused_pool(message: Message, log: Log) -> Judgement:
    asked, held, limit = (message.facts.get(name) for name in ("asked", "allocated", "allowed"))
    told = "memory was asked for" if asked is None else f"{size_words(asked)} were asked for"
    told += f" by a pool that holds {size_words(held)}" if held else ""
    if asked and held and limit and more_than(held, limit):
        return Judgement(
            causes=(), because=f"{told} and may hold {size_words(limit)}: its figures contradict one another"
        )
    if asked and held and limit and at_least(limit, held + asked) is False:
        raised = Cure(change="raise or remove the pool's limit", helps=MAYBE, where="CUPY_GPU_MEMORY_LIMIT")
        return Judgement(
            causes=(Cause.LIMIT_SET,), missing=(held + asked - limit).positive, cures=(raised, SMALLER),
            because=f"{told} and may hold {size_words(limit)}",
        )  # fmt: skip
    return undecided_need(told, SMALLER, asked=asked, message=message, log=log)


def _refused_place(message: Message, log: Log) -> Judgement:
    return undecided_need(
        "not all of the model's weights have room on the cards that it was to be placed on",
        Cure(change="weights in fewer bits, or over more GPUs", helps=MAYBE),
        Cure(change="the rest of the weights on the host", helps=MAYBE, where="llm_int8_enable_fp32_cpu_offload=True, and a device_map"),
        message=message, log=log,
    )  # fmt: skip


def _without_folder(_: Message, __: Log) -> Judgement:
    """Of accelerate 1.15 (big_modeling.py:386, utils/modeling.py:1892) and transformers 5.24
    (integrations/accelerate.py:534): what neither cards nor host have room for lies on the disk.
    """
    return undecided_need(
        "neither the cards nor the host have room for all of the model, so that the device map puts a part of it on the disk, and no folder is named for it",
        Cure(change="weights in fewer bits, or over more GPUs", helps=MAYBE, why="a part on the disk is read anew in each pass"),
        Cure(change="a folder for the part on the disk", helps=MAYBE, where='offload_folder="offload" (offload_dir=… of accelerate)'),
    )  # fmt: skip


def _trains_off_card(_: Message, __: Log) -> Judgement:
    """Of huggingface/accelerate 1.15, src/accelerate/accelerator.py:1877."""
    return undecided_need(
        "the weights in few bits have no room on the card: a part of them lies on the host or the disk, where none can be trained",
        Cure(change="weights in fewer bits (4, not 8), or over more GPUs", helps=MAYBE, where="load_in_4bit=True"),
        Cure(change="a smaller batch", helps=NO, why="weights are placed before any batch"),
    )  # fmt: skip


def _refused_all_batches(_: Message, __: Log) -> Judgement:
    """Of huggingface/accelerate at 02e2ed56, src/accelerate/utils/memory.py: find_executable_batch_size."""
    return undecided_need(
        "every size of batch was refused memory, down to one row",
        Cure(change="recompute activations in backward", helps=MAYBE, where="gradient_checkpointing=True"),
        Cure(change="weights in fewer bits, adapters alone, or states over more GPUs", helps=MAYBE),
        Cure(change="a smaller batch", helps=NO, why="one row was tried, too"),
    )  # fmt: skip


_BYTES = {"asked": "bytes", "allocated": "bytes", "allowed": "bytes"}
_COMMAS = r"\d[\d,]{0,30}"
FORMS = (
    Form("TensorFlow", re.compile(r"OOMwhenallocatingtensorwithshape\[(?P<shape>[\d,]{0,120})\]andtype(?P<type>[a-z0-9]{1,12}?)on(?P<place>/\S{1,120}?)by"), _refused_tensor),
    Form("TensorFlow", re.compile(r"errors_impl\.ResourceExhaustedError(?!\S{0,4000}?OOMwhenallocatingtensorwithshape)"), _refused_tensor),
    Form("TensorFlow", re.compile(
        rf"(?P<place>)Allocator\(GPU_\d{{1,3}}_bfc\)ranoutofmemorytryingtoallocate(?P<asked>{NUMBER})(?P<asked_unit>[KMG]iB|B)(?:\(roundedto\d{{1,15}}\))?(?:requestedbyop|\.Currentallocationsummary)"
        r"(?!\S{0,400}?Thecallerindicates)(?=(?:(?!Allocator\(GPU)\S){0,20000}?Limit:\d(?!\S{0,4000}?(?:OOMwhenallocatingtensor|RESOURCE_EXHAUSTED|ResourceExhausted)))"
    ), _ran_out, {"asked": "bytes"}),
    Form("ONNX Runtime", re.compile(rf"Failedtoallocatememoryforrequestedbufferofsize(?P<asked>{NUMBER})"), _refused_arena, {"asked": "bytes"}),
    Form("ONNX Runtime", re.compile(rf"Availablememoryof(?P<left>{NUMBER})issmallerthanrequestedbytesof(?P<asked>{NUMBER})"), _beyond_arena, {"left": "bytes", "asked": "bytes"}),
    Form("TensorRT", re.compile(rf"RequestedamountofGPUmemory\((?P<asked>{NUMBER})bytes\)couldnotbeallocated"), _refused_engine, {"asked": "bytes"}),
    Form("TensorRT", re.compile(rf"OutOfMemory\(Requestedsizewas(?P<asked>{NUMBER})bytes"), _refused_engine, {"asked": "bytes"}),
    Form("TensorRT", re.compile(r"CudaRuntime\(outofmemory\)|ErrorCode2:OutOfMemory"), _refused_engine),
    Form("accelerate", re.compile(r"ValueError:SomemodulesaredispatchedontheCPUorthedisk"), _refused_place),
    Form("accelerate", re.compile(
        r"Weneedan`?offload_dir`?todispatch|pleasepassalongan`?offload_folder`?|[Pp]leaseprovidean`?offload_folder`?|tooffloadthewholemodeltothedisk"
    ), _without_folder),
    Form("accelerate", re.compile(r"8-bitor4-bitprecisionwithCPUordiskoffload"), _trains_off_card),
    Form("accelerate", re.compile(r"Noexecutablebatchsizefound,reachedzero"), _refused_all_batches),
    Form("CuPy", re.compile(rf"(?<!RESOURCE_EXHAUSTED:)Outofmemoryallocating(?P<asked>{_COMMAS})bytes(?:\(allocatedsofar:(?P<allocated>{_COMMAS})bytes(?:,limitsetto:(?P<allowed>{_COMMAS})bytes)?\))?"), _refused_pool, _BYTES),
    Form("CuPy", re.compile(rf"outofmemorytoallocate(?P<asked>{_COMMAS})bytes(?:\(total(?P<allocated>{_COMMAS})bytes)?"), _refused_pool, _BYTES),
)  # fmt: skip
