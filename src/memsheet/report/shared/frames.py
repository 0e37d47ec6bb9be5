"""Rows as a table of whatever library is installed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from memsheet.errors import input_error

LIBRARIES = ("pandas", "polars", "pyarrow")
"""In the order in which they are looked for."""


def frame_of(rows: Sequence[dict[str, Any]]) -> Any:
    """``rows`` as a pandas or polars DataFrame, or a pyarrow Table: of the first that is installed. Raises
    InputError where none is.
    """
    name = next((name for name in LIBRARIES if find_spec(name)), None)
    if name is None:
        raise input_error(
            "to_frame", None, "needs a library of tables, and none is installed", "pip install pandas"
        )
    library = import_module(name)
    return library.Table.from_pylist(list(rows)) if name == "pyarrow" else library.DataFrame(list(rows))
