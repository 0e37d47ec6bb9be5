"""What trainers print of memory from step to step.

DeepSpeed's ``MA`` is what is allocated (messages/deepspeed.py). torchtitan prints the most that was
reserved since the line before, of sequences of one length (torchtitan/components/metrics.py,
MetricsProcessor.log: ``max_reserved_gib``). Where lengths differ from step to step, as answers of a
reinforcement learning do, growth of a peak shows no leak: such lines are not read.
"""

from __future__ import annotations

import itertools
import re

from memsheet.diagnose.cleaned import Log
from memsheet.diagnose.interval import Interval, printed_bytes
from memsheet.diagnose.message import NUMBER

SIGNS = (b"GiB(",)
_RESERVED = re.compile(rf"\bmemory:\s{{0,4}}(?P<size>{NUMBER})GiB\(")
ENOUGH = 4
"""Steps of growth that are no accident."""


def steady_growth(sizes: list[Interval]) -> tuple[Interval, ...]:
    """The last sizes, where they have only grown by about the same; else nothing."""
    tail = sizes[-ENOUGH - 1 :]
    steps = [later.middle - earlier.middle for earlier, later in itertools.pairwise(tail)]
    steady = len(steps) >= ENOUGH and min(steps) > 0 and max(steps) <= 2 * min(steps)
    return tuple(tail) if steady else ()


def reserved_growth(log: Log) -> tuple[Interval, ...]:
    """What was reserved from step to step, where it only grew: tensors', unless it is kept without them."""
    found = (_RESERVED.search(line) for line in log.lines if "memory:" in line)
    return steady_growth([size for said in found if said and (size := printed_bytes(said["size"], "GiB"))])
