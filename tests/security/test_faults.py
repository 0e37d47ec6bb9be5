"""A command that ends at any instant leaves every file as it was or as it was to be: killed, interrupted,
on a disk that is full, without a home.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import fuzzing
import pytest

from memsheet.cli import main
from memsheet.report.shared.exit_codes import BAD_INPUT

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="an end is tried in a process of its own")
WRITES = ("os.rename", "os.remove", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
MOST_INSTANTS = 60
COMMANDS: dict[str, tuple[str, ...]] = {
    "export": ("export", "plan.json", "--to", "accelerate,torchrun", "--out", "run", "--force"),
    "calibrate": ("calibrate", "--from", "record.json"),
    "skill": ("skill", "--install", "skills"),
}  # fmt: skip


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("plan.json", "record.json"):
        (tmp_path / name).write_bytes(fuzzing.documents()[name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEMSHEET_CALIBRATION", str(tmp_path / "kept" / "calibration.json"))
    return tmp_path


def in_a_process(run: Callable[[], int]) -> int:
    """Its exit code, or the signal that ended it as a number below zero."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            with open(os.devnull, "w") as nowhere:  # noqa: PTH123
                sys.stdout = sys.stderr = nowhere
                code = run()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def ending_at(instant: int, words: tuple[str, ...], end: Callable[[], Any]) -> int:
    """A command that ends before its writing event number ``instant``; 77 where it has not so many."""

    def run() -> int:
        met = [0]

        def hear(event: str, details: tuple[Any, ...]) -> None:
            flags = details[2] if event == "open" and len(details) > 2 and isinstance(details[2], int) else 0
            if event in WRITES or flags & (os.O_WRONLY | os.O_RDWR):
                met[0] += 1
                if met[0] == instant:
                    end()

        sys.addaudithook(hear)
        code = main(words)
        return 77 if met[0] < instant else code

    return in_a_process(run)


def contents(folder: Path) -> dict[str, bytes]:
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("there", [False, True], ids=["anew", "over what is there"])
@pytest.mark.parametrize("end", [kill, interrupt])
@pytest.mark.parametrize("name", COMMANDS)
def test_files_are_as_they_were_or_as_they_were_to_be(
    name: str, end: Callable[[], None], there: bool, job: Path
) -> None:
    words, before = COMMANDS[name], contents(job)
    assert in_a_process(lambda: main(words)) in (0, 10, 11)
    whole = contents(job)
    written = whole.keys() - before.keys()
    assert written
    old = {path: b"old\n" if name not in ("calibrate", "export") else whole[path] for path in written}
    for instant in range(1, MOST_INSTANTS):
        for path in written:
            (job / path).unlink(missing_ok=True)
            if there:
                (job / path).write_bytes(old[path])
        code = ending_at(instant, words, end)
        left = contents(job)
        own = {path: left.get(path) for path in written}
        for path, content in own.items():
            assert content in (whole[path], old[path] if there else None), (instant, path)
        if end is interrupt:
            assert not left.keys() - whole.keys(), instant
        for path in left.keys() - whole.keys():
            (job / path).unlink()
        if code == 77:
            return
    raise AssertionError("more instants than were tried")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_is_said_and_leaves_what_was_there(name: str, job: Path) -> None:
    before = contents(job)

    def run() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
        return main(COMMANDS[name])

    assert in_a_process(run) == BAD_INPUT
    assert contents(job) == before


@pytest.mark.parametrize("home", ["/dev/null/home", "", None], ids=["no folder", "empty", "unset"])
@pytest.mark.parametrize("words", [("train", "llama-tiny", "--seq-len", "128", "--gpus", "1xL4"), ("gpus",)])
def test_a_home_is_not_needed(home: str | None, words: tuple[str, ...]) -> None:
    def run() -> int:
        for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MEMSHEET_CALIBRATION", "HF_HOME"):
            os.environ.pop(name, None)
        if home is not None:
            os.environ["HOME"] = home
        return main(words)

    assert in_a_process(run) in (0, 10, 11)


def test_a_clock_that_jumps_changes_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    import time

    words = ("train", "llama-tiny", "--seq-len", "128", "--gpus", "1xL4", "--json")
    main(words)
    expected = json.loads(capsys.readouterr().out)
    ticks = iter([1e9, -1e9, 0.0] * 10_000)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "time", lambda: next(ticks))
        with suppress(StopIteration):
            main(words)
    assert json.loads(capsys.readouterr().out) == expected
