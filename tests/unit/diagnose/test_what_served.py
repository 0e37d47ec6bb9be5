"""Servers by how far they had come, programs that train nothing, and what a script's own lines show."""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import FULL_CARD, modern, traced

from memsheet.diagnose.message import MAYBE, Cause
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts


def found_in(*lines: str) -> Diagnosis:
    return diagnose_texts({"log": "\n".join(lines)})


def offered(found: Diagnosis) -> str:
    return "\n".join(f"{cure.change} | {cure.where}" for cure in found.cures if cure.helps == MAYBE)


SGLANG = "[2026-05-01 12:00:00] Load weight begin. avail mem=78.60 GB\nLoad weight end. avail mem=20.00 GB"
POOL = "Memory pool end. avail mem=1.02 GB"


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        ((SGLANG,), Cause.UNKNOWN),  # whose cache may be made, and may not
        ((SGLANG, POOL), Cause.ENGINE_OVERCOMMIT),
        ((SGLANG, POOL, "Capture cuda graph begin."), Cause.ENGINE_OVERCOMMIT),
        ((SGLANG, POOL, "Load weight begin. avail mem=1.00 GB"), Cause.REAL_NEED),
        (("vllm serve x", "Available KV cache memory: 2.97 GiB", "GPU KV cache size: 443,920 tokens"), Cause.ENGINE_OVERCOMMIT),
        (("vllm serve x", "# GPU blocks: 1279, # CPU blocks: 2048"), Cause.ENGINE_OVERCOMMIT),
        (("text_generation_launcher", "Setting max batch total tokens to 31744"), Cause.ENGINE_OVERCOMMIT),
        (("text_generation_launcher", "Warming up model"), Cause.REAL_NEED),
        (("text_generation_launcher: Method Warmup encountered an error.",), Cause.REAL_NEED),
        (("Available KV cache memory: 14.06 GiB", "Capturing CUDA graphs (decode, FULL):  78%|"), Cause.ENGINE_OVERCOMMIT),
        (("vllm serve x", "Capturing CUDA graphs (decode, FULL):  78%|"), Cause.ENGINE_OVERCOMMIT),
        (("vllm serve x",), Cause.UNKNOWN),  # which says nothing of its cache
        (("vllm serve x", "Loading safetensors checkpoint shards:  20% Completed"), Cause.REAL_NEED),
    ],
)  # fmt: skip
def test_a_server_behind_its_cache_took_too_much_for_it(before: tuple[str, ...], cause: Cause) -> None:
    assert found_in(*before, FULL_CARD).cause is cause


def test_graphs_that_are_captured_are_named() -> None:
    capturing = found_in(SGLANG, POOL, "Capture cuda graph begin.", FULL_CARD)
    assert capturing.term is not None
    assert capturing.term.component == "cuda_graphs"
    assert "--disable-cuda-graph" in offered(capturing)
    assert (
        found_in(SGLANG, POOL, "Capture cuda graph begin.", "Capture cuda graph end.", FULL_CARD).term is None
    )


TGI = "text_generation_server/models/flash_causal_lm.py"


@pytest.mark.parametrize(
    ("name", "cause", "told"),
    [
        ("generate_token", Cause.ENGINE_OVERCOMMIT, "--cuda-memory-fraction"),
        ("warmup", Cause.REAL_NEED, "--max-batch-prefill-tokens"),
    ],
)
def test_text_generation_inference_gets_its_own_cures(name: str, cause: Cause, told: str) -> None:
    found = found_in(traced("Prefill", name, "forward", module=TGI), FULL_CARD)
    assert (found.cause, told in offered(found), "recompute" in offered(found)) == (cause, True, False)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ((traced("add_batch", module="auto_gptq/quantization/gptq.py"),), "batch_size=1"),
        (("D:\\stable-diffusion-webui\\modules\\sd_samplers.py",), "--medvram"),
        (("C:\\invokeai\\app\\nodes.py",), "enable_partial_loading"),
        ((traced("load_state_dict", module="torch/optim/optimizer.py"),), 'map_location="cpu"'),
    ],
)
def test_what_trains_nothing_gets_no_training_s_cures(lines: tuple[str, ...], told: str) -> None:
    found = found_in(*lines, FULL_CARD)
    assert found.cause is Cause.REAL_NEED
    assert (told in offered(found), "micro-batch" in offered(found)) == (True, False)


