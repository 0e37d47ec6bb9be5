"""A verdict's sizes in words that agree with one another: needs are rounded up, rooms down, and what fits looks as if it did."""

from __future__ import annotations

from dataclasses import replace

from memsheet.budget import Verdict
from memsheet.report.bars import Look
from memsheet.sheet import Bytes
from memsheet.spec.device import Basis, Cluster, Device
from memsheet.units import GIB

MOST_DIGITS = 6


def closing(verdict: Verdict | None, cluster: Cluster | None, look: Look) -> Look:
    """The look with as many digits as it takes for rounded sizes to say what the exact ones do: a need that is no more than the room is
    printed as no more than it.
    """
    if verdict is None or cluster is None:
        return look
    device = cluster.device
    pairs = ((verdict.device.high, device.framework_low_bytes), (verdict.device.value, device.framework_bytes))
    fitting = [(int(need), int(room)) for need, room in pairs if need < room]
    look = replace(look, brims=tuple({*look.brims, *(int(need) for need, room in pairs if need == room)}))
    unit = 10**9 if look.decimal else GIB
    for digits in range(look.digits, MOST_DIGITS):
        if all(-(-need * 10**digits // unit) <= room * 10**digits // unit for need, room in fitting):
            return replace(look, digits=digits)
    return replace(look, digits=MOST_DIGITS)


def capacity(device: Device, verdict: Verdict, look: Look) -> str:
    """What a framework gets of a card: the size of which ``headroom`` is what is left, as a range where nobody has seen it printed. Where some were
    seen with less, that is told when it decides.
    """
    low, high = look.room(device.framework_low_bytes, look.digits), look.room(device.framework_high_bytes, look.digits)
    if device.basis is not Basis.REPORTED:
        return low if low == high else span(low, high)
    given = look.room(device.framework_bytes, look.digits)
    decides = device.framework_low_bytes < verdict.device.high <= device.framework_bytes and low != given
    return f"{given} ({low} on some)" if decides else given


def headroom(verdict: Verdict, look: Look) -> str:
    size = verdict.headroom_bytes
    return f"{look.need(-size, look.digits)} too much" if size < 0 else f"{look.room(size, look.digits)} free"


def spread(size: Bytes, look: Look) -> str:
    if size.low == size.high:
        return ""
    return f" (range {span(look.need(size.low, look.digits), look.need(size.high, look.digits))})"


def span(low: str, high: str) -> str:
    """Two sizes as a range, the unit once where it is the same."""
    number, unit = low.split(" ")
    return f"{number} to {high}" if high.endswith(f" {unit}") else f"{low} to {high}"
