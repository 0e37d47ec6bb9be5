"""Commands of text-embeddings-router and containers of its image, by vLLM's accounting of encoders."""

from __future__ import annotations

from pathlib import Path

import pytest

from memsheet.cli import main
from memsheet.exchange import read_text
from memsheet.exchange.shared.stand_in_server import ACCOUNTING
from memsheet.questions.recognised_files import PARSERS

IMAGE = "ghcr.io/huggingface/text-embeddings-inference:1.8"
FLAGS = "--model-id BAAI/bge-m3 --max-batch-tokens 32768 --dtype float16"


@pytest.mark.parametrize(
    "text",
    [
        f"text-embeddings-router {FLAGS} --port 8080\n",
        f"docker run --gpus all -p 8080:80 -v $PWD/data:/data {IMAGE} {FLAGS}\n",
        f"docker run -e MODEL_ID=BAAI/bge-m3 -e MAX_BATCH_TOKENS=32768 {IMAGE}\n",
    ],
)
def test_flags_containers_and_variables_say_the_same(text: str) -> None:
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
    (tmp_path / "a.sh").write_text(f"text-embeddings-router {FLAGS}\n")
    main(["check", str(tmp_path / "a.sh"), "--gpus", "1xL4"])
    shown = capsys.readouterr().out
    assert "text-embeddings-inference, accounted as vllm" in shown
    for word in ("decode", "sampler", "kv cache", "lm_head", "fp16 cache"):
        assert word not in shown
