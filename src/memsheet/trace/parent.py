"""Tracing in a child process, because it patches private parts of torch and runs code that nobody has seen. No torch here."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

from memsheet.errors import InputError, Problem, refuse
from memsheet.timeline import Timeline, timeline_from
from memsheet.units import GIB

MEMORY_BYTES, TIME_S = 4 * GIB, 600
"""A trace of the largest models takes well under 1 GiB and a minute; beyond these something is wrong."""

PYTHON = (sys.executable, "-P")
"""Our own interpreter, which imports nothing from the folder that a command is given in: what lies there is a stranger's."""
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
    """What this machine could give a process now, its page cache included; None where it does not say (Linux does: proc(5), meminfo)."""
    try:
        told = Path("/proc/meminfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", told, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def trace_in_child(request: Mapping[str, Any], *, memory_bytes: int = MEMORY_BYTES, time_s: float = TIME_S) -> list[Traced]:
    """Ask a child. Raises InputError with what was wrong with the question, the code or the limits."""
    asked = json.dumps({**request, "memory_bytes": memory_bytes})
    command = [*PYTHON, "-m", "memsheet.trace.child"]
    try:
        with TemporaryFile("w+", encoding="utf-8", errors="replace") as said:  # a pipe would be waited for as long as a program holds it
            done = subprocess.run(  # noqa: S603 - our own interpreter, our own module
                command, input=asked, stdout=subprocess.PIPE, stderr=said, text=True, timeout=time_s,
                env=environment_of(request), check=False,
            )  # fmt: skip
            said.seek(0)
            done.stderr = said.read()
    except subprocess.TimeoutExpired:
        raise refuse("trace", None, f"took more than {time_s:g} seconds", "--time-limit gives it longer") from None
    if request.get("debug"):
        sys.stderr.write(done.stderr)
    if done.returncode != 0 or not done.stdout:
        raise died(done)
    return read_answer(json.loads(done.stdout))


def trace_in_fork(run: Callable[[], dict[str, Any]], explain: Callable[[BaseException], dict[str, Any]]) -> list[Traced]:
    """Ask a copy of this process: for functions that live only in it (a notebook's). Needs a system that can fork."""
    if not hasattr(os, "fork"):
        raise refuse("trace", sys.platform, "cannot copy a process", "put the step into a file: memsheet trace FILE.py:FUNCTION")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _answer_and_leave(write, run, explain)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if not text:
        raise refuse("trace", None, f"ended with {os.waitstatus_to_exitcode(status)} and said nothing")
    return read_answer(json.loads(text))


def _answer_and_leave(write: int, run: Callable[[], dict[str, Any]], explain: Callable[[BaseException], dict[str, Any]]) -> NoReturn:
    """In the copy: answer into the pipe, and end without the parent's farewells."""
    try:
        document = run()
    except BaseException as error:  # noqa: BLE001 - it is the answer, and a copy that went on would be a second notebook
        document = explain(error)
    with os.fdopen(write, "w", encoding="utf-8") as pipe:
        json.dump(document, pipe)
    os._exit(0)


def read_answer(document: Mapping[str, Any]) -> list[Traced]:
    if problems := document.get("problems"):
        raise InputError(tuple(Problem(**problem) for problem in problems))
    if failure := document.get("failure"):
        raise InputError((Problem(field="trace", value=failure["where"], reason=failure["reason"], hint=failure["hint"]),))
    return [Traced(rank=t["rank"], stage=t["stage"], timeline=timeline_from(t["events"]), facts=t["facts"]) for t in document["timelines"]]


_NO_MEMORY = ("MemoryError", "bad_alloc", "Memory allocation", "Cannot allocate memory", "failed to map segment")
"""How Python, C++, OpenBLAS, the system and its loader say that there is none left."""


def died(done: subprocess.CompletedProcess[str]) -> InputError:
    """What to say where a child, or the launcher of several, is gone without an answer."""
    last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "")
    if any(word in done.stderr for word in _NO_MEMORY) or done.returncode == -signal.SIGKILL:
        return refuse("trace", None, "ran out of the memory it may take", "--memory-limit gives it more")
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return refuse("trace", None, f"ended with {how}: {last}", "run it again with --debug and report what it prints")
