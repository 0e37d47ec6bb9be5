"""What a batch script's header asks for, held against what its command starts and takes."""

from pathlib import Path

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.report.screen.changes import fix_title
from memsheet.report.screen.checked import launch_reason, render_checked
from memsheet.report.shared.checked import Launch
from memsheet.report.shared.look import Look

TRAIN = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B")
Trainer(model=model, args=TrainingArguments(output_dir="o", per_device_train_batch_size=1, bf16=True, deepspeed="ds.json")).train()
"""
OFFLOADED = """{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
 "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 1}"""


def found_in(folder: Path, *lines: str) -> dict[str, str]:
    """Rules of batch scripts, and of files that disagree, that a script with these lines breaks."""
    (folder / "train.py").write_text(TRAIN)
    (folder / "ds.json").write_text(OFFLOADED)
    (folder / "job.sbatch").write_text("\n".join(("#!/bin/bash", *lines, "")))
    checked = memsheet.check(folder / "job.sbatch", gpus="8xH100-80GB", seq_len=1024)
    told = {rule.id: found.where for rule, found in checked.mistakes}
    assert checked.answer is not None
    assert checked.answer.verdict is not None
    short = "sbatch-host-memory" in told
    assert not short or checked.answer.verdict.result is Result.UNCERTAIN
    assert (checked.answer.verdict.host_short_bytes > 0) is short
    assert ("host memory lacks" in render_checked(checked, Look()).splitlines()[0]) is short
    return {
        rule: where
        for rule, where in told.items()
        if rule in ("sbatch-cards", "sbatch-host-memory", "files-disagree")
    }


RUN = "srun torchrun --nnodes={} --nproc_per_node={} train.py"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (("#SBATCH --nodes=1", "#SBATCH --gres=gpu:8", RUN.format(1, 8)), {}),
        (("#SBATCH -N 1 --gpus-per-node=h100:4", RUN.format(1, 8)), {"sbatch-cards": "job.sbatch:2: --gpus-per-node"}),
        (("#SBATCH --gres=gpu:8", "#SBATCH -N 2", RUN.format(1, 8)), {"sbatch-cards": "job.sbatch:3: -N"}),
        (("#SBATCH --gres=gpu:8", "# no header: -N 2", RUN.format(1, 8)), {}),
        (("#SBATCH --nodes=2 --gres=gpu:8", RUN.format("$SLURM_NNODES", "$SLURM_GPUS_ON_NODE")), {}),
        (("#SBATCH --nodes=2-4 --gres=gpu:8", RUN.format(2, 8)), {}),
        (("#SBATCH -N 1", "#SBATCH --gres=gpu:8 --mem=64G", RUN.format(1, 8)), {"sbatch-host-memory": "job.sbatch:3: --mem"}),
        (("#SBATCH -N 1", "#SBATCH --gres=gpu:8 --mem=65536", RUN.format(1, 8)), {"sbatch-host-memory": "job.sbatch:3: --mem"}),
        (("#SBATCH --gres=gpu:8 --mem=0", RUN.format(1, 8)), {}),
        (("#SBATCH --gres=gpu:8 --mem=1500G", RUN.format(1, 8)), {}),
        (
            ("#SBATCH --gres=gpu:8 --ntasks-per-node=1", "#SBATCH --cpus-per-task=8", "#SBATCH --mem-per-cpu=8G", RUN.format(1, 8)),
            {"sbatch-host-memory": "job.sbatch:4: --mem-per-cpu"},
        ),
    ],
)  # fmt: skip
def test_a_header_and_its_command(tmp_path: Path, lines: tuple[str, ...], told: dict[str, str]) -> None:
    assert found_in(tmp_path, *lines) == told


def test_a_step_that_takes_a_part_of_the_job_is_left_to_the_files(tmp_path: Path) -> None:
    for part in ("--nodes=1", "-N1", "-n 1", "--exclusive \\\n  --ntasks-per-node=1"):
        step = f"srun {part} torchrun --nnodes=1 --nproc_per_node=8 train.py"
        assert "sbatch-cards" not in found_in(tmp_path, "#SBATCH -N 2", "#SBATCH --gres=gpu:8", step)


def test_changes_that_need_more_host_memory_than_is_asked_for_do_not_fit_as_they_are(tmp_path: Path) -> None:
    """States on the host take more than --mem of every list that keeps them there; and what no list changes
    on the cards is why the job does not fit.
    """
    (tmp_path / "train.py").write_text(TRAIN.replace("batch_size=1", "batch_size=16"))
    (tmp_path / "ds.json").write_text(OFFLOADED.replace('_gpu": 1', '_gpu": 16'))
    asks = "#!/bin/bash\n#SBATCH --gres=gpu:8 --mem={}\n" + RUN.format(1, 8) + "\n"
    short = []
    for memory in ("64G", "512G"):
        (tmp_path / "job.sbatch").write_text(asks.format(memory))
        checked = memsheet.check(tmp_path / "job.sbatch", gpus="8xH100-80GB", seq_len=16384)
        assert checked.answer is not None
        assert checked.answer.verdict is not None
        fix = checked.answer.verdict.cheapest_fix
        assert fix is not None
        short.append(fix.host_short_bytes)
        assert max(0, fix.host_bytes * 8 - int(memory[:-1]) * 2**30) == fix.host_short_bytes
        if fix.host_short_bytes:
            assert "once the job asks for" in fix_title(fix, checked.answer)
            reason = launch_reason(Launch(file="job.sbatch", checked=checked))
            assert reason.startswith("more than a GPU gives; ")
            assert "more host memory" in reason
    assert short[0] > 0 == short[1]


def test_cards_that_a_header_asks_for_are_not_processes_that_it_starts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "ds.json").write_text(OFFLOADED)
    (tmp_path / "job.sbatch").write_text(f"#!/bin/bash\n#SBATCH --gres=gpu:4\n{RUN.format(1, 8)}\n")
    checked = memsheet.check(tmp_path / "job.sbatch", gpus="8xH100-80GB", seq_len=1024)
    told = [words for words in checked.assumed if "as the flag says" in words]
    assert told == ["8 GPUs, as the flag says, in place of the 4 that job.sbatch asks for"]
