"""Where a row's reason is an arithmetic (a dtype over a share), it comes to the size that is shown."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

import memsheet
from memsheet.budget import Answer
from memsheet.formulas.states.held import held_tensors
from memsheet.plan.model import Role
from memsheet.report.screen.table import TableRow, peak_table_rows
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


@cache
def answered(model: str, number: int) -> Answer:
    """What comes of a job, once for all that is asked of it."""
    return memsheet.train(model, gpus="8xH200", seq_len=1024, fix=False, slack="bounds", **jobs()[number])


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.2-1b"])
def test_a_dtype_over_a_share_comes_to_the_size_beside_it(model: str) -> None:
    checked = 0
    for number, job in enumerate(jobs()):
        answer = answered(model, number)
        for row in peak_table_rows(answer, answer.sheets[0], LOOK):
            if row.component in STATES and row.size.value > GIB / 10:
                told = of_words(row.words, answer)
                if told is not None:
                    checked += 1
                    assert told == pytest.approx(row.size.value, rel=0.006, abs=0.011 * GIB), (job, row)
    assert checked > 150


def test_every_row_of_tensors_has_a_reason() -> None:
    for model in ("llama-3.1-8b", "gpt-oss-20b"):
        for number, job in enumerate(jobs()):
            try:
                answer = answered(model, number)
            except memsheet.InputError:
                continue
            for row in peak_table_rows(answer, answer.sheets[0], LOOK):
                assert row.words, (model, job, row)


def rows_of(answer: Answer) -> dict[Component, TableRow]:
    return {row.component: row for row in peak_table_rows(answer, answer.sheets[0], LOOK) if row.component}


@pytest.mark.parametrize(("tp", "ep", "etp"), [(2, 4, 1), (2, 4, 2), (4, 1, 1), (1, 8, 1)])
def test_experts_are_divided_by_the_ranks_that_have_the_same_ones(tp: int, ep: int, etp: int) -> None:
    mesh: dict[str, Any] = {"engine": "megatron", "tp": tp, "ep": ep, "etp": etp, "zero": 1}
    answer = memsheet.train("mixtral-8x7b", gpus="16xH200", seq_len=1024, fix=False, slack="bounds", **mesh)
    row = rows_of(answer)[Component.OPTIMIZER_STATES]
    dense, routed = re.search(r"dense 1/(\d+), experts (?:1/(\d+)|whole) on each rank", row.words).groups()  # type: ignore[union-attr]
    parts = {True: 0, False: 0}
    for held in held_tensors(answer.model, answer.plan):
        parts[held.role is Role.EXPERT] += int(held.times * held.elements)
    told = 8 * (parts[False] / int(dense) + parts[True] / int(routed or 1))
    assert told == pytest.approx(row.size.value, rel=0.001), row.words
    over = [f"{axis} {size}" for axis, size in (("ep", ep), ("etp", etp)) if size > 1]
    assert row.words.endswith(f"experts over {' and '.join(over)}" if over else "experts whole")


@pytest.mark.parametrize(
    "job",
    [{"engine": "torchtitan", "pp": 2}, {"engine": "torchtitan", "pp": 4}, {"engine": "fsdp2", "gradient_sync": "last"}],
)  # fmt: skip
def test_whole_gradients_are_counted_once(job: dict[str, Any]) -> None:
    answer = memsheet.train(
        "llama-3.1-8b", gpus="8xH200", seq_len=1024, global_batch=32, fix=False, slack="bounds", **job
    )
    row, whole = rows_of(answer)[Component.GRADIENTS], answer.sheets[0].states[Component.GRADIENTS].value
    beside = re.search(r"and ([\d.]+) beside them", row.words)
    assert "whole until the last micro-batch" in row.words
    assert whole + float(beside[1] if beside else 0) * GIB == pytest.approx(row.size.value, abs=0.01 * GIB)


def test_states_of_a_bare_count_are_of_all_of_it() -> None:
    answer = memsheet.train(parameters=7e9, gpus="8xH100-80GB", engine="deepspeed", zero=2, fix=False)
    assert rows_of(answer)[Component.PARAMETERS].words == "bf16, a whole copy on each rank"
    assert rows_of(answer)[Component.OPTIMIZER_STATES].words == "two fp32 moments, 1/8 on each rank"


@pytest.mark.parametrize(
    ("adapter", "beside", "moments"),
    [
        ({"kind": "lora", "rank": 16, "targets": ["q_proj"], "full_modules": ["lm_head", "embed_tokens"]}, "fp32 adapters of rank 16, bf16 copies of lm_head and embed_tokens",
         "two moments, fp32 of the adapters, bf16 of the copies"),
        ({"kind": "lora", "rank": 16, "targets": ["q_proj"]}, "fp32 adapters of rank 16", "two fp32 moments, of the adapters"),
        ({"kind": "p-tuning", "prompt_length": 20, "encoder_width": 4096}, "20 fp32 tokens before every sequence, made by a network 4,096 wide",
         "two fp32 moments, of the tokens and the network that makes them"),
        ({"kind": "prefix-projection", "prompt_length": 20, "encoder_width": 512}, "20 learned keys and values a layer, made by a network 512 wide",
         "two fp32 moments, of the prefix and the network that makes it"),
        ({"kind": "ln-tuning"}, "copies of norms", "two bf16 moments, of the norms' copies"),
    ],
)  # fmt: skip
def test_what_trains_beside_a_frozen_base_is_named(
    adapter: dict[str, Any], beside: str, moments: str
) -> None:
    said = {"engine": "transformers", "microbatch": 1, "seq_len": 1024, "adapter": adapter}
    answer = memsheet.train("llama-3.1-8b", gpus="1xH200", plan=said, fix=False, slack="bounds")
    rows = rows_of(answer)
    assert rows[Component.PARAMETERS].words == f"frozen bf16 base, {beside}"
    assert rows[Component.OPTIMIZER_STATES].words == moments
    assert any("adapter.dtype" in one for one in answer.assumed) is (adapter["kind"] == "lora")
