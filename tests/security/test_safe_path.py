"""A folder is a stranger's: a command that is given in it imports nothing that lies there, nor do the
processes that it starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from craft import LLAMA

from memsheet.cli.commands import COMMANDS
from memsheet.trace.parent import ENVIRONMENT, PYTHON, environment_of

ROOT = Path(__file__).parents[2]
MODULES = (
    "numpy", "torch", "yaml", "memsheet", "sitecustomize", "usercustomize", "transformers", "json", "argparse", "resource", "tomllib",
    "matplotlib", "pip", "submitit", "profile",
)  # fmt: skip
"""Modules of ours, of libraries, of Python itself, and two that Python imports unasked."""
STEP = """
import sibling
def build():
    import torch
    held = torch.nn.Linear(sibling.WIDTH, 8)
    optimizer = torch.optim.SGD(held.parameters(), lr=0.1)
    def step():
        held(torch.ones(4, sibling.WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return held, optimizer, step
"""
LIGHT: dict[str, tuple[str, ...]] = {
    "train": ("train", "config.json", "--gpus", "1xH100-80GB", "--seq-len", "32"),
    "infer": ("infer", "config.json", "--gpus", "1xH100-80GB", "--engine", "vllm", "--max-model-len", "32"),
    "plan": (
        "plan",
        "train",
        "config.json",
        "--gpus",
        "2xH100-80GB",
        "--seq-len",
        "32",
        "--global-batch",
        "8",
    ),
    "solve": ("solve", "microbatch", "config.json", "--gpus", "1xH100-80GB", "--seq-len", "32"),
    "export": ("export", "plan.json", "--to", "deepspeed"),
    "check": ("check", "ds_config.json"),
    "check --each": ("check", "--each", "ds_config.json"),
    "check --against": ("check", "ds_config.json", "--against", "config.json"),
    "check as sarif": ("check", "ds_config.json", "--format", "sarif"),
    "compare": ("compare", "sheet.json", "sheet.json"),
    "diagnose": ("diagnose", "sheet.json"),
    "watch": ("watch", "--count", "1", "1"),
    "sbatch": ("sbatch", "job.sbatch"),
    "job": ("job", "trl-grpo", "--model", "config.json", "--gpus", "1xH100-80GB"),
    "explain": ("explain", "saved_activations"),
    "models": ("models",),
    "gpus": ("gpus",),
    "calibrate": ("calibrate", "--from", "record.json"),
    "completion": ("completion", "bash"),
    "web": ("web", "--port", "0", "--check"),
    "mcp": ("mcp",),
    "skill": ("skill", "--install", "skills"),
}
HEAVY: dict[str, tuple[str, ...]] = {"trace of a step": ("trace", "numpy.py:build", "--device", "cpu")}
SLOW: dict[str, tuple[str, ...]] = {
    "trace": ("trace", "config.json", "--seq-len", "16", "--gpus", "1xH100-80GB"),
    "measure": ("measure", "config.json", "--seq-len", "16", "--steps", "1"),
    "verify": ("verify", "fsdp2.json", "--processes", "2"),  # which also measures over ranks, by torchrun
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job's files, and modules that leave a mark when they are imported."""
    for name in MODULES:
        mark = f"open({str(tmp_path / f'{name}.ran')!r}, 'w').close()\n"
        (tmp_path / f"{name}.py").write_text(mark)
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "architectures": ["LlamaForCausalLM"]}))
    plan = {
        "schema": "memsheet/plan/1",
        "task": "train",
        "model": "config.json",
        "seq_len": 16,
        "engine": "deepspeed",
        "gpus": "1xH100-80GB",
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "fsdp2.json").write_text(
        json.dumps({**plan, "engine": "fsdp2", "gpus": "2xH100-80GB", "mesh": {"dp_shard": 2}})
    )
    (tmp_path / "ds_config.json").write_text(
        '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1}'
    )
    (tmp_path / "record.json").write_text("{}")
    return tmp_path


def run(folder: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment |= {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "MEMSHEET_CALIBRATION": str(folder / "calibration.json"),
    }
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def marks(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.ran"))


def test_every_command_is_tried() -> None:
    assert {words[0] for words in (*LIGHT.values(), *HEAVY.values(), *SLOW.values())} == set(COMMANDS)


@pytest.mark.parametrize("words", LIGHT.values(), ids=LIGHT)
def test_a_command_imports_nothing_from_its_folder(words: tuple[str, ...], folder: Path) -> None:
    (folder / "sheet.json").write_text(
        run(folder, [str(Path(sys.executable).parent / "memsheet"), *LIGHT["train"], "--json"]).stdout
    )
    done = run(folder, [str(Path(sys.executable).parent / "memsheet"), *words])
    assert done.returncode in (0, 2, 10, 11), done.stderr
    assert not marks(folder)


@pytest.mark.parametrize(
    "words",
    [*HEAVY.values(), *(pytest.param(words, marks=pytest.mark.slow) for words in SLOW.values())],
    ids=[*HEAVY, *SLOW],
)
def test_nor_do_its_children(words: tuple[str, ...], folder: Path) -> None:
    pytest.importorskip("torch")
    (folder / "sibling.py").write_text("WIDTH = 8\n")
    if (
        "numpy.py:build" in words
    ):  # the step is the person's own, whatever its file is called; what lies beside it is not numpy
        (folder / "numpy.py").write_text(STEP)
    done = run(folder, [str(Path(sys.executable).parent / "memsheet"), *words])
    assert done.returncode in (0, 10, 11), done.stderr
    assert not marks(folder)


def test_as_a_module_only_itself_is_looked_for_in_the_folder(folder: Path) -> None:
    """``python -m memsheet`` finds the package before anything of ours has run; nothing else of the folder is
    found.
    """
    (folder / "memsheet.py").unlink()
    done = run(folder, [sys.executable, "-m", "memsheet", *LIGHT["check"]])
    assert done.returncode == 0, done.stderr
    assert not marks(folder)


def test_the_children_of_children_are_safe_too(folder: Path) -> None:
    child = (
        "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', 'import "
        "usercustomize']).returncode)"
    )
    environment = environment_of({})
    assert ENVIRONMENT["PYTHONSAFEPATH"] == "1"
    subprocess.run([*PYTHON, "-c", child], cwd=folder, env=environment, check=False, capture_output=True)
    assert not marks(folder)


def test_hooks_and_the_action_start_the_installed_command() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert all(hook["entry"].split()[0] == "memsheet" for hook in hooks)
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    assert all(step["env"]["PYTHONSAFEPATH"] == "1" for step in steps if "run" in step)
    scripts = [step.get("run", "") for step in steps]
    assert not [
        line for script in scripts for line in script.splitlines() if "python" in line and " -P " not in line
    ]
