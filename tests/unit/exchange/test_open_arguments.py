"""What a launch is given by a variable that nobody set may be any option: no verdict on it is sure, and it is
not said to stop.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.exchange.shared.file_format import MORE, UNSET
from memsheet.exchange.shared.flag_words import flags_of
from memsheet.exchange.shared.megatron_flags import parse_flags

MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --swiglu --bf16 {} "
    "--num-attention-heads 32 --ffn-hidden-size 14336 --seq-length 4096 --max-position-embeddings 4096 "
    "--micro-batch-size 1 --global-batch-size 4 --vocab-size 128256"
)
LAUNCHES = {
    "megatron": MEGATRON,
    "transformers": (
        "torchrun --nproc_per_node 8 run_clm.py --model_name_or_path Qwen/Qwen2.5-7B "
        "--per_device_train_batch_size 4 --block_size 4096 {} --bf16 --output_dir o"
    ),
    "swift": (
        "swift sft --model Qwen/Qwen2.5-7B --train_type full --per_device_train_batch_size 4 "
        "--max_length 4096 --bf16 true {} --dataset x"
    ),
    "verl": (
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=256 "
        "data.max_prompt_length=512 data.max_response_length=512 trainer.n_gpus_per_node=8 trainer.nnodes=1 "
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B actor_rollout_ref.actor.ppo_mini_batch_size=64 "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 actor_rollout_ref.rollout.name=vllm "
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.4 {}"
    ),
    "vllm": "vllm serve Qwen/Qwen2.5-7B --max-model-len 4096 {}",
}


def checked(folder: Path, name: str, text: str, **options: Any) -> memsheet.Checked:
    (folder / name).write_text(text)
    return memsheet.check(folder / name, gpus="8xH100-80GB", **options)


@pytest.mark.parametrize("name", LAUNCHES)
@pytest.mark.parametrize("word", ["$FURTHER", "${FURTHER}", '"${FURTHER[@]}"'])
def test_arguments_that_nobody_knows_leave_no_sure_verdict(tmp_path: Path, name: str, word: str) -> None:
    found = checked(tmp_path, "run.sh", LAUNCHES[name].format(word))
    assert found.result is Result.UNCERTAIN
    assert not found.stops
    assert "FURTHER" in str(found.doubt)


@pytest.mark.parametrize("name", LAUNCHES)
def test_what_the_script_itself_is_given_is_nothing(tmp_path: Path, name: str) -> None:
    plain = checked(tmp_path, "plain.sh", LAUNCHES[name].format(""))
    given = checked(tmp_path, "given.sh", LAUNCHES[name].format('"$@"'))
    assert (given.result, given.stops) == (plain.result, plain.stops)
    assert str(given.doubt).replace("given.sh", "plain.sh") == str(plain.doubt)


def test_a_stop_is_one_where_all_arguments_are_there(tmp_path: Path) -> None:
    assert checked(tmp_path, "run.sh", MEGATRON.format("")).stops


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--bf16", "true", "$A"], {"bf16": True, MORE: "$A"}),
        (["--lr", "$A"], {"lr": "a variable that nobody set"}),
        (["--lr=1", "$A", "--b", "2"], {"lr": 1, MORE: "$A", "b": 2}),
        (["--n", "1", "2", "${A[@]}"], {"n": [1, 2], MORE: "${A[@]}"}),
        (["$A"], {MORE: "$A"}),
        (["$1"], {}),
        (["--n", "1", "$1"], {"n": 1, MORE: "$1"}),
        (["--n", "1", "${A:+--b", "$A}", "--c", "2"], {"n": 1, MORE: "${A:+--b $A}", "c": 2}),
        (["--n", "1", "$(cat", "f)", "--c", "2"], {"n": 1, MORE: "$(cat f)", "c": 2}),
        (["--n", "`cat", "f`", "--c", "2"], {"n": UNSET, "c": 2}),
        (["--bf16", "${A[@]}"], {"bf16": UNSET, MORE: "${A[@]}"}),
        (["--bf16", "${A:+--b", "${A}}"], {"bf16": UNSET, MORE: "${A:+--b ${A}}"}),
        (["--output_dir", "$A"], {"output_dir": UNSET}),
    ],
)
def test_a_value_is_no_further_argument(words: list[str], found: dict[str, Any]) -> None:
    assert flags_of(words)[0] == found


TOO_LARGE = {
    "transformers": (
        "torchrun --nproc_per_node 8 run_clm.py --model_name_or_path Qwen/Qwen2.5-72B --block_size 4096 "
        "--bf16 --output_dir o --per_device_train_batch_size 4 {}"
    ),
    "megatron": MEGATRON.replace("--num-layers 32", "--num-layers 80").format("") + " {}",
}


@pytest.mark.parametrize("name", TOO_LARGE)
@pytest.mark.parametrize("words", ["${DS:+--deepspeed $DS}", "$(cat more.txt)", "`cat more.txt`", '"$1"'])
def test_options_of_a_filled_part_may_divide_what_does_not_fit(tmp_path: Path, name: str, words: str) -> None:
    assert checked(tmp_path, "run.sh", TOO_LARGE[name].format("")).result is Result.DOES_NOT_FIT
    assert checked(tmp_path, "more.sh", TOO_LARGE[name].format(words)).result is Result.UNCERTAIN


BRIDGE = """
model: {tensor_model_parallel_size: 1, seq_length: "${tokens}"}
train: {micro_batch_size: 64, global_batch_size: 512}
checkpoint: {pretrained_checkpoint: %s}
tokens: 4096
"""


@pytest.mark.parametrize("model", ["/ckpts/llama-70b", "Qwen/Qwen2.5-72B"])
def test_what_is_put_over_a_recipe_is_denied_by_no_size_of_a_name(tmp_path: Path, model: str) -> None:
    found = checked(tmp_path, "over.yaml", BRIDGE % model)
    assert found.result is Result.UNCERTAIN
    assert found.answer is not None
    assert found.answer.plan.workload.seq_len == 4096


def test_a_script_of_several_trainings_is_said_to_be(tmp_path: Path) -> None:
    small = LAUNCHES["transformers"].format("--max_steps 1").replace("7B", "0.5B")
    found = checked(tmp_path, "run.sh", f"{small}\n{LAUNCHES['transformers'].format('')}\n")
    assert any("the first of 2 trainings" in line for read in found.reads.values() for line in read.assumed)
    alone = checked(tmp_path, "run.sh", f"{small}\n{small}\n")
    assert not any("the first of" in line for read in alone.reads.values() for line in read.assumed)


@pytest.mark.parametrize(
    "flag", ["--model_name_or_path Qwen/Qwen2.5-0.5B", "--per_device_train_batch_size 1"]
)
def test_flags_of_the_trainer_are_of_no_fork_of_megatron(flag: str) -> None:
    words = ["torchrun", "run.py", "--num_layers", "32", "--seq_length", "4096"]
    assert "--num-layers" in parse_flags(words)
    assert "--num-layers" not in parse_flags([*words, *flag.split()])


SCRIPT = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
args = TrainingArguments(output_dir="o", per_device_train_batch_size=1, {})
Trainer(model=model, args=args).train()
"""


