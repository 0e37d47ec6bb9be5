"""What changes from release to release of SGLang, and a release's number."""

from __future__ import annotations

import re
from enum import Enum

from memsheet.frozen import dataclass


class Reserve(Enum):
    """How mem_fraction_static is chosen where nobody says."""

    RANKS = "ranks"  # by the number of tensor-parallel ranks
    RANKS_OR_LARGE = "ranks or large"  # the same, and by a fixed size kept free on cards above 80 GiB
    CARD = "card"  # by a size kept free for each tier of cards, and for each rank
    TOKENS = "tokens"  # by the tokens of a chunk, the captured sequences, and the ranks
    TOKENS_AND_CHUNKS = "tokens and chunks"  # and by the captured chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """What cards below a size take: tokens of a chunk of a prompt; sequences of the largest CUDA graph, and
    where four ranks share a model; MiB that are kept free, and for each rank.
    """

    below_mib: int
    chunk_tokens: int
    graph_sequences: int
    shared_graph_sequences: int
    kept_mib: float = 0
    rank_mib: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Facts of a release. It stands for all after it until the next one in the table."""

    tag: str
    since: tuple[int, int, int]
    tiers: tuple[Tier, ...]
    reserve: Reserve
    windowed: frozenset[str] = (
        frozenset()
    )  # families whose windows have a pool of their own; others keep windows whole
    prints_dtype: bool = False


def version_of(version: str | None) -> tuple[int, ...]:
    """A release's number, one past all where none is said."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", version or "")
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else (10**6,)
