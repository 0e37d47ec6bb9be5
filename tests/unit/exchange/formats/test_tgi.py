"""Commands of text-generation-launcher and containers of its image, by vLLM's accounting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.cli import main
from memsheet.exchange.file_texts import read_text
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
        ("--model-id Qwen/Qwen2.5-VL-7B-Instruct --max-total-tokens 4096", "1xH100-80GB", Result.UNCERTAIN),
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
    assert any(
        words in found.doubt for words in ("accounting of text-generation-inference", "of what vLLM brings")
    )


def test_the_screen_says_whose_command_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.sh").write_text(
        "text-generation-launcher --model-id llama-3.1-70b --max-total-tokens 8192 --num-shard 2\n"
    )
    main(["check", str(tmp_path / "a.sh"), "--gpus", "2xL4"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "text-generation-inference refuses to start" in shown
    assert "text-generation-inference, accounted as vllm · tp 2" in shown
    assert "It does not fit either way" in shown


L4 = "--model-id mistralai/Mistral-7B-Instruct-v0.2 --max-total-tokens 8192 --cuda-memory-fraction 0.9"


@pytest.mark.parametrize(
    ("flags", "gpus", "result"),
    [
        ("--model-id Qwen/Qwen3-8B --max-total-tokens 4096", "1xH100-80GB", Result.FITS),
        ("--model-id meta-llama/Llama-3.1-8B-Instruct", "1xL4", Result.FITS),  # a length that fits
        (L4, "1xL4", Result.UNCERTAIN),
        (f"{L4} --max-batch-prefill-tokens 4096", "1xL4", Result.FITS),
        ("--model-id meta-llama/Llama-3.1-8B-Instruct --enable-prefill-logprobs", "1xL4", Result.UNCERTAIN),
    ],
)
def test_a_fit_is_sure_where_the_cache_spares_what_its_own_run_may_take(
    tmp_path: Path, flags: str, gpus: str, result: Result
) -> None:
    (tmp_path / "a.sh").write_text(f"text-generation-launcher {flags}\n")
    found = memsheet.check(tmp_path / "a.sh", gpus=gpus)
    assert found.result is result
    assert ("--max-batch-prefill-tokens" in found.doubt) is (result is Result.UNCERTAIN)


def test_a_card_that_the_launcher_knows_sets_the_batch(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("text-generation-launcher --model-id meta-llama/Llama-3.1-8B-Instruct\n")
    batches = [
        found.answer.plan.serving.max_batched_tokens
        for gpus in ("1xL4", "1xA100-80GB", "1xRTX4090")
        if (found := memsheet.check(tmp_path / "a.sh", gpus=gpus)).answer
    ]
    layer = 2 * (3 * 32 + 2 * 8) * 128 * 4096 + 6 * 4096 * 14336
    assert batches == [121 * 10**12 // (32 * layer), 312 * 10**12 // (32 * layer), 4096]


def test_the_share_that_the_cache_fills_is_said() -> None:
    assert said(f"TGI_WIGGLE_ROOM=0.8 text-generation-launcher {FLAGS}")["serving.memory_fraction"] == 0.4
    found = read_text("a.sh", f"text-generation-launcher {FLAGS}\n", PARSERS)
    assert any("fills 0.9 of --cuda-memory-fraction" in words for words in found.assumed)
