"""CUDA graphs that vLLM's releases record: how many of which sizes, and what they take."""

from __future__ import annotations

import pytest

from memsheet import catalog
from memsheet.budget import Answer
from memsheet.catalog import find_device
from memsheet.engines.vllm.facts import RELEASES, release_of
from memsheet.engines.vllm.graphs import largest_recorded, recorded_by, split_attention_bytes
from memsheet.formulas.serving.graphs import (
    A_SEQUENCE,
    A_SIZE,
    KERNEL_BYTES,
    PARAMETER_BYTES,
    PIECES,
    graph_pool_bytes,
    graph_sizes,
    recorded_kernels,
    with_driver_bytes,
)
from memsheet.plan.plan import Plan
from memsheet.questions.accounted import infer
from memsheet.readers.model import read_model
from memsheet.sheet import Bytes, Component, Instant
from memsheet.units import GIB, MIB

MODEL = "llama-3.1-8b"
SPEC = read_model(MODEL, catalog=catalog.find_model, names=catalog.model_names())


def served(gpus: str = "1xH100-80GB", **options: object) -> Answer:
    return infer(MODEL, gpus=gpus, engine="vllm", **{"max_model_len": 8192, **options})  # type: ignore[arg-type]


def graphs(gpus: str = "1xH100-80GB", **options: object) -> Bytes:
    return served(gpus, **options).sheets[0].of(Component.CUDA_GRAPHS, instant=Instant.DECODE)


def notes(**options: object) -> tuple[str, ...]:
    return tuple(served(**options).sheets[0].notes)  # type: ignore[arg-type]


def asked(**options: object) -> Plan:
    return served("1xH200", **options).plan


FINE = [1, 2, 4, *range(8, 513, 8)]
COARSE = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]


@pytest.mark.parametrize(("coarse", "every"), [(False, FINE), (True, COARSE)])
def test_sizes_are_counted_as_the_list_that_is_recorded(coarse: bool, every: list[int]) -> None:
    for largest in every:
        assert graph_sizes(largest, coarse=coarse) == sum(size <= largest for size in every)


@pytest.mark.parametrize(
    ("version", "sequences", "batch", "largest"),
    [
        ("0.6.6", 100, 8192, 104),
        ("0.9.2", 16, 8192, 512),
        ("0.9.2", 16, 256, 256),
        ("0.11.0", 16, 8192, 32),
        ("0.11.0", 1024, 8192, 512),
        ("0.33.0", 1, 8192, 2),
    ],
)
def test_the_largest_graph_of_each_release(version: str, sequences: int, batch: int, largest: int) -> None:
    plan = asked(sequences=sequences, max_batched_tokens=batch)
    assert largest_recorded(plan, release_of(version), None) == largest


def test_blackwell_records_more() -> None:
    plan, release = asked(sequences=1024, max_batched_tokens=8192), release_of("0.33.0")
    assert largest_recorded(plan, release, find_device("B200")) == 1024
    assert largest_recorded(plan, release_of("0.20.2"), find_device("B200")) == 512


def test_a_driver_that_takes_more_widens_the_range_or_is_told() -> None:
    old, new = (with_driver_bytes(Bytes(1, 2, 3), 400, 30, 20, 256, old=old) for old in (True, False))
    assert (old.low, old.value) == (new.low, new.value) == (1, 2 + 50 * A_SIZE)
    assert old.high == 3 + 50 * 400 * KERNEL_BYTES > new.high
    assert new.high == 3 + 30 * PIECES + 256 * A_SEQUENCE + 50 * 400 * PARAMETER_BYTES
    told = "64 KiB a kernel"
    assert any(told in note for note in notes(engine_version="0.11.0"))
    assert not any(told in note for note in notes(engine_version="0.11.0", cuda_graphs=False))
    assert not any(told in note for note in notes())  # its CUDA asks for a newer one


def test_all_sizes_share_one_pool() -> None:
    """It grows with the largest graph, and neither with the layers nor with how many sizes there are."""
    plan = served().plan
    small, large = (graph_pool_bytes(SPEC, plan, tokens).value for tokens in (256, 512))
    assert small < large <= 2 * small
    assert recorded_kernels(SPEC, plan) % 32 == 0


def test_hopper_keeps_results_of_parts() -> None:
    plan = served().plan
    hopper = split_attention_bytes(SPEC, plan, 256, find_device("H100-80GB"))
    assert hopper.value == 32 * 256 * 32 * 128 * 4
    assert split_attention_bytes(SPEC, plan, 256, find_device("RTX4090")).high == 0


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.tag)
def test_graphs_of_every_release_have_a_range(release: object) -> None:
    version = release.tag[1:]  # type: ignore[attr-defined]
    size = graphs(engine_version=version)
    assert 0 < size.low < size.value < size.high
    assert size.value < GIB
    recorded = recorded_by(release_of(version))
    assert recorded.pieces or recorded.whole


def test_none_are_recorded_where_nobody_wants_them() -> None:
    assert graphs(cuda_graphs=False).high == 0
    assert graphs(sequences=1).high < 64 * MIB + graphs().value
