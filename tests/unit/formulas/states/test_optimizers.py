"""What optimizers keep and take: laws, hand-worked sizes, and the states that their own libraries make on a
processor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import memsheet
from laws import every
from memsheet.errors import InputError
from memsheet.formulas.states.held import HeldTensor
from memsheet.formulas.states.optimizers import (
    fused_backward_step,
    optimizer_bytes,
    paged_bytes,
    step_temporaries,
)
from memsheet.plan.dtypes import BF16, FP32
from memsheet.plan.model import Role
from memsheet.plan.plan import OptimizerName, Plan
from memsheet.run.optimizer import build_optimizer
from memsheet.sheet import Component, Instant

Name = OptimizerName
MATRIX = HeldTensor("layers.0.mlp.up_proj.weight", (512, 256), FP32, trains=True, role=Role.LINEAR, times=1)
VECTOR = HeldTensor("layers.0.input_layernorm.weight", (256,), FP32, trains=True, role=Role.NORM, times=1)
TABLE = HeldTensor("embed_tokens.weight", (1000, 256), FP32, trains=True, role=Role.EMBEDDING, times=1)


def plan_of(optimizer: str, **options: Any) -> Plan:
    return memsheet.train(
        "llama-tiny", **{"seq_len": 8, "precision": "fp32", "optimizer": optimizer, **options}
    ).plan


def parameters(*held: HeldTensor) -> tuple[tuple[HeldTensor, int], ...]:
    return tuple((h, h.elements) for h in held)


@every(
    "optimizer, held, expected",
    [
        ("lion", MATRIX, 4 * 512 * 256),
        ("adafactor", MATRIX, 4 * (512 + 256) + 4),
        ("adafactor", VECTOR, 4 * 256 + 4),
        ("muon", MATRIX, 4 * 512 * 256),
        ("muon", VECTOR, 2 * 4 * 256 + 4),  # AdamW's, with a step count on the device
        ("muon", TABLE, 2 * 4 * 1000 * 256 + 4),
        ("adam_mini", MATRIX, 4 * 512 * 256 + 4 * 512),
        ("adam_mini", VECTOR, 4 * 256 + 4),
        ("galore", MATRIX, 4 * 256 * 256 + 2 * 4 * 128 * 512),
        ("galore", VECTOR, 2 * 4 * 256),
        ("lion_8bit", MATRIX, 512 * 256 + 4 * 512),
        ("lion_8bit", TABLE, 4 * 1000 * 256),
        ("rmsprop", MATRIX, 4 * 512 * 256), ("rmsprop_8bit", MATRIX, 512 * 256 + 4 * 512), ("adagrad", MATRIX, 4 * 512 * 256),
        ("ademamix", MATRIX, 3 * 4 * 512 * 256), ("ademamix_8bit", MATRIX, 3 * (512 * 256 + 4 * 512)), ("ademamix_8bit", TABLE, 3 * 4 * 1000 * 256),
        ("adamw_4bit", MATRIX, 2 * (512 * 256 // 2 + 4 * 512 + 4 * 16)), ("adamw_4bit", VECTOR, 2 * 4 * 256),
        ("paged_lion", MATRIX, 0), ("paged_lion_8bit", MATRIX, 4 * 512), ("paged_ademamix_8bit", MATRIX, 3 * 4 * 512), ("paged_ademamix", VECTOR, 3 * 4 * 256),
        ("paged_adamw", MATRIX, 0),
        ("paged_adamw", VECTOR, 2 * 4 * 256),
        ("paged_adamw_8bit", MATRIX, 2 * 4 * 512),  # maxima are not paged
    ],
)  # fmt: skip
def test_states_of_one_tensor(optimizer: str, held: HeldTensor, expected: int) -> None:
    assert optimizer_bytes(held, held.elements, plan_of(optimizer)) == expected


def test_pages_hold_what_the_allocator_does_not() -> None:
    assert paged_bytes(MATRIX, MATRIX.elements, plan_of("paged_adamw")) == 2 * 4 * 512 * 256
    assert paged_bytes(MATRIX, MATRIX.elements, plan_of("paged_adamw_8bit")) == 2 * 512 * 256
    assert paged_bytes(MATRIX, MATRIX.elements, plan_of("paged_lion")) == 4 * 512 * 256
    assert paged_bytes(MATRIX, MATRIX.elements, plan_of("paged_ademamix_8bit")) == 3 * 512 * 256
    assert paged_bytes(VECTOR, VECTOR.elements, plan_of("paged_adamw")) == 0
    assert paged_bytes(MATRIX, MATRIX.elements, plan_of("adamw")) == 0


def test_paged_states_are_on_the_host_and_need_not_fit() -> None:
    whole, paged = (
        memsheet.train("llama-3.2-1b", seq_len=8, optimizer=name).sheets[0]
        for name in ("adamw", "paged_adamw")
    )
    kept, every = (
        one.of(Component.OPTIMIZER_STATES, instant=Instant.FORWARD).value for one in (paged, whole)
    )
    assert kept + paged.host_bytes == pytest.approx(every, rel=1e-4)
    assert paged.of(Component.CONTEXT) == whole.of(Component.CONTEXT)
    assert any("in pages" in note for note in paged.notes)


@pytest.mark.parametrize("optimizer", [name.value for name in OptimizerName if name is not Name.LORA_FA])
def test_no_optimizer_keeps_more_than_adamw_in_fp32(optimizer: str) -> None:
    """AdEMAMix has a slow average besides, half as much again."""
    reference, more = plan_of("adamw"), 3 if "ademamix" in optimizer else 2
    for held in (MATRIX, TABLE):
        size = optimizer_bytes(held, held.elements, plan_of(optimizer), head_elements=256 * 64)
        assert size <= optimizer_bytes(held, held.elements, reference) * more // 2


@pytest.mark.parametrize(
    "optimizer",
    ["adamw", "lion", "sgd_momentum", "adamw_8bit", "lion_8bit", "paged_adamw_8bit", "paged_adamw"],
)
def test_a_smaller_share_never_costs_more_states(optimizer: str) -> None:
    plan = plan_of(optimizer)
    sizes = [
        optimizer_bytes(MATRIX, MATRIX.elements // ranks, plan)
        + paged_bytes(MATRIX, MATRIX.elements // ranks, plan)
        for ranks in (1, 2, 4, 8)
    ]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    "optimizer", ["adamw", "lion", "adamw_8bit", "lion_8bit", "paged_adamw_8bit", "paged_adamw"]
)
def test_an_array_of_counts_gives_what_each_count_gives(optimizer: str) -> None:
    plan, counts = plan_of(optimizer), [1, 4095, 4096, 99_999, 100_000, 131_072]
    swept: Any = optimizer_bytes(MATRIX, np.array(counts), plan)  # type: ignore[arg-type]
    assert list(swept) == [optimizer_bytes(MATRIX, n, plan) for n in counts]


# ---- the step ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "way", "expected"),
    [
        ("adamw", "fused", 0), ("adamw", "apex", 0), ("adamw", "foreach", 4 * (512 * 256 + 256)),
        ("adamw", "loop", 8 * 512 * 256), ("adamw", "transformers", 4 * 512 * 256 + 4 * 256),
        ("adafactor", "loop", 8 * 512 * 256), ("adafactor", "foreach", 4 * (512 * 256 + 256)),
        ("lion", "loop", 8 * 512 * 256), ("lion", "bnb", 0), ("adam_mini", "loop", 8 * 512 * 256),
        ("muon", "fused", (4 + 4) * 512 * 256 + 4 * 256 * 256),
        ("paged_adamw", "bnb", 0), ("rmsprop", "foreach", 4 * (512 * 256 + 256)), ("rmsprop", "loop", 4 * 512 * 256 + 4 * 256), ("rmsprop", "bnb", 0),
        ("adagrad", "foreach", 8 * (512 * 256 + 256)), ("adagrad", "loop", 4 * 512 * 256 + 4 * 256),
    ],
)  # fmt: skip
def test_temporaries_of_a_step(optimizer: str, way: str, expected: int) -> None:
    assert (
        step_temporaries(parameters(MATRIX, VECTOR), plan_of(optimizer, optimizer_implementation=way))
        == expected
    )


def test_the_last_tensors_result_is_still_named_while_the_next_is_stepped() -> None:
    plan = plan_of("adamw", optimizer_implementation="loop")
    assert step_temporaries(parameters(MATRIX, MATRIX), plan) == 3 * 4 * 512 * 256
    repeated = replace(MATRIX, times=2)
    assert step_temporaries(parameters(repeated), plan) == 3 * 4 * 512 * 256


def test_an_old_trainers_loop_is_its_own_adamw() -> None:
    old = plan_of("adamw", optimizer_implementation="loop", engine_version="2022")
    assert step_temporaries(parameters(MATRIX, VECTOR), old) == 4 * 512 * 256 + 4 * 256


def test_adafactor_raises_low_gradients_and_parameters_to_fp32() -> None:
    plan = plan_of("adafactor", precision="bf16-pure")
    assert step_temporaries(parameters(replace(MATRIX, dtype=BF16)), plan) == 4 * 4 * 512 * 256
    assert (fused_backward_step(plan).copies, fused_backward_step(plan).dtype) == (4, FP32)


@pytest.mark.parametrize("optimizer", ["muon", "galore", "adam_mini"])
def test_what_works_on_whole_matrices_is_not_stepped_inside_backward(optimizer: str) -> None:
    with pytest.raises(InputError, match="not modelled for this optimizer"):
        plan_of(optimizer, precision="bf16-pure", optimizer_in_backward=True)


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("paged-adamw-8bit", Name.PAGED_ADAMW_8BIT), ("paged_adamw_32bit", Name.PAGED_ADAMW), ("adam-8bit", Name.ADAMW_8BIT),
        ("adamw_bnb_8bit", Name.ADAMW_8BIT), ("Adam-mini", Name.ADAM_MINI), ("galore_adamw", Name.GALORE), ("lion-8bit", Name.LION_8BIT),
        ("adamw_torch_4bit", Name.ADAMW_4BIT), ("paged_lion_32bit", Name.PAGED_LION), ("rmsprop_bnb_8bit", Name.RMSPROP_8BIT), ("paged_ademamix_32bit", Name.PAGED_ADEMAMIX),
    ],
)  # fmt: skip
def test_names_that_people_use(spelled: str, name: OptimizerName) -> None:
    found = plan_of(spelled).optimizer
    assert found is not None
    assert found.name is name


def test_a_count_of_parameters_has_no_shapes() -> None:
    with pytest.raises(InputError, match="shapes of tensors"):
        memsheet.train(parameters=10**9, optimizer="adafactor")


def test_an_engine_refuses_by_name_what_it_does_not_step_with() -> None:
    with pytest.raises(InputError, match="muon"):
        memsheet.train("llama-tiny", seq_len=8, gpus="2xH100-80GB", engine="fsdp2", optimizer="muon")


# ---- the libraries' own ------------------------------------------------------------------------------------


def _kept(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of every tensor in an optimizer's state but its step counts, which a processor's optimizer has on
    the host.
    """
    held = [
        (k, getattr(v, "ortho_matrix", v)) for state in optimizer.state.values() for k, v in state.items()
    ]  # GaLore's is an object's
    found = [v for k, v in held if isinstance(v, torch.Tensor) and k not in ("step", "qmap1", "qmap2")]
    return sum(v.untyped_storage().nbytes() for v in found)


