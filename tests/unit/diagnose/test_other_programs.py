"""Programs other than trainers and servers of language models: whose memory it was, by their own words."""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import FULL_CARD

from laws import every
from memsheet.diagnose.message import YES, Cause
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts
from memsheet.units import GIB

PADDLE = (
    "Out of memory error on GPU 0. Cannot allocate 1.562500GB memory on GPU 0, 22.8GB memory has been "
    "allocated and available memory is only 912.500000MB."
)
MINDSPORE = "Device(id:0) memory isn't enough and alloc failed"
MLC = (
    "The available single GPU memory is 4915.200 MB, which is less than the sum of model weight size "
    "(4308.133 MB) and temporary buffer size (1184.020 MB)."
)
RMM = "MemoryError: std::bad_alloc: out_of_memory:"
XGBOOST = (
    "Memory allocation error on worker 0: std::bad_alloc: cudaErrorMemoryAllocation: out of memory\n"
    "- Free memory: 1203765248\n- Requested memory: 4294967296"
)
METAL = (
    "[metal::malloc] Attempting to allocate 34359738368 bytes which is greater than the maximum allowed "
    "buffer size of 22906503168 bytes."
)
NEED, OTHER, HOST = Cause.REAL_NEED, Cause.OTHER_PROCESS, Cause.NOT_GPU_MEMORY


def found_in(text: str) -> Diagnosis:
    found = diagnose_texts({"log": text})
    assert [cure.change for cure in found.cures if cure.helps == YES] == []
    return found


@every(
    "text",
    [
        "=>> PBS: job killed: mem 68719542272 exceeded limit 68719476736",
        "=>> PBS: job killed: vmem 41943552kb exceeded limit 41943040kb",
        'job 44.1 exceeds job hard limit "h_vmem" of queue "q@n" (28.0 > limit:18.0) - sending SIGKILL',
        "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\nExited with exit code 137.",
        "JobID State\n8122 OUT_OF_ME+",
        "Container killed by YARN for exceeding physical memory limits. 12.2 GB of 12 GB used.",
        "java.lang.OutOfMemoryError: Java heap space",
        "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
        "Worker tcp://127.0.0.1:4 (pid=2) exceeded 95% memory budget. Restarting...",
        "Your session crashed after using all available RAM.",
        "Your notebook tried to allocate more memory than is available. It has restarted.",
        "memorystatus: killing_top_process pid 41 [python3.11] (vm-compressor-space-shortage) 18112",
        "zsh: killed     python train.py",
        "[1]    4121 killed     python train.py",
        "mpirun noticed that process rank 3 with PID 0 on node gpu011 exited on signal 9 (Killed).",
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        "c++: fatal error: Killed signal terminated program cc1plus",
        "ibv_reg_mr(address=0x7f0a, length=524288) failed: Cannot allocate memory",
        "RuntimeError: unable to mmap 4096 bytes from file <x.bin>: Cannot allocate memory (12)",
        "runtime error\nMemory limit exceeded (16Gi)",
        "failed to alloc 17179869184 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "Error: llama runner process has terminated: signal: killed",
        "make[2]: *** [CMakeFiles/x.dir/y.cu.o] Killed",
        "Solving environment: - Killed",
        "OSError: Memory mapping file failed: Cannot allocate memory",
        "src/storage/./cpu_device_storage.h:70: Failed to allocate CPU Memory",
        "Fail to alloc memory of 8589934592 size, error code is 12.",
        "ray.exceptions.ObjectStoreFullError: Failed to put object 00ff in object store",
        "Too large swap space. 64.00 GiB out of the 62.70 GiB total CPU memory is allocated",
        "Error: cannot allocate vector of size 29.8 Gb",
        "memory allocation of 8589934592 bytes failed",
        "Native API failed. Native API returns: -6 (PI_ERROR_OUT_OF_HOST_MEMORY)",
    ],
)
def test_whoever_ends_a_job_for_host_memory_is_heard(text: str) -> None:
    assert found_in(text).cause is HOST


@pytest.mark.parametrize(
    "text",
    [
        "=>> PBS: job killed: walltime 3621 exceeded limit 3600",
        "*** JOB 1 ON g CANCELLED DUE TO TIME LIMIT ***\nrun.sh: line 3:  211 Killed   python a.py",
        "TERM_RUNLIMIT: job killed after reaching LSF run time limit.\nExited with exit code 137.",
        "Container vllm failed liveness probe, will be restarted\ncommand terminated with exit code 137",
        "memorystatus: killing_idle_process pid 41 [mdworker] (idle-exit) 100",
        "ulimit -a\nmax locked memory       (kbytes, -l) 64",
        '"State": {\n  "OOMKilled": false,\n  "ExitCode": 0\n}',
        "unable to open shared memory object </torch_3> in read-write mode: Too many open files (24)",
        "- Killed: your host does not have enough RAM.",
        "srun: error: gpu07: tasks 0-7: Killed",
        "Memory limit: unlimited\nexceeded 80% of the time budget",
    ],
)
def test_what_another_limit_ended_died_of_no_memory(text: str) -> None:
    assert not found_in(text).found


def test_a_limit_is_told_with_its_sizes() -> None:
    found = found_in("=>> PBS: job killed: mem 68719542272 exceeded limit 68719476736")
    assert (found.facts["allowed_bytes"].low, "64.00 GiB" in found.because) == (64 * GIB, True)


