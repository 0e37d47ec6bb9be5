"""A setting that a program refuses, in whatever words: told as such where a line is an error's and nothing
says that memory ran out.
"""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import FULL_CARD

from memsheet.diagnose.message import NO, Cause
from memsheet.diagnose.verdict import diagnose_texts

OF_CARD = {
    "Triton's formats": "ValueError(\"type fp8e4b8 not supported in this architecture. The supported fp8 dtypes are ('fp8e5',)\")",
    "a platform": "ValueError: Sleep mode is not supported on current platform.",
    "a unit by name": "AssertionError: FP4 quantized experts require Blackwell or newer",
    "a capability": "RuntimeError: cutlass scaled_mm fp8 requires compute capability >= 90",
    "the other way round": "RuntimeError: Current device with sm_75 does not support bf16 attention",
    "an AMD card": "RuntimeError: fp8 attention is only supported on gfx942",
    "cards by name": "RuntimeError: FlashAttention backward for head dim > 128 requires A100/A800 or H100/H800",
    "by what it needs": "ValueError: Attention with sinks requires FlashAttention 3, which is only supported on Hopper GPUs.",
    "not implemented": "NotImplementedError: int4 kv_cache is not implemented for this GPU",
}  # fmt: skip
TOGETHER = {
    "two features": ("AssertionError: Speculative decoding is not yet supported with pipeline parallelism", "pipeline parallelism"),
    "two options": ("error: --enable-lora is not compatible with --quantization gguf", "--quantization gguf"),
    "at the same time": ("ValueError: chunked prefill cannot be enabled together with sliding window.", "sliding window"),
    "a trainer": ("ValueError: `packing=True` is not supported for attn_implementation='eager'.", "eager"),
    "a sharder": ("ValueError: zero stage 3 does not support optimizer offload to nvme without aio.", "nvme"),
    "ranks and heads": ("AssertionError: tensor parallel size (6) must evenly divide num_key_value_heads 8", "num_key_value_heads"),
    "a rank's part": ("ValueError: Weight input_size_per_partition = 10944 is not divisible by min_thread_k = 128. Consider reducing it.", "min_thread_k"),
    "a multiple": ("RuntimeError: max_num_batched_tokens must be a multiple of block_size", "block_size"),
    "the most of a size": ("RuntimeError: FlashAttention forward only supports head dimension at most 256", "head dimension"),
    "the other way round": ("ValueError: Cannot use FlashInfer backend with fp8 kv cache on SM 7.5", "fp8 kv cache"),
    "a backend": ("ValueError: Selected backend TRITON_MLA is not valid for this configuration. Reason: ['block_size not supported']", "TRITON_MLA"),
}  # fmt: skip


@pytest.mark.parametrize("text", OF_CARD.values(), ids=OF_CARD)
def test_what_a_card_does_not_take_is_told_as_the_program_says_it(text: str) -> None:
    found = diagnose_texts({"log": f"GPU KV cache size: 81,920 tokens\n{text}"})
    assert found.cause is Cause.UNSUPPORTED_SETTING
    assert any("newer card" in cure.change for cure in found.cures)
    assert {cure.helps for cure in found.cures if "batch" in cure.change} == {NO}


@pytest.mark.parametrize(("text", "other"), TOGETHER.values(), ids=TOGETHER)
def test_two_settings_that_do_not_go_together_are_both_named(text: str, other: str) -> None:
    found = diagnose_texts({"log": text})
    assert found.cause is Cause.UNSUPPORTED_SETTING
    assert other in found.because


def test_a_refused_format_of_the_cache_is_changed_where_it_is_set() -> None:
    found = diagnose_texts({"log": f"vllm serve m --kv-cache-dtype fp8\n{OF_CARD['Triton' + chr(39) + 's formats']}"})  # fmt: skip
    assert "--kv-cache-dtype" in found.cures[0].where


@pytest.mark.parametrize("text", [*OF_CARD.values(), *(text for text, _ in TOGETHER.values())])
def test_what_failed_for_memory_or_goes_on_is_no_refusal(text: str) -> None:
    assert diagnose_texts({"log": f"{text}\n{FULL_CARD}"}).cause is Cause.REAL_NEED
    assert not diagnose_texts({"log": f"{text}\nloss: 2.1\nloss: 2.0\n"}).found


@pytest.mark.parametrize("text", [
    "WARNING 10-02 FlashAttention is not supported on this device, falling back to sdpa",
    "flash_attn is not supported with this model: using eager",
    "ValueError: the tokenizer does not support padding",
    "RuntimeError: Expected all tensors to be on the same device",
    "NotImplementedError: The operator 'aten::_linalg_eigh' is not currently implemented for the MPS device.",
    "ValueError: Tokenizer class does not support chat_template with system role",
    "ValueError: unsupported operand for format: int and str in tokens_per_second",
])  # fmt: skip
def test_a_warning_or_an_error_of_something_else_refuses_no_setting(text: str) -> None:
    assert not diagnose_texts({"log": text}).found


def test_what_a_text_sets_under_the_name_that_a_sentence_says_is_a_setting() -> None:
    refused = "AssertionError: Expandable segments are not compatible with memory pool."
    found = diagnose_texts(
        {"log": f"{refused}\nPYTORCH_CUDA_ALLOC_CONF=expandable_segments:True is in my bashrc"}
    )
    assert found.cause is Cause.UNSUPPORTED_SETTING
    assert found.cures[0].where == "without PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert not diagnose_texts({"log": "AssertionError: Old values are not compatible with new code."}).found
