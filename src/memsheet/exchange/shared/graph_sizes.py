"""Lists of the sizes that a server records as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import Values


def largest_of_sizes(*largest: str) -> Callable[[Any, Values], Mapping[str, Any]]:
    """How a list of sizes is read: by its largest, where none of the flags that name that alone is beside it.
    What is no list of numbers is left to the check of what it says.
    """

    def read(value: Any, values: Values) -> Mapping[str, Any]:
        if any(flag in values for flag in largest):
            return {}
        sizes = value if isinstance(value, list) else [value]
        whole = [int(size) if str(size).isdecimal() else 0 for size in sizes]
        return {"serving.graph_sequences": max(whole) if whole and min(whole) > 0 else value}

    return read
