"""A server that starts with less cache than a sequence of its longest needs says beside the verdict where
requests end.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import memsheet
from memsheet.budget import Answer
from memsheet.cli import main
from memsheet.report.screen.pool_shortage import request_end


def answered(engine: str, tokens: int) -> Answer:
    return memsheet.infer("llama-3.1-8b", gpus="1xRTX4090", engine=engine, max_model_len=tokens)


@pytest.mark.parametrize(("tokens", "said"), [(131072, "end at"), (10240, "may end at"), (4096, "")])
def test_a_pool_shorter_than_a_sequence_is_in_the_headline(tokens: int, said: str) -> None:
    answer = answered("sglang", tokens)
    assert " ".join(request_end(answer)).startswith(f"requests {said}" if said else "")
    assert bool(request_end(answer)) is (answer.serving["kv_tokens_low"] < tokens)


def test_a_server_that_refuses_to_start_says_that_instead() -> None:
    assert request_end(answered("vllm", 131072)) == ()


def test_a_server_that_may_not_start_is_told_what_is_not_known(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Kernels of MXFP4 pad weights or not, which is most of what is open of the room for a cache."""
    (tmp_path / "a.sh").write_text(
        "python3 -m sglang.launch_server --model-path openai/gpt-oss-120b --max-running-requests 32\n"
    )
    main(["check", str(tmp_path / "a.sh"), "--gpus", "1xH100-80GB"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "one sequence of 1 tokens" not in shown
    assert re.search(r"What is not known is parameters: [\d.]+ GiB to [\d.]+ GiB\.", shown)
