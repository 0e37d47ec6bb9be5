"""Tracing in a child process, because it patches private parts of torch and runs code that nobody has seen.
No torch here.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NoReturn

from memsheet.errors import InputError, Problem, input_error
from memsheet.frozen import dataclass
from memsheet.timeline import Timeline, timeline_from
from memsheet.units import GIB

MEMORY_BYTES, TIME_S = 4 * GIB, 600
"""A trace of the largest models takes well under 1 GiB and a minute; beyond these something is wrong."""

PYTHON = (sys.executable, "-P")
"""Our own interpreter, which imports nothing from the folder that a command is given in: what lies there is a
stranger's.
"""
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
    "PYTHONSAFEPATH": "1",  # -P for the children's children, which torch's own launcher and its compilers start
}  # fmt: skip


def environment_of(request: Mapping[str, Any]) -> dict[str, str]:
    """The environment of a child: this process's, with what a request adds (``environment``)."""
    return {**os.environ, **ENVIRONMENT, **request.get("environment", {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """What a child found out about one rank."""

    rank: int
    stage: int
    timeline: Timeline
    facts: Mapping[str, Any]


def available_bytes() -> int | None:
    """What this machine could give a process now, its page cache included; None where it does not say (Linux
    does: proc(5), meminfo).
    """
    try:
        told = Path("/proc/meminfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", told, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def trace_in_child(
    request: Mapping[str, Any], *, memory_bytes: int = MEMORY_BYTES, time_s: float = TIME_S
) -> list[Traced]:
    """Ask a child. Raises InputError with what was wrong with the question, the code or the limits."""
    return read_answer(answer_of_child(request, memory_bytes=memory_bytes, time_s=time_s))


def answer_of_child(request: Mapping[str, Any], *, memory_bytes: int, time_s: float) -> dict[str, Any]:
    """What a child says, as it says it: of what went wrong in the code, too. Raises InputError for one that
    is gone without an answer.
    """
    asked = json.dumps({**request, "memory_bytes": memory_bytes})
    command = [*PYTHON, "-m", "memsheet.trace.child"]
    try:
        with TemporaryFile("w+b") as said:  # a pipe would be waited for as long as a program holds it
            done = _run_group(command, asked, said, time_s, environment_of(request), memory_bytes)
            done.stderr = end_of(said)
    except subprocess.TimeoutExpired:
        raise input_error(
            "trace", None, f"took more than {time_s:g} seconds", "--time-limit gives it longer"
        ) from None
    if request.get("debug"):
        sys.stderr.write(done.stderr)
    if done.returncode != 0 or not done.stdout:
        raise child_death_error(done)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


MOST_SAID = 2**18
"""Bytes of what a child says on stderr that are kept: its end, where errors stand."""
LOOK_S = 0.25
"""How often a group of processes is weighed."""


def end_of(said: IO[bytes]) -> str:
    """The end of what a child has said into a file."""
    said.seek(max(0, said.seek(0, os.SEEK_END) - MOST_SAID))
    return said.read().decode("utf-8", errors="replace")


def _run_group(
    command: Sequence[str],
    asked: str,
    said: IO[bytes],
    time_s: float,
    environment: Mapping[str, str],
    memory_bytes: int,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a group of its own, which ends with it: with what it has started, and as soon as all
    of it takes too much memory.
    """
    with (
        TemporaryFile("w+b") as answer,
        subprocess.Popen(  # noqa: S603 - our own interpreter, our own module
            command,
            stdin=subprocess.PIPE,
            stdout=answer,
            stderr=said,
            env=environment,
            start_new_session=True,
        ) as running,
    ):
        try:
            assert running.stdin is not None
            with suppress(BrokenPipeError), running.stdin as pipe:
                pipe.write(asked.encode())
            code = _wait_within_limits(running, time_s, memory_bytes)
        finally:
            end_group(running)
        answer.seek(0)
        return subprocess.CompletedProcess(command, code, answer.read().decode("utf-8", errors="replace"), "")


def _wait_within_limits(running: subprocess.Popen[bytes], time_s: float, memory_bytes: int) -> int:
    """The exit code of a process; SIGKILL's where its group takes more memory than that. Raises
    TimeoutExpired after its time.
    """
    until = time.monotonic() + time_s
    while True:
        try:
            return running.wait(min(LOOK_S, max(0.0, until - time.monotonic())))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= until:
                raise
            if group_bytes(running.pid) > memory_bytes:
                return -signal.SIGKILL


def group_bytes(group: int) -> int:
    """Private memory of all processes of a session together; 0 where the system does not say.

    Linux does: the sixth field of /proc/PID/stat is the session, RssAnon in /proc/PID/status what is its own.
    """
    total = 0
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            if int(place.joinpath("stat").read_text().rpartition(")")[2].split()[3]) == group:
                found = re.search(
                    r"^RssAnon:\s+(\d+) kB$", place.joinpath("status").read_text(), re.MULTILINE
                )
                total += int(found[1]) * 1024 if found else 0
    return total


def end_group(running: subprocess.Popen[Any]) -> None:
    """End a process and all that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(running.pid, signal.SIGKILL) if hasattr(os, "killpg") else running.kill()


def trace_in_fork(
    run: Callable[[], dict[str, Any]], explain: Callable[[BaseException], dict[str, Any]]
) -> list[Traced]:
    """Ask a copy of this process: for functions that live only in it (a notebook's). Needs a system that can
    fork.
    """
    if not hasattr(os, "fork"):
        raise input_error(
            "trace",
            sys.platform,
            "cannot copy a process",
            "put the step into a file: memsheet trace FILE.py:FUNCTION",
        )
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _answer_and_leave(write, run, explain)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if not text:
        raise input_error("trace", None, f"ended with {os.waitstatus_to_exitcode(status)} and said nothing")
    return read_answer(json.loads(text))


def _answer_and_leave(
    write: int, run: Callable[[], dict[str, Any]], explain: Callable[[BaseException], dict[str, Any]]
) -> NoReturn:
    """In the copy: answer into the pipe, and end without the parent's farewells."""
    try:
        document = run()
    except BaseException as error:  # noqa: BLE001 - it is the answer, and a copy that went on would be a second notebook
        document = explain(error)
    with os.fdopen(write, "w", encoding="utf-8") as pipe:
        pipe.write(json.dumps(document))
    os._exit(0)


def read_answer(document: Mapping[str, Any]) -> list[Traced]:
    if problems := document.get("problems"):
        raise InputError(tuple(Problem(**problem) for problem in problems))
    if failure := document.get("failure"):
        raise InputError(
            (Problem(field="trace", value=failure["where"], reason=failure["reason"], hint=failure["hint"]),)
        )
    return [
        Traced(rank=t["rank"], stage=t["stage"], timeline=timeline_from(t["events"]), facts=t["facts"])
        for t in document["timelines"]
    ]


_NO_MEMORY = (
    "MemoryError",
    "bad_alloc",
    "Memory allocation",
    "Cannot allocate memory",
    "failed to map segment",
)
"""How Python, C++, OpenBLAS, the system and its loader say that there is none left."""


def child_death_error(done: subprocess.CompletedProcess[str]) -> InputError:
    """What to say where a child, or the launcher of several, is gone without an answer."""
    last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "")
    if any(word in done.stderr for word in _NO_MEMORY) or done.returncode == -signal.SIGKILL:
        return input_error("trace", None, "ran out of the memory it may take", "--memory-limit gives it more")
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return input_error(
        "trace", None, f"ended with {how}: {last}", "run it again with --debug and report what it prints"
    )
