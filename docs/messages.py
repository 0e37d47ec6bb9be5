"""A page for each error message of memory: what it means, an example, and what memsheet says of it.

The examples are made up in the form of each emitter (``diagnose/messages/`` says whose); what is said of them is computed.
"""

# ruff: noqa: INP001

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from memsheet.questions.diagnose import diagnose_named_texts
from memsheet.report.screen.died.diagnosis import render_diagnosis
from memsheet.report.shared.look import Look

GENERATED = "<!-- made by docs/messages.py: edit the table there, then `make regold` -->\n"
WIDTH = 96


class Said(NamedTuple):
    """A message: its page's name, its words as a title, what it means, and an example."""

    page: str
    title: str
    meaning: str
    example: str


MODERN = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of {card} of which {free} is free. "
    "Including non-PyTorch memory, this process has {process} memory in use. Of the allocated memory {allocated} is allocated by PyTorch, and {kept} "
    "is reserved by PyTorch but unallocated."
)
MESSAGES = (
    Said("cuda-out-of-memory", "CUDA out of memory. Tried to allocate", "The allocator looked for a block in what it keeps, asked the device for a new segment, gave back all whole "
         "segments that it kept, and asked again. The sum of what is free and what is kept decides whether any setting could have helped.",
         MODERN.format(asked="8.00 GiB", card="79.25 GiB", free="2.50 GiB", process="76.60 GiB", allocated="74.80 GiB", kept="1.20 GiB")),
    Said("reserved-but-unallocated", "… is reserved by PyTorch but unallocated", "What is kept without tensors. Where it is much, it lies in pieces between tensors: enough in sum, and no piece large "
         "enough. Pages that are mapped where they are needed merge it.",
         MODERN.format(asked="8.00 GiB", card="79.25 GiB", free="2.50 GiB", process="76.60 GiB", allocated="54.80 GiB", kept="21.20 GiB")),
    Said("hip-out-of-memory", "HIP out of memory", "The same allocator on AMD's cards, with the same words.",
         MODERN.format(asked="8.00 GiB", card="191.98 GiB", free="2.50 GiB", process="189.30 GiB", allocated="187.10 GiB", kept="1.20 GiB").replace("CUDA", "HIP")),
    Said("mps-backend-out-of-memory", "MPS backend out of memory", "On Apple's machines the GPU shares the host's memory, and PyTorch stops at a share of what the system recommends.",
         "RuntimeError: MPS backend out of memory (MPS allocated: 17.50 GB, other allocations: 384.00 KB, max allowed: 18.13 GB). Tried to allocate 1.50 GB on private pool."),
    Said("cuda-error-out-of-memory", "CUDA error: out of memory", "The driver itself refused, without figures: in a context, a library's workspace or a graph. Often another process holds the card: nvidia-smi beside it says so.",
         "RuntimeError: CUDA error: out of memory"),
    Said("cublas-status-alloc-failed", "CUBLAS_STATUS_ALLOC_FAILED", "The library of matrix products found no room for its handle or workspace, which is outside PyTorch's allocator.",
         "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    Said("nccl-cuda-failure-out-of-memory", "NCCL WARN Cuda failure 'out of memory'", "A communicator found no room for its buffers, which stand beside PyTorch's allocator.",
         "gpu01:1234:1234 [0] include/alloc.h:205 NCCL WARN Cuda failure 'out of memory'"),
    Said("tried-to-allocate-more-than-1eb", "tried to allocate more than 1EB memory", "No shortage: a collective was aborted, and the size that it would have agreed on is nonsense. An earlier error of some rank is the cause.",
         "RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory."),
    Said("cumem-allocator-out-of-memory", "CUDA Error: out of memory at cumem_allocator.cpp", "A server that slept takes its memory back while the trainer still holds the card.",
         "CUDA Error: out of memory at csrc/cumem_allocator.cpp:62"),
    Said("free-memory-on-startup", "Free memory on device … on startup is less than desired GPU memory utilization", "A server asks at its start for a share of the whole card, and somebody else has some of it already.",
         "ValueError: Free memory on device (60.10/79.25 GiB) on startup is less than desired GPU memory utilization (0.9, 71.33 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."),
    Said("no-available-memory-for-the-cache-blocks", "No available memory for the cache blocks", "Weights and the trial run take all of the server's share: nothing is left for the cache.",
         "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."),
    Said("to-serve-at-least-one-request", "To serve at least one request with the models's max seq len", "The cache that is left does not hold one request of the longest length that is allowed.",
         "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (9.50 GiB). "
         "Based on the available memory, the estimated maximum model length is 77824."),
    Said("warming-up-sampler", "CUDA out of memory occurred when warming up sampler", "The server's last trial at its start, requests × vocabulary in fp32, has no room beside the cache.",
         "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."),
    Said("not-enough-memory-mem-fraction-static", "Not enough memory. Please try to increase --mem-fraction-static", "The share for weights and cache does not hold the weights.",
         "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."),
    Said("alloc-req-slots", "alloc_req_slots runs out of memory", "Slots for requests are a count and no bytes.",
         "RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for `--max-running-requests`."),
    Said("failed-to-allocate-buffer", "failed to allocate CUDA0 buffer of size", "One buffer of weights, cache or computation of a llama.cpp program; the line before and after it says which.",
         "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 14136.00 MiB on device 0: cudaMalloc failed: out of memory\n"
         "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 14822670336\nllama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers"),
    Said("resource-exhausted", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate", "XLA's words. It takes most of the card when it starts, so that nvidia-smi says nothing of what is used.",
         "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 13421772800 bytes.\nBufferAssignment stats:\n"
         "parameter allocation: 2.00GiB\nmaybe_live_out allocation: 2.00GiB\npreallocated temp allocation: 12.50GiB\nGPU total memory 15.75GiB"),
    Said("compile-time-hbm-oom", "CompileTimeHbmOom: Ran out of memory in memory space hbm", "A TPU's compiler adds up what a program needs before it runs.",
         "E1000: CompileTimeHbmOom: Ran out of memory in memory space hbm. Used 40.20G of 31.25G hbm. Exceeded hbm capacity by 8.95G."),
    Said("default-cpu-allocator", "DefaultCPUAllocator: can't allocate memory", "The host's memory, not the GPU's: a model that is built, loaded or saved there.",
         "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 34359738368 bytes. Error code 12 (Cannot allocate memory)"),
    Said("killed-exit-code-137", "Killed, exit code 137", "The kernel, a container or a scheduler ended the process for the host's memory that it used.",
         "train.sh: line 9:  4711 Killed                  python train.py\nProcess ended with exit code 137"),
    Said("bus-error-shared-memory", "DataLoader worker is killed by signal: Bus error", "Workers hand batches over in shared memory, and a container's is 64 MiB.",
         "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit."),
    Said("paging-file-is-too-small", "The paging file is too small for this operation to complete", "Windows promises memory against its page file, also for what is on the GPU.",
         "OSError: [WinError 1455] The paging file is too small for this operation to complete"),
)  # fmt: skip


