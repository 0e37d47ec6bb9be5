"""A moment's rest after every collective, while memory is counted or recorded.

gloo's threads hold on to what they were given until they have told that they are done (ProcessGroupGloo.cpp,
runLoop). If they come last to a tensor they release it, later than the step does and where no profiler
listens: it would count for good.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from memsheet.trace.patches import Patch, apply_patches

REST_S = 0.0005
LONGER_S = 0.005
"""Where many collectives are under way at once, their threads come later."""
_HOLDERS = ("torch.distributed._functional_collectives", "transformers.distributed.parallel_utils")


@contextmanager
def wait_for_gloo_threads() -> Iterator[None]:
    """Let gloo's threads finish first."""
    from torch.distributed import _functional_collectives as collectives
    from torch.distributed import distributed_c10d

    def rested(function: Any, seconds: float = REST_S) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            time.sleep(seconds)
            return result

        return run

    why = "a thread that nobody hears would be the last to hold a tensor"
    wait = rested(collectives.wait_tensor)
    waited = rested(
        distributed_c10d.Work.wait, LONGER_S
    )  # by those who ask for a collective and wait later, as DeepSpeed does
    whole = ("all_reduce", "broadcast", "all_gather_single", "reduce_scatter_single")
    with apply_patches(
        (
            *(Patch(holder, "wait_tensor", wait, why) for holder in _HOLDERS),
            Patch("torch._C._distributed_c10d.Work", "wait", waited, why),
            *(
                Patch("torch.distributed", name, rested(getattr(distributed_c10d, name)), why)
                for name in whole
            ),
        )
    ):
        yield
