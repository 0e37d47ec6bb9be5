"""Refused memory of a device in the words of Paddle, MindSpore, MLC, RMM, XGBoost, CUDA.jl, DirectML, SYCL,
OpenCL, cudarc, Numba, PyCUDA, Metal, and the drivers of Gaudi and Neuron.

The sentences are those of paddle/phi/core/memory/allocation/cuda_allocator.cc (AllocateImpl), MindSpore's
actor_common.h, MLC's cpp/serve/config.cc (InferrableEngineConfig), RMM's pool_memory_resource.hpp and
error.hpp, XGBoost's device_helpers.cuh (ThrowOOMError), CUDA.jl's src/pool.jl and torch-directml.
"""

from __future__ import annotations

import re

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import more_than, size_words
from memsheet.diagnose.message import MAYBE, NUMBER, Cause, Cure, Form, Judgement, Message, sized_pattern
from memsheet.diagnose.messages.host import host_shortage
from memsheet.diagnose.messages.other_runtimes import SMALLER, undecided_need

SIGNS = (
    b"Cannot allocate", b"isn't enough and alloc failed", b"Insufficient GPU memory", b"Maximum pool size exceeded",
    b"bad_alloc: out_of_memory", b"Requested memory:", b"Out of GPU memory", b"GPU video memory", b"OUT_OF_DEVICE_MEMORY",
    b"207001", b"Invalid buffer size", b"total bytes of NDArray", b"CUDA failed with error", b"OUT_OF_HOST_MEMORY", b"DriverError(CUDA", b"results in CUDA_ERROR", b"cuMemAlloc failed", b"OBJECT_ALLOCATION_FAILURE",
    b"Out of memory on device", b"NvMapMemAlloc", b"EL0004", b"command submission", b"8007000E", b"DEVICE_OUT_OF_MEMORY", b"PT_DEVMEM", b"DEVICE memory:", b"NEURON CORE memory", b"ErrorOutOfMemory", b"maximum allowed buffer size", b"is out of GPU memory", b"Bytes of memory on device",
)  # fmt: skip


def _refused(message: Message, log: Log) -> Judgement:
    """A request, and what was free where that is said; others on the card never are."""
    asked, free = message.facts.get("asked"), message.facts.get("free")
    told = f"{size_words(asked)} were asked for" if asked else "memory of the device was refused"
    if not (asked and free and more_than(asked, free)):
        return undecided_need(told, SMALLER, asked=asked, message=message, log=log)
    return Judgement(
        causes=(Cause.REAL_NEED, Cause.OTHER_PROCESS), missing=(asked - free).positive, cures=(SMALLER,),
        because=f"{told} and {size_words(free)} were free; who else is on the card is not said",
    )  # fmt: skip


def _refused_by_pool(_: Message, __: Log) -> Judgement:
    return Judgement(
        causes=(Cause.LIMIT_SET, Cause.REAL_NEED, Cause.OTHER_PROCESS),
        because="RMM's pool could not grow: it is at its limit, or the driver refused it more; the message has no figures",
        cures=(
            Cure(change="raise or remove the pool's limit", helps=MAYBE, where="maximum_pool_size"),
            Cure(change="smaller partitions, or what is cold on the host", helps=MAYBE, where="device_memory_limit"),
        ),
    )  # fmt: skip


def _short_share(message: Message, _: Log) -> Judgement:
    share, weights, buffers = (message.facts[name] for name in ("free", "weights", "buffers"))
    return Judgement(
        causes=(Cause.ENGINE_UNDERPROVISION, Cause.REAL_NEED), missing=(weights + buffers - share).positive,
        because=f"{size_words(weights)} of weights and {size_words(buffers)} of buffers, and the server's share of the card is "
        f"{size_words(share)}; what the whole card has is not said",
        cures=(
            Cure(change="a larger share of the card", helps=MAYBE, where="gpu_memory_utilization"),
            Cure(change="fewer tokens in one pass", helps=MAYBE, where="--prefill-chunk-size N"),
            Cure(change="weights over more GPUs, or in fewer bits", helps=MAYBE, where="--tensor-parallel-shards N"),
        ),
    )  # fmt: skip


