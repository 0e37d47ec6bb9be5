"""Consumer cards and machines of shared memory (cards.toml): what a framework gets of each, derived from the
size it is sold with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from memsheet.plan.device import Basis, Device
from memsheet.units import GIB


@cache
def _cards_file_text() -> str:
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
    return re.sub(r"\s+", "", re.sub(r"\s+(?=Laptop|\d+GB$)", "-", called))


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
    low, high, why = usable_range(group, size)
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
        basis=Basis.DATASHEET,
        evidence=why,
        engines=None if engines is None else tuple(engines),
        backend=group.get("backend", "CUDA"),
        unified=group.get("unified", False),
        notes=tuple(group.get("notes", ())),
        sources=tuple(tables["sources"][source] for source in group["sources"]),
    )


def usable_range(group: Mapping[str, Any], size: int) -> tuple[int, int, str]:
    """Bytes at the least and at the most that a framework gets of so many GB, and why."""
    conventions, share = _cards_tables()["conventions"], group.get("share")
    if share is None:
        most, least = conventions["taken_gib"]
        return (
            int((size - least) * GIB),
            int((size - most) * GIB),
            f"{size} GiB of chips less {least} GiB, the widest gap seen; at the most all",
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
