"""The process that records: a request a line on stdin, an answer a line on stdout. What libraries print goes
to stderr. Its argument is the process that asks, which may be gone before this one has begun.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from textwrap import shorten
from threading import Thread
from typing import Any

from memsheet.errors import InputError
from memsheet.trace.child import error_answer, limit_process_memory
from memsheet.trace.parent import MEMORY_BYTES
from memsheet.trace.torchvision_apart import keep_torchvision_apart

LONGEST = 1_000
"""Characters of a library's own message, its lines in one, that are told."""
NEEDS = re.compile(r"requires the (\w+) library")
"""How the library says that a package is missing (transformers utils/import_utils.py)."""


def main() -> None:
    """Answer requests until there are no more, in no more memory than a trace may take."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    limit_process_memory(MEMORY_BYTES)
    Thread(target=_end_with_parent, args=(int(sys.argv[1]),), daemon=True).start()
    for line in sys.stdin:
        print(json.dumps(_answer_request(json.loads(line))), file=answers, flush=True)
    os._exit(0)


def _end_with_parent(parent: int) -> None:
    """End when the process that asks is gone, in the midst of a recording too."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _answer_request(request: dict[str, Any]) -> dict[str, Any]:
    try:
        keep_torchvision_apart()
        from memsheet.trace.recordings.observe import NotRecordableError
        from memsheet.trace.recordings.record import answer
    except ImportError as error:
        return {"missing": str(error)}
    try:
        return answer(request)
    except NotRecordableError as error:
        return {"not_recordable": str(error)}
    except Exception as error:  # noqa: BLE001 - a library's code on a stranger's config: whatever it says is the answer
        return (
            error_answer(error, request.get("name", "")) if isinstance(error, InputError) else _failure(error)
        )


def _failure(error: Exception) -> dict[str, Any]:
    if isinstance(error, ImportError) and (found := NEEDS.search(str(error))):
        return {"needs": found[1]}
    text = shorten(f"{type(error).__name__}: {error}", LONGEST, placeholder=" …")
    return {"raised": text}


if __name__ == "__main__":
    main()