def test_log_probabilities_by_the_names_of_a_launcher_s_flags() -> None:
    """16 × 2,048 × 151,936 × 4 bytes = 18.55 GiB."""
    short = modern("18.55 GiB", "139.80 GiB", "9.90 GiB", "129.90 GiB", "124.90 GiB", "4.00 GiB")
    flags = "--micro_train_batch_size 16 --max_len 2048 Qwen/Qwen3-8B"
    term = found_in(flags, traced("forward", "log_probs_from_logits"), short).term
    assert term is not None
    assert (term.path, term.shape) == ("loss/log_probs", "[32768, 151936] fp32")


def step_lines(words: str, *sizes: float) -> str:
    return "\n".join(f"step {number} loss 2.1 {words} {size:.2f} GiB" for number, size in enumerate(sizes))


def with_unit_before(words: str, *sizes: float) -> str:
    return "\n".join(f"{{'step': {number}, {words} {size:.2f}}}" for number, size in enumerate(sizes))


def rows(form: str, *sizes: float) -> tuple[str, ...]:
    return tuple(form.format(number, size) for number, size in enumerate(sizes, 1))


GROWING, LEVEL = (20.0, 20.5, 21.0, 21.5, 22.0, 22.5), (20.0, 20.5, 20.5, 20.4, 20.5, 20.5)


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ((step_lines("allocated:", *GROWING),), Cause.LEAK),
        ((step_lines("memory_allocated", *GROWING),), Cause.LEAK),
        ((step_lines("max_allocated", *GROWING),), Cause.REAL_NEED),
        ((step_lines("max_memory_allocated:", *GROWING),), Cause.REAL_NEED),
        ((step_lines("peak memory allocated", *GROWING),), Cause.REAL_NEED),
        ((step_lines("max GPU memory allocated", *GROWING),), Cause.REAL_NEED),
        ((step_lines("allocated:", *LEVEL),), Cause.REAL_NEED),
        ((with_unit_before("'allocated_gb':", *GROWING),), Cause.LEAK),
        ((with_unit_before("mem_alloc (GiB) =", *GROWING),), Cause.LEAK),
        ((with_unit_before("'max_allocated_gb':", *GROWING),), Cause.REAL_NEED),
        ((with_unit_before("'allocated_gb':", *LEVEL),), Cause.REAL_NEED),
        (("memory_allocated after every val epoch:", "", *rows("epoch {}: {} GiB", *GROWING)), Cause.LEAK),
        (("step  allocated (GB)", *rows("{}  {}", *GROWING)), Cause.LEAK),
        (("allocated (GB)", *rows("{}  {}", *GROWING)), Cause.REAL_NEED),  # of layers or cards, maybe
        (("max memory_allocated after every epoch:", *rows("epoch {}: {} GiB", *GROWING)), Cause.REAL_NEED),
        (("memory_allocated after every epoch:", *rows("epoch {}: {} GiB", *LEVEL)), Cause.REAL_NEED),
        (("what is allocated:", *rows("{} files of {} GiB were read", *GROWING)), Cause.REAL_NEED),
        ((step_lines("max_mem:", *GROWING),), Cause.REAL_NEED),
        ((step_lines("max_mem:", *GROWING), "    losses.append(loss)"), Cause.LEAK),
        ((step_lines("max_mem:", *LEVEL), "    losses.append(loss)"), Cause.REAL_NEED),
        ((step_lines("max_mem:", *GROWING), "    losses.append(loss.item())"), Cause.REAL_NEED),
    ],
)
def test_what_a_script_s_own_lines_show_to_grow_is_a_leak(lines: tuple[str, ...], cause: Cause) -> None:
    assert found_in(*lines, FULL_CARD).cause is cause


