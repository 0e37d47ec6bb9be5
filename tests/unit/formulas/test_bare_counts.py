"""A bare number of parameters: the states of a real model of that size, wherever an engine's rule of sharding
needs no shapes.
"""

from itertools import product
from typing import Any

import pytest

import memsheet
from memsheet.account import account_bare, account_rank
from memsheet.catalog import find_model, model_names
from memsheet.errors import InputError
from memsheet.formulas.states.params import parameter_count, parameter_tensors
from memsheet.plan.check import PRECISIONS
from memsheet.plan.engine import Sharding
from memsheet.plan.engine_registry import MODELLED, find_engine
from memsheet.plan.model import ModelSpec
from memsheet.readers.model import read_model
from memsheet.resolve import resolve_request
from memsheet.sheet import STATES, Component, Instant, Sheet

LLAMA, MPT = (read_model(name, catalog=find_model, names=model_names()) for name in ("llama-2-7b", "mpt-7b"))
COUNT = parameter_count(LLAMA)
TRAINERS = [name for name in MODELLED if (found := find_engine(name)) and "train" in found.tasks]
DEALT = [
    name
    for name in TRAINERS
    if (found := find_engine(name)) and found.sharding is Sharding.WHOLE_PARAMETER_OWNERS
]
"""Ranks are dealt whole parameters, so what one has follows from the shapes."""
MESHES: list[dict[str, int]] = [
    {}, {"dp_shard": 8}, {"dp_replicate": 4}, {"dp_replicate": 2, "dp_shard": 4}, {"tp": 8, "pp": 4, "dp_shard": 4}, {"tp": 2, "dp_shard": 2},
    {"cp": 2, "dp_shard": 4}, {"pp": 4, "dp_shard": 2}, {"tp": 8},
]  # fmt: skip
ROUNDING = 0.003
"""Norms, which tensor-parallel ranks keep whole, and the padding of single tensors."""


def asked(engine: str, zero: int, mesh: dict[str, int], precision: str | None, **more: Any) -> dict[str, Any]:
    return {
        "engine": engine, "task": "train", "zero": zero, **{f"mesh.{axis}": degree for axis, degree in mesh.items()}, **more,
        **({"precision.name": precision} if precision else {}),
    }  # fmt: skip


def own(engine: str) -> ModelSpec:
    """A model that the engine has code for."""
    return MPT if engine == "llm-foundry" else LLAMA


def of_model(request: dict[str, Any]) -> list[Sheet] | None:
    """A sheet a stage, None where the engine does not run that."""
    model = own(request["engine"])
    try:
        plan = resolve_request({**request, "seq_len": 16}, model).plan
        return [account_rank(model, plan, None, stage) for stage in range(plan.mesh.pp)]
    except InputError:
        return None


def held(sheet: Sheet, component: Component, instant: Instant) -> int:
    return int(sheet.of(component, instant=instant).value) if instant in sheet.instants else 0


@pytest.mark.parametrize("engine", [name for name in TRAINERS if name not in DEALT])
def test_a_count_has_the_states_of_a_model_of_that_size(engine: str) -> None:
    compared, model = 0, own(engine)
    count, widest = parameter_count(model), max(weight.elements for _, weight, _ in parameter_tensors(model))
    for zero, mesh, precision in product(range(4), MESHES, (None, *PRECISIONS)):
        request = asked(engine, zero, mesh, precision)
        if (stages := of_model(request)) is None:
            continue
        bare, compared = account_bare(count, resolve_request(request, None).plan), compared + 1
        for instant, component in product((Instant.LOAD, Instant.OPTIMIZER_STEP), STATES):
            expected = sum(held(sheet, component, instant) for sheet in stages) / len(stages)
            one_at_a_time = (
                2 * widest
                if component is Component.GRADIENTS and instant is Instant.OPTIMIZER_STEP
                else 2**16
            )
            found = held(bare, component, instant)
            assert found == pytest.approx(expected, rel=ROUNDING, abs=one_at_a_time), (
                request,
                instant,
                component,
            )
    assert compared


@pytest.mark.parametrize("engine", DEALT)
def test_whole_parameters_are_dealt_about_evenly(engine: str) -> None:
    for mesh in ({}, {"dp_shard": 8}, {"dp_replicate": 2, "dp_shard": 4}):
        request = asked(engine, 1, mesh, None)
        stages, bare = of_model(request), account_bare(COUNT, resolve_request(request, None).plan)
        assert stages is not None
        for component in STATES:
            assert held(bare, component, Instant.LOAD) == pytest.approx(
                held(stages[0], component, Instant.LOAD), rel=0.05
            )


