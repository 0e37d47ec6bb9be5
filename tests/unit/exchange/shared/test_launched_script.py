"""What a shell's script starts: the flags after a script's name, the files that it names beside it, and
folders of both.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import memsheet
from laws import every
from memsheet.errors import InputError
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.shared.launched_script import described_launches, filled_commands, first_script_launch
from memsheet.guard import parse_json, parse_yaml
from memsheet.guard.budget import MOST_SCRIPT
from memsheet.questions.check import check_configuration_files
from memsheet.questions.recognised_files import recognise_files
from memsheet.report.shared.checked import Checked

PARSERS = {"json": parse_json, "yaml": parse_yaml}
WHERE = {
    "nodes": None,
    "per_node": None,
    "host_memory": None,
    "cluster": None,
    "parameters": None,
    "plan": None,
    "gpus": "8xA100-80GB",
}
GIVEN = (
    "train.py --model_name_or_path meta-llama/Llama-3.2-1B --per-device-train-batch-size=2 --bf16 "
    "--block_size 512 --gradient_checkpointing True"
)
STARTS = {
    "torchrun": "torchrun --nproc_per_node 8 ", "module": "python3 -m torch.distributed.run --nproc-per-node=8 ", "python": "python ",
    "accelerate": "accelerate launch --num_processes 8 --mixed_precision bf16 ", "deepspeed": "deepspeed --num_gpus=8 ",
    "srun": "srun --ntasks-per-node=1 torchrun --nproc-per-node 8 ", "variables": "N=8\nGPUS=${N:-4}\nexec torchrun --nproc_per_node=${GPUS} \\\n  ",
    "environment": "CUDA_VISIBLE_DEVICES=0,1 WANDB_MODE=offline .venv/bin/torchrun --nproc_per_node=8 ",
}  # fmt: skip
ZERO3 = {
    "zero_optimization": {"stage": 3},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
}
ACCELERATE = (
    "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config:\n  "
    "fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  "
    "fsdp_reshard_after_forward: true\n"
)
SCRIPT = (
    "from transformers import AutoModelForCausalLM, TrainingArguments\nargs = "
    'TrainingArguments("out", per_device_train_batch_size=2, bf16=True)\nmodel = '
    'AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.2-1B")\n'
)
RECIPE = (
    "model_name_or_path: meta-llama/Llama-3.2-1B\ntorch_dtype: bfloat16\nuse_peft: true\nlora_r: "
    "8\nper_device_train_batch_size: 2\n"
)


PARSED = (
    "from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments\n"
    "mine, args = HfArgumentParser((Mine, TrainingArguments)).parse_args_into_dataclasses()\n"
    "model = AutoModelForCausalLM.from_pretrained(mine.model_name_or_path, torch_dtype='bfloat16')\n"
    "Trainer(model=model, args=args).train()\n"
)


def checked(folder: Path, files: dict[str, str], *named: str, **flags: Any) -> Checked:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return check_configuration_files(
        tuple(str(folder / name) for name in named) or (str(folder),), None, dict(WHERE), flags
    )


@pytest.mark.parametrize("start", STARTS)
def test_flags_after_the_scripts_name_are_read(start: str, tmp_path: Path) -> None:
    files = {"run.sh": f"#!/bin/bash\n{STARTS[start]}{GIVEN} > log 2>&1\n", "train.py": PARSED}
    found = checked(tmp_path, files, "run.sh")
    assert found.answer is not None, (found.why_not, found.no_model)
    plan = found.answer.plan
    assert (
        found.answer.model.name,
        int(plan.training.microbatch),
        int(plan.training.seq_len),
        plan.recompute.mode.value,
    ) == (
        "llama-3.2-1b",
        2,
        512,
        "full",
    )
    assert (found.doubt, found.not_read) == ("", ())


def test_what_a_script_alone_reads_is_told(tmp_path: Path) -> None:
    found = checked(tmp_path, {"run.sh": "torchrun --nproc-per-node 8 mine.py --width 3 size=4\n"}, "run.sh")
    assert "--width" in " ".join(found.not_read)
    assert "mine.py" in " ".join(found.not_read)


def test_a_variable_that_nobody_set_is_not_sure() -> None:
    found = read_text("a.sh", "torchrun --nproc_per_node=$GPUS --nnodes=${NODES:-2} train.py\n", PARSERS)
    assert found.request["@nodes"] == 2
    assert "--nproc-per-node" in dict(found.unmodelled)
    assert found.problems == ()


@pytest.mark.parametrize("at", ["ds.json", "configs/ds.json"])
@pytest.mark.parametrize("lies", ["ds.json", "configs/ds.json"])
def test_a_deepspeed_file_that_lies_beside_is_opened(at: str, lies: str, tmp_path: Path) -> None:
    files = {
        "job/run.sh": f"torchrun --nproc-per-node 8 {GIVEN} --deepspeed {at}\n",
        f"job/{lies}": json.dumps(ZERO3),
        "job/train.py": PARSED,
    }
    found = checked(tmp_path, files, "job/run.sh")
    if at == "ds.json" and lies != at:
        assert "ds.json is named" in found.doubt
        return
    assert found.answer is not None
    assert (found.answer.plan.engine, found.answer.plan.zero, found.doubt) == ("deepspeed", 3, "")


@pytest.mark.parametrize("name", ["../ds.json", "/etc/hostname", "~/ds.json"])
def test_nothing_outside_the_folder_is_opened(name: str, tmp_path: Path) -> None:
    found = checked(
        tmp_path,
        {
            "job/run.sh": f"torchrun --nproc-per-node 8 {GIVEN} --deepspeed {name}\n",
            "ds.json": json.dumps(ZERO3),
        },
        "job/run.sh",
    )
    assert not any(read.form.name == "deepspeed" for read in found.reads.values())
    assert "is named and is not among the files" in found.doubt


def test_a_script_that_says_nothing_of_sharding_contradicts_nothing(tmp_path: Path) -> None:
    found = checked(tmp_path, {"fsdp.yaml": ACCELERATE, "train.py": SCRIPT}, seq_len=512)
    assert found.answer is not None, found.why_not
    assert (found.answer.plan.engine, found.answer.plan.zero) == ("fsdp2", 3)
    assert found.answer.plan.precision.parameters.name == "fp32", (
        "sharding with mixed precision raises what was loaded"
    )
    assert [rule.id for rule, _ in found.mistakes if rule.id == "files-disagree"] == []
    accumulates = ACCELERATE.replace(
        "distributed_type: FSDP",
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  gradient_accumulation_steps: 4\n  zero_stage: 2",
    )
    found = checked(tmp_path, {"fsdp.yaml": accumulates, "train.py": SCRIPT}, seq_len=512)
    assert found.answer is not None, found.why_not
    assert int(found.answer.plan.accumulation) == 4
    assert [rule.id for rule, _ in found.mistakes if rule.id == "files-disagree"] == []
    says = SCRIPT.replace("bf16=True", "bf16=True, gradient_accumulation_steps=8")
    assert "files-disagree" in {
        rule.id for rule, _ in checked(tmp_path, {"train.py": says}, seq_len=512).mistakes
    }


def test_a_folders_scripts_are_read_or_told(tmp_path: Path) -> None:
    one = checked(tmp_path, {"fsdp.yaml": ACCELERATE, "train.py": SCRIPT, "tools.py": "x = 1\n"}, seq_len=512)
    assert set(one.reads) == {"fsdp.yaml", "train.py"}
    assert any(line.startswith("tools.py") for line in one.not_read)
    several = checked(tmp_path, {"other.py": SCRIPT}, seq_len=512)
    assert set(several.reads) == {"fsdp.yaml"}
    assert {line.partition(":")[0] for line in several.not_read} == {"other.py", "tools.py", "train.py"}


@pytest.mark.parametrize(
    "start", ["trl sft", "accelerate launch --config_file fsdp.yaml scripts/sft.py", "python sft.py"]
)
def test_a_recipe_that_a_command_names_is_read_with_it(start: str, tmp_path: Path) -> None:
    files = {
        "run.sh": f"{start} --config recipes/r.yaml --per_device_train_batch_size 4\n",
        "r.yaml": RECIPE,
        "fsdp.yaml": ACCELERATE,
    }
    found = checked(tmp_path, files, "run.sh")
    assert found.answer is not None, (found.why_not, found.no_model)
    assert (
        int(found.answer.plan.training.microbatch),
        found.answer.plan.adapter.rank if found.answer.plan.adapter else 0,
    ) == (4, 8)
    assert found.answer.plan.engine == ("fsdp2" if "accelerate" in start else "transformers")
    assert [rule.id for rule, _ in found.mistakes if rule.id == "files-disagree"] == []


def test_a_servers_file_of_flags_is_read(tmp_path: Path) -> None:
    text = (
        "model: meta-llama/Llama-3.1-8B-Instruct\ntensor-parallel-size: 2\nmax_model_len: "
        "8192\ngpu-memory-utilization: 0.85\n"
    )
    alone = checked(tmp_path, {"serve.yaml": text}, "serve.yaml", **{"mesh.dp_replicate": 4})
    both = checked(
        tmp_path,
        {"go.sh": "vllm serve --config serve.yaml --max-model-len 4096\n"},
        "go.sh",
        **{"mesh.dp_replicate": 4},
    )
    for found, length in ((alone, 8192), (both, 4096)):
        assert found.answer is not None, found.why_not
        assert found.doubt == ""
        asked = next(iter(found.reads.values())).request
        assert (asked["mesh.tp"], asked["serving.max_model_len"], asked["serving.memory_fraction"]) == (
            2,
            length,
            0.85,
        )
        assert "files-disagree" not in {rule.id for rule, _ in found.mistakes}


@pytest.mark.parametrize(
    "engine", ["python -m sglang.launch_server --model-path {} --tp 16", "vllm serve {} -tp 16"]
)
def test_nodes_that_agree_with_the_cluster_are_no_doubt(engine: str, tmp_path: Path) -> None:
    command = engine.format("meta-llama/Llama-3.1-70B-Instruct")
    (tmp_path / "serve.sh").write_text(f"{command} --nnodes 2\n")
    for nodes, sure in ((2, True), (4, False)):
        where = {**WHERE, "gpus": "16xH100-80GB", "nodes": nodes, "per_node": 16 // nodes}
        found = check_configuration_files(
            (str(tmp_path / "serve.sh"),), None, where, {"serving.max_model_len": 8192}
        )
        assert ("nodes" not in found.doubt) is sure


@pytest.mark.parametrize(
    ("table", "compiled"),
    [("[compile]\nenable = true\n", True), ("[compile]\nenable = true\ncomponents = ['model', 'loss']\n", True), ("[compile]\nenable = true\ncomponents = ['loss']\n", False), ("", False)],
)  # fmt: skip
def test_a_compiled_model_may_overlap(table: str, compiled: bool, tmp_path: Path) -> None:
    text = (
        "[training]\nlocal_batch_size = 1\nseq_len = 512\n[parallelism]\ntensor_parallel_degree = "
        f"2\nenable_async_tensor_parallel = true\n{table}"
    )
    found = checked(tmp_path, {"t.toml": text}, "t.toml")
    assert ("async-tp-uncompiled" not in {rule.id for rule, _ in found.mistakes}) is compiled


@pytest.mark.parametrize(
    "text",
    [
        "torchrun",
        "torchrun --a",
        "python -m",
        "accelerate launch",
        "deepspeed 'x",
        "trl",
        "llamafactory-cli",
        "llamafactory-cli chat a.yaml",
        "",
        "python a.py " + "--a " * 5000,
    ],
)
def test_odd_commands_are_no_error(text: str) -> None:
    found = first_script_launch(text)
    assert found is None or found.script == "a.py"


@pytest.mark.parametrize("name", ["launch.sh", "train.py", "job.sbatch"])
def test_no_script_is_read_in_part(name: str, tmp_path: Path) -> None:
    """What stands at the end of a long script counts, so a script is read whole or refused with its limit."""
    launch = "vllm serve meta-llama/Llama-3.1-8B --max-model-len 4096\n"
    (tmp_path / name).write_text("# a comment\n" * (MOST_SCRIPT // 10) + launch)
    with pytest.raises(InputError, match="is longer than"):
        memsheet.check(tmp_path / name, gpus="1xH100-80GB")


def test_code_of_a_folder_that_is_too_large_is_told(tmp_path: Path) -> None:
    (tmp_path / "ds_config.json").write_text(
        '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 1}'
    )
    (tmp_path / "long.py").write_text("# a comment\n" * (MOST_SCRIPT // 20))
    found = memsheet.check(tmp_path, model="llama-3.2-1b", gpus="1xH100-80GB", seq_len=512)
    assert any("long.py" in line for line in found.not_read)


FACTORY_YAML: dict[str, Any] = {
    "model_name_or_path": "meta-llama/Llama-3.2-1B", "stage": "sft", "do_train": True, "finetuning_type": "lora", "lora_rank": 8, "cutoff_len": 512,
    "per_device_train_batch_size": 2, "template": "llama3", "bf16": True, "dataset": "identity", "output_dir": "o",
}  # fmt: skip


@pytest.mark.parametrize("command", ["llamafactory-cli", "lmf", ".venv/bin/llamafactory-cli"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_llama_factorys_command_says_what_its_file_says(command: str, ranks: int, tmp_path: Path) -> None:
    """By a file, by a file with a word over it, and by flags: one question."""
    front = f"FORCE_TORCHRUN=1 NPROC_PER_NODE={ranks} " * (ranks > 1)
    flags = " ".join(f"--{name} {value}" for name, value in FACTORY_YAML.items())
    texts = {
        "job.yaml": json.dumps(FACTORY_YAML), "other.yaml": json.dumps({**FACTORY_YAML, "cutoff_len": 64}), "a.sh": f"{front}{command} train job.yaml\n",
        "b.sh": f"{front}{command} train other.yaml cutoff_len=512\n", "c.sh": f"{front}{command} train {flags}\n",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    found = [
        memsheet.check(tmp_path / name, gpus=f"{ranks}xH100-80GB").answer
        for name in ("job.yaml", "a.sh", "b.sh", "c.sh")
    ]
    assert None not in found
    assert len({(one.verdict.device, one.plan) for one in found if one and one.verdict}) == 1
    assert found[1] is not None
    assert (found[1].plan.training.seq_len, found[1].plan.mesh.data_parallel) == (512, ranks)


@every("text", ["%s ${MORE:-}", "%s ${MORE-}", "MORE=${MORE:-}\n%s $MORE", "MORE=\n%s ${MORE}"])
@every("start", STARTS.values(), ids=STARTS)
def test_a_variable_that_is_empty_where_nobody_sets_it_is_no_word(start: str, text: str) -> None:
    plain, found = first_script_launch(start + GIVEN), first_script_launch(text % (start + GIVEN))
    assert plain is not None
    assert found == plain


def test_a_word_of_blanks_is_a_word() -> None:
    """What a backslash before a comment leaves is one."""
    (words,) = filled_commands("python3 train.py --a 1 \\  # words\n")
    assert words == ["python3", "train.py", "--a", "1", " "]


def test_adapters_of_a_script_that_names_its_model_itself_are_read() -> None:
    start = "accelerate launch tune.py --use_peft --gradient_checkpointing --output_dir out\n"
    reads, _ = recognise_files({"train.sh": start}, ())
    assert 16 in {read.request.get("adapter.rank") for read in reads.values()}


def test_a_script_for_the_trainer_beside_takes_the_trainers_flags(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from dataclasses import dataclass, field\n"
        "from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments\n"
        "@dataclass\nclass Own:\n    model_name: str = field(default='Qwen/Qwen2.5-3B')\n"
        "own, args = HfArgumentParser((Own, TrainingArguments)).parse_args_into_dataclasses()\n"
        "model = AutoModelForCausalLM.from_pretrained(own.model_name)\n"
        "Trainer(model=model, args=args).train()\n"
    )
    (tmp_path / "run.sh").write_text(
        "torchrun --nproc-per-node=2 train.py --model_name Qwen/Qwen2.5-1.5B --max_seq_len 1024 --bf16 "
        '--per_device_train_batch_size 2 --optim adamw_bnb_8bit --fsdp "full_shard auto_wrap"\n'
    )
    found = memsheet.check(tmp_path / "run.sh", gpus="2xH100-80GB")
    assert found.answer is not None
    plan = found.answer.plan
    assert (found.answer.model.name, plan.zero, plan.training.seq_len) == ("qwen2.5-1.5b", 3, 1024)
    assert plan.optimizer.name.value == "adamw_8bit"


def test_a_model_below_a_folder_that_a_variable_names_is_known_by_its_own(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "accelerate launch train.py --model_name_or_path $WORK/models/Llama-3.1-8B --bf16 "
        "--per_device_train_batch_size 1 --max_seq_length 2048 --output_dir $WORK/out\n"
    )
    found = memsheet.check(tmp_path / "run.sh", gpus="8xH100-80GB")
    assert found.answer is not None
    assert found.answer.model.name == "llama-3.1-8b"


BEHIND = """import torch

