"""`memsheet gpus`."""

from __future__ import annotations

import textwrap

from memsheet import catalog
from memsheet.catalog.kinds import by_kind, device_kind, usual_devices
from memsheet.cli import screen
from memsheet.cli.line import Given
from memsheet.columns import align_columns
from memsheet.errors import input_error
from memsheet.plan.device import Basis, Device
from memsheet.questions.catalogue import gpu_row
from memsheet.report.screen.layout import join_phrases
from memsheet.units import format_giga

MARKS = {Basis.REPORTED: "", Basis.DRIVER: "~", Basis.DATASHEET: "?"}
LEGEND = (
    "GiB is what a framework gets of a card, which is what a job must fit; GB is what it is sold as.",
    (
        "~ derived from the driver's total, the low end taken \xa0 ? nothing but the datasheet is known \xa0 "
        "! other facts of the card are uncertain"
    ),
)
SHORT_LEGEND = (
    (
        "The number is what a framework gets of a card in GiB, which is what a job must fit: ~ derived from "
        "the driver's total, ? from the datasheet."
    ),
    (
        "`memsheet gpus rtx50`, `memsheet gpus laptop`, `memsheet gpus H100`: those, with sources and links. "
        "--full: all of them."
    ),
)
INDENT = "  "
FIGURES, LEAST = 29, 20
"""Columns that figures take beside a name and a source, and the fewest that a source is given."""
LINKS = (
    (
        "Rates are of one device in one direction, the network's that of the usual server; ? unknown. A "
        "cluster file (--cluster) may say otherwise."
    ),
)


def gpus(asked: Given) -> int:
    """The devices memsheet knows and what a framework gets of each: the usual ones of each kind, all of them
    (--full), or those whose name or kind contains FILTER or that are sold with that much memory (24GB), with
    their links.
    """
    wanted = (asked.filter or "").lower()
    found = [
        device
        for device in catalog.catalog_devices()
        if wanted in _searchable_names(device) or wanted == _sold_as(device)
    ]
    if not found:
        raise input_error("filter", asked.filter, "is in the name of no device", "`memsheet gpus` lists all")
    if asked.json:
        screen.write_json({"schema": "memsheet/gpus/1", "gpus": [gpu_row(device) for device in found]})
    elif wanted or asked.full:
        linked = [device for device in found if _has_links(device)]
        screen.write_stdout(
            _device_table(found)
            + _fill_paragraphs(LEGEND)
            + (f"\n{_link_rate_table(linked)}" if wanted and linked else "")
        )
    else:
        screen.write_stdout(_usual_device_summary(found) + _fill_paragraphs(SHORT_LEGEND))
    return 0


def _searchable_names(device: Device) -> str:
    """What a filter is looked for in."""
    return f"{device.name} {device.full_name} {device.arch} {device_kind(device)}".lower()


def _sold_as(device: Device) -> str:
    return f"{device.datasheet_bytes / 10**9:g}gb"


def _has_links(device: Device) -> bool:
    links = device.links
    return any((links.scale_up, links.host, links.scale_out))


def _usual_device_summary(devices: list[Device]) -> str:
    """The devices of each kind that are met most, with the GiB that a framework gets, and how many more there
    are.
    """
    lines = list[str]()
    for kind, alike in by_kind(devices).items():
        usual = {name: number for number, name in enumerate(usual_devices(kind))}
        shown = sorted(
            (device for device in alike if device.name in usual), key=lambda device: usual[device.name]
        )
        cards = [
            f"{device.name} {format_giga(device.framework_bytes, headroom=True)}{MARKS[device.basis]}"
            for device in shown
        ]
        more = [f"and {len(alike) - len(shown)} more"] * (len(alike) > len(shown))
        lines += [
            kind,
            textwrap.indent(
                join_phrases([*cards, *more], screen.terminal_width() - len(INDENT), between=", "), INDENT
            ),
        ]
    return "\n".join(lines) + "\n"


def _link_rate_table(devices: list[Device]) -> str:
    """What each device's links carry: to its neighbours, its host, other nodes."""
    rows = [("links", "in a node", "GB/s", "to the host", "GB/s", "network")]
    for device in devices:
        links = device.links
        up = f"{device.scale_up_kind}{', switched' if links.switched else ''}"
        network = f"{links.scale_out * 8 / 10**9:g} Gbit/s" if links.scale_out else "?"
        rows.append(
            (
                device.name,
                up,
                _format_giga_rate(links.scale_up),
                device.host_kind or "?",
                _format_giga_rate(links.host),
                network,
            )
        )
    return align_columns(rows, right=frozenset({2, 4})) + _fill_paragraphs(LINKS)


def _fill_paragraphs(paragraphs: tuple[str, ...]) -> str:
    return (
        "\n"
        + "\n".join(textwrap.fill(words, screen.terminal_width()) for words in paragraphs).replace(
            "\xa0", " "
        )
        + "\n"
    )


def _format_giga_rate(rate: int | None) -> str:
    return f"{rate / 10**9:g}" if rate else "?"


def _device_table(devices: list[Device]) -> str:
    groups = by_kind(devices)
    first = max(
        len(name) for name in (*(f"{kind}:" for kind in groups), *(device.name for device in devices))
    )
    rows = [("device", "GiB", "", "GB", "a node", "known from")]
    for kind, alike in groups.items():
        rows += [
            (f"{kind}:", "", "", "", "", ""),
            *(_device_table_row(device, screen.terminal_width() - first - FIGURES) for device in alike),
        ]
    return align_columns(rows, right=frozenset({1, 3, 4}))


def _device_table_row(device: Device, room: int) -> tuple[str, str, str, str, str, str]:
    size = format_giga(device.framework_bytes, headroom=True)
    marks = MARKS[device.basis] + ("!" if device.uncertain else "")
    box = f"{device.datasheet_bytes // 10**9}"
    return (
        device.name,
        size,
        marks,
        box,
        str(device.per_node or ""),
        _shorten_evidence(device.evidence, max(LEAST, room)),
    )


def _shorten_evidence(evidence: str, room: int) -> str:
    """The source on what is left of a line; ``--json`` has all of it."""
    return evidence if len(evidence) <= room else evidence[: room - 1] + "…"
