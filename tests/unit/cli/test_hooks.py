"""The hooks and the action for other repositories: they name commands that are there, and do what they say
on a repository's files.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from memsheet.cli.check_each import worst_exit_code
from memsheet.cli.commands import COMMANDS
from memsheet.cli.line import flag_spellings
from memsheet.report.page.formats import FORMATS

ROOT = Path(__file__).parents[3]
HOOKS: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
BY_ID = {hook["id"]: hook for hook in HOOKS}
STEPS = ACTION["runs"]["steps"]
SCRIPT = next(step for step in STEPS if step.get("name") == "Check")
GOOD = '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1}'
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "ds_config_a b.json").write_text(GOOD)
    (tmp_path / "ds_config_$(touch ran).json").write_text(GOOD.replace("2", "3"))
    (tmp_path / "other.json").write_text("{")
    subprocess.run(["git", "-C", str(tmp_path), "add", "."], check=True)
    return tmp_path


@pytest.mark.parametrize("hook", HOOKS, ids=[hook["id"] for hook in HOOKS])
def test_a_hook_names_a_command_that_is_there(hook: dict[str, Any]) -> None:
    assert {"id", "name", "entry", "language", "files"} <= set(hook)
    assert hook["entry"] in ("memsheet check", "memsheet check --each")
    assert "check" in COMMANDS
    assert hook["language"] == "python"


@pytest.mark.parametrize(
    ("path", "taken"),
    [("ds_config.json", True), ("a/ds_config_zero3.json", True), ("accelerate.yaml", True), ("b/accelerate_fsdp.yml", True),
     ("config.json", False), ("ds_config.json.bak", False), ("accelerate.md", False)],
)  # fmt: skip
def test_which_files_are_taken(path: str, taken: bool) -> None:
    assert all(bool(re.search(hook["files"], path)) is taken for hook in HOOKS)
    assert bool(re.search(ACTION["inputs"]["files"]["default"], path)) is taken


def hooked(name: str, folder: Path, *more: str) -> int:
    return subprocess.run(
        [*shlex.split(BY_ID[name]["entry"]), *more],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        check=False,
    ).returncode


def test_each_file_is_a_job_of_its_own(repository: Path) -> None:
    files = [path.name for path in repository.glob("ds_config*")]
    assert hooked("memsheet-check", repository, *files) == 0
    (repository / "ds_config_c.json").write_text("{")
    assert hooked("memsheet-check", repository, "ds_config_c.json", *files) == 2
    assert not (repository / "ran").exists()


def test_arguments_of_a_hook_reach_the_check(repository: Path) -> None:
    job = ("--model", "llama-3.1-70b", "--gpus", "1xA100-80GB", "--seq-len", "512")
    assert hooked("memsheet-check", repository, *job, "ds_config_a b.json") == 10
    assert hooked("memsheet-check-job", repository, *job, "ds_config_a b.json") == 10


def run_action(folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    default = {
        "FILES": ACTION["inputs"]["files"]["default"],
        "MODEL": "",
        "GPUS": "",
        "SEQ_LEN": "",
        "AGAINST": ACTION["inputs"]["against"]["default"],
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
    }
    environment = {**ENVIRONMENT, **default, **inputs}
    return subprocess.run(
        ["bash", "-c", SCRIPT["run"]],
        cwd=folder,
        env=environment,
        capture_output=True,
        check=False,
        text=True,
    )


JOB = {"MODEL": "llama-3.1-70b", "GPUS": "1xA100-80GB", "SEQ_LEN": "512"}


def test_the_action_checks_the_files_of_a_repository(repository: Path) -> None:
    assert run_action(repository).returncode == 0
    assert run_action(repository, **JOB).returncode == 10
    assert run_action(repository, FILES="nothing").returncode == 2
    assert not (repository / "ran").exists()


def test_the_action_annotates_and_tells_what_changed(repository: Path) -> None:
    named = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    file = repository / "ds_config_a b.json"
    for text in (GOOD, GOOD.replace('"stage": 2}', '"stage": 2},\n "bogus": 1')):
        file.write_text(text)
        subprocess.run(
            ["git", "-C", str(repository), *named, "commit", "-aqm", "a", "--allow-empty"], check=True
        )
    done = run_action(repository, **JOB)
    assert done.returncode == 10
    assert "::warning file=ds_config_a b.json,line=2,title=memsheet unknown-key::" in done.stdout
    assert "::error file=ds_config_a b.json,title=memsheet does-not-fit::" in done.stdout
    summary = (repository / "summary.md").read_text()
    assert summary.count("### What changed") == 1
    assert "**THE SAME**" in summary
    assert "New mistakes" in summary
    assert json.loads((repository / "memsheet.sarif").read_text())["version"] == "2.1.0"


def test_flags_of_the_action_are_those_of_the_command() -> None:
    flags = {name for flag in COMMANDS["check"].flags for name, _ in flag_spellings(flag)}
    said = set(
        re.findall(
            r"(?<![\w-])(--[a-z][a-z-]*)",
            "\n".join(re.findall(r"memsheet check .*|form .*|flags\+=.*", SCRIPT["run"])),
        )
    )
    assert {"--each", "--format", "--model", "--against"} <= said <= flags
    forms = set(re.findall(r"\bform (\w+) ", SCRIPT["run"]))
    assert {"github", "sarif", "markdown"} == forms <= FORMATS["check of several"].keys()
    assert "markdown" in FORMATS["check --against"]


def test_no_input_is_text_of_a_script() -> None:
    assert not [step for step in STEPS if "${{" in step.get("run", "")]
    assert all(step["shell"] == "bash" for step in STEPS if "run" in step)


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ((10, 11), 10),
        ((2, 11), 2),
        ((11, 0), 11),
        ((0, 0), 0),
        ((10, 2, 11), 2),
        ((), 0),
        ((70, 2), 70),
        ((0, 130), 130),
    ],
)
def test_the_worst_code_is_no_largest_number(codes: tuple[int, ...], code: int) -> None:
    assert worst_exit_code(codes) == code
    assert worst_exit_code(reversed(codes)) == code


def test_a_hook_takes_a_plan_for_an_argument_and_ends_with_the_worst(repository: Path) -> None:
    plan = {"schema": "memsheet/plan/1", "model": "llama-3.2-1b", "gpus": "8xA100-80GB", "seq_len": 512}
    (repository / "ds_config_plan.json").write_text(json.dumps(plan))
    open_batch = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'
    (repository / "ds_config_open.json").write_text(open_batch)
    sure = GOOD.replace("}, ", '}, "bf16": {"enabled": true}, ')
    (repository / "ds_config_sure.json").write_text(sure)
    (repository / "ds_config_large.json").write_text(sure.replace(": 1}", ": 4096}"))
    named = ("--plan", "ds_config_plan.json")
    assert hooked("memsheet-check", repository, *named, "ds_config_sure.json") == 0
    assert hooked("memsheet-check", repository, *named, "ds_config_open.json", "ds_config_sure.json") == 11
    assert hooked("memsheet-check", repository, *named, "ds_config_large.json", "ds_config_open.json") == 10
