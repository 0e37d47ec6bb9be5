"""How long rows are where a script or a command says it beside the Trainer's arguments, and what programs
take by themselves.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.exchange.formats.test_pytorch import request_of

import memsheet
from memsheet.questions.recognised_files import recognise_files

HEAD = """from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("gpt2")
args = TrainingArguments(output_dir="o", per_device_train_batch_size=2, bf16=True)
"""
GROUPS = """
def group_texts(examples):
    whole = {k: sum(examples[k], []) for k in examples}
    total = (len(whole["input_ids"]) // BLOCK) * BLOCK
    return {k: [t[i : i + BLOCK] for i in range(0, total, BLOCK)] for k, t in whole.items()}
Trainer(model=model, args=args, train_dataset=rows.map(group_texts)).train()
"""
EXAMPLE = (
    "torchrun --nproc_per_node 2 {script} --model_name_or_path {model} --per_device_train_batch_size 2 "
    "{more}\n"
)
TRL = "trl {method} --model_name_or_path gpt2 --dataset_name a/b --per_device_train_batch_size 2 {more}\n"


@pytest.mark.parametrize(
    ("text", "length"),
    [
        (f"BLOCK = 256\n{HEAD}{GROUPS}", 256),
        (f"{HEAD}rows = TextDataset(tokenizer=tok, file_path='a.txt', block_size=128)\nTrainer(model, args, train_dataset=rows)", 128),
        (f"{HEAD}rows = LineByLineTextDataset(tok, 'a.txt', 64)\nTrainer(model, args, train_dataset=rows)", 64),
        (f"{HEAD}DPOTrainer(model, None, args=args, max_length=768, max_prompt_length=512)", 768),
        (f"{HEAD}SFTTrainer(model=model, args=args, max_seq_length=512, packing=True)", 512),
    ],
)  # fmt: skip
def test_a_length_of_the_script_is_the_rows(text: str, length: int) -> None:
    assert request_of(text)["seq_len"] == length


@pytest.mark.parametrize(
    ("trainer", "length"), [("SFTTrainer", 1024), ("DPOTrainer", 512), ("KTOTrainer", 512)]
)
def test_older_trainers_take_a_length_of_their_own(trainer: str, length: int, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"{HEAD}{trainer}(model=model, args=args)")
    checked = memsheet.check(file, gpus="1xA100-80GB")
    assert checked.answer
    assert checked.answer.plan.training.seq_len == length
    assert f"seq_len = {length}" in checked.assumed


def test_a_trainer_given_older_arguments_trains_by_its_method() -> None:
    text = f"{HEAD}DPOTrainer(model, None, args=args, max_length=768)"
    assert request_of(text)["microbatch"] == 2
    (read,) = recognise_files({"train.py": text}, ())[0].values()
    assert dict(read.unmodelled)["script.method"] == "DPO"


@pytest.mark.parametrize(
    ("script", "model", "more", "length", "sure"),
    [
        ("run_clm.py", "gpt2", "", 1024, False),
        ("run_clm.py", "gpt2", "--block_size 512", 512, True),
        ("run_summarization.py", "google-t5/t5-small", "", 1024, True),
        ("run_translation.py", "google-t5/t5-small", "--max_source_length 256", 256, True),
        ("run_glue.py", "bert-base-uncased", "", 128, True),
    ],
)
def test_examples_of_the_library_take_lengths_of_their_own(
    script: str, model: str, more: str, length: int, sure: bool, tmp_path: Path
) -> None:
    file = tmp_path / "run.sh"
    file.write_text(EXAMPLE.format(script=script, model=model, more=more))
    checked = memsheet.check(file, gpus="2xA100-80GB")
    assert checked.answer
    assert not checked.stops
    assert checked.answer.plan.training.seq_len == length
    assert ("block_size as long as the tokenizer" in checked.doubt) is not sure
    said = memsheet.check(file, gpus="2xA100-80GB", seq_len=512)
    assert "block_size" not in said.doubt


def test_an_answer_shorter_than_its_question_takes_less(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(EXAMPLE.format(script="run_summarization.py", model="google-t5/t5-small", more=""))
    (moved,) = memsheet.check(file, gpus="2xA100-80GB").moved
    assert (moved.at, moved.low_bytes < 0, moved.high_bytes) == ("max_target_length", True, 0)


@pytest.mark.parametrize(
    ("method", "more", "length"),
    [
        ("grpo", "--max_prompt_length 512 --max_completion_length 128", 640),
        ("grpo", "--max_prompt_length 512", 768),
        ("dpo", "--max_prompt_length 512 --max_completion_length 128", 640),
        ("dpo", "--max_prompt_length 512 --max_completion_length 800", 1024),
        ("dpo", "--max_prompt_length 512", 1024),
    ],
)
def test_parts_of_a_row_on_a_command_line(method: str, more: str, length: int, tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(TRL.format(method=method, more=more))
    checked = memsheet.check(file, gpus="1xA100-80GB")
    assert checked.answer
    assert checked.answer.plan.training.seq_len == length
