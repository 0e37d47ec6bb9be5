"""Bytes of states, tensor by tensor, from declared dtypes."""

from __future__ import annotations

from typing import Any

import pytest

import memsheet
from memsheet.formulas.states.held import HeldTensor, eight_bit_states, held_tensors
from memsheet.formulas.states.optimizers import optimizer_bytes
from memsheet.plan.dtypes import BF16, FP32
from memsheet.plan.model import Role
from memsheet.plan.plan import Plan
from memsheet.sheet import Component, Instant, Sheet

C = Component


def sheet(model: str = "llama-tiny", **options: Any) -> Sheet:
    return memsheet.train(model, **{"seq_len": 8, **options}).sheets[0]


def bytes_of(held: Sheet, component: Component, instant: Instant = Instant.OPTIMIZER_STEP) -> int:
    return held.of(component, instant=instant).value


def plan_of(**options: Any) -> Plan:
    return memsheet.train("llama-tiny", **{"seq_len": 8, **options}).plan


PARAMETERS = memsheet.train("llama-tiny", seq_len=8).parameters


@pytest.mark.parametrize(
    ("precision", "engine", "weights", "master", "gradients", "moments"),
    [
        ("fp32", "transformers", 4, 0, 4, 8),  # 16 bytes, no master copy
        ("bf16-autocast", "transformers", 4, 0, 4, 8),  # autocast keeps everything that is kept in fp32
        ("bf16-pure", "transformers", 2, 0, 2, 4),  # 8 bytes
        ("fsdp2-mixed", "fsdp2", 4, 0, 4, 8),  # the shard is fp32, what is gathered is bf16
    ],
)
def test_bytes_a_parameter_follow_the_declared_dtypes(
    precision: str, engine: str, weights: int, master: int, gradients: int, moments: int
) -> None:
    held = sheet(precision=precision, engine=engine, optimizer_implementation="foreach")
    assert bytes_of(held, C.PARAMETERS) == weights * PARAMETERS
    assert bytes_of(held, C.MASTER_WEIGHTS) == master * PARAMETERS
    assert bytes_of(held, C.GRADIENTS) == gradients * PARAMETERS
    assert bytes_of(held, C.OPTIMIZER_STATES) == moments * PARAMETERS


@pytest.mark.parametrize(("optimizer", "moments"), [("adamw", 8), ("sgd_momentum", 4), ("sgd", 0)])
def test_an_optimizer_keeps_its_own_number_of_moments(optimizer: str, moments: int) -> None:
    assert (
        bytes_of(
            sheet(optimizer=optimizer, precision="fp32", optimizer_implementation="foreach"),
            C.OPTIMIZER_STATES,
        )
        == moments * PARAMETERS
    )


def test_fused_adamw_keeps_a_step_count_of_four_bytes_a_tensor_on_the_device() -> None:
    """torch 2.13 adam.py _init_group: step is a tensor on the parameter's device when fused or capturable."""
    fused, foreach = (
        bytes_of(sheet(optimizer_implementation=how), C.OPTIMIZER_STATES) for how in ("fused", "foreach")
    )
    tensors = 1 + 4 * 9 + 2  # embeddings; q k v o gate up down and two norms in 4 layers; final norm and head
    assert fused - foreach == 4 * tensors


def test_foreach_copies_the_second_moments_and_the_loop_two_copies_of_one_tensor_beside_the_last_ones() -> (
    None
):
    """torch 2.13 adam.py:762-799 and :540-546."""
    foreach, loop, fused = (
        bytes_of(sheet(precision="fp32", optimizer_implementation=how), C.TEMPORARIES)
        for how in ("foreach", "loop", "fused")
    )
    assert foreach == 4 * PARAMETERS
    assert (
        loop == 3 * 4 * 688 * 256
    )  # feed-forward matrices follow one another: the last quotient is still named
    assert fused == 0


