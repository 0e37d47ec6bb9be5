"""The recording process, started when it is first asked and asked again after. No torch here."""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from threading import Lock
from typing import Any

from memsheet.errors import IN_BROWSER, InputError, Problem, input_error
from memsheet.trace.parent import PYTHON, end_group, environment_of

COMMAND = (*PYTHON, "-m", "memsheet.trace.recordings.worker")
MOST_S = 600
"""A recording of the largest models takes some tens of seconds, of code that loops over tokens minutes on a
busy machine; as long as a trace may take.
"""
INSTALL = "pip install 'memsheet[trace]'"
EXTRAS = {"timm": "pip install 'memsheet[trace,vision]'"}
"""Which of our extras brings a package that some models' code needs."""
_ONE_AT_A_TIME = Lock()
_running: subprocess.Popen[str] | None = None


def ask_recorder(request: Mapping[str, Any]) -> dict[str, Any]:
    """What the recording process answers. Raises InputError where it cannot."""
    with _ONE_AT_A_TIME:
        line = _answer_line(json.dumps(request))
    return _checked(json.loads(line), request)


def _answer_line(request: str) -> str:
    process = _started()
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(request + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], MOST_S)
        line = process.stdout.readline() if ready else ""
    except (BrokenPipeError, OSError):
        line = ""
    except BaseException:  # who asked is interrupted: the answer would be the next one's
        stop_recorder()
        raise
    if not line:
        code = process.poll()
        stop_recorder()
        how = f"ended with exit code {code}" if code is not None else f"took more than {MOST_S} seconds"
        raise input_error("recording", None, how, "`memsheet trace` runs the model's code by itself")
    return line


def _checked(answer: dict[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    if problems := answer.get("problems"):
        raise InputError(tuple(Problem(**problem) for problem in problems))
    kind = request["config"].get("model_type")
    if missing := answer.get("missing"):
        reason = (
            f"has no layers written down here, and an extra that reads its own code is missing ({missing})"
        )
        raise input_error("model_type", kind, reason, INSTALL)
    if package := answer.get("needs"):
        reason = f"has no layers written down here, and its own code needs {package}, which is not installed"
        raise input_error("model_type", kind, reason, EXTRAS.get(package, f"pip install {package}"))
    if raised := answer.get("raised"):
        reason = f"has no layers written down here, and its own code raises {raised}"
        raise input_error(
            "model_type",
            kind,
            reason,
            "`memsheet trace` shows where; another --precision, --attention or --lora-targets may run",
        )
    if why := answer.get("not_recordable"):
        reason = f"has no layers written down here, and its own code cannot be put on record: {why}"
        raise input_error("model_type", kind, reason, "`memsheet trace` runs it")
    return answer


def _started() -> subprocess.Popen[str]:
    global _running  # noqa: PLW0603 - one process for this one
    if sys.platform == "emscripten":  # a browser's Python starts no process
        raise input_error("torch", None, "runs a model's own code, and is not there in a browser", IN_BROWSER)
    if _running is None or _running.poll() is not None:
        _running = subprocess.Popen(  # noqa: S603 - our own interpreter, our own module
            [*COMMAND, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment_of({}),
            text=True,
            start_new_session=True,
        )
        atexit.register(stop_recorder)
    return _running


def stop_recorder() -> None:
    """End the recording process, if there is one."""
    global _running
    process, _running = _running, None
    if process is None:
        return
    end_group(process)
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError, AttributeError):
            pipe.close()  # type: ignore[union-attr]
    process.wait()