def test_growth_that_is_less_than_what_is_missing_is_no_leak() -> None:
    little = (20.0, 20.01, 20.02, 20.03, 20.04, 20.05)
    assert found_in(step_lines("allocated:", *little), FULL_CARD).cause is not Cause.LEAK
    since = [20 + step / 10 for step in range(60)]
    assert found_in(step_lines("allocated:", *since), FULL_CARD).cause is Cause.LEAK


@pytest.mark.parametrize(
    ("said", "shape"),
    [
        ("Qwen2.5 7b, seq len 8192, batch size 4", "[32768, 152064] fp32"),
        ("qwen 2.5 7B with max seq length 8192 and bs 4", "[32768, 152064] fp32"),
        ("a model of mine, seq len 8192", ""),
    ],
)
def test_a_model_as_people_write_of_it(said: str, shape: str) -> None:
    """4 × 8,192 × 152,064 × 4 bytes = 18.56 GiB."""
    term = found_in(
        said, modern("18.56 GiB", "79.10 GiB", "15.76 GiB", "63.34 GiB", "61.61 GiB", "1.02 GiB")
    ).term
    assert (term.shape if term else "") == shape


def test_a_tensor_is_named_wherever_its_graph_is() -> None:
    text = (
        "errors_impl.ResourceExhaustedError: Graph execution error:\n\nDetected at node x\n"
        "OOM when allocating tensor with shape[32768,50257] and type float on /job:localhost/device:GPU:0 by allocator"
    )  # fmt: skip
    term = found_in(text).term
    assert term is not None
    assert term.shape == "[32768, 50257] float"


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: One of the subprocesses has abruptly died during map operation.",
        "This could be caused by an excessive memory usage causing the Operating System to kill the worker.",
        "BrokenProcessPool: A process in the process pool was terminated abruptly while the future was",
    ],
)
def test_a_process_that_died_without_a_word_is_told_and_judged_by_nothing(text: str) -> None:
    found = found_in(text)
    assert (found.found, "dmesg" in found.notes[0]) == (False, True)
    assert found_in(text, "Out of memory: Killed process 7 (python3)").cause is Cause.NOT_GPU_MEMORY


def test_turbomind_names_its_share() -> None:
    text = "cache_max_entry_count=0.8\n[TM][ERROR] CUDA runtime error: out of memory /x/allocator.h:246"
    assert "--cache-max-entry-count 0.75" in offered(found_in(text))


@pytest.mark.parametrize(
    ("speaker", "told"),
    [
        ("(EngineCore_DP0 pid=22) ERROR [core.py:900] ", "--gpu-memory-utilization"),
        ("(VllmWorker TP1 pid=1520) ", "--gpu-memory-utilization"),
        ("(Worker_TP3 pid=7) ", "--gpu-memory-utilization"),
        ("(SGLangEngine pid=5521) ", "--mem-fraction-static"),
        ("(PolicyModelActor pid=70) ", "--micro_train_batch_size"),
        ("(MegatronTrainRayActor pid=70) ", "--micro-batch-size"),
        ("(Trainer pid=70) ", "torch.utils.checkpoint"),
    ],
)
def test_a_message_is_of_the_program_whose_process_said_it(speaker: str, told: str) -> None:
    assert told in offered(found_in(f"{speaker}{FULL_CARD}"))


def test_a_server_s_process_beside_a_trainer_is_a_server() -> None:
    speaker = "(EngineCore_DP0 pid=22) "
    lines = (
        "verl step:1 - actor/loss:0.1",
        f"{speaker}GPU KV cache size: 9,000 tokens",
        f"{speaker}{FULL_CARD}",
    )
    assert found_in(*lines).cause is Cause.ENGINE_OVERCOMMIT
    assert found_in(*lines[:2], f"(WorkerDict pid=7) {FULL_CARD}").cause is Cause.REAL_NEED


