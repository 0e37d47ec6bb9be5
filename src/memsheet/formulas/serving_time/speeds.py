"""What single operators reach at the batch sizes of decoding, from the catalogue: expected, fastest and
slowest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any

from memsheet.catalog import find_device, serving_rates
from memsheet.catalog import hardware_rates as dense_rates
from memsheet.formulas.step_time.rates import (
    COLLECTIVES_ALIKE,
    LINKS,
    MEASURED_ALIKE,
    UNMEASURED,
    Rates,
    rates_of,
)
from memsheet.formulas.step_time.replicas import Overlap
from memsheet.formulas.step_time.training_step import CALL_S, UNCALIBRATED
from memsheet.frozen import dataclass, replace
from memsheet.plan.device import Cluster, Device
from memsheet.plan.dtypes import DType

MICRO = 1e-6


class End(Enum):
    """Which end of the interval is reckoned."""

    FAST = 0
    VALUE = 1
    SLOW = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Seconds of an operator: ``start_s``, then bytes at a rate."""

    start_s: float
    bytes_per_s: float

    def seconds(self, nbytes: float) -> float:
        return self.start_s + nbytes / self.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """One end of what a cluster's device reaches. ``product`` and ``experts`` by the format of the weights
    (``format_of``), ``attention`` by whether the cache is in 8 bits. ``points``: seconds of an all-reduce by
    bytes, for each number of ranks. ``memory``: bytes a second that passes over memory reach.
    """

    end: End
    product: Mapping[str, Line]
    experts: Mapping[str, Line]
    attention: Mapping[bool, Line]
    least_s: float
    call_s: float
    started_s: float
    points: Mapping[int, Sequence[tuple[float, float]]]
    rates: Rates
    memory: float


FORMATS = {
    "fp8-block": "fp8_block",
    "fp8": "fp8",
    "mxfp8": "fp8",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "gguf:MXFP4": "mxfp4",
}
INSTEAD = {"fp8_block": "fp8", "fp8": "int8", "nvfp4": "int4", "mxfp4": "int4", "int4": "int8"}
"""The format whose kernels stand for one that was not measured on a card: weights of as many bits that are
unpacked on their way.
"""
ANYWHERE, HOPPER = "A100-80GB", "H100-80GB"
"""Whose kernels stand for those of cards about which nothing was measured, at half of their bandwidth; and
the other one with formats of its own.
"""
NVLINK_SHARED = "L40S"
"""Whose all-reduces go over the host's bus."""


def format_of(dtype: DType) -> str:
    """The key of a weight's format: by name, else by the bits of an element, 16 and more being one."""
    named = FORMATS.get(dtype.name)
    if named is not None:
        return named
    bits = dtype.bits / dtype.block
    return "bf16" if bits >= 16 else "int8" if bits > 6 else "int4"


