"""What kind of device each is: people look for one among its like."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from memsheet.frozen import NamedTuple
from memsheet.plan.device import Device


class Kind(NamedTuple):
    """Devices that are sold for the same use: how their full names read, and those that are met most."""

    name: str
    pattern: str
    usual: tuple[str, ...]


KINDS = (
    Kind("Laptop", r"Laptop", ("RTX3060-Laptop", "RTX4060-Laptop", "RTX4070-Laptop", "RTX4090-Laptop", "RTX5070Ti-Laptop", "RTX5090-Laptop")),
    Kind("Workstation", r"RTX A\d|RTX PRO|Quadro|\d{4}(?: SFF)? Ada|PRO [RW]\d|Arc Pro|Titan", ("RTXA5000", "RTXA6000", "RTX6000Ada", "RTXPRO6000", "PROW7900")),
    Kind("GeForce RTX 50", r"GeForce RTX 50", ("RTX5060Ti-16GB", "RTX5070Ti", "RTX5080", "RTX5090")),
    Kind("GeForce RTX 40", r"GeForce RTX 40", ("RTX4060", "RTX4060Ti-16GB", "RTX4070", "RTX4080", "RTX4090")),
    Kind("GeForce RTX 30", r"GeForce RTX 30", ("RTX3060", "RTX3070", "RTX3080", "RTX3090", "RTX3090Ti")),
    Kind("GeForce RTX 20", r"GeForce RTX 20", ("RTX2060", "RTX2070", "RTX2080Ti")),
    Kind("GeForce GTX", r"GeForce GTX", ("GTX1080Ti", "GTX1660Ti")),
    Kind("Radeon RX 9000", r"Radeon RX 9\d{3}", ("RX9060XT-16GB", "RX9070XT")),
    Kind("Radeon RX 7000", r"Radeon RX 7\d{3}", ("RX7600XT", "RX7800XT", "RX7900XT", "RX7900XTX")),
    Kind("Radeon RX 6000", r"Radeon RX 6\d{3}", ("RX6700XT", "RX6800XT", "RX6900XT")),
    Kind("Intel Arc", r"Arc [AB]\d", ("ArcA770-16GB", "ArcB580")),
    Kind("Unified memory, Apple", r"Apple", ("M1-16GB", "M2Max-96GB", "M3Ultra-512GB", "M4Pro-48GB", "M4Max-128GB", "M5Max-128GB")),
    Kind("Unified memory, NVIDIA", r"GB10", ("GB10",)),
    Kind("Unified memory, AMD", r"Ryzen|MI300A", ("RyzenAIMax+395-64GB", "RyzenAIMax+395-128GB")),
    Kind("Data centre, AMD", r"Instinct", ("MI250X", "MI300X", "MI325X", "MI355X")),
    Kind("Data centre, other", r"TPU|Gaudi|Ascend", ("TPU-v5e", "TPU-v5p", "TPU-v6e", "Gaudi3", "Ascend-910B")),
    Kind("Data centre, NVIDIA", r"NVIDIA G?[ABHLPTV]\d", ("T4", "V100-32GB", "A10", "A100-40GB", "A100-80GB", "L4", "L40S", "H100-80GB", "H200", "B200", "B300")),
)  # fmt: skip
"""In the order in which they are asked: a laptop's card is of its generation too."""
SHOWN = (
    "Data centre, NVIDIA", "Data centre, AMD", "Data centre, other", "Workstation", "GeForce RTX 50", "GeForce RTX 40", "GeForce RTX 30",
    "GeForce RTX 20", "GeForce GTX", "Radeon RX 9000", "Radeon RX 7000", "Radeon RX 6000", "Intel Arc", "Laptop", "Unified memory, Apple",
    "Unified memory, AMD", "Unified memory, NVIDIA",
)  # fmt: skip


def device_kind(device: Device) -> str:
    """The name of a device's kind."""
    return next(kind.name for kind in KINDS if re.search(kind.pattern, device.full_name))


def usual_devices(kind: str) -> tuple[str, ...]:
    """The names of those of a kind that are met most."""
    return next(each.usual for each in KINDS if each.name == kind)


def by_kind(devices: Iterable[Device]) -> Mapping[str, list[Device]]:
    """Devices by their kind, in the order in which kinds are shown; kinds without any are left out."""
    found: dict[str, list[Device]] = {kind: [] for kind in SHOWN}
    for device in devices:
        found[device_kind(device)].append(device)
    return {kind: alike for kind, alike in found.items() if alike}