def message_page(said: Said) -> str:
    """The page of one message."""
    found = diagnose_named_texts({"error.txt": said.example}, None, {})
    screen = render_diagnosis(found, Look(width=WIDTH)).rstrip()
    return "\n".join([
        GENERATED, f"# {said.title}", "", said.meaning, "", "```", said.example, "```", "", "What `memsheet diagnose` says of this example:", "", "```", screen, "```", "",
        "Give it yours, whole, with the lines around it: the log says more than the message. With the plan that ran, or with a snapshot of the allocator,",
        "it names the tensor and the line: [a job that died](../guides/diagnose.md).", "",
    ])  # fmt: skip


def index_page() -> str:
    """The page that lists them."""
    rows = [f"- [{said.title}]({said.page}.md)" for said in MESSAGES]
    tree = ["```{toctree}", ":hidden:", "", *(said.page for said in MESSAGES), "```", ""]
    start = "What each message means, and what can be told from it. `memsheet diagnose` reads them all from a log ([how](../guides/diagnose.md))."
    return "\n".join([GENERATED, "# Error messages", "", start, "", *rows, "", *tree])


PAGES: dict[str, Callable[[], str]] = {
    "messages/index.md": index_page, **{f"messages/{said.page}.md": partial(message_page, said) for said in MESSAGES},
}  # fmt: skip
