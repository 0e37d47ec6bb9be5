"""Servers whose memory nobody accounts yet: the sheet is of another's accounting, and says so. Weights and
cache are the same bytes in both; activations, workspaces, graphs and what is kept free are the other's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import Key, Values

ACCOUNTING = "accounting"
"""The place of a server's name among the values of its files."""
STAND_IN_ENGINE = "vLLM"
WHOLE_TEXTS = "whole texts"
"""The place among the values of files that says that their server reads whole texts at once, with neither a
cache nor logits, whatever its model could write.
"""
FREE_SHARE = "kv_cache_config.free_gpu_memory_fraction"
"""The place of a share that is given to the cache of what is free beside weights and a batch
(NVIDIA/TensorRT-LLM 00209af1 llmapi/llm_args.py, KvCacheConfig).
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


SURE_SHARE = 0.8
"""Of what is free: from here on the same share of the whole card is taken where no card is known. A smaller
one would leave the weights no room.
"""


def cache_share(value: Any, _: Values) -> Mapping[str, Any]:
    """A share of what is free as one of the card, until a card says how much that is."""
    counted = isinstance(value, float) and SURE_SHARE <= value < 1
    return {"serving.memory_fraction": value} if counted else {}


def share_of_free(values: Values) -> float | None:
    """The share of what is free that a server gives its cache; None where its files say none."""
    share = values.get(FREE_SHARE) if ACCOUNTING in values else None
    counted = isinstance(share, int | float) and not isinstance(share, bool) and 0 < share < 1
    return float(share) if counted and share is not None else None


def share_of_card(share: float, total: int, requested: int, left: int) -> float:
    """The same as a share of the card, by what lives beside the cache: of ``total`` bytes of a card,
    ``requested`` leave the cache ``left``.
    """
    used = min(total, max(0, requested - left))
    return (used + share * (total - used)) / total
