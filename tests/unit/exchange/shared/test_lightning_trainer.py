"""Scripts whose loop is Lightning's: strategy, precision and devices of its Trainer and of Fabric."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.exchange.formats.test_pytorch import request_of

import memsheet
from memsheet.budget import Result
from memsheet.errors import InputError
from memsheet.questions.recognised_files import recognise_files

SCRIPT = """import lightning as L
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

class LM(L.LightningModule):
    def __init__(self, name, lr=1e-5):
        super().__init__()
        self.model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.float32)

    def training_step(self, batch, index):
        return self.model(**batch, labels=batch["input_ids"]).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

tokenizer = AutoTokenizer.from_pretrained("gpt2")
rows = tokenizer(texts, truncation=True, max_length=512)
trainer = L.Trainer(accelerator="gpu", {given})
trainer.fit(LM("gpt2"), DataLoader(rows, batch_size=4))
"""
FP32 = {"precision.parameters": "fp32", "precision.gradients": "fp32", "precision.moments": "fp32"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('devices=8, strategy="ddp", precision="bf16-mixed"', {"engine": "transformers", "zero": 0, "@gpus": 8, "precision.compute": "bf16", **FP32}),
        ("devices=4, num_nodes=2, precision=16", {"engine": "transformers", "@gpus": 8, "precision.compute": "fp16", **FP32}),
        ('devices=2, strategy="fsdp", precision="bf16-true"', {"engine": "fsdp1", "zero": 3, "precision.parameters": "bf16", "precision.compute": "bf16"}),
        ('strategy="fsdp", precision="bf16-mixed"', {"engine": "fsdp1", "precision.compute": "bf16", "precision.reduce": "bf16", **FP32}),
        ('strategy=FSDPStrategy(sharding_strategy="SHARD_GRAD_OP", cpu_offload=True)', {"engine": "fsdp1", "zero": 2, "offload.parameters": 1}),
        ("strategy=FSDPStrategy(activation_checkpointing_policy={Block})", {"engine": "fsdp1", "zero": 3, "recompute.mode": "full"}),
        ('strategy="deepspeed_stage_2", precision="bf16-mixed", accumulate_grad_batches=4', {"engine": "deepspeed", "zero": 2, "precision.parameters": "bf16", "@accumulation": 4}),
        ('strategy="deepspeed_stage_3_offload", precision="16-mixed"', {"zero": 3, "offload.optimizer": 1, "offload.parameters": 1, "precision.parameters": "fp16"}),
        ("strategy=DeepSpeedStrategy(stage=1)", {"engine": "deepspeed", "zero": 1}),
    ],
)  # fmt: skip
def test_what_the_trainer_is_given(given: str, said: dict[str, Any]) -> None:
    found = request_of(SCRIPT.replace("{given}", given))
    wanted = {"@model": "gpt2", "microbatch": 4, "seq_len": 512, "optimizer.name": "adamw", **said}
    assert {at: found.get(at) for at in wanted} == wanted


@pytest.mark.parametrize(
    ("given", "place"),
    [('strategy="xla_fsdp"', "loop.other_strategy"), ("precision=chosen()", "loop.autocast"), ("strategy=chosen()", "loop.other_strategy")],
)  # fmt: skip
def test_what_nobody_accounts_is_told(given: str, place: str) -> None:
    (read,) = recognise_files({"train.py": SCRIPT.replace("{given}", given)}, ())[0].values()
    assert place in dict(read.unmodelled)


@pytest.mark.parametrize(
    ("strategy", "one"),
    [('"fsdp"', True), ("FSDPStrategy(auto_wrap_policy={Block})", False), ('"ddp"', False)],
)
def test_a_model_that_no_policy_wraps_is_one_unit(strategy: str, one: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("{given}", f"devices=2, strategy={strategy}"))
    checked = memsheet.check(tmp_path / "train.py", gpus="2xA100-80GB")
    assert checked.answer
    assert ("one-unit" in {rule.id for rule, _ in checked.mistakes}) is one


def test_fabric_is_given_the_same() -> None:
    text = (
        "from lightning import Fabric\nfrom transformers import AutoModelForCausalLM\n"
        'fabric = Fabric(devices=4, strategy="deepspeed_stage_3", precision="bf16-mixed")\n'
        'model = AutoModelForCausalLM.from_pretrained("gpt2")\n'
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for batch in loader:\n    fabric.backward(model(**batch).loss)\n    optimizer.step()\n"
    )
    found = request_of(text)
    assert {
        "engine": "deepspeed",
        "zero": 3,
        "@gpus": 4,
        "precision.parameters": "bf16",
    }.items() <= found.items()


CLI = {
    "trainer": {"strategy": "deepspeed_stage_3", "precision": "bf16-true", "accumulate_grad_batches": 4, "max_epochs": 1},
    "model": {
        "class_path": "ours.lms.CLM",
        "init_args": {"model": {"pretrained": "Qwen/Qwen2.5-7B", "enable_gradient_checkpointing": True}, "optimizer": "torch.optim.AdamW"},
    },
    "data": {"class_path": "ours.data.Rows", "init_args": {"batch_size": 2, "max_length": 1024}},
}  # fmt: skip


def settings(folder: Path, **changes: Any) -> memsheet.Checked:
    (folder / "fit.json").write_text(json.dumps({**CLI, **changes}))
    return memsheet.check(folder / "fit.json", gpus="8xH100-80GB")


@pytest.mark.parametrize(
    ("strategy", "engine", "zero"),
    [
        ("deepspeed_stage_3", "deepspeed", 3),
        ({"class_path": "ours.DeepSpeedStrategy", "init_args": {"stage": 2}}, "deepspeed", 2),
        ({"class_path": "lightning.pytorch.strategies.FSDPStrategy"}, "fsdp1", 3),
        ("ddp", "transformers", 0),
    ],
)
def test_settings_of_its_command_line_are_read_by_their_names(
    tmp_path: Path, strategy: Any, engine: str, zero: int
) -> None:
    found = settings(tmp_path, trainer={**CLI["trainer"], "strategy": strategy})
    assert found.answer is not None, found.why_not
    plan = found.answer.plan
    assert (plan.engine, plan.zero, found.answer.model.name) == (engine, zero, "qwen2.5-7b")
    assert (plan.training.microbatch, plan.training.seq_len, plan.recompute.mode.value) == (2, 1024, "full")
    assert found.result is Result.UNCERTAIN
    assert "its own" in str(found.doubt) or "own file" in str(found.doubt)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {**CLI["model"], "class_path": "ours.lms.DPO"}},
        {"model": {"class_path": "ours.CLM", "init_args": {"teacher_model": "Qwen/Qwen2.5-7B"}}},
        {"data": {"class_path": "ours.data.Rows", "init_args": {"max_length": 1024}}},
        {"trainer": {"enabled": True}},
        {"model": {"class_path": "ours.ResNet", "init_args": {"depth": 50}}},
    ],
)
def test_other_settings_are_none_of_its(tmp_path: Path, changes: Any) -> None:
    with pytest.raises(InputError, match="not recognised"):
        settings(tmp_path, **changes)
