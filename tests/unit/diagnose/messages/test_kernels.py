"""What a kernel wants beyond a multiprocessor's own is no shortage of the card's or the host's memory."""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import FULL_CARD

from memsheet.diagnose.message import NO, Cause
from memsheet.diagnose.verdict import diagnose_texts

KERNELS = {
    "Triton": ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 65536. Reducing block sizes or `num_stages` may help.", "128.00 KiB"),
    "Triton on Blackwell": ("OutOfResources: out of resource: tensor memory, Required: 640, Hardware limit: 512.", "tensor memory"),
    "Triton's threads": ("OutOfResources: out of resource: threads, Required: 2048, Hardware limit: 1024.", "2,048"),
    "ptxas": ("ptxas error   : Entry function 'chunk_bwd' uses too much shared data (0x12000 bytes, 0xc000 max)", "72.00 KiB"),
    "LLVM for AMD": ("error: <unknown>:0:0: local memory (81920) exceeds limit (65536) in function 'attn_fwd'", "80.00 KiB"),
    "Mosaic on a GPU": ("ValueError: Mosaic GPU kernel exceeds available shared memory: smem_bytes=262144 > max_smem_bytes=232448", "256.00 KiB"),
    "CUDA's runtime": ("RuntimeError: CUDA error: too many resources requested for launch", "registers"),
    "Mosaic on a TPU": ("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem while allocating on stack for %custom-call.", "the chip's own"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "says"), KERNELS.values(), ids=KERNELS)
def test_a_kernel_beyond_its_multiprocessor_lacks_no_memory(text: str, says: str) -> None:
    found = diagnose_texts({"log": f"docker run --shm-size 32g\nvllm serve m --gpu-memory-utilization 0.6\n{text}"})  # fmt: skip
    assert found.cause is Cause.UNSUPPORTED_SETTING
    assert says in found.because
    assert found.cures[0].change.startswith("smaller blocks")
    assert {cure.helps for cure in found.cures if "batch" in cure.change or "share" in cure.change} == {NO}


@pytest.mark.parametrize("text", [text for text, _ in KERNELS.values()], ids=KERNELS)
def test_a_request_that_failed_before_a_kernel_decides(text: str) -> None:
    assert diagnose_texts({"log": f"{FULL_CARD}\n{text}"}).cause is Cause.REAL_NEED