def test_eight_bit_states_keep_an_fp32_maximum_a_block_of_256_and_small_tensors_and_embeddings_in_fp32() -> (
    None
):
    """bitsandbytes: blockwise state, min_8bit_size 4096, embeddings in 32 bits (8-bit optimizers, sections
    2.1 and 2.3).
    """

    def states(elements: int, role: Role = Role.LINEAR) -> int:
        return eight_bit_states(
            HeldTensor("w.weight", (elements,), BF16, trains=True, role=role, times=1), elements
        )

    assert states(4096) == 2 * (4096 + 4 * 16)
    assert states(4097) == 2 * (4097 + 4 * 17)
    assert states(4095) == 2 * 4 * 4095
    assert states(10**6, Role.EMBEDDING) == 2 * 4 * 10**6


def test_moments_take_the_plans_dtype_whatever_the_parameters_is() -> None:
    held = HeldTensor("w.weight", (100,), BF16, trains=True, role=Role.LINEAR, times=1)
    assert optimizer_bytes(held, 100, plan_of(precision="bf16-pure")) == 2 * 2 * 100 + 4
    assert optimizer_bytes(held, 100, plan_of(precision="fp32")) == 2 * 4 * 100 + 4


def test_frozen_parameters_have_neither_gradients_nor_moments() -> None:
    """LoRA of rank 8 on q and v: A is 8 x 256, B is 256 x 8 (q) or 128 x 8 (v), fp32, in 4 layers."""
    held = sheet(lora_rank=8, lora_targets=("q_proj", "v_proj"), optimizer_implementation="foreach")
    adapters = 4 * (8 * 256 + 256 * 8 + 8 * 256 + 128 * 8)
    assert bytes_of(held, C.PARAMETERS) == 2 * PARAMETERS + 4 * adapters
    assert bytes_of(held, C.GRADIENTS) == 4 * adapters
    assert bytes_of(held, C.OPTIMIZER_STATES) == 8 * adapters


def test_nf4_stores_linear_layers_with_their_scales_and_leaves_embeddings_norms_and_head_alone() -> None:
    """QLoRA section 3: blocks of 64 with an 8-bit scale each, and an fp32 scale for 256 of those."""
    held = sheet(lora_rank=8, lora_targets=("q_proj",), quantize="nf4")
    linear = 4 * (256 * 256 + 2 * 128 * 256 + 256 * 256 + 3 * 688 * 256)
    rest, adapters = PARAMETERS - linear, 4 * (8 * 256 + 256 * 8)
    sizes = [256 * 256] * 2 + [128 * 256] * 2 + [688 * 256] * 3
    stored = 4 * sum(n // 2 + n // 64 + 4 * -(-n // 16384) for n in sizes)
    assert bytes_of(held, C.PARAMETERS) == stored + 2 * rest + 4 * adapters


def test_a_layers_tensors_are_listed_once_and_counted_as_often_as_they_occur() -> None:
    from memsheet import catalog
    from memsheet.readers.model import read_model

    spec = read_model("llama-tiny", catalog=catalog.find_model, names=catalog.model_names())
    held = tuple(held_tensors(spec, plan_of()))
    assert sum(h.times * h.elements for h in held) == PARAMETERS
    assert {h.dtype for h in held} == {FP32}
    assert len(held) == 12


def test_bitsandbytes_leaves_experts_that_are_one_parameter():
    """transformers 5.23 integrations/bitsandbytes.py:189: modules of the very type torch.nn.Linear."""
    answer = memsheet.train(
        "mixtral-8x7b", gpus="1xH100-80GB", quantize="nf4", lora_rank=8, seq_len=128, fix=False
    )
    experts = 32 * 8 * 3 * 4096 * 14336
    parameters = answer.sheets[0].of(Component.PARAMETERS, instant=Instant.LOAD).value
    assert 2 * experts < parameters < 2 * experts * 1.03
    assert any("bitsandbytes leaves" in note for note in answer.sheets[0].notes)


def test_an_adapter_of_conv1d_reads_what_the_layer_reads() -> None:
    """transformers' Conv1D keeps its matrix as (in, out)."""
    answer = memsheet.train("gpt2", seq_len=8, lora_rank=4, lora_targets=["c_attn"])
    found = {
        one.path.rpartition("c_attn.")[2]: one.shape
        for one in held_tensors(answer.model, answer.plan)
        if ".lora_" in one.path
    }
    assert found == {"lora_A.weight": (4, 768), "lora_B.weight": (3 * 768, 4)}
