"""Servers whose memory nobody accounts yet: the sheet is of another's accounting, and says so. Weights and
cache are the same bytes in both; activations, workspaces, graphs and what is kept free are the other's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import Key, Values

ACCOUNTING = "accounting"
"""The place of a server's name among the values of its files."""
SMALL, STAND_IN_ENGINE = "cache_share", "vLLM"
SURE_SHARE = 0.8
"""Of what is free, given to the cache: from here on the same share of the whole card leaves the cache less,
by the share that is not given of the weights. A smaller one would leave the weights no room.
"""


def stand_in_row(engine: str = STAND_IN_ENGINE) -> Key:
    """The row that tells whose accounting the sheet is of."""
    return Key(
        at=ACCOUNTING,
        out=lambda _: None,
        back=lambda *_: {},
        holds=(engine,),
        instead=f"activations, workspaces and graphs of {engine} beside the same weights and cache",
        source="no engine of that name is accounted",
    )


def cache_share(value: Any, _: Values) -> Mapping[str, Any]:
    """A share of what is free as one of the card, where that is the smaller cache."""
    counted = isinstance(value, float) and SURE_SHARE <= value < 1
    return {"serving.memory_fraction": value} if counted else {}


def small_share(value: Any) -> Mapping[str, Any]:
    """A share that is not counted so, as a value beside."""
    told = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < SURE_SHARE
    return (
        {SMALL: f"{value} of what is free (the sheet is of {STAND_IN_ENGINE}'s own share of the card)"}
        if told
        else {}
    )
