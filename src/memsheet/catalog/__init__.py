"""The bundled models and devices, as data. Nothing is read before it is asked for, and one model reads one file."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from memsheet.errors import refuse
from memsheet.spec.device import Basis, Device, Links, parse_gpus
from memsheet.units import GIB, MIB

__all__ = ["devices", "find_device", "find_gpus", "find_model", "model_names", "rates", "serving_rates", "terms"]

_VENDORS = ("nvidia", "amd", "google", "intel", "huawei")


def _read(*path: str) -> str:
    return Path(__file__).parent.joinpath(*path).read_text(encoding="utf-8")


@cache
def terms() -> dict[str, Any]:
    """The words that `memsheet explain` knows: kind (and group of words) → name → text, cites, also."""
    return _toml(_read("terms.toml"))


def _model_key(name: str) -> str:
    return name.strip().lower().replace("_", "-")


@cache
def _model_index() -> dict[str, str]:
    """Every spelling in lower case → the file's name."""
    index: dict[str, str] = json.loads(_read("models", "aliases.json"))
    return index


def model_names() -> tuple[str, ...]:
    """The names of the bundled models, sorted."""
    return tuple(sorted(set(_model_index().values())))


def find_model(name: str) -> dict[str, Any] | None:
    """The bundled model of that name or alias (hub ids are aliases), or None. Case does not matter.

    ``{"name", "aliases", "source", "config", …}``, the config in the published key names. The name is looked up in an index
    and never becomes part of a path.
    """
    index = _model_index()
    key = _model_key(name)
    found = index.get(key)
    if found is None:
        return None
    model: dict[str, Any] = json.loads(_read("models", f"{found}.json"))
    return model


def _device_key(name: str) -> str:
    """Letters and digits only, without the vendor's name, as ``RTX 4090`` and ``NVIDIA rtx-4090`` are one card."""
    key = re.sub(r"[^a-z0-9]", "", name.lower())
    return next((key.removeprefix(vendor) for vendor in _VENDORS if key.startswith(vendor)), key)


