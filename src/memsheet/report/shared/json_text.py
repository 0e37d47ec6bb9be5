"""JSON as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def dump_json_line(document: Mapping[str, Any], *, indent: int | None = None) -> str:
    """One JSON object and a newline. Plain ASCII, so that any terminal and pipe takes it; NaN is never
    written.
    """
    return json.dumps(document, allow_nan=False, indent=indent) + "\n"
