"""Commands of text-generation-launcher and containers of its image, by vLLM's accounting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.cli import main
from memsheet.exchange import read_text
from memsheet.exchange.shared.stand_in_server import ACCOUNTING
from memsheet.questions.recognised_files import PARSERS

IMAGE = "ghcr.io/huggingface/text-generation-inference:3.3.5"
FLAGS = "--model-id a/b --num-shard 2 --max-total-tokens 4096 --quantize awq --cuda-memory-fraction 0.5"
POD = f"""apiVersion: v1
kind: Pod
metadata: {{name: tgi}}
spec:
  containers:
  - image: {IMAGE}
    resources: {{limits: {{nvidia.com/gpu: 2}}}}
    env:
    - {{name: MODEL_ID, value: a/b}}
    - {{name: NUM_SHARD, value: "2"}}
    - {{name: MAX_TOTAL_TOKENS, value: "4096"}}
    - {{name: QUANTIZE, value: awq}}
    - {{name: CUDA_MEMORY_FRACTION, value: "0.5"}}
"""
COMPOSE = f"""services:
  tgi:
    image: {IMAGE}
    environment: [MODEL_ID=c, NUM_SHARD=2]
    command: {FLAGS}
"""
ENV = "-e MODEL_ID=a/b -e NUM_SHARD=2 --env MAX_TOTAL_TOKENS=4096"


def said(text: str, name: str = "serve.sh") -> dict[str, Any]:
    return dict(read_text(name, text, PARSERS).request)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", f"text-generation-launcher {FLAGS}\n"),
        ("b.sh", f"docker run --gpus all -p 8080:80 {IMAGE} {FLAGS}\n"),
        ("c.yaml", POD),
        ("d.yaml", COMPOSE),
        ("e.sh", f"docker run {ENV} {IMAGE} --quantize=awq --cuda-memory-fraction 0.5\n"),
    ],
)
def test_flags_containers_and_variables_say_the_same(name: str, text: str) -> None:
    found = read_text(name, text, PARSERS)
    assert dict(found.request) == {
        "task": "infer", "engine": "vllm", "@model": "a/b", "mesh.tp": 2, "@gpus": 2, "serving.max_model_len": 4096, "quantization.weights": "awq-int4",
        "serving.max_batched_tokens": 4096, "serving.max_sequences": 128, "serving.memory_fraction": 0.45,
    }  # fmt: skip
    assert dict(found.unmodelled).keys() == {ACCOUNTING}


def test_all_cards_are_taken_where_nobody_says_how_many() -> None:
    assert "mesh.tp" not in said("text-generation-launcher --model-id a/b")
    assert said("text-generation-launcher --model-id a/b --sharded false")["mesh.tp"] == 1


@pytest.mark.parametrize(("sizes", "on"), [("0", False), ("1,2,4", True), ("32", True)])
def test_graphs(sizes: str, *, on: bool) -> None:
    assert said(f"text-generation-launcher --model-id a/b --cuda-graphs {sizes}")["serving.cuda_graphs"] is on


@pytest.mark.parametrize(
    ("flags", "gpus", "result"),
    [
        ("--model-id Qwen/Qwen3-8B --max-total-tokens 4096", "1xH100-80GB", Result.UNCERTAIN),
        ("--model-id meta-llama/Llama-3.1-70B-Instruct", "1xRTX4090", Result.DOES_NOT_FIT),
        (
            "--model-id mistralai/Mixtral-8x7B-Instruct-v0.1 --quantize bitsandbytes-nf4",
            "2xL4",
            Result.UNCERTAIN,
        ),
    ],
)
def test_no_is_only_said_of_weights_that_are_known(
    tmp_path: Path, flags: str, gpus: str, result: Result
) -> None:
    (tmp_path / "a.sh").write_text(f"text-generation-launcher {flags}\n")
    found = memsheet.check(tmp_path / "a.sh", gpus=gpus)
    assert found.result is result
    assert "accounting of text-generation-inference" in found.doubt


def test_the_screen_says_whose_command_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.sh").write_text(
        "text-generation-launcher --model-id llama-3.1-70b --max-total-tokens 8192 --num-shard 2\n"
    )
    main(["check", str(tmp_path / "a.sh"), "--gpus", "2xL4"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "text-generation-inference refuses to start" in shown
    assert "text-generation-inference, accounted as vllm · tp 2" in shown
    assert "It does not fit either way" in shown
