"""A verdict's sizes in words that agree with one another: needs are rounded up, rooms down, and what fits
looks as if it did.
"""

from __future__ import annotations

from memsheet.budget import Verdict
from memsheet.formulas.runtime import driver_context
from memsheet.frozen import replace
from memsheet.plan.device import Basis, Cluster, Device
from memsheet.report.shared.look import Look
from memsheet.sheet import Bytes
from memsheet.units import GIB

MOST_DIGITS = 6


def look_with_exact_digits(verdict: Verdict | None, cluster: Cluster | None, look: Look) -> Look:
    """The look with as many digits as it takes for rounded sizes to say what the exact ones do: a need that
    is no more than the room is printed as no more than it.
    """
    if verdict is None or cluster is None:
        return look
    device = cluster.device
    pairs = (
        (verdict.device.high, device.framework_low_bytes),
        (verdict.device.value, device.framework_bytes),
    )
    fitting = [(int(need), int(room)) for need, room in pairs if need < room]
    look = replace(look, brims=tuple({*look.brims, *(int(need) for need, room in pairs if need == room)}))
    unit = 10**9 if look.decimal else GIB
    for digits in range(look.digits, MOST_DIGITS):
        if all(-(-need * 10**digits // unit) <= room * 10**digits // unit for need, room in fitting):
            return replace(look, digits=digits)
    return replace(look, digits=MOST_DIGITS)


def need_and_room(
    device: Device, verdict: Verdict, look: Look, beside_segments: Bytes | None = None
) -> tuple[str, ...]:
    """What a GPU needs, of what a framework gets of the card, and the range of the need. Where nobody has
    seen what is got, that is a range of its own, in a phrase of its own. ``beside_segments``: what it needs
    without those that the allocator keeps, where these decide.
    """
    need, ends = look.need(verdict.device.value, look.digits), _range_of_need(device, verdict, look)
    if beside_segments is not None:
        need, ends = look.need(beside_segments.value, look.digits), f"{need} with cached segments · {ends}"
    given = device_capacity_words(device, verdict, look)
    return (
        (f"needs {need} of {given} per GPU", ends)
        if given
        else (f"needs {need} per GPU", ends, f"a card gives {_capacity_range_words(device, look)}")
    )


def _range_of_need(device: Device, verdict: Verdict, look: Look) -> str:
    """The ends of a need, those that anything is known of: what an idle process takes is no job's least."""
    if verdict.no_most:
        return f"range {look.need(verdict.device.low, look.digits)} or more"
    if verdict.device.low <= driver_context(device)[0].low < verdict.device.high:
        return f"range up to {look.need(verdict.device.high, look.digits)}"
    return size_range_suffix(verdict.device, look).strip(" ()")


def device_capacity_words(device: Device, verdict: Verdict, look: Look) -> str:
    """What a framework gets of a card, the size of which ``headroom_phrase`` is what is left; nothing where
    that is a range. Where some were seen with less, that is told when it decides.
    """
    low = look.room(device.framework_low_bytes, look.digits)
    if device.basis is not Basis.REPORTED:
        return low if _capacity_range_words(device, look) == low else ""
    given = look.room(device.framework_bytes, look.digits)
    decides = device.framework_low_bytes < verdict.device.high <= device.framework_bytes and low != given
    return f"{given} ({low} on some)" if decides else given


def _capacity_range_words(device: Device, look: Look) -> str:
    """The least and the most that a framework may get of a card."""
    low, high = (
        look.room(device.framework_low_bytes, look.digits),
        look.room(device.framework_high_bytes, look.digits),
    )
    return low if low == high else format_size_span(low, high)


def headroom_phrase(device: Device, verdict: Verdict, look: Look) -> str:
    """What is left of a card, or lacks; of one that nobody has seen, of the least it may give."""
    size, least = (
        verdict.headroom_bytes,
        "" if device_capacity_words(device, verdict, look) else " of the least it gives",
    )
    if size < 0:
        return f"{look.need(-size, look.digits)} {'more than the least it gives' if least else 'too much'}"
    return f"{look.room(size, look.digits)} free{least}"


def size_range_suffix(size: Bytes, look: Look) -> str:
    """The ends of a range, where they are not all printed as the size itself is."""
    low, value, high = (look.need(end, look.digits) for end in (size.low, size.value, size.high))
    return "" if low == value == high else f" (range {format_size_span(low, high)})"


def format_size_span(low: str, high: str) -> str:
    """Two sizes as a range, the unit once where it is the same."""
    number, unit = low.split(" ")
    return f"{number} to {high}" if high.endswith(f" {unit}") else f"{low} to {high}"
