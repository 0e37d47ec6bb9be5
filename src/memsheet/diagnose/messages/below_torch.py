"""Failures below PyTorch's allocator: the driver, NCCL, cuBLAS, and the allocators of sleeping servers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.figures import OUTSIDE_LEAST
from memsheet.diagnose.interval import size_words, sum_intervals
from memsheet.diagnose.message import MAYBE, NO, Cause, Cure, Form, Judgement, Message, Term
from memsheet.diagnose.messages import other_runtimes
from memsheet.diagnose.messages.colocated import handed_over_facts, place_of_share, shares_a_card
from memsheet.diagnose.messages.deepspeed import step_facts
from memsheet.diagnose.messages.echoes import FIRST_ERROR
from memsheet.diagnose.messages.holders import (
    judged_by_table,
    shown_after_end,
    without_holders,
)
from memsheet.diagnose.messages.llama_cpp import refused_call
from memsheet.diagnose.messages.nvidia_smi import Table, card_table, process_called
from memsheet.diagnose.messages.other_servers import refused_runtime
from memsheet.diagnose.messages.sglang import pool_facts
from memsheet.diagnose.messages.stated import share_called, smaller_share, stated_share
from memsheet.diagnose.survived import goes_on, goes_on_behind
from memsheet.units import GIB

SIGNS = (
    b"HAMI-core ERROR",    b"CUDA Error: out of memory", b"CUDA error: out of memory", b"CUDA_ERROR_OUT_OF_MEMORY", b"Cuda failure", b"CUDA calloc", b"ncclUnhandledCudaError", b"unable to find an engine", b"CUBLAS_STATUS_NOT_INITIALIZED",
    b"_STATUS_ALLOC_FAILED", b"CUFFT_ALLOC_FAILED", b"cudaErrorMemoryAllocation", b"more than 1EB", b"cu_mem_create", b"CUDA driver error: out of memory", b"HIP error: out of memory", b"ROCm error: out of memory", b"MUSA error: out of memory", b"hipErrorOutOfMemory", b"cuda runtime error (2)", b"Error out of memory at line",
    *other_runtimes.SIGNS,
)  # fmt: skip
LOWER_FRACTION = "give the server a smaller share of the card"
ROOM = Cure(
    change="leave more of the card outside PyTorch's allocator", helps=MAYBE,
    where="torch.cuda.set_per_process_memory_fraction(0.9)", why="what asks stands outside it, and what it keeps is not given back to others",
)  # fmt: skip
LOOK = Cure(
    change="find who else is on the card", helps=MAYBE, where="nvidia-smi", why="what others hold there is free once they end"
)  # fmt: skip
WHOLE_MESSAGE = Cure(
    change="the whole message, or the log around it", helps=MAYBE, where="what stands behind the size, and nvidia-smi at that time",
    why="what was free, held by tensors and kept without them tells the causes apart",
)  # fmt: skip
BLOCKING = Cure(
    change="one run with every kernel waited for", helps=MAYBE, where="CUDA_LAUNCH_BLOCKING=1",
    why="an earlier kernel's error is then told where it happens",
)  # fmt: skip


_CAPTURES = re.compile(r"Capturing CUDA graphs|Capture cuda graph begin|Capturing the model for CUDA graphs")


def _rooms(message: Message, log: Log) -> tuple[Cure, ...]:
    """What leaves more of the card outside PyTorch's allocator: of a server its own share, for it fills that
    whatever PyTorch is told, and fewer graphs where these are captured.
    """
    name = share_called(log.text)
    if not name or shares_a_card(log.text):
        return (ROOM,)
    vllm = name == "gpu_memory_utilization"
    graphs = Cure(
        change="fewer CUDA graphs, or none", helps=MAYBE,
        where="--enforce-eager" if vllm else "--disable-cuda-graph", why="they stand beside the share",
    )  # fmt: skip
    stated = stated_share(log, message.line, name)
    captures = _CAPTURES.search(log.text)
    return (*smaller_share(f"--{name.replace('_', '-')}", stated), *((graphs,) if captures else ()))


def _wake_up(_: Message, log: Log) -> Judgement:
    wakes = any(
        word in log.text for word in ("wake_up", "resume_memory", "sleep", "Sleep mode", "torch_memory_saver")
    )
    if not wakes:
        return Judgement(
            causes=(Cause.WAKE_UP_RACE, Cause.REAL_NEED),
            because="a server's own allocator was refused memory by the driver, when it woke or when it "
            "was filled",
        )
    kept = {**handed_over_facts(log), **step_facts(log)}.get("kept_before_bytes")
    cures = (
        Cure(change="return the trainer's cached memory before the server wakes", helps=MAYBE, where="torch.cuda.empty_cache()",
             saves_bytes=kept.high if kept else None, why="what the trainer keeps without tensors is what the server lacks"),
        Cure(change="wake the weights first and the cache after the trainer's are off the card", helps=MAYBE,
             where=f'{"resume_memory_occupation" if "torch_memory_saver" in log.text else "wake_up"}(tags=["weights"])'),
        Cure(change=LOWER_FRACTION, helps=MAYBE, where=place_of_share(log.text, "gpu_memory_utilization (mem_fraction_static)")),
    )  # fmt: skip
    return Judgement(
        causes=(Cause.WAKE_UP_RACE,), cures=cures, term=_taken_back(log),
        because="a sleeping server takes its memory back while somebody else still holds the card; the driver refused",
    )  # fmt: skip


_TAGS = re.compile(
    r"tags=\[?(?:\w+\.)?[\"']?(?:GPU_MEMORY_TYPE_)?(?P<tag>kv_cache|KV_CACHE|weights|WEIGHTS)\b[\"']?\]"
)


def _taken_back(log: Log) -> Term | None:
    """What a server was told to take back, where that is one thing."""
    tags = {found["tag"].lower() for found in _TAGS.finditer(log.text)}
    if len(tags) != 1:
        return None
    if "weights" in tags:
        return Term(component="parameters", path="model", shape="", exact=False, words="the server's weights")
    size = pool_facts(log).get("kv_allocated_bytes")
    shape = size_words(size) if size else ""
    return Term(component="kv_cache", path="model", shape=shape, exact=False, words="the server's KV cache")


def _without_cache(log: Log) -> tuple[Cure, ...]:
    """Giving back what PyTorch keeps without tensors, where a log says that it is no trifle."""
    kept = {**handed_over_facts(log), **step_facts(log)}.get("kept_before_bytes")
    if kept is None or kept.low < GIB:
        return ()
    return (
        Cure(change="what PyTorch keeps without tensors given back before the group is made", helps=MAYBE,
             saves_bytes=kept.high, where="torch.cuda.empty_cache()", why=f"it kept {size_words(kept)} at its last word"),
    )  # fmt: skip


def _refused_communication(message: Message, log: Log) -> Judgement:
    size = f" {int(message.words['count']):,} bytes" if "count" in message.words else " memory"
    return Judgement(
        causes=(Cause.OUTSIDE_ALLOCATOR,), cures=(*_without_cache(log), *_rooms(message, log)),
        because=f"NCCL, the communication library, was refused{size} of its own by the driver: the card is full, and its buffers "
        "stand outside PyTorch's allocator",
    )  # fmt: skip


_ASSERTED = re.compile(
    r"block: \[\d{1,10},\d{1,10},\d{1,10}\], "
    r"thread: \[\d{1,10},\d{1,10},\d{1,10}\] Assertion .{1,400}? failed"
)
"""What a kernel prints that ends at an assertion, before the library's next call fails."""


