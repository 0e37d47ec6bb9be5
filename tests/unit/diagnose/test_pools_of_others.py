"""Pools of JAX, TensorFlow and ONNX Runtime: whose their limit is, and what stands beside PyTorch's."""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import modern, traced

from memsheet.diagnose.message import NO, Cause
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts


def found_in(*lines: str) -> Diagnosis:
    return diagnose_texts({"log": "\n".join(lines)})


def stats(limit: int, used: int) -> str:
    return f"bfc_allocator.cc:1101] Stats:\nLimit: {limit}\nInUse: {used}\nLargestFreeBlock: 1411384320\n"


JAX = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes."
TENSOR = (
    "ResourceExhaustedError: OOM when allocating tensor with shape[64,128,256,256] and type float on "
    "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
)
JAX_POOL, TENSOR_POOL = stats(17003705958, 15482040320), stats(4294967296, 3940649472)


@pytest.mark.parametrize(
    ("said", "pool", "message", "cause"),
    [
        ("A100 80GB XLA_PYTHON_CLIENT_MEM_FRACTION=.20", JAX_POOL, JAX, Cause.LIMIT_SET),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION=.20", JAX_POOL, JAX, Cause.LIMIT_SET),  # of a card of 79 GiB then
        ("XLA_PYTHON_CLIENT_MEM_FRACTION=.95", JAX_POOL, JAX, Cause.REAL_NEED),
        ("A100 80GB", JAX_POOL, JAX, Cause.REAL_NEED),  # which no setting says
        ("LogicalDeviceConfiguration(memory_limit=4096)", TENSOR_POOL, TENSOR, Cause.UNKNOWN),
        ("RTX 4090 LogicalDeviceConfiguration(memory_limit=4096)", TENSOR_POOL, TENSOR, Cause.LIMIT_SET),
        ("RTX 4090 per_process_gpu_memory_fraction=0.2", TENSOR_POOL, TENSOR, Cause.LIMIT_SET),
        ("GTX 1050 Ti memory_limit=4096", TENSOR_POOL, TENSOR, Cause.REAL_NEED),
        ("RTX 4090", TENSOR_POOL, TENSOR, Cause.REAL_NEED),
        ("A100-40GB memory_limit=38912", stats(38 * 2**30, 37 * 2**30), TENSOR, Cause.REAL_NEED),
        ("A100-80GB memory_limit=38912", stats(38 * 2**30, 37 * 2**30), TENSOR, Cause.LIMIT_SET),
        ("A100 memory_limit=38912", stats(38 * 2**30, 37 * 2**30), TENSOR, Cause.UNKNOWN),  # of either
        ("A100 memory_limit=61440", stats(60 * 2**30, 59 * 2**30), TENSOR, Cause.LIMIT_SET),  # of 80 GB then
    ],
)
def test_a_pools_limit_is_a_settings_where_the_card_has_more(
    said: str, pool: str, message: str, cause: Cause
) -> None:
    assert found_in(said, pool, message).cause is cause


RAN_OUT = (
    "bfc_allocator.cc:439] Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.02GiB (rounded to 1098907648)"
    "requested by op Conv2DBackpropInput"
)  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "cause", "found"),
    [
        (("RTX 3090 memory_limit=4096", RAN_OUT, TENSOR_POOL), Cause.LIMIT_SET, True),
        (("RTX 3090", RAN_OUT, TENSOR_POOL), Cause.REAL_NEED, True),
        ((RAN_OUT,), Cause.UNKNOWN, True),
        ((RAN_OUT, "loss: 2.1", "loss: 2.0"), Cause.UNKNOWN, False),
        ((f"{RAN_OUT} The caller indicates that this is not a failure", TENSOR_POOL), Cause.UNKNOWN, False),
    ],
)
def test_an_allocator_s_own_line_speaks_where_nothing_else_does(
    lines: tuple[str, ...], cause: Cause, found: bool
) -> None:
    judged = found_in(*lines)
    assert (judged.cause, judged.found) == (cause, found)


def test_the_tensor_that_was_refused_speaks_for_its_allocator() -> None:
    assert found_in(RAN_OUT, TENSOR_POOL, TENSOR).term == found_in(TENSOR_POOL, TENSOR).term is not None


ARENA = (
    "BFCArena::AllocateRawInternal Available memory of 312475648 is smaller than requested bytes of 805306368"
)


@pytest.mark.parametrize(
    ("said", "cause", "words"),
    [
        ('"gpu_mem_limit": 2 * 1024 * 1024 * 1024,', Cause.LIMIT_SET, "2.00 GiB"),
        ("gpu_mem_limit=2147483648", Cause.LIMIT_SET, "2.00 GiB"),
        ("", Cause.LIMIT_SET, "its limit"),
        ("GTX 1050 Ti, gpu_mem_limit: 4 * 1024 * 1024 * 1024", Cause.REAL_NEED, "4.00 GiB"),
        ("A100, gpu_mem_limit: 38 * 1024 * 1024 * 1024", Cause.UNKNOWN, "38.00 GiB"),
        ("A100 80GB, gpu_mem_limit: 38 * 1024 * 1024 * 1024", Cause.LIMIT_SET, "38.00 GiB"),
    ],
)
def test_an_arena_has_the_limit_that_it_was_given(said: str, cause: Cause, words: str) -> None:
    found = found_in(said, ARENA)
    assert found.cause is cause
    assert words in found.because


@pytest.mark.parametrize(
    ("said", "first"),
    [
        ("a Keras metric in the same script", "TensorFlow in this process"),
        ("import jax", "JAX in this process"),
        ("faiss.index_cpu_to_gpu(res, 0, index)", "the index on the host"),
        ("import cupy", "the other library's pool"),
        ('torch.compile(mode="reduce-overhead")', "fewer CUDA graphs"),
        ("NCCL_BUFFSIZE=8388608", "fewer or smaller communicators"),
        ("", "fewer CUDA graphs"),
    ],
)
def test_what_stands_outside_the_allocator_is_called_by_its_name(said: str, first: str) -> None:
    found = found_in(
        said,
        traced("f"),
        modern("256.00 MiB", "39.39 GiB", "153.38 MiB", "39.24 GiB", "3.12 GiB", "267.12 MiB"),
    )
    assert found.cause is Cause.OUTSIDE_ALLOCATOR
    assert found.cures[0].change.startswith(first)


@pytest.mark.parametrize("end", ["is reser", "is reserved by PyTorch but unallocated."])
@pytest.mark.parametrize("pools", ["", " with 57.88 MiB allocated in private pools (e.g., CUDA Graphs),"])
def test_a_figure_is_read_where_its_words_are_cut(end: str, pools: str) -> None:
    found = found_in(
        "CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 39.39 GiB of which 153.38 MiB is free. Including "
        "non-PyTorch memory, this process has 39.24 GiB memory in use. Of the allocated memory 38.12 GiB is allocated by PyTorch,"
        f"{pools} and 67.12 MiB {end}\n[output truncated]"
    )  # fmt: skip
    assert found.cause is Cause.REAL_NEED
    assert any(cure.change == "expandable segments" and cure.helps == NO for cure in found.cures)
