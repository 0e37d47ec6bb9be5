"""What is published says the same everywhere: versions, packages, hashes, the manual page. Workflows take no
more than they need.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import memsheet
from memsheet.catalog import model_names
from memsheet.cli.commands import COMMANDS
from memsheet.cli.completion import SHELLS
from memsheet.exchange.mistakes import SERVED, TRAINING, rules_of_kind
from memsheet.plan.plan import AdapterKind, OptimizerName
from memsheet.plan.verified_families import VERIFIED
from memsheet.readers.registry import FAMILIES

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
sys.path.insert(0, str(PACKAGING))

from man_page import PAGE, man_page  # noqa: E402
from release import locked_packages  # noqa: E402

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LOCKED = {name: (version, hashes) for name, version, hashes in locked_packages()}


def requirement(line: str) -> tuple[str, str]:
    found = re.match(r"([\w.-]+)(.*)", line)
    assert found
    return found[1].lower().replace("_", "-"), found[2]


def test_the_manual_page_is_that_of_the_commands() -> None:
    assert PAGE.read_text() == man_page()


def test_one_version_everywhere() -> None:
    recipe = yaml.safe_load((PACKAGING / "recipe.yaml").read_text())
    assert {memsheet.__version__, PROJECT["version"], recipe["context"]["version"]} == {PROJECT["version"]}


def test_the_recipe_asks_for_what_the_project_asks_for() -> None:
    recipe = yaml.safe_load((PACKAGING / "recipe.yaml").read_text())["requirements"]["run"]
    own = {requirement(line) for line in [*PROJECT["dependencies"], f"python{PROJECT['requires-python']}"]}
    assert {requirement(line.replace(" ", "")) for line in recipe} == own


def test_the_lock_has_every_package_that_is_asked_for_as_it_is_tested() -> None:
    asked = {
        requirement(line)[0] for line in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["web"]]
    }
    assert asked <= LOCKED.keys()
    assert all(hashes for _, hashes in LOCKED.values())
    pins = dict(
        line.lower().split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line
    )
    assert {name: version for name, (version, _) in LOCKED.items() if name in pins} == {
        name: pins[name] for name in LOCKED if name in pins
    }


def test_the_container_runs_as_nobody_with_locked_packages() -> None:
    lines = (PACKAGING / "Containerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER")][-1:] == ["USER 65532:65532"]
    installs = [line for line in lines if " install " in line]
    assert all("--require-hashes" in line or "--no-deps" in line for line in installs)


@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / "action.yml"], ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used = re.findall(r"uses: (\S+)", "\n".join(re.findall(r"(?m)^[^#]*", path.read_text())))
    assert used
    assert not [one for one in used if not re.search(r"@[0-9a-f]{40}$", one)]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_may_read_and_no_more(path: Path) -> None:
    flow = yaml.safe_load(path.read_text())
    assert flow["permissions"] == {"contents": "read"}
    more = {name: job["permissions"] for name, job in flow["jobs"].items() if "permissions" in job}
    assert more in ({}, {"publish": {"id-token": "write"}})
    assert all("timeout-minutes" in job for job in flow["jobs"].values())


def completed(*words: str) -> list[str]:
    line = " ".join(f"'{word}'" for word in words)
    asks = f'COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _memsheet; echo "${{COMPREPLY[@]}}"'
    script = f"{SHELLS['bash']()}\n{asks}"
    done = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True)
    return done.stdout.split()


def test_bash_completes_commands_flags_devices_and_models() -> None:
    assert completed("memsheet", "") == [*COMMANDS]
    assert "--seq-len" in completed("memsheet", "train", "--s")
    assert "8xH100-80GB" in completed("memsheet", "train", "--gpus", "8xH1")
    assert completed("memsheet", "train", "--engine", "megat") == ["megatron"]
    assert "qwen3-8b" in completed("memsheet", "infer", "qwen3-8")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_is_completed_in_every_shell(shell: str) -> None:
    assert all(re.search(rf"\b{name}\b", SHELLS[shell]()) for name in COMMANDS)


COUNTED = {
    r"`memsheet models` lists (\d+)": lambda: len(list(model_names())),
    r"(\d+) families, operation by operation": lambda: len(VERIFIED),
    r"(\d+) model types read from their configuration": lambda: len(FAMILIES),
    r"(\d+) known mistakes": lambda: len(
        {rule.id for kind in (*TRAINING, *SERVED) for rule in rules_of_kind(kind)}
    ),
    r"(\d+) optimizers": lambda: len(OptimizerName),
    r"LoRA and (\d+) further kinds of adapter": lambda: len(AdapterKind) - 1,
}
"""What README counts, and how many there are."""


@pytest.mark.parametrize("said", COUNTED)
def test_the_readme_counts_what_there_is(said: str) -> None:
    found = re.search(said, (ROOT / "README.md").read_text(encoding="utf-8"))
    assert found
    assert int(found[1]) == COUNTED[said]()
