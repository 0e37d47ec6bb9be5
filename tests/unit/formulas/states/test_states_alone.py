"""Model states alone: what parameters, master weights, gradients and optimizer states hold, each at its own
largest.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

import memsheet
from laws import every
from memsheet.budget import Answer
from memsheet.errors import InputError
from memsheet.plan.dtypes import FP32
from memsheet.plan.engine_registry import MODELLED, find_engine
from memsheet.report.screen.table import render_answer
from memsheet.report.shared.look import Look
from memsheet.sheet import Component, Instant
from memsheet.timeline import Mark, Storage, Timeline, sheet_of
from memsheet.units import format_bytes

C = Component
MODEL = "llama-2-7b"
PADDED = 3e-4  # an engine may pad a tensor, and keeps a count of its steps with each


@cache
def asked(
    engine: str, precision: str, zero: int, batch: int | None, microbatch: int, seq_len: int
) -> Answer | None:
    """None where the engine has no such job."""
    more = {} if batch is None else {"global_batch": batch * microbatch}
    try:
        return memsheet.train(
            MODEL,
            gpus="1xA100-80GB",
            engine=engine,
            precision=precision,
            zero=zero,
            seq_len=seq_len,
            microbatch=microbatch,
            fix=False,
            **more,
        )
    except InputError:
        return None


def jobs() -> Iterator[tuple[str, str, int]]:
    for name in MODELLED:
        engine = find_engine(name)
        if engine is not None and "train" in engine.tasks:
            yield from ((name, precision, zero) for precision in engine.precisions for zero in engine.zero)


def textbook(answer: Answer, *, accumulates: bool) -> dict[Component, int]:
    """Bytes by the declared dtypes: one of each for a parameter, and AdamW's two moments."""
    precision, count = answer.plan.precision, answer.parameters
    again = (
        answer.plan.engine == "deepspeed" and answer.plan.zero == 2 and accumulates
    )  # the averaged ones beside their sum
    copied = (
        answer.plan.engine == "deepspeed" and answer.plan.zero > 0
    )  # whose partition is a copy even of fp32 parameters
    wide = (precision.master_weights or FP32).nbytes(count) if precision.master_weights or copied else 0
    sizes = {
        C.PARAMETERS: precision.parameters.nbytes(count), C.MASTER_WEIGHTS: wide,
        C.GRADIENTS: precision.gradients.nbytes(count) * (2 if again else 1), C.OPTIMIZER_STATES: 2 * precision.moments.nbytes(count),
    }  # fmt: skip
    return {component: size for component, size in sizes.items() if size}


@every("batch", [None, 4])
@every("engine, precision, zero", list(jobs()))
def test_states_are_the_textbooks_bytes_a_parameter(
    engine: str, precision: str, zero: int, batch: int | None
) -> None:
    answer = asked(engine, precision, zero, batch, 1, 2048)
    if answer is None:
        pytest.skip("the engine has no such job")
    states = answer.sheets[0].states
    if engine == "internevo":  # which steps on fp32 copies of its gradients
        states = {**states, C.GRADIENTS: states[C.PARAMETERS]}
    assert {c: s.value for c, s in states.items()} == pytest.approx(
        textbook(answer, accumulates=batch is not None), rel=PADDED
    )
    sheet = answer.sheets[0]
    for component, size in states.items():
        marks = (i for i in sheet.instants if i is not Instant.BACKWARD or component is not C.GRADIENTS)
        assert size.value >= max(sheet.of(component, instant=i).value for i in marks) or engine == "internevo"


@every("engine, precision, zero", list(jobs()))
def test_states_do_not_depend_on_batch_or_length(engine: str, precision: str, zero: int) -> None:
    answers = [asked(engine, precision, zero, None, *shape) for shape in ((1, 2048), (4, 2048), (1, 512))]
    found = [answer.sheets[0].states for answer in answers if answer is not None]
    assert all(states == found[0] for states in found)


@pytest.mark.parametrize("microbatch", [1, 4])
def test_the_screen_says_the_sum_of_the_states(microbatch: int) -> None:
    answer = asked("transformers", "bf16-master", 0, None, microbatch, 2048)
    assert answer is not None
    size = sum(state.value for state in answer.sheets[0].states.values())
    assert size == pytest.approx(16 * answer.parameters, rel=1e-6)
    assert (
        "Model states alone (parameters, master weights, gradients, optimizer states): "
        f"{format_bytes(size, decimal=True)}"
    ) in _text(answer)


def _text(answer: Answer, **options: Any) -> str:
    return render_answer(answer, Look(width=200, **options))


def test_a_traced_step_has_the_same_states() -> None:
    traced = Timeline(
        storages=tuple(
            Storage(size, component, "p", "op")
            for size, component in ((10, C.PARAMETERS), (10, C.GRADIENTS), (90, C.TEMPORARIES))
        ),
        events=(0, 2, ~2, 1, ~1),
        marks=(Mark(0, Instant.LOAD), Mark(1, Instant.BACKWARD), Mark(4, Instant.OPTIMIZER_STEP)),
    )
    states = sheet_of(traced).states
    assert {component: size.value for component, size in states.items()} == {
        C.PARAMETERS: 10,
        C.GRADIENTS: 10,
    }


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-master", "bf16-pure"])
def test_the_screen_says_what_is_saved_at_most_and_at_the_peak(recompute: str, precision: str) -> None:
    answer = memsheet.train(
        MODEL,
        gpus="1xA100-80GB",
        seq_len=2048,
        microbatch=4,
        recompute=recompute,
        precision=precision,
        fix=False,
    )
    sheet = answer.sheets[0]
    most, here = (
        max(sheet.of(C.SAVED_ACTIVATIONS, instant=i).value for i in sheet.instants),
        sheet.of(C.SAVED_ACTIVATIONS).value,
    )
    said = f"Saved activations: {format_bytes(most, decimal=True)} ({format_bytes(most)}) at their most"
    assert (said in _text(answer)) == (most > here)
    if 0 < here < most:
        assert format_bytes(here) in _text(answer)
    if recompute == "full":  # every layer's input: 32 · 8192 · 4096 elements, and what the head and loss save
        assert most >= 32 * 4 * 2048 * 4096 * (4 if precision == "fp32" else 2)