def _refused_handle(message: Message, log: Log) -> Judgement:
    if "device-side assert" in log.text or "illegal memory access" in log.text or _ASSERTED.search(log.text):
        return Judgement(
            causes=(Cause.FOLLOW_UP_ERROR,),
            because="an earlier error of a kernel stands in the same log; what comes after it is its echo, "
            "no shortage",
            cures=(BLOCKING,),
        )
    if judged := judged_by_table(
        message, log, "the matrix library was refused its handle and workspace", GIB
    ):
        return judged
    return Judgement(
        causes=(Cause.OUTSIDE_ALLOCATOR, Cause.FOLLOW_UP_ERROR), cures=(*_rooms(message, log), BLOCKING),
        because="the matrix library was refused its handle and workspace, which stand outside PyTorch's allocator: the "
        "card is full, or an earlier error of a kernel shows only here",
    )  # fmt: skip


def _torn_collective(_: Message, __: Log) -> Judgement:
    return Judgement(
        causes=(Cause.FOLLOW_UP_ERROR,),
        because="a size beyond 1 EB is no request: a collective was torn down, and its half-read figures "
        "are what is "
        "printed; look for the first error of any rank",
        cures=(FIRST_ERROR,),
    )


def _without_engine(_: Message, __: Log) -> Judgement:
    return Judgement(
        causes=(),
        because="cuDNN found no way to compute this: each may have been refused its workspace on a full card, or none is for these shapes and "
        "this build; what was free is not said",
        cures=(
            Cure(change="a smaller batch, or smaller pictures", helps=MAYBE, why="where it runs then, the workspace had no room"),
            Cure(change="no search for the fastest way", helps=MAYBE, where="torch.backends.cudnn.benchmark = False"),
        ),
    )  # fmt: skip


