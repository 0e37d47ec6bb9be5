"""One description, two times: a server's prompt passes over what a training step's forward does."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from bundled import written_names
from laws import every
from memsheet.catalog import find_device, find_model
from memsheet.errors import InputError
from memsheet.formulas.operators.blocks import block_operators
from memsheet.formulas.operators.operator import Cut, Kind
from memsheet.formulas.serving_time.layers import decoder_layers
from memsheet.formulas.step_time.layers import operator_times
from memsheet.formulas.step_time.numbers import Curve
from memsheet.formulas.step_time.operators import TrainTiming
from memsheet.formulas.step_time.rates import Fit, Rates
from memsheet.formulas.step_time.replicas import Overlap
from memsheet.formulas.step_time.training_step import shop_of
from memsheet.plan.device import cluster_of
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import Block, ModelSpec
from memsheet.plan.plan import Plan
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request

CARD = cluster_of(find_device("H200"), 1)
SHORT = (Kind.NORM, Kind.ROTATION, Kind.GATE, Kind.ACTIVATION, Kind.RESIDUAL)


def spec_of(name: str) -> ModelSpec:
    found = find_model(name)
    assert found is not None
    return read_hf_config(found["config"], name=name)


def plan_of(spec: ModelSpec, **request: Any) -> Plan:
    return resolve_request({"engine": "transformers", **request}, spec, CARD).plan


def trained_bytes(shop: TrainTiming, block: Block) -> float:
    """Of one row, forward."""
    operators = [op for op in block_operators(block) if op.kind in SHORT and op.cut is not Cut.EXPERTS]
    return sum(time.forward_s for op in operators for time in operator_times(shop, op)) / shop.tokens


@every("name", written_names())
def test_both_pass_over_memory_alike(name: str) -> None:
    """transformers' code is the same whoever runs it; a server stores keys and values besides."""
    spec = spec_of(name)
    try:
        trains, serves = plan_of(spec, task="train", seq_len=64), plan_of(spec, task="infer")
    except InputError:
        pytest.skip("is not both trained and served")
    rates = Rates(
        dense={"bf16": inf}, products={"bf16": Curve.flat(1.0)}, depth=Curve.flat(1.0), memory=1.0, launch_s={"bf16": 0.0}, attention={},
        attention_dense=inf, collectives={"all_reduce": Fit(alpha_s=0.0, bytes_per_s=inf, gamma=0.0)}, near=8, network=inf, host=inf,
    )  # fmt: skip
    shop = shop_of(trains, engine_of(trains), rates, Overlap.ENGINE)
    layers = decoder_layers(spec, serves)
    blocks = [
        block
        for stack in spec.stacks
        if stack.role != "encoder"
        for run in stack.runs
        for block in run.pattern
    ]
    for layer, block in zip(layers, blocks, strict=True):
        stored = sum(op.reads + op.writes for op in block_operators(block) if op.kind is Kind.STORE)
        assert 2 * layer.short.elements == pytest.approx(trained_bytes(shop, block) + 2 * stored)
