"""Every file is opened by ``guard``, and what a command reads of all its files is one amount."""

from __future__ import annotations

import ast
import gzip
import io
import json
import sys
from pathlib import Path

import pytest
from craft import LLAMA
from fuzzing import documents

from memsheet.cli import main
from memsheet.errors import InputError
from memsheet.guard import parse_json, read_bytes, spending
from memsheet.guard.spending import of_one_command
from parsed_files import PACKAGE, files_with

OPENS = {"open", "read_text", "read_bytes", "load", "fdopen", "safe_open", "safe_load"}
"""Names of calls that open or read a file."""
ELSEWHERE = {
    "catalog/__init__.py": "the package's own tables",
    "catalog/cards.py": "the package's own tables",
    "catalog/instances.py": "the package's own tables",
    "exchange/formats/torchtune/shipped.py": "the package's own tables",
    "trace/child.py": "what the parent process wrote",
    "trace/recordings/worker.py": "what the parent process wrote",
    "trace/launch.py": "what its own children wrote, and where they run",
    "trace/parent.py": "what its own child wrote, and /proc",
    "measure/environment.py": "/proc",
    "measure/watch.py": "/proc",
    "measure/snapshot.py": "what this process writes",
    "run/data.py": "a person's own text, with its own limit, in the child that trains on it",
    "report/shared/files.py": "what is written",
    "cli/skill.py": "the package's own text",
    "cli/__init__.py": "streams that lead nowhere",
    "cli/screen.py": "streams that lead nowhere",
    "cli/error_output.py": "streams that lead nowhere",
    "cli/progress.py": "what its own child wrote",
    "processes.py": "what its own copies wrote",
    "cli/web.py": "the browser, at our own address",
    "web/searches.py": "what the parent process wrote",
    "web/materials.py": "files of the interpreter that it names",
    "web/site.py": "the package's own files, and those of the interpreter",
}
"""Modules outside guard that may, and what they read: nothing that a stranger wrote."""


def _is_ours(held: ast.expr) -> bool:
    """Whether a ``load`` is of an object of our own, not of a library that reads files."""
    return not (
        isinstance(held, ast.Name)
        and held.id in ("json", "yaml", "tomllib", "pickle", "marshal", "torch", "numpy", "np")
    )


def opened(file: Path) -> set[str]:
    """Names of calls that open a file, of modules and of paths; those imported from guard are guard's."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    ours = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("memsheet")
        for alias in node.names
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in OPENS - own - ours:
                found.add(called.id)
            if (
                isinstance(called, ast.Attribute)
                and called.attr in OPENS
                and not (called.attr == "load" and _is_ours(called.value))
            ):
                found.add(called.attr)
            if isinstance(called, ast.Attribute) and called.attr == "read" and "stdin" in ast.dump(called):
                found.add("stdin.read")
    return found


def test_nothing_outside_guard_opens_a_file() -> None:
    places = {
        str(file.relative_to(PACKAGE)): names
        for file in files_with((*OPENS, "stdin"))
        if (names := opened(file))
    }
    strange = {
        place: names
        for place, names in places.items()
        if place not in ELSEWHERE and not place.startswith("guard/")
    }
    assert not strange


def test_the_rule_sees_an_open_file(tmp_path: Path) -> None:
    for text in (
        "open('a')",
        "Path('a').read_text()",
        "json.load(f)",
        "os.fdopen(1)",
        "sys.stdin.buffer.read(3)",
        "yaml.safe_load(x)",
    ):
        (tmp_path / "a.py").write_text(text)
        assert opened(tmp_path / "a.py"), text
    (tmp_path / "a.py").write_text("from memsheet.guard import read_bytes\nread_bytes(path, 3)")
    assert not opened(tmp_path / "a.py")


COMMANDS = {
    "train": ("train", "config.json", "--seq-len", "64", "--gpus", "1xL4"),
    "train a plan": ("train", "--plan", "plan.json"),
    "train on a cluster": ("train", "llama-tiny", "--seq-len", "64", "--cluster", "cluster.toml"),
    "infer": ("infer", "config.json", "--gpus", "1xL4", "--max-model-len", "64"),
    "infer lengths": (
        "infer",
        "llama-tiny",
        "--gpus",
        "1xL4",
        "--engine",
        "vllm",
        "--max-model-len",
        "2048",
        "--lengths",
        "lengths.txt",
    ),
    "plan": ("plan", "infer", "config.json", "--gpus", "1xL4", "--context", "64", "--users", "1"),
    "solve": (
        "solve",
        "sequences",
        "config.json",
        "--gpus",
        "1xL4",
        "--engine",
        "vllm",
        "--max-model-len",
        "64",
    ),
    "export": ("export", "plan.json", "--to", "deepspeed"),
    "check": ("check", "job"),
    "verify": ("verify", "plan.json"),
    "calibrate": ("calibrate", "--from", "record.json"),
    "compare": ("compare", "sheet.json", "served.json"),
    "a sheet from a pipe": ("compare", "-", "served.json"),
    "a plan from a pipe": ("export", "-", "--to", "deepspeed"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_spends_of_one_amount(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for file, content in documents().items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEMSHEET_CALIBRATION", str(tmp_path / "kept.json"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(documents()["plan.json"])))
    with of_one_command(most_bytes=8):
        assert main(COMMANDS[name]) == 2
    said = capsys.readouterr().err
    assert "bytes that one command reads of all its files" in said


def test_files_add_up_and_the_same_one_counts_once(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(b"x" * 600)
    with of_one_command(most_bytes=1000) as spent:
        for _ in range(5):
            read_bytes(tmp_path / "a", 1000)
        assert spent.bytes.left == 400
        with (
            of_one_command(most_bytes=10**9),
            pytest.raises(InputError, match="bytes that one command reads"),
        ):
            read_bytes(tmp_path / "b", 1000)
    read_bytes(tmp_path / "b", 1000)


def test_values_add_up_too() -> None:
    with of_one_command(most_values=100) as spent:
        for _ in range(5):
            parse_json("[" + "1," * 59 + "1]", "a")
        assert 30 <= spent.values.left <= 50
        with pytest.raises(InputError, match="values that one command builds"):
            parse_json("[" + "1," * 59 + "1]", "b")


def test_compressed_text_counts_as_what_it_comes_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_bytes(gzip.compress(json.dumps({"a": " " * 100_000}).encode()))
    with of_one_command(most_bytes=50_000):
        assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "a.json")]) == 2
    assert "bytes that one command reads" in capsys.readouterr().err


def test_the_amounts_leave_room_for_the_largest_model() -> None:
    from memsheet.readers.safetensors import MAX_INDEX_BYTES, MOST_HEADERS_BYTES

    assert MAX_INDEX_BYTES + MOST_HEADERS_BYTES + len(json.dumps(LLAMA)) <= spending.MOST_BYTES
