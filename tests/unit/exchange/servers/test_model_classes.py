"""Classes of the library that a script loads its model with, and models of other families."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.exchange.shared.model_classes import class_of_family, names_family

TRAINER = """from transformers import AutoModelForCausalLM, LlamaForCausalLM, OPTForCausalLM, Trainer, TrainingArguments
import transformers, argparse
p = argparse.ArgumentParser()
p.add_argument("--model", default="{model}")
args = p.parse_args()
model = {loader}.from_pretrained({given}, torch_dtype="float32")
arguments = TrainingArguments("o", per_device_train_batch_size=1, bf16=True)
Trainer(model=model, args=arguments, train_dataset=rows).train()
"""
LOOP = """import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM, OPTForCausalLM
model = {loader}.from_pretrained("{model}", torch_dtype=torch.float32).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, foreach=True)
for step in range(10):
    tokens = torch.randint(0, 1000, (1, 512)).cuda()
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def verdict_of(folder: Path, text: str) -> tuple[Result | None, str]:
    path = folder / "train.py"
    path.write_text(text)
    found = memsheet.check(path, gpus="1xH100-80GB")
    return found.result, found.doubt


@pytest.mark.parametrize("given", ["args.model", '"facebook/opt-125m"'])
@pytest.mark.parametrize("loader", ["LlamaForCausalLM", "transformers.LlamaForCausalLM"])
def test_a_class_of_another_family_leaves_a_trainers_verdict_open(
    tmp_path: Path, given: str, loader: str
) -> None:
    text = TRAINER.format(model="facebook/opt-125m", loader=loader, given=given)
    result, doubt = verdict_of(tmp_path, text)
    assert result is Result.UNCERTAIN
    assert "LlamaForCausalLM" in doubt


@pytest.mark.parametrize("loader", ["AutoModelForCausalLM", "OPTForCausalLM"])
def test_its_own_class_or_any_changes_nothing(tmp_path: Path, loader: str) -> None:
    text = TRAINER.format(model="facebook/opt-125m", loader=loader, given="args.model")
    assert verdict_of(tmp_path, text) == (Result.FITS, "")


def test_a_loop_of_its_own_is_judged_alike(tmp_path: Path) -> None:
    own = verdict_of(tmp_path, LOOP.format(model="facebook/opt-125m", loader="OPTForCausalLM"))
    other = verdict_of(tmp_path, LOOP.format(model="facebook/opt-125m", loader="LlamaForCausalLM"))
    assert "another family" not in own[1]
    assert (other[0], "another family" in other[1]) == (Result.UNCERTAIN, True)


def test_what_is_denied_with_the_wrong_class_is_open_too(tmp_path: Path) -> None:
    text = TRAINER.format(model="meta-llama/Llama-3.1-70B", loader="OPTForCausalLM", given="args.model")
    assert verdict_of(tmp_path, text)[0] is Result.UNCERTAIN


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("LlamaForCausalLM", "llama"),
        ("GPTNeoXForCausalLM", "gpt_neox"),
        ("GPT2LMHeadModel", "gpt2"),
        ("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl"),
        ("Gemma3ForCausalLM", "gemma3_text"),
        ("Qwen3MoeForCausalLM", "qwen3_moe"),
        ("BertModel", "bert"),
        ("AutoModel", "llama"),
        ("PreTrainedModel", "llama"),
    ],
)
def test_a_class_is_of_its_own_family(name: str, family: str) -> None:
    assert class_of_family(name, family)
    assert names_family(name) is not name.startswith(("Auto", "PreTrained"))


@pytest.mark.parametrize(
    ("name", "family"), [("Qwen2ForCausalLM", "qwen2_moe"), ("LlamaForCausalLM", "llama4")]
)
def test_a_family_that_begins_alike_is_another(name: str, family: str) -> None:
    assert not class_of_family(name, family)
