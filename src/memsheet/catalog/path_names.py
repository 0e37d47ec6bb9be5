"""What a path's parts say of the model that lies there: a model's name among the words of the run that made
it, or a family in one part and a size in another. Only of families that say which generation they are.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from memsheet.late import late_functions
from memsheet.patterns import late_pattern

with late_functions(__name__):
    from memsheet.catalog.tuned_names import tells_shapes


SHORT = late_pattern(r"^l(?=[23](?:\.\d)?[-_]\d)", re.IGNORECASE)
"""Llama by its first letter, with its generation and a size behind it."""
RUN_WORDS = late_pattern(
    r"(?<![^-_])(?:"
    r"(?:lr|seed|steps?|epoch|ep|iter|global_step|checkpoint|ckpt)[-_]?\d+(?:\.\d+)?(?:e-?\d+)?"
    r"|\d+(?:\.\d+)?e-\d+|\d+[-_]?(?:ep|epochs?|steps?)|source|src|fix(?:ed)?|final|new|local|copy"
    r"|weights|ckpt|checkpoints?|models?|merged?|nc|hf"
    r"|mnli|qnli|wnli|sst-?2|qqp|mrpc|cola|rte|stsb|imdb|conll\d*|squad(?:[-_]?v?2)?)(?![^-_])",
    re.IGNORECASE,
)
"""Rates, seeds, counts of steps and epochs, what somebody calls a copy, and the tasks that encoders are tuned
to: nothing of shapes but a head of few classes.
"""
TUNED_RELEASE = late_pattern(r"([a-z][-_]?\d(?:\.\d)?[-_]\d+b)[-_]v\d+(?:\.\d+)*(?![^-_])", re.IGNORECASE)
"""Behind a size of a family that says its generation: the release of what was made of it."""
SIZE = late_pattern(r"^(\d+(?:\.\d+)?[bm])(?=$|[-_])", re.IGNORECASE)
GENERATION = late_pattern(r"^[a-z]{2,}[-_]?\d(?:\.\d)?$", re.IGNORECASE)
MOST_WORDS = 12


def without_run_words(part: str) -> str:
    """A part of a path without the words of a run; empty where it has none, or nothing else."""
    spelt = TUNED_RELEASE.sub(r"\1", SHORT.sub("llama-", part))
    bare = re.sub(r"[-_]{2,}", "-", RUN_WORDS.sub("", spelt)).strip("-_.")
    return bare if bare != part else ""


def family_and_size_names(parts: Sequence[str]) -> Iterator[str]:
    """Names of the families in the nearest part before one that begins with a size, with that size.
    ``parts``: the last first.
    """
    for at, part in enumerate(parts):
        bare = without_run_words(part) or part
        size = SIZE.match(bare)
        if size is not None and not tells_shapes(_words_of(bare[size.end() :])):
            families = next(filter(None, map(_families_of, parts[at + 1 :])), ())
            yield from (f"{family}-{size[1]}" for family in families)


def _words_of(part: str) -> list[str]:
    return re.split(r"[-_\s]+", part.lower())[:MOST_WORDS]


def _families_of(part: str) -> tuple[str, ...]:
    words = _words_of(part)
    if tells_shapes(words):
        return ()
    pairs = ("-".join(pair) for pair in itertools.pairwise(words))
    return tuple(word for word in (*words, *pairs) if GENERATION.fullmatch(word))
