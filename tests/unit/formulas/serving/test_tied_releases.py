"""A tied output matrix in releases of eight bits, whose own config says whether it is held twice."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.questions.accounted import infer
from memsheet.sheet import Component, Instant

TABLE = 151936 * 1024 * 2


def head(**options: Any) -> list[Any]:
    answer = infer("qwen3-0.6b", engine="transformers", max_model_len=1024, **options)
    return [
        item
        for item in answer.sheets[0].items
        if item.component is Component.PARAMETERS and item.path == "lm_head"
    ]


@pytest.mark.parametrize("phase", [None, "load"])
def test_a_tied_matrix_may_be_there_twice_at_the_high_end(phase: str | None) -> None:
    [item] = head(quantize="fp8", plan={"phase": phase} if phase else {})
    assert {(size.low, size.value, size.high) for size in item.at.values()} == {(0, 0, TABLE)}
    assert Instant.LOAD in item.at


@pytest.mark.parametrize("options", [{}, {"quantize": "nf4"}, {"quantize": "int8"}])
def test_other_weights_hold_it_once(options: dict[str, Any]) -> None:
    assert head(**options) == []


def test_an_untied_matrix_is_said_once_and_exactly() -> None:
    answer = infer("qwen3-8b", engine="transformers", max_model_len=1024, quantize="fp8")
    heads = [
        i.at[Instant.DECODE]
        for i in answer.sheets[0].items
        if i.component is Component.PARAMETERS and i.path == "lm_head"
    ]
    assert [(size.low, size.high) for size in heads] == [(151936 * 4096 * 2, 151936 * 4096 * 2)]