@pytest.mark.parametrize(
    ("options", "stops"),
    [
        ("load_best_model_at_end=True", True),
        ("load_best_model_at_end=True, eval_strategy='steps'", False),
        ("load_best_model_at_end=True, evaluation_strategy='steps'", False),
        ("load_best_model_at_end=True, **extra", False),
    ],
)
def test_an_evaluation_by_any_name_lets_the_best_be_loaded(tmp_path: Path, options: str, stops: bool) -> None:
    assert checked(tmp_path, "train.py", SCRIPT.format(options)).stops is stops


@pytest.mark.parametrize("option", ["--gres=gpu:0", "--gpus=0", "--gpus-per-node=0"])
def test_a_batch_script_that_asks_for_no_card_is_read(tmp_path: Path, option: str) -> None:
    text = f"#!/bin/bash\n#SBATCH {option}\n{LAUNCHES['vllm'].format('')}\n"
    assert checked(tmp_path, "job.sbatch", text).result is Result.FITS


@pytest.mark.parametrize("end", ["", "\n", " \\", " \\\n", "\r\n", " \\\r\n"])
def test_lines_end_as_editors_leave_them(tmp_path: Path, end: str) -> None:
    lines = ("vllm serve Qwen/Qwen2.5-7B \\", "  --max-model-len 4096")
    ending = "\r\n" if "\r" in end else "\n"
    text = ending.join(lines) + end
    (tmp_path / "run.sh").write_bytes(text.encode())
    found = memsheet.check(tmp_path / "run.sh", gpus="8xH100-80GB")
    assert found.result is Result.FITS
    assert found.answer is not None
    assert found.answer.plan.serving.max_model_len == 4096


