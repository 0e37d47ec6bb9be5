"""What a requested size may be: a term, and how well it is founded."""

from __future__ import annotations

import math
import re

from memsheet.diagnose.figures import PAGE
from memsheet.diagnose.interval import Interval
from memsheet.diagnose.message import Term
from memsheet.diagnose.named_cards import NamedCard
from memsheet.frozen import NamedTuple

OF_SHEET, BOTH_KNOWN = 5, 4
"""How well a candidate is founded."""
Widths = tuple[tuple[int, str], ...]
WIDTHS: Widths = ((4, "fp32"), (2, "bf16"))
POWERS = frozenset(2**power for power in range(7, 21))
"""Counts of tokens that are common."""
RAISED = re.compile(r"\.float\(\)|\.to\(torch\.float(?:32)?\)|dtype=torch\.float(?:32)?\b")
"""What in a line of code makes fp32 of another dtype."""
_LOWERED = re.compile(r"\.to\(\s{0,3}(?!torch\.float(?:32)?\b)\w")
IN_16_BITS = re.compile(
    r"(?<![a-z0-9])(?<!\bno )(?<!\bnot )(?<!\bwithout )(?<!\binstead of )(?<!\bno_)b?f(?:p|loat)?16(?![a-z0-9])(?!\s(?:is |was )?(?:off|disabled)\b)(?![\"']?\s{0,2}[:=]\s{0,2}[\"']?(?:false|null|none|no|0)\b)"
    r"|\b(?:pretrain|finetune)_recipe\b",
    re.IGNORECASE,
)  # fmt: skip
"""What says that a job computes in 16 bits; NeMo's recipes do unless told otherwise (nemo/collections/llm/
recipes/llama3_8b.py, bf16_mixed).
"""
BY_CHANCE = (1, 20)
"""The most by which a product of common sizes may fit by chance, where nothing but the size says that it is
one.
"""


def raises(code: str) -> bool:
    """Whether a line makes fp32 of another dtype, and nothing else of it again."""
    return bool(RAISED.search(code)) and not _LOWERED.search(code)


class Axes(NamedTuple):
    """What is known of a job's sizes; ``sheet``: tensors of its plan by component, path and bytes;
    ``recomputes``, ``eight_bits``, ``single_rows``: whether its plan computes every layer again, keeps states
    of few bits, and was said to have one row in a micro-batch; ``card``: that it runs on.
    """

    vocabularies: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    sheet: tuple[tuple[str, str, int], ...] = ()
    recomputes: bool = False
    eight_bits: bool = False
    single_rows: bool = False
    card: NamedCard | None = None

    @property
    def counts(self) -> tuple[int, ...]:
        """Tokens of a micro-batch, one length or several."""
        return tuple(sorted({n * batch for n in self.tokens for batch in (1, *self.batches)}))

    @property
    def likely_counts(self) -> tuple[int, ...]:
        """Those of whole micro-batches, where a text says how many sequences one has."""
        return tuple(sorted({n * batch for n in self.tokens for batch in self.batches or (1,)}))

    @property
    def shifted_counts(self) -> tuple[int, ...]:
        """The same without the last token of each sequence."""
        return tuple(sorted({(n - 1) * batch for n in self.tokens for batch in (1, *self.batches) if n > 1}))

    @property
    def lengthened_counts(self) -> tuple[int, ...]:
        """The same with one token more of each sequence."""
        return tuple(sorted({(n + 1) * batch for n in self.tokens for batch in (1, *self.batches)}))


class Candidate(NamedTuple):
    """A term, and how well it is founded: known factors, then whether it needs no rounding up to pages."""

    rank: tuple[int, int]
    term: Term


def fit_of(asked: Interval, size: int) -> int:
    """How a tensor of ``size`` bytes fits a request: 2 as it is, 1 rounded up to pages, 0 not."""
    if asked.low <= size <= asked.high:
        return 2
    rounded = -(-size // PAGE) * PAGE
    return 1 if asked.low <= rounded <= asked.high else 0


def rows_of(asked: Interval, row_bytes: int) -> tuple[int, int] | None:
    """The fewest and the most rows that a request may be, where several may; one that the allocator rounds up
    to whole pages may be smaller by most of one.
    """
    fewest = max(1, -(-(asked.low - PAGE + 1) // row_bytes))
    most = asked.high // row_bytes
    return (fewest, most) if most > fewest else None


def fits_by_chance(asked: Interval, tries: int) -> bool:
    """Whether one of so many sizes, spread evenly between a number and its double, would lie within what the
    message may stand for more often than ``BY_CHANCE``.
    """
    share = tries * (asked.high - asked.low) / (asked.middle * math.log(2))
    return share * BY_CHANCE[1] > BY_CHANCE[0]
