"""For which lengths a model's functions of size hold: those on the same side of every window."""

from __future__ import annotations

from typing import Any

from memsheet.arith import Count, agreed
from memsheet.recording import BETWEEN, FEWEST_RECORDED, MOST_RECORDED, Recording


def length_side(recording: Recording, tokens: Count) -> tuple[int, int | None]:
    """The window that sequences of so many tokens have reached (0: none), and the next that they have not
    (None: there is none). Raises ValueError where several lengths lie on several sides.
    """
    begin = 0
    for window in sorted({*recording.windows, *(one.window for one in recording.caches if one.window)}):
        if not agreed(tokens >= window):
            return begin, window
        begin = window
    return begin, None


def side_words(recording: Recording, tokens: Count) -> dict[str, Any]:
    """What a way to run says of the lengths that it holds for: nothing where the sizes that records are
    solved from anyhow lie on the same side.
    """
    begin, end = length_side(recording, tokens)
    return (
        {} if begin <= FEWEST_RECORDED and (end is None or end > MOST_RECORDED) else {BETWEEN: [begin, end]}
    )