@pytest.mark.parametrize(
    ("optimizer", "way"),
    [("adamw", "foreach"), ("sgd_momentum", "foreach"), ("rmsprop", "foreach"), ("rmsprop", "bnb"), ("rmsprop_8bit", "bnb"), ("adagrad", "foreach"), ("ademamix", "bnb"), ("ademamix_8bit", "bnb"),
     ("adafactor", "loop"), ("adafactor", "foreach"), ("muon", "foreach"),
     ("adamw_8bit", "bnb"), ("lion_8bit", "bnb"), ("adam_mini", "loop"), ("galore", "loop"), ("lion", "loop"), ("lion", "foreach")],
)  # fmt: skip
def test_states_are_those_that_the_library_makes(optimizer: str, way: str) -> None:
    plan = plan_of(optimizer, optimizer_implementation=way)
    layer = nn.Linear(256, 512)
    try:
        made = build_optimizer(layer.parameters(), plan, layer)
    except InputError as missing:
        pytest.skip(str(missing))
    except AttributeError:
        pytest.skip("it asks the model for its number of heads")
    layer(torch.ones(2, 256)).sum().backward()
    made.step()
    bias = HeldTensor("layers.0.mlp.up_proj.bias", (512,), FP32, trains=True, role=Role.BIAS, times=1)
    assert _kept(made) == sum(optimizer_bytes(h, h.elements, plan) for h in (MATRIX, bias))