def _refused_by_julia(message: Message, log: Log) -> Judgement:
    asked, whole, used = (message.facts.get(name) for name in ("asked", "capacity", "allocated"))
    if not (asked and whole and used):
        return _refused(message, log)
    room = (whole - used).positive
    if more_than(asked, room):
        return Judgement(
            causes=(Cause.REAL_NEED,), missing=(asked - room).positive, cures=(SMALLER,),
            because=f"{size_words(asked)} were asked for; beside {size_words(used)} of arrays the card's {size_words(whole)} have "
            f"{size_words(room)} at the most, whoever else is on it",
        )  # fmt: skip
    return Judgement(
        causes=(Cause.REAL_NEED, Cause.FRAGMENTATION, Cause.OTHER_PROCESS), cures=(SMALLER,),
        because=f"{size_words(asked)} were asked for, and arrays take {size_words(used)} of {size_words(whole)}",
    )  # fmt: skip


def _beyond_buffer(message: Message, _: Log) -> Judgement:
    asked, most = message.facts["asked"], message.facts["allowed"]
    return Judgement(
        causes=(Cause.LIMIT_SET, Cause.REAL_NEED), missing=(asked - most).positive, cures=(SMALLER,),
        because=f"{size_words(asked)} were asked for in one buffer, and the device allows {size_words(most)} in one; what it has "
        "in all is not said",
    )  # fmt: skip


def _refused_buffer(message: Message, _: Log) -> Judgement:
    asked = message.facts.get("asked")
    told = f"{size_words(asked)} were asked for in one buffer" if asked else "one tensor is of 4 GiB or more"
    return Judgement(
        causes=(Cause.LIMIT_SET, Cause.REAL_NEED),
        because=f"{told}, more than Metal allows in one; what the machine has in all is not said",
        cures=(Cure(change="smaller tensors: half the batch or the length, attention that writes no scores", helps=MAYBE),),
    )  # fmt: skip


def _refused_somewhere(_: Message, __: Log) -> Judgement:
    return Judgement(
        causes=(Cause.REAL_NEED, Cause.OTHER_PROCESS, Cause.NOT_GPU_MEMORY), cures=(SMALLER,),
        because="Windows refused memory (8007000E); whether of the card or of the host is not said",
    )  # fmt: skip


def _refused_host(_: Message, __: Log) -> Judgement:
    return host_shortage("the driver was refused memory of the host")


