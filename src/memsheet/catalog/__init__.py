"""The bundled models and devices, as data. Nothing is read before it is asked for, and one model reads one
file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from memsheet.catalog.cards import LARGE_GB, card_bandwidth, card_device, card_names, other_spellings
from memsheet.catalog.instances import named_cards, rented_cards, rented_machines, similar_machines
from memsheet.catalog.spellings import canonical_name, device_key, family_and_size, named_capacity
from memsheet.errors import InputError, input_error
from memsheet.frozen import replace
from memsheet.patterns import late_pattern
from memsheet.plan.device import Basis, Device, Links
from memsheet.units import GIB, MIB

__all__ = [
    "card_names",
    "catalog_devices",
    "find_device",
    "find_gpus",
    "find_model",
    "glossary_terms",
    "hardware_rates",
    "memory_bandwidth",
    "model_names",
    "named_cards",
    "other_spellings",
    "rented_cards",
    "rented_machines",
    "serving_rates",
    "spelling_index",
]


_HERE = os.path.dirname(__file__)  # noqa: PTH120


def _read_catalog_file(*path: str) -> str:
    """The text of a file of this folder, without pathlib, which takes longer to load than the file."""
    with open(os.path.join(_HERE, *path), encoding="utf-8") as file:  # noqa: PTH118, PTH123
        return file.read()


@cache
def glossary_terms() -> dict[str, Any]:
    """The words that `memsheet explain` knows: kind (and group of words) → name → text, cites, also."""
    return _parse_toml(_read_catalog_file("terms.toml"))


def glossary_terms_about(written: Callable[[str], bool]) -> dict[str, Any]:
    """Those of the words that stand on lines of which ``written`` is true: each has a line of its own, and
    parsing all of them costs more than answering.
    """
    lines = _read_catalog_file("terms.toml").splitlines()
    return _parse_toml("\n".join(line for line in lines if line.startswith("[") or written(line)))


def _model_key(name: str) -> str:
    return name.strip().lower().replace("_", "-")


@cache
def _model_index() -> dict[str, str]:
    """Every spelling in lower case → the file's name."""
    index: dict[str, str] = json.loads(_read_catalog_file("models", "aliases.json"))
    return index


def spelling_index() -> Mapping[str, str]:
    """Every spelling of a bundled model in lower case with dashes → its name."""
    return _model_index()


@cache
def canonical_index() -> Mapping[str, str]:
    """Names of bundled models without their publishers, in canonical spelling → the model's name."""
    index: dict[str, str] = json.loads(_read_catalog_file("canonical_names.json"))
    return index


def model_names() -> tuple[str, ...]:
    """The names of the bundled models, sorted."""
    return tuple(sorted(set(_model_index().values())))


@cache
def model_rows() -> Mapping[str, Mapping[str, Any]]:
    """The bundled models by name, as ``memsheet models`` lists them: ``parameters`` and ``active_parameters``
    (None where the family's layers are not written down), ``family``, ``aliases``, ``source``. A file made of
    the models' own (``questions.catalogue.count_model``), as counting them all takes longer than a list may.
    """
    rows: dict[str, dict[str, Any]] = json.loads(_read_catalog_file("model_rows.json"))
    return {name: {"name": name, **row} for name, row in rows.items()}


def find_model(name: str) -> dict[str, Any] | None:
    """The bundled model of that name or alias (hub ids are aliases), or None. Case does not matter.

    ``{"name", "aliases", "source", "config", …}``, the config in the published key names. The name is looked
    up in an index and never becomes part of a path.
    """
    index = _model_index()
    key = _model_key(name)
    found = index.get(key)
    if found is None:
        return None
    model: dict[str, Any] = json.loads(_read_catalog_file("models", f"{found}.json"))
    return as_released_under(model, key)


