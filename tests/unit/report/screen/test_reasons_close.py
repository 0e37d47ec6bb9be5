"""Where a row's reason is an arithmetic (a dtype over a share), it comes to the size that is shown."""

from __future__ import annotations

import re
from typing import Any

import pytest

import memsheet
from memsheet.budget import Answer
from memsheet.report.screen.table import peak_table_rows
from memsheet.report.shared.look import Look
from memsheet.sheet import Component
from memsheet.units import GIB

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
LOOK = Look(width=120)
STATES = (
    Component.PARAMETERS,
    Component.MASTER_WEIGHTS,
    Component.GRADIENTS,
    Component.OPTIMIZER_STATES,
)


def embedded(answer: Answer) -> int:
    """Elements of the table, which the head of these models shares or has beside it."""
    return answer.model.embeddings.weights[0].elements if answer.model.embeddings else 0


def of_words(words: str, answer: Answer) -> float | None:
    """The size that a reason comes to, in bytes; None where it is no arithmetic."""
    made, over = (
        re.search(r"of ([\d.]+) ([BM]) as built", words),
        re.search(r"1/(\d+) on each rank", words),
    )
    elements = float(made[1]) * {"B": 1e9, "M": 1e6}[made[2]] if made else answer.parameters
    dtype, times = re.search(r"\b(fp32|bf16|fp16)\b", words), 2 if "two" in words else 1
    if re.search("tp |ep |stage|adapter|frozen|of matrices|rows and|pages|text model", words):
        return None
    if way := re.search(r"on the host, ([\d.]+) on the way", words):
        return float(way[1]) * GIB
    if "8 bits" in words:
        wide = 4 * embedded(answer) if "of embeddings" in words else 0
        size = times * (wide + (elements - wide / 4) * (1 + 4 / 256))
    elif dtype:
        size = times * BYTES[dtype[1]] * elements
    else:
        return None
    so_far, beside = re.search(r"of ([\d.]+) so far", words), re.search(r"and ([\d.]+) beside them", words)
    if so_far:  # the whole closes, and the row is a part of it
        assert float(so_far[1]) * GIB == pytest.approx(size / int(over[1] if over else 1), rel=0.01)
        return None
    return size / int(over[1] if over else 1) + (float(beside[1]) * GIB if beside else 0)


def jobs() -> list[dict[str, Any]]:
    """Every engine that trains, with and without recompute, in one micro-batch and in several."""
    ways: list[dict[str, Any]] = [
        *({"engine": "deepspeed", "zero": zero} for zero in range(4)),
        *({"engine": name} for name in ("fsdp1", "fsdp2", "megatron", "torchtitan", "torchtune", "litgpt", "ms-swift")),
        *({"engine": "transformers", "optimizer": name} for name in ("adamw", "adamw_8bit", "lion", "sgd_momentum")),
        {"engine": "transformers", "precision": "bf16-pure"},
        *({"engine": "deepspeed", "zero": zero, "offload": "optimizer"} for zero in (2, 3)),
    ]  # fmt: skip
    return [
        {**way, "recompute": r, "global_batch": b} for way in ways for r in ("none", "full") for b in (8, 32)
    ]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.2-1b"])
def test_a_dtype_over_a_share_comes_to_the_size_beside_it(model: str) -> None:
    checked = 0
    for job in jobs():
        answer = memsheet.train(model, gpus="8xH200", seq_len=1024, fix=False, slack="bounds", **job)
        for row in peak_table_rows(answer, answer.sheets[0], LOOK):
            if row.component in STATES and row.size.value > GIB / 10:
                told = of_words(row.words, answer)
                if told is not None:
                    checked += 1
                    assert told == pytest.approx(row.size.value, rel=0.006, abs=0.011 * GIB), (job, row)
    assert checked > 150


def test_every_row_of_tensors_has_a_reason() -> None:
    for model in ("llama-3.1-8b", "gpt-oss-20b"):
        for job in jobs():
            try:
                answer = memsheet.train(model, gpus="8xH200", seq_len=1024, fix=False, slack="bounds", **job)
            except memsheet.InputError:
                continue
            for row in peak_table_rows(answer, answer.sheets[0], LOOK):
                assert row.words, (model, job, row)
