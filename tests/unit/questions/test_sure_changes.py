"""Changes of a job whose files leave something open, and in the files' own keys."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import memsheet
from memsheet.budget import Fix, Result
from memsheet.catalog import find_device
from memsheet.cli import main
from memsheet.questions.cures_in_files import without_allocator
from memsheet.questions.sure_changes import changed_values

SCRIPT = """from trl import SFTConfig, SFTTrainer
args = SFTConfig(output_dir="x", per_device_train_batch_size=1, max_length=2048, model_init_kwargs={"dtype": "bfloat16"})
SFTTrainer(model="Qwen/Qwen3-4B", args=args, train_dataset=data).train()
"""
AXOLOTL = """base_model: meta-llama/Llama-3.1-8B
load_in_8bit: true
adapter: lora
lora_r: 32
lora_target_linear: true
sequence_len: 8192
micro_batch_size: 2
gradient_accumulation_steps: 4
gradient_checkpointing: true
bf16: true
flash_attention: true
optimizer: adamw_torch
datasets: [{path: d, type: alpaca}]
"""
FILES = {"train.py": (SCRIPT, "1xA100-40GB"), "axo.yml": (AXOLOTL, "1xRTX3090")}


def fix_of(path: Path, gpus: str, **more: object) -> Fix | None:
    found = memsheet.check(path, gpus=gpus, **more)  # type: ignore[arg-type]
    assert found.answer is not None
    assert found.answer.verdict is not None
    return found.answer.verdict.cheapest_fix


@pytest.mark.parametrize("name", FILES)
def test_a_change_that_is_sure_fits_when_it_is_asked(name: str, tmp_path: Path) -> None:
    text, gpus = FILES[name]
    (tmp_path / name).write_text(text)
    fix = fix_of(tmp_path / name, gpus)
    assert fix is not None
    plan = {key: value for key, value in changed_values(fix).items() if value is not None}
    changed = memsheet.check(tmp_path / name, gpus=gpus, **_options(plan))
    assert changed.answer is not None
    assert changed.answer.verdict is not None
    assert (changed.result is Result.FITS) is not fix.open_ended
    assert changed.answer.verdict.device.value == fix.device.value


def _options(plan: dict[str, object]) -> dict[str, object]:
    names = {
        "optimizer.name": "optimizer", "optimizer.implementation": "optimizer_implementation", "quantization.weights": "quantize", "loss": "loss",
        "microbatch": "microbatch", "global_batch": "global_batch",
    }  # fmt: skip
    return {names[key]: value for key, value in plan.items() if key in names}


@pytest.mark.parametrize("name", FILES)
def test_a_change_in_the_files_own_keys_is_what_it_says(name: str, tmp_path: Path) -> None:
    text, gpus = FILES[name]
    (tmp_path / name).write_text(text)
    fix = fix_of(tmp_path / name, gpus)
    assert fix is not None
    ((file, keys),) = fix.in_files
    assert file == name
    if name.endswith(".py"):
        text = text.replace('output_dir="x"', f'output_dir="x", {", ".join(keys)}')
    else:
        said = {line.partition(":")[0].removeprefix("without ") for line in keys}
        assert "load_in_8bit" in said  # beside the other bits the library refuses it
        kept = [line for line in text.splitlines() if line.partition(":")[0] not in said]
        added = [line for line in keys if not line.startswith("without ")]
        text = "\n".join([*kept, *added]) + "\n"
    (tmp_path / name).write_text(text)
    changed = memsheet.check(tmp_path / name, gpus=gpus)
    assert changed.answer is not None
    assert changed.answer.verdict is not None
    assert changed.answer.verdict.device.value == fix.device.value


SPREAD = """import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B", device_map="auto", dtype=torch.bfloat16)
args = TrainingArguments("o", per_device_train_batch_size=8, gradient_checkpointing=True, optim="adamw_torch", bf16=True)
data = data.map(lambda b: tok(b["text"], truncation=True, padding="max_length", max_length=2048), batched=True)
Trainer(model=model, args=args, train_dataset=data).train()
"""
REFUSED = """base_model: meta-llama/Llama-3.1-8B
load_in_4bit: true
adapter: qlora
lora_r: 16
lora_target_linear: true
sequence_len: 16384
micro_batch_size: 1
gradient_checkpointing: true
bf16: true
optimizer: adamw_8bit
fsdp_version: 2
fsdp_config: {reshard_after_forward: true}
datasets: [{path: d, type: alpaca}]
"""


@pytest.mark.parametrize(
    ("name", "text", "gpus"), [("spread.py", SPREAD, "2xA100-40GB"), ("refused.yml", REFUSED, "2xRTX3090")]
)
def test_a_sheet_of_what_no_file_says_has_its_changes_in_the_files_words(
    name: str, text: str, gpus: str, tmp_path: Path
) -> None:
    """Layers that one process spreads, and an optimizer in a refused one's place."""
    (tmp_path / name).write_text(text)
    fix = fix_of(tmp_path / name, gpus)
    assert fix is not None
    assert fix.in_files
    assert fix.in_files[0][0] == name


