"""What a server, a cluster, a step's own line or an operator's name says beside the figures of a request."""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import FULL_CARD, modern, traced

from memsheet.diagnose.message import MAYBE, NO, Cause
from memsheet.diagnose.verdict import Diagnosis, diagnose_texts


def found_in(*lines: str) -> Diagnosis:
    return diagnose_texts({"log": "\n".join(lines)})


def offered(found: Diagnosis) -> str:
    return "\n".join(f"{cure.change} | {cure.where}" for cure in found.cures if cure.helps == MAYBE)


OPEN = modern("612.00 MiB", "44.53 GiB", "498.00 MiB", "44.02 GiB", "43.40 GiB", "260.00 MiB")
NEIGHBOUR = modern(
    "612.00 MiB", "44.53 GiB", "498.00 MiB", "20.02 GiB", "19.40 GiB", "26.00 MiB", others=((8, "24.00 GiB"),)
)
PREFILL = "Not enough memory to handle 12288 prefill tokens. Decrease `--max-batch-prefill-tokens`"
WARMUP = traced("warmup", module="text_generation_server/models/flash_causal_lm.py")


@pytest.mark.parametrize(("figures", "cause"), [
    (OPEN, Cause.REAL_NEED),  # which the figures alone leave open
    (FULL_CARD, Cause.REAL_NEED),
    (NEIGHBOUR, Cause.OTHER_PROCESS),  # which the server cannot see
])  # fmt: skip
def test_a_server_s_words_behind_a_request_say_more_than_its_bytes(figures: str, cause: Cause) -> None:
    found = found_in(WARMUP, figures, PREFILL)
    assert found.cause is cause
    assert ("--max-batch-prefill-tokens 6144" in offered(found)) is (cause is Cause.REAL_NEED)
    assert len({cure.change for cure in found.cures}) == len(found.cures)


@pytest.mark.parametrize("free", ["98.00 MiB", "2.00 MiB"])
def test_an_optimizer_s_first_update_on_a_full_card_is_another_step(free: str) -> None:
    """Whether or not the last request alone would have found room in pieces."""
    full = modern("112.00 MiB", "79.15 GiB", free, "78.90 GiB", "78.20 GiB", "210.00 MiB")
    found = found_in(traced("step", "_init_group", module="torch/optim/adam.py"), full)
    assert found.cause is Cause.REGIME_CHANGE


STEPS = {
    "padded": ("step {}  seq_max  {}  loss 1.02", "batch 57: padded to (4, {})"),
    "shape": ("iter {} | max_seq: {} | loss 1.02", "iter 57 input_ids shape torch.Size([1, {}])"),
    "length": ("step {} seq_len={} loss 1.02", "step 57 seq_len={}"),
}


@pytest.mark.parametrize(("line", "last"), STEPS.values(), ids=STEPS)
@pytest.mark.parametrize(("length", "cause"), [(12000, Cause.REGIME_CHANGE), (3000, Cause.REAL_NEED)])
def test_a_step_far_longer_than_those_before_is_another(
    line: str, last: str, length: int, cause: Cause
) -> None:
    steps = [line.format(50 + place, size) for place, size in enumerate((2900, 1700, 3100, 2500))]
    short = modern("9.00 GiB", "79.15 GiB", "4.00 GiB", "75.00 GiB", "73.90 GiB", "400.00 MiB")
    assert found_in(*steps, last.format(length), short).cause is cause


def test_a_pod_s_share_of_a_card_is_a_limit() -> None:
    """Of HAMi's library, whose limit PyTorch shows as the card's size."""
    told = "[HAMI-core ERROR (pid:31 thread=140 allocator.c:60)]: Device 0 OOM 9663676416 / 8589934592"
    found = found_in(told, modern("1.00 GiB", "8.00 GiB", "12.00 MiB", "7.98 GiB", "7.60 GiB", "20.00 MiB"))
    assert found.cause is Cause.LIMIT_SET
    assert found.missing is not None
    assert found.missing.low == 2**30
    assert "gpumem" in offered(found)


@pytest.mark.parametrize("set_so", [
    "--kv-cache-memory 8589934592", '"--kv-cache-memory-bytes", "8589934592"', "kv_cache_memory_bytes=8589934592",
])  # fmt: skip
def test_a_cache_of_a_size_of_its_own_reads_no_share(set_so: str) -> None:
    serving = ("vllm serve x --gpu-memory-utilization 0.9", set_so, "GPU KV cache size: 443,920 tokens")
    found = found_in(*serving, FULL_CARD)
    assert found.cause is Cause.ENGINE_OVERCOMMIT
    smaller = next(cure for cure in found.cures if "KV cache" in cure.change)
    assert int(smaller.where.split()[-1]) < 8589934592
    assert {cure.helps for cure in found.cures if "share" in cure.change} == {NO}


def test_a_server_s_experts_take_fewer_tokens() -> None:
    found = found_in(
        "vllm serve x", "GPU KV cache size: 443,920 tokens", traced("fused_experts_impl"), FULL_CARD
    )
    assert "--max-num-batched-tokens" in offered(found)


