"""Bundled models that a text names by their hub ids: rows of the output projection and heads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from memsheet.catalog import find_model

_HUB_ID = re.compile(
    r"(?<![\w./-])[A-Za-z0-9][\w.-]{1,60}/[A-Za-z0-9][\w.-]{1,90}(?![\w/])"
    r"|(?<!\w)models--[\w.-]{3,150}(?=/|\s|$)"
)
MOST = 256
"""Different names that are looked up: a path of two parts looks like one."""


@lru_cache(maxsize=8)
def model_axes(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Vocabularies and attention heads of all that are named, each once; nothing where none is bundled."""
    configs = tuple(_named_configs(text))
    return tuple(
        tuple(
            dict.fromkeys(count for each in configs if isinstance(count := each.get(key), int) and count > 0)
        )
        for key in ("vocab_size", "num_attention_heads")
    )  # type: ignore[return-value]


def _named_configs(text: str) -> Iterator[Mapping[str, Any]]:
    names = dict.fromkeys(found.group().rstrip(".") for found in _HUB_ID.finditer(text))
    for name in list(names)[:MOST]:
        hub_id = name.removeprefix("models--").replace("--", "/", 1) if name.startswith("models--") else name
        found = find_model(hub_id)
        if found is not None:
            config = found["config"]
            yield {**config, **config.get("text_config", {})}
