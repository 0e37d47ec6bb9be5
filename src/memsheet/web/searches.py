"""A search for plans in a process of its own: told while it runs, ended when nobody listens any more.

``python -m memsheet.web.searches`` reads one request from stdin and writes its answer to stdout.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

SLOW = ("plan", "plan-serving")
"""Questions that are searches."""
EVERY_S, LONGEST_S = 0.5, 120.0
"""Seconds between two events of a search that goes on, and those that it may take."""
AT_ONCE = asyncio.Semaphore(2)


async def search_events(request: Mapping[str, Any]) -> AsyncIterator[tuple[str, Mapping[str, Any]]]:
    """``progress`` with the ``seconds`` that have passed, at last ``done`` with the answer of ``ask``. The
    process ends with whoever iterates.
    """
    async with AT_ONCE:
        start = monotonic()
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        answer = asyncio.ensure_future(child.communicate(json.dumps(request).encode()))
        try:
            while not answer.done():
                await asyncio.wait([answer], timeout=EVERY_S)
                passed = monotonic() - start
                if passed > LONGEST_S:
                    yield "done", _overtime_answer()
                    return
                if not answer.done():
                    yield "progress", {"seconds": round(passed, 1)}
            output, _ = answer.result()
            yield "done", json.loads(output)
        finally:
            with suppress(ProcessLookupError):
                child.kill()
            with suppress(asyncio.CancelledError):
                await child.wait()


def _overtime_answer() -> dict[str, Any]:
    from memsheet.errors import Problem
    from memsheet.report.json.error import error_document

    reason = f"takes longer than {LONGEST_S:.0f} s, which is as long as one is waited for here"
    problem = Problem(field="plan", reason=reason, hint="`memsheet plan` on the command line waits longer")
    return {"exit_code": 2, "document": error_document("bad input", 2, [problem])}


def answer_one() -> None:
    """One request on stdin → its answer on stdout."""
    from memsheet.questions.ask import ask

    sys.stdout.write(json.dumps(ask(json.load(sys.stdin)), allow_nan=False))


if __name__ == "__main__":
    answer_one()
