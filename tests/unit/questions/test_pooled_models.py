"""Servers that make vectors or scores have no output matrix."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet

SERVE = "vllm serve Qwen/{name} --max-model-len 8192{flags}\n"
EMBEDS, RANKS = "Qwen3-Embedding-8B", "Qwen3-Reranker-8B"


@pytest.mark.parametrize(
    ("name", "flags", "output"),
    [
        (EMBEDS, "", False),
        (EMBEDS, " --runner pooling", False),
        (EMBEDS, " --convert embed", False),
        (EMBEDS, " --runner generate", True),
        (RANKS, " --task score", False),
        (RANKS, "", True),
        ("Qwen3-8B", "", True),
    ],
)
def test_pooled_models_have_no_output(name: str, flags: str, output: bool, tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(SERVE.format(name=name, flags=flags))
    found = memsheet.check(tmp_path / "serve.sh", gpus="1xA100-80GB")
    assert found.answer is not None
    assert (found.answer.model.head.kind == "causal_lm") is output
    assert not any("--runner" in at or "--convert" in at for at, _ in found.reads["serve.sh"].unmodelled)
