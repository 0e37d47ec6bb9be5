"""Engines that ms-swift starts, by the flags behind their names."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet

VLLM = """NPROC_PER_NODE=4 \\
CUDA_VISIBLE_DEVICES=0,1,2,3 \\
swift infer --model Qwen/Qwen2.5-7B-Instruct --infer_backend vllm --vllm_gpu_memory_utilization 0.8 \\
    --vllm_max_model_len 8192 --vllm_tensor_parallel_size 2 --max_new_tokens 2048
"""
SGLANG = """CUDA_VISIBLE_DEVICES=0,1 swift deploy --model Qwen/Qwen3-8B --infer_backend sglang \\
    --sglang_tp_size 2 --sglang_context_length 8192
"""
ROLLOUT = """CUDA_VISIBLE_DEVICES=0 swift rollout --model Qwen/Qwen2.5-7B-Instruct --vllm_max_model_len 4096 \\
    --vllm_use_async_engine true
"""


@pytest.mark.parametrize(
    ("text", "engine", "tp", "length"),
    [(VLLM, "vllm", 2, 8192), (SGLANG, "sglang", 2, 8192), (ROLLOUT, "vllm", 1, 4096)],
)
def test_the_backends_flags_are_the_engines(
    text: str, engine: str, tp: int, length: int, tmp_path: Path
) -> None:
    (tmp_path / "run.sh").write_text(text)
    found = memsheet.check(tmp_path / "run.sh", gpus="4xA100-80GB")
    assert found.answer is not None
    plan = found.answer.plan
    assert (plan.engine, plan.mesh.tp, plan.serving.max_model_len) == (engine, tp, length)
    assert not any(read.unknown for read in found.reads.values())
    if engine == "vllm":
        assert plan.serving.max_sequences == 256


def test_its_own_generation_is_no_engine_of_these(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("swift infer --model Qwen/Qwen3-8B --infer_backend lmdeploy\n")
    with pytest.raises(memsheet.InputError):
        memsheet.check(tmp_path / "run.sh", gpus="1xA100-80GB")


OWN = "CUDA_VISIBLE_DEVICES=0 swift infer --model Qwen/Qwen3-8B --max_new_tokens 512"


@pytest.mark.parametrize(
    ("more", "batch"),
    [
        ("", 1),
        (" --infer_backend transformers --max_batch_size 16", 16),
        (" --infer_backend pt --attn_impl flash_attn", 1),
    ],
)
def test_without_a_backend_transformers_generates(more: str, batch: int, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(OWN + more)
    found = memsheet.check(tmp_path / "run.sh", gpus="1xA100-80GB")
    assert found.answer is not None
    plan = found.answer.plan
    assert (plan.engine, plan.serving.max_sequences, plan.serving.output_tokens) == (
        "transformers",
        batch,
        512,
    )


@pytest.mark.parametrize(
    "text",
    [
        OWN.replace("DEVICES=0", "DEVICES=0,1"),
        OWN.partition(" ")[2],
        f"{OWN} --quant_bits 4",
        f"{OWN} --adapters a",
    ],
)
def test_layers_that_are_spread_or_changed_are_not_read(text: str, tmp_path: Path) -> None:
    """With more cards than processes each holds a part of the layers."""
    (tmp_path / "run.sh").write_text(text)
    with pytest.raises(memsheet.InputError):
        memsheet.check(tmp_path / "run.sh", gpus="2xA100-80GB")