def _toml(text: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(text)


@cache
def _sections() -> dict[str, str]:
    """devices.toml cut at its device tables: name → the table's text, and "" → everything else.

    A question needs one device, and parsing all of them costs more than answering.
    """
    parts: dict[str, str] = {"": ""}
    for part in re.split(r"^(?=\[)", _read("devices.toml"), flags=re.MULTILINE):
        header = re.match(r'\[device\."([^"]+)"\]\n', part)
        if header:
            parts[header[1]] = part[header.end() :]
        else:
            parts[""] += part
    return parts


@cache
def _general() -> dict[str, Any]:
    return _toml(_sections()[""])


@cache
def _row(name: str) -> dict[str, Any]:
    return _toml(_sections()[name])


@cache
def rates() -> dict[str, Any]:
    """Dense and measured rates by device, collectives and attention fits: rates.toml as it stands."""
    return _toml(_read("rates.toml"))


@cache
def _device_index() -> dict[str, str]:
    """Every spelling → the device's name. Names and aliases are plain strings on one line each; a test parses them all."""
    index = {}
    for name, text in _sections().items():
        lines = re.findall(r"^(?:full_name|aliases) = .*$", text, flags=re.MULTILINE) if name else []
        spellings = (name, *(spelling for line in lines for spelling in re.findall(r'"([^"]*)"', line)))
        index.update({_device_key(spelling): name for spelling in spellings if spelling})
    return index


def _cite(names: list[str]) -> str:
    """Source ids in words; an id without an entry is words already."""
    return "; ".join(_general()["sources"].get(name, name) for name in names)


def _framework(memory: dict[str, Any], cited: str) -> tuple[int, int, int, Basis, str]:
    """What frameworks get, as (low, value, high, basis, evidence)."""
    least, most = _general()["conventions"]["driver_minus_framework_gib"]
    reported = memory.get("framework_total_gib")
    if reported is not None:
        low, high = memory.get("framework_range_gib", (reported, reported))
        return int(low * GIB), int(reported * GIB), int(high * GIB), Basis.REPORTED, f"reported by frameworks: {cited}"
    if "framework_range_gib" in memory:
        low, high = (int(bound * GIB) for bound in memory["framework_range_gib"])
        return low, low, high, Basis.DRIVER, f"a range, the low end taken: {cited}"
    if "driver_total_mib" in memory:
        first, last = memory.get("driver_range_mib", (memory["driver_total_mib"],) * 2)
        low, high = first * MIB - int(most * GIB), last * MIB - int(least * GIB)
        why = f"derived: the driver's {first} to {last} MiB" if first != last else f"derived: the driver's {first} MiB"
        return low, low, high, Basis.DRIVER, f"{why} less {most} GiB, the widest gap seen; at the most less {least} GiB"
    size = memory["datasheet_gb"]
    low = size * 10**9 - int(most * GIB)  # makers print GB and mean either
    return low, low, size * GIB, Basis.DATASHEET, f"datasheet size less {most} GiB; at the most {size} GiB: no driver total is known"


def _rate(value: float | None, unit: int) -> int | None:
    return None if value is None else int(value * unit)


def _links(row: dict[str, Any]) -> Links:
    up = row["scale_up_link"]
    return Links(
        scale_up=_rate(up.get("gb_s_per_direction"), 10**9),
        switched=up["switched"],
        host=_rate(row.get("pcie", {}).get("gb_s_per_direction"), 10**9),
        scale_out=_rate(row.get("nic_gbit_s"), 10**9 // 8),
    )


def _kind(link: dict[str, Any]) -> str:
    """What a link is called, remarks left out: ``NVLink 4``, ``PCIe 5 x16``. Cards without links of their own meet over PCIe."""
    called = link["type"].split(" (")[0].replace("none", "PCIe")
    parts = (called, link.get("generation"), f"x{link['lanes']}" if "lanes" in link else None)
    return " ".join(str(part) for part in parts if part is not None)


@cache
def _device(name: str) -> Device:
    row = _row(name)
    memory, sources = row["memory"], row["sources"]
    cited = _cite(sources.get("framework_total_gib") or sources.get("all") or [])
    low, value, high, basis, evidence = _framework(memory, cited)
    driver = memory.get("driver_total_bytes") or (memory["driver_total_mib"] * MIB if "driver_total_mib" in memory else None)
    return Device(
        name=name, full_name=row["full_name"], vendor=row["vendor"], arch=row["arch"], compute_capability=row.get("compute_capability"),
        datasheet_bytes=memory["datasheet_gb"] * 10**9, driver_bytes=driver,
        framework_bytes=value, framework_low_bytes=low, framework_high_bytes=high, basis=basis, evidence=evidence,
        per_node=row.get("devices_per_node"), links=_links(row),
        scale_up_kind=_kind(row["scale_up_link"]), host_kind=_kind({"type": "PCIe", **row["pcie"]}) if "pcie" in row else "",
        uncertain=tuple(row.get("uncertain", ())), notes=tuple(row.get("notes", ())),
        sources=tuple(f"{what}: {_cite(names)}" for what, names in sources.items()),
    )  # fmt: skip


def devices() -> tuple[Device, ...]:
    """Every device of the catalogue, in its order."""
    return tuple(_device(name) for name in _sections() if name)


def find_device(name: str) -> Device:
    """The device of that name, alias or driver's name; case, dashes and spaces do not matter.

    Raises InputError with the nearest names.
    """
    found = _device_index().get(_device_key(name))
    if found is None:
        raise refuse("gpus", name, "is not a device memsheet knows", f"did you mean {', '.join(_near(name))}? `memsheet gpus` lists all")
    return _device(found)


def _near(name: str) -> list[str]:
    """Three names: those that begin alike first, then those spelt alike."""
    import difflib

    index, key = _device_index(), _device_key(name)[:40]
    alike = [index[k] for k in index if key and k.startswith(key)]
    spelt = [index[k] for k in difflib.get_close_matches(key, index, n=6, cutoff=0.0)]
    return list(dict.fromkeys(alike + spelt))[:3]


def find_gpus(text: str) -> tuple[int | None, Device]:
    """``8xH100-80GB`` → (8, that device); without a count (None, device)."""
    count, name = parse_gpus(text)
    return count, find_device(name)


@cache
def serving_rates() -> dict[str, Any]:
    """Seconds of single operators at the batch sizes of decoding, with their sources (serving_rates.toml)."""
    return _toml(_read("serving_rates.toml"))


@cache
def overheads() -> dict[str, Any]:
    """What a process holds on a card besides tensors, with ranges and sources (overheads.toml)."""
    return _toml(_read("overheads.toml"))
