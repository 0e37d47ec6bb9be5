"""What stands around a command, by whom it is started and where: the same job is read."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.errors import InputError
from memsheet.exchange.shared.launched_script import script_launches
from memsheet.exchange.shared.plain_shell import plain_script
from memsheet.questions.recognised_files import recognise_files

MODEL = "meta-llama/Llama-3.2-1B"
TRAIN = f"train.py --model_name_or_path {MODEL} --per-device-train-batch-size=2 --bf16 --block_size 512"
START = f"torchrun --nproc_per_node=8 {TRAIN}"
SERVE = f"vllm serve {MODEL} --tensor-parallel-size 2"
AROUND = {
    "nohup": "nohup {} > log.txt 2>&1 &", "numactl": "numactl --cpunodebind=0 --membind=0 {}", "exec": "exec {}", "time": "time {}",
    "if not": "if ! {}; then echo no; exit 1; fi", "tee": "{} 2>&1 | tee -a log", "out": "{} 2>&1 > log", "both out": "{} &> log &",
    "subshell": "( cd x && {} )", "braces": "{{ {}; }} > log", "timeout": "timeout 3600 {}", "and": "cd x && source y && {}",
    "docker": "docker run --rm --gpus all -v /a:/b img:latest {}", "docker shell": 'docker run --gpus all img bash -c "cd /w && {}"',
    "apptainer": "apptainer exec --nv img.sif {}", "singularity": 'singularity exec --nv img.sif bash -c "{}"',
    "ray": "ray job submit --address http://a --runtime-env x.yaml -- {}", "ssh": 'ssh -p 22 user@host "cd /w && {}"',
    "ssh kept": "ssh host 'source a; nohup {} > log 2>&1 &'", "bash": 'bash -c "{}"', "login bash": "bash -lc '{}'",
    "eval": 'CMD="{}"\neval "$CMD"', "bare eval": 'CMD="{}"\neval $CMD', "variable": 'CMD="{}"\n$CMD &', "tmux": 'tmux new -d -s a "{}"',
    "variable over lines": 'CMD="srun \\\n {}"\necho $CMD\n$CMD 2>&1 | tee log', "list": 'CMD=({})\n"${{CMD[@]}}" &',
    "two variables": 'A="{}"\nB="env X=1 $A"\n$B', "screen": 'screen -dmS a bash -c "{}"', "wrap": 'sbatch --gpus=8 --wrap="{}"', "uv": "uv run {}",
    "poetry": "poetry run {}", "conda": "conda run -n env --no-capture-output {}", "srun": "srun --ntasks-per-node=1 {}", "env": "env A=b {}",
}  # fmt: skip


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("command", [START, SERVE])
def test_a_job_is_read_whatever_stands_around_it(around: str, command: str) -> None:
    reads, _ = recognise_files({"run.sh": AROUND[around].format(command) + "\n"}, ())
    asked = {key: held for read in reads.values() for key, held in read.request.items()}
    assert asked["@model"] == MODEL
    assert (asked["microbatch"], asked["@gpus"]) == (2, 8) if command == START else asked["mesh.tp"] == 2


COUNTED = {
    f"python -u -m torch.distributed.run --nproc_per_node 8 {TRAIN}": 8, f"python -m torch.distributed.launch --nproc_per_node=8 --use_env {TRAIN}": 8,
    f"python3 -m accelerate.commands.launch --num_processes 8 {TRAIN}": 8, f"mpirun -np 4 --hostfile h python {TRAIN}": 4,
    f"python -m accelerate.commands.accelerate_cli launch --num_processes 8 {TRAIN}": 8, f"mpiexec -n 2 python3 {TRAIN}": 2,
    f"torchx run -s local_cwd dist.ddp -j 2x8 --script {TRAIN.replace('.py', '.py --')}": 16, f"CUDA_VISIBLE_DEVICES=0,1 python {TRAIN}": 2,
    f"export CUDA_VISIBLE_DEVICES=0,1,2\npython -W ignore {TRAIN}": 3, f"env CUDA_VISIBLE_DEVICES=0,1 accelerate launch {TRAIN}": 2,
    f"CUDA_VISIBLE_DEVICES=0,1 deepspeed {TRAIN}": 2, f"CUDA_VISIBLE_DEVICES=0,1,2 torchrun --nproc_per_node=gpu {TRAIN}": 3,
    f"CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=1 {TRAIN}": 1,
}  # fmt: skip


@pytest.mark.parametrize("text", COUNTED)
def test_the_processes_are_counted_where_they_are_said(text: str) -> None:
    reads, _ = recognise_files({"run.sh": text + "\n"}, ())
    asked = {key: held for read in reads.values() for key, held in read.request.items()}
    assert (asked["@model"], asked["@gpus"]) == (MODEL, COUNTED[text])


def test_a_module_of_peoples_own_is_a_script() -> None:
    (found,) = script_launches("python -m mine.train --batch_size 4\npython -m pip install --upgrade x\n")
    assert (found.script, found.arguments) == ("mine/train.py", {"batch_size": 4})


def test_what_is_printed_and_not_run_starts_nothing() -> None:
    text = 'NOTE="to train run it"\necho "$NOTE"\n'
    assert plain_script(text).text == text


OLDER_TRAINER = (
    "../train_sft.py --pretrain meta-llama/Llama-3.1-8B --max_len 2048 --train_batch_size 64 "
    "--micro_train_batch_size 2 --zero_stage 2 --bf16"
)
LAUNCHED_FILES = {
    "python": "python {}", "deepspeed": "deepspeed {}", "its flags": "deepspeed --num_gpus 8 {}", "torchrun": "torchrun --nproc_per_node 8 {}",
    "accelerate": "accelerate launch {}", "read into": "read -r -d '' words <<EOF\n{}\nEOF\nif [[ $1 != x ]]; then\n  deepspeed $words\nfi",
}  # fmt: skip


@pytest.mark.parametrize("launch", LAUNCHED_FILES)
def test_a_program_by_its_file_is_started_by_any_launcher(launch: str) -> None:
    reads, _ = recognise_files({"run.sh": LAUNCHED_FILES[launch].format(OLDER_TRAINER) + "\n"}, ())
    trained = [read for read in reads.values() if read.form.name == "openrlhf"]
    assert [read.request["@model"] for read in trained] == ["meta-llama/Llama-3.1-8B"]


def test_a_program_that_another_is_given_is_not_started() -> None:
    with pytest.raises(InputError, match="not recognised"):
        recognise_files({"run.sh": f"deepspeed mine.py {OLDER_TRAINER}\n"}, ())


# ---- a script's own division, whatever starts its processes --------------------

HEAD = """\
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype=torch.bfloat16{loads})
{wraps}
optimizer = torch.optim.AdamW(model.parameters())
for batch in loader:
    model(**batch).loss.backward()
    optimizer.step()
