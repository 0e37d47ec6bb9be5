"""What vLLM's profiling run keeps of pictures under the language model, and what a release does of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from laws import every
from memsheet import catalog
from memsheet.engines.vllm.facts import release_of
from memsheet.engines.vllm.pictures import (
    copied_rows,
    kept_pictures,
    longest_item,
    shown_pictures,
    tower_run_bytes,
)
from memsheet.engines.vllm.releases import ProfiledPictures
from memsheet.formulas.serving.sampling import masked_sampler_bytes
from memsheet.plan.dtypes import BF16
from memsheet.plan.model import ModelSpec, Picture
from memsheet.plan.plan import Plan
from memsheet.questions.accounted import infer
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request
from memsheet.sheet import NOTHING, Bytes, Component, Instant
from memsheet.units import MIB

MISTRAL, GEMMA, QWEN = "mistral-small-3.1-24b", "gemma-3-27b", "qwen2.5-vl-7b"


def model(name: str) -> ModelSpec:
    return read_model(name, catalog=catalog.find_model, names=catalog.model_names())


def plan(name: str = MISTRAL, **keys: Any) -> Plan:
    asked = {
        "serving.max_model_len": 16000,
        "serving.max_sequences": 1024,
        "serving.max_batched_tokens": 8192,
    }
    return resolve_request(
        {"task": "infer", "engine": "vllm", **asked, **{f"serving.{k}": v for k, v in keys.items()}},
        model(name),
    ).plan


def kept(name: str, version: str, **keys: Any) -> Bytes:
    return kept_pictures(model(name), plan(name, **keys), release_of(version))


def test_a_picture_of_the_largest_size_by_family() -> None:
    found = {name: model(name).towers[0].largest for name in (MISTRAL, GEMMA, "llava-1.5-7b", QWEN)}
    assert found[MISTRAL] == Picture(embeddings=55 * 55, places=55 * 56, pixels=3 * 1540 * 1540)
    assert found[GEMMA] == Picture(embeddings=256, places=260, pixels=3 * 896 * 896)
    assert found["llava-1.5-7b"] == Picture(embeddings=576, places=576, pixels=3 * 336 * 336)
    assert found[QWEN] is None


def test_two_pictures_fill_a_batch_and_each_is_copied_to_its_length() -> None:
    own, copies, pixels = 2 * 3025 * 5120 * 2, 2 * 8192 * 5120 * 2, 2 * 3 * 1540 * 1540 * 2
    assert kept(MISTRAL, "0.11.0") == Bytes.exact(own + copies + pixels)
    assert kept(MISTRAL, "0.10.2") == kept(MISTRAL, "0.14.0") == Bytes.exact(own + pixels)
    assert kept(MISTRAL, "0.12.0") == Bytes.exact(own + 2 * 3080 * 5120 * 2 + pixels)
    assert kept(MISTRAL, "0.9.2") == Bytes.exact(
        (own + pixels) // 2 * 3
    )  # a third that the batch has no room for
    assert kept(MISTRAL, "0.6.4.post1") == NOTHING


def test_a_runner_that_counts_lets_go_of_the_pictures() -> None:
    assert kept(MISTRAL, "0.33.0") == Bytes.exact(2 * 3025 * 5120 * 2)


def test_small_pictures_are_many_and_their_copies_are_the_most_there_is() -> None:
    found = kept(GEMMA, "0.11.0")
    a_picture = (256 + 8192) * 5376 * 2 + 3 * 896 * 896 * 2
    assert (found.low, found.value, found.high) == (31 * a_picture, 31 * a_picture, 32 * a_picture)
    assert found.value > 10 * kept(GEMMA, "0.14.0").value


def test_a_picture_larger_than_a_batch_is_shown_alone() -> None:
    assert [shown_pictures(plan(max_batched_tokens=n), 3080) for n in (2048, 4096, 8192, 16384)] == [
        1,
        1,
        2,
        5,
    ]
    assert (
        shown_pictures(plan(max_sequences=1, max_model_len=4096), 3080) == 1
    )  # one sequence has room for one


def test_what_is_as_long_already_is_not_copied() -> None:
    whole = Picture(embeddings=576, places=576, pixels=1)
    assert (
        copied_rows(whole, plan(), ProfiledPictures.PICTURE)
        == 0
        < copied_rows(whole, plan(), ProfiledPictures.BATCH)
        == 8192
    )
    assert copied_rows(whole, plan(max_batched_tokens=576), ProfiledPictures.BATCH) == 0


@pytest.mark.parametrize(
    ("name", "version", "length", "tokens"),
    [
        (QWEN, "0.11.0", 8192, 16384),
        (QWEN, "0.33.0", 40000, 2 * 16384),
        (QWEN, "0.33.0", 128000, 7 * 16384),  # fourteen frames
        ("qwen2-vl-7b", "0.33.0", 32768, 2 * 16384),
        ("qwen3-vl-8b", "0.33.0", 262144, 16384),
        ("qwen3.5-9b", "0.33.0", 262144, 16384),
        ("qwen3-vl-8b", "0.14.0", 262144, 262144),
    ],
)
def test_the_longest_item_of_a_known_processor(name: str, version: str, length: int, tokens: int) -> None:
    spec, release = model(name), release_of(version)
    asked = plan(name, max_model_len=length)
    found = longest_item(spec.towers[0], spec, asked, release)
    assert found is not None
    assert found.embeddings == tokens
    run = tower_run_bytes(spec, asked, release)
    hidden = spec.towers[0].stack.hidden
    assert 4 * tokens * hidden * 2 < run.value <= run.high  # at the least what goes from layer to layer


def test_a_longer_video_leaves_less_for_the_pool() -> None:
    rooms = [
        (infer(QWEN, engine="vllm", gpus="1xL40S", max_model_len=length).serving or {})["kv_tokens"]
        for length in (8192, 65536, 128000)
    ]
    assert rooms == sorted(rooms, reverse=True)
    assert rooms[0] > 1.5 * rooms[-1]


def test_pictures_of_any_size_are_a_range_that_a_sequence_bounds() -> None:
    name = "glm-4.1v-9b"
    short, long = kept(name, "0.11.0", max_model_len=8192), kept(name, "0.11.0", max_model_len=32768)
    assert 0 == short.low < short.value == short.high
    assert long.value == short.value < long.high == 4 * long.value


@every("version", ["0.8.5", "0.9.2", "0.10.2", "0.11.0", "0.12.0", "0.14.0", "0.24.0", "0.33.0"])
@every("name", [MISTRAL, GEMMA, QWEN])
def test_the_ends_lie_around_the_value_and_longer_batches_keep_no_less(version: str, name: str) -> None:
    few, many = kept(name, version, max_batched_tokens=4096), kept(name, version, max_batched_tokens=8192)
    for size in (few, many):
        assert size.low <= size.value <= size.high
    assert few.value <= many.value


def test_a_model_without_a_tower_keeps_nothing() -> None:
    blind = replace(model(MISTRAL), towers=())
    assert kept_pictures(blind, plan(), release_of("0.11.0")) == NOTHING


def test_the_peak_stands_on_the_pictures() -> None:
    options = {
        "engine_version": "0.11.0",
        "page_tokens": 128,
        "max_model_len": 16000,
        "memory_fraction": 0.95,
    }
    answer = infer(MISTRAL, gpus="1xH100-80GB", engine="vllm", **options)
    items = {
        i.path: i.at[Instant.PREFILL] for i in answer.sheets[0].items if i.component is Component.TEMPORARIES
    }
    assert items["pictures"] == kept(MISTRAL, "0.11.0")
    peak = (answer.serving or {})["budget"]["peak_activation"]
    hidden = (8192 + 2 * 1024) * 5120 * 2
    assert (
        peak.low == items["pictures"].value + hidden + masked_sampler_bytes(1024, 131072, BF16) + 32 * MIB
    )  # with cuBLAS's workspace
