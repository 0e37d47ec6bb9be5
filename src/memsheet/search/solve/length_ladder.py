"""A training step whose sequence length nobody says: the answer at 2,048, 4,096, 8,192 … tokens, up to the
model's own length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memsheet.budget import Answer, LadderStep, Result, worst_sheet
from memsheet.errors import InputError
from memsheet.frozen import replace
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import RecomputeMode

SHORTEST, UNKNOWN_END = 2048, 32_768
"""Tokens of the first step, and of the last where a model says no length."""

Ask = Callable[[Mapping[str, Any], bool], Answer]
"""The answer to a request; whether changes are looked for where it does not fit."""


def ladder_lengths(model: ModelSpec) -> tuple[int, ...]:
    """Doubling from 2,048 tokens, the model's own length last; that alone where it is shorter."""
    end = model.max_positions or UNKNOWN_END
    lengths = []
    length = SHORTEST
    while length < end:
        lengths.append(length)
        length *= 2
    return (*lengths, end)


def answer_on_ladder(model: ModelSpec, request: Mapping[str, Any], ask: Ask) -> Answer:
    """The answer at the longest of the lengths that fits, else at the first, with what every length needs in
    ``ladder``.

    Raises InputError where no length can be asked, with the problems of the first.
    """
    answers: dict[int, Answer] = {}
    refused: list[InputError] = []
    for length in ladder_lengths(model):
        try:
            answers[length] = ask({**request, "seq_len": length}, False)
        except InputError as error:
            refused.append(error)
    if not answers:
        raise refused[0]
    steps = tuple(_account_ladder_step(length, answer, ask, request) for length, answer in answers.items())
    fitting = [step.seq_len for step in steps if step.result is Result.FITS]
    chosen = max(fitting) if fitting else min(answers)
    found = answers[chosen] if fitting else ask({**request, "seq_len": chosen}, True)
    said = f"seq_len = {chosen} ({_chosen_length_reason(found, fits=bool(fitting))}; --seq-len says another)"
    return replace(found, ladder=steps, assumed=(said, *found.assumed))


def _chosen_length_reason(answer: Answer, *, fits: bool) -> str:
    if answer.verdict is None:
        return "the first of several"
    return (
        "the longest of several that fits" if fits else "the first of several, none of which is sure to fit"
    )


def _account_ladder_step(length: int, answer: Answer, ask: Ask, request: Mapping[str, Any]) -> LadderStep:
    need = worst_sheet(answer.sheets).device.value if answer.verdict is None else answer.verdict.device.value
    step = LadderStep(
        seq_len=length, device_bytes=int(need), result=answer.verdict.result if answer.verdict else None
    )
    other = recomputed_answer(answer, request, length, ask)
    if other is None:
        return step
    need = worst_sheet(other.sheets).device.value if other.verdict is None else other.verdict.device.value
    return replace(
        step, recomputed_bytes=int(need), recomputed_result=other.verdict.result if other.verdict else None
    )


def recomputed_answer(answer: Answer, request: Mapping[str, Any], length: int, ask: Ask) -> Answer | None:
    """The same with every layer recomputed, where it is not sure to fit and nobody said what to recompute;
    None elsewhere and where that is not legal.
    """
    fits = answer.verdict is not None and answer.verdict.result is Result.FITS
    if (
        fits
        or answer.plan.recompute.mode is not RecomputeMode.NONE
        or any(key.startswith("recompute.") for key in request)
    ):
        return None
    try:
        return ask({**request, "seq_len": length, "recompute.mode": "full"}, False)
    except InputError:
        return None
