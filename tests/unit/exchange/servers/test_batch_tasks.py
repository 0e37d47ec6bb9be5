"""Servers that batch scripts and tasks start, and shells inside of commands."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.servers import servers_in_text
from memsheet.exchange.shared.device_labels import named_card
from memsheet.exchange.shared.here_documents import here_documents
from memsheet.exchange.shared.slurm_environment import submitted_variables
from memsheet.guard import parse_yaml
from memsheet.questions.recognised_files import PARSERS

LINE = "vllm serve Qwen/Qwen3-8B --max-model-len 4096 --tensor-parallel-size 2"
SBATCH = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gres=gpu:2\n{}\n"
TASK = """resources: {{accelerators: {}}}
envs: {{MODEL_NAME: Qwen/Qwen3-8B}}
setup: |
  uv pip install vllm==0.11.0
run: |
  vllm serve $MODEL_NAME --tensor-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE --max-model-len 4096
"""


def test_a_batch_script_that_serves_is_the_servers_command() -> None:
    for line in (f"srun {LINE}", f'srun bash -c "set -e; {LINE}"', f"apptainer exec x.sif {LINE}"):
        found = read_text("a.sbatch", SBATCH.format(line), PARSERS)
        assert (found.form.name, found.request["mesh.tp"], found.unmodelled) == ("vllm", 2, ())


def test_a_batch_script_that_trains_stays_one() -> None:
    text = SBATCH.format(f"srun torchrun --nproc-per-node 2 train.py &\n{LINE}")
    assert read_text("a.sbatch", text, PARSERS).form.name == "slurm"
    assert read_text("a.sbatch", SBATCH.format("srun bash vllm.sh"), PARSERS).form.name == "slurm"


def test_a_task_that_serves_has_its_environment_and_cards() -> None:
    found = read_text("a.yaml", TASK.format("H100:2"), PARSERS)
    assert (found.form.name, found.request["@model"], found.request["mesh.tp"]) == (
        "vllm",
        "Qwen/Qwen3-8B",
        2,
    )
    assert (found.request["engine_version"], found.unmodelled) == ("0.11.0", ())
    (open_,) = servers_in_text("a.yaml", TASK.format("{H100: 2, A100: 2}"), parse_yaml)
    assert open_.gpus is None
    for choice in ("{H100:1, A100-80GB:2}", "[A100-80GB:2, H100]"):
        least = read_text("a.yaml", TASK.format(choice), PARSERS)
        assert (least.request["mesh.tp"], least.unmodelled) == (1, ())
        assert any("SKYPILOT_NUM_GPUS_PER_NODE is taken as 1, the fewest" in one for one in least.assumed)


def test_a_container_that_runs_a_shell_is_read_by_what_the_shell_runs() -> None:
    text = f"docker run --gpus all vllm/vllm-openai:v0.11.0 bash -c 'pip list && {LINE}'\n"
    found = read_text("a.sh", text, PARSERS)
    assert (found.request["@model"], found.unmodelled) == ("Qwen/Qwen3-8B", ())


def test_texts_that_a_script_writes() -> None:
    text = "cat > ./a.yml <<EOF\nx: 1\ny: 2\nEOF\ncat <<'END' | tee /b/c.yaml\nz\nEND\necho\n"
    assert here_documents(text) == {"a.yml": "x: 1\ny: 2", "c.yaml": "z"}
    assert here_documents("cat <<EOF\nx\n") == {}


@pytest.mark.parametrize(
    ("directives", "stages"),
    [
        ("--nodes=2 --gpus-per-node=8", "$SLURM_JOB_NUM_NODES"),
        ("-N 2 --gres=gpu:h100:8", "${SLURM_NNODES}"),
        ("-N2 --ntasks-per-node=8", "$((SLURM_NTASKS / 8))"),
        ("--gpus-per-node 2", "$SLURM_GPUS_PER_NODE"),
        ("--gpus=2", "$SLURM_GPUS"),
    ],
)
def test_slurm_gives_its_variables_by_what_the_header_asks_for(directives: str, stages: str) -> None:
    text = f"#!/bin/bash\n#SBATCH {directives}\nvllm serve a/b -tp 8 --pipeline-parallel-size {stages}\n"
    found = read_text("a.sbatch", text, PARSERS)
    short = directives == "--gpus-per-node 2"  # of one node, and 16 ranks
    assert (found.request["mesh.pp"], len(found.unmodelled)) == (2, short)


def test_a_range_of_nodes_gives_none() -> None:
    assert "NNODES" not in "".join(submitted_variables(["#SBATCH -N 1-4", "#SBATCH --gpus-per-node=8"]))


def test_a_degree_that_nobody_set_is_no_sure_refusal(tmp_path: Path) -> None:
    file = tmp_path / "serve.sh"
    file.write_text(
        "vllm serve meta-llama/Llama-3.1-405B-Instruct -tp 8 -pp $(nnodes) --max-model-len 8192\n"
    )
    few, more = (memsheet.check(file, gpus=f"{count}xH100-80GB") for count in (8, 16))
    assert few.result is more.result is Result.UNCERTAIN
    assert more.answer is not None
    assert int(more.answer.plan.mesh.pp) == 2


@pytest.mark.parametrize(
    "client", ["python eval.py --base-url x", "srun python client.py", "python -u bench.py &"]
)
def test_a_server_in_the_background_is_the_job_of_a_batch_script(client: str) -> None:
    found = read_text("a.sbatch", SBATCH.format(f"{LINE} &\nsleep 60\n{client}"), PARSERS)
    assert (found.form.name, found.request["@model"], found.unmodelled) == ("vllm", "Qwen/Qwen3-8B", ())
    for script in ("train.py", "grpo.py", "run_sft.py"):
        text = SBATCH.format(f"{LINE} &\npython {script} --batch_size 4")
        assert read_text("a.sbatch", text, PARSERS).form.name == "slurm"


TARGETS = {
    "Makefile": "MODEL ?= Qwen/Qwen3-8B # 8B\nTP := 2\nserve:\n\t@vllm serve $(MODEL) \\\n\t  -tp ${TP}\n",
    "GNUmakefile": "MODEL = Qwen/Qwen3-8B\nall:\n\techo $$HOME\nserve:\n\tvllm serve $(MODEL) -tp 2\n",
    "justfile": 'model := "Qwen/Qwen3-8B"\nserve:\n    vllm serve {{ model }} -tp 2\n',
    "serve.ps1": "docker run `\n  vllm/vllm-openai:v0.11.0 `\n  --model Qwen/Qwen3-8B `\n  -tp 2\n",
}


@pytest.mark.parametrize("name", TARGETS)
def test_targets_have_their_files_variables(name: str) -> None:
    found = read_text(name, TARGETS[name], PARSERS)
    assert (found.request["@model"], found.request["mesh.tp"], found.unmodelled) == ("Qwen/Qwen3-8B", 2, ())
    assert any("MODEL is taken as its default" in one for one in found.assumed) is (name == "Makefile")


def test_each_target_that_serves_is_a_server_of_its_own() -> None:
    text = "serve:\n\tvllm serve a/b\nbig:\n\tvllm serve a/c -tp 8\nclean:\n\trm -r x\n"
    assert [one.name for one in servers_in_text("Makefile", text, parse_yaml)] == ["serve", "big"]


@pytest.mark.parametrize(
    ("text", "card"),
    [
        ("resources:\n  accelerators: {H100:1, A100-80GB:2}\n", "H100-80GB"),
        ("resources:\n  accelerators: {H100: 4, L4: 1}\n", "L4"),
        ("resources:\n  accelerators: [A100-80GB:2, H100]\n", "H100-80GB"),
        ("gpu:\n  count: 1\n  type: nvidia-a10g\n", "A10G"),
        ("gpu: {type: nvidia-l4, count: 1}\n", "L4"),
        ("gpu:\n  type: nothing-known\n", None),
        ("accelerators: {H100: 1, nonsense: 2}\n", None),
    ],
)
def test_a_file_names_its_cards_and_of_a_choice_the_least(text: str, card: str | None) -> None:
    found = named_card([text])
    assert (found and found.card) == card


CARDS = {
    "--gpus-per-node=1\n#SBATCH --nodes=1": (LINE, "stops"),
    "--gres=gpu:a100:1": (LINE, "stops"),
    "--gpus-per-node=2\n#SBATCH -N 1": (LINE, "fits"),
    "--gpus=1": (LINE, "fits"),  # on as many nodes as Slurm takes
    "--nodes=2\n#SBATCH --gpus-per-node=1": (LINE, "uncertain"),
    "--nodes=2 --gpus-per-node=1": (f"ray start --head\n{LINE}", "fits"),
    # the named cards are of one node
    "-N 2 --gpus-per-node=1": (f"srun {LINE} --nnodes 2 --master-addr $HEAD", "uncertain"),
}


@pytest.mark.parametrize("directive", CARDS)
def test_more_ranks_than_a_job_has_cards_are_told_where_they_are_sure(directive: str, tmp_path: Path) -> None:
    line, told = CARDS[directive]
    (tmp_path / "a.sbatch").write_text(f"#!/bin/bash\n#SBATCH {directive}\n{line}\n")
    found = memsheet.check(str(tmp_path / "a.sbatch"), gpus="H100-80GB")
    assert found.stops is (told == "stops")
    assert found.result is (Result.FITS if told == "fits" else Result.UNCERTAIN)
