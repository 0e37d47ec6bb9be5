"""Weights in bitsandbytes' four bits where ranks divide parameters: the packed numbers are divided, what
belongs to them is not.
"""

from __future__ import annotations

import pytest

import memsheet
from memsheet.exchange.shared.packed_storage import packed_storage
from memsheet.sheet import Component, Instant

LINEAR = 32 * (4 * 4096 * 4096 + 3 * 11008 * 4096)  # llama-2-7b's matrices of layers
REST = 2 * 32000 * 4096 + 65 * 4096
ADAPTERS = 32 * 8 * 2 * 2 * 4096
SIZES = [4096 * 4096] * 4 + [4096 * 11008] * 3
SCALES = 32 * sum(n // 64 + 4 * -(-n // 16384) for n in SIZES)  # in eight bits, and of those in fp32


def loaded(ranks: int = 8, **options: object) -> int:
    asked = {
        "quantize": "nf4",
        "lora_rank": 8,
        "lora_targets": ["q_proj", "v_proj"],
        "seq_len": 512,
        "fix": False,
        **options,
    }
    found = memsheet.train("llama-2-7b", gpus=f"{ranks}xA100-80GB", **asked)
    return found.sheets[0].of(Component.PARAMETERS, instant=Instant.LOAD).value


@pytest.mark.parametrize(("engine", "adapter"), [("fsdp2", 4), ("deepspeed", 2)])
def test_scales_are_whole_on_every_rank(engine: str, adapter: int) -> None:
    divided = LINEAR // 2 + 2 * REST + adapter * ADAPTERS
    found = loaded(engine=engine, zero=3)
    assert found == pytest.approx(SCALES + divided / 8, rel=1e-4)


def test_numbers_that_are_packed_in_whole_ones_are_not_divided_by_fsdp2() -> None:
    """accelerate 1.14 utils/fsdp_utils.py:789-811."""
    found = loaded(engine="fsdp2", plan={"quantization": {"storage": "uint8"}})
    assert found == pytest.approx(LINEAR // 2 + SCALES + (2 * REST + 4 * ADAPTERS) / 8, rel=1e-4)


def test_what_nobody_divides_stays_where_the_kernels_read_it() -> None:
    assert loaded(engine="fsdp2", offload="optimizer,parameters") == SCALES
    hosted = loaded(engine="deepspeed", zero=3, offload="optimizer,parameters")
    assert SCALES < hosted < SCALES + 8 * 2**20  # beside what is too small to be let go of


def test_torchao_divides_its_scales_with_the_tensor() -> None:
    """torchao 0.7 dtypes/nf4tensor.py:187-219 (nf4_split)."""
    whole = loaded(1, engine="torchtune", zero=0, lora_targets=["q_proj"])
    assert loaded(8, engine="torchtune", lora_targets=["q_proj"]) == pytest.approx(whole / 8, rel=1e-3)


def test_a_product_holds_its_gathered_weight_until_backward_unless_checkpoints_are_reentrant() -> None:
    def held(**recompute: object) -> int:
        found = memsheet.train(
            "llama-2-7b", gpus="8xA100-80GB", engine="deepspeed", zero=3, quantize="nf4", lora_rank=8,
            seq_len=512, fix=False, plan={"recompute": recompute},
        )  # fmt: skip
        return sum(
            item.at[Instant.LOSS].value
            for item in found.sheets[0].items
            if item.path == "zero/held_by_products" and Instant.LOSS in item.at
        )

    assert held(mode="none") == held(mode="full") == LINEAR // 2
    assert held(mode="full", reentrant=True) == 0


@pytest.mark.parametrize(
    ("said", "read"),
    [(None, "uint8"), ("uint8", "uint8"), ("torch.bfloat16", "bf16"), ("float32", "fp32"), ("storage", None)],
)
def test_the_dtype_is_read_as_transformers_has_it(said: str | None, read: str | None) -> None:
    assert packed_storage(said) == read


@pytest.mark.parametrize(
    ("form", "says"), [("trl", "bnb_4bit_quant_storage: bfloat16"), ("axolotl", "load_in_4bit: true")]
)
def test_a_plan_whose_packed_numbers_are_divided_can_be_written(form: str, says: str) -> None:
    """axolotl packs into bfloat16 whatever it is told (src/axolotl/loaders/model.py:720 at 067b021)."""
    answer = memsheet.train(
        "llama-3.1-8b", gpus="8xH100-80GB", engine="fsdp2", quantize="nf4", lora_rank=8, lora_dtype="bf16",
        recompute="full", seq_len=1024, fix=False,
    )  # fmt: skip
    written = memsheet.export(answer, to=f"{form},accelerate")
    assert any(says in text for text in written.values())