_BYTES = {"asked": "bytes", "free": "bytes"}
DRIVERS = ("Jetson", "Ascend", "SYCL", "Gaudi", "driver")
"""Lines of drivers, behind which PyTorch's own message tells the same failure with its figures."""
FORMS = (
    Form("Paddle", re.compile(rf"Cannotallocate{sized_pattern('asked')}memoryonGPU\d{{1,3}},(?:\S{{0,80}}?availablememoryisonly{sized_pattern('free')})?"), _refused),
    Form("MindSpore", re.compile(rf"memoryisn'tenoughandallocfailed(?:,kernelname:\S{{0,300}}?,allocsize:(?P<asked>{NUMBER})B)?"), _refused, _BYTES),
    Form("MLC", re.compile(rf"availablesingleGPUmemoryis{sized_pattern('free')},whichislessthanthesumofmodelweightsize\({sized_pattern('weights')}\)andtemporarybuffersize\({sized_pattern('buffers')}\)"), _short_share),
    Form("RMM", re.compile(r"RMMfailureat:?\S{0,300}?Maximumpoolsizeexceeded"), _refused_by_pool),
    Form("RMM", re.compile(r"bad_alloc:out_of_memory:CUDAerror"), _refused),
    Form("XGBoost", re.compile(rf"Memoryallocationerroronworker\S{{0,120}}?-Freememory:(?P<free>{NUMBER})\S{{0,4}}?-Requestedmemory:(?P<asked>{NUMBER})"), _refused, _BYTES),
    Form("CUDA.jl", re.compile(rf"OutofGPUmemorytryingtoallocate{sized_pattern('asked')}(?:EffectiveGPUmemoryusage:[\d.]{{1,8}}%\([\d.]{{1,10}}[KMGT]?i?B/{sized_pattern('capacity')}\)(?:Memorypoolusage:{sized_pattern('allocated')})?)?"), _refused_by_julia),
    Form("DirectML", re.compile(rf"Couldnotallocatetensorwith(?P<asked>{NUMBER})bytes\.ThereisnotenoughGPUvideomemory"), _refused, _BYTES),
    Form("SYCL", re.compile(r"(?:UR|PI|ZE)_(?:RESULT_)?ERROR_OUT_OF_DEVICE_MEMORY"), _refused),
    Form("SYCL", re.compile(rf"ggml_backend_sycl_buffer_type_alloc_buffer:can'tallocate(?P<asked>{NUMBER})Bytesofmemoryondevice"), _refused, _BYTES),
    Form("SYCL", re.compile(r"(?:UR|PI|ZE)_(?:RESULT_)?ERROR_OUT_OF_HOST_MEMORY"), _refused_host),
    Form("OpenCL", re.compile(r"CL_MEM_OBJECT_ALLOCATION_FAILURE"), _refused),
    Form("driver", re.compile(r"DriverError\(CUDA_ERROR_OUT_OF_MEMORY|Callto\w{1,40}resultsinCUDA_ERROR_OUT_OF_MEMORY|cuMemAlloc\w{0,12}failed:outofmemory"), _refused),
    Form("Gaudi", re.compile(rf"MODULE:PT_DEVMEMAllocationfailedforsize::?(?P<asked>{NUMBER})"), _refused, _BYTES),
    Form("Neuron", re.compile(rf"FailedtoallocDEVICEmemory:(?P<asked>{NUMBER})"), _refused, _BYTES),
    Form("Neuron", re.compile(r"NotenoughNEURONCOREmemory"), _refused),
    Form("Metal", re.compile(r"kIOGPUCommandBufferCallbackErrorOutOfMemory"), _refused),
    Form("Metal", re.compile(rf"Attemptingtoallocate(?P<asked>{NUMBER})byteswhichisgreaterthanthemaximumallowedbuffersizeof(?P<allowed>{NUMBER})bytes"), _beyond_buffer, {"asked": "bytes", "allowed": "bytes"}),
    Form("Jetson", re.compile(r"NvMapMemAlloc\w{0,24}:\d{1,15}error12"), _refused),
    Form("graphics", re.compile(r"(?:OPTIX|VK)_ERROR_(?:OUT_OF_DEVICE_MEMORY|DEVICE_OUT_OF_MEMORY)|(?<!ggml_vulkan:)vk::\S{1,60}?ErrorOutOfDeviceMemory"), _refused),
    Form("CTranslate2", re.compile(r"CUDAfailedwitherroroutofmemory"), _refused),
    Form("MPS", re.compile(rf"Invalidbuffersize:{sized_pattern('asked')}"), _refused_buffer),
    Form("MPS", re.compile(r"totalbytesofNDArray>2\*\*32"), _refused_buffer),
    Form("Windows", re.compile(r"8007000ENotenoughmemoryresources"), _refused_somewhere),
    Form("Ascend", re.compile(r"EL0004:Failedtoallocatememory|rtMallocfailed,runtimeresult=207001|(?:error|ret)(?:code)?(?:is|=|:)207001"), _refused),
    Form("graphics", re.compile(r"amdgpu\S{0,40}?Notenoughmemoryforcommandsubmission"), _refused),
    Form("MATLAB", re.compile(r"Outofmemoryondevice\.Toviewmoredetail|SystemisoutofGPUmemory"), _refused),
)  # fmt: skip
