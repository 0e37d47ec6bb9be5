"""A script that asks its card for bf16 is read as the named card answers."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.exchange.shared.python_config import named_calls, read_module

UNSLOTH = """from unsloth import FastLanguageModel, is_bfloat16_supported
from transformers import TrainingArguments
from trl import SFTTrainer
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Llama-3.2-1B", max_seq_length=2048)
model = FastLanguageModel.get_peft_model(model, r=16)
trainer = SFTTrainer(model=model, args=TrainingArguments(
    per_device_train_batch_size=2, fp16=not is_bfloat16_supported(), bf16=is_bfloat16_supported()))
"""
LOOP = """import torch
from transformers import AutoModelForCausalLM
dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.2-1B", torch_dtype=dtype).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for batch in loader:
    model(**batch).loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("text", [UNSLOTH, LOOP])
def test_the_card_decides_the_dtype(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    for card, dtype in (("RTX4090", "bf16"), ("T4", "fp16")):
        found = memsheet.check(tmp_path / "train.py", gpus=f"1x{card}", seq_len=512)
        assert found.answer is not None
        assert found.answer.plan.precision.compute.name == dtype
        assert any("asks its card for bf16" in one for one in found.assumed)
        assert not any("bf16" in key for read in found.reads.values() for key, _ in read.unknown)


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("torch.cuda.get_device_capability()[0] >= 8", True),
        ("not is_bf16_supported()", False),
        ("N == 2 and M != 4", True),
        ("N > 2 or M > 2", True),
        ("NAME == 'b'", False),
        ("NAME is None", False),
        ("N if N > M else M", 3),
    ],
)
def test_conditions_of_a_files_own_values_are_known(said: str, value: object) -> None:
    module = read_module(f"N, M, NAME = 2, 3, 'a'\nf(x={said})\n", {})
    (call,) = named_calls(module, ("f",))
    assert call["x"] == value


@pytest.mark.parametrize("said", ["unknown > 2", "N < 'a'", "N < M < 4", "len(x) == 2"])
def test_what_is_not_known_stays_open(said: str) -> None:
    module = read_module(f"N, M = 2, 3\nf(x={said})\n", {})
    (call,) = named_calls(module, ("f",))
    assert not isinstance(call["x"], bool)
