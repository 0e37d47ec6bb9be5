"""Weights that vLLM keeps in host memory."""

from __future__ import annotations

import pytest

import memsheet
from memsheet.engines.vllm.host_weights import bytes_left_on_card
from memsheet.sheet import Bytes, Component, Instant
from memsheet.units import GIB, format_bytes


def held(component: Component, **options: object) -> int:
    answer = memsheet.infer("llama-3.1-8b", gpus="1xL40S", engine="vllm", max_model_len=4096, **options)  # type: ignore[arg-type]
    return int(answer.sheets[0].of(component, instant=Instant.DECODE).value)


def test_the_cache_takes_what_weights_leave() -> None:
    here, there = ({}, {"host_weights_gib": 6})
    for component, sign in ((Component.PARAMETERS, -1), (Component.KV_CACHE, 1)):
        changed = held(component, **there) - held(component, **here)
        assert changed == pytest.approx(sign * 6 * GIB, rel=0.001)


def test_embeddings_and_the_output_stay() -> None:
    assert held(Component.PARAMETERS, host_weights_gib=100) == 2 * (2 * 128256 * 4096 + 4096)


def test_the_parameter_that_reaches_it_goes_whole() -> None:
    assert bytes_left_on_card(100, 30, 8) == Bytes(62, 70, 70)
    assert bytes_left_on_card(100, 200, 8) == Bytes(0, 0, 0)


def test_the_host_holds_what_the_card_does_not() -> None:
    answer = memsheet.infer(
        "llama-3.1-8b", gpus="1xL4", engine="vllm", max_model_len=4096, host_weights_gib=4
    )
    assert answer.sheets[0].host_bytes == pytest.approx(4 * GIB, rel=0.001)


@pytest.mark.parametrize(
    ("version", "quantize", "told"),
    [("0.33.0", "fp8", True), ("0.14.0", "fp8", False), ("0.33.0", None, False)],
)
def test_weights_that_older_releases_hold_whole_are_told(
    version: str, quantize: str | None, *, told: bool
) -> None:
    """What is told is what a release before has more of while it loads."""
    asked = {"engine": "vllm", "gpus": "1xL40S", "max_model_len": 4096, "quantize": quantize, "fix": False}
    answer = memsheet.infer("qwen3-14b", **asked, engine_version=version)
    notes = [note for note in answer.sheets[0].notes if "put into fp8 as they are read" in note]
    assert bool(notes) is told
    if told:
        older = memsheet.infer("qwen3-14b", **asked, engine_version="0.14.0").sheets[0]
        (more,) = (item.largest.value for item in older.items if item.path == "unquantized")
        assert format_bytes(int(more)) in notes[0]