def test_sequences_read_before_training_keep_nothing_for_backward() -> None:
    found = found_in(traced("make_experience", "forward", module="openrlhf/trainer/maker.py"), FULL_CARD)
    assert ("--micro_rollout_batch_size" in offered(found), "recompute" in offered(found)) == (True, False)


def test_of_a_card_s_messages_the_one_with_figures_speaks() -> None:
    cut = FULL_CARD[: FULL_CARD.index("Including")]
    other = cut.replace("GPU 0", "GPU 1")
    assert found_in(cut, other).cause is Cause.UNKNOWN
    assert found_in(cut, other, FULL_CARD).cause is Cause.REAL_NEED
    assert found_in(cut, other, FULL_CARD.replace("2.00 GiB", "3.00 GiB")).cause is Cause.UNKNOWN


@pytest.mark.parametrize(
    "text",
    [
        "2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other",
        "unable to start container process: container init was OOM-killed (memory limit too low?)",
        "The replica workerpool0-0 ran out-of-memory and exited with a non-zero status of 137.",
    ],
)
def test_more_kills_for_the_host_s_memory(text: str) -> None:
    assert found_in(text).cause is Cause.NOT_GPU_MEMORY
    assert not found_in(
        text.replace("2 Workers", "0 Workers").replace("memory", "time").replace("OOM-k", "k")
    ).found


@pytest.mark.parametrize("who", ["CUDA", "ROCm", "MUSA"])
def test_a_call_that_fails_in_llama_cpp_is_no_pytorch_s(who: str) -> None:
    found = found_in(
        f"{who} error: out of memory\n  current device: 0, in function alloc at ggml-cuda.cu:486"
    )
    assert found.open_between == (Cause.REAL_NEED, Cause.OTHER_PROCESS)
    assert "PyTorch" not in found.because
    assert "-ngl N" in offered(found)


WARMUP = (
    "ERROR warmup{max_prefill_tokens=8192}: text_generation_client: Server error: "
    "CUDA out of memory. Tried to allocate 344.00 MiB. GPU \n"
    'Error: Warmup(Generation("Not enough memory to handle 8192 prefill tokens."))'
)


@pytest.mark.parametrize("named", ["codellama 34b", "codellama/CodeLlama-34b-hf"])
def test_a_server_speaks_for_its_message_that_is_cut(named: str) -> None:
    found = diagnose_texts({"log": f"{named}\n{WARMUP}"})
    assert found.cause is Cause.REAL_NEED
    assert "8,192 tokens" in found.because
    assert found.term is not None
    assert "[8192, 22016] bf16" in found.term.shape
    assert not any("echo" in note for note in found.notes)


REFUSED = (
    "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n): out of memory (tllmBuffers.h:125)"
)


def started(free: str, taken: str) -> str:
    return (
        f"[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 79.11 GiB, available: {free} GiB\n"
        f"[TensorRT-LLM][INFO] [MemUsageChange] Allocated {taken} GiB for max tokens in paged KV cache (64320).\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("said", "cause", "words"),
    [
        (started("10.02", "9.81"), Cause.ENGINE_OVERCOMMIT, "9.81 GiB of the 10.02 GiB"),
        (started("62.70", "62.07"), Cause.ENGINE_OVERCOMMIT, "62.07 GiB of the 62.70 GiB"),
        (started("62.70", "31.00"), Cause.UNKNOWN, "no figures"),
        ("one A10G\n[TensorRT-LLM][INFO] Loaded engine size: 27698 MiB\n", Cause.REAL_NEED, "27.05 GiB"),
        ("one A100\n[TensorRT-LLM][INFO] Loaded engine size: 27698 MiB\n", Cause.UNKNOWN, "no figures"),
    ],
)
def test_a_runtimes_account_of_its_start_tells_what_has_no_room(said: str, cause: Cause, words: str) -> None:
    found = diagnose_texts({"log": said + "free_gpu_memory_fraction: 0.98\n" + REFUSED})
    assert found.cause is cause
    assert words in found.because
    assert not any("larger" in cure.change and cure.helps != "no" for cure in found.cures)


