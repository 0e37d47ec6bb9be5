"""Refusals that are none of memory: each is told as what it is, with what passes it, and no smaller job."""

from __future__ import annotations

import pytest
from tests.unit.diagnose.corpus import FULL_CARD

from memsheet.diagnose.message import NO, Cause
from memsheet.diagnose.verdict import diagnose_texts

REFUSALS = {
    "fp16 weights under a scaler": ("ValueError: Attempting to unscale FP16 gradients.", "bf16=True"),
    "bf16 in vLLM on a T4": (
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has compute capability 7.5.", "--dtype half",
    ),
    "bf16 in the Trainer": (
        "ValueError: Your setup doesn't support bf16/gpu. You need to assign use_cpu if you want to train the model on CPU.", "fp16=True",
    ),
    "bf16 in DeepSpeed": ("ValueError: Type bf16 is not supported on your device.", '"fp16": {"enabled": true}'),
    "bf16 in accelerate": ("ValueError: bf16 mixed precision requires PyTorch >= 1.10 and a supported device.", "mixed_precision: fp16"),
    "MXFP4 in an older release": ("ValueError: MXFP4 quantized models is only supported on GPUs with compute capability >= 9.0 (e.g H100, or B100)", "pip install -U"),
    "a format in a server": ("ValueError: The quantization method fp8 is not supported for the current GPU. Minimum capability: 80. Current capability: 75.", ""),
    "flash attention on Turing": ("RuntimeError: FlashAttention only supports Ampere GPUs or newer.", 'attn_implementation="sdpa"'),
    "no kernels in the build": ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "get_arch_list"),
    "one model in many processes": (
        "ValueError: You can't train a model that has been loaded with `device_map='auto'` in any distributed mode.", "--num_processes 1",
    ),
    "a cache of few bits without flash attention": ("llama_init_from_model: V cache quantization requires flash_attn", "-fa on"),
    "the same in a later release": ("failed to initialize the context: quantized V cache was requested, but this requires Flash Attention", "-fa on"),
    "heads over ranks": ("ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (3).", "--tensor-parallel-size"),
    "blocks of scales over ranks": (
        "ValueError: The output_size of gate's and up's weight = 352 is not divisible by weight quantization block_n = 128.", "--tensor-parallel-size",
    ),
    "another card than its weights": (
        "ValueError: You can't train a model that has been loaded in 8-bit or 4-bit precision on a different device than the one you're training on.",
        "torch.cuda.current_device()",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "where"), REFUSALS.values(), ids=REFUSALS)
def test_a_refused_setting_is_no_shortage(text: str, where: str) -> None:
    found = diagnose_texts({"log": text})
    assert found.cause is Cause.UNSUPPORTED_SETTING
    assert found.cures
    assert where in found.cures[0].where
    assert {cure.helps for cure in found.cures if "batch" in cure.change} == {NO}


@pytest.mark.parametrize("text", [text for text, _ in REFUSALS.values()], ids=REFUSALS)
def test_a_message_of_memory_speaks_before_a_refusal(text: str) -> None:
    for both in (f"{text}\n{FULL_CARD}", f"{FULL_CARD}\n{text}"):
        assert diagnose_texts({"log": both}).cause is Cause.REAL_NEED


@pytest.mark.parametrize("text", [
    "FP8 quantized models is only supported on GPUs with compute capability >= 8.9 (e.g 4090/H100), actual = `8.6`. We will default to dequantizing the model to bf16.",
    "MXFP4 quantization is only supported on GPUs with compute capability >= 7.5 (e.g T4, A100). We will default to dequantizing the model to bf16.",
])  # fmt: skip
def test_a_format_that_is_put_back_refuses_nothing(text: str) -> None:
    assert not diagnose_texts({"log": text}).found


@pytest.mark.parametrize("text", [text for text, _ in REFUSALS.values()], ids=REFUSALS)
def test_a_program_that_goes_on_died_of_no_refusal(text: str) -> None:
    assert not diagnose_texts({"log": f"{text}\nloss: 2.1\nloss: 2.0\n"}).found


@pytest.mark.parametrize(("method", "least"), [("awq", "75"), ("gptq", "75"), ("fp8", "89")])
def test_a_method_that_was_refused_is_no_change(method: str, least: str) -> None:
    """Neither is a format that asks for more than the card has; both capabilities are told."""
    found = diagnose_texts({
        "log": f"ValueError: The quantization method {method} is not supported for the current GPU. "
        f"Minimum capability: {least}. Current capability: 70."
    })  # fmt: skip
    offered = "\n".join(cure.change for cure in found.cures if cure.helps != NO)
    assert method.upper() not in offered
    assert "AWQ" not in offered
    assert "of 7.0" in offered
    assert f"{least[0]}.{least[1]} or above" in offered
