"""Machines that clouds rent by name, as their cards (instances.toml): ``p5.48xlarge`` has eight H100."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from memsheet.frozen import NamedTuple
from memsheet.patterns import late_pattern
from memsheet.plan.device import parse_gpus

CLOUDS = ("aws", "gcp", "azure")
_LOOKS_RENTED = late_pattern(
    r"\.\d*x?(?:large|metal)\b|^(?:standard[_-])?n[cdv]\d+\w*_v\d|\d+g(?:-metal)?$|^g2-standard",
    re.IGNORECASE,
)
"""What may be the name of such a machine: the table is read for no other."""
_MARKS = ("large", "metal", "_v", "g2-standard")

_COUNTED_AGAIN = late_pattern(r"[+-]?\d{1,7}\s*[xX×*]\s*\S")
"""The cards of one of several machines."""


class RentedCards(NamedTuple):
    """The cards of machines: how many in all (None where no machine is counted), which, and in one."""

    cards: int | None
    card: str
    each: int

    @property
    def gpus(self) -> str:
        return f"{self.each if self.cards is None else self.cards}x{self.card}"


@cache
def rented_machines() -> Mapping[str, tuple[str, int]]:
    """Names of machines in lower case → the card and how many of it one has."""
    import tomllib
    from pathlib import Path

    table = tomllib.loads((Path(__file__).parent / "instances.toml").read_text(encoding="utf-8"))
    return {
        name.lower(): (card, int(count))
        for cloud in CLOUDS
        for card, counts in table[cloud].items()
        for count, names in counts.items()
        for name in names
    }


def rented_cards(gpus: str) -> RentedCards | None:
    """``2xp5.48xlarge`` → 16 of H100-80GB, 8 in each, and ``2x4xRTX3090`` 8, 4 in each; None where nothing of
    that name is rented.
    """
    times, name = parse_gpus(gpus)
    if times is not None and _COUNTED_AGAIN.match(name):
        each, card = parse_gpus(name)
        return RentedCards(times * (each or 1), card, each or 1)
    if not _looks_rented(name):
        return None
    found = rented_machines().get(_plain_name(name))
    return RentedCards(None if times is None else times * found[1], *found) if found else None


def named_cards(gpus: str) -> tuple[int | None, str]:
    """How many cards a text counts, and their name: a rented machine's own."""
    rented = rented_cards(gpus)
    return parse_gpus(rented.gpus if rented else gpus)


def similar_machines(name: str) -> list[str]:
    """Rented machines that are spelt alike, where a name is of their kind."""
    if not _looks_rented(name.strip()):
        return []
    import difflib

    return difflib.get_close_matches(_plain_name(name[:MOST_LETTERS]), rented_machines(), n=3, cutoff=0.6)


def _looks_rented(name: str) -> bool:
    """By what such a name ends with or holds, before the pattern is asked."""
    told = name.casefold()
    marked = told.endswith(("g", "g\n")) or any(mark in told for mark in _MARKS)
    return marked and bool(_LOOKS_RENTED.search(name))


MOST_LETTERS = 64


def _plain_name(name: str) -> str:
    """Without what services put before it: ``ml.p5.48xlarge``, ``ND96asr_v4``."""
    plain = name.strip().lower().removeprefix("ml.")
    return f"standard_{plain}" if re.match(r"n[cdv]\d", plain) else plain
