"""The links of a cluster file: rates with their unit, in the text or in the key, and what no link of the
device can be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.errors import InputError, Problem
from memsheet.plan.device import RATES, Device, Links
from memsheet.readers.fields import Fields
from memsheet.units import parse_rate

UNITS = {"_gb_s": 10**9, "_gbit_s": 10**9 // 8}
"""How a key says the unit of a number: bytes a second of one."""
KEYS = tuple(f"{name}{unit}" for name in RATES for unit in ("", *UNITS))
RATE_LOW, RATE_HIGH = 10**6, 10**13
"""1 MB/s and 10 TB/s: no link of a device is slower or faster."""
NEAR = 0.02
"""How exactly twice the usual rate a rate is that counts both directions."""


def links_of(fields: Fields) -> Links:
    """The rates that are said; what is wrong with the others joins the problems."""
    return Links(
        scale_up=_link_bytes_per_s(fields, "scale_up"),
        scale_out=_link_bytes_per_s(fields, "scale_out"),
        host=_link_bytes_per_s(fields, "host"),
    )


def _link_bytes_per_s(fields: Fields, name: str) -> int | None:
    """Bytes a second of a link, however they are written."""
    given = [key for key in (name, *(name + unit for unit in UNITS)) if fields.data.get(key) is not None]
    if len(given) > 1:
        fields.wrong(given[1], fields.data[given[1]], f"says what {given[0]} says", "once is enough")
    if not given:
        return None
    key, value = given[0], fields.data[given[0]]
    rate = (
        _parse_rate_text(fields, name, value)
        if key == name
        else _scale_rate_number(fields, key, value, UNITS[key.removeprefix(name)])
    )
    if rate is not None and not RATE_LOW <= rate <= RATE_HIGH:
        fields.wrong(
            key,
            value,
            "is no rate of a device's link",
            "it is of one device in one direction, from 1 MB/s to 10 TB/s",
        )
        return None
    return rate


def _parse_rate_text(fields: Fields, name: str, value: Any) -> int | None:
    if not isinstance(value, str):
        hint = f'say {name} = "450 GB/s" (bytes) or "400 Gbit/s" (bits), or {name}_gb_s = 450'
        fields.wrong(name, printable_scalar(value), "has no unit", hint)
        return None
    try:
        return parse_rate(value, f"{fields.where}.{name}")
    except InputError as error:
        fields.problems += error.problems
        return None


def _scale_rate_number(fields: Fields, key: str, value: Any, unit: int) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        fields.wrong(
            key,
            printable_scalar(value),
            "is not a number",
            'the key says the unit; without it a text may: "450 GB/s"',
        )
        return None
    return int(value * unit)


def bidirectional_rate_problems(links: Links, device: Device, where: str) -> Iterator[Problem]:
    """Rates that count both directions, or all devices of a node: no single link of the device is so fast."""
    for name, usual in (("scale_up", device.links.scale_up), ("host", device.links.host)):
        rate = getattr(links, name)
        if rate is not None and usual is not None and abs(rate - 2 * usual) <= NEAR * 2 * usual:
            hint = f"say {_gb_s(usual)} for one direction, or leave it out: the catalogue has it"
            yield Problem(
                field=f"{where}.{name}",
                value=_gb_s(rate),
                reason=f"is both directions of {device.name}'s {_gb_s(usual)}",
                hint=hint,
            )
    through = links.host or device.links.host
    if links.scale_out is not None and through is not None and links.scale_out > 2 * through:
        reason = f"is more than goes through the {_gb_s(through)} between a {device.name} and its host"
        hint = "is it of a whole node? a link is of one device: divide by per_node"
        yield Problem(field=f"{where}.scale_out", value=_gb_s(links.scale_out), reason=reason, hint=hint)


def _gb_s(rate: int) -> str:
    return f"{rate / 10**9:g} GB/s"


def printable_scalar(value: Any) -> Any:
    """A value that can be shown: what a stranger nested is not."""
    return None if isinstance(value, list | Mapping) else value
