"""A search for plans in a process of its own: told while it runs, ended when nobody listens any more.

``python -m memsheet.web.searches`` reads one request from stdin and writes lines to stdout: how far the
search is, at last its answer.
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
MOST_LINE = 2**26
"""Bytes of an answer."""
AT_ONCE = asyncio.Semaphore(2)


async def search_events(request: Mapping[str, Any]) -> AsyncIterator[tuple[str, Mapping[str, Any]]]:
    """``progress`` with the ``seconds`` that have passed and what ``listen_to_search`` is told, at last
    ``done`` with the answer of ``ask``. The process ends with whoever iterates.
    """
    async with AT_ONCE:
        start = monotonic()
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            limit=MOST_LINE,
        )  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(request).encode())
        child.stdin.write_eof()
        line = asyncio.ensure_future(child.stdout.readline())
        known: Mapping[str, Any] = {}
        try:
            while (passed := monotonic() - start) <= LONGEST_S:
                done, _ = await asyncio.wait([line], timeout=EVERY_S)
                if not done:
                    yield "progress", {**known, "seconds": round(passed, 1)}
                    continue
                said = json.loads(line.result())
                if "exit_code" in said:
                    yield "done", said
                    return
                known = said
                line = asyncio.ensure_future(child.stdout.readline())
            yield "done", _overtime_answer()
        finally:
            line.cancel()
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
    """One request on stdin → lines on stdout, the last its answer."""
    from memsheet.questions.ask import ask
    from memsheet.search.progress import listen_to_search

    with listen_to_search(_write_line):
        _write_line(ask(json.load(sys.stdin)))


def _write_line(told: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(told, allow_nan=False) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    answer_one()