TEXT = "python other.py --model_name_or_path a/b"
'''
python -i examples/scripts/ppo/ppo.py \\
    --model_name_or_path EleutherAI/pythia-1b-deduped
'''
"""


def test_a_text_behind_the_imports_says_the_command_too() -> None:
    """A text that a name is given is the program's own."""
    assert "pythia-1b" in described_launches(BEHIND, "ppo.py")
    assert described_launches(BEHIND, "other.py") == ""


BY_MODULE = (
    "torchrun --nproc_per_node 8 -m trl.scripts.{} ", "accelerate launch --num_processes 8 -m trl.scripts.{} ", "python3 -u -m trl.scripts.{} ",
    "accelerate launch --module trl.scripts.{} ", "deepspeed --num_gpus 8 --module trl.scripts.{} ", "python -m trl {} ",
)  # fmt: skip


@every("method", ["sft", "dpo", "grpo", "reward", "rloo", "kto"])
@every("start", BY_MODULE)
def test_a_module_is_started_as_its_script(start: str, method: str) -> None:
    words = "--model_name_or_path a/b --per_device_train_batch_size 2\n"
    found = first_script_launch(start.format(method) + words)
    assert found is not None
    assert found.script.endswith((f"trl/scripts/{method}.py", method))
    assert found.arguments == {"model_name_or_path": "a/b", "per_device_train_batch_size": 2}


