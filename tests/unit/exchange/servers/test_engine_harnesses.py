"""Benchmarks and evaluations that start an engine themselves."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.exchange.servers.engine_harnesses import harness_servers
from memsheet.exchange.shared.file_format import FileReading
from memsheet.guard import parse_yaml
from memsheet.questions.launches import started_servers
from memsheet.questions.recognised_files import recognise_files

MODEL = "meta-llama/Llama-3.1-8B"
ENGINES: dict[str, tuple[str, dict[str, Any]]] = {
    f"vllm bench throughput --model {MODEL} --tensor-parallel-size 2 --input-len 9 --output_len 9 --num-prompts 9 --max-model-len 4096": (
        "vllm", {"mesh.tp": 2, "serving.max_model_len": 4096}),
    f"python benchmarks/benchmark_throughput.py --backend vllm --model={MODEL} -tp 2 --dataset d.json --enforce-eager": (
        "vllm", {"mesh.tp": 2, "serving.cuda_graphs": False}),
    f"python3 /v/benchmarks/benchmark_latency.py --model {MODEL} -tp 4 --batch-size 64 --gpu-memory-utilization 0.95 | tee l": (
        "vllm", {"mesh.tp": 4, "serving.memory_fraction": 0.95}),
    f"python3 -m sglang.bench_offline_throughput --model-path {MODEL} --num-prompts 10 --tp 2 --mem-fraction-static 0.8 --random-input 1": (
        "sglang", {"mesh.tp": 2, "serving.memory_fraction": 0.8}),
    f"python -m sglang.bench_one_batch --model-path {MODEL} --batch-size 1 12 --input-len 256 512 --tp-size 2": ("sglang", {"mesh.tp": 2}),
    f"lm_eval --model vllm --model_args pretrained={MODEL},tensor_parallel_size=2,dtype=auto,gpu_memory_utilization=0.8 --batch_size auto": (
        "vllm", {"mesh.tp": 2, "serving.memory_fraction": 0.8}),
    f"lm-eval run --model vllm --model_args pretrained={MODEL} max_length=2048 max_num_seqs=16 --tasks b": (
        "vllm", {"serving.max_model_len": 2048, "serving.max_sequences": 16}),
    f"python -m lm_eval --model sglang --model_args pretrained={MODEL},tp_size=2 --tasks x": ("sglang", {"mesh.tp": 2}),
    f'lighteval vllm "model_name={MODEL},tensor_parallel_size=2" "leaderboard|gsm8k|0|0"': (
        "vllm", {"mesh.tp": 2, "serving.max_sequences": 128, "serving.max_batched_tokens": 2048, "precision.parameters": "bf16"}),
}  # fmt: skip


def reads_of(text: str) -> list[FileReading]:
    return list(recognise_files({"run.sh": f"{text}\n"}, ())[0].values())


@pytest.mark.parametrize("command", ENGINES)
def test_the_engine_is_the_server_of_the_same_flags(command: str) -> None:
    (read,) = reads_of(command)
    form, asked = ENGINES[command]
    assert (read.form.name, read.unknown) == (form, ())
    assert asked.items() <= read.request.items()
    assert read.request["@model"] == MODEL


def test_what_the_evaluation_takes_unasked_is_told() -> None:
    (read,) = reads_of(f"lighteval vllm model_name={MODEL} task")
    assert any("max_num_seqs = 128" in line for line in read.assumed)
    (read,) = reads_of(f"vllm bench latency --model {MODEL}")
    assert any("LLM class" in line for line in read.assumed)


LOADED = {
    f"lm_eval --model hf --model_args pretrained={MODEL},dtype=bfloat16,load_in_4bit=True --batch_size 8": (8, "nf4", None),
    f"accelerate launch --num_processes 4 -m lm_eval --model_args pretrained={MODEL} --batch_size 16": (16, None, 4),
    f"lm_eval --model hf --model_args pretrained={MODEL}": (1, None, None),
    f'lighteval accelerate "model_name={MODEL},batch_size=4" task': (4, None, None),
    f"python -m eval.mmlu.run_eval --ntrain 0 --model_name_or_path {MODEL} --eval_batch_size 4 --load_in_8bit": (4, "int8", None),
}  # fmt: skip


@pytest.mark.parametrize("command", LOADED)
def test_an_evaluation_that_loads_the_model_itself_generates(command: str) -> None:
    asked = {key: held for read in reads_of(command) for key, held in read.request.items()}
    sequences, weights, processes = LOADED[command]
    assert (asked["task"], asked["@model"], asked["serving.max_sequences"]) == ("infer", MODEL, sequences)
    assert (asked.get("quantization.weights"), asked.get("@gpus")) == (weights, processes)


def test_several_evaluations_have_a_sheet_each(tmp_path: Any) -> None:
    path = tmp_path / "evals.sh"
    start = "lm_eval --model vllm --model_args pretrained"
    path.write_text(
        f"{start}={MODEL} --tasks a\n{start}={MODEL} --tasks b\n{start}=Qwen/Qwen3-8B --tasks a\n"
    )
    assert started_servers((str(path),)) == ("lm_eval 1", "lm_eval 2")
    path.write_text(f"for m in {MODEL} Qwen/Qwen3-8B; do\n{start}=$m --tasks a\ndone\n")
    assert started_servers((str(path),)) == (f"m={MODEL}", "m=Qwen/Qwen3-8B")


def test_an_evaluation_over_http_starts_no_engine() -> None:
    asks = f"lm_eval --model local-completions --model_args model={MODEL},base_url=http://a"
    (read,) = reads_of(f"vllm serve {MODEL} &\n{asks}")
    assert read.request["@model"] == MODEL
    assert read.assumed == reads_of(f"vllm serve {MODEL} &")[0].assumed


def test_a_changed_engine_is_not_taken_for_the_engine() -> None:
    start = f"python -m sglang.bench_offline_throughput --model-path {MODEL}"
    assert harness_servers("a.sh", f"{start} --zero-inference-config ds.json\n", parse_yaml) == []
    assert len(harness_servers("a.sh", f"{start}\n", parse_yaml)) == 1
