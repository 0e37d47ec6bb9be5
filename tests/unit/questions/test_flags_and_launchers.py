"""What a command gives a script, and what a launcher makes of it, as the programs read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memsheet.cli import main

SFT = """import argparse
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
p = argparse.ArgumentParser()
p.add_argument("--model", default="meta-llama/Llama-3.1-8B")
p.add_argument("--seq", type=int, default=2048)
a = p.parse_args()
model = AutoModelForCausalLM.from_pretrained(a.model)
SFTTrainer(model=model, args=SFTConfig("o", max_length=a.seq, bf16=True), train_dataset=None).train()
"""
LABELS = """from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments
model = AutoModelForSequenceClassification.from_pretrained("FacebookAI/xlm-roberta-base", num_labels=5)
args = TrainingArguments("out", per_device_train_batch_size=32, bf16=True)
def enc(b): return tok(b["text"], truncation=True, max_length=512, padding="max_length")
Trainer(model=model, args=args, train_dataset=None).train()
"""
ZERO = json.dumps(
    {"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}, "train_batch_size": "auto"}
)
FLAGS = (
    "--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --max_length 2048 --bf16"
    " --dataset_name a/b"
)
FACTORY = (
    "--stage sft --do_train --model_name_or_path 01-ai/Yi-6B --dataset a --template default"
    " --finetuning_type full --output_dir o --cutoff_len 2048"
)


def checked(path: Path, capsys: pytest.CaptureFixture[str], gpus: str = "8xH100-80GB") -> dict[str, Any]:
    main(["check", str(path), "--gpus", gpus, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_a_length_that_is_a_flags_default_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, sft__py=SFT)
    found = checked(tmp_path / "sft.py", capsys)
    assert found["sheet"]["plan"]["seq_len"] == 2048
    assert any("the default of --seq" in line for line in found["assumed"])


def test_a_length_that_the_command_gives_comes_before_the_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, sft__py=SFT, run__sh="torchrun --nproc_per_node 8 sft.py --seq 16384\n")
    found = checked(tmp_path / "run.sh", capsys)
    assert found["sheet"]["plan"]["seq_len"] == 16384
    assert not any("the default of --seq" in line for line in found["assumed"])
    assert not [one for one in found["mistakes"] if one["rule"] == "unknown-key"]


PARSED = """from transformers import HfArgumentParser
from trl import SFTConfig, SFTTrainer
args = HfArgumentParser(SFTConfig).parse_args_into_dataclasses()[0]
SFTTrainer(model="Qwen/Qwen2.5-1.5B", args=args, train_dataset=None).train()
"""
CUT = """import argparse
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
p = argparse.ArgumentParser()
p.add_argument("--seq", type=int, default=2048)
a = p.parse_args()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B")
tok = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-1.5B")
rows = rows.map(lambda e: tok(e["text"], truncation=True, max_length=a.seq))
Trainer(model=model, args=TrainingArguments("o"), train_dataset=rows).train()
"""


@pytest.mark.parametrize(
    ("script", "flag"), [(PARSED, "--max_length"), (PARSED, "--max_seq_length"), (CUT, "--seq")]
)
def test_what_a_command_says_stands_before_every_default(
    script: str, flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = "--model_name_or_path Qwen/Qwen2.5-1.5B --dataset_name a/b" * (script == PARSED)
    written(tmp_path, train__py=script, run__sh=f"python train.py {flag} 4096 --bf16 {more}\n")
    found = checked(tmp_path, capsys, "1xH100-80GB")
    assert found["sheet"]["plan"]["seq_len"] == 4096
    assert "files-disagree" not in str(found["mistakes"])


@pytest.mark.parametrize(
    ("model", "note"),
    [
        ("FacebookAI/xlm-roberta-base", "the model is loaded as XLMRobertaForSequenceClassification"),
        ("Qwen/Qwen2.5-0.5B", "the model tells labels apart: it has no output matrix"),
    ],
)
def test_a_head_of_labels_takes_the_place_of_the_vocabularys(
    model: str, note: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the model's family has one, or in the place of a decoder's output matrix."""
    script = LABELS.replace("FacebookAI/xlm-roberta-base", model)
    written(tmp_path, labels__py=script, lm__py=script.replace("SequenceClassification", "CausalLM"))
    found = {name: checked(tmp_path / f"{name}.py", capsys, "1xH100-80GB") for name in ("labels", "lm")}
    assert found["labels"]["result"] == "fits"
    assert any(one.startswith(note) for one in found["labels"]["sheet"]["notes"])
    needs = {name: held["sheet"]["verdict"]["device_bytes"] for name, held in found.items()}
    assert needs["labels"] < needs["lm"]