@pytest.mark.parametrize("optimizer", ["adafactor", "muon", "lion", "rmsprop", "adagrad"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-pure", "bf16-master"])
def test_every_instant_is_that_of_the_real_step(optimizer: str, precision: str) -> None:
    from memsheet.account import account_rank
    from memsheet.timeline import sheet_of
    from memsheet.trace.job import How, trace_training

    if optimizer == "lion":
        pytest.importorskip("lion_pytorch")
    settings: dict[str, Any] = {
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8,
        "num_key_value_heads": 2, "vocab_size": 512, "tie_word_embeddings": False,
    }  # fmt: skip
    found = memsheet.train(settings, seq_len=32, optimizer=optimizer, precision=precision)
    traced = sheet_of(trace_training(settings, found.plan, How(scratch=False)))
    predicted = account_rank(found.model, found.plan)
    for instant in traced.instants:
        assert predicted.at(instant).value == pytest.approx(
            traced.at(instant).value, abs=1e-3 * traced.peak.value
        ), instant


# ---- over flat partitions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize(
    ("optimizer", "device", "pages"),
    [("adamw_8bit", 2 * (1 + 4 / 256), 0), ("lion_8bit", 1 + 4 / 256, 0), ("paged_adamw", 0, 8), ("paged_adamw_8bit", 2 * 4 / 256, 2)],
)  # fmt: skip
def test_bitsandbytes_states_of_a_partition(zero: int, optimizer: str, device: float, pages: int) -> None:
    """Bytes an element of a rank's part, embeddings among them, and nothing else than AdamW's."""
    asked: dict[str, Any] = {"engine": "deepspeed", "gpus": "8xH100-80GB", "seq_len": 64, "zero": zero}
    usual, found = (
        memsheet.train("llama-3.2-1b", **asked, optimizer=name).sheets[0] for name in ("adamw", optimizer)
    )
    kept, whole = (one.of(Component.OPTIMIZER_STATES, instant=Instant.LOAD).value for one in (found, usual))
    assert kept == pytest.approx(whole / 8 * device, rel=1e-4, abs=1)
    assert found.host_bytes == pytest.approx(whole / 8 * pages, rel=1e-4, abs=1)
    rest = [one.at(Instant.LOAD).value - size for one, size in ((found, kept), (usual, whole))]
    assert rest[0] == rest[1]


@pytest.mark.parametrize(
    ("asked", "words"), [({"zero": 0}, "not flat"), ({"offload": ["optimizer"]}, "on the host")]
)
def test_they_are_refused_where_they_are_of_other_tensors(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        memsheet.train(
            "llama-3.2-1b", **{"engine": "deepspeed", "gpus": "8xH100-80GB", "seq_len": 64, "zero": 2, "optimizer": "adamw_8bit", **asked}
        )  # fmt: skip


def test_a_part_of_a_tensor_has_torchao_states() -> None:
    """Under fully_shard of what a rank has, in eight bits and in four."""
    asked: dict[str, Any] = {"engine": "fsdp2", "gpus": "8xH100-80GB", "seq_len": 64}
    ways = {"optimizer_implementation": "torchao"}
    eight, four = (
        memsheet.train("llama-3.2-1b", **asked, optimizer=name, **ways).sheets[0].of(Component.OPTIMIZER_STATES, instant=Instant.LOAD).value
        for name in ("adamw_8bit", "adamw_4bit")
    )  # fmt: skip
    assert eight / four == pytest.approx((1 + 4 / 256) / (1 / 2 + 4 / 256), rel=0.01)


@pytest.mark.parametrize(("optimizer", "made"), [("adagrad", True), ("adamw", False), ("lion", False)])
def test_states_that_are_made_with_the_optimizer_are_those_of_idle_towers_too(
    optimizer: str, made: bool
) -> None:
    """A tower that no picture passes through gets no gradient: what makes its states in a step makes none."""
    answer = memsheet.train("qwen2.5-vl-7b", seq_len=512, optimizer=optimizer, precision="fp32", fix=False)
    (sheet,) = answer.sheets
    tower = sum(
        item.largest.value
        for item in sheet.items
        if item.component is Component.PARAMETERS and "visual" in item.path
    )
    states = sum(
        item.at[Instant.FORWARD].value
        for item in sheet.items
        if item.component is Component.OPTIMIZER_STATES and item.path.startswith("towers")
    )
    assert tower > 0
    assert states == (tower if made else 0)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_copies_in_another_precision_are_of_idle_towers_too(optimizer: str) -> None:
    """They are made with the optimizer, of all that asks for a gradient (NVIDIA/Megatron-LM 71371b4,
    megatron/core/optimizer/optimizer.py, Float16OptimizerWithFloat16Params).
    """
    (sheet,) = memsheet.train(
        "qwen2.5-vl-7b", seq_len=512, optimizer=optimizer, precision="bf16-master", fix=False
    ).sheets
    tower, copies = (
        sum(
            item.largest.value
            for item in sheet.items
            if item.component is component and "visual" in item.path
        )
        for component in (Component.PARAMETERS, Component.MASTER_WEIGHTS)
    )
    assert tower > 0
    assert copies == 2 * tower
