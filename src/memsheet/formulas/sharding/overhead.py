"""What an engine keeps around the layers: gathered parameters, communication buffers, gradients waiting or
sharded.

For each way of sharding, four questions: what is there all the time, what a group adds while its forward
runs, while its backward runs, and what its backward leaves behind until the optimizer's step.
"""

from __future__ import annotations

from collections.abc import Callable

from memsheet.arith import Count
from memsheet.formulas.groups import Group
from memsheet.formulas.tapes.bytes_by_path import EMPTY, BytesByPath
from memsheet.frozen import dataclass
from memsheet.sheet import Component


def _no_overhead(*_: object) -> BytesByPath:
    return EMPTY


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ShardingOverhead:
    """What the engine adds, asked for group by group. ``before`` and ``after`` are the neighbours in order of
    execution.

    ``always``: resident through the whole step. ``through``: from the start of forward to the end of
    backward. ``opens``: beside ``entering`` of the embeddings, when forward begins. ``between``: all the time
    but while the optimizer steps. ``entering``: when a group's forward is about to run; ``forward``: while it
    runs; ``ahead``: of a group while the one before it does, None where that is nothing; ``at_loss``: while
    the loss is taken, None where that is as while the head runs; ``holds``: from its forward to its backward.
    ``backward``: while its backward runs; ``leaving``: right after it; ``leaves``: gradients that stay until
    the optimizer's step; ``lingers``: what a group's reduction keeps besides until the whole backward is
    over, None where that is nothing. ``fetching``: when a group's backward is about to run and the one before
    is gathered ahead; ``reducing``: when its gradients are on their way; both None where that is never the
    most.
    ``during(run, repetition)``: what a place of the backward adds, the embeddings at (-1, 0) and the head at
    (number of runs, 0); ``stops``: the places worth a look for it; ``end``: when the last backward is over
    and before the optimizer's step.
    """

    always: BytesByPath = EMPTY
    through: BytesByPath = EMPTY
    opens: BytesByPath = EMPTY
    between: BytesByPath = EMPTY
    entering: Callable[[Group | None, Group], BytesByPath] = _no_overhead
    forward: Callable[[Group | None, Group], BytesByPath] = _no_overhead
    ahead: Callable[[Group], BytesByPath] | None = None
    at_loss: Callable[[Group], BytesByPath] | None = None
    holds: Callable[[Group], BytesByPath] = _no_overhead
    backward: Callable[[Group | None, Group, Group | None], BytesByPath] = _no_overhead
    leaving: Callable[[Group | None, Group], BytesByPath] = _no_overhead
    fetching: Callable[[Group | None, Group, Group | None], BytesByPath] | None = None
    reducing: Callable[[Group | None, Group], BytesByPath] | None = None
    leaves: Callable[[Group], BytesByPath] = _no_overhead
    lingers: Callable[[Group], BytesByPath] | None = None
    during: Callable[[int, int], BytesByPath] = _no_overhead
    stops: frozenset[tuple[int, int]] = frozenset()
    end: BytesByPath = EMPTY


def single_row(component: Component, path: str, size: Count) -> BytesByPath:
    """A bag of one row."""
    return BytesByPath.of([((component, path), size)])
