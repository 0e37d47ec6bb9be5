"""Every command that README and the pages show is one that memsheet has, and answers."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from laws import every
from memsheet.cli import main
from memsheet.cli.commands import COMMANDS
from memsheet.cli.line import parse_command_line

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
FENCED = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LEFT_OPEN = re.compile(r"…|\.\.\.|\b[A-Z]{4,}\b|\[|<")


def documented_lines() -> Iterator[tuple[str, str]]:
    """Commands with their page; those that leave something open are a reader's to fill in."""
    for page in PAGES:
        for block in FENCED.findall(page.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                for command in re.split(r" \| |\s{3,}|&&", line.partition(" #")[0].removeprefix("$ ")):
                    if command.strip().startswith("memsheet ") and not LEFT_OPEN.search(command):
                        yield page.relative_to(ROOT).as_posix(), " ".join(command.split())


LINES = sorted(set(documented_lines()))
QUICK = ("train", "infer", "check", "explain", "gpus", "models")
"""Commands that answer within a second."""
WRITTEN = ("run/", "--against")
"""What earlier lines of a page write, and what needs a repository."""
BROKEN = "examples/broken"
"""Files that do not start, and are shown for that."""


def documented() -> list[str]:
    return sorted(
        {line for _, line in LINES if line.split()[1] in QUICK and not any(each in line for each in WRITTEN)}
    )


def test_the_search_finds_the_pages() -> None:
    assert {page for page, _ in LINES} >= {"README.md", "docs/guides/plan.md", "docs/guides/serve.md"}
    assert len(documented()) > 10


@every("page, line", LINES)
def test_every_flag_of_a_page_is_one(page: str, line: str) -> None:
    del page
    _, name, *words = shlex.split(line.partition(" > ")[0])
    parse_command_line(COMMANDS[name], words)


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader stands who has written the files that the pages show."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copy(ROOT / "tests/wild_configs/ve-grpo-qwen3-8b.sh", tmp_path / "run_qwen3-8b.sh")
    for name, text in shown_files():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "node.toml").write_text('device = "H100-80GB"\ncount = 8\n', encoding="utf-8")
    (tmp_path / "serve.sh").write_text("vllm serve llama-3.1-8b --max-model-len 8192\n", encoding="utf-8")
    (tmp_path / "ds_config.json").write_text('{"zero_optimization": {"stage": 2}}', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown_files() -> Iterator[tuple[str, str]]:
    """Files whose first line names them."""
    for page in PAGES:
        for block in FENCED.findall(page.read_text(encoding="utf-8")):
            if found := re.match(r"# ([\w./-]+\.\w+)\n", block):
                yield found[1], block


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("line", documented())
def test_a_pages_command_answers(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(shlex.split(line.partition(" > ")[0])[1:])
    assert code in ((10,) if BROKEN in line else (0, 10, 11)), capsys.readouterr().err
