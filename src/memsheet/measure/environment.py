"""Where a step was measured: versions, device, driver, the allocator's settings. What a record needs to be
read later.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from memsheet.errors import input_error
from memsheet.plan.packages import DEEPSPEED, TRANSFORMERS

PACKAGES = (
    "torch",
    TRANSFORMERS,
    "accelerate",
    "peft",
    "bitsandbytes",
    "torchao",
    DEEPSPEED,
    "flash_attn",
    "memsheet",
)
SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")
"""The second is the first's name before torch 2.9 (c10/core/AllocatorConfig.cpp); the third turns the caching
allocator off.
"""


def check_there(device: str) -> None:
    """Raises InputError for a GPU where torch sees none."""
    if device == "cuda" and not torch.cuda.is_available():
        raise input_error(
            "device",
            device,
            "is not there: this torch sees no CUDA device",
            "cpu, or `memsheet trace`, which needs none",
        )


def runtime_environment(device: str) -> dict[str, Any]:
    """Plain values: versions of what is installed, the device and what drives it, settings that are set,
    threads.
    """
    found: dict[str, Any] = {
        "python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}",
        **{name: version for name in PACKAGES if (version := _installed_version(name))}, "device": device,
        "allocator": {name: os.environ[name] for name in SETTINGS if os.environ.get(name)},
        "threads": torch.get_num_threads(),
    }  # fmt: skip
    return {**found, **(_cuda_device_facts() if device == "cuda" else {"device_name": _processor_name()})}


def _installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor_name() -> str:
    """The processor's own name, where Linux tells it."""
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        told = ""
    named = next(
        (line.partition(":")[2].strip() for line in told.splitlines() if line.startswith("model name")), ""
    )
    return named or platform.processor() or platform.machine()


def _cuda_device_facts() -> dict[str, Any]:
    about = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "device_name": about.name, "device_memory_bytes": about.total_memory, "capability": f"{about.major}.{about.minor}",
        "cuda": torch.version.cuda, "driver": nvml_driver_version(), "allocator_backend": torch.cuda.get_allocator_backend(),
    }  # fmt: skip


def nvml_driver_version() -> str | None:
    """The driver's version as NVML tells it; None without nvidia-ml-py."""
    with_nvml = _nvml_library()
    if with_nvml is None:
        return None
    found = with_nvml.nvmlSystemGetDriverVersion()
    return found.decode() if isinstance(found, bytes) else str(found)


def process_bytes(index: int) -> int | None:
    """What NVML says that this process takes of a device; None where it cannot tell (no NVML, other names for
    processes in a container).
    """
    with_nvml = _nvml_library()
    if with_nvml is None:
        return None
    card = with_nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(index).uuid}")
    running = with_nvml.nvmlDeviceGetComputeRunningProcesses(card)
    return next(
        (int(one.usedGpuMemory) for one in running if one.pid == os.getpid() and one.usedGpuMemory), None
    )


def _nvml_library() -> Any:
    """NVML, ready; None without the package or the driver."""
    try:
        import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore]

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - the package has errors of its own for every way in which there is no driver
        return None
    return pynvml