XLA = """RESOURCE_EXHAUSTED: Out of memory while trying to allocate 36507222016 bytes.
BufferAssignment stats:
        preallocated temp allocation: 34.00GiB
                 total allocation: 52.10GiB
Peak buffers:
    Buffer 1:
        Size: 16.00GiB
        Operator: op_name="jit(step)/jit(main)/{}" source_file="/srv/m.py" source_line=9
        XLA Label: fusion
        Shape: f32[16,2048,131072]
"""


@pytest.mark.parametrize(("operator", "is_logits"), [
    ("jvp(Model)/lm_head/dot_general", True), ("transpose(jvp(Model))/log_softmax/sub", True), ("jvp(Model)/mlp/dot_general", False),
])  # fmt: skip
def test_an_operator_s_name_tells_logits(operator: str, is_logits: bool) -> None:
    found = found_in(XLA.format(operator))
    assert found.term is not None
    assert found.term.words.startswith("logits") is is_logits


@pytest.mark.parametrize(("tag", "component"), [
    ("['kv_cache']", "kv_cache"), ("[GPU_MEMORY_TYPE_KV_CACHE]", "kv_cache"), ('["weights"]', "parameters"), ('["weights", "kv_cache"]', None),
])  # fmt: skip
def test_what_a_server_takes_back_is_what_it_was_told(tag: str, component: str | None) -> None:
    failed = "[torch_memory_saver.cpp] CUresult error: 2 (out of memory) func=cu_mem_create line=104"
    found = found_in(failed, f"resume_memory_occupation(tags={tag})")
    assert found.cause is Cause.WAKE_UP_RACE
    assert (found.term.component if found.term else None) == component


@pytest.mark.parametrize("text", [
    "The actor is dead because its worker process has died. Some common causes include: (1) the process was killed by the OOM killer due to high memory usage",
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
])  # fmt: skip
def test_an_echo_says_where_the_first_error_is(text: str) -> None:
    found = found_in(text)
    assert found.cause is Cause.FOLLOW_UP_ERROR
    assert "first error" in offered(found)


@pytest.mark.parametrize("said", ["win 11, 4090", "pagefile is off", "I disabled the paging file"])
def test_a_page_file_is_windows(said: str) -> None:
    room = modern("1.50 GiB", "23.99 GiB", "9.10 GiB", None, "12.60 GiB", "300.00 MiB")
    found = found_in(said, room)
    assert found.cause is Cause.NOT_GPU_MEMORY
    assert "page file" in offered(found)


@pytest.mark.parametrize("text", [
    "[TM][ERROR] CUDA runtime error: out of memory /lmdeploy/src/turbomind/core/allocator.cc:51", "RuntimeError: Insufficient VRAM for model and cache",
])  # fmt: skip
def test_where_others_may_be_there_nvidia_smi_is_named(text: str) -> None:
    assert "nvidia-smi" in offered(found_in(text))


def test_what_ollama_found_free_is_read() -> None:
    found = found_in(
        'source=server.go:664 msg="gpu memory" id=GPU-7c library=CUDA available="3.2 GiB" free="3.7 GiB" minimum="457.0 MiB" overhead="0 B"',
        "allocating 7010.20 MiB on device 0: cudaMalloc failed: out of memory",
        "llama_model_load: error loading model: unable to allocate CUDA0 buffer",
        "RTX 4070 Ti Super 16GB",
    )  # fmt: skip
    assert found.cause is Cause.OTHER_PROCESS
    assert "3.70 GiB" in found.because


LOADING = "Loading checkpoint shards:  40%|####      | 2/5\n" + traced(
    "from_pretrained", "_load_pretrained_model", module="transformers/modeling_utils.py"
)
"""A 14B, which takes 27.5 GiB in 16 bits and less than 11 in four."""


@pytest.mark.parametrize(("script", "held", "told"), [
    ("bnb = BitsAndBytesConfig(load_in_4bit=True)\nAutoModel.from_pretrained('Qwen/Qwen2.5-14B')", "22.30 GiB", "quantization_config=bnb_config"),
    ("from_pretrained('Qwen/Qwen2.5-14B', load_in_4bit=True)", "22.30 GiB", "quantization_config"),
    ("from_pretrained('Qwen/Qwen2.5-14B', load_in_4bit=True)", "7.10 GiB", ""),  # which it may take in four bits
    ("from_pretrained('Qwen/Qwen2.5-14B', dtype='auto')", "22.30 GiB", ""),  # which nobody asked to be in four
    ("from_pretrained('Qwen/Qwen3-30B-A3B', load_in_4bit=True)", "32.30 GiB", ""),  # whose experts may be one tensor
])  # fmt: skip
def test_four_bits_that_were_not_applied_are_told(script: str, held: str, told: str) -> None:
    card = f"{float(held.split(maxsplit=1)[0]) + 0.4:.2f} GiB"
    free = modern("136.00 MiB", card, "60.00 MiB", None, held, "20.00 MiB")
    found = found_in(script, LOADING, free)
    first = next((cure for cure in found.cures if "seems not to apply" in cure.change), None)
    assert (first is not None) is bool(told)
    assert told in (first.where if first else "")
