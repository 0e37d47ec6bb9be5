"""A moment's rest after every collective, while memory is counted or recorded.

gloo's threads hold on to what they were given until they have told that they are done (ProcessGroupGloo.cpp, runLoop). If they come
last to a tensor they release it, later than the step does and where no profiler listens: it would count for good.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from memsheet.trace.patches import Patch, applied

REST_S = 0.0005
_HOLDERS = ("torch.distributed._functional_collectives", "transformers.distributed.parallel_utils")


@contextmanager
def resting() -> Iterator[None]:
    """Let gloo's threads finish first."""
    from torch.distributed import _functional_collectives as collectives
    from torch.distributed import distributed_c10d

    def rested(function: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            time.sleep(REST_S)
            return result

        return run

    why = "a thread that nobody hears would be the last to hold a tensor"
    wait = rested(collectives.wait_tensor)
    whole = ("all_reduce", "broadcast", "all_gather_single", "reduce_scatter_single")
    with applied((
        *(Patch(holder, "wait_tensor", wait, why) for holder in _HOLDERS),
        *(Patch("torch.distributed", name, rested(getattr(distributed_c10d, name)), why) for name in whole),
    )):  # fmt: skip
        yield
