"""What is said of a word that a command does not take: the one that was meant."""

from __future__ import annotations

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
])  # fmt: skip
def test_the_word_that_was_meant_is_named(
    words: tuple[str, ...], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(words)) == 2
    assert hint in " ".join(capsys.readouterr().err.split())
