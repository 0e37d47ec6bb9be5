"""Several children that answer together, one a rank: those that torchrun has started, or torchrun is started
for them. No torch here.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any

from memsheet.errors import InputError, input_error
from memsheet.plan.plan import Plan
from memsheet.trace.parent import (
    PYTHON,
    Traced,
    child_death_error,
    end_group,
    end_of,
    environment_of,
    read_answer,
    trace_in_child,
)

REQUEST, ANSWER = "request.json", "answer-{rank}.json"
_ENDED = re.compile(r"rank\s*: (\d+)[^\n]*\n\s*exitcode\s*: -(\d+)")
GRACE_S = 30
"""How long torchrun may take to end its ranks, which it asks first (torch 2.13,
distributed/elastic/multiprocessing/api.py, close).
"""


class ElsewhereError(Exception):
    """Another process has the answer: the first of the ranks that this one is among."""


def launched_rank_count() -> int | None:
    """How many ranks were started together with this process, by torchrun or by whoever sets the same
    variables; None alone.
    """
    if not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        return None
    told = os.environ["WORLD_SIZE"]
    if not told.isdecimal():
        raise input_error(
            "WORLD_SIZE",
            told,
            "is set in the environment and is no number of ranks",
            "unset it, or start with torchrun",
        )
    return int(told)


def is_first() -> bool:
    """Whether this process is the one that speaks."""
    return launched_rank_count() is None or os.environ["RANK"] == "0"


def answers_together(
    request: Mapping[str, Any], plan: Plan, *, memory_bytes: int, time_s: float
) -> list[Traced]:
    """What every rank of a plan found out, in order of rank. ``memory_bytes`` is each one's.

    Raises InputError with what was wrong with the question, the code or the limits, or where other than the
    plan's ranks were started; ElsewhereError where another process tells.
    """
    found, ranks = launched_rank_count(), int(plan.mesh.gpus)
    asked = {**request, "ranks": ranks, "stages": plan.mesh.pp, "time_s": time_s}
    if found not in (None, ranks):
        hint = f"torchrun --nproc-per-node {ranks}, or a mesh of {found}"
        raise input_error(
            "mesh",
            ranks,
            f"{'rank is' if ranks == 1 else 'ranks are'} what the plan has, and {found} were started",
            hint,
        )
    if found is not None:
        answers = _one_of_many(asked, memory_bytes, time_s)
    elif ranks > 1:
        answers = _run_torchrun_ranks(asked, ranks, memory_bytes, time_s)
    else:
        answers = trace_in_child(asked, memory_bytes=memory_bytes, time_s=time_s)
    if not answers:
        raise ElsewhereError
    return answers


def _one_of_many(asked: Mapping[str, Any], memory_bytes: int, time_s: float) -> list[Traced]:
    """The child of one rank. What goes wrong in one rank alone is said here, for the first one hears only
    that it is gone.
    """
    if is_first():
        return trace_in_child(asked, memory_bytes=memory_bytes, time_s=time_s)
    try:
        return trace_in_child({**asked, "progress": None}, memory_bytes=memory_bytes, time_s=time_s)
    except InputError as error:
        for problem in error.problems:
            if problem.field == "trace":
                sys.stderr.write(
                    f"memsheet: rank {os.environ['RANK']}: {problem.value or 'it'}: {problem.reason}\n"
                )
        raise


def _run_torchrun_ranks(
    asked: Mapping[str, Any], ranks: int, memory_bytes: int, time_s: float
) -> list[Traced]:
    """All ranks on this machine. Each reads the same request and writes its own answer; the first one's is
    that of all, if all went well.
    """
    command = [
        *PYTHON,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
        "-m",
        "memsheet.trace.child",
    ]
    with TemporaryDirectory() as name, TemporaryFile("w+b") as said:
        folder = Path(name)
        (folder / REQUEST).write_text(json.dumps({**asked, "memory_bytes": memory_bytes}), encoding="utf-8")
        code = _run_until_timeout([*command, name], said, time_s, environment_of(asked))
        heard = end_of(said)
        if asked.get("debug"):
            sys.stderr.write(heard)
        told = _first_rank_answer(folder)
    lost = _killed_rank_error(heard) if code and not (told or {}).get("problems") else None
    if lost is not None:
        raise lost
    if told is None:
        raise child_death_error(subprocess.CompletedProcess(command, code, "", heard))
    return read_answer(told)


def _run_until_timeout(
    command: list[str], said: IO[bytes], time_s: float, environment: Mapping[str, str]
) -> int:
    """Run a command to its end, or to the end of its time."""
    with subprocess.Popen(  # noqa: S603 - our own interpreter, torch's own launcher, our own module
        command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment, start_new_session=True
    ) as running:
        try:
            return running.wait(time_s)
        except subprocess.TimeoutExpired:
            _terminate_torchrun(running)
            raise input_error(
                "trace", None, f"took more than {time_s:g} seconds", "--time-limit gives it longer"
            ) from None
        except BaseException:
            _terminate_torchrun(running)
            raise
        finally:
            end_group(running)


def _terminate_torchrun(running: subprocess.Popen[bytes]) -> None:
    """Let torchrun end its ranks; killed, it would leave them behind."""
    running.terminate()
    try:
        running.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        running.kill()


def _killed_rank_error(heard: str) -> InputError | None:
    """The rank that was ended before it could answer, where torchrun says so of one (its report,
    distributed/elastic/multiprocessing); those that it ended itself, with SIGTERM, were ended because of
    another.
    """
    ended = [(rank, int(number)) for rank, number in _ENDED.findall(heard) if int(number) != signal.SIGTERM]
    if not ended:
        return None
    rank, number = ended[0]
    hint = (
        "as systems do that run out of memory"
        if number == signal.SIGKILL
        else "run it again with --debug and report what it prints"
    )
    return input_error("trace", f"rank {rank}", f"was ended by signal {number}", hint)


def _first_rank_answer(folder: Path) -> dict[str, Any] | None:
    """The first thing that went wrong, else what the first rank says."""
    written = sorted(folder.glob(ANSWER.format(rank="*")), key=lambda path: path.stat().st_mtime_ns)
    found: list[dict[str, Any]] = [json.loads(path.read_text(encoding="utf-8")) for path in written]
    wrong = [one for one in found if is_failed_answer(one)]
    return wrong[0] if wrong else next((one for one in found if one.get("timelines")), None)


def is_failed_answer(answer: Mapping[str, Any]) -> bool:
    """Whether an answer says that its rank did not come to the end."""
    return any(answer.get(key) for key in ("problems", "failure", "failed"))


def write_answer(folder: Path, answer: Mapping[str, Any]) -> None:
    """Leave a rank's answer, whole or not at all."""
    name = ANSWER.format(rank=os.environ.get("RANK", "0"))
    part = folder / f".{name}"
    part.write_text(json.dumps(answer), encoding="utf-8")
    part.rename(folder / name)