@lru_cache(maxsize=64)
def speeds_of(cluster: Cluster, end: End) -> Speeds:
    """Raises InputError for a device whose rate of arithmetic nobody knows."""
    table, device, rates = serving_rates(), cluster.device, rates_of(cluster)
    band = {End.FAST: UNCALIBRATED.fast, End.VALUE: 1.0, End.SLOW: UNCALIBRATED.slow}[end]
    scaled = replace(rates.efficiency, compute=band, attention=band, communication=min(band, 1.0))
    reach = _device_reach(table, device)
    rows = {kind: _lines_by_format(table[kind], device) for kind in ("product", "experts")}
    caches = table["attention"].get(
        _measured_card_name(table["attention"], device), table["attention"][ANYWHERE]
    )
    host = {End.FAST: Overlap.ALL, End.VALUE: Overlap.ENGINE, End.SLOW: Overlap.NONE}[end]
    return Speeds(
        end=end,
        rates=rates.with_efficiency(scaled),
        memory=reach.at(rates.memory, end),
        product={key: _speed_line(row, reach, end) for key, row in rows["product"].items()},
        experts={key: _speed_line(row, reach, end) for key, row in rows["experts"].items()},
        attention={low: _cache_line(caches, reach, end, low=low) for low in (False, True)},
        least_s=table["least_us"].get(
            _measured_card_name(table["least_us"], device), table["least_us"][ANYWHERE]
        )
        * MICRO,
        call_s=CALL_S[host],
        started_s=_all_reduces(table, cluster)["started"] * MICRO,
        points=_all_reduce_points(table, cluster),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """A device's bandwidth, and what bounds it below where the card itself was not measured: bytes a second
    that as many multiprocessors read on the cards of its kind, more and less.
    """

    bandwidth: float
    known: bool  # its kind was measured
    more: float = float("inf")
    less: float = float("inf")

    def at(self, bytes_per_s: float, end: End) -> float:
        if not self.known:
            return {
                End.FAST: self.bandwidth,
                End.VALUE: UNMEASURED * self.bandwidth,
                End.SLOW: UNMEASURED**2 * self.bandwidth,
            }[end]
        return min(bytes_per_s, {End.FAST: float("inf"), End.VALUE: self.more, End.SLOW: self.less}[end])


def _device_reach(table: Mapping[str, Any], device: Device) -> Reach:
    of = dense_rates()["device"]
    bandwidth = of[device.name]["memory_bandwidth_tb_s"] * 1e12
    if device.name in table["product"]:
        return Reach(bandwidth=bandwidth, known=True)
    kind = MEASURED_ALIKE.get(device.compute_capability or "")
    count = table["multiprocessors"]
    if kind is None or device.name not in count:
        return Reach(bandwidth=bandwidth, known=kind is not None)
    alike = [
        name
        for name in table["product"]
        if name in count and find_device(name).compute_capability == device.compute_capability
    ]
    each = [
        of[name]["memory_bandwidth_tb_s"] * 1e12 * table["product"][name]["bf16"][1] / count[name]
        for name in alike
    ]
    if not each:
        return Reach(bandwidth=bandwidth, known=True)
    return Reach(
        bandwidth=bandwidth,
        known=True,
        more=max(each) * count[device.name],
        less=min(each) * count[device.name],
    )


def _measured_card_name(table: Mapping[str, Any], device: Device) -> str:
    """The measured card that stands for one."""
    return (
        device.name if device.name in table else MEASURED_ALIKE.get(device.compute_capability or "", ANYWHERE)
    )


def _lines_by_format(table: Mapping[str, Any], device: Device) -> Mapping[str, Any]:
    """Lines by format, those a card was not measured with from cards that were."""
    own: Mapping[str, Any] = table.get(_measured_card_name(table, device), {})
    others = [table[name] for name in (ANYWHERE, HOPPER) if name in table]
    return {
        kind: _fallback_line(kind, own, others)
        for kind in ("bf16", "int8", "int4", "fp8", "fp8_block", "nvfp4", "mxfp4")
    }


def _fallback_line(kind: str, own: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Any:
    """The line of a format: the card's own, else its own of a format that stands for it, else another card's,
    else that of 16 bits.
    """
    chain = [kind]
    while chain[-1] in INSTEAD:
        chain.append(INSTEAD[chain[-1]])
    return next(
        (row[key] for row in (own, *others) for key in chain if key in row),
        own.get("bf16") or others[0]["bf16"],
    )


def _speed_line(row: Sequence[float], reach: Reach, end: End) -> Line:
    start, share, fast, slow = row
    factor = {End.FAST: 1 + fast, End.VALUE: 1.0, End.SLOW: 1 + slow}[end]  # of the speed
    return Line(start_s=start * MICRO / factor, bytes_per_s=reach.at(share * reach.bandwidth, end) * factor)


def _cache_line(row: Mapping[str, Any], reach: Reach, end: End, *, low: bool) -> Line:
    """Of a card whose 8-bit caches were not measured: those of 16 bits."""
    prefix = "fp8_" if low and "fp8_share" in row else ""
    place, share = end.value, row[f"{prefix}share"][2 - end.value]
    return Line(
        start_s=row[f"{prefix}start_us"][place] * MICRO, bytes_per_s=reach.at(share * reach.bandwidth, end)
    )


def _all_reduces(table: Mapping[str, Any], cluster: Cluster) -> Mapping[str, Any]:
    device, of = cluster.device, table["all_reduce"]
    if device.name in of:
        name = device.name
    else:
        name = (
            COLLECTIVES_ALIKE.get(device.compute_capability or "", ANYWHERE)
            if cluster.links.scale_up
            else NVLINK_SHARED
        )
    row: Mapping[str, Any] = of[name]
    return {**row, "name": name}


def _all_reduce_points(
    table: Mapping[str, Any], cluster: Cluster
) -> Mapping[int, Sequence[tuple[float, float]]]:
    """Seconds by bytes; what comes on top of a short one in the ratio of the links."""
    row = _all_reduces(table, cluster)
    usual = LINKS.get(row["name"]) or LINKS["pcie"]
    rate = cluster.links.scale_up or cluster.links.host or usual
    found = {}
    for ranks in ("2", "4", "8"):
        sizes = sorted((float(size), us * MICRO) for size, us in row[ranks].items())
        first = sizes[0][1]
        found[int(ranks)] = tuple(
            (size, first + (seconds - first) * (1.0 if usual == LINKS["pcie"] else usual / rate))
            for size, seconds in sizes
        )
    return found
