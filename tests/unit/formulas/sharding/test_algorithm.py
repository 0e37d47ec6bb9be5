"""Every way of sharding that an engine may name has a module with an algorithm, and each module is one's."""

from __future__ import annotations

import pytest

from laws import every
from memsheet.catalog import find_model, model_names
from memsheet.formulas.sharding.algorithm import Algorithm, algorithm_of
from memsheet.formulas.states.held import HeldTensor
from memsheet.plan.dtypes import BF16
from memsheet.plan.engine import Sharding
from memsheet.plan.engine_registry import MODELLED, find_engine
from memsheet.plan.model import Role
from memsheet.plan.plan import Plan
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request

TENSOR = HeldTensor("layers.0.proj.weight", (1000, 24), BF16, True, Role.LINEAR, 1)
LLAMA = read_model("llama-2-7b", catalog=find_model, names=model_names())
TRAINERS = [engine for name in MODELLED if (engine := find_engine(name)) and "train" in engine.tasks]


def plan_of(ranks: int) -> Plan:
    asked = {"engine": "fsdp2", "task": "train", "seq_len": 16, "mesh.dp_shard": ranks}
    return resolve_request(asked, LLAMA).plan


@pytest.mark.parametrize("sharding", Sharding)
def test_every_sharding_is_found(sharding: Sharding) -> None:
    assert isinstance(algorithm_of(sharding), Algorithm)


def test_every_sharding_is_an_engines() -> None:
    assert {engine.sharding for engine in TRAINERS} == {*Sharding}


@every("sharding", Sharding)
@every("ranks", [1, 2, 7, 64])
def test_shards_hold_a_tensor_together_and_none_holds_more_than_it(sharding: Sharding, ranks: int) -> None:
    plan = plan_of(ranks)
    shard = algorithm_of(sharding).parameter_shard(TENSOR, plan)
    assert TENSOR.elements <= shard * ranks
    assert shard <= TENSOR.elements
    assert (shard == TENSOR.elements) == (ranks == 1 or not sharding.gathers)
