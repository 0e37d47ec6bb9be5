"""A trainer and its server on one card, servers that account for their own start, and what is no error."""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import modern, traced

from laws import every
from memsheet.diagnose.cleaned import WHOLE
from memsheet.diagnose.message import MAYBE, YES, Cause
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts


def found_in(*lines: str) -> Diagnosis:
    return diagnose_texts({"log": "\n".join(lines)})


REFUSED = (
    "ValueError: Free memory on device (50.00/79.15 GiB) on startup is less than desired GPU memory "
    "utilization (0.9, 71.24 GiB)."
)
IN_PROCESS = modern("1.45 GiB", "79.15 GiB", "0.42 GiB", "78.73 GiB", "35.53 GiB", "0.60 GiB")


@pytest.mark.parametrize(
    ("sign", "option"),
    [
        ("actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.gpu_memory_utilization=0.63"),
        ('GRPOConfig(vllm_mode="colocate")', "vllm_gpu_memory_utilization=0.63"),
        ("--colocate_all_models", "--vllm_gpu_memory_utilization=0.63"),
        ("LLM(enable_sleep_mode=True)", "gpu_memory_utilization=0.63"),
    ],
)
def test_a_server_refused_beside_its_trainer_is_told_of_a_smaller_share_first(sign: str, option: str) -> None:
    found = found_in(sign, REFUSED)
    assert (found.cause, found.cures[0].helps, found.cures[0].where) == (Cause.ENGINE_OVERCOMMIT, YES, option)
    assert [cure.helps for cure in found.cures[1:]] == [MAYBE, MAYBE]
    assert found_in("vllm serve x", REFUSED).cause is Cause.OTHER_PROCESS


@pytest.mark.parametrize(
    ("sign", "first"),
    [
        ("actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.free_cache_engine=True"),
        ("vllm_mode=colocate", "vllm_enable_sleep_mode=True"),
        ("Sleep mode freed 40.10 GiB memory, 3.80 GiB memory is still in use.", "enable_sleep_mode=True"),
        ("Sleep mode freed 0.00 GiB memory, 43.91 GiB memory is still in use.", "unset PYTORCH_CUDA_ALLOC_CONF"),
        ("torch.compile", "torch.compile(dynamic=True)"),
    ],
)  # fmt: skip
def test_what_is_outside_beside_a_server_in_the_same_process_is_the_server_s(sign: str, first: str) -> None:
    found = found_in(sign, traced("backward"), IN_PROCESS)
    assert (found.cause, found.cures[0].where) == (Cause.OUTSIDE_ALLOCATOR, first)


def component_refused(name: str, free: str, *made: str) -> str:
    rows = "\n".join(made)
    return (
        "RuntimeError: Executor creation failed due to insufficient GPU memory.\n\n"
        f"The following component could not be created: {name}\nTotal GPU memory (GiB): 79.11\n"
        f"Free GPU memory before component creation attempt (GiB): {free}\n\n"
        f"Previously created components and free GPU memory before/after creation (GiB):\n{rows}\n\n"
        "Possible options include:\n  KV cache: reduce free_gpu_memory_fraction"
    )


MODEL = "Model: 78.50 / 48.30"
TRIAL = "Initial KV cache (temporary for KV cache size estimation)"


@pytest.mark.parametrize(
    ("text", "cause", "between"),
    [
        (component_refused("KV cache", "43.91", MODEL), Cause.ENGINE_OVERCOMMIT, ()),
        (component_refused("Additional executor resources", "1.20", MODEL, "KV cache: 43.91 / 1.20"), Cause.ENGINE_OVERCOMMIT, ()),
        (component_refused(TRIAL, "1.20", MODEL), Cause.REAL_NEED, ()),
        (component_refused("Sampler", "0.20", MODEL), Cause.REAL_NEED, ()),
        (component_refused("Model", "78.50"), Cause.REAL_NEED, ()),
        (component_refused("Model", "40.10"), Cause.UNKNOWN, (Cause.OTHER_PROCESS, Cause.REAL_NEED)),
    ],
)  # fmt: skip
def test_a_server_that_says_which_part_had_no_room(
    text: str, cause: Cause, between: tuple[Cause, ...]
) -> None:
    found = found_in(text)
    assert (found.cause, found.open_between) == (cause, between)
    behind = found_in(modern("1.45 GiB", "79.11 GiB", "0.42 GiB", "78.69 GiB", "77.00 GiB", "0.60 GiB"), text)
    assert (behind.cause, behind.open_between) == (cause, between)


