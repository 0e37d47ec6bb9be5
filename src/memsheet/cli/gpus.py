"""`memsheet gpus`."""

from __future__ import annotations

import textwrap
from typing import Any

from memsheet import catalog
from memsheet.cli import screen
from memsheet.cli.line import Given
from memsheet.errors import refuse
from memsheet.spec.device import Basis, Device
from memsheet.units import format_giga

MARKS = {Basis.REPORTED: "", Basis.DRIVER: "~", Basis.DATASHEET: "?"}
LEGEND = (
    "GiB is what a framework gets of a card, which is what a job must fit; GB is what it is sold as.",
    "~ derived from the driver's total, the low end taken \xa0 ? nothing but the datasheet is known \xa0 ! other facts of the card are uncertain",
)
LINKS = (
    "Rates are of one device in one direction, the network's that of the usual server; ? unknown. A cluster file (--cluster) may say otherwise.",
)


def gpus(asked: Given) -> int:
    """The devices memsheet knows and what a framework gets of each. FILTER: only names that contain it, with their links."""
    wanted = (asked.filter or "").lower()
    found = [device for device in catalog.devices() if wanted in f"{device.name} {device.full_name} {device.arch}".lower()]
    if not found:
        raise refuse("filter", asked.filter, "is in the name of no device", "`memsheet gpus` lists all")
    if asked.json:
        screen.write_json({"schema": "memsheet/gpus/1", "gpus": [_document(device) for device in found]})
    else:
        screen.write(_table(found) + _filled(LEGEND) + (f"\n{_links(found)}" if wanted else ""))
    return 0


def _document(device: Device) -> dict[str, Any]:
    return {
        "name": device.name, "full_name": device.full_name, "vendor": device.vendor, "arch": device.arch,
        "capacity_bytes": device.framework_bytes, "capacity_low_bytes": device.framework_low_bytes,
        "capacity_high_bytes": device.framework_high_bytes, "datasheet_bytes": device.datasheet_bytes,
        "basis": device.basis.value, "evidence": device.evidence, "per_node": device.per_node,
        "links": _rates(device), "uncertain": list(device.uncertain), "notes": list(device.notes), "sources": list(device.sources),
    }  # fmt: skip


def _rates(device: Device) -> dict[str, Any]:
    """The links in bytes a second, one direction; null where unknown."""
    links = device.links
    return {
        "scale_up_bytes_per_s": links.scale_up, "scale_up_kind": device.scale_up_kind, "switched": links.switched,
        "host_bytes_per_s": links.host, "host_kind": device.host_kind, "scale_out_bytes_per_s": links.scale_out,
    }  # fmt: skip


def _links(devices: list[Device]) -> str:
    """What each device's links carry: to its neighbours, its host, other nodes."""
    rows = [("links", "in a node", "GB/s", "to the host", "GB/s", "network")]
    for device in devices:
        links = device.links
        up = f"{device.scale_up_kind}{', switched' if links.switched else ''}"
        network = f"{links.scale_out * 8 / 10**9:g} Gbit/s" if links.scale_out else "?"
        rows.append((device.name, up, _giga(links.scale_up), device.host_kind or "?", _giga(links.host), network))
    return screen.columns(rows, right=frozenset({2, 4})) + _filled(LINKS)


def _filled(paragraphs: tuple[str, ...]) -> str:
    return "\n" + "\n".join(textwrap.fill(words, screen.width()) for words in paragraphs).replace("\xa0", " ") + "\n"


def _giga(rate: int | None) -> str:
    return f"{rate / 10**9:g}" if rate else "?"


def _table(devices: list[Device]) -> str:
    rows = [("device", "GiB", "", "GB", "a node", "known from")]
    for device in devices:
        size = format_giga(device.framework_bytes, headroom=True)
        marks = MARKS[device.basis] + ("!" if device.uncertain else "")
        box = f"{device.datasheet_bytes // 10**9}"
        rows.append((device.name, size, marks, box, str(device.per_node or ""), _short(device.evidence, screen.width())))
    return screen.columns(rows, right=frozenset({1, 3, 4}))


def _short(evidence: str, width: int) -> str:
    """The source on what is left of a line; ``--json`` has all of it."""
    room = max(20, width - 48)
    return evidence if len(evidence) <= room else evidence[: room - 1] + "…"
