"""Which layers a stage has, and what the ends cost."""

from __future__ import annotations

from dataclasses import replace
from operator import ge
from random import Random

import pytest

from memsheet import catalog
from memsheet.formulas.pipeline import (
    chunk_models,
    in_flight,
    layers_of_stage,
    stage_model,
    undominated_flights,
)
from memsheet.formulas.states.params import parameter_count
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Mesh, Plan, Schedule
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request


def model(name: str) -> ModelSpec:
    return read_model(name, catalog=catalog.find_model, names=catalog.model_names())


def plan(stages: int, layers: tuple[int, ...] | None = None) -> Plan:
    made = resolve_request({"task": "train", "seq_len": 8}, model("llama-tiny")).plan
    return replace(made, mesh=Mesh(pp=stages), layers_per_stage=layers)


@pytest.mark.parametrize(("stage", "held"), [(0, 4), (1, 3), (2, 2), (3, 1)])
def test_1f1b_holds_p_minus_r_micro_batches(stage: int, held: int) -> None:
    """Narayanan et al. 2021, section 2.2."""
    assert in_flight(Schedule.ONE_F_ONE_B, 4, stage, 32) == held


def test_a_moment_beside_one_that_keeps_more_is_none_that_may_hold_most() -> None:
    chance = Random(1)
    for _ in range(200):
        width, most = chance.randint(1, 4), chance.randint(1, 6)
        drawn = [tuple(chance.randint(0, most) for _ in range(width)) for _ in range(chance.randint(1, 30))]
        moments = list(dict.fromkeys(drawn))
        assert undominated_flights(moments) == [
            one for one in moments if not any(other != one and all(map(ge, other, one)) for other in moments)
        ]


def test_fewer_micro_batches_than_stages_are_all_there_are() -> None:
    assert in_flight(Schedule.ONE_F_ONE_B, 8, 0, 2) == 2


def test_gpipe_holds_every_micro_batch_and_no_schedule_one() -> None:
    assert in_flight(Schedule.GPIPE, 4, 3, 32) == 32
    assert in_flight(None, 1, 0, 32) == 1


def test_stages_divide_layers_evenly_or_as_listed() -> None:
    assert [layers_of_stage(32, plan(4), stage) for stage in range(4)] == [
        (0, 8),
        (8, 16),
        (16, 24),
        (24, 32),
    ]
    assert [layers_of_stage(32, plan(3, (10, 12, 10)), stage) for stage in range(3)] == [
        (0, 10),
        (10, 22),
        (22, 32),
    ]


@pytest.mark.parametrize("name", ["llama-2-7b", "gemma-3-27b", "jamba-v0.1", "deepseek-v2", "qwen3-30b-a3b"])
@pytest.mark.parametrize("stages", [2, 3])
def test_stages_together_hold_every_parameter_once(name: str, stages: int) -> None:
    """But a tied table twice: on the first stage and, as the head, on the last."""
    spec = model(name)
    layers = spec.layers
    counts = tuple(layers // stages + (stage < layers % stages) for stage in range(stages))
    parts = [stage_model(spec, plan(stages, counts), stage) for stage in range(stages)]
    twice = spec.embeddings.weights[0].elements if spec.head.tied else 0
    assert sum(parameter_count(part) for part in parts) == parameter_count(spec) + twice
    assert [part.layers for part in parts] == list(counts)


def test_the_first_stage_has_the_embeddings_and_the_last_the_head() -> None:
    spec = model("llama-2-7b")
    first, middle, last = (stage_model(spec, plan(3, (10, 12, 10)), stage) for stage in range(3))
    assert [bool(part.embeddings.weights) for part in (first, middle, last)] == [True, False, False]
    assert [part.head.kind for part in (first, middle, last)] == ["none", "none", "causal_lm"]
    assert [bool(part.stacks[-1].final_norms) for part in (first, middle, last)] == [False, False, True]


def test_one_stage_is_the_model_itself() -> None:
    spec = model("llama-2-7b")
    assert stage_model(spec, plan(1), 0) is spec


def test_parts_that_are_alike_are_one_object_however_often_one_asks() -> None:
    spec, cut = model("llama-3-8b"), plan(8)
    parts = [stage_model(spec, cut, stage) for stage in range(8)]
    assert all(part is parts[1] for part in parts[2:7])
    assert len({id(part) for part in (parts[0], parts[1], parts[7])}) == 3
    assert [stage_model(spec, cut, stage) for stage in range(8)] == parts
    assert stage_model(replace(spec, name="another"), cut, 1).name == "another"


def test_chunks_of_two_pipelines_are_told_apart() -> None:
    spec = model("llama-3-8b")
    chunked = replace(plan(4), mesh=Mesh(pp=4, vpp=2))
    whole, half = stage_model(spec, plan(4), 1), stage_model(spec, plan(8), 1)
    first, second = chunk_models(spec, chunked, 1)
    assert (first, second) == (half, half)
    assert stage_model(spec, chunked, 1) == whole
    assert whole.layers == 2 * half.layers
