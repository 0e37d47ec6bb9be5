"""Names of Python distributions, where code means the package that is installed and not an engine."""

from __future__ import annotations

TRANSFORMERS = "transformers"
DEEPSPEED = "deepspeed"
JOB_PROGRAMS = frozenset(
    {"areal", "nemo-rl", "openrlhf", "prime-rl", "roll", "skyrl", "slime", "trl", "verl"}
)
"""Packages that start jobs of several models, whose releases are told like an engine's."""
