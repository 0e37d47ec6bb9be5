"""Functions that list every linear layer of a model, as scripts since QLoRA's have them."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet

LISTS = '''
import bitsandbytes as bnb
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


def find_all_linear_names(model, bits=16):
    """Names of linear layers."""
    cls = bnb.nn.Linear4bit if bits == 4 else torch.nn.Linear
    names = set()
    for name, module in model.named_modules():
        if isinstance(module, cls){more}:
            parts = name.split(".")
            names.add(parts[0] if len(parts) == 1 else parts[-1])
    if "lm_head" in names:
        names.remove("lm_head")
    print("adapters at", names)
    return list(names)


model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype=torch.bfloat16)
config = LoraConfig(r=8, target_modules=find_all_linear_names(model), task_type="CAUSAL_LM")
args = TrainingArguments("out", per_device_train_batch_size=1, bf16=True)
Trainer(model=get_peft_model(model, config), args=args).train()
'''


def _checked(tmp_path: Path, more: str) -> memsheet.Checked:
    (tmp_path / "train.py").write_text(LISTS.replace("{more}", more))
    return memsheet.check(tmp_path / "train.py", gpus="1xH100-80GB", seq_len=512)


def test_a_function_that_lists_linear_layers_is_the_word_for_all_of_them(tmp_path: Path) -> None:
    found = _checked(tmp_path, "")
    assert found.answer is not None
    assert found.answer.plan.adapter is not None
    assert len(found.answer.plan.adapter.targets) == 7  # of a Llama's block
    assert "target_modules" not in str(found.doubt)


@pytest.mark.parametrize("more", [' and "q_proj" in name', ' and not name.startswith("model.layers.0")'])
def test_a_function_that_asks_more_of_a_layer_leaves_them_open(tmp_path: Path, more: str) -> None:
    assert "target_modules" in str(_checked(tmp_path, more).doubt)
