"""LMDeploy's server and its pipeline, and TEI's router, by vLLM's accounting."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.cli import main
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.shared.stand_in_server import ACCOUNTING, FREE_SHARE
from memsheet.questions.recognised_files import PARSERS
from memsheet.sheet import Component, Instant

FLAGS = "--tp 2 --session-len 8192 --cache-max-entry-count 0.5 --quant-policy 8 --max-batch-size 64"
SAID = {
    "task": "infer", "engine": "vllm", "@model": "a/b-7B", "mesh.tp": 2, "@gpus": 2, "serving.max_model_len": 8192, "serving.kv_dtype": "fp8",
    "serving.max_sequences": 64, "serving.max_batched_tokens": 8192, "serving.page_tokens": 64,
}  # fmt: skip
PIPELINE = """from lmdeploy import pipeline, TurbomindEngineConfig
config = TurbomindEngineConfig(tp=2, session_len=8192, cache_max_entry_count=0.5, quant_policy=8, max_batch_size=64)
pipe = pipeline("a/b-7B", backend_config=config)
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", f"lmdeploy serve api_server a/b-7B {FLAGS}\n"),
        (
            "b.sh",
            f"docker run --gpus all openmmlab/lmdeploy:v0.10.1 lmdeploy serve api_server a/b-7B {FLAGS}\n",
        ),
        ("c.py", PIPELINE),
    ],
)
def test_the_server_and_the_pipeline_say_the_same(name: str, text: str) -> None:
    found = read_text(name, text, PARSERS)
    assert dict(found.request) == SAID
    assert found.values[FREE_SHARE] == 0.5
    assert dict(found.unmodelled).keys() == {ACCOUNTING, "--quant-policy"}
    assert not found.unknown


def test_a_share_is_one_of_what_is_free_beside_the_weights(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("lmdeploy serve api_server llama-3.1-8b --cache-max-entry-count 0.5\n")
    answer = memsheet.check(tmp_path / "a.sh", gpus="1xL40S").answer
    assert answer is not None
    assert 0.6 < (answer.plan.cache.memory_fraction or 0) < 0.75


def test_blocks_in_place_of_a_share_are_told() -> None:
    found = read_text("a.sh", "lmdeploy serve api_server a/b-7B --cache-max-entry-count 4096", PARSERS)
    assert "--cache-max-entry-count" in dict(found.unmodelled)


ROUTER_IMAGE = "ghcr.io/huggingface/text-embeddings-inference:1.8"
ROUTER = "--model-id BAAI/bge-m3 --max-batch-tokens 32768 --dtype float16"


@pytest.mark.parametrize(
    "text",
    [
        f"text-embeddings-router {ROUTER} --port 8080\n",
        f"docker run --gpus all -p 8080:80 -v $PWD/data:/data {ROUTER_IMAGE} {ROUTER}\n",
        f"docker run -e MODEL_ID=BAAI/bge-m3 -e MAX_BATCH_TOKENS=32768 {ROUTER_IMAGE}\n",
    ],
)
def test_flags_and_variables_of_the_router_say_the_same(text: str) -> None:
    found = read_text("serve.sh", text, PARSERS)
    said = {
        "@model": "BAAI/bge-m3",
        "serving.max_batched_tokens": 32768,
        "precision.parameters": "fp16",
        "engine": "vllm",
    }
    assert {key: found.request.get(key) for key in said} == said
    assert dict(found.unmodelled).keys() == {ACCOUNTING}
    assert not found.unknown


def test_an_encoder_has_no_decode_and_no_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.sh").write_text(f"text-embeddings-router {ROUTER}\n")
    main(["check", str(tmp_path / "a.sh"), "--gpus", "1xL4"])
    shown = capsys.readouterr().out
    assert "text-embeddings-inference, accounted as vllm" in shown
    for word in ("decode", "sampler", "kv cache", "lm_head", "fp16 cache"):
        assert word not in shown


@pytest.mark.parametrize("model", ["Qwen/Qwen3-Embedding-8B", "intfloat/e5-mistral-7b-instruct"])
def test_a_decoder_that_reads_whole_texts_keeps_no_cache(model: str, tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(f"text-embeddings-router --model-id {model} --max-batch-tokens 8192\n")
    (tmp_path / "b.sh").write_text(f"text-embeddings-router --model-id {model} --max-batch-tokens 32768\n")
    found = memsheet.check(tmp_path / "a.sh", gpus="1xL4")
    (few,), (many,) = (
        one.answer.sheets for one in (found, memsheet.check(tmp_path / "b.sh", gpus="1xL4")) if one.answer
    )
    assert found.result is Result.UNCERTAIN  # it is another's accounting
    assert "refuse" not in " ".join(found.doubt)
    kinds = {item.component for item in few.items}
    assert not {Component.KV_CACHE, Component.CUDA_GRAPHS} & kinds
    low, high = (one.of(Component.TEMPORARIES, instant=Instant.PREFILL).value for one in (few, many))
    assert 3.9 < high / low < 4.1
    assert ("but the size in its name" in str(found.doubt)) is ("e5" in model)


def test_a_server_of_embeddings_is_on_one_card_whatever_there_is(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text("text-embeddings-router --model-id BAAI/bge-m3\n")
    found = memsheet.check(tmp_path / "serve.sh", gpus="2xRTX4090")
    assert found.answer is not None, found.why_not
    assert found.answer.plan.mesh.tp == 1