@pytest.mark.parametrize(
    "model", ["Qwen/Qwen2.5-7B", "/own/qwen2.5-7b-resized", "org/Unheard-7B", "org/my-qwen2.5-7b-sft"]
)
@pytest.mark.parametrize(
    "launcher", ["accelerate launch --multi_gpu --num_processes 8", "torchrun --nproc_per_node 8"]
)
def test_a_file_of_deepspeed_that_lies_elsewhere_may_divide_all(
    tmp_path: Path, model: str, launcher: str
) -> None:
    text = (
        f"{launcher} train.py --model_name_or_path {model} --bf16 True --output_dir o "
        "--per_device_train_batch_size 1 --deepspeed ./configs/own.json"
    )
    found = checked(tmp_path, "run.sh", text)
    assert found.result is Result.UNCERTAIN
    assert "own.json" in str(found.doubt)


FLAGS = (
    "train.py --model_name_or_path Qwen/Qwen2.5-32B --bf16 True --output_dir o --gradient_checkpointing True "
    "--per_device_train_batch_size 1 --model_max_length 1024"
)


PARSED = (
    "from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments\n"
    "mine, args = HfArgumentParser((Mine, TrainingArguments)).parse_args_into_dataclasses()\n"
    "model = AutoModelForCausalLM.from_pretrained(mine.model_name_or_path, torch_dtype='bfloat16')\n"
    "Trainer(model=model, args=args).train()\n"
)


@pytest.mark.parametrize(
    ("launcher", "options", "result"),
    [
        ("accelerate launch", {}, Result.UNCERTAIN),
        ("accelerate launch --num_processes 8", {}, Result.UNCERTAIN),
        ("accelerate launch --multi_gpu --num_processes 8", {}, Result.DOES_NOT_FIT),
        ("torchrun --nproc_per_node 8", {}, Result.DOES_NOT_FIT),
        ("accelerate launch", {"zero": 0}, Result.DOES_NOT_FIT),
    ],
)
def test_accelerates_own_configuration_may_divide_what_no_file_says(
    tmp_path: Path, launcher: str, options: dict[str, Any], result: Result
) -> None:
    (tmp_path / "train.py").write_text(PARSED)
    found = checked(tmp_path, "run.sh", f"{launcher} {FLAGS}", **options)
    assert found.result is result
    assert ("accelerate" in str(found.doubt)) is (result is Result.UNCERTAIN)


def test_settings_alone_are_started_by_somebody(tmp_path: Path) -> None:
    text = (
        "model_name_or_path: Qwen/Qwen2.5-32B\nbf16: true\nper_device_train_batch_size: 1\nmax_length: 1024\n"
        "dataset_name: x\n"
    )
    assert checked(tmp_path, "sft.yaml", text).result is Result.UNCERTAIN
    alone = memsheet.check(tmp_path / "sft.yaml", gpus="1xH100-80GB")
    assert alone.result is Result.DOES_NOT_FIT


@pytest.mark.parametrize(
    ("cards", "said"),
    [
        ("4xH100-80GB", "--bf16"),  # what else the script holds, its text alone says
        ("4xH100-80GB", ""),  # its precision is the script's
        ("4xRTX4090", "--bf16"),  # which may train adapters, or offload
    ],
)
def test_a_script_that_nobody_has_is_open_either_way(tmp_path: Path, cards: str, said: str) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}')
    launch = (
        "deepspeed --num_gpus 4 train.py --model_name_or_path Qwen/Qwen3-8B --deepspeed ds.json "
        f"--per_device_train_batch_size 2 --max_length 2048 {said}"
    )
    (tmp_path / "run.sh").write_text(launch)
    assert memsheet.check(tmp_path / "run.sh", gpus=cards).result is Result.UNCERTAIN