def test_an_example_of_the_library_says_its_head_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--model_name_or_path bert-base-cased --max_seq_length 128 --fp16 --output_dir o"
    written(tmp_path, run__sh=f"python run_ner.py {flags}\n")
    found = checked(tmp_path / "run.sh", capsys, "1xT4")
    assert "the model is loaded as BertForTokenClassification" in found["sheet"]["notes"]


@pytest.mark.parametrize(
    "launcher", ["--use_deepspeed --zero_stage 3", "--use_deepspeed --deepspeed_config_file z.json"]
)
def test_a_trainings_switch_for_sixteen_bits_is_deepspeeds(
    launcher: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(
        tmp_path, z__json=ZERO, run__sh=f"accelerate launch {launcher} --num_processes 8 sft.py {FLAGS}\n"
    )
    precision = checked(tmp_path / "run.sh", capsys)["sheet"]["plan"]["precision"]
    assert (precision["parameters"], precision["compute"], precision["master_weights"]) == (
        "bf16",
        "bf16",
        "fp32",
    )


def test_factory_flags_are_its_own_whatever_starts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its recompute is on where nobody says (hparams/model_args.py, disable_gradient_checkpointing)."""
    written(
        tmp_path,
        z__json=ZERO,
        run__sh=f"deepspeed --num_gpus 8 src/train.py {FACTORY} --bf16 --deepspeed z.json\n",
    )
    found = checked(tmp_path / "run.sh", capsys)
    assert "llamafactory" in {one["format"] for one in found["files"]}
    assert found["sheet"]["plan"]["recompute"]["mode"] == "full"


@pytest.mark.parametrize(("named", "engine", "zero"), [("fsdp2", "fsdp2", 3), ("zero2", "deepspeed", 2)])
def test_a_yaml_of_trl_names_accelerates_configuration(
    named: str, engine: str, zero: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        "model_name_or_path: Qwen/Qwen2.5-7B",
        "dataset_name: a/b",
        "max_length: 2048",
        f"accelerate_config: {named}",
    ]
    written(tmp_path, sft__yaml="\n".join(lines))
    plan = checked(tmp_path / "sft.yaml", capsys)["sheet"]["plan"]
    assert (plan["engine"], plan["zero"]) == (engine, zero)


def test_several_shells_of_a_folder_are_launches_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(
        tmp_path,
        a__sh="vllm serve Qwen/Qwen2.5-7B\n",
        b__sh="vllm serve mistralai/Mistral-7B-v0.1 --max-model-len 4096\n",
    )
    found = checked(tmp_path, capsys, "1xH100-80GB")
    assert {Path(one["file"]).name for one in found["launches"]} == {"a.sh", "b.sh"}


def test_sixteen_bits_of_either_kind_of_an_encoder_under_deepspeed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is DeepSpeed's by a section of its own alone, and fp16 of a model that is on record."""
    made = {}
    for word in ("fp16", "bf16"):
        config = {"steps_per_print": 10, word: {"enabled": True}}
        flags = f"--model_name_or_path bert-base-cased --max_seq_length 128 --{word} --deepspeed ds.json"
        folder = tmp_path / word
        folder.mkdir()
        written(
            folder, ds__json=json.dumps(config), run__sh=f"torchrun --nproc_per_node 1 run_glue.py {flags}"
        )
        found = checked(folder, capsys, "1xA100-80GB")
        made[word] = found["sheet"]["verdict"]["device_bytes"]
        assert found["sheet"]["plan"]["precision"]["parameters"] == word
    assert made["fp16"] == made["bf16"]


UNSLOTH = """from unsloth import FastLanguageModel
from trl import SFTConfig, SFTTrainer
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Meta-Llama-3.1-8B-bnb-4bit", max_seq_length={length})
model = FastLanguageModel.get_peft_model(model, r=16)
SFTTrainer(model=model, args=SFTConfig("o", per_device_train_batch_size={rows}), train_dataset=None).train()
"""


def test_a_loss_in_pieces_moves_the_peak_no_further_than_its_own_moment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compiled, a piece of Unsloth's keeps two bytes a logit, six at most."""
    tops = {}
    for rows in (1, 4):
        written(tmp_path, sft__py=UNSLOTH.format(length=2048, rows=rows))
        found = checked(tmp_path / "sft.py", capsys, "1xRTX4090")
        moved = [one for one in found["moved"] if one["key"] == "loss"]
        tops[rows] = max((one["high_bytes"] for one in moved), default=0)
    assert 0 <= tops[1] <= tops[4] <= 2**30 * 6
    assert tops[4] > 0