def as_released_under(model: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A bundled model as it was released under one of its names, where its config.json says something else
    under that one (``released_configs``: a name → the keys that differ; ``positions_open`` where it is not
    known which length is in its file), with that name as ``released``.
    """
    own = canonical_name(name.rpartition("/")[2])
    rows: Mapping[str, Mapping[str, Any]] = model.get("released_configs", {})
    released = next((other for other in rows if canonical_name(other.rpartition("/")[2]) == own), "")
    differing = rows.get(released, {})
    same = {key: held for key, held in differing.items() if key == "positions_open"}
    under = {"released": released} if released else {}
    return {**model, **same, **under, "config": {**model["config"], **differing.get("config", {})}}


def _parse_toml(text: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(text)


@cache
def _catalog_table(name: str) -> dict[str, Any]:
    """A table of the catalogue from the JSON that is made of its TOML (``make regold``): the one is read in
    compiled code, and parsing the other costs more than answering.
    """
    table: dict[str, Any] = json.loads(_read_catalog_file("tables", f"{name}.json"))
    return table


def _device_rows() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = _catalog_table("devices")["device"]
    return rows


@cache
def hardware_rates() -> dict[str, Any]:
    """Dense and measured rates by device, collectives and attention fits: rates.toml as it stands."""
    return _catalog_table("rates")


@cache
def _device_index() -> dict[str, str]:
    """Every spelling of a device → its name."""
    return {
        device_key(spelling): name
        for name, row in _device_rows().items()
        for spelling in (name, row.get("full_name", ""), *row.get("aliases", ()))
        if spelling
    }


@cache
def _card_index() -> dict[str, str]:
    """Every spelling of cards.toml → the card's name. Read where devices.toml has no such name."""
    return {
        device_key(spelling): name for name in card_names() for spelling in (name, *other_spellings(name))
    }


@cache
def _device_families() -> dict[str, tuple[str, ...]]:
    """A name without its memory size → the devices of that name."""
    families: dict[str, tuple[str, ...]] = {}
    spellings = [
        *((name, name) for name in _device_rows()),
        *((called, name) for name in card_names() for called in (name, *other_spellings(name))),
    ]
    for called, name in spellings:
        family, size = family_and_size(called)
        if size:
            families[family] = (*families.get(family, ()), name)
    return families


def _cited_sources(names: list[str]) -> str:
    """Source ids in words; an id without an entry is words already."""
    return "; ".join(_catalog_table("devices")["sources"].get(name, name) for name in names)


def _framework_memory_range(memory: dict[str, Any], cited: str) -> tuple[int, int, int, Basis, str]:
    """What frameworks get, as (low, value, high, basis, evidence)."""
    conventions = _catalog_table("devices")["conventions"]
    large = memory["datasheet_gb"] >= LARGE_GB
    least, most = conventions[
        "driver_minus_framework_gib" if large else "driver_minus_framework_below_60_gb_gib"
    ]
    reported = memory.get("framework_total_gib")
    if reported is not None:
        low, high = memory.get("framework_range_gib", (reported, reported))
        return (
            int(low * GIB),
            int(reported * GIB),
            int(high * GIB),
            Basis.REPORTED,
            f"reported by frameworks: {cited}",
        )
    if "framework_range_gib" in memory:
        low, high = (int(bound * GIB) for bound in memory["framework_range_gib"])
        return low, low, high, Basis.DRIVER, f"a range, the low end taken: {cited}"
    if "driver_total_mib" in memory:
        first, last = memory.get("driver_range_mib", (memory["driver_total_mib"],) * 2)
        low, high = first * MIB - int(most * GIB), last * MIB - int(least * GIB)
        why = (
            f"derived: the driver's {first} to {last} MiB"
            if first != last
            else f"derived: the driver's {first} MiB"
        )
        return (
            low,
            low,
            high,
            Basis.DRIVER,
            f"{why} less {most} GiB, the widest gap seen; at the most less {least} GiB",
        )
    size = memory["datasheet_gb"]
    low = size * 10**9 - int(most * GIB)  # makers print GB and mean either
    return (
        low,
        low,
        size * GIB,
        Basis.DATASHEET,
        f"datasheet size less {most} GiB; at the most {size} GiB: no driver total is known",
    )


def _bytes_per_s(value: float | None, unit: int) -> int | None:
    return None if value is None else int(value * unit)


def _device_links(row: dict[str, Any]) -> Links:
    up = row["scale_up_link"]
    return Links(
        scale_up=_bytes_per_s(up.get("gb_s_per_direction"), 10**9),
        switched=up["switched"],
        host=_bytes_per_s(row.get("pcie", {}).get("gb_s_per_direction"), 10**9),
        scale_out=_bytes_per_s(row.get("nic_gbit_s"), 10**9 // 8),
    )


def _link_name(link: dict[str, Any]) -> str:
    """What a link is called, remarks left out: ``NVLink 4``, ``PCIe 5 x16``. Cards without links of their own
    meet over PCIe.
    """
    called = link["type"].split(" (")[0].replace("none", "PCIe")
    parts = (called, link.get("generation"), f"x{link['lanes']}" if "lanes" in link else None)
    return " ".join(str(part) for part in parts if part is not None)


@cache
def _catalog_device(name: str) -> Device:
    row = _device_rows()[name]
    memory, sources = row["memory"], row["sources"]
    cited = _cited_sources(
        sources.get("framework_total_gib") or sources.get("all") or sources.get("rest") or []
    )
    low, value, high, basis, evidence = _framework_memory_range(memory, cited)
    driver = memory.get("driver_total_bytes") or (
        memory["driver_total_mib"] * MIB if "driver_total_mib" in memory else None
    )
    return Device(
        name=name,
        full_name=row["full_name"],
        vendor=row["vendor"],
        arch=row["arch"],
        compute_capability=row.get("compute_capability"),
        datasheet_bytes=memory["datasheet_gb"] * 10**9,
        driver_bytes=driver,
        framework_bytes=value,
        framework_low_bytes=low,
        framework_high_bytes=high,
        basis=basis,
        evidence=evidence,
        per_node=row.get("devices_per_node"),
        links=_device_links(row),
        scale_up_kind=_link_name(row["scale_up_link"]),
        host_kind=_link_name({"type": "PCIe", **row["pcie"]}) if "pcie" in row else "",
        engines=tuple(row["engines"]) if "engines" in row else None,
        backend=row.get("backend", "CUDA"),
        unified=row.get("unified", False),
        uncertain=tuple(row.get("uncertain", ())),
        notes=tuple(row.get("notes", ())),
        sources=tuple(f"{what}: {_cited_sources(names)}" for what, names in sources.items()),
    )


def catalog_devices() -> tuple[Device, ...]:
    """Every device of the catalogue, in its order."""
    return (*(_catalog_device(name) for name in _device_rows()), *map(card_device, card_names()))


PLURAL = late_pattern(r"(.*\dS?)s\s*")
"""Cards of a name that ends in a number: ``8 H100s``."""


def find_device(name: str) -> Device:
    """The device of that name, alias or driver's name; case, dashes, spaces and makers' words do not matter.

    A name that several sizes share (``a100``) is the one with the least memory, and a size alone (``24GB``) a
    card sold with it, the one of which frameworks get least; ``24GiB`` is exactly that. What was taken for
    granted is in ``assumed``.

    Raises InputError with the nearest names.
    """
    if name and name in _device_rows():  # its own name, which is no other's spelling
        return _catalog_device(name)
    if (capacity := named_capacity(name)) is not None:
        return _of_size(capacity[0], exact=capacity[1])
    key = device_key(name)
    for spelling in (key, f"{key}gb"):  # a100-80
        if spelling in _device_index():
            return _catalog_device(_device_index()[spelling])
        if spelling in _card_index():
            return card_device(_card_index()[spelling])
    if (sold := _sold_with(name)) is not None:
        return sold
    sizes = [_device_or_card(found) for found in _device_families().get(key, ())]
    if not sizes and (one := PLURAL.fullmatch(name)):
        with suppress(InputError):
            return find_device(one[1])
    if not sizes:
        similar = similar_machines(name) or _similar_device_names(name)
        hint = f"did you mean {', '.join(similar)}? `memsheet gpus` lists all"
        if name.strip().isdecimal():
            hint = f"a number and a card: {name.strip()}xH100-80GB; `memsheet gpus` lists all"
        hint = next((said for word, said in _MEANT.items() if word in name.lower()), hint)
        raise input_error("gpus", name, "is not a device memsheet knows", hint)
    least = min(sizes, key=lambda device: device.datasheet_bytes)
    others = tuple(dict.fromkeys(device.name for device in sizes if device.name != least.name))
    if not others:
        return least
    words = f"gpus {name.strip()} = {least.name}, the least memory of its name (also {', '.join(others)})"
    return replace(least, assumed=(words,), namesakes=others)


_MEANT = {
    "node": "nodes, the cards of each, and the card: 2x8xH100-80GB",
    **dict.fromkeys(
        ("mac", "apple"), "an Apple chip and its memory: 'M4 Max 64GB'; `memsheet gpus` lists all"
    ),
}
"""Words of people that are in no device's name → what says it."""


def _sold_with(name: str) -> Device | None:
    """A card of one size whose name says that size too: ``rtx 3060 12gb``."""
    family, size = family_and_size(name)
    found = _device_index().get(family) or _card_index().get(family)
    if not size or found is None:
        return None
    device = _device_or_card(found)
    return device if device.datasheet_bytes == int(size.removesuffix("gb")) * 10**9 else None


_FORM = late_pattern(r"(?:sxm\d?|pcie|nvl|hbm\w{1,12})?")
"""What a name says of how a card is built, behind what it is called."""


def devices_called(name: str) -> tuple[Device, ...]:
    """All that may be meant by a name: the one of just that name, else those of every memory size and form
    (``a100``: 40 and 80 GB); none where nothing is called so.
    """
    family, size = family_and_size(name)
    if (key := device_key(name)) in _device_index() or key in _card_index():
        return (find_device(name),)
    spellings = [
        *((called, key) for key, row in _device_rows().items()
          for called in (key, row.get("full_name", ""), *row.get("aliases", ()))),
        *((called, key) for key in card_names() for called in (key, *other_spellings(key))),
    ]  # fmt: skip
    parts = ((*family_and_size(called), key) for called, key in spellings)
    alike = (
        (held, key) for called, held, key in parts
        if called.startswith(family) and _FORM.fullmatch(called[len(family) :])
    )  # fmt: skip
    found = dict.fromkeys(key for held, key in alike if not size or not held or held == size)
    devices = map(_device_or_card, found)
    return tuple(
        each for each in devices if not size or each.datasheet_bytes == int(size.removesuffix("gb")) * 10**9
    )


def memory_bandwidth(name: str) -> int | None:
    """Bytes a second between a device's memory and its units, as it is sold; None where no source says."""
    if name in card_names():
        return card_bandwidth(name)
    row = hardware_rates()["device"].get(name)
    devices = 2 if row and "per" in row else 1  # a package of two
    return int(row["memory_bandwidth_tb_s"] * 10**12) // devices if row else None


def _device_or_card(name: str) -> Device:
    return _catalog_device(name) if name in _device_rows() else card_device(name)


def _of_size(size: float, *, exact: bool) -> Device:
    """A card about which nothing but its memory is said."""
    nameless: dict[str, Any] = {
        "vendor": "",
        "arch": "",
        "datasheet_bytes": int(size * (GIB if exact else 10**9)),
    }
    if exact:
        capacity, name = int(size * GIB), f"{size:g}GiB"
        return Device(
            name=name,
            full_name=f"a device of {size:g} GiB",
            framework_bytes=capacity,
            framework_low_bytes=capacity,
            framework_high_bytes=capacity,
            basis=Basis.ASKED,
            evidence="as asked",
            **nameless,
        )
    sold = [
        device
        for device in catalog_devices()
        if device.datasheet_bytes == size * 10**9 and device.engines is None
    ]
    name = f"{size:g}GB"
    if not sold:
        low, value, high, basis, evidence = _framework_memory_range({"datasheet_gb": size}, "")
        assumed = f"gpus {name} = a card sold as {name}, of which the catalogue has none: {evidence}"
    else:
        least = min(sold, key=lambda device: device.framework_low_bytes)
        low = value = least.framework_low_bytes
        high, basis = max(device.framework_high_bytes for device in sold), Basis.DATASHEET
        evidence = f"the least of {len(sold)} cards sold as {name}, {least.name}"
        assumed = f"gpus {name} = a card sold as {name}: {evidence}"
    return Device(
        name=name,
        full_name=f"a card sold as {name}",
        framework_bytes=value,
        framework_low_bytes=low,
        framework_high_bytes=high,
        basis=basis,
        evidence=evidence,
        assumed=(assumed,),
        **nameless,
    )


def _similar_device_names(name: str) -> list[str]:
    """Three names: those that begin alike first, then those spelt alike."""
    import difflib

    index, key = {**_card_index(), **_device_index()}, device_key(name)[:40]
    alike = [index[k] for k in index if key and k.startswith(key)]
    spelt = [index[k] for k in difflib.get_close_matches(key, index, n=6, cutoff=0.0)]
    return list(dict.fromkeys(alike + spelt))[:3]


def find_gpus(text: str) -> tuple[int | None, Device]:
    """``8xH100-80GB`` → (8, that device); without a count (None, device). A machine that is rented by name
    has its own: ``p5.48xlarge`` → the same.
    """
    count, name = named_cards(text)
    return count, find_device(name)


@cache
def serving_rates() -> dict[str, Any]:
    """Seconds of single operators at the batch sizes of decoding, with their sources (serving_rates.toml)."""
    return _catalog_table("serving_rates")


@cache
def process_overheads() -> dict[str, Any]:
    """What a process holds on a card besides tensors, with ranges and sources (overheads.toml)."""
    return _catalog_table("overheads")
