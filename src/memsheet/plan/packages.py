"""Names of Python distributions, where code means the package that is installed and not an engine."""

from __future__ import annotations

TRANSFORMERS = "transformers"
DEEPSPEED = "deepspeed"