def _failed_call(message: Message, log: Log) -> Judgement:
    return Judgement(
        causes=(Cause.OUTSIDE_ALLOCATOR, Cause.FOLLOW_UP_ERROR),
        because="NCCL says that a call of CUDA failed and not why: a full card refuses its buffers so, and an earlier error shows so, too",
        cures=(Cure(change="one run that says why", helps=MAYBE, where="NCCL_DEBUG=INFO"), *_rooms(message, log), BLOCKING)[:4],
    )  # fmt: skip


_MAKES_CONTEXT = re.compile(r"_cuda_init\(|in _lazy_init\b|\bcuInit\b|cuCtxCreate|cuDevicePrimaryCtxRetain")


_PINS = re.compile(
    r"\bpin_memory\(|in pin_memory\b|cudaHostAlloc|cudaHostRegister|cudaMallocHost|HostAllocator"
)
PINS_WITHIN = 12
"""Lines around a refusal in which a function that locks pages of the host is the one that was refused. Where
it is the process's first call of the driver, it makes the process's context, too.
"""
_WITHOUT_PINS = (
    Cure(change="more host memory, or less of it locked", helps=MAYBE, where="pin_memory: false (ulimit -l unlimited)"),
    Cure(change="a smaller batch on the GPU", helps=NO, why="locked pages are the host's"),
)  # fmt: skip


def _refused_by_driver(message: Message, log: Log) -> Judgement:
    table = card_table(log)
    there = _holder_words(table) if table else ""
    around = log.lines[max(0, message.line - PINS_WITHIN) : message.line + PINS_WITHIN]
    if any("ggml" in each for each in around):
        return refused_call(log)
    if any(_PINS.search(each) for each in around):
        held = step_facts(log).get("allocated_before_bytes")
        if held and held.low > 0:
            return Judgement(
                causes=(Cause.NOT_GPU_MEMORY,), cures=_WITHOUT_PINS,
                because=f"page-locked memory of the host was asked for and refused, by a process that has its place on the card ({size_words(held)} of tensors)",
            )  # fmt: skip
        return Judgement(
            causes=(Cause.NOT_GPU_MEMORY, Cause.OTHER_PROCESS), cures=(*_WITHOUT_PINS, *without_holders(there)),
            because="page-locked memory of the host was asked for and refused, or the process was refused its place on a card that is full",
        )  # fmt: skip
    near = log.lines[max(0, message.line - 40) : message.line + 1]
    if table and there and len(table.cards) == 1 and any(_MAKES_CONTEXT.search(each) for each in near):
        used, whole = table.cards[0]
        left = (whole - used).positive
        if left.high < OUTSIDE_LEAST:
            return Judgement(
                causes=(Cause.OTHER_PROCESS,), cures=without_holders(there),
                because=f"the driver refused this process its context, before it held anything; of {size_words(whole)} were "
                f"{size_words(left)} left beside {there}",
            )  # fmt: skip
    if table and len(table.cards) == 1 and shown_after_end(message, log):
        whole, held = table.cards[0][1], sum_intervals(size for *_, size in table.processes)
        if held.low * 10 >= whole.high * 9:
            return Judgement(
                causes=(Cause.OTHER_PROCESS,), cures=without_holders(there),
                because=f"the driver refused memory, and once the process had ended {there} still held {size_words(held)} of the "
                f"card's {size_words(whole)}",
            )  # fmt: skip
    if judged := judged_by_table(message, log, "the driver refused memory"):
        return judged
    rooms = _rooms(message, log)
    return Judgement(
        causes=(Cause.OTHER_PROCESS, Cause.OUTSIDE_ALLOCATOR), cures=without_holders(there) or ((LOOK, ROOM) if rooms == (ROOM,) else (*rooms, LOOK)),
        because="the driver refused memory outside PyTorch's allocator, and the message has no figures: others may hold the card "
        f"({there or 'nvidia-smi shows them'}), or this process fills it",
    )  # fmt: skip


def _holder_words(table: Table) -> str:
    """The largest processes of a table, by number, name and bytes."""
    largest = sorted(table.processes, key=lambda each: -each[2].middle)[:3]
    return ", ".join(
        f"{process_called(pid, table.names[pid])} {size_words(size)}" for _, pid, size in largest
    )


