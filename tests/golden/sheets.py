"""Whole answers kept as files: a question beside what its sheet comes to. A change of any number shows in the
difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import memsheet
from memsheet.sheet import Bytes, Sheet

FOLDER = Path(__file__).with_name("sheets")

# name: (task, model, options)
QUESTIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama-2-7b-bf16-pure": ("train", "llama-2-7b", {"gpus": "1xA100-80GB", "seq_len": 2048, "microbatch": 1, "precision": "bf16-pure"}),
    "llama-2-7b-recompute-every-4": ("train", "llama-2-7b", {"seq_len": 2048, "microbatch": 4, "precision": "bf16-pure", "recompute_every": 4}),
    "llama-2-7b-qlora": (
        "train", "llama-2-7b",
        {"gpus": "1xA100-40GB", "seq_len": 2048, "lora_rank": 16, "lora_targets": ("q_proj", "k_proj", "v_proj", "o_proj"), "quantize": "nf4", "recompute": "full"},
    ),
    "llama-3-70b-fsdp2-8-cards": ("train", "llama-3-70b", {"gpus": "8xA100-80GB", "engine": "fsdp2", "seq_len": 2048, "microbatch": 4}),
    "llama-3-70b-fsdp2-64-cards-recompute": ("train", "llama-3-70b", {"gpus": "64xH100-80GB", "seq_len": 4096, "recompute": "full"}),
    "llama-3-8b-fsdp2-mixed": ("train", "llama-3-8b", {"gpus": "8xH100-80GB", "seq_len": 8192}),
    "llama-3-8b-fsdp2-zero-2-accumulating": ("train", "llama-3-8b", {"gpus": "8xH100-80GB", "seq_len": 4096, "zero": 2, "global_batch": 64}),
    "llama-3-8b-fused-loss-8-bit": (
        "train", "llama-3-8b", {"gpus": "8xH100-80GB", "seq_len": 8192, "loss": "fused", "optimizer": "adamw_8bit", "recompute": "full"},
    ),
    "llama-3-8b-lora": ("train", "llama-3-8b", {"gpus": "1xA100-80GB", "seq_len": 2048, "lora_rank": 16}),
    "llama-3.2-1b-ddp-autocast": ("train", "llama-3.2-1b", {"gpus": "4xA100-40GB", "engine": "transformers", "zero": 0, "seq_len": 2048}),
    "llama-3.2-1b-fp32-eager": ("train", "llama-3.2-1b", {"seq_len": 1024, "precision": "fp32", "attention": "eager"}),
    "llama-3.2-1b-fp16-autocast-accumulating": ("train", "llama-3.2-1b", {"seq_len": 1024, "precision": "fp16-autocast", "global_batch": 4}),
    "qwen2.5-0.5b-foreach": ("train", "qwen2.5-0.5b", {"seq_len": 1024, "microbatch": 2, "optimizer_implementation": "foreach"}),
    "gpt2-dropout": ("train", "gpt2", {"seq_len": 1024, "microbatch": 8, "dropout": 0.1}),
    "gpt2-eager-dropout-recompute": ("train", "gpt2", {"seq_len": 1024, "microbatch": 8, "dropout": 0.1, "attention": "eager", "recompute": "full"}),
    "mistral-7b-beyond-its-window": ("train", "mistral-7b", {"gpus": "8xH100-80GB", "seq_len": 8192}),
    "serve-llama-2-7b": ("infer", "llama-2-7b", {"engine": "transformers", "gpus": "1xA100-80GB", "max_model_len": 4096, "sequences": 32}),
    "serve-llama-3-70b-tp-4": ("infer", "llama-3-70b", {"gpus": "4xH100-80GB", "max_model_len": 8192, "sequences": 16, "prompt_tokens": 512}),
    "serve-llama-3-8b-awq-fp8-cache": (
        "infer", "llama-3-8b", {"engine": "transformers", "gpus": "1xA100-40GB", "max_model_len": 8192, "sequences": 8, "quantize": "awq-int4", "kv_dtype": "fp8"},
    ),
    "serve-gemma-3-27b-windows": ("infer", "gemma-3-27b", {"engine": "transformers", "gpus": "1xH100-80GB", "max_model_len": 32768, "sequences": 4}),
    "serve-deepseek-v2-latent": ("infer", "deepseek-v2", {"gpus": "8xH200-141GB", "max_model_len": 32768, "sequences": 64}),
    "serve-jamba-v0.1-hybrid": ("infer", "jamba-v0.1", {"gpus": "2xH100-80GB", "pp": 2, "max_model_len": 32768, "sequences": 4}),
    "serve-gpt-oss-20b-as-released": ("infer", "gpt-oss-20b", {"engine": "transformers", "gpus": "1xH100-80GB", "max_model_len": 16384, "sequences": 16}),
    "serve-llama-3.1-8b-adapters": (
        "infer", "llama-3.1-8b", {"gpus": "2xH100-80GB", "engine": "vllm", "max_model_len": 8192, "lora_rank": 16, "max_loras": 4},
    ),
    "serve-llama-3.1-70b-draft": (
        "infer", "llama-3.1-70b",
        {"gpus": "4xH100-80GB", "engine": "vllm", "max_model_len": 8192, "speculative": "draft", "draft_model": "llama-3.2-1b", "speculative_tokens": 4},
    ),
    "serve-deepseek-v3-groups": (
        "infer", "deepseek-v3", {"gpus": "8xH200-141GB", "engine": "sglang", "max_model_len": 8192, "attn_dp": 4, "memory_fraction": 0.85},
    ),
    "load-mixtral-8x7b": ("infer", "mixtral-8x7b", {"gpus": "2xH100-80GB", "phase": "load"}),
}  # fmt: skip


def asked(name: str) -> dict[str, Any]:
    """The question and its answer, as kept."""
    task, model, options = QUESTIONS[name]
    options = {key: value for key, value in options.items() if key != "phase"} | (
        {"plan": {"phase": "load"}} if "phase" in options else {}
    )
    answer = (memsheet.train if task == "train" else memsheet.infer)(model, fix=False, **options)
    return {
        "question": {
            "task": task,
            "model": model,
            **{k: list(v) if isinstance(v, tuple) else v for k, v in options.items()},
        },
        "parameters": answer.parameters,
        "verdict": answer.verdict.result.value if answer.verdict else None,
        "ranks": [compact(sheet) for sheet in answer.sheets],
    }


def compact(sheet: Sheet) -> dict[str, Any]:
    """What a sheet comes to: totals by instant, components at the peak."""
    peak = sheet.sums()[sheet.peak_instant]
    return {
        "rank": sheet.rank, "stage": sheet.stage, "ranks_alike": 1 + len(sheet.same_as), "peak_instant": sheet.peak_instant.value,
        "allocated": ends(sheet.allocated), "device": ends(sheet.device), "host_bytes": sheet.host_bytes,
        "instants": {instant.value: ends(sheet.at(instant)) for instant in sheet.instants},
        "at_peak": {component.value: ends(size) for component, size in peak.items() if size.high},
    }  # fmt: skip


def ends(size: Bytes) -> int | list[int]:
    """A size, with its range where it has one."""
    return size.value if size.low == size.high else [size.low, size.value, size.high]


def text(name: str) -> str:
    """The file: one line a number or range, so that differences are read line by line."""
    return "\n".join(_joined(json.dumps(asked(name), indent=1, ensure_ascii=False).splitlines())) + "\n"


def _joined(lines: list[str]) -> Iterator[str]:
    """Lists of numbers and names on one line."""
    held: list[str] | None = None
    for line in lines:
        if held is None and line.endswith("[") and not line.strip().startswith('"ranks"'):
            held = [line]
        elif held is not None:
            held.append(line.strip())
            if line.strip().startswith("]"):
                yield held[0] + " ".join(held[1:-1]) + held[-1]
                held = None
        else:
            yield line


def write() -> None:
    """Every file again, and none besides."""
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.json"):
        if old.stem not in QUESTIONS:
            old.unlink()
    for name in QUESTIONS:
        (FOLDER / f"{name}.json").write_text(text(name), encoding="utf-8")
