"""One line for a script: what is live is written down when a request for GPU memory fails."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from memsheet.errors import InputError
from memsheet.report.shared.files import check_file, write_whole

LOG = logging.getLogger("memsheet")
RANK = "{rank}"


def on_oom(
    path: str | PathLike[str],
    *,
    plan: Mapping[str, Any] | None = None,
    callback: Callable[[dict[str, Any]], None] | None = None,
    stacks: bool = True,
) -> bool:
    """From now on a request for GPU memory that fails writes ``path``: the sizes, the allocator's settings,
    and what is live by the line that made it (``memsheet/oom/1``, a small JSON file, whole or not at all),
    for ``memsheet diagnose``. ``{rank}`` in the name is the rank.

    ``plan``: the plan of the job (memsheet/plan/1), which is written with it; ``callback``: called with the
    same values; ``stacks``: note the line of each allocation, about 2 µs each. Whether it is watched: without
    torch or a CUDA device nothing is, which the logger ``memsheet`` says. Raises InputError for a path that
    cannot be written.
    """
    target = Path(str(path).replace(RANK, _rank_number()))
    check_file(target, "path")

    def told(found: dict[str, Any]) -> None:
        try:
            write_whole(target, json.dumps(found, separators=(",", ":")).encode(), "path")
            LOG.warning("a request for %s bytes failed: memsheet diagnose %s", found["asked_bytes"], target)
            if callback is not None:
                callback(found)
        except InputError as error:  # the job's own error is on its way, and says more
            LOG.warning("what was live is not written down: %s", error)
        except Exception:
            LOG.exception("the callback of on_oom failed")

    try:
        from memsheet.measure.oom import watch_for_failures
    except ModuleNotFoundError:
        LOG.warning("on_oom watches nothing: torch is not installed here")
        return False
    reason = watch_for_failures(told, plan, stacks=stacks)
    if reason:
        LOG.warning("on_oom watches nothing: %s", reason)
    return not reason


def _rank_number() -> str:
    return os.environ.get("RANK", "0")
