"""The process that traces: a request on stdin, one JSON object on stdout, limits on memory and nothing of the
parent's at risk.

Everything a library prints goes to stderr. An error of the question is answered as its problems; one of the
traced code as what it was, where in the person's own code, and the usual cure.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from memsheet.errors import InputError, Problem, printable_line
from memsheet.trace import launch
from memsheet.trace.torchvision_apart import keep_torchvision_apart

ANSWERS = "memsheet.trace.requests"
"""Who answers where the caller names no other module of this package that has a function ``answer(request)``.
"""


def main() -> NoReturn:
    """Answer one request. Always one object: ``{"timelines": [...]}``, ``{"problems": [...]}`` or
    ``{"failure": {...}}``.

    With a folder as its argument it is one of several ranks: the request lies there, and the answer is left
    there.
    """
    if len(sys.argv) > 1:
        _answer_in(Path(sys.argv[1]))
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    limit_process_memory(request["memory_bytes"])
    answer.write(json.dumps(_answer_request(request)))
    answer.close()
    sys.stderr.flush()
    os._exit(0)  # threads that the traced code left behind are not waited for


def _answer_in(folder: Path) -> NoReturn:
    """Leave an answer beside those of the other ranks. A failure is also an exit code, so that torchrun ends
    the others.
    """
    request = json.loads((folder / launch.REQUEST).read_text(encoding="utf-8"))
    limit_process_memory(request["memory_bytes"])
    found = _answer_request(request if launch.is_first() else {**request, "progress": None})
    launch.write_answer(folder, found)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if launch.is_failed_answer(found) else 0)


def limit_process_memory(memory_bytes: int) -> None:
    """No more private memory than that, where the system can say so."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def _answer_request(request: dict[str, Any]) -> dict[str, Any]:
    """What the request comes to, or what was wrong with it."""
    answers = _own_module_name(request.get("answers", ANSWERS))
    try:
        if answers == ANSWERS:
            keep_torchvision_apart()
        answer = import_module(answers).answer
    except ImportError as error:
        return {
            "problems": [
                {
                    "field": "trace",
                    "value": None,
                    "reason": f"needs an extra ({error})",
                    "hint": "pip install 'memsheet[trace]'",
                }
            ]
        }
    try:
        found: dict[str, Any] = answer(request)
    except (Exception, SystemExit) as error:
        if request.get("debug") and not isinstance(error, InputError):
            raise
        return error_answer(error, str(request.get("name", "")))
    return found


def error_answer(error: BaseException, name: str) -> dict[str, Any]:
    """An error as an answer: the question's problems, or what went wrong in the traced code."""
    from memsheet.trace.usual_errors import explain_traced_error

    if isinstance(error, InputError):
        return {"problems": [_problem_document(problem) for problem in error.problems]}
    return {"failure": explain_traced_error(error, name)}


def _own_module_name(module: str) -> str:
    """The name of a module of this package. Raises ValueError for any other."""
    if not module.startswith(f"{__package__.partition('.')[0]}."):
        raise ValueError(f"{module} is no module of memsheet")
    return module


def _problem_document(problem: Problem) -> dict[str, Any]:
    value = (
        problem.value
        if problem.value is None or isinstance(problem.value, int | float | str)
        else printable_line(problem.value)
    )
    return {"field": problem.field, "value": value, "reason": problem.reason, "hint": problem.hint}


if __name__ == "__main__":
    main()
