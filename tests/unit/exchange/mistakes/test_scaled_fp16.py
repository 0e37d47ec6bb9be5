"""Weights in fp16 that train under a scaler of gradients: the first step refuses them."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet

TRAINER = """import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("facebook/opt-125m"{load})
{beside}
Trainer(model, TrainingArguments("o", per_device_train_batch_size=1{more}), train_dataset=rows).train()
"""
HALF = ", torch_dtype=torch.float16"
ADAPTED = """from peft import LoraConfig, get_peft_model
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj"]))"""
LOOP = """import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("facebook/opt-125m"{load}).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5{fused})
scaler = torch.amp.GradScaler({scaler})
for batch in rows:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(**batch).loss
    scaler.scale(loss).backward()
    {clip}
    scaler.step(optimizer)
    scaler.update()
"""


def mistakes(folder: Path, text: str) -> dict[str, bool]:
    """The rules that found something, and whether the program is known to stop there."""
    (folder / "train.py").write_text(text)
    found = memsheet.check(folder / "train.py", gpus="1xA100-80GB", seq_len=128)
    return {rule.id: one.stops for rule, one in found.mistakes}


@pytest.mark.parametrize(
    ("load", "more", "beside", "stops"),
    [
        (HALF, ", fp16=True", "", True),
        (HALF, ", fp16=True, optim='adafactor'", "", True),
        ("", ", fp16=True", "model.half()", True),
        ("", ", fp16=True", "", False),  # where transformers 4 runs, it loads fp32
        (HALF, ", bf16=True", "", False),
        (HALF, "", "", False),
        (HALF, ", fp16=True, max_grad_norm=0", "", False),  # the fused kernel unscales by itself
        (HALF, ", fp16=True", ADAPTED, False),  # peft makes adapters fp32
        (HALF, ", fp16=True", ADAPTED.replace("]))", "]), autocast_adapter_dtype=False)"), True),
        (HALF, ", fp16=True", "for p in model.parameters(): p.data = p.data.float()", False),
        (", torch_dtype=torch.float32", ", fp16=True", "", False),
        (HALF, ", fp16=True, deepspeed={'fp16': {'enabled': True}}", "", False),
    ],
)
def test_the_trainers_scaler_takes_no_fp16(
    load: str, more: str, beside: str, stops: bool, tmp_path: Path
) -> None:
    found = mistakes(tmp_path, TRAINER.format(load=load, more=more, beside=beside))
    assert found.get("scaled-fp16", False) is stops


@pytest.mark.parametrize(
    ("load", "fused", "scaler", "clip", "told"),
    [
        (HALF, "", "", "", True),
        (HALF, ", fused=True", "", "", False),
        (HALF, ", fused=True", "", "scaler.unscale_(optimizer)", True),
        (HALF, "", "enabled=False", "", False),
        (", torch_dtype=torch.bfloat16", "", "", "", False),
    ],
)
def test_a_loops_own_scaler_takes_no_fp16(
    load: str, fused: str, scaler: str, clip: str, told: bool, tmp_path: Path
) -> None:
    found = mistakes(tmp_path, LOOP.format(load=load, fused=fused, scaler=scaler, clip=clip))
    assert ("scaled-fp16-loop" in found) is told


UNSLOTH = """from unsloth import FastLanguageModel
from trl import SFTConfig, SFTTrainer
model, tokenizer = FastLanguageModel.from_pretrained("{model}", max_seq_length=512, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=16, target_modules=["q_proj", "v_proj"])
SFTTrainer(model=model, tokenizer=tokenizer, args=SFTConfig(per_device_train_batch_size=1, {how}=True)).train()
"""


@pytest.mark.parametrize(
    ("model", "how", "gpus", "stops"),
    [
        ("unsloth/Llama-3.2-1B-Instruct", "bf16", "1xT4", True),
        ("unsloth/Llama-3.2-1B-Instruct", "fp16", "1xT4", False),
        ("unsloth/Llama-3.2-1B-Instruct", "bf16", "1xL4", False),
        ("unsloth/gemma-3-1b-it", "bf16", "1xT4", False),  # trained in float32 there
    ],
)
def test_unsloth_takes_no_bf16_beside_the_fp16_that_it_loads(
    model: str, how: str, gpus: str, stops: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(UNSLOTH.format(model=model, how=how))
    found = memsheet.check(tmp_path / "train.py", gpus=gpus)
    assert {rule.id: one.stops for rule, one in found.mistakes}.get("bf16-without-units", False) is stops
