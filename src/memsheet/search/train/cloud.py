"""All plans that fit as points of memory against time, thinned to what a picture can show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

SIDE = 120
"""Points are kept apart by a 120th of either axis: a picture's dots would hide nearer ones."""


def time_memory_points(pairs: Iterable[tuple[Any, Any]]) -> tuple[tuple[float, int], ...]:
    """``pairs``: arrays of seconds and of bytes. The points as (seconds, bytes), one of those that lie on one
    another, the fastest first; plans whose step is not timed have none.
    """
    columns = list(pairs)
    seconds = np.concatenate([np.asarray(s, dtype=float) for s, _ in columns]) if columns else np.zeros(0)
    sizes = (
        np.concatenate([np.asarray(b, dtype=np.int64) for _, b in columns])
        if columns
        else np.zeros(0, dtype=np.int64)
    )
    timed = np.isfinite(seconds) & (seconds > 0)
    seconds, sizes = seconds[timed], sizes[timed]
    if not len(seconds):
        return ()
    places = _picture_cells(np.log(seconds)) * (SIDE + 1) + _picture_cells(sizes.astype(float))
    _, kept = np.unique(places, return_index=True)
    return tuple(sorted((float(seconds[row]), int(sizes[row])) for row in kept.tolist()))


def _picture_cells(values: Any) -> Any:
    low, high = float(values.min()), float(values.max())
    return ((values - low) * (SIDE / (high - low) if high > low else 0.0)).astype(np.int64)