@pytest.mark.parametrize(
    ("said", "besides"),
    [
        ("lmdeploy serve api_server x --cache-max-entry-count 0.95", Cause.ENGINE_OVERCOMMIT),
        ("llm = LLM('x', gpu_memory_utilization=0.99)", Cause.ENGINE_OVERCOMMIT),
        ("trtllm-serve x --kv_cache_free_gpu_memory_fraction 0.95", Cause.ENGINE_OVERCOMMIT),
        ("SFTConfig(output_dir='x'), vllm with gpu_memory_utilization=0.4 on another machine", None),
        ("the first time it works, the second time I run the cell it dies", Cause.LEAK),
        ("after 20 messages it dies", Cause.LEAK),
        ("memory usage grows slowly until it dies", Cause.LEAK),
        ("trial 0 ok, trial 1 ok, trial 2 dies", Cause.LEAK),
        ("it dies in the validation loop", Cause.REGIME_CHANGE),
        ("evaluation always crashes", Cause.REGIME_CHANGE),
        ("a batch size of 8 dies, evaluation is off", None),
        ("it dies in the first step", None),
    ],
)
def test_a_need_is_open_where_words_say_what_else_may_hold_the_card(said: str, besides: Cause | None) -> None:
    found = found_in(said, FULL_CARD)
    assert found.open_between == ((Cause.REAL_NEED, besides) if besides else ())
    assert (found.cause is Cause.REAL_NEED) is (besides is None)
    smaller = any("share of the card" in cure.change for cure in found.cures)
    assert smaller is (besides is Cause.ENGINE_OVERCOMMIT)


@pytest.mark.parametrize(
    "dies", ["torch.AcceleratorError: CUDA error: out of memory", "NCCL WARN Cuda failure 2 'out of memory'"]
)
@pytest.mark.parametrize(
    ("option", "where"),
    [
        ("vllm serve x --gpu-memory-utilization 0.95", "--gpu-memory-utilization 0.9"),
        ("ServerArgs(mem_fraction_static=0.9)", "--mem-fraction-static 0.85"),
    ],
)
def test_a_server_below_torch_is_told_of_its_own_share(dies: str, option: str, where: str) -> None:
    """A pool is not made smaller by what PyTorch's allocator is told."""
    found = diagnose_texts({"log": f"{option}\n{dies}"})
    told = [cure.where for cure in found.cures]
    assert told[0] == where
    assert not any("set_per_process_memory_fraction" in each for each in told)


@pytest.mark.parametrize(
    "asked", ["sglang, requests with return_logprob=True and logprob_start_len=0", "prompt_logprobs=1"]
)
def test_a_request_for_prompts_probabilities_is_given_no_training_s_changes(asked: str) -> None:
    """No loss, no micro-batch and no backward runs in a server."""
    found = diagnose_texts({"log": f"{PROMPTS}\n{asked}, 16384 token prompt, Qwen2.5-72B-AWQ"})
    told = "\n".join(f"{cure.change} {cure.where}" for cure in found.cures if cure.helps != "no")
    assert "logprob" in told
    assert not any(word in told for word in ("loss", "micro-batch", "backward", "checkpoint"))


PROMPTS = (
    "RuntimeError: CUDA out of memory. Tried to allocate 9.28 GiB. GPU 0 has a total capacity of 79.25 GiB "
    "of which 4.51 GiB is free. Including non-PyTorch memory, this process has 74.73 GiB memory in use. Of "
    "the allocated memory 73.50 GiB is allocated by PyTorch, and 305.11 MiB is reserved by PyTorch but "
    "unallocated."
)
