"""How layers are dealt to devices by shares, in the single precision that llama.cpp computes with."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from struct import pack, unpack
from typing import Any

from memsheet.errors import input_error
from memsheet.references import LLAMA_CPP, formula

MAX_DEVICES = 16
"""Shares that are read (llama_max_devices)."""


def _single(value: float) -> float:
    return float(unpack("f", pack("f", value))[0])


def split_points(text: str, devices: int) -> tuple[float, ...] | None:
    """Where the part of each device ends, from 0 to 1: shares summed, over their sum. Devices without a
    number have none (common/arg.cpp, --tensor-split). None of a text that is no list of shares, or of
    zeros alone.
    """
    parts = re.split("[,/]+", text.strip())
    try:
        shares = [_single(float(part)) for part in parts]
    except (ValueError, OverflowError):
        return None
    shares = (shares + [0.0] * devices)[:devices]
    ends, total = list[float](), 0.0
    for share in shares:
        total = _single(total + share)
        ends.append(total)
    if not 0 < total < float("inf") or min(shares) < 0:
        return None
    return tuple(_single(end / total) for end in ends)


@formula(
    cites=LLAMA_CPP,
    at="llama-model.cpp load_tensors: the first device whose part ends behind a layer's place",
    counts="int",
)
def device_at(ends: tuple[float, ...], layer: int, layers: int) -> int:
    """The device of a layer, the output the last of ``layers``."""
    return bisect_right(ends, _single(layer / layers))


def dealt_layers(layers: int, devices: int, request: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Layers of each device where a request deals them by shares, or to one device alone.

    Raises InputError for a device that is not there.
    """
    found = [0] * devices
    if request.get("serving.split_mode") == "none":
        main = int(request.get("serving.main_gpu") or 0)
        if main >= devices:
            raise input_error("serving.main_gpu", main, f"is none of {devices} devices", "a number from 0 on")
        found[main] = layers
        return tuple(found)
    ends = split_points(str(request.get("serving.tensor_split") or ""), devices)
    if ends is None:
        return None
    for layer in range(layers):
        found[device_at(ends, layer, layers + 1)] += 1
    return tuple(found)
