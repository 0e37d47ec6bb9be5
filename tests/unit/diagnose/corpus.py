"""Messages in the shapes of their programs, and what each is to come to: a table of data."""

from __future__ import annotations

from typing import NamedTuple

HINT = (
    "If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)


class Case(NamedTuple):
    """A text, its verdict, and pieces of it: the path of the term, cures by whether they help."""

    name: str
    text: str
    verdict: str
    term: str | None = None
    maybe: tuple[str, ...] = ()
    yes: tuple[str, ...] = ()
    no: tuple[str, ...] = ()
    open_between: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    found: bool = True


def modern(
    asked: str,
    capacity: str,
    free: str,
    own: str | None,
    allocated: str,
    kept: str,
    *,
    others: tuple[tuple[int, str], ...] = (),
    pools: str | None = None,
    allowed: str | None = None,
    who: str = "CUDA",
    typo: bool = False,
) -> str:
    """The message of PyTorch since 2.1."""
    total = "capacty" if typo else "capacity"
    parts = [f"torch.OutOfMemoryError: {who} out of memory. Tried to allocate {asked}. "]
    parts += [f"GPU 0 has a total {total} of {capacity} of which {free} is free. "]
    parts += [f"{allowed} allowed; "] if allowed else []
    parts += [f"Process {pid} has {size} memory in use. " for pid, size in others]
    parts += [f"Including non-PyTorch memory, this process has {own} memory in use. "] if own else []
    parts += [f"Of the allocated memory {allocated} is allocated by PyTorch, "]
    parts += [f"with {pools} allocated in private pools (e.g., CUDA Graphs), "] if pools else []
    parts += [f"and {kept} is reserved by PyTorch but unallocated. {HINT}"]
    return "".join(parts)


def brackets(
    asked: str, capacity: str, allocated: str, free: str, reserved: str, *, who: str = "CUDA"
) -> str:
    """The message of PyTorch from 1.4 to 2.0."""
    return (
        f"RuntimeError: {who} out of memory. Tried to allocate {asked} (GPU 0; {capacity} total capacity; "
        f"{allocated} already "
        f"allocated; {free} free; {reserved} reserved in total by PyTorch) If reserved memory is >> "
        f"allocated memory try "
        "setting max_split_size_mb to avoid fragmentation."
    )


def traced(*functions: str, module: str = "site-packages/pkg/code.py") -> str:
    return "\n".join(
        [
            "Traceback (most recent call last):",
            *(f'  File "/x/{module}", line 3, in {each}\n    call()' for each in functions),
            "",
        ]
    )


VLLM = "site-packages/vllm/v1/worker/gpu_model_runner.py"
FULL_CARD = modern("2.00 GiB", "79.18 GiB", "1.00 GiB", "78.00 GiB", "77.00 GiB", "100.00 MiB")

TWELVE = (
    Case("1 real need in spite of the hint", modern("22.78 GiB", "31.47 GiB", "12.73 GiB", "18.70 GiB", "9.08 GiB", "9.35 GiB"),
         "real_need", no=("expandable segments", "torch.cuda.empty_cache()"), says=("22.08 GiB < 22.78 GiB",)),
    Case("2 fragmentation", modern("35.60 GiB", "79.33 GiB", "26.16 GiB", "53.14 GiB", "11.97 GiB", "40.69 GiB"),
         "fragmentation", maybe=("expandable segments",), says=("66.85 GiB",)),
    Case("3 a warm-up's segment", modern("2.00 MiB", "139.81 GiB", "1.88 MiB", "139.80 GiB", "2.05 GiB", "136.64 GiB"),
         "fragmentation", maybe=("expandable segments", "no warm-up of the allocator while weights are loaded"), says=("warm-up",)),
    Case("4 a neighbour", modern("576.00 MiB", "31.36 GiB", "370.69 MiB", "5.55 GiB", "4.90 GiB", "120.11 MiB", others=((16335, "25.34 GiB"),)),
         "other_process", yes=("end or move the other process 16335",), no=("expandable segments",), says=("16335", "25.34 GiB")),
    Case("5 free memory on Windows", 'File "C:\\apps\\run.py"\n' + modern("960.00 MiB", "23.99 GiB", "15.52 GiB", None, "6.78 GiB", "100.00 MiB"),
         "not_gpu_memory", maybe=("a larger page file",), no=("a smaller batch", "expandable segments"), says=("page file",)),
    Case("6 a limit", modern("2.00 GiB", "252.00 GiB", "244.65 GiB", "7.00 GiB", "900.00 MiB", "10.00 MiB", allowed="1.05 GiB", who="HIP"),
         "limit_set", yes=("raise or remove the limit on this process",), no=("expandable segments",)),
    Case("7 a sampler at run time", traced("execute_model", "top_k_mask_logits", module=VLLM) + modern(
        "594.00 MiB", "79.18 GiB", "508.00 MiB", "78.60 GiB", "74.24 GiB", "3.20 GiB", pools="57.88 MiB"),
         "engine_overcommit", term="sampler", maybe=("half as many requests at once: 512",), says=("1,024 tokens × 152,064 words",)),
    Case("8 a pipeline's cache", "VLLM_PP_LAYER_PARTITION=16,32\nValueError: To serve at least one request with the models's max seq len (262144), (24.0 GiB KV "
         "cache is needed, which is larger than the available KV cache memory (3.18 GiB). Based on the available memory, the estimated "
         "maximum model length is 34736. Try increasing `gpu_memory_utilization`.",
         "engine_underprovision", term="model", yes=("a context of 34,736 tokens at the most",), no=("a cache in eight bits",),
         says=("rank 0 with 16 of 48 layers 8.00 GiB, rank 1 with 32 of 48 layers 16.00 GiB", "34,736 tokens, as the server says", "98,304 bytes a token")),
    Case("9 somebody before the start", "ValueError: Free memory on device (67.24/79.25 GiB) on startup is less than desired GPU memory utilization (0.9, "
         "71.33 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
         "other_process", yes=("free what others hold of the card", "a share that is free: --gpu-memory-utilization 0.84")),
    Case("10 log-probabilities of too many tokens", "--max-tokens-per-gpu 9216\nvocab/TP 76032\n" + traced("compute_log_probs") + modern(
        "58.15 GiB", "139.81 GiB", "50.00 GiB", "89.00 GiB", "70.00 GiB", "7.00 GiB"),
         "real_need", term="loss/log_probs", no=("a loss in chunks",), says=("205,30",)),
    Case("11 graphs outside the allocator", modern("200.00 MiB", "23.64 GiB", "60.00 MiB", "23.58 GiB", "6.22 GiB", "100.00 MiB", pools="1.26 GiB"),
         "outside_allocator", maybe=("fewer CUDA graphs: shapes marked dynamic, or fewer sizes captured",), no=("expandable segments",)),
    Case("12 the first unfrozen step", "freeze_finetune_updates: 10000\n| epoch 001: update 10001\nbatch_size: 8 attention_heads: 16 source_len: 2000\n"
         + modern("1.91 GiB", "23.69 GiB", "900.00 MiB", "22.70 GiB", "21.50 GiB", "500.00 MiB"),
         "regime_change", term="attention/scores", maybe=("attention that writes no scores (sdpa, flash)",), says=("2,000²", "10,000")),
)  # fmt: skip

FURTHER = (
    Case("the driver's pool without a limit", "torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\n"
         "Currently allocated     : 22.20 GiB\nRequested               : 1.50 GiB\nDevice limit            : 23.99 GiB\n"
         "Free (according to CUDA): 0 bytes\nPyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB",
         "unknown", open_between=("fragmentation", "real_need")),
    Case("the driver's pool, in need", "Allocation on device 0 would exceed allowed memory. (out of memory)\n"
         "Currently allocated     : 22.20 GiB\nRequested               : 5.50 GiB\nDevice limit            : 23.99 GiB\n"
         "Free (according to CUDA): 12.00 MiB\nPyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB",
         "real_need"),
    Case("what is cached, before 1.4", "CUDA out of memory. Tried to allocate 500.00 MiB (GPU 0; 10.92 GiB total capacity; 9.80 GiB already allocated; "
         "100.00 MiB free; 150.00 MiB cached)", "real_need"),
    Case("all that is cached", "CUDA out of memory. Tried to allocate 500.00 MiB (GPU 0; 10.92 GiB total capacity; 9.80 GiB already allocated; "
         "100.00 MiB free; 10.10 GiB cached)", "real_need"),
    Case("cut after the size", "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", "unknown"),
    Case("without figures", "torch.OutOfMemoryError: CUDA out of memory.", "unknown"),
    Case("a test's report", "E       " + FULL_CARD + "\nFAILED tests/test_x.py::test_y - torch.OutOfMemoryError: CUDA out of memory.", "real_need"),
    Case("wrapped in mid word", "│ " + FULL_CARD.replace("unallocated", "unallo │\n│ cated").replace("capacity", "capa │\n│ city") + " │", "real_need"),
    Case("without a device's number", FULL_CARD.replace("GPU 0 has", "GPU  has"), "real_need"),
    Case("2.1's own spelling", modern("2.00 GiB", "79.18 GiB", "1.00 GiB", "78.00 GiB", "77.00 GiB", "100.00 MiB", typo=True), "real_need"),
    Case("a warning that went on", "x.py:3: UserWarning: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 4.00 GiB of which "
         "1.00 GiB is free. falling back", "unknown", found=False),
    Case("a container's own number", modern("2.00 GiB", "79.18 GiB", "1.00 GiB", None, "77.00 GiB", "100.00 MiB", others=((4711, "77.80 GiB"),)), "real_need"),
    Case("more than the card", modern("2.00 GiB", "23.99 GiB", "0 bytes", None, "30.10 GiB", "100.00 MiB"), "real_need"),
    Case("sibling ranks are small", modern("2.00 GiB", "79.18 GiB", "500.00 MiB", "75.00 GiB", "74.00 GiB", "100.00 MiB", others=tuple((n, "516.00 MiB") for n in range(1, 8))),
         "other_process", maybe=("let every rank choose its own card first",), says=("7 processes",)),
    Case("somebody unseen", modern("2.00 GiB", "79.18 GiB", "1.00 GiB", "20.00 GiB", "19.00 GiB", "100.00 MiB"), "other_process", says=("58.18 GiB", "not named")),
    Case("an older message cannot tell who", brackets("2.00 GiB", "79.18 GiB", "19.00 GiB", "1.00 GiB", "19.10 GiB"), "unknown",
         open_between=("other_process", "outside_allocator")),
    Case("an older real need", brackets("2.00 GiB", "23.69 GiB", "21.00 GiB", "1.00 GiB", "21.30 GiB"), "real_need"),
    Case("an older fragmentation", brackets("2.00 GiB", "23.69 GiB", "14.00 GiB", "1.00 GiB", "21.30 GiB"), "fragmentation"),
    Case("an NPU's message", brackets("2.00 GiB", "60.97 GiB", "58.00 GiB", "1.00 GiB", "58.30 GiB", who="NPU"), "real_need"),
    Case("XPU without a free figure", "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 15.90 GiB. Of the "
         "allocated memory 14.50 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.", "real_need"),
    Case("MPS in GB", "RuntimeError: MPS backend out of memory (MPS allocated: 17.00 GB, other allocations: 400.00 MB, max allowed: 18.13 GB). Tried to allocate "
         "1.50 GB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit", "limit_set"),
    Case("MPS in GiB", "RuntimeError: MPS backend out of memory (MPS allocated: 17.00 GiB, other allocations: 400.00 MiB, max allowed: 18.13 GiB). Tried to "
         "allocate 1.50 GiB on private pool.", "limit_set"),
    Case("HIP with more free than there is", modern("1.00 GiB", "16.00 GiB", "30.00 GiB", "1.00 GiB", "500.00 MiB", "10.00 MiB", who="HIP"), "not_gpu_memory"),
    Case("a leak of graphs", traced("train") + "    total_loss += loss\n" + FULL_CARD, "leak", maybe=("sum numbers, not tensors",)),
    Case("growth from step to step", "".join(f"MA {10 + n * 2}.00 GB         Max_MA 40.0 GB         CA {12 + n * 2}.0 GB         Max_CA 45 GB \n" for n in range(6))
         + FULL_CARD, "leak", says=("20.00 GiB",)),
    Case("an evaluation", traced("train", "evaluate", "evaluation_loop", "prediction_step") + FULL_CARD, "regime_change"),
    Case("a script that only evaluates", traced("main", "evaluate") + FULL_CARD, "real_need"),
    Case("a checkpoint is saved", traced("train", "_save_checkpoint") + FULL_CARD, "regime_change"),
    Case("a run that resumes", traced("pretrain", "load_checkpoint", "load_state_dict") + FULL_CARD, "regime_change"),
    Case("weights do not fit", traced("load_model", "load_weights", module=VLLM) + FULL_CARD, "real_need", term="model"),
    Case("graphs of a server", traced("capture_model", module=VLLM) + FULL_CARD, "engine_overcommit", term="model"),
    Case("the loss", traced("train", "training_step", "cross_entropy") + modern("37.09 GiB", "79.18 GiB", "34.48 GiB", "44.10 GiB", "43.20 GiB", "300.00 MiB"),
         "real_need", term="loss", yes=("half the micro-batch or half the length",), no=("expandable segments", "torch.cuda.empty_cache()"),
         maybe=("a loss that never holds all logits (fused or in chunks)",), says=("65,536 tokens × 151,936 words",)),
    Case("the sampler's trial", FULL_CARD + "\nRuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering "
         "`max_num_seqs` or `gpu_memory_utilization` when initializing the engine.", "engine_overcommit", term="sampler", no=("a larger share of the card",)),
    Case("no cache", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", "engine_underprovision"),
    Case("no blocks", "INFO 03-03 19:38:29 executor_base.py:110] # GPU blocks: 0, # CPU blocks: 2048", "engine_underprovision"),
    Case("a cache in tokens", "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (14128). Try "
         "increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.", "engine_underprovision",
         yes=("a context of 14,128 tokens at the most",)),
    Case("a card by its name", "ValueError: Free memory on device cuda:1 (10.00/79.25 GiB) on startup is less than desired GPU memory utilization (0.9, 71.33 GiB).",
         "other_process", yes=("free what others hold of the card",)),
    Case("a share of all", "ValueError: Free memory on device (78.40/79.25 GiB) on startup is less than desired GPU memory utilization (1.0, 79.25 GiB).",
         "engine_overcommit", yes=("a share that is free: --gpu-memory-utilization 0.98",)),
    Case("a wake-up", "INFO Sleep mode freed 40.00 GiB memory, 20.00 GiB memory is still in use.\nRuntimeError: CUDA Error: out of memory at "
         "/x/vllm/csrc/cumem_allocator.cpp:62", "wake_up_race"),
    Case("a wake-up that slept for nothing", "Sleep mode freed 0.00 GiB memory, 60.00 GiB memory is still in use.\nMA 10.00 GB         Max_MA 40.0 GB         CA "
         "62.0 GB         Max_CA 65 GB \nwake_up\nCUDA Error: out of memory at x/cumem_allocator.cpp:163", "wake_up_race", says=("52.00 GiB", "freed nothing")),
    Case("a wake-up as escaped JSON", '{"error": "Traceback\\n  File \\"x.py\\", line 3, in wake_up\\nRuntimeError: CUDA Error: out of memory at x/cumem_allocator.cpp:62"}',
         "wake_up_race"),
    Case("a resume", "[torch_memory_saver.cpp] CUresult error: 2 (out of memory) file=core.cpp func=cu_mem_create line=104", "wake_up_race"),
    Case("a server's weights", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "engine_underprovision", no=("a smaller share",)),
    Case("a server's graphs", "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.18 GiB of "
         "which 1.00 GiB is free.\nPossible solutions:\n1. set --mem-fraction-static to a smaller value", "engine_overcommit"),
    Case("slots", "RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for `--max-running-requests`.", "engine_underprovision", says=("no bytes",)),
    Case("NCCL's buffers", "NCCL WARN Failed to CUDA calloc 6291456 bytes", "outside_allocator", says=("6,291,456",)),
    Case("NCCL's driver", "include/alloc.h:178 NCCL WARN Cuda failure 2 'out of memory'", "outside_allocator"),
    Case("cuBLAS", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "unknown",
         open_between=("outside_allocator", "follow_up_error")),
    Case("cuBLAS behind an assertion", "device-side assert triggered\nRuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "follow_up_error"),
    Case("a size beyond sense", "RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.", "follow_up_error"),
    Case("the driver alone", "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported", "unknown",
         open_between=("other_process", "outside_allocator")),
    Case("a compute buffer", "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 14136.00 MiB on device 0: cudaMalloc failed: out of memory\n"
         "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 14822670336\ngraph_reserve: failed to allocate compute buffers", "real_need",
         term="compute graph", maybe=("attention without the matrix of scores",)),
    Case("four copies", "n_copies = 4\nggml_backend_cuda_buffer_type_alloc_buffer: allocating 279356.00 MiB on device 0: cudaMalloc failed: out of memory\n"
         "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 292925997056", "real_need", term="compute graph",
         maybe=("one copy of the compute buffer in place of a pipeline's four",)),
    Case("weights of a file", "using device CUDA0 (NVIDIA) - 22994 MiB free\nggml_backend_cuda_buffer_type_alloc_buffer: allocating 30000.00 MiB on device 0: cudaMalloc "
         "failed: out of memory\nalloc_tensor_range: failed to allocate CUDA0 buffer of size 31457280000\nllama_model_load: error loading model: unable to allocate CUDA0 buffer",
         "real_need", term="model", maybe=("fewer layers on the GPU",), says=("22.46 GiB",)),
    Case("a retry that succeeds", "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 0: cudaMalloc failed: out of memory\n"
         "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 4294967296\nsched_reserve: compute buffer allocation failed, retrying without pipeline parallelism\n"
         "main: server is listening", "unknown", found=False),
    Case("the host's buffer", "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 20000000000\nalloc_tensor_range: failed to allocate CPU buffer of "
         "size 20000000000", "not_gpu_memory"),
    Case("Ollama", "Error: model requires more system memory (12.3 GiB) than is available (9.1 GiB)", "not_gpu_memory", says=("12.30 GiB",)),
    Case("Ray", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", "not_gpu_memory", says=("youngest",)),
    Case("the kernel", "[123.4] Out of memory: Killed process 4242 (python) total-vm:123456kB, anon-rss:99614720kB, file-rss:0kB", "not_gpu_memory", says=("4242", "95.00 GiB")),
    Case("a control group", "Memory cgroup out of memory: Killed process 4242 (python) total-vm:1kB, anon-rss:1048576kB", "not_gpu_memory", no=("a smaller batch on the GPU",)),
    Case("a signal", "torch.distributed.elastic: failed (exitcode: -9) local_rank: 0 (pid: 123) of binary: python", "not_gpu_memory"),
    Case("a scheduler", "command terminated with exit code 137", "not_gpu_memory"),
    Case("a shell", "step 3\nrun.sh: line 12:  4242 Killed                  python train.py", "not_gpu_memory"),
    Case("a shell alone", "step 3\nKilled\n", "not_gpu_memory"),
    Case("a word alone", "Killed the idle workers; Killed", "unknown", found=False),
    Case("shared memory", "RuntimeError: DataLoader worker (pid 123) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
         "not_gpu_memory", maybe=("more shared memory for the container",)),
    Case("NCCL's shared memory", "NCCL WARN Call to posix_fallocate failed: No space left on device\nError while creating shared memory segment /dev/shm/nccl-abc",
         "not_gpu_memory", maybe=("more shared memory for the container",)),
    Case("a page file", "OSError: [WinError 1455] Le fichier de pagination est insuffisant pour terminer cette opération", "not_gpu_memory", maybe=("a larger page file",)),
    Case("an array", "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 12.3 GiB for an array with shape (1, 2) and data type float32", "not_gpu_memory", says=("12.30 GiB",)),
    Case("the CPU's allocator", "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 34359738368 bytes. "
         "Error code 12 (Cannot allocate memory)", "not_gpu_memory", says=("32.00 GiB",)),
    Case("XLA's sums", "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 14.08GiB.\nBufferAssignment stats:\n"
         "parameter allocation: 0.10GiB\nmaybe_live_out allocation: 9.64GiB\npreallocated temp allocation: 4.44GiB\nGPU total memory 12.00GiB", "real_need", says=("14.08 GiB",)),
    Case("XLA in bytes", "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 13421772800 bytes.", "unknown",
         open_between=("real_need", "other_process")),
    Case("XLA's pool", "Limit: 17179869184\nInUse: 16000000000\nMaxInUse: 16000000000\nLargestFreeBlock: 0\nRESOURCE_EXHAUSTED: Out of memory while trying to allocate "
         "8589934592 bytes.", "real_need"),
    Case("XLA's pool in pieces", "Limit: 17179869184\nInUse: 6000000000\nLargestFreeBlock: 1000000000\nRESOURCE_EXHAUSTED: Out of memory while trying to allocate "
         "8589934592 bytes.", "fragmentation"),
    Case("a TPU's compiler", "E1000: CompileTimeHbmOom: Ran out of memory in memory space hbm. Used 215.17G of 31.25G hbm. Exceeded hbm capacity by 183.92G.", "real_need",
         says=("183.92 GiB",)),
    Case("the driver's own call", "RuntimeError: CUDA driver error: out of memory", "unknown", open_between=("other_process", "outside_allocator")),
    Case("an old release", "RuntimeError: cuda runtime error (2) : out of memory at /x/aten/src/THC/generic/THCStorage.cu:58", "unknown",
         open_between=("real_need", "other_process")),
    Case("bitsandbytes", "Error out of memory at line 380 in file /x/bitsandbytes/csrc/pythonInterface.c", "unknown",
         open_between=("outside_allocator", "real_need", "other_process")),
    Case("Python's own", 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    x = json.load(f)\nMemoryError', "not_gpu_memory", says=("host memory was asked for",)),
    Case("Python's word alone", "we catch MemoryError\nMemoryError handling is on", "unknown", found=False),
    Case("C++'s own", "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\nAborted (core dumped)", "not_gpu_memory",
         says=("host memory was asked for and refused",)),
    Case("cards that are not alike", "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=39.5, "
         "local_gpu_memory=78.3, local_gpu_memory * 0.9=70.47", "other_process", says=("39.50 GiB", "78.30 GiB")),
    Case("a warning of it", "WARNING The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=39.5, local_gpu_memory=78.3",
         "unknown", found=False),
    Case("a trial run that was disturbed", "AssertionError: Error in memory profiling. Initial free memory 60.00 GiB, current free memory 65.00 GiB. This happens when other "
         "processes release memory", "other_process", says=("60.00 GiB", "65.00 GiB")),
    Case("TensorFlow", "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[64,128,1024,1024] and type float on "
         "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:Conv2D]", "unknown", open_between=("real_need", "other_process"), says=("32.00 GiB",)),
    Case("TensorFlow on the host", "ResourceExhaustedError: OOM when allocating tensor with shape[1024,1024] and type half on /job:localhost/device:CPU:0 by allocator cpu",
         "not_gpu_memory", says=("2.00 MiB",)),
    Case("ONNX Runtime", "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : BFCArena::AllocateRawInternal(size_t, bool) Failed to allocate memory for requested buffer of size "
         "1073741824", "unknown", open_between=("real_need", "other_process", "not_gpu_memory"), says=("1.00 GiB",)),
    Case("TensorRT", "[TRT] [E] 1: [defaultAllocator.cpp::allocate::20] Error Code 1: Cuda Runtime (out of memory)", "unknown", open_between=("real_need", "other_process")),
    Case("CuPy", "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes (allocated so far: 4,294,967,296 bytes).", "unknown",
         open_between=("real_need", "other_process"), says=("8.00 GiB", "4.00 GiB")),
    Case("CuPy's limit", "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes (allocated so far: 4,294,967,296 bytes, limit set to: "
         "10,737,418,240 bytes).", "limit_set", says=("10.00 GiB",)),
    Case("a server's cache", "load_tensors: CUDA0 model buffer size =  4403.49 MiB\nggml_backend_cuda_buffer_type_alloc_buffer: allocating 8192.00 MiB on device 0: cudaMalloc "
         "failed: out of memory\nalloc_tensor_range: failed to allocate CUDA0 buffer of size 8589934592\nllama_init_from_model: failed to initialize the context: failed to "
         "allocate buffer for kv cache", "real_need", maybe=("a shorter context", "a cache in eight bits", "fewer layers on the GPU"), says=("the KV cache",)),
    Case("a server's trial prefill", "ERROR warmup{max_prefill_tokens=16384}: Server error: Not enough memory to handle 16384 prefill tokens. You need to decrease "
         "`--max-batch-prefill-tokens`", "real_need", maybe=("fewer tokens in one pass",), says=("16,384 tokens",)),
    Case("a server's call to the driver", "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, mMemPool->getPool()): out of memory (/x/tllmBuffers.h:211)",
         "unknown", open_between=("engine_overcommit", "real_need", "other_process"), maybe=("fewer requests at once",)),
    Case("layers split over cards", "RuntimeError: Insufficient VRAM for model and cache", "unknown", open_between=("real_need", "other_process")),
    Case("a kernel's own memory", "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376. Reducing block sizes or "
         "`num_stages` may help.", "unsupported_setting", no=("a smaller batch",), says=("144.00 KiB", "99.00 KiB")),
    Case("words of nobody that is known", "FATAL error in launch: device is out of memory, giving up", "unknown", says=("no figures",)),
    Case("an exception without more", "  what():  CUDA out of memory", "unknown", says=("no figures",)),
    Case("a manual", "If you run into out of memory errors, lower the batch. A message such as `CUDA out of memory` means that the card is full.", "unknown", found=False),
    Case("nothing", "Epoch 3 finished, loss 1.23", "unknown", found=False),
    Case("a table of cards", "| NVIDIA-SMI 550.54 |\n| 30%   40C    P2    300W / 350W |  20000MiB /  24576MiB |    100%      Default |\n|    0   N/A  N/A      1234      C   python"
         "                                      19990MiB |", "unknown", found=False),
    Case("a table of failures", "PyTorch CUDA memory summary, device ID 0\n|            CUDA OOMs: 1            |        cudaMalloc retries: 2         |\n"
         "| Allocated memory      |  10240 MiB |  20480 MiB |  30720 MiB |  20480 MiB |", "unknown"),
    Case("a table without failures", "PyTorch CUDA memory summary, device ID 0\n|            CUDA OOMs: 0            |        cudaMalloc retries: 0         |", "unknown", found=False),
    Case("ranks repeat it", "\n".join(f"[rank{n}]: {FULL_CARD}" for n in range(8)), "real_need", says=("7 later messages",)),
)  # fmt: skip

TEXTS = (*TWELVE, *FURTHER)
