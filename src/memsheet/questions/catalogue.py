"""What is bundled, as rows: models with exact parameter counts, devices with what frameworks get of them."""

from __future__ import annotations

from typing import Any

from memsheet import catalog
from memsheet.catalog.kinds import device_kind
from memsheet.plan.device import Device


def count_model(name: str) -> dict[str, Any]:
    """The row of a bundled model (``catalog.model_rows``), counted of its configuration."""
    from memsheet.formulas.states.params import active_parameter_count, parameter_count
    from memsheet.readers.hf_config import read_hf_config
    from memsheet.readers.registry import FAMILIES

    entry = catalog.find_model(name)
    assert entry is not None
    family = str(entry["config"]["model_type"])
    spec = read_hf_config(entry["config"], name=name) if family in FAMILIES else None
    return {
        "name": name,
        "parameters": parameter_count(spec) if spec else entry.get("published_parameters"),
        "active_parameters": active_parameter_count(spec) if spec else None,
        "family": spec.model_type if spec else family,
        "aliases": entry.get("aliases", []),
        "source": entry["source"],
    }


def gpu_row(device: Device) -> dict[str, Any]:
    """A device: bytes that a framework gets of it, its links in bytes a second, and the sources."""
    return {
        "name": device.name, "full_name": device.full_name, "kind": device_kind(device), "vendor": device.vendor, "arch": device.arch,
        "capacity_bytes": device.framework_bytes, "capacity_low_bytes": device.framework_low_bytes,
        "capacity_high_bytes": device.framework_high_bytes, "datasheet_bytes": device.datasheet_bytes,
        "basis": device.basis.value, "evidence": device.evidence, "per_node": device.per_node,
        "memory_bytes_per_s": catalog.memory_bandwidth(device.name), "links": _link_rates(device), "uncertain": list(device.uncertain), "notes": list(device.notes), "sources": list(device.sources),
    }  # fmt: skip


def _link_rates(device: Device) -> dict[str, Any]:
    """The links in bytes a second, one direction; null where unknown."""
    links = device.links
    return {
        "scale_up_bytes_per_s": links.scale_up, "scale_up_kind": device.scale_up_kind, "switched": links.switched,
        "host_bytes_per_s": links.host, "host_kind": device.host_kind, "scale_out_bytes_per_s": links.scale_out,
    }  # fmt: skip
