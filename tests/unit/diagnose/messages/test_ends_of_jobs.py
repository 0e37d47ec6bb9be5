"""Ends of jobs in the words of other vendors, other servers, systems that kill, libraries below PyTorch, and
texts of which nothing is to be said: a line or a few each, and what they come to.
"""

from __future__ import annotations

from laws import every
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts

ENDS: dict[str, tuple[tuple[str, str], ...]] = {
    "engine_overcommit": (
        ("vllm sampler", "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."),
    ),
    "engine_overcommit or real_need or other_process": (
        ("lmdeploy", "[TM][ERROR] CUDA runtime error: out of memory /lmdeploy/src/turbomind/utils/allocator.h:246"),
        ("trtllm", "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, mMemPool->getPool(), mCudaStream->get()): out of memory"),
    ),
    "engine_underprovision": (
        ("tgi kv", "ERROR text_generation_launcher: Webserver Crashed: Not enough memory to handle `max_total_tokens=8192`"),
        ("sglang least share", "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.8. Raise --mem-fraction-static above 0.871 (minimum viable = 1 - available/pre = 0.8704)."),
        ("sglang windows", "RuntimeError: SWA pool cap (131072 tokens, 12.00 GiB) leaves no room for the full KV pool within the available 9.41 GiB. Reduce --max-running-requests."),
        ("sglang states", "RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any requests. max_mamba_cache_size=2, mamba_ratio=3, resulting max_num_reqs=0."),
        ("npu vllm", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n(NPUWorker pid=11) vllm_ascend/worker/worker.py"),
        ("lmdeploy pt", "lmdeploy - ERROR - engine.py: RuntimeError: No enough gpu memory for runtime."),
        ("sglang one request", "AssertionError: No space left for only one request, self.token_to_kv_pool_allocator.available_size()=0"),
        ("sglang one request of windows", "AssertionError: No space left for only one request in SWA mode full_available_size=0, swa_available_size=512"),
        ("sglang pool", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. sglang/srt/model_executor/model_runner.py"),
        ("vllm maxlen", "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache (40960). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine. vllm"),
    ),
    "engine_underprovision or real_need": (
        ("mlc", "InternalError: Check failed: (output_res.IsOk()) is false: Insufficient GPU memory error: The available single GPU memory is 5734.400 MB, which is less than the sum of model weight size (7642.1 MB) and temporary buffer size (1210.0 MB)."),
    ),
    "follow_up_error": (
        ("a shard", "ERROR text_generation_launcher: Shard 1 crashed\nError: ShardFailed"),
        ("sglang's child", "Received sigquit from a child process. It usually means the child failed."),
        ("vllm's worker", "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."),
        ("1eb", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory."),
    ),
    "fragmentation": (
        ("hip old", "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.98 GiB total capacity; 8.41 GiB already allocated; 1.02 GiB free; 14.60 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_HIP_ALLOC_CONF"),
    ),
    "limit_set": (
        ("mps", "RuntimeError: MPS backend out of memory (MPS allocated: 17.85 GB, other allocations: 512.00 MB, max allowed: 18.13 GB). Tried to allocate 256.00 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure)."),
        ("jax k8s", 'RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9663676416 bytes.\nLimit: 21247033344\nInUse: 14102364672\nenv:\n - name: "XLA_PYTHON_CLIENT_MEM_FRACTION"\n   value: "0.25"\nA100 80GB'),
        ("jax py", 'os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.25"\nRESOURCE_EXHAUSTED: Out of memory while trying to allocate 9663676416 bytes.\nLimit: 21247033344\nInUse: 14102364672\nA100 80GB'),
    ),
    "limit_set or real_need": (
        ("mps buffer", "RuntimeError: Invalid buffer size: 14.34 GB"),
        ("mps nd", "/AppleInternal/Library/BuildRoots/x/MPSNDArray.mm:850: failed assertion `[MPSNDArray initWithDevice:descriptor:] Error: total bytes of NDArray > 2**32'"),
        ("mlx malloc", "RuntimeError: [metal::malloc] Attempting to allocate 28991029248 bytes which is greater than the maximum allowed buffer size of 17179869184 bytes."),
    ),
    "no figures": (
        ("a pool's own line alone", "W tensorflow/core/common_runtime/bfc_allocator.cc:497] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB (rounded to 2147483648)requested by op Conv2D"),
        ("the class in prose", "it just says torch.cuda.OutOfMemoryError and nothing else, qlora on a T4"),
        ("mem only zh", "跑起来报 CUDA out of memory，怎么办"),
        ("cudnn engine", "RuntimeError: GET was unable to find an engine to execute this computation"),
        ("ffmpeg", "CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
    ),
    "not_gpu_memory": (
        ("ggml host", "ggml_aligned_malloc: insufficient memory (attempted to allocate 40960.00 MB)\nggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 42949672960"),
        ("ggml host alone", "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 42949672960"),
        ("slurm figures", "slurmstepd: error: Job 123 exceeded memory limit (98304000 > 67108864), being killed"),
        ("k8s shm", 'The pod was evicted: Usage of EmptyDir volume "dshm" exceeds the limit "8Gi".'),
        ("a driver's line before the allocator's", "NvMapMemAllocInternalTagged: 1075072515 error 12\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 29.82 GiB of which 3.10 GiB is free. Of the allocated memory 12.00 GiB is allocated by PyTorch, and 120.00 MiB is reserved by PyTorch but unallocated."),
        ("exits with 137", "the container exits with code 137 a few seconds after 'Loading model weights'"),
        ("killed behind a bar", "Loading checkpoint shards:  33%|###3      | 5/15 [01:02<02:05, 12.5s/it]Killed"),
        ("k8s describe", "Containers:\n  trainer:\n    State:          Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n    Limits:\n      memory:          64Gi\n      nvidia.com/gpu:  1\n"),
        ("k8s 137 only", "pod/train-0   0/1   Error   1   command terminated with exit code 137"),
        ("k8s last state", "Last State: Terminated\n  Reason: OOMKilled\n  Exit Code: 137\nnvidia-smi showed 11 GB of 80 used all the time. Should I use a smaller batch?"),
        ("docker exited 137", 'my container: Exited (137) 2 minutes ago, "OOMKilled": true in docker inspect, while loading a 70B checkpoint'),
        ("docker 137 false", 'docker inspect says "OOMKilled": false, ExitCode 137. the training stopped when map() of the dataset was running'),
        ("slurm", "slurmstepd: error: Detected 1 oom_kill event in StepId=48211.0. Some of the step tasks have been OOM Killed.\nsrun: error: gpu12: task 0: Out Of Memory"),
        ("slurm old", "slurmstepd: error: Detected 2 oom-kill event(s) in StepId=1290.batch cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler."),
        ("slurm task only", "srun: error: node07: task 3: Out Of Memory\nsrun: Terminating job step 8812.0"),
        ("sacct", "JobID State ExitCode MaxRSS ReqMem\n123 OUT_OF_ME+ 0:125 \n123.batch OUT_OF_ME+ 0:125 64210432K 64G"),
        ("dmesg", "[12345.678] Out of memory: Killed process 4412 (python3) total-vm:180012344kB, anon-rss:62011232kB, file-rss:0kB"),
        ("dmesg cg", "[ 8831.1] Memory cgroup out of memory: Killed process 991 (pt_main_thread) total-vm:90012344kB, anon-rss:32011232kB"),
        ("systemd oomd", "systemd-oomd[812]: Killed /user.slice/user-1000.slice/app.scope due to memory pressure for /user.slice being 62.41% > 50.00% for > 20s with reclaim activity"),
        ("earlyoom", 'earlyoom[700]: sending SIGTERM to process 5123 uid 1000 "python": badness 1021, VmRSS 58321 MiB'),
        ("earlyoom journal", 'Nov 12 03:11:42 box earlyoom[912]: sending SIGTERM to process 33311 uid 1000 "python": badness 1089, VmRSS 57312 MiB'),
        ("oomd journal", "Nov 12 03:11:42 box systemd-oomd[731]: Killed /user.slice/user-1000.slice/app.scope due to memory pressure for /user.slice being 67.31% > 50.00% for > 20s with reclaim activity"),
        ("winevent", "Event ID: 2004\nWindows successfully diagnosed a low virtual memory condition. The following programs consumed the most virtual memory: python.exe (21344) consumed 41231876096 bytes"),
        ("slurm subject", "Slurm Job_id=2231907 Name=sft-7b Failed, Run time 00:41:12, OUT_OF_MEMORY"),
        ("sacct", "JobID  JobName  State  ExitCode\n2231  train  OUT_OF_MEMORY  0:125"),
        ("slurm letter", "Ihr Job 4431122 wurde beendet, weil er mehr Arbeitsspeicher belegt hat als angefordert (Status: OUT_OF_MEMORY)."),
        ("helpdesk", "Dear user, your job 88 was killed by our watchdog because it used more memory than it had requested (128 GB)."),
        ("helpdesk limit", "your batch job 7712 on gpu-node-11 was terminated by the resource\nmanager because the memory usage of the job (251.9 GB) exceeded the requested amount (250 GB)."),
        ("helpdesk fr", "Votre travail 71 a été arrêté car il a utilisé plus de mémoire que demandé (64 Go)."),
        ("helpdesk zh", "您的作业 4412 已被终止：使用的内存超过了申请的内存。"),
        ("condor held", "Error from slot1_3@node: Job has gone over cgroup memory limit of 65536 megabytes. Last measured usage: 65531 megabytes.  Consider resubmitting with a higher request_memory."),
        ("cloud run", "Memory limit of 16384 MiB exceeded with 16601 MiB used. Consider increasing the memory limit"),
        ("shm bus", "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\nRuntimeError: DataLoader worker (pid 214) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit."),
        ("nccl shm", "NCCL WARN Call to posix_fallocate failed : No space left on device\nNCCL WARN Error while creating shared memory segment /dev/shm/nccl-X8d2 (size 9637888)\ntorch.distributed.DistBackendError: NCCL error: unhandled system error"),
        ("nccl shm new", "node1:77:102 [2] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-WDzEJ9 to 33030532 bytes, error: No space left on device (28)"),
        ("elastic -9", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n  train.py FAILED\n  rank : 2 (local_rank: 2)\n  exitcode  : -9 (pid: 4411)\n  error_file: <N/A>\n  traceback : Signal 9 (SIGKILL) received by PID 4411"),
        ("ds -9", "[launch.py:315:sigkill_handler] Killing subprocess 881\n[2024-05-01 10:00:00,000] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python', '-u', 'train.py'] exits with return code = -9"),
        ("killed", "$ python load70b.py\nLoading checkpoint shards:  47%|####7     | 7/15\nKilled"),
        ("wsl killed", "WSL2, 32 GB RAM, .wslconfig default. python convert.py\nLoading checkpoint shards: 60%\nKilled"),
        ("colab", "Your session crashed after using all available RAM. View runtime logs"),
        ("kaggle", "Your notebook tried to allocate more memory than is available. It has restarted."),
        ("winerr1455", 'OSError: [WinError 1455] The paging file is too small for this operation to complete. Error loading "C:\\Python\\torch\\lib\\cufft64_10.dll" or one of its dependencies.'),
        ("winerr1455 de", 'OSError: [WinError 1455] Die Auslagerungsdatei ist zu klein, um diesen Vorgang durchzuführen. Error loading "C:\\venv\\torch\\lib\\cublas64_11.dll"'),
        ("winerr cn", "OSError: [WinError 1455] 页面文件太小，无法完成操作。"),
        ("winerr 8", "OSError: [WinError 8] Not enough memory resources are available to process this command"),
        ("winerr 1450", "OSError: [WinError 1450] Insufficient system resources exist to complete the requested service"),
        ("safetensors rust 1455", "safetensors_rust.SafetensorError: Error while opening file: The paging file is too small for this operation to complete. (os error 1455)"),
        ("cpu alloc", "RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: not enough memory: you tried to allocate 2147483648 bytes."),
        ("cpu alloc 2", "RuntimeError: [enforce fail at CPUAllocator.cpp:68] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 822083584 bytes. Error code 12 (Cannot allocate memory)"),
        ("numpy", "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 14.9 GiB for an array with shape (2000000, 1000) and data type float64"),
        ("mmap", "RuntimeError: unable to mmap 4976698672 bytes from file <model-00001-of-00004.safetensors>: Cannot allocate memory (12)"),
        ("ds cpu adam", '  File "/x/deepspeed/runtime/zero/stage3.py", line 812, in _create_fp16_partitions_with_defragmentation\n    self.fp16_partitioned_groups_flat\n  File "/x/torch/_tensor.py"\nRuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can\'t allocate memory: you tried to allocate 28991029248 bytes. Error code 12 (Cannot allocate memory)'),
        ("ray oom", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.0.3, ID: abc) where the task (task ID: x, name=WorkerDict, pid=33, memory used=120.11GB) was running was 958.12GB / 1007.34GB (0.951133), which exceeds the memory usage threshold of 0.95."),
        ("ollama sys", "Error: model requires more system memory (41.8 GiB) than is available (29.3 GiB)"),
        ("ollama killed", "Error: llama runner process has terminated: signal: killed"),
        ("de mem swap", "Der Rechner hat 16 GB RAM, beim Laden des Modells:\nGetötet"),
        ("fr killed", "Processus arrêté\npython train.py\nTué"),
        ("es killed", "$ python cargar.py\nTerminado (killed)"),
        ("zh killed", "加载到一半就\n已杀死"),
        ("ru killed", "python load.py\nУбито"),
        ("ja killed", "python load.py\n強制終了"),
        ("aws batch", "OutOfMemoryError: Container killed due to memory usage"),
        ("gke", "containerStatuses:\n- lastState:\n    terminated:\n      exitCode: 137\n      reason: OOMKilled"),
        ("vertex", "Replica workerpool0-0 ran out-of-memory and exited with a non-zero status of 9(SIGKILL)."),
        ("sagemaker", 'AlgorithmError: ExecuteUserScriptError: ExitCode 137 ErrorMessage "Killed"'),
        ("modal", "Runner terminated, exit code: 137 (out of memory?)"),
        ("databricks", "The Python process exited with exit code 137 (SIGKILL: Killed). This may have been caused by an OOM error."),
        ("lsf", "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit. Exited with exit code 137."),
        ("pbs", "=>> PBS: job killed: mem 67108864kb exceeded limit 62914560kb"),
        ("macos killed", "zsh: killed     python mlx_lora.py"),
    ),
    "unsupported_setting": (
        ("tpu vmem", "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem while allocating on stack for %custom-call. Scoped allocation with size 20.50M and limit 16.00M exceeded scoped vmem limit by 4.50M."),
    ),
    "not_gpu_memory or limit_set": (
        ("rocm apu", "HIP out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 512.00 MiB of which 4.21 GiB is free."),
    ),
    "not_gpu_memory or other_process": (
        ("pin", 'RuntimeError: CUDA error: out of memory\n  File "/x/torch/utils/data/_utils/pin_memory.py", line 62, in pin_memory\n    return data.pin_memory(device)\nCUDA kernel errors might be asynchronously reported'),
    ),
    "nothing": (
        ("a card's limit in words", "The job was cancelled because its GPU memory exceeded what the process may reserve."),
        ("somebody else's constant", "GraphicsContext lost, reason OUT_OF_MEMORY"),
        ("a limit of time", "Your job was terminated because it ran longer than the requested time limit."),
        ("llama.cpp's pinned pages", "ggml_cuda_host_malloc: failed to allocate 5000.00 MiB of pinned memory: out of memory\nserver is listening"),
        ("a pool that may go on", "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB with freed_by_count=0. The caller indicates that this is not a failure, but this may mean that there could be performance gains if more memory were available."),
        ("slurm exit 9", "srun: error: gpu-03: task 1: Killed\nslurmstepd: error: *** STEP 1.0 ON gpu-03 CANCELLED ***"),
        ("bus core", "Bus error (core dumped)"),
        ("hip segv", "Memory access fault by GPU node-1 (Agent handle: 0x55d) on address 0x7f. Reason: Page not present or supervisor privilege."),
        ("miopen workspace", "MIOpen(HIP): Warning [IsEnoughWorkspace] Solver <GemmFwdRest>, workspace required: 1207959552, provided ptr: 0 size: 0\nRuntimeError: miopenStatusUnknownError"),
        ("mlx resource", "RuntimeError: [metal::malloc] Resource limit (499000) exceeded."),
        ("tgi arg", "Error: `max_batch_prefill_tokens` must be >= `max_input_tokens`. Given: 2048 and 4095"),
        ("lmdeploy blocks", "[TM][WARNING] No enough blocks. blocks: 12. [TM][ERROR] Input is too long: session_len exceeds cache"),
        ("trtllm kv", "RuntimeError: [TensorRT-LLM][ERROR] Assertion failed: Can't allocate tokens for KV cache: maxTokens=0. Reduce max_batch_size or increase free_gpu_memory_fraction"),
        ("ollama exit", "Error: llama runner process no longer running: -1"),
        ("sglang retract", "[2025-05-01] KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_token_ratio: 0.8 -> 0.9\nDecode batch. #running-req: 30, gen throughput: 800"),
        ("triton server", "failed to allocate pinned system memory: no pinned memory pool, falling back to non-pinned system memory"),
        ("cudnn ns", "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input."),
        ("cudnn exec", "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        ("illegal", "RuntimeError: CUDA error: an illegal memory access was encountered"),
        ("not enough gpu vllm tp", "ValueError: The number of required GPUs exceeds the total number of available GPUs in the placement group."),
        ("assert", "CUDA error: device-side assert triggered"),
        ("healthy", "everything works, GPU memory usage is 95 %, should I worry?"),
        ("gpu full smi", "| 0  NVIDIA A100 |  80000MiB / 81920MiB | 99% |  vLLM server idle, is it a leak?"),
        ("disk", "OSError: [Errno 28] No space left on device: '/root/.cache/huggingface'"),
        ("recursion", "RecursionError: maximum recursion depth exceeded"),
        ("timeout", "NCCL timeout: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE) ran for 1800000 milliseconds"),
        ("exit 1", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED exitcode : 1 (pid: 22)"),
        ("segv", "exitcode : -11 (pid: 22) Signal 11 (SIGSEGV)"),
        ("sigterm", "exitcode : -15 (pid: 22) Signal 15 (SIGTERM) received"),
        ("preempt", "slurmstepd: error: *** JOB 123 ON gpu1 CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***"),
        ("k8s evict disk", "The node was low on resource: ephemeral-storage."),
    ),
    "other_process": (
        ("ollama other", 'time=2025-05-01 level=INFO source=server.go msg=offload library=cuda layers.requested=-1 layers.model=49 memory.available="[3.1 GiB]" memory.required.full="9.2 GiB"\nRTX 3090 24GB; ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8148.38 MiB on device 0: cudaMalloc failed: out of memory\nnvidia-smi: python 19.8 GB'),
        ("vllm free", "ValueError: Free memory on device cuda:0 (3.21/23.64 GiB) on startup is less than desired GPU memory utilization (0.9, 21.28 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."),
        ("vllm profil", "AssertionError: Error in memory profiling. Initial free memory 20.1 GiB, current free memory 21.4 GiB. This happens when other processes sharing the same container release GPU memory while vLLM is profiling during initialization. vllm/v1/worker/gpu_worker.py"),
        ("llama 2", "llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 4090) - 3120 MiB free\nggml_backend_cuda_buffer_type_alloc_buffer: allocating 9148.38 MiB on device 0: cudaMalloc failed: out of memory\nalloc_tensor_range: failed to allocate CUDA0 buffer of size 9592770560\nllama_model_load: error loading model: unable to allocate CUDA0 buffer"),
    ),
    "other_process or outside_allocator": (
        ("hip runtime", "RuntimeError: HIP error: out of memory\nHIP kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."),
        ("driver bare", "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1."),
        ("wsl", "WSL2 Ubuntu, RTX 4090: RuntimeError: CUDA error: out of memory, but nvidia-smi in Windows shows 1.2 GB / 24 GB used"),
        ("blender", "CUDA error: Out of memory in cuMemAlloc_v2(&device_pointer, size)"),
    ),
    "outside_allocator": (
        ("nccl cuda oom", "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1331, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"),
        ("nccl calloc", "NCCL WARN Cuda failure 2 'out of memory'\nNCCL INFO alloc.h:227 -> 1\nFailed to CUDA calloc async 608 bytes"),
    ),
    "outside_allocator or follow_up_error": (
        ("cufft", "RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED"),
        ("tf cublas", "failed to create cublas handle: CUBLAS_STATUS_ALLOC_FAILED"),
        ("cublas create", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        ("cublas ni", "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        ("cudnn alloc", "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        ("cusolver", "torch._C._LinAlgError / RuntimeError: cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
        ("nccl unh", "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1275, unhandled cuda error, NCCL version 2.18.1\nncclUnhandledCudaError: Call to CUDA function failed."),
    ),
    "outside_allocator or other_process": (
        ("jax cudnn", "jaxlib.xla_extension.XlaRuntimeError: FAILED_PRECONDITION: DNN library initialization failed. Look at the errors above for more details.\nE external/xla/xla/stream_executor/cuda/cuda_dnn.cc:407] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR\nE0501 cuda_dnn.cc:411] Memory usage: 1769472 bytes free, 25386352640 bytes total."),
    ),
    "outside_allocator or real_need or other_process": (
        ("bnb", "Error out of memory at line 380 in file /src/csrc/pythonInterface.c\n"),
        ("bnb managed", "CUDA Error: out of memory at line 422 in file /mmfs1/bitsandbytes/csrc/ops.cu"),
    ),
    "real_need": (
        ("tgi", "RuntimeError: Not enough memory to handle 4096 prefill tokens. You need to decrease `--max-batch-prefill-tokens`"),
        ("tgi prose", "text-generation-launcher: You need to decrease `--max-batch-prefill-tokens`: Not enough memory to handle 8192 prefill tokens"),
        ("llama.cpp's second card", "  Device 0: NVIDIA GeForce RTX 3090, compute capability 8.6\n  Device 1: NVIDIA GeForce RTX 3060, compute capability 8.6\nusing device CUDA1 (NVIDIA GeForce RTX 3060) - 11000 MiB free\nallocating 13012.00 MiB on device 1: cudaMalloc failed: out of memory\nalloc_tensor_range: failed to allocate CUDA1 buffer of size 13644070912"),
        ("hip need", "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 3.50 GiB. GPU 0 has a total capacity of 23.98 GiB of which 1.20 GiB is free. Of the allocated memory 21.50 GiB is allocated by PyTorch, and 340.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_HIP_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management"),
        ("xpu", "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 15.56 GiB. Of the allocated memory 14.90 GiB is allocated by PyTorch, and 212.00 MiB is reserved by PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory."),
        ("npu", "RuntimeError: NPU out of memory. Tried to allocate 1.16 GiB (NPU 3; 60.97 GiB total capacity; 58.97 GiB already allocated; 58.97 GiB current active; 540.12 MiB free; 59.60 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation."),
        ("mps zero", "M1 Pro 16 GB. RuntimeError: MPS backend out of memory (MPS allocated: 21.05 GiB, other allocations: 1.40 GiB, max allowed: 22.84 GiB). Tried to allocate 4.00 GiB on private pool."),
        ("tpu", "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 18.32G of 15.48G hbm. Exceeded hbm capacity by 2.84G."),
        ("tpu load", "RESOURCE_EXHAUSTED: Error loading program: Attempting to reserve 12.51G at the bottom of memory. That was not possible. There are 9.88G free, 0B reserved, and 9.60G reservable."),
        ("tpu alloc", "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Attempting to allocate 1.75G. That was not possible. There are 512.31M free.; (0x0x0_HBM0)"),
        ("llama kv", "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 16384.00 MiB on device 0: cudaMalloc failed: out of memory\nllama_kv_cache_init: failed to allocate buffer for kv cache\nllama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache"),
        ("prose numbers", "I have a 3090 24GB, error: Tried to allocate 30.00 GiB, CUDA out of memory"),
        ("llama 3", "llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 4090) - 23120 MiB free\nggml_backend_cuda_buffer_type_alloc_buffer: allocating 29148.38 MiB on device 0: cudaMalloc failed: out of memory\nalloc_tensor_range: failed to allocate CUDA0 buffer of size 30564319232"),
        ("llama 4", "llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 3060) - 11020 MiB free\nggml_backend_cuda_buffer_type_alloc_buffer: allocating 11500.00 MiB on device 0: cudaMalloc failed: out of memory\nalloc_tensor_range: failed to allocate CUDA0 buffer of size 12058624000"),
    ),
    "real_need or fragmentation": (
        ("xpu 4gb", "RuntimeError: Current platform can NOT allocate memory block with size larger than 4GB! Tried to allocate 6.00 GiB (GPU  0; 15.91 GiB total capacity; 9.10 GiB already allocated; 9.80 GiB reserved in total by PyTorch)"),
        ("xpu old", "RuntimeError: XPU out of memory. Tried to allocate 512.00 MiB (GPU  0; 15.91 GiB total capacity; 14.95 GiB already allocated; 15.10 GiB reserved in total by PyTorch)"),
    ),
    "real_need or other_process": (
        ("accelerate without a folder", "ValueError: We need an `offload_dir` to dispatch this model according to this `device_map`, the following submodules need to be offloaded: model.layers.20, lm_head."),
        ("transformers without a folder", "ValueError: The current `device_map` had weights offloaded to the disk. Please provide an `offload_folder` for them."),
        ("bits on the host", "ValueError: You can't train a model that has been loaded in 8-bit or 4-bit precision with CPU or disk offload."),
        ("xpu ur", "RuntimeError: Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"),
        ("npu EL", "RuntimeError: InnerRun:torch_npu/csrc/framework/OpParamMaker.cpp:208 OPS function error: MatMul, error code is 207018\n[ERROR] device Driver error: EL0004: Failed to allocate memory. Possible Cause: Available memory is insufficient.\n Solution: Close applications not in use."),
        ("npu code", "[ERROR] rtMalloc failed, runtime result = 207001 [PID: 123] alloc device memory failed"),
        ("mlx metal", "libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"),
        ("jax gpu", "2024-05-01 12:00:00.1: W external/xla/xla/tsl/framework/bfc_allocator.cc:497] Allocator (GPU_0_bfc) ran out of memory trying to allocate 9.31GiB (rounded to 10000000000)requested by op\njaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 10000000000 bytes."),
        ("tf grow", "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[256,112,112,64] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:FusedBatchNormV3]"),
        ("trt build", "[E] [TRT] 2: [virtualMemoryBuffer.cpp::resizePhysical::140] Error Code 2: OutOfMemory (no further information)"),
        ("ollama load", "Error: llama runner process has terminated: cudaMalloc failed: out of memory\nllama_model_load: error loading model: unable to allocate CUDA0 buffer"),
        ("llama vk", "ggml_vulkan: Device memory allocation of size 5726623744 failed.\nggml_vulkan: Requested buffer size exceeds device memory allocation limit: ErrorOutOfDeviceMemory\nllama_model_load: error loading model: unable to allocate Vulkan0 buffer"),
        ("llama metal", "ggml_metal_graph_compute: command buffer 3 failed with status 5\nerror: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)\nllama_decode: failed to decode, ret = -3"),
        ("llama runtime", "CUDA error: out of memory\n  current device: 0, in function alloc at ggml/src/ggml-cuda/ggml-cuda.cu:411\n  cuMemCreate(&handle, reserve_size, &prop, 0)"),
        ("koboldcpp", "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 10312.40 MiB on device 0: cudaMalloc failed: out of memory\nllama_model_load: error loading model: unable to allocate CUDA0 buffer\nllama_model_load_from_file_impl: failed to load model\nRTX 3060 12GB, Chrome is open"),
        ("bnb cpu off", "ValueError: Some modules are dispatched on the CPU or the disk. Make sure you have enough GPU RAM to fit the quantized model."),
        ("exl2", "RuntimeError: Insufficient VRAM for model and cache"),
        ("ctransl", "RuntimeError: CUDA failed with error out of memory\n faster_whisper/transcribe.py ctranslate2"),
        ("paddle", "ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 1.525391GB memory on GPU 0, 14.756836GB memory has been allocated and available memory is only 1.018555MB."),
        ("paddle zh", "Out of memory error on GPU 0. Cannot allocate 2.000000GB memory on GPU 0, 22.1GB memory has been allocated and available memory is only 800.0MB.\n\nPlease check whether there is any other process using GPU 0."),
        ("mindspore", "RuntimeError: Device(id:0) memory isn't enough and alloc failed, kernel name: Default/network, alloc size: 1073741824B."),
        ("directml", "RuntimeError: Could not allocate tensor with 1073741824 bytes. There is not enough GPU video memory available!"),
        ("cupy", "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes (allocated so far: 17,179,869,184 bytes)."),
        ("vulkan", "vk::Device::allocateMemory: ErrorOutOfDeviceMemory"),
    ),
    "real_need or other_process or not_gpu_memory": (
        ("onnx", "onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException: [ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running MatMul node. bfc_arena.cc:376 AllocateRawInternal Failed to allocate memory for requested buffer of size 1073741824"),
    ),
}  # fmt: skip
"""By what they come to: a verdict, the verdicts that it is open between, no figures to judge by, or nothing
that failed for memory. A name and the text.
"""


def verdict_of(found: Diagnosis) -> str:
    if not found.found:
        return "nothing"
    between = " or ".join(cause.value for cause in found.open_between)
    return between or ("no figures" if found.undecided else found.cause.value)


@every(
    "verdict, text",
    [(verdict, text) for verdict, ends in ENDS.items() for _, text in ends],
)
def test_an_end_comes_to_its_verdict(verdict: str, text: str) -> None:
    assert verdict_of(diagnose_texts({"log": text})) == verdict


@every("text", [text for _, text in ENDS["not_gpu_memory"]])
def test_no_smaller_batch_is_offered_where_the_host_ran_out(text: str) -> None:
    found = diagnose_texts({"log": text})
    assert {cure.helps for cure in found.cures if "batch" in cure.change} <= {"no"}


@every("text", [text for _, text in ENDS["nothing"]])
def test_nothing_is_offered_where_nothing_failed_for_memory(text: str) -> None:
    assert diagnose_texts({"log": text}).cures == ()
