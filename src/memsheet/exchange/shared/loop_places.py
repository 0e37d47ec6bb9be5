"""Where what a script's own loop says stands among its values."""

from __future__ import annotations

from memsheet.exchange.shared.file_format import FileReading
from memsheet.exchange.shared.script_places import LOOP

DRIVER = "driver"
"""Under ``loop``: that the text speaks of accelerate's driver."""
OWN_WRAPS = ("fsdp1", "fsdp2", "deepspeed")
"""Wrappers of a script's own that divide the model, which no launcher undoes."""


def wraps_by_itself(read: FileReading) -> bool:
    """Whether it is a script that wraps its model itself, without accelerate's driver."""
    wrap = read.values.get(f"{LOOP}.wrap")
    return wrap in (*OWN_WRAPS, "ddp") and f"{LOOP}.{DRIVER}" not in read.values
