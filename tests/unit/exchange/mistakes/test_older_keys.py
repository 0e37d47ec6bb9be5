"""Keys that releases of TRL stop at: a script is told what a command is, and no sheet is of two releases."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.report.shared.checked import Checked

SCRIPT = """from trl import {name}Config, {name}Trainer
cfg = {name}Config(output_dir="o", per_device_train_batch_size=1, {said})
{name}Trainer(model="Qwen/Qwen2.5-0.5B", args=cfg, train_dataset=d, {given}).train()
"""
OLDER = [
    ("SFT", "max_seq_length=512", ""), ("SFT", "max_length=512", "tokenizer=t"), ("DPO", "beta=0.1", "tokenizer=t"),
    ("GRPO", "use_liger_loss=True", ""), ("GRPO", "max_prompt_length=512", ""), ("DPO", "max_prompt_length=512", ""),
]  # fmt: skip


def checked(folder: Path, text: str, **options: str) -> Checked:
    (folder / "train.py").write_text(text)
    return memsheet.check(str(folder / "train.py"), gpus="1xH100-80GB", **options)


def told(found: Checked) -> list[tuple[bool, bool]]:
    return [(one.stops, one.may_stop) for rule, one in found.mistakes if rule.id == "key-of-older-release"]


@pytest.mark.parametrize(("name", "said", "given"), OLDER)
def test_a_script_is_told_of_a_key_that_newer_releases_stop_at(
    name: str, said: str, given: str, tmp_path: Path
) -> None:
    text = SCRIPT.format(name=name, said=said, given=given)
    assert told(checked(tmp_path, text)) == [(False, True)]
    assert told(checked(tmp_path, f"# pip install trl==1.10.0\n{text}")) == [(True, False)]
    assert told(checked(tmp_path, text, engine_version="trl==0.14.0")) == []
    assert told(checked(tmp_path, f"# pip install trl==0.14.0\n{text}")) == []


def test_unsloths_trainers_take_them_in_every_release(tmp_path: Path) -> None:
    text = SCRIPT.format(name="SFT", said="max_seq_length=512", given="tokenizer=t")
    loads = 'm, t = FastLanguageModel.from_pretrained("unsloth/Qwen3-0.6B")'
    assert told(checked(tmp_path, f"from unsloth import FastLanguageModel\n{loads}\n{text}")) == []


def test_no_sheet_has_the_defaults_of_a_newer_release_beside_an_older_key(tmp_path: Path) -> None:
    newer = checked(tmp_path, SCRIPT.format(name="SFT", said="max_length=512", given="")).answer
    older = checked(tmp_path, SCRIPT.format(name="SFT", said="max_seq_length=512", given="")).answer
    assert newer is not None
    assert older is not None
    assert (newer.plan.loss.value, newer.plan.recompute.mode.value) == ("chunked", "full")
    assert (older.plan.loss.value, older.plan.recompute.mode.value) == ("plain", "none")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B\nmax_seq_length: 512\nper_device_train_batch_size: 1\n"
        "dataset_name: trl-lib/Capybara\n"
    )
    same = memsheet.check(str(recipe), gpus="1xH100-80GB").answer
    assert same is not None
    assert (same.plan.loss, same.plan.recompute) == (older.plan.loss, older.plan.recompute)


def test_ligers_loss_is_fused_by_its_older_name(tmp_path: Path) -> None:
    for name in ("GRPO", "DPO"):
        older, newer = (
            checked(tmp_path, SCRIPT.format(name=name, said=f"{key}=True", given="")).answer
            for key in ("use_liger_loss", "use_liger_kernel")
        )
        assert older is not None
        assert newer is not None
        assert [int(one.device.value) for one in older.sheets] == [
            int(one.device.value) for one in newer.sheets
        ]