@pytest.mark.parametrize("start", ["torchrun --nproc_per_node 8 -m mine.train", "python -m mine.train"])
def test_a_module_of_ones_own_is_its_file(start: str) -> None:
    found = first_script_launch(f"{start} --batch_size 4\n")
    assert found is not None
    assert found.script == "mine/train.py"


OTHERS_EXAMPLE = '''"""
```
accelerate launch train.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 16
```
"""
from mine import main
main()
'''


def test_a_command_goes_before_the_example_in_a_scripts_text(tmp_path: Path) -> None:
    own = tmp_path / "trl" / "scripts"
    own.mkdir(parents=True)
    (own / "kto.py").write_text(OTHERS_EXAMPLE.replace("train.py", "trl/scripts/kto.py"))
    (own / "reward.py").write_text("from mine import main\nmain()\n")
    for name in ("kto", "reward"):
        given = "--model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size 2"
        (tmp_path / "run.sh").write_text(
            f"accelerate launch --num_processes 8 trl/scripts/{name}.py {given}\n"
        )
        found = memsheet.check(tmp_path / "run.sh", own / f"{name}.py", gpus="8xA100-80GB")
        assert found.answer is not None
        assert found.answer.model.name == "qwen2.5-0.5b"
        assert not [one for _, one in found.mistakes if "says 16" in str(one)]


def test_what_accelerate_gives_to_torchruns_agent_is_known(tmp_path: Path) -> None:
    """Its own parser has them (accelerate 1.15.0 commands/launch.py:200-350), no file of its settings."""
    given = "--max_restarts 1 --monitor_interval 1 --tee 3 --role r --log_dir l --rdzv_conf a=b"
    (tmp_path / "run.sh").write_text(
        f"accelerate launch --num_processes 8 --num_cpu_threads_per_process 4 --quiet {given} {GIVEN}\n"
    )
    found = memsheet.check(tmp_path / "run.sh", gpus="8xA100-80GB")
    assert found.answer is not None
    assert not [one.says for rule, one in found.mistakes if rule.id == "unknown-key"]
    (tmp_path / "run.sh").write_text(f"accelerate launch --num_processes 8 --tea 3 {GIVEN}\n")
    found = memsheet.check(tmp_path / "run.sh", gpus="8xA100-80GB")
    assert [rule.id for rule, _ in found.mistakes if rule.id == "unknown-key"]
