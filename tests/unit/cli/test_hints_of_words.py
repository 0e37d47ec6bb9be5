"""What is said of a word that a command does not take: the one that was meant."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memsheet.cli import main


@pytest.mark.parametrize(("words", "hint"), [
    (("train", "llama-tiny", "--seq-len", "8", "--batch", "32"), "--microbatch 32"),
    (("infer", "llama-tiny", "--train-batch-size", "4"), "--sequences 4"),
    (("train", "llama-tiny", "--seq-len", "8", "--lora", "16"), "--lora-rank 16"),
    (("train", "llama-tiny", "--seq-len", "8", "--lora", "q_proj"), "--lora-targets q_proj"),
    (("train", "llama-tiny", "other", "--seq-len", "8"), "--help"),
    (("infer", "qwen2.5-32b", "--gpus", "4xL40S", "--engine", "vllm", "--tp", "3"), "--tp 2 or --tp 4"),
    (("check", "--gpus", "1xA100-80GB", "--", "python", "nowhere.py"), "folder that it lies in"),
    (("train", "qwen2.5", "7b", "--gpus", "1xL4"), "in one word: qwen2.5-7b"),
    (("train", "llama-tiny", "--r", "16"), "--lora-rank"),
    (("train", "llama-tiny", "--method", "qlora"), "--qlora"),
    (("train", "llama-tiny", "--grpo"), "memsheet job trl-grpo"),
    (("train", "llama-tiny", "--vram", "24"), "--gpus 24GB"),
    (("infer", "llama-tiny", "--vllm"), "--engine vllm"),
    (("llama-3.1-8b",), "memsheet train llama-3.1-8b … or memsheet infer llama-3.1-8b"),
    (("serve", "llama-3.1-8b", "--gpus", "1xL4"), "memsheet infer llama-3.1-8b"),
    (("vllm", "serve", "Qwen/Qwen3-8B", "-tp", "2"), "-- vllm serve Qwen/Qwen3-8B -tp 2"),
    (("check", "vllm", "serve", "Qwen/Qwen3-8B", "--served-model-name", "x"), "memsheet check --gpus 8xH100-80GB -- vllm"),
    (("infer", "llama-tiny", "--gpus", "8 nodes of 8 H100"), "2x8xH100-80GB"),
    (("infer", "llama-tiny", "--gpus", "macbook pro 32gb"), "M4 Max 64GB"),
    (("job", "dpo", "--model", "llama-tiny"), "-- trl dpo"),
])  # fmt: skip
def test_the_word_that_was_meant_is_named(
    words: tuple[str, ...], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(words)) == 2
    assert hint in " ".join(capsys.readouterr().err.split())


def plan_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    main([*words, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(("typed", "same"), [
    (("train", "llama-tiny", "--seq-len", "8", "--gpu", "1xL4"), ("train", "llama-tiny", "--seq-len", "8", "--gpus", "1xL4")),
    (("infer", "llama-tiny", "--quant", "nf4"), ("infer", "llama-tiny", "--quantize", "nf4")),
    (("train", "llama-tiny", "--gpus", "H100", "--nnodes", "2", "--gpus-per-node", "4", "--training.seq_len", "8"),
     ("train", "llama-tiny", "--gpus", "8xH100-80GB", "--per-node", "4", "--seq-len", "8")),
    (("infer", "llama-tiny", "--engine", "llama.cpp", "-fa", "-c", "64"),
     ("infer", "llama-tiny", "--engine", "llama.cpp", "--flash-attn", "on", "-c", "64")),
    (("train", "llama-tiny", "--seq-len", "8", "--gpus", "8xL4", "--engine", "torchtitan", "--parallelism.tensor_parallel_degree", "2",
      "--activation_checkpoint.mode", "full"),
     ("train", "llama-tiny", "--seq-len", "8", "--gpus", "8xL4", "--engine", "torchtitan", "--tp", "2", "--recompute", "full")),
])  # fmt: skip
def test_words_of_launchers_and_sections_are_our_own_flags(
    typed: tuple[str, ...], same: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    found, expected = plan_of(capsys, *typed), plan_of(capsys, *same)
    assert (found["plan"], found["ranks"]) == (expected["plan"], expected["ranks"])


@pytest.mark.parametrize("section", ["validation", "checkpoint", "metrics"])
def test_a_key_of_a_section_that_is_no_step_is_no_flag(
    section: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "llama-tiny", f"--{section}.seq_len", "8"]) == 2
    assert f"--{section}.seq_len: is not a flag" in capsys.readouterr().err
