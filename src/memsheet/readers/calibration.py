"""What measured steps said of this user's devices (``memsheet/calibration/1``), read back. Written by
cli/calibrate.py.

One entry a device and engine. ``MEMSHEET_CALIBRATION``: another file, or ``off`` for none.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from memsheet.errors import input_error
from memsheet.formulas.step_time import Efficiency
from memsheet.guard import parse_json, read_bytes

SCHEMA = "memsheet/calibration/1"
VARIABLE = "MEMSHEET_CALIBRATION"
OFF = "off"
MAX_BYTES = 2**20
SCALARS = ("compute", "attention", "communication")
MOST = 100.0
"""No device is a hundred times as fast as its kernels were measured."""


def calibration_file() -> Path | None:
    """Where entries are kept: in the user's folder of settings (XDG Base Directory Specification). None:
    switched off.
    """
    named = os.environ.get(VARIABLE)
    if named is not None and named.strip().lower() == OFF:
        return None
    if named:
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "memsheet" / "calibration.json"


def read_calibrations(path: Path) -> dict[str, Mapping[str, Any]]:
    """The entries of a file by ``entry_name``; none where there is no file. Raises InputError for a file that
    is something else.
    """
    with suppress(OSError):  # a name that no file can have is refused below
        if not path.exists():
            return {}
    found = parse_json(read_bytes(path, MAX_BYTES), str(path))
    if (
        not isinstance(found, Mapping)
        or found.get("schema") != SCHEMA
        or not isinstance(found.get("entries"), Mapping)
    ):
        raise input_error(str(path), None, f"is not {SCHEMA}", "remove it and calibrate again")
    return {
        str(name): entry
        for name, entry in found["entries"].items()
        if _check_scale_factors(path, name, entry)
    }


def _check_scale_factors(path: Path, name: str, entry: Any) -> bool:
    values = [entry.get(key) for key in SCALARS] if isinstance(entry, Mapping) else [None]
    if not all(
        isinstance(value, int | float) and math.isfinite(value) and 0 < value < MOST for value in values
    ):
        raise input_error(
            str(path),
            name,
            f"needs {', '.join(SCALARS)} above 0 and below {MOST:g}",
            "remove it and calibrate again",
        )
    return True


def entry_name(device: str, engine: str) -> str:
    return f"{device} {engine}"


def efficiency_of(device: str, engine: str) -> Efficiency | None:
    """What a measured step said of the engine on the device, or None: nothing was measured, or it is switched
    off.
    """
    path = calibration_file()
    entry = read_calibrations(path).get(entry_name(device, engine)) if path is not None else None
    if entry is None:
        return None
    records = entry.get("records")
    source = ", ".join(str(name) for name in records) if isinstance(records, list) else "a measured step"
    compute, attention, communication = (float(entry[key]) for key in SCALARS)
    return Efficiency(compute=compute, attention=attention, communication=communication, source=source)