@pytest.mark.parametrize(
    ("text", "between"),
    [
        (PADDLE, (NEED, OTHER)),
        (f"{MINDSPORE}, kernel name: Default/MatMul-op2, alloc size: 4194304000B.", (NEED, OTHER)),
        (MLC, (Cause.ENGINE_UNDERPROVISION, NEED)),
        (f"{RMM} RMM failure at:/x/p.hpp:6: Maximum pool size exceeded", (Cause.LIMIT_SET, NEED, OTHER)),
        (f"{RMM} CUDA error at: /x/cuda.hpp:69: cudaErrorMemoryAllocation out of memory", (NEED, OTHER)),
        (XGBOOST, (NEED, OTHER)),
        ("Could not allocate tensor with 107374 bytes. There is not enough GPU video memory", (NEED, OTHER)),
        ("Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", (NEED, OTHER)),
        ("MODULE:PT_DEVMEM Allocation failed for size::2147483648 (2048)MB", (NEED, OTHER)),
        ("NRT_RESOURCE (4): Not enough NEURON CORE memory", (NEED, OTHER)),
        ("Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)", (NEED, OTHER)),
        ("OptiX error OPTIX_ERROR_DEVICE_OUT_OF_MEMORY in optixDeviceContextCreate", (NEED, OTHER)),
        ("8007000E Not enough memory resources are available", (NEED, OTHER, HOST)),
        ("EL0004: Failed to allocate memory.", (NEED, OTHER)),
        ("[drm:amdgpu_cs_ioctl [amdgpu]] *ERROR* Not enough memory for command submission!", (NEED, OTHER)),
        (METAL, (Cause.LIMIT_SET, NEED)),
        ("NvMapMemAllocInternalTagged: 1075072515 error 12", (NEED, OTHER)),
        ('DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")', (NEED, OTHER)),
        ("CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY", (NEED, OTHER)),
        ("return tensor.pin_memory()\nRuntimeError: CUDA error: out of memory", (HOST, OTHER)),
        ("CUDA error: out of memory\nframe #1: at::cuda::CUDACachingHostAllocatorImpl::f", (HOST, OTHER)),
    ],
)
def test_a_device_that_refuses_says_seldom_who_holds_it(text: str, between: tuple[Cause, ...]) -> None:
    found = found_in(text)
    assert (found.found, found.cause, found.open_between) == (True, Cause.UNKNOWN, between)


@pytest.mark.parametrize(("pool", "cause"), [("7.101 GiB", NEED), ("3.101 GiB", Cause.UNKNOWN)])
def test_arrays_that_leave_no_room_are_a_real_need_whoever_else_is_there(pool: str, cause: Cause) -> None:
    text = (
        "Out of GPU memory trying to allocate 3.725 GiB\n"
        "Effective GPU memory usage: 98.33% (7.739 GiB/7.870 GiB)\n"
        f"Memory pool usage: {pool} (7.219 GiB reserved)"
    )
    assert found_in(text).cause is cause


def test_a_pool_that_asks_the_driver_for_less_and_trains_did_not_die() -> None:
    text = "failed to allocate 7.44G (7986702336 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory"
    assert found_in(text).found
    assert not found_in(f"{text}\nloss: 0.69\nloss: 0.55").found


@pytest.mark.parametrize(("free", "cause"), [("9.42G", NEED), ("12.42G", Cause.UNKNOWN)])
def test_a_chip_is_one_process_s_own(free: str, cause: Cause) -> None:
    text = "Attempting to reserve 10.51G at the bottom of memory. That was not possible. There are {} free"
    assert found_in(text.format(free)).cause is cause


@pytest.mark.parametrize(
    "warning",
    [
        "UCX WARN Please set max locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)",
        "Worker tcp://127.0.0.1:4 (pid=2) exceeded 95% memory budget. Restarting...",
    ],
)
def test_a_warning_gives_way_to_an_error_and_to_steps(warning: str) -> None:
    assert found_in(warning).cause is HOST
    assert found_in(f"{warning}\n{FULL_CARD}").cause is NEED
    assert not found_in(f"{warning}\nstep 1 loss 2.1\nstep 2 loss 2.0").found


@pytest.mark.parametrize(
    ("made", "shape", "path"),
    [
        ("jvp(D)/layers/attn/exp", "f32[8,32,4096,4096]", "attention/scores"),
        ("jvp(D)/bhqd,bhkd->bhqk/dot_general", "f32[8,32,4096,4096]", "attention/scores"),
        ("jvp(D)/attn/out/dot_general", "f32[64,32,4096,512]", "program"),
        ("jvp(D)/mlp/dot_general", "f32[8,32,4096,4096]", "program"),
    ],
)
def test_a_square_buffer_that_attention_makes_is_its_scores(made: str, shape: str, path: str) -> None:
    text = (
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 41876389888 bytes.\n"
        "BufferAssignment OOM Debugging.\nBufferAssignment stats:\n             parameter allocation:   12.94GiB\n"
        "     preallocated temp allocation:   39.00GiB\n                 total allocation:   51.94GiB\n"
        f'Peak buffers:\n\tBuffer 1:\n\t\tSize: 16.00GiB\n\t\tOperator: op_name="jit(f)/{made}" source_file="/x/m.py" source_line=71\n'
        f"\t\tXLA Label: fusion\n\t\tShape: {shape}\n"
    )  # fmt: skip
    found = diagnose_texts({"log": text})
    assert found.term is not None
    assert found.term.path == path