ELSEWHERE = """
import argparse
from accelerate import Accelerator
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import AutoTokenizer
from models.own import OwnModel
parser = argparse.ArgumentParser()
parser.add_argument("--model_name_or_path", default="bert-base-uncased")
parser.add_argument("--max_length", type=int, default=512)
args = parser.parse_args()
tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
accelerator = Accelerator()
model = {made}
loader = DataLoader(data, batch_size=1)
model, optimizer, loader = accelerator.prepare(model, AdamW(model.parameters()), loader)
for batch in loader:
    accelerator.backward(model(**batch).loss)
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("made", "result"),
    [
        ("OwnModel(args)", Result.UNCERTAIN),
        ("AutoModel.from_pretrained(args.model_name_or_path)", Result.FITS),
    ],
)
def test_a_model_that_another_file_makes_is_not_sure(tmp_path: Path, made: str, result: Result) -> None:
    """A flag names a model, and what is made of it is not in the text."""
    script = ELSEWHERE.format(made=made).replace("import AutoTokenizer", "import AutoModel, AutoTokenizer")
    (tmp_path / "train.py").write_text(script)
    found = memsheet.check(tmp_path / "train.py", gpus="1xH100-80GB")
    assert found.answer is not None
    assert found.answer.model.name == "bert-base"
    assert found.result is result


BITS = """
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
from peft import PeftModel
bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.2-1B", quantization_config=bits)
model = PeftModel.from_pretrained(model, "adapters", is_trainable=True)
Trainer(model=model, args=TrainingArguments(output_dir="o", bf16=True, per_device_train_batch_size=1)).train()
"""


def test_adapters_train_over_a_base_in_fewer_bits(tmp_path: Path) -> None:
    """Which no text makes here: they come from a checkpoint, of a rank that it does not tell."""
    (tmp_path / "train.py").write_text(BITS)
    own = {
        "model_name": "meta-llama/Llama-3.2-1B", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bf16": True,
        "per_device_train_batch_size": 1, "learning_rate": 1e-4,
    }  # fmt: skip
    (tmp_path / "own.json").write_text(json.dumps(own))
    for name in ("train.py", "own.json"):
        found = memsheet.check(tmp_path / name, gpus="1xH100-80GB", seq_len=512)
        assert found.answer is not None, found.why_not
        assert found.answer.plan.adapter is not None
        assert found.result is Result.UNCERTAIN


@pytest.mark.parametrize("width", ["fp16", "bf16"])
def test_adapters_have_the_dtype_that_deepspeed_casts_all_to(tmp_path: Path, width: str) -> None:
    stage = {"zero_optimization": {"stage": 2}, width: {"enabled": True}, "train_micro_batch_size_per_gpu": 1}
    (tmp_path / "ds.json").write_text(json.dumps(stage))
    (tmp_path / "run.sh").write_text(
        "torchrun --nproc_per_node 2 train.py --model_name_or_path meta-llama/Llama-3.2-1B "
        f"--deepspeed ds.json --{width} --use_peft --lora_r 8 --per_device_train_batch_size 1 --output_dir o"
    )
    found = memsheet.check(tmp_path, gpus="2xH100-80GB", seq_len=512)
    assert found.answer is not None, found.why_not
    assert found.answer.plan.adapter is not None
    assert found.answer.plan.adapter.dtype.name == width


LOADED = """
import torch
from transformers import AutoModelForCausalLM
from peft import LoraConfig, get_peft_model
from ours import bits_config, more
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", torch_dtype=torch.bfloat16, {given})
model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj"]))
{ends}
"""
ENDS = {
    "arguments": """from transformers import Trainer, TrainingArguments
args = TrainingArguments('o', bf16=True, per_device_train_batch_size=1, gradient_checkpointing=True)
Trainer(model=model, args=args).train()
""",
    "loop": """model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters())
for batch in torch.utils.data.DataLoader(rows, batch_size=1):
    model(**batch).loss.backward()
""",
}


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize(
    ("given", "open_"),
    [
        ("quantization_config=bits_config()", True),
        ("quantization_config=bits_config(4)", True),
        ("**more", True),
        ("quantization_config=None", False),
        ("use_cache=False", False),
    ],
)
def test_bits_that_another_file_tells_are_open(tmp_path: Path, ends: str, given: str, open_: bool) -> None:
    """A base in few bits would fit where sixteen do not."""
    (tmp_path / "train.py").write_text(LOADED.format(given=given, ends=ENDS[ends]))
    found = memsheet.check(tmp_path / "train.py", gpus="1xT4", seq_len=512)
    assert found.result is (Result.UNCERTAIN if open_ else Result.DOES_NOT_FIT)


HANDED = """
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM
from ours import Trainer, Rows
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.2-1B", torch_dtype=torch.bfloat16)
rows = DataLoader(Rows("train.json", max_length=512), batch_size=4)
optimizer = torch.optim.AdamW(model.parameters())
trainer = Trainer(model=model, rows=rows, optimizer=optimizer)
trainer.fit(epoch=3)
"""


def test_a_loop_that_another_file_has_is_a_training_in_doubt(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HANDED)
    found = memsheet.check(tmp_path / "train.py", gpus="1xH100-80GB", seq_len=512)
    assert found.answer is not None, found.no_model
    assert found.answer.plan.training.microbatch == 4
    assert found.result is Result.UNCERTAIN
    assert "another file has" in str(found.doubt)
