"""A server that starts with less cache than a sequence of its longest needs says beside the verdict where
requests end.
"""

from __future__ import annotations

import pytest

import memsheet
from memsheet.budget import Answer
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