def test_a_guard_that_refuses_to_load_is_a_limit_of_its_own() -> None:
    refused = "Error: Model loading was stopped due to insufficient system resources."
    said = " Under the current settings, this model requires approximately 27.03 GB of memory, and continuing"
    for text in (refused, refused + said):
        found = found_in(text)
        assert (found.cause, {cure.helps for cure in found.cures}) == (Cause.LIMIT_SET, {MAYBE})
    assert "27.03 GiB" in found.because


def test_what_ray_lists_is_told_and_decides_nothing() -> None:
    listed = "(1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop"
    found = found_in("Worker exit type: SYSTEM_ERROR", listed)
    assert (found.found, found.cause) == (False, Cause.UNKNOWN)
    assert "Ray" in found.notes[0]


@pytest.mark.parametrize(
    ("name", "shape"), [("vocab_parallel_cross_entropy", "[8192, 16032] fp32"), ("cross_entropy", "")]
)
def test_logits_over_ranks_are_a_share_of_the_vocabulary(name: str, shape: str) -> None:
    """8,192 tokens × 128,256 / 8 × 4 bytes = 501.00 MiB."""
    short = modern("501.00 MiB", "79.15 GiB", "0.10 GiB", "79.05 GiB", "78.00 GiB", "0.02 GiB")
    found = found_in("seq_length: 8192, vocab_size: 128256", traced(name), short)
    assert found.term is not None
    assert shape in ("", found.term.shape)
    unnamed = found_in(traced("vocab_parallel_cross_entropy"), short).term
    assert unnamed is not None
    assert unnamed.shape == ""


def test_weights_of_a_stated_width_are_of_that_width() -> None:
    short = modern("512.00 MiB", "23.69 GiB", "0.10 GiB", "23.59 GiB", "23.00 GiB", "0.02 GiB")
    named = 'from_pretrained("mistralai/Mistral-7B-v0.3", torch_dtype=torch.{})'
    shapes = []
    for width in ("bfloat16", "float32"):
        term = found_in(named.format(width), traced("convert"), short).term
        assert term is not None
        shapes.append(term.shape)
    assert shapes == ["", "[32768, 4096] fp32"]


@pytest.mark.parametrize("between", ["\n", "\r"])
def test_signs_with_digits_are_found_amid_a_long_run_of_steps(between: str) -> None:
    steps = [f"step {step} loss {2 - step / 1e6:.6f} memory 61.20GiB" for step in range(WHOLE // 20)]
    middle = len(steps) // 2
    text = between.join((*steps[:middle], "Process exited with exit code 137", *steps[middle:]))
    assert len(text) > WHOLE
    assert found_in(text).cause is Cause.NOT_GPU_MEMORY


def table_of(*held: tuple[int, str]) -> str:
    return "\n".join(
        f"|    0   N/A  N/A  {6100 + number:>8}      C   {name}      {mib}MiB |"
        for number, (mib, name) in enumerate(held)
    )


HANDLE = "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
DRIVER = "RuntimeError: CUDA error: out of memory"
BARE = "RuntimeError: CUDA out of memory"
BOTH = table_of((71_000, "python a.py"), (9_000, "python b.py"))
ALONE = table_of((80_600, "python a.py"))


@every("message", [HANDLE, DRIVER, BARE])
@every(
    "said, table, shared",
    [
        ("H100 80GB", BOTH, True),
        ("H100 80GB", ALONE, False),  # which may be what failed
        ("", BOTH, False),  # of a card of any size
        ("H100 80GB", table_of((40_000, "python a.py"), (9_000, "python b.py")), False),
        ("H100 80GB", table_of((80_200, "python a.py"), (60, "/usr/lib/xorg/Xorg")), False),
        ("H100 80GB, nvidia-smi after it crashed:", ALONE, True),
        ("H100 80GB, nvidia-smi before I start it:", ALONE, True),
        ("H100 80GB, nvidia-smi just before the crash:", ALONE, False),
        ("H100 80GB, the process is not mine", ALONE, True),
        ("H100 80GB, my new script (pid 9120) says", ALONE, True),
        ("H100 80GB, the failing process is pid 6100", ALONE, False),  # which the table shows
        ("H100 80GB, my old job (pid 17) has ended", ALONE, False),
        ("H100 80GB, the script in docker (pid 17) says", ALONE, False),  # which the host calls otherwise
        ("H100 80GB, my previous run was smaller", ALONE, False),
        ("H100 80GB, vllm with enable_sleep_mode=True in the trainer", BOTH, False),
    ],
)
def test_a_table_beside_a_message_without_figures_tells_of_another_process(
    message: str, said: str, table: str, shared: bool
) -> None:
    found = found_in(said, message, table)
    assert (found.cause is Cause.OTHER_PROCESS) is shared
    assert all(cure.helps != YES for cure in found.cures)


def old_full(allocated: str, free: str, kept: str) -> str:
    return (
        f"RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 31.75 GiB total capacity; "
        f"{allocated} already allocated; {free} free; {kept} cached)"
    )


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("a server shared with the lab", Cause.OTHER_PROCESS),
        ("we share the node with others", Cause.OTHER_PROCESS),
        ("my own workstation", Cause.UNKNOWN),
        ("weights are shared between layers", Cause.UNKNOWN),
    ],
)
def test_what_nobody_is_named_for_is_others_on_a_card_that_is_shared(said: str, cause: Cause) -> None:
    assert found_in(said, old_full("1.82 GiB", "1.02 GiB", "114.32 MiB")).cause is cause


