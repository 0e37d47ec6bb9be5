"""What stands around a command, by whom it is started and where: the same job is read."""

from __future__ import annotations

import pytest

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