@pytest.mark.parametrize("engine", ["fsdp2", "torchtitan"])
def test_what_stays_gathered_is_counted(engine: str) -> None:
    """At zero 2 parameters are whole from forward to backward, and with it a count holds more than at zero 3,
    by their computed bytes.
    """
    for precision in (None, "fp32"):
        at = {
            zero: account_bare(
                COUNT, resolve_request(asked(engine, zero, {"dp_shard": 8}, precision), None).plan
            )
            for zero in (2, 3)
        }
        width = 4 if precision else 2
        for instant in (Instant.FORWARD, Instant.BACKWARD):
            more = at[2].at(instant).value - at[3].at(instant).value
            assert more == pytest.approx(width * COUNT, rel=ROUNDING)
        assert at[2].at(Instant.LOAD) == at[3].at(Instant.LOAD)


@pytest.mark.parametrize("engine", ["fsdp2", "torchtitan", "transformers", "fsdp1", "deepspeed", "megatron"])
def test_gradients_of_earlier_micro_batches_are_those_of_a_model(engine: str) -> None:
    meshes: list[dict[str, int]] = [{}, {"dp_shard": 8}, {"pp": 4, "dp_shard": 2}]
    compared = 0
    for zero, mesh in product(range(4), meshes):
        # a loss in chunks reduces the head at once, and a bare count has no head
        loss = {"loss": "plain"} if engine == "torchtitan" else {}
        request = asked(engine, zero, mesh, None, global_batch=32, **loss)
        if (stages := of_model(request)) is None:
            continue
        bare, compared = account_bare(COUNT, resolve_request(request, None).plan), compared + 1
        for end in ("value", "high"):
            expected = sum(
                getattr(s.of(Component.GRADIENTS, instant=Instant.FORWARD), end) for s in stages
            ) / len(stages)
            assert getattr(bare.of(Component.GRADIENTS, instant=Instant.FORWARD), end) == pytest.approx(
                expected, rel=ROUNDING
            ), (
                request,
                end,
            )
    assert compared


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"engine": "fsdp2", "dp_shard": 8, "plan": {"offload": {"optimizer": 1}}}, "offload"), ({"lora_rank": 8, "lora_targets": ["q_proj"]}, "adapter.rank"),
        ({"optimizer": "adam_mini"}, "optimizer.name"), ({"engine": "transformers", "plan": {"offload": {"activations": True}}}, "offload.activations"),
    ],
)  # fmt: skip
def test_what_a_count_does_not_know_is_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        memsheet.train(parameters="7e9", **options)
    assert field in {problem.field for problem in caught.value.problems}


def test_an_optimizer_in_backward_leaves_no_gradients() -> None:
    sheet = memsheet.train(
        parameters="7e9", engine="transformers", precision="bf16-pure", optimizer_in_backward=True
    ).sheets[0]
    assert sheet.peak.value == 6 * 7_000_000_000  # weights and two moments in 16 bits


@pytest.mark.parametrize(("dtype", "width"), [(None, 2.0), ("fp32", 4.0), ("fp16", 2.0)])
@pytest.mark.parametrize(
    ("options", "ranks"),
    [({}, 1), ({"gpus": "4xL4"}, 4), ({"engine": "vllm", "gpus": "8xL4", "tp": 4, "pp": 2}, 8)],
)
def test_weights_of_a_count_are_its_bytes_over_the_ranks(
    dtype: str | None, width: float, options: dict[str, Any], ranks: int
) -> None:
    given = {"plan": {"precision": {"parameters": dtype}}} if dtype else {}
    answer = memsheet.infer(parameters="7e9", **options, **given)
    assert answer.sheets[0].of(Component.PARAMETERS).value == 7e9 * width / ranks
    assert (answer.serving or {})["weights_by_dtype"]["int8"] == 7e9 / ranks
    assert "serving.max_model_len" not in " ".join(answer.assumed)


@pytest.mark.parametrize(
    "option",
    [{"max_model_len": 2048}, {"sequences": 4}, {"kv_dtype": "fp8"}, {"attention": "sdpa"}, {"lora_rank": 8}],
)
def test_what_needs_layers_is_refused_of_a_served_count(option: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        memsheet.infer(parameters="7e9", **option)
    assert all("needs a model's layers" in problem.reason for problem in caught.value.problems)
