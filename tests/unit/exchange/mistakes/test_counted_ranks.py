"""How many ranks a job has: by its files where only a card is named, and by the tasks that Slurm starts."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.exchange.shared.slurm_environment import tasks_of_step
from memsheet.report.shared.checked import Checked

TRAIN = (
    "train.py --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 1 --bf16 True --output_dir o"
)
TRL = "trl sft --model_name_or_path Qwen/Qwen3-8B --max_length 512 --dataset_name d --output_dir o"
MEGATRON = (
    "pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 32 --hidden-size 4096 "
    "--ffn-hidden-size 14336 --num-attention-heads 32 --swiglu --seq-length 4096 "
    "--max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 256 "
    "--vocab-size 32000 --bf16 --use-distributed-optimizer"
)
HEADER = "#!/bin/bash\n#SBATCH --nodes=8\n#SBATCH --gres=gpu:h100:8\n"


def count(found: Checked) -> int:
    assert found.answer is not None, found.why_not
    assert found.answer.cluster is not None
    return found.answer.cluster.count


def checked(folder: Path, name: str, text: str, gpus: str | None) -> Checked:
    (folder / name).write_text(text)
    return memsheet.check(str(folder / name), gpus=gpus, seq_len=512)


@pytest.mark.parametrize(("name", "text", "ranks"), [
    ("run.sh", f"torchrun --nproc_per_node 8 {TRAIN}\n", 8),
    ("run.sh", f"torchrun --nnodes 4 --nproc_per_node 8 {TRAIN}\n", 32),
    ("run.sh", f"accelerate launch --num_processes 4 {TRAIN}\n", 4),
    ("run.sh", f"deepspeed --num_gpus 4 {TRAIN}\n", 4),
    ("run.sh", f"mpirun -np 16 python {TRAIN}\n", 16),
    ("run.sbatch", f"#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nsrun torchrun --nnodes 4 --nproc_per_node 8 {TRAIN}\n", 32),
    ("run.sh", f"{TRL} --num_processes 2\n", 2),
    ("serve.sh", "vllm serve Qwen/Qwen3-8B -tp 4\n", 4),
    ("run.sh", f"python {TRAIN}\n", 1),
])  # fmt: skip
def test_a_card_without_a_number_is_as_many_as_the_files_say(
    name: str, text: str, ranks: int, tmp_path: Path
) -> None:
    assert count(checked(tmp_path, name, text, "H200")) == ranks
    assert count(checked(tmp_path, name, text, f"{ranks}xH200")) == ranks


@pytest.mark.parametrize(("more", "step", "ranks"), [
    ("#SBATCH --ntasks-per-node=8\n", "srun", 64),
    ("#SBATCH --ntasks=64\n", "srun --label", 64),
    ("#SBATCH --ntasks-per-node=8\n", "srun -N 2", 16),
    ("", "srun -N 4 --ntasks-per-node=4", 16),
    ("", "srun -N 1 -n 8", 8),
    ("#SBATCH --ntasks-per-node=8\n", "srun bash -c 'RANK=$SLURM_PROCID exec", 64),
    ("#SBATCH --ntasks-per-node=1\n", "srun", 64),
])  # fmt: skip
def test_a_task_of_a_step_is_a_rank(more: str, step: str, ranks: int, tmp_path: Path) -> None:
    closing = "'" if "'" in step else ""
    text = f"{HEADER}{more}{step} python {MEGATRON}{closing}\n"
    assert count(checked(tmp_path, "job.slurm", text, None)) == ranks


def test_a_launcher_in_a_step_counts_itself() -> None:
    header = f"{HEADER}#SBATCH --ntasks-per-node=8\n"
    assert tasks_of_step(f"{header}srun python train.py\n") == (64, 8)
    for launch in ("torchrun --nproc_per_node 8", "accelerate launch", "python -m torch.distributed.run"):
        assert tasks_of_step(f"{header}srun {launch} train.py\n") is None
    assert tasks_of_step(f"{header}srun ./warm_up\n") is None
    assert tasks_of_step("#SBATCH --nodes=2-4\nsrun python train.py\n") is None


TOML = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 2048\n'


@pytest.mark.parametrize("flag", ["--job.config_file llama.toml", "--job.config_file=./llama.toml"])
def test_the_file_of_torchtitan_is_read_by_its_flag(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("llama.toml").write_text(TOML)
    Path("run.sh").write_text(
        f"torchrun --nproc_per_node 8 -m torchtitan.train {flag} --training.local_batch_size 2\n"
    )
    found = memsheet.check("run.sh", gpus="H100-80GB")
    assert count(found) == 8
    assert found.answer is not None
    assert found.answer.plan.training.microbatch == 2
    assert found.answer.plan.training.seq_len == 2048
