"""Scripts that load their settings of a file beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet

SETTINGS = """model:
  name: gpt2
max_length: 256
training: {batch_size: 3, accumulation: 4}
run: ${model.name}-run
"""
TRAINS = """
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained(cfg["model"]["name"])
tokenizer = AutoTokenizer.from_pretrained(cfg["model"]["name"])
rows = rows.map(lambda row: tokenizer(row["text"], truncation=True, max_length=cfg.get("max_length", 1024)))
args = TrainingArguments(
    cfg["run"], per_device_train_batch_size=cfg["training"]["batch_size"], gradient_accumulation_steps=cfg["training"].get("accumulation", 1)
)
Trainer(model=model, args=args, train_dataset=rows).train()
"""
PARSED = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--config", default="config.yaml")
args = parser.parse_args()
"""
LOADS = (
    'import yaml\ncfg = yaml.safe_load(open("config.yaml"))\n',
    'import yaml\nwith open("config.yaml", "r") as file:\n    cfg = yaml.load(file, Loader=yaml.FullLoader)\n',
    'import yaml\ndef load(path):\n    with open(path) as file:\n        return yaml.safe_load(file)\ncfg = load("config.yaml")\n',
    f"import yaml\n{PARSED}cfg = yaml.safe_load(open(args.config))\n",
    'from omegaconf import OmegaConf\ncfg = OmegaConf.load("config.yaml")\n',
)  # fmt: skip


@pytest.mark.parametrize("loads", LOADS)
def test_settings_stand_where_the_script_uses_them(loads: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(SETTINGS)
    (tmp_path / "train.py").write_text(loads + TRAINS)
    checked = memsheet.check(tmp_path / "train.py", gpus="2xA100-80GB")
    assert checked.answer, checked.why_not
    plan = checked.answer.plan
    assert (checked.answer.model.name, plan.training.microbatch, plan.training.seq_len) == ("gpt2", 3, 256)
    assert plan.training.global_batch == 3 * 4 * 2
    assert "train.py: values of config.yaml, which lies beside" in checked.assumed


def test_fields_are_read_as_attributes_too(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(SETTINGS)
    text = LOADS[4] + TRAINS.replace('cfg["model"]["name"]', "cfg.model.name")
    (tmp_path / "train.py").write_text(text)
    assert memsheet.check(tmp_path / "train.py", gpus="1xA100-80GB").answer


def test_a_command_names_the_settings(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(SETTINGS)
    (tmp_path / "other.yaml").write_text(SETTINGS.replace("256", "128"))
    (tmp_path / "train.py").write_text(LOADS[3] + TRAINS)
    (tmp_path / "run.sh").write_text("torchrun --nproc_per_node 2 train.py --config other.yaml\n")
    checked = memsheet.check(tmp_path / "run.sh", gpus="2xA100-80GB")
    assert checked.answer, checked.why_not
    assert checked.answer.plan.training.seq_len == 128


def test_settings_that_lie_nowhere_leave_their_values_open(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOADS[0] + TRAINS)
    checked = memsheet.check(tmp_path / "train.py", model="gpt2", gpus="1xA100-80GB")
    assert "per_device_train_batch_size" in checked.doubt


def test_settings_outside_of_the_job_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(SETTINGS)
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.py").write_text((LOADS[0] + TRAINS).replace("config.yaml", "../config.yaml"))
    checked = memsheet.check(tmp_path / "job" / "train.py", model="gpt2", gpus="1xA100-80GB")
    assert "per_device_train_batch_size" in checked.doubt