"""
OWN_DIVISION = {
    "fully_shard(model)": ("fsdp2", 3),
    "model = FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)": ("fsdp1", 2),
    "model = FullyShardedDataParallel(model)": ("fsdp1", 3),
    "model, *_ = deepspeed.initialize(model=model, config={'zero_optimization': {'stage': 2}})": ("deepspeed", 2),
    "model = DDP(model)": ("transformers", 0),
}  # fmt: skip
PROCESS_STARTS = (
    "torchrun --nnodes 4 --nproc_per_node 8 {}", "python -m torch.distributed.run --nproc_per_node 8 {}", "srun torchrun --nproc_per_node 8 {}",
    "accelerate launch --num_processes 8 {}", "accelerate launch --multi_gpu --num_processes 8 {}", "deepspeed --num_gpus 8 {}", "python {}",
)  # fmt: skip


def loop_text(wraps: str = "", loads: str = "", head: str = HEAD) -> str:
    return head.format(wraps=wraps, loads=loads)


@pytest.mark.parametrize("start", PROCESS_STARTS)
@pytest.mark.parametrize("wraps", OWN_DIVISION)
def test_a_launcher_leaves_a_scripts_own_division_as_it_is(tmp_path: Path, start: str, wraps: str) -> None:
    """Nothing that starts the processes divides a model that the script wraps itself."""
    text = loop_text(wraps).replace("from accelerate import Accelerator\n", "")
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "run.sh").write_text(start.format("train.py --batch_size 2") + "\n")
    alone = recognise_files({"train.py": text}, ())[0]["train.py"].request
    started = recognise_files({"run.sh": start.format("train.py")}, (), scripts={"train.py": text})[0]
    found = next((read for name, read in started.items() if name.endswith("train.py")), None)
    assert found is not None
    assert (
        (found.request["engine"], found.request["zero"])
        == (alone["engine"], alone["zero"])
        == OWN_DIVISION[wraps]
    )
    checked = memsheet.check(tmp_path / "run.sh", gpus="8xA100-80GB", seq_len=1024)
    assert not any("disagree" in rule.id for rule, _ in checked.mistakes)
    if wraps != "model = FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)":
        assert checked.answer is not None
        assert (checked.answer.plan.engine, int(checked.answer.plan.zero)) == OWN_DIVISION[wraps]


def test_a_launcher_makes_copies_of_what_divides_nothing() -> None:
    reads, _ = recognise_files(
        {"run.sh": "torchrun --nproc_per_node 8 train.py\n"}, (), scripts={"train.py": loop_text()}
    )
    (found,) = (read for name, read in reads.items() if name.endswith("train.py"))
    assert (found.request["engine"], found.request["zero"]) == ("transformers", 0)


UNREAD_DIVISION = {
    "a plugin": ("driver = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())", ""),
    "DeepSpeed's plugin": ("driver = Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=3))", ""),
    "a plan of the loading call": ("", ', tp_plan="auto"'),
    "another package": ("from mine import divided\nmodel = divided(model)", ""),
    "of several results": ("import mine\nmodel, mesh = mine.divided(model, 8)", ""),
}


@pytest.mark.parametrize("how", UNREAD_DIVISION)
@pytest.mark.parametrize("start", ["torchrun --nproc_per_node 8", "python"])
def test_what_may_divide_the_model_unread_is_no_sure_failure(tmp_path: Path, how: str, start: str) -> None:
    wraps, loads = UNREAD_DIVISION[how]
    (tmp_path / "train.py").write_text(loop_text(wraps, loads).replace("0.5B", "32B"))
    (tmp_path / "run.sh").write_text(f"{start} train.py\n")
    found = memsheet.check(tmp_path / "run.sh", gpus="8xA100-80GB", seq_len=1024, microbatch=1)
    assert found.result is Result.UNCERTAIN
    assert "other_strategy" in str(found.doubt)


@pytest.mark.parametrize(
    "wraps", ["model = torch.compile(model)", "model = get_peft_model(model, LoraConfig(r=8))"]
)
def test_known_calls_divide_nothing(tmp_path: Path, wraps: str) -> None:
    text = loop_text(f"from peft import LoraConfig, get_peft_model\n{wraps}")
    (tmp_path / "train.py").write_text(text)
    found = memsheet.check(tmp_path / "train.py", gpus="1xA100-80GB", seq_len=1024, microbatch=1)
    assert "other_strategy" not in str(found.doubt)
