"""Steps of a model that every rank has whole: gradients stay where autograd leaves them, and ranks of
DistributedDataParallel hold a flat copy of them in buckets.
"""

from __future__ import annotations

from collections.abc import Sequence

from memsheet.formulas.replay.order import Run
from memsheet.formulas.states.held import gradient_dtype
from memsheet.units import MIB

BUCKET, FIRST_BUCKET = 25 * MIB, MIB
"""bucket_cap_mb, and the size of the first (torch 2.13 nn/parallel/distributed.py:688, 1193-1200)."""


class WholeModel(Run):
    """Every parameter as it is."""

    def load_beside(self) -> None:
        """DistributedDataParallel's buckets, which are filled in the order in which gradients are ready."""
        if int(self.plan.mesh.dp_replicate) > 1:
            for size in bucket_sizes(
                [
                    int(gradient_dtype(h, self.plan).nbytes(h.elements))
                    for h in reversed(self.held())
                    if h.trains
                ]
            ):
                self.script.take(size)


def bucket_sizes(gradients: Sequence[int]) -> list[int]:
    """Bytes of the buckets of gradients in the order in which they are ready: a bucket is closed as soon as
    it holds its size (torch csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size).
    """
    found, held, most = list[int](), 0, FIRST_BUCKET
    for size in gradients:
        held += size
        if held >= most:
            found.append(held)
            held, most = 0, BUCKET
    return [*found, *([held] if held else [])]


RUN = WholeModel
