"""Layers that one process puts on several cards: laws of what each of them has."""

from __future__ import annotations

from typing import Any

import pytest

import memsheet
from laws import every
from memsheet.budget import Answer
from memsheet.errors import InputError
from memsheet.sheet import Component, Instant

STATES = (Component.PARAMETERS, Component.GRADIENTS, Component.OPTIMIZER_STATES)
JOBS: list[dict[str, Any]] = [
    {},
    {"lora_rank": 8, "recompute": "full"},
    {"lora_rank": 8, "quantize": "nf4"},
    {"precision": "bf16-pure", "global_batch": 4},
]


def spread(name: str, cards: int, **job: Any) -> Answer:
    return memsheet.train(name, gpus=f"{cards}xH100-80GB", schedule="naive", seq_len=256, **job)


@every("job", JOBS)
@every("cards", [2, 3, 8])
@every("name", ["llama-3.1-8b", "qwen2.5-0.5b", "gemma-3-1b"])
def test_what_the_cards_hold_is_the_model_once(name: str, cards: int, job: dict[str, Any]) -> None:
    whole = memsheet.train(name, gpus="1xH100-80GB", seq_len=256, **job).sheets[0]
    each = spread(name, cards, **job).sheets
    for component in STATES:
        alone = whole.of(component, instant=Instant.OPTIMIZER_STEP).value
        assert sum(sheet.of(component, instant=Instant.OPTIMIZER_STEP).value for sheet in each) == alone


@pytest.mark.parametrize("job", JOBS)
def test_one_card_is_the_ordinary_sheet(job: dict[str, Any]) -> None:
    ordinary = memsheet.train("llama-3.2-1b", gpus="1xH100-80GB", seq_len=256, **job)
    assert spread("llama-3.2-1b", 1, **job).sheets == ordinary.sheets


def test_logits_come_back_to_the_card_of_the_embeddings_alone() -> None:
    first, *others = spread("llama-3.1-8b", 4).sheets
    (back,) = (item.at[Instant.LOSS] for item in first.items if item.path == "model/returned")
    assert back.value == 256 * 128_256 * 2
    assert back.high == 3 * back.value  # raised to fp32 by a trainer that casts
    rows = {item.path for sheet in others for item in sheet.items}
    assert "model/returned" not in rows
    fused, *_ = spread("llama-3.1-8b", 4, loss="fused").sheets
    assert "model/returned" not in {item.path for item in fused.items}


def test_no_card_waits_for_other_micro_batches() -> None:
    one, more = (spread("llama-3.1-8b", 2, global_batch=batch) for batch in (2, 64))
    assert [sheet.peak.value for sheet in one.sheets] == [sheet.peak.value for sheet in more.sheets]


def test_layers_go_where_the_plan_says() -> None:
    said = spread("llama-3.1-8b", 2, layers_per_stage=[30, 2])
    assert said.plan.layers_per_stage == (30, 2)
    dealt = spread("llama-3.1-8b", 2)
    assert said.sheets[0].of(Component.PARAMETERS).value > dealt.sheets[0].of(Component.PARAMETERS).value


def test_nothing_of_a_group_of_processes_is_there() -> None:
    paths = {item.path for sheet in spread("llama-3.2-1b", 2).sheets for item in sheet.items}
    assert not paths & {"nccl", "ddp/buckets"}


@pytest.mark.parametrize(("name", "more", "field"), [
    ("t5-base", {}, "schedule"),
    ("llama-3.1-8b", {"engine": "fsdp2"}, "schedule"),
    ("llama-3.1-8b", {"end_stages": [0, 5]}, "end_stages"),
    ("llama-3.1-8b", {"layers_per_stage": [30, 3]}, "layers_per_stage"),
])  # fmt: skip
def test_what_no_map_does_is_refused(name: str, more: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refused:
        spread(name, 2, **more)
    assert field in {problem.field for problem in refused.value.problems}


def test_the_libraries_word_asks_for_it() -> None:
    plan = memsheet.train("llama-3.1-8b", gpus="2xH100-80GB", device_map="auto", seq_len=256).plan
    assert plan == spread("llama-3.1-8b", 2).plan
