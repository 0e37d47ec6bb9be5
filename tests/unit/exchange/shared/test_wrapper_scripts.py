"""A script that only calls a module's function is read as that module."""

from pathlib import Path

import pytest

import memsheet
from memsheet.exchange.shared.wrapper_scripts import LONGEST_WRAPPER, wrapped_module

WRAPPER = """\"\"\"Starts it.\"\"\"
import os, sys
sys.path.append("./")
from own.train.train import train

if __name__ == "__main__":
    train()
"""


def test_the_module_that_a_wrapper_calls_is_found() -> None:
    assert wrapped_module(WRAPPER) == "own/train/train.py"
    assert wrapped_module(
        WRAPPER.replace("import train", "import train as run").replace("    train()", "    run()")
    )


@pytest.mark.parametrize(
    "text",
    [
        WRAPPER.replace("train()", 'train(attn_implementation="flash_attention_2")'),
        WRAPPER.replace("if __name__", "from own.patch import patch\npatch()\n\nif __name__"),
        WRAPPER.replace("if __name__", "lr = 1\nif __name__"),
        WRAPPER.replace("from own.train.train", "from .train"),
        WRAPPER.replace("    train()", "    main()"),
        WRAPPER.replace("import os, sys", "x = ("),
        WRAPPER + "#" * LONGEST_WRAPPER,
        "(" * 4000,
        "",
    ],
)
def test_what_does_anything_itself_is_no_wrapper(text: str) -> None:
    assert wrapped_module(text) == ""


TRAIN = """
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

def train():
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype="bfloat16")
    Trainer(model=model, args=args, train_dataset=rows).train()

if __name__ == "__main__":
    train()
"""
START = "deepspeed own/train/{}.py --bf16 True --per_device_train_batch_size 2 --output_dir out\n"


def test_a_started_wrapper_is_the_job_of_its_module(tmp_path: Path) -> None:
    folder = tmp_path / "own" / "train"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    (folder / "train_mem.py").write_text(WRAPPER)
    found = []
    for name in ("train", "train_mem"):
        (tmp_path / "run.sh").write_text(START.format(name))
        found.append(memsheet.check(tmp_path / "run.sh", gpus="1xA100-80GB", seq_len=512))
    straight, wrapped = found
    assert wrapped.answer is not None
    assert straight.answer is not None
    assert wrapped.answer.plan == straight.answer.plan
    assert wrapped.doubt == straight.doubt
