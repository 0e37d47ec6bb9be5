"""Small questions that ask for much are answered or refused for next to nothing: time of the processor, memory, and words on the screen."""

from __future__ import annotations

import os
import re
import resource
import traceback
from importlib import import_module
from pathlib import Path

import pytest
from amplifiers import Amplifier

from memsheet.cli import main
from memsheet.guard.budget import Budget, TooMuchError

KINDS = ("scripts", "shells", "documents", "models", "folders")
MEMBERS = {f"{kind}: {name}": member for kind in KINDS for name, member in import_module(f"amplifiers.{kind}").MEMBERS.items()}
SECONDS, SLACK, MEMORY, WORDS = 0.5, 10, 256 * 2**20, 2**16
"""``SLACK``: how much slower a busy machine may be. The figures of an idle one are within ``SECONDS``."""
STOP_S, STOP_BYTES = 60, 8 * 2**30


def resident(key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def asked(member: Amplifier, folder: Path) -> tuple[int, float, int, int]:
    """The exit code, and what the question took: seconds of the processor, bytes, and characters that were written."""
    for name, content in member.files().items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
    child = os.fork()
    if child == 0:
        _ask(member.command, folder)
    _, status = os.waitpid(child, 0)
    written = sum((folder / name).stat().st_size for name in ("out", "err"))
    used = (folder / "used").read_text().split() if (folder / "used").exists() else (STOP_S, STOP_BYTES)
    return os.waitstatus_to_exitcode(status), float(used[0]), int(used[1]), written


def _ask(command: tuple[str, ...], folder: Path) -> None:
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

        sys.stdout, sys.stderr = (os.fdopen(os.dup(descriptor), "w", encoding="utf-8") for descriptor in (1, 2))
        code = main([*command])
        sys.stdout.flush()
        sys.stderr.flush()
        used = resource.getrusage(resource.RUSAGE_SELF)
        (folder / "used").write_text(f"{used.ru_utime + used.ru_stime} {resident('VmHWM') - before}")
        os._exit(code)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        os._exit(99)


@pytest.mark.skipif(not hasattr(os, "fork") or not Path("/proc/self/status").exists(), reason="measured as Linux does")
@pytest.mark.parametrize("name", MEMBERS)
def test_it_costs_next_to_nothing(name: str, tmp_path: Path) -> None:
    member = MEMBERS[name]
    code, seconds, used, written = asked(member, tmp_path)
    assert code in member.codes, (tmp_path / "err").read_text()[-2000:]
    assert seconds < SECONDS * SLACK
    assert used < MEMORY
    assert written < WORDS


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
