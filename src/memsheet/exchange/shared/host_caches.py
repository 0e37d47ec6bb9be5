"""Flags of servers that carry a cache off its GPU, to the host or another server: rows of vLLM's and of
SGLang's commands (``exchange.shared.serve_command``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import Key, Values
from memsheet.units import GIB

HOST_GIB, HOST_RATIO, CONNECTOR, WHOLE = (
    "serving.host_kv_gib",
    "serving.host_kv_ratio",
    "serving.kv_connector",
    "serving.swa_full",
)
MOST_TEXT = 2**16

# ---- vLLM 0.33.0 -------------------------------------------------------------------------------------------

CONFIG, SIZE, OFF = "--kv-transfer-config", "--kv-offloading-size", "--disable-hybrid-kv-cache-manager"
REGISTERING = (
    "NixlConnector", "NixlPullConnector", "NixlPushConnector", "MooncakeConnector", "MooncakeStoreConnector", "LMCacheConnectorV1",
)  # fmt: skip
OFFLOADING = ("OffloadingConnector", "SimpleCPUOffloadConnector")
BYTES = "cpu_bytes_to_use"
"""Connectors that the engine's room has read, those that need no more than their name, and those that say
how many bytes of the host they take (distributed/kv_transfer/kv_connector/v1/).
"""
LMCACHE_SIZE = "LMCACHE_MAX_LOCAL_CPU_SIZE"
VLLM_VARIABLES = {
    name: name
    for name in (LMCACHE_SIZE, "LMCACHE_CONFIG_FILE", "LMCACHE_USE_LAYERWISE", "LMCACHE_CHUNK_SIZE", "LMCACHE_ENABLE_PD")
}  # fmt: skip
VLLM_UNMODELLED: dict[str, tuple[Any, ...]] = {
    "LMCACHE_CONFIG_FILE": (), "LMCACHE_USE_LAYERWISE": ("False", "false", 0), "LMCACHE_CHUNK_SIZE": (256,), "LMCACHE_ENABLE_PD": ("False", "false", 0),
    "--kv-offloading-backend": ("native",),
}  # fmt: skip
"""What LMCache's environment says in place of its configuration (lmcache 0.5.6 v1/config.py): another buffer
on the card. Its own server beside vLLM's is another process of the card (config/vllm.py:1176).
"""


def transfer_config(value: Any) -> Mapping[str, Any] | None:
    """The object that a flag or a file says, None where it is none."""
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, str) or len(value) > MOST_TEXT:
        return None
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _named_connectors(config: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The connector, or those that it is made of."""
    if config is None:
        return []
    extra = config.get("kv_connector_extra_config")
    parts = extra.get("connectors") if isinstance(extra, Mapping) else None
    if config.get("kv_connector") == "MultiConnector" and isinstance(parts, list):
        return [one if isinstance(one, Mapping) else {} for one in parts]
    return [config]


def _host_bytes_of(config: Mapping[str, Any]) -> int | None:
    extra = config.get("kv_connector_extra_config")
    held = extra.get(BYTES) if isinstance(extra, Mapping) else None
    return held if isinstance(held, int) and held > 0 else None


def _is_read(value: Any) -> bool:
    """Whether every connector keeps what it holds where it was read: not with a buffer of another device, nor
    code of one's own.
    """
    named = _named_connectors(transfer_config(value))
    return bool(named) and all(
        one.get("kv_buffer_device") in (None, "cuda")
        and not one.get("kv_connector_module_path")
        and (
            one.get("kv_connector") in REGISTERING
            or (one.get("kv_connector") in OFFLOADING and _host_bytes_of(one) is not None)
        )
        for one in named
    )


def _ranks(values: Values) -> int:
    sizes = [values.get(f"--{axis}-parallel-size", 1) for axis in ("tensor", "pipeline")]
    return sizes[0] * sizes[1] if all(isinstance(size, int) and size > 0 for size in sizes) else 1


def _read_transfer_config(value: Any, values: Values) -> Mapping[str, Any]:
    if not _is_read(value):
        return {}
    named = _named_connectors(transfer_config(value))
    held = sum(_host_bytes_of(one) or 0 for one in named if one.get("kv_connector") in OFFLOADING)
    return {
        CONNECTOR: "+".join(str(one["kv_connector"]) for one in named),
        **({HOST_GIB: held / GIB / _ranks(values)} if held else {}),
    }