_OF_RUNTIME = re.compile(r"TensorRT-LLM|tensorrt_llm|\btrtllm|free_gpu_mem(?:ory)?_fraction")


def _refused_call_by_name(message: Message, log: Log) -> Judgement:
    """A program's own call to the driver: of Ollama's process of a model, of TensorRT-LLM, whose cache takes
    a share of what is free, or any other.
    """
    if _RUNNER_ENDS.search(log.squeezed):
        return refused_call(log)
    return (refused_runtime if _OF_RUNTIME.search(log.text) else _refused_by_driver)(message, log)


def _refused_by_runtime(message: Message, log: Log) -> Judgement:
    return judged_by_table(message, log, "the driver refused memory") or Judgement(
        causes=(Cause.REAL_NEED, Cause.OTHER_PROCESS),
        because="an allocator of an old release of PyTorch was refused memory by the driver, and the message has no figures: "
        "others may hold the card (nvidia-smi shows them), or the job needs more than it has",
    )  # fmt: skip


def _refused_optimizer(_: Message, __: Log) -> Judgement:
    return Judgement(
        causes=(Cause.OUTSIDE_ALLOCATOR, Cause.REAL_NEED, Cause.OTHER_PROCESS), cures=(ROOM,),
        because="a call of bitsandbytes to the driver was refused memory outside PyTorch's allocator, as a paged optimizer's states "
        "are, and the message has no figures",
    )  # fmt: skip


def _beyond_virtual_card(message: Message, _: Log) -> Judgement:
    """HAMi's library between a process and the driver, which refuses what passes the share of the card that
    its pod was given (Project-HAMi/HAMi-core, src/allocator/allocator.c, oom_check).
    """
    wanted, allowed = message.facts["wanted"], message.facts["allowed"]
    return Judgement(
        causes=(Cause.LIMIT_SET,), missing=(wanted - allowed).positive,
        because=f"the process would hold {size_words(wanted)}, and its pod is allowed {size_words(allowed)} of the card: a limit that the cluster's "
        "scheduler sets, whatever else of the card is free",
        cures=(
            Cure(change="a higher limit of the pod", helps=MAYBE, where="nvidia.com/gpumem: N (MiB; or nvidia.com/gpumem-percentage)"),
            Cure(change="a job that stays within it: weights in fewer bits, a smaller batch", helps=MAYBE),
            Cure(change="expandable segments", helps=NO, why="the limit counts what the driver hands out, however it is laid out"),
        ),
    )  # fmt: skip


_RUNNER_ENDS = re.compile(r"llama(?:runner|-server)processhasterminated:")


def judge_bare(message: Message, log: Log) -> Judgement:
    """Nothing, unless a table beside it says who holds the card, or Ollama that its model's process ended."""
    if told := judged_by_table(message, log, "memory of the card was refused"):
        return told
    if _RUNNER_ENDS.search(log.squeezed):
        return refused_call(log)
    return Judgement(
        causes=(),
        because="the message has no figures, and without them the cause cannot be told: the lines before it "
        "may have them, or nvidia-smi beside it",
    )


