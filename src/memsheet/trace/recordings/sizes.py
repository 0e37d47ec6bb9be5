"""At which sizes a model is run for a record, and between which lengths its code acts alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memsheet.recording import FEWEST_RECORDED, MOST_RECORDED
from memsheet.run.model import text_config_of
from memsheet.trace.recordings.observe import NoFunctionError
from memsheet.trace.recordings.solve import Size

PROOF = 2592
"""Tokens of the sequence that proves: a multiple of 32, to which kernels round, and of no larger power of 2:
code that pads to its chunks is no function of tokens here.
"""
ONE: tuple[Size, ...] = ((1, FEWEST_RECORDED), (1, MOST_RECORDED), (1, PROOF))
"""Sizes of one sequence, and at last the one that proves. With one sequence torch takes other paths: its
batch is no dimension to copy for.
"""
SEVERAL: tuple[Size, ...] = ((2, FEWEST_RECORDED), (3, FEWEST_RECORDED), (2, MOST_RECORDED), (5, PROOF))
"""Sizes of several, likewise."""
POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len")
OFFSET = 2  # positions that roberta and its kin begin with (modeling_roberta.py, padding_idx + 1)
LOOPED = ((32, (1, 3, 2)), (64, (7, 15, 11)), (256, (2, 7, 5)))
"""Tokens that loops are put on record at, where the lengths above are too many turns: a unit, and the
shortest, the longest and the proving sequence in it. Loops over tokens are known by the first; loops over
chunks need several chunks, and are a function of whole ones alone.
"""
EIGHT = 8
SHORTEST = 16  # as few tokens are no length: experts of a token, layers, sizes of convolutions
ACTS_AT = re.compile(r"window|chunk|block_size|top_?k|budget|compress")
"""Names of a config's numbers that are lengths at which its code may act otherwise. One that is none costs a
record of its own for sequences shorter than it, and nothing else.
"""


def most_positions(config: Any) -> int | None:
    """Tokens that a sequence may have, where a config says."""
    texts = (text_config_of(config), getattr(config, "decoder", None))
    found = [getattr(text, name, None) for text in texts for name in POSITIONS]
    return min((value for value in found if isinstance(value, int) and value > 0), default=None)


def acting_lengths(config: Any) -> tuple[int, ...]:
    """Lengths at which attention (or what stands in its place) may begin to act otherwise, of a config."""
    return tuple(sorted({*_acting_lengths(text_config_of(config).to_dict())}))


def _acting_lengths(values: Mapping[str, Any], named: bool = False) -> Iterator[int]:
    for name, value in values.items():
        acts = named or ACTS_AT.search(str(name)) is not None
        if isinstance(value, Mapping):
            yield from _acting_lengths(value, acts)
        elif acts:
            several = value if isinstance(value, list | tuple) else (value,)
            yield from (each for each in several if type(each) is int and each > SHORTEST)


def within_positions(sizes: Sequence[Size], most: int | None) -> tuple[Size, ...]:
    """The sizes in a model's own room for positions: in the same proportions, of whole eights."""
    longest = max(tokens for _, tokens in sizes)
    if most is None or most >= longest:
        return tuple(sizes)
    return tuple(
        (sequences, max(EIGHT, tokens * (most - OFFSET) // longest // EIGHT * EIGHT))
        for sequences, tokens in sizes
    )


def between_windows(sizes: Sequence[Size], begin: int, end: int | None) -> tuple[Size, ...]:
    """The sizes moved to where sequences have ``begin`` tokens or more, and fewer than ``end``. Raises
    NoFunctionError where so few lengths lie there that none is left to prove.
    """
    if not begin:
        return _distinct_sizes(within_positions(sizes, None if end is None else end + OFFSET - 1))
    first, longest = -(-begin // EIGHT) * EIGHT, max(tokens for _, tokens in sizes)
    shortest = min(tokens for _, tokens in sizes)
    room = longest - shortest if end is None else min(longest - shortest, (end - 1) // EIGHT * EIGHT - first)
    return _distinct_sizes(
        (sequences, first + (tokens - shortest) * room // (longest - shortest) // EIGHT * EIGHT)
        for sequences, tokens in sizes
    )


def _distinct_sizes(sizes: Sequence[Size] | Iterator[Size]) -> tuple[Size, ...]:
    found = tuple(sizes)
    if len(set(found)) < len(found) or len({tokens for _, tokens in found}) < len(ONE):
        raise NoFunctionError("its windows are too near one another")
    return found


def looped_sizes(
    sizes: Sequence[Size], windows: Sequence[int], unit: int, counts: Sequence[int]
) -> tuple[Size, ...]:
    """The sizes in units of a loop, on the side of all ``windows`` on which they were. Raises
    NoFunctionError where they have no room there.
    """
    lengths = sorted({tokens for _, tokens in sizes})
    proof = sizes[-1][1]
    begin = max((window for window in windows if window <= lengths[0]), default=0)
    first = -(-begin // unit) * unit
    shortest, longest, proving = (first + unit * count for count in counts)
    if longest > lengths[-1]:
        raise NoFunctionError("its loops have no room between its windows")
    moved = {lengths[0]: shortest, lengths[-1]: longest, proof: proving}
    return tuple((sequences, moved[tokens]) for sequences, tokens in sizes)