def _write_transfer_config(asked: Values) -> str | None:
    """The object of a plan's connector, whose bytes on the host it says where it must."""
    name, held = asked.get(CONNECTOR), asked.get(HOST_GIB, 0)
    if not name:
        return None
    ranks = asked.get("mesh.tp", 1) * asked.get("mesh.pp", 1)
    parts = [
        {
            "kv_connector": one,
            "kv_role": "kv_both",
            **({"kv_connector_extra_config": {BYTES: int(held * ranks * GIB)}} if one in OFFLOADING else {}),
        }
        for one in str(name).split("+")
    ]
    whole = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": parts},
    }
    return json.dumps(parts[0] if len(parts) == 1 else whole)


def _write_offloading_size(asked: Values) -> float | None:
    held = asked.get(HOST_GIB)
    return (
        held * asked.get("mesh.tp", 1) * asked.get("mesh.pp", 1)
        if held and not asked.get(CONNECTOR)
        else None
    )


def _read_offloading_size(value: Any, values: Values) -> Mapping[str, Any]:
    """GiB over all ranks of an engine (config/cache.py, kv_offloading_size)."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return {HOST_GIB: value / _ranks(values)} if known else {}


VLLM_KEYS = (
    Key(at=CONFIG, out=_write_transfer_config, back=_read_transfer_config, reads=_is_read, source="config/kv_transfer.py:60, config/vllm.py:2259"),
    Key(at=SIZE, out=_write_offloading_size, back=_read_offloading_size, source="config/cache.py, kv_offloading_size; config/vllm.py:1151"),
    Key(
        at=LMCACHE_SIZE, out=lambda _: None, back=lambda v, _: {HOST_GIB: v} if isinstance(v, int | float) and v else {},
        source="lmcache 0.5.6 v1/config.py, max_local_cpu_size, of each worker",
    ),
    Key(
        at=OFF, out=lambda a: a.get(WHOLE) or None, back=lambda v, _: {WHOLE: True} if v is True else {},
        source="config/scheduler.py, disable_hybrid_kv_cache_manager; v1/core/kv_cache_planning.py:853",
    ),
)  # fmt: skip

# ---- SGLang 0.5.23 -----------------------------------------------------------------------------------------

HIERARCHICAL, RATIO, GIGABYTES = "--enable-hierarchical-cache", "--hicache-ratio", "--hicache-size"
USUAL_RATIO = 2.0
"""The host's pool over the GPU's where nobody says, which newer releases lower to what is free there
(arg_groups/hicache_hook.py:119, mem_cache/hicache_auto_size.py:95).
"""
SGLANG_KNOWN = """
hicache-host-memory-fraction hicache-host-memory-mode hicache-io-backend hicache-mem-layout hicache-storage-backend
hicache-storage-backend-extra-config hicache-storage-prefetch-policy hicache-storage-prefetch-retry-max-attempts
hicache-storage-prefetch-retry-poll-interval hicache-write-policy
"""
"""Of the pool on the host and of what lies behind it."""


def _read_hierarchical(value: Any, values: Values) -> Mapping[str, Any]:
    said = values.get(RATIO) or values.get(GIGABYTES)
    return {HOST_RATIO: USUAL_RATIO} if value is True and not said else {}


def _read_ratio(value: Any, values: Values) -> Mapping[str, Any]:
    """Of effect where a cache on the host is on, and nothing says its size (pool_host/base.py:222)."""
    on = values.get(HIERARCHICAL) is True and not values.get(GIGABYTES)
    return {HOST_RATIO: value} if on else {}


def _read_gigabytes(value: Any, values: Values) -> Mapping[str, Any]:
    known = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return {HOST_GIB: value * 10**9 / GIB} if known and values.get(HIERARCHICAL) is True else {}


SGLANG_KEYS = (
    Key(
        at=HIERARCHICAL, out=lambda a: True if a.get(HOST_RATIO) or a.get(HOST_GIB) else None, back=_read_hierarchical,
        source="memory.py, enable_hierarchical_cache; mem_cache/pool_host/base.py",
    ),
    Key(at=RATIO, out=lambda a: a.get(HOST_RATIO) or None, back=_read_ratio, source="memory.py, hicache_ratio"),
    Key(
        at=GIGABYTES, out=lambda a: a[HOST_GIB] * GIB / 10**9 if a.get(HOST_GIB) else None, back=_read_gigabytes,
        source="memory.py, hicache_size: GB of 10**9 bytes, of each rank",
    ),
)  # fmt: skip