def test_what_torch_is_told_is_told_beside_the_files() -> None:
    changed = {"loss": "fused", "allocator.expandable_segments": True}
    assert without_allocator(changed) == (
        {"loss": "fused"}, (("the environment", ("PYTORCH_ALLOC_CONF=expandable_segments:True",)),),
    )  # fmt: skip
    assert without_allocator({"loss": "fused"}) == ({"loss": "fused"}, ())
    changed = {"allocator.max_split_size_mb": 128}
    assert without_allocator(changed) == (changed, ())


QLORA = """base_model: meta-llama/Llama-3.1-70B
load_in_4bit: true
adapter: qlora
lora_r: 16
lora_target_linear: true
sequence_len: 8192
micro_batch_size: 1
gradient_accumulation_steps: 4
gradient_checkpointing: true
bf16: true
flash_attention: true
optimizer: paged_adamw_8bit
datasets: [{path: d, type: alpaca}]
"""


def test_a_smaller_model_is_judged_as_the_files_are(tmp_path: Path) -> None:
    """What the files leave open is on top of its range, too, and its bits are the files'."""
    (tmp_path / "axo.yml").write_text(QLORA)
    found = memsheet.check(tmp_path / "axo.yml", gpus="1xRTX3090")
    assert found.answer is not None
    way = next(way for way in found.answer.ways_to_fit if "model" in way.changes)
    typed = memsheet.check(tmp_path / "axo.yml", model=str(way.changes["model"]), gpus="1xRTX3090")
    assert typed.answer is not None
    assert typed.answer.verdict is not None
    assert typed.answer.plan.quantization == found.answer.plan.quantization
    assert typed.answer.verdict.device == way.device
    assert (typed.answer.verdict.device.high <= typed.answer.cluster.device.framework_low_bytes) is not (  # type: ignore[union-attr]
        "not sure" in way.words
    )


def test_what_no_change_settles_hides_no_change_that_fits_by_what_is_known(tmp_path: Path) -> None:
    """An optimizer that nobody accounts stays open, and a list of changes is told as fitting without it."""
    (tmp_path / "axo.yml").write_text(AXOLOTL.replace("adamw_torch", "adamw_8bits"))
    fix = fix_of(tmp_path / "axo.yml", "1xRTX4090")
    assert fix is not None
    assert fix.open_ended
    assert fix.device.high <= find_device("RTX4090").framework_low_bytes


def test_a_shorter_context_is_told_in_ollamas_own_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cells of all slots are num_ctx of each (llm/llama_server.go:375)."""
    (tmp_path / "a.sh").write_text("OLLAMA_NUM_PARALLEL=4 OLLAMA_CONTEXT_LENGTH=65536 ollama run qwen3:14b\n")
    main(["check", str(tmp_path / "a.sh"), "--gpus", "1xRTX4090"])
    shown = " ".join(capsys.readouterr().out.split())
    told = re.search(r"sequences of ([\d,]+) tokens .*? replace num_ctx: 65536 by num_ctx: (\d+)", shown)
    assert told is not None
    assert int(told[1].replace(",", "")) == 4 * int(told[2])
    assert "memsheet's own flag" not in shown
