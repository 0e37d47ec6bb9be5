"""Small questions that ask for much are answered or refused for next to nothing: time of the processor,
memory, and words on the screen.
"""

from __future__ import annotations

import os
import re
import resource
import traceback
from cProfile import Profile
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest
from amplifiers import Amplifier

from memsheet.cli import main
from memsheet.guard import spending
from memsheet.guard.budget import Budget, TooMuchError
from memsheet.guard.spending import of_one_command

KINDS = ("scripts", "shells", "documents", "models", "folders")
MEMBERS = {
    f"{kind}: {name}": member
    for kind in KINDS
    for name, member in import_module(f"amplifiers.{kind}").MEMBERS.items()
}
MEMORY, WORDS = 256 * 2**20, 2**16
READ, BUILT, CALLED = 48 * 2**20, 1_500_000, 3_000_000
"""Bytes that are read, values that are built of them, and functions that are called: each is what half a
second is enough for, at 100 MB, three million values and six million calls a second. Counts are the same on
every machine, and on a busy one.
"""
STOP_S, STOP_BYTES = 60, 8 * 2**30
"""Where a question is stopped that goes on without calling or reading anything."""


class Used(NamedTuple):
    """What a question took. ``seconds`` of the processor are said, and no test hangs on them."""

    code: int
    seconds: float
    memory: int
    read: int
    built: int
    called: int
    written: int


def resident(key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def asked(member: Amplifier, folder: Path, *, counted: bool) -> Used:
    """The exit code, and what the question took. ``counted``: with calls of functions, which takes longer and
    more memory.
    """
    for name, content in member.files().items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
    child = os.fork()
    if child == 0:
        _ask(member.command, folder, counted=counted)
    _, status = os.waitpid(child, 0)
    written = sum((folder / name).stat().st_size for name in ("out", "err"))
    used = (
        (folder / "used").read_text().split() if (folder / "used").exists() else (STOP_S, *[STOP_BYTES] * 4)
    )
    memory, read, built, called = map(int, used[1:])
    return Used(os.waitstatus_to_exitcode(status), float(used[0]), memory, read, built, called, written)


def _ask(command: tuple[str, ...], folder: Path, *, counted: bool) -> None:
    """In a copy of this process, which has imported everything already."""
    try:
        os.chdir(folder)
        os.environ["MEMSHEET_CALIBRATION"] = "off"
        resource.setrlimit(resource.RLIMIT_CPU, (STOP_S, STOP_S))
        resource.setrlimit(resource.RLIMIT_DATA, (STOP_BYTES, STOP_BYTES))
        for name, descriptor in (("out", 1), ("err", 2)):
            os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        before = resident("VmRSS")
        import sys

        sys.stdout, sys.stderr = (
            os.fdopen(os.dup(descriptor), "w", encoding="utf-8") for descriptor in (1, 2)
        )
        calls = Profile(subcalls=False)
        with of_one_command() as spent:
            if counted:
                calls.enable()
            code = main([*command])
            calls.disable()
        read, built = spending.MOST_BYTES - spent.bytes.left, spending.MOST_VALUES - spent.values.left
        sys.stdout.flush()
        sys.stderr.flush()
        used = resource.getrusage(resource.RUSAGE_SELF)
        (folder / "used").write_text(
            f"{used.ru_utime + used.ru_stime} {resident('VmHWM') - before} {read} {built} "
            f"{sum(entry.callcount for entry in calls.getstats())}"
        )
        os._exit(code)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        os._exit(99)


@pytest.mark.skipif(
    not hasattr(os, "fork") or not Path("/proc/self/status").exists(), reason="measured as Linux does"
)
@pytest.mark.parametrize("name", MEMBERS)
def test_it_costs_next_to_nothing(name: str, tmp_path: Path) -> None:
    member = MEMBERS[name]
    used = asked(member, tmp_path, counted=True)
    assert used.code in member.codes, (tmp_path / "err").read_text()[-2000:]
    assert used.read < READ
    assert used.built < BUILT
    assert used.called < CALLED
    assert used.memory < MEMORY
    assert used.written < WORDS


def test_a_value_weighs_what_it_is_written_out() -> None:
    for levels in range(1, 12):
        value: object = 1
        for _ in range(levels):
            value = [value, value]
        budget = Budget(2**20, "values")
        budget.spend_size(value)
        assert 2**levels <= 2**20 - budget.left <= 4 * 2**levels
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(TooMuchError, match="more values than a configuration has"):
        Budget(1000, "values").spend_size(circle)
