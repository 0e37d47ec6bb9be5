"""Unsloth quantizes experts, however the library stores them, and finds their matrices by the usual names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.sheet import Component

SCRIPT = """from unsloth import FastLanguageModel
from trl import SFTTrainer, SFTConfig
model, tok = FastLanguageModel.from_pretrained("{model}", max_seq_length=2048{load})
model = FastLanguageModel.get_peft_model(model, r=8, target_modules={targets})
args = SFTConfig(per_device_train_batch_size=1, gradient_accumulation_steps=4, optim="adamw_8bit")
SFTTrainer(model=model, train_dataset=ds, args=args).train()
"""
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
EVERY = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]


def _checked_script(folder: Path, gpus: str, model: str, targets: list[str], load: str = "") -> Any:
    (folder / "train.py").write_text(SCRIPT.format(model=model, targets=targets, load=load))
    return memsheet.check(folder / "train.py", gpus=gpus)


@pytest.mark.parametrize("load", ["", ", load_in_4bit=True"])
@pytest.mark.parametrize(
    ("model", "elements"), [("unsloth/gpt-oss-20b", 20.9e9), ("unsloth/Qwen3-30B-A3B", 30.5e9)]
)
def test_experts_take_four_bits(model: str, elements: float, load: str, tmp_path: Path) -> None:
    answer = _checked_script(tmp_path, "1xA100-80GB", model, ATTENTION, load).answer
    assert answer is not None
    assert answer.plan.quantization.experts
    parameters = int(answer.sheets[0].of(Component.PARAMETERS).value)
    assert 0.5 < parameters / elements < 0.7


def test_experts_of_sixteen_bits_stay(tmp_path: Path) -> None:
    found = _checked_script(
        tmp_path, "1xA100-80GB", "unsloth/Qwen3-30B-A3B", ATTENTION, ", load_in_4bit=False"
    )
    assert found.answer is not None
    assert found.answer.plan.quantization is None


def test_a_model_without_experts_has_none_to_quantize(tmp_path: Path) -> None:
    answer = _checked_script(tmp_path, "1xT4", "unsloth/Qwen3-4B", EVERY).answer
    assert answer is not None
    assert answer.plan.quantization is not None
    assert not answer.plan.quantization.experts


@pytest.mark.parametrize(
    ("model", "gpus"), [("unsloth/gpt-oss-20b", "1xT4"), ("unsloth/Qwen3-30B-A3B", "1xRTX4090")]
)
def test_a_job_that_its_cards_may_hold_is_not_refused(model: str, gpus: str, tmp_path: Path) -> None:
    """What is made whole of the experts, matrix by matrix or all of a layer, is told with its bytes; the
    usual names of their matrices are no names without modules.
    """
    found = _checked_script(tmp_path, gpus, model, EVERY)
    assert found.answer is not None
    verdict = found.answer.verdict
    capacity = found.answer.cluster.device.framework_bytes
    assert verdict.device.low < capacity < verdict.device.high
    moved = next(one for one in found.moved if one.at == "load_in_4bit")
    assert moved.low_bytes < 0 <= moved.high_bytes
    assert "targets-passed-over" not in {rule.id for rule, _ in found.mistakes}
