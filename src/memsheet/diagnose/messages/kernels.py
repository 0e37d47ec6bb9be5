"""Kernels that are not launched, or not compiled: their blocks want more of a multiprocessor's own small
memory, registers or threads than it has. No memory of the card was short.

The sentences are those of Triton (python/triton/runtime/errors.py:19-28 at 0b057fca, OutOfResources), ptxas
and nvlink ("uses too much shared data", both sizes in hexadecimal), CUDA's and HIP's runtimes (error 701),
LLVM for AMD's cards ("local memory (…) exceeds limit (…)"), JAX's Mosaic for GPUs and for TPUs.
"""

from __future__ import annotations

import re

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import Interval, size_words
from memsheet.diagnose.message import MAYBE, NO, Cause, Cure, Form, Judgement, Message
from memsheet.diagnose.messages.stated import share_called
from memsheet.frozen import replace

SIGNS = (
    b"out of resource", b"too much shared data", b"resources requested for launch", b"exceeds limit (", b"exceeds available shared memory",
    b"memory space vmem", b"memory space smem", b"scoped vmem limit",
)  # fmt: skip
SMALLER_BLOCKS = Cure(
    change="smaller blocks or fewer stages of that kernel", helps=MAYBE, where="BLOCK_M, BLOCK_N, num_stages"
)
OTHER_KERNELS = Cure(
    change="another backend of that operation (attention, experts, quantized weights)", helps=MAYBE, why="its kernels have other blocks",
)  # fmt: skip
BACKENDS = {
    "gpu_memory_utilization": "--attention-backend NAME (VLLM_ATTENTION_BACKEND before)",
    "mem_fraction_static": "--attention-backend NAME",
}
"""Where servers are told whose kernels compute attention (vllm/engine/arg_utils.py, vllm/envs.py before it;
sglang, srt/server_args.py).
"""
NO_SMALLER = Cure(change="a smaller batch", helps=NO, why="a kernel's block is as large for any batch")
NO_SHARE = Cure(change="another share of the card, or a larger /dev/shm", helps=NO, why="neither the card's memory nor the host's is what is short")  # fmt: skip
KERNEL_LIMIT = Cure(
    change="a higher limit of it", helps=MAYBE, where="LIBTPU_INIT_ARGS=--xla_tpu_scoped_vmem_limit_kib=N"
)


def _wanted_words(message: Message) -> str:
    """What a kernel wants and what there is of it, as far as the message says it."""
    needed, most = (message.words.get(name, "") for name in ("needed", "most"))
    what = re.sub(r"(?<=shared|tensor)(?=memory)", " ", message.words.get("what", "shared memory"))
    if not needed or not most:
        return "more registers, threads or shared memory of a multiprocessor than it has"
    wants, has = (int(each, 16 if each.startswith("0x") else 10) for each in (needed, most))
    if not what.endswith("memory"):
        return f"{wants:,} of {what}, and the hardware has {has:,}"
    sizes = [size_words(Interval(each, each)) for each in (wants, has)]
    return f"{sizes[0]} of {what} of one multiprocessor, which has {sizes[1]}"


def _refused_kernel(message: Message, log: Log) -> Judgement:
    server = share_called(log.text)
    return Judgement(
        causes=(Cause.UNSUPPORTED_SETTING,),
        because=f"a compiled kernel wants {_wanted_words(message)}: no shortage of the card's memory",
        cures=(SMALLER_BLOCKS, replace(OTHER_KERNELS, where=BACKENDS.get(server, "")), NO_SMALLER, NO_SHARE),
    )


def _refused_on_chip(_: Message, __: Log) -> Judgement:
    return Judgement(
        causes=(Cause.UNSUPPORTED_SETTING,),
        because="a kernel wants more of the chip's own small memory than its limit: no shortage of the memory that weights and activations lie in",
        cures=(replace(SMALLER_BLOCKS, where=""), KERNEL_LIMIT, NO_SMALLER),
    )  # fmt: skip


FORMS = (
    Form("chip", re.compile(r"[Rr]anoutofmemoryinmemoryspace(?:vmem|smem)|exceededscopedvmemlimit"), _refused_on_chip),
    Form("kernel", re.compile(r"outofresource:(?P<what>[\w]{1,40}),Required:(?P<needed>\d{1,12}),Hardwarelimit:(?P<most>\d{1,12})"), _refused_kernel),
    Form("kernel", re.compile(r"usestoomuchshareddata\((?P<needed>0x[0-9a-f]{1,10})bytes,(?P<most>0x[0-9a-f]{1,10})max\)"), _refused_kernel),
    Form("kernel", re.compile(r"localmemory\((?P<needed>\d{1,12})\)exceedslimit\((?P<most>\d{1,12})\)infunction"), _refused_kernel),
    Form("kernel", re.compile(r"kernelexceedsavailablesharedmemory:smem_bytes=(?P<needed>\d{1,12})>max_smem_bytes=(?P<most>\d{1,12})"), _refused_kernel),
    Form("kernel", re.compile(r"toomanyresourcesrequestedforlaunch|(?:cuda|hip)ErrorLaunchOutOfResources"), _refused_kernel),
)  # fmt: skip
