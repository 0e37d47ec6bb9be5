"""Consumer cards and machines of shared memory (cards.toml): what a framework gets of each, derived from the
size it is sold with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from memsheet.plan.device import Basis, Device
from memsheet.units import GIB, MIB


@cache
def _cards_file_text() -> str:
    from pathlib import Path

    return (Path(__file__).parent / "cards.toml").read_text(encoding="utf-8")


@cache
def card_names() -> Mapping[str, str]:
    """Names of the cards → the group that each is in."""
    found: dict[str, str] = {}
    for part in re.split(r"^(?=\[)", _cards_file_text(), flags=re.MULTILINE):
        if header := re.match(r"\[group\.([\w-]+)\.sizes\]\n", part):
            found.update(
                dict.fromkeys(
                    (short_name(called) for called in re.findall(r'^"([^"]+)" = ', part, flags=re.MULTILINE)),
                    header[1],
                )
            )
    return found


def short_name(called: str) -> str:
    """``RTX 4060 Ti 16GB`` → RTX4060Ti-16GB."""
    return re.sub(r"\s+", "", re.sub(r"\s+(?=Laptop|Max-Q|\d+GB$)", "-", called))


@cache
def _cards_tables() -> dict[str, Any]:
    import tomllib

    return tomllib.loads(_cards_file_text())


@cache
def card_device(name: str) -> Device:
    """The card of that name, one of ``card_names``."""
    tables = _cards_tables()
    group = tables["group"][card_names()[name]]
    called, size = next(pair for pair in group["sizes"].items() if short_name(pair[0]) == name)
    low, high, why = usable_range(group, size, called)
    engines = group.get("engines")
    return Device(
        name=name,
        full_name=f"{group['maker']} {called}",
        vendor=group["vendor"],
        arch=group["arch"],
        compute_capability=group.get("compute_capability"),
        datasheet_bytes=size * 10**9,
        framework_bytes=low,
        framework_low_bytes=low,
        framework_high_bytes=high,
        basis=Basis.REPORTED if called in group.get("reported_mib", {}) else Basis.DATASHEET,
        evidence=why,
        engines=None if engines is None else tuple(engines),
        backend=group.get("backend", "CUDA"),
        unified=group.get("unified", False),
        notes=tuple(group.get("notes", ())),
        sources=tuple(tables["sources"][source] for source in group["sources"]),
    )


LARGE_GB = 60
"""From which the widest gap between chips and what a framework gets is another."""


def usable_range(group: Mapping[str, Any], size: int, called: str) -> tuple[int, int, str]:
    """Bytes at the least and at the most that a framework gets of a card of so many GB, and why."""
    conventions, share = _cards_tables()["conventions"], group.get("share")
    if reported := group.get("reported_mib", {}).get(called):
        low, high = reported
        return low * MIB, high * MIB, f"reported by programs: {low:,} to {high:,} MiB"
    if share is None:
        least, most = conventions["taken_from_60_gb" if size >= LARGE_GB else "taken_gib"]
        spare = size * conventions["error_correction"] if group.get("error_correction") else 0
        kept = f", and {spare:g} GiB where error correction is switched on" if spare else ""
        return (
            int((size - spare - most) * GIB),
            int((size - least) * GIB),
            f"{size} GiB of chips less {most} GiB, the widest gap seen{kept}; at the most all",
        )
    if share == "metal":
        low, high = conventions["share_below_36" if size < 36 else "share_from_36"]
        return (
            int(size * low * GIB),
            int(size * high * GIB),
            f"what Metal lets a process use of {size} GiB: {low:.0%} to {high:.0%} were seen",
        )
    low, high = share
    return (
        int(size * low * GIB),
        int(size * high * GIB),
        f"{low:.0%} to {high:.0%} of {size} GiB, as the system maps it to graphics",
    )


def other_spellings(name: str) -> tuple[str, ...]:
    """What else a card is called: ``Strix Halo 128GB``."""
    group = _cards_tables()["group"][card_names()[name]]
    device = card_device(name)
    return tuple(
        device.full_name.replace(called, other)
        for called, other in group.get("spellings", {}).items()
        if called in device.full_name
    )


def card_bandwidth(name: str) -> int | None:
    """Bytes a second between a card's memory and its units, as it is sold; None where no source says."""
    group = _cards_tables()["group"][card_names()[name]]
    rates = {short_name(called): rate for called, rate in group.get("bandwidth_gb_s", {}).items()}
    return int(rates[name] * 10**9) if name in rates else None