CARDS = """| NVIDIA-SMI 550.127 |
|  80921MiB /  81559MiB |      0%      Default |
|      4MiB /  81559MiB |      0%      Default |"""
WITHOUT_PROCESS = (
    "CUDA out of memory. Tried to allocate 128.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 90.31 MiB is free. "
    "Of the allocated memory 124.00 MiB is allocated by PyTorch, and 4.00 MiB is reserved by PyTorch but unallocated."
)  # fmt: skip


def test_processes_of_the_only_card_that_has_any_are_those_beside_a_message() -> None:
    found = found_in(WITHOUT_PROCESS, CARDS, table_of((80_310, "python"), (598, "python")))
    assert (found.cause, found.cures[0].helps) == (Cause.OTHER_PROCESS, YES)
    assert "process 6100" in found.because
    assert "6101" not in found.because


POOL_REFUSED = (
    "cuda_driver.cc:1578] failed to allocate {gib}GiB ({size} bytes) from device: RESOURCE_EXHAUSTED: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"
    "cuda_dnn.cc:535] Memory usage: {free} bytes free, 25242894336 bytes total."
)  # fmt: skip


@pytest.mark.parametrize(
    ("said", "size", "free", "cause"),
    [
        ("", 18931236864, 301465600, Cause.OTHER_PROCESS),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION=.5", 12621447168, 301465600, Cause.OTHER_PROCESS),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION=.5", 18931236864, 301465600, Cause.UNKNOWN),  # no share of the card
        ("", 18931236864, 17301465600, Cause.UNKNOWN),  # most of it was free
    ],
)
def test_a_pool_refused_at_its_start_is_refused_for_others(
    said: str, size: int, free: int, cause: Cause
) -> None:
    refused = POOL_REFUSED.format(gib=f"{size / 2**30:.2f}", size=size, free=free)
    assert found_in(said, refused).cause is cause


@pytest.mark.parametrize(
    "who", ["train.py is the one that fails", "mine is train.py", 'File "/x/train.py", line 3, in f']
)
@pytest.mark.parametrize("message", [HANDLE, DRIVER])
def test_the_script_that_failed_is_known_by_what_people_say(who: str, message: str) -> None:
    table = table_of((70_000, "python3 eval_loop.py"), (610, "python3 train.py"))
    found = found_in(message, table, who)
    assert found.cause is Cause.OTHER_PROCESS
    assert "eval_loop.py" in found.because
    assert "train.py (" not in found.because


WOKEN = "[torch_memory_saver.cpp] CUresult error: 2 (out of memory)  file=csrc/utils.h func=cu_mem_create line=104"  # fmt: skip
NCCL_REFUSED = "NCCL WARN Cuda failure 2 'out of memory'\nNCCL WARN Failed to CUDA calloc 6291456 bytes"


@pytest.mark.parametrize("message", [WOKEN, NCCL_REFUSED])
@pytest.mark.parametrize(
    "said",
    [
        "after wake_up rollout: {'gpu': '2', 'allocated_GB': 20.18, 'reserved_GB': 99.02}",
        "After offload, memory allocated (GB): 20.18, memory reserved (GB): 99.02",
        "MA 20.18 GB  Max_MA 74.9 GB  CA 99.02 GB  Max_CA 100 GB",
    ],
)
def test_what_a_trainer_keeps_without_tensors_is_told_by_its_last_word(said: str, message: str) -> None:
    found = found_in(
        "INFO before: MA 1.00 GB  Max_MA 1.0 GB  CA 1.00 GB  Max_CA 1 GB" if said[0] == "M" else "",
        said,
        message,
    )
    assert found.facts["kept_before_bytes"].low <= int(78.84 * 2**30) <= found.facts["kept_before_bytes"].high
    assert found.cures[0].where == "torch.cuda.empty_cache()"
    assert found.cures[0].saves_bytes == found.facts["kept_before_bytes"].high


def test_a_group_that_is_refused_beside_no_cache_is_told_of_room_alone() -> None:
    assert not any("empty_cache" in cure.where for cure in found_in(NCCL_REFUSED).cures)
