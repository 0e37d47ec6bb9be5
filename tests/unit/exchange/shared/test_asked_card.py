"""A script that asks its card for bf16 is read as the named card answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.exchange.shared.python_config import named_calls, read_module
from memsheet.report.shared.checked import Checked
from memsheet.sheet import Component, Instant

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


NOTEBOOK = """from unsloth import {cls}
from trl import SFTConfig, SFTTrainer
model, tokenizer = {cls}.from_pretrained("{model}", max_seq_length={length}{load})
model = {cls}.get_peft_model(model, r=16)
SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=2, optim="adamw_8bit")).train()
"""
USUAL = {
    "cls": "FastLanguageModel",
    "model": "unsloth/Meta-Llama-3.1-8B-bnb-4bit",
    "length": 2048,
    "load": "",
}


def notebook(folder: Path, card: str, **more: Any) -> Checked:
    (folder / "train.py").write_text(NOTEBOOK.format(**{**USUAL, **more}))
    return memsheet.check(folder / "train.py", gpus=f"1x{card}")


def test_a_notebook_of_unsloth_on_a_t4_has_memory_by_its_tokens(tmp_path: Path) -> None:
    peaks = []
    for length in (2048, 4096, 8192):
        found = notebook(tmp_path, "T4", length=length)
        assert found.answer is not None
        assert found.answer.verdict is not None
        assert found.answer.plan.attention.value == "xformers"
        assert any("attention = xformers" in one for one in found.assumed)
        assert not any("writes its scores out" in note for note in found.answer.notes)
        assert found.answer.verdict.result is not Result.DOES_NOT_FIT
        sheet = found.answer.sheets[0]
        kept = (Component.SAVED_ACTIVATIONS, Component.TEMPORARIES)
        peaks.append(sum(sheet.of(part, instant=Instant.BACKWARD).value for part in kept))
    assert peaks[2] - peaks[1] == pytest.approx(2 * (peaks[1] - peaks[0]), rel=0.001)


@pytest.mark.parametrize(
    ("card", "more"),
    [
        ("A100-80GB", {}),
        ("T4", {"cls": "FastModel"}),
        ("T4", {"load": ", load_in_8bit=True"}),
        ("T4", {"model": "microsoft/Phi-4-mini-instruct"}),
    ],
)
def test_unsloth_runs_the_librarys_attention_elsewhere(
    card: str, more: dict[str, str], tmp_path: Path
) -> None:
    found = notebook(tmp_path, card, **more)
    assert found.answer is not None
    assert found.answer.plan.attention.value == "sdpa"


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("unsloth/Phi-4", "llama"),
        ("unsloth/phi-4-unsloth-bnb-4bit", "llama"),
        ("microsoft/phi-4", "llama"),
        ("unsloth/Phi-3.5-mini-instruct", "llama"),
        ("unsloth/Phi-3-medium-4k-instruct-bnb-4bit", "mistral"),
    ],
)
def test_copies_that_unsloth_converted_have_projections_apart(
    model: str, family: str, tmp_path: Path
) -> None:
    """Adapters stand on all seven of a layer, and its own attention runs."""
    found = notebook(tmp_path, "T4", model=model)
    assert found.answer is not None
    assert found.answer.model.model_type == family
    assert found.answer.plan.attention.value == "xformers"
    assert found.answer.plan.adapter is not None
    assert {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"} <= set(found.answer.plan.adapter.targets)
    assert any(f"converted to {family}" in one for one in found.answer.assumed)
    whole = memsheet.train("microsoft/phi-4", seq_len=64).model
    assert whole.model_type == "phi3"  # as it was released


@pytest.mark.parametrize(
    ("line", "grows"),
    [
        ("", True),
        ('os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:128"', False),
        ('os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")', True),
    ],
)
def test_unsloths_import_asks_for_growing_segments_where_nobody_says(
    line: str, grows: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(f"import os\n{line}\n{NOTEBOOK.format(**USUAL)}")
    found = memsheet.check(tmp_path / "train.py", gpus="1xRTX4090")
    assert found.answer is not None
    assert found.answer.plan.expandable_segments is grows


@pytest.mark.parametrize(("cls", "open_"), [("FastLanguageModel", True), ("FastModel", False)])
def test_layers_of_unsloths_own_may_keep_less(cls: str, open_: bool, tmp_path: Path) -> None:
    """Where none is computed again, a sheet of the library's does not tell that a card is too small."""
    text = NOTEBOOK.format(**{**USUAL, "cls": cls, "length": 8192})
    text = text.replace("r=16", "r=16, use_gradient_checkpointing=False")
    text = text.replace("SFTConfig(per", "SFTConfig(gradient_checkpointing=False, per")
    (tmp_path / "train.py").write_text(text)
    found = memsheet.check(tmp_path / "train.py", gpus="1xRTX4090")
    assert found.answer is not None
    assert found.result is (Result.UNCERTAIN if open_ else Result.DOES_NOT_FIT)
    assert any(one.at == "script.own_layers" for one in found.moved) is open_


def test_a_layer_of_unsloths_own_that_is_run_again_may_keep_less(tmp_path: Path) -> None:
    text = NOTEBOOK.format(**{**USUAL, "cls": "FastLanguageModel", "length": 65536})
    (tmp_path / "train.py").write_text(text.replace("r=16", 'r=16, use_gradient_checkpointing="unsloth"'))
    found = memsheet.check(tmp_path / "train.py", gpus="1xRTX4090")
    assert found.answer is not None
    assert found.answer.verdict is not None
    (moved,) = (one for one in found.moved if one.at == "script.own_layers")
    assert -int(found.answer.verdict.device.high) < moved.low_bytes < 0 == moved.high_bytes


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("torch.cuda.get_device_capability()[0] >= 8", True),
        ("not is_bf16_supported()", False),
        ("torch.cuda.is_available() and is_bf16_supported()", True),
        ("not (torch.cuda.is_available() and is_bf16_supported())", False),
        ("torch.backends.mps.is_available() or not cuda.is_available()", False),
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


@pytest.mark.parametrize(
    "said", ["store.is_available()", "unknown > 2", "N < 'a'", "N < M < 4", "len(x) == 2"]
)
def test_what_is_not_known_stays_open(said: str) -> None:
    module = read_module(f"N, M = 2, 3\nf(x={said})\n", {})
    (call,) = named_calls(module, ("f",))
    assert not isinstance(call["x"], bool)
