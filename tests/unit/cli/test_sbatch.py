"""`memsheet sbatch`: what is checked is what would run, and what cannot fit is not submitted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.exchange.shared.sbatch_line import SbatchLine, parse_sbatch_line, script_as_submitted

SCRIPT = """#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gres=gpu:h100:8
srun torchrun --nproc_per_node $SLURM_GPUS_ON_NODE -m trl.scripts.sft --model_name_or_path "${1:-Qwen/Qwen3-0.6B}" \\
  --dataset_name trl-lib/Capybara --max_length 2048 --per_device_train_batch_size 4 --bf16
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script, and a program that stands in for sbatch and says what it was given."""
    stand_in = tmp_path / "bin" / "sbatch"
    stand_in.parent.mkdir()
    stand_in.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/submitted\nexit 3\n')
    stand_in.chmod(0o755)
    (tmp_path / "job.sbatch").write_text(SCRIPT)
    monkeypatch.setenv("PATH", f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def submitted(folder: Path) -> list[str]:
    path = folder / "submitted"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["a.sh"], SbatchLine((), "a.sh", ())),
        (["-N", "2", "--time=1:00", "a.sh", "-x", "y"], SbatchLine(("-N", "2", "--time=1:00"), "a.sh", ("-x", "y"))),
        (["--exclusive", "-W", "-N2", "--gpus", "8", "a.sh"], SbatchLine(("--exclusive", "-W", "-N2", "--gpus", "8"), "a.sh", ())),
    ],
)  # fmt: skip
def test_a_line_is_read_as_sbatch_reads_it(words: list[str], line: SbatchLine) -> None:
    assert parse_sbatch_line(words) == line


@pytest.mark.parametrize("words", [[], ["-N", "2"], ["--wrap=nvidia-smi"], ["-"]])
def test_a_line_without_a_script_is_refused(words: list[str]) -> None:
    with pytest.raises(InputError, match="SCRIPT"):
        parse_sbatch_line(words)


def test_options_of_the_line_stand_above_the_environment_and_both_above_the_script() -> None:
    line = SbatchLine(("--comment", "a b", "-G4", "-p", "long", "--exclusive"), "a.sh", ("a b",))
    made = script_as_submitted("#!/bin/sh\n#SBATCH --gpus=1\ntrue\n", line, {"SBATCH_GPUS": "2"})
    assert made.splitlines()[0] == "set -- 'a b'"
    assert [said for said in made.splitlines() if "SBATCH" in said] == [
        "#SBATCH --gpus=1", "#SBATCH --gpus=2", "#SBATCH --comment=a b", "#SBATCH --gpus=4", "#SBATCH --partition=long", "#SBATCH --exclusive",
    ]  # fmt: skip


def test_what_fits_is_submitted_as_it_was_said_and_sbatchs_end_is_the_commands(
    cluster: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["sbatch", "--", "--time", "1:00", "job.sbatch"]) == 3
    assert submitted(cluster) == ["--time 1:00 job.sbatch"]
    shown = capfd.readouterr()
    assert not shown.out  # sbatch's own
    assert shown.err.startswith("FITS")


def test_what_the_line_gives_is_what_is_checked(cluster: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["sbatch", "--", "--gres=gpu:h100:2", "job.sbatch", "Qwen/Qwen3-8B"]) == 10
    assert submitted(cluster) == []
    said = capfd.readouterr().err
    assert "train qwen3-8b" in said
    assert "2×H100" in said
    assert "--anyway" in said.splitlines()[-1]
    assert main(["sbatch", "--anyway", "--", "--gres=gpu:h100:2", "job.sbatch", "Qwen/Qwen3-8B"]) == 3
    assert submitted(cluster) == ["--gres=gpu:h100:2 job.sbatch Qwen/Qwen3-8B"]


@pytest.mark.parametrize("text", [None, "#!/bin/bash\nhostname\n"])
def test_what_is_not_read_is_not_submitted(cluster: Path, text: str | None) -> None:
    (cluster / "job.sbatch").unlink()
    if text:
        (cluster / "job.sbatch").write_text(text)
    assert main(["sbatch", "job.sbatch"]) == 2
    assert submitted(cluster) == []


def test_sbatchs_own_flags_stand_behind_the_dashes(cluster: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["sbatch", "-N", "2", "job.sbatch"]) == 2
    assert "stand behind --" in capfd.readouterr().err
    assert submitted(cluster) == []


@pytest.mark.usefixtures("cluster")
def test_without_sbatch_nothing_is_checked(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert main(["sbatch", "job.sbatch"]) == 2
    assert "memsheet check job.sbatch" in capfd.readouterr().err


@pytest.mark.parametrize("variable", ["$SLURM_GPUS_ON_NODE", "$SLURM_GPUS_PER_NODE", "${SLURM_GPUS_ON_NODE}"])
def test_variables_that_slurm_gives_are_those_of_the_directives(
    cluster: Path, variable: str, capfd: pytest.CaptureFixture[str]
) -> None:
    text = SCRIPT.replace("$SLURM_GPUS_ON_NODE", variable).replace("--gres=gpu:h100:", "--gpus-per-node=")
    (cluster / "job.sbatch").write_text(text)
    assert main(["check", "job.sbatch", "--gpus", "8xH100-80GB"]) == 0
    assert "nobody set" not in capfd.readouterr().out