FORMS = (
    Form(
        "virtual card",
        re.compile(
            r"HAMI-coreERROR\S{0,80}?Device\d{1,3}OOM(?P<wanted>\d{1,15})/(?P<allowed>\d{1,15})(?!\d)"
        ),
        _beyond_virtual_card,
        {"wanted": "bytes", "allowed": "bytes"},
    ),
    Form("wake-up", re.compile(r"CUDAError:outofmemoryat\S{0,200}?cumem_allocator\.c"), _wake_up),
    Form(
        "wake-up",
        re.compile(r"torch_memory_saver\S{0,120}?(?:CUDA_ERROR_OUT_OF_MEMORY|CUresulterror:2\b)"),
        _wake_up,
    ),
    Form(
        "wake-up",
        re.compile(
            r"cu_?[mM]em_?[cC]reate\S{0,120}?(?:CUDA_ERROR_OUT_OF_MEMORY|CUresulterror:2)|"
            r"CUresulterror:2\S{0,120}?cu_?[mM]em_?[cC]reate"
        ),
        _wake_up,
    ),
    Form(
        "communication",
        re.compile(r"FailedtoCUDAcalloc(?:async)?(?P<count>\d{1,15})bytes"),
        _refused_communication,
    ),
    Form(
        "communication",
        re.compile(
            r"Cudafailure\d{0,4}'outofmemory'"
            r"(?:\S{0,400}?FailedtoCUDAcalloc(?:async)?(?P<count>\d{1,15})bytes)?"
        ),
        _refused_communication,
    ),
    Form(
        "matrix library",
        re.compile(
            r"CU(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED"
            r"|CUBLAS_STATUS_NOT_INITIALIZEDwhencalling`?cublasCreate"
        ),
        _refused_handle,
    ),
    Form("convolution", re.compile(r"wasunabletofindanenginetoexecutethiscomputation"), _without_engine),
    Form("communication", re.compile(r"ncclUnhandledCudaError:(?!\S{0,400}?outofmemory)"), _failed_call),
    Form("echo", re.compile(r"(?:T|t)riedtoallocatemorethan1EB"), _torn_collective),
    Form(
        "driver",
        re.compile(
            r"(?:CUDA|HIP|ROCm|MUSA)(?:driver)?error:[Oo]utofmemory(?!atline)"
            r"|cudaErrorMemoryAllocation|hipErrorOutOfMemory"
        ),
        _refused_by_driver,
    ),
    Form(
        "driver",
        re.compile(
            r"(?<!\d:)(?:cuda|hip)Malloc(?:Async|Managed)?(?:\([^()]{0,120}(?:\([^()]{0,40}\))?[^()]{0,40}\))?(?:failed)?(?:\S{0,12}?error)?:outofmemory"
        ),
        _refused_call_by_name,
    ),
    Form("driver", re.compile(r"cudaruntimeerror\(2\):outofmemory"), _refused_by_runtime),
    Form(
        "driver",
        re.compile(r"Error:?outofmemoryatline\d{1,6}infile\S{1,300}?\.(?:cpp|cu|hip|c)"),
        _refused_optimizer,
    ),
    *other_runtimes.FORMS,
)  # fmt: skip
_BARE = re.compile(
    r"(?:[\w.]{0,120}OutOfMemoryError(?:\b|$)|CUDA_ERROR_OUT_OF_MEMORY\b"
    r"|(?:CUDA|HIP|XPU|NPU|GPU)\s{1,3}out of memory\b"
    r"|out of memory\b[.!]?$"
    r"|.{0,300}?(?:\b(?:error|exception|failed|failure|refused|fatal)\b|what\(\)).{0,300}?\bout of memory\b"
    r"|.{0,300}?(?:Error|Exception)(?:: |\(['\"]).{0,300}?(?:out of memory|OutOfMemoryError)"
    r"|.{0,300}?\b(?:crash|die|fail|stop|get|rais|throw)\w{0,4}\b.{0,60}?\bResourceExhaustedError\b"
    r"|.{0,300}?\bAllocator \(GPU_\d{1,3}_bfc\) ran out of memory trying to allocate"
    r"(?!.{0,300}?The caller indicates)"
    r"|(?!.{0,300}?\b(?:if|may|might|avoid|prevent\w{0,3})\b)"
    r".{0,300}?(?:\b(?:crash|die|fail|stop|get|got|rais|throw|sa[iy]|hit)\w{0,4}\b|报错|报|エラー)"
    r".{0,60}?(?:\bOutOfMemoryError\b|\bCUDA out of memory\b|\bCUDA OOM\b))",
    re.IGNORECASE,
)
"""A line that says so as an error does: at its beginning, or behind the word error. A sentence of a manual
does neither.
"""


_OF_MEMORY = ("memory", "Memory", "MEMORY", "ResourceExhausted")
_ASKS_LESS = re.compile(
    r"failed to allocate \S{1,20} \(\d{1,18} bytes\) from device: CUDA_ERROR_OUT_OF_MEMORY"
    r"|_bfc\) ran out of memory"
)
"""TensorFlow's pool, which then asks for nine tenths of it (tsl/framework/bfc_allocator.cc, Extend), and
whose callers may do with less.
"""


def bare_lines(log: Log) -> Iterator[Message]:
    """Lines that say that memory ran out, where no form that is known is found, until the first that ended
    the program.
    """
    for number, line in enumerate(log.lines):
        if any(word in line for word in _OF_MEMORY) and _BARE.match(line.lstrip("> ")):
            if "ggml_cuda_host_malloc" in line:  # which takes other pages then (ggml-cuda.cu at 00108827)
                continue
            if _ASKS_LESS.search(line) and goes_on(log.lines[number + 1 :]):
                continue
            yield Message(kind="bare", line=number, judge=judge_bare)
            if not goes_on_behind(number, log):
                return
