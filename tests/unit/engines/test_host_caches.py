"""Flags of servers that carry a cache off its GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from memsheet.exchange.formats import sglang, vllm
from memsheet.exchange.shared.file_format import read_format_values

LMCACHE = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
HOST = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"cpu_bytes_to_use": 2**36},
}
NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
SERVE = "vllm serve Qwen/Qwen3-8B "


def told(command: str) -> tuple[Mapping[str, Any], list[str]]:
    form = vllm.FORMAT if "vllm" in command else sglang.FORMAT
    assert form.parse is not None
    read = read_format_values(form, form.parse(command))
    return read.request, [at for at, _ in read.unmodelled]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (f"--kv-transfer-config '{json.dumps(NIXL)}'", {"serving.kv_connector": "NixlConnector"}),
        (f"-tp 2 --kv-transfer-config '{json.dumps(HOST)}'", {"serving.kv_connector": "OffloadingConnector", "serving.host_kv_gib": 32.0}),
        ("-tp 4 --kv-offloading-size 64", {"serving.host_kv_gib": 16.0}),
        (
            f"""--kv-transfer-config '{json.dumps({"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"connectors": [NIXL, LMCACHE]}})}'""",
            {"serving.kv_connector": "NixlConnector+LMCacheConnectorV1"},
        ),
        ("-dcp 2", {"serving.dcp": 2}), ("--disable-hybrid-kv-cache-manager", {"serving.swa_full": True}),
    ],
)  # fmt: skip
def test_vllm_flags(flags: str, says: dict[str, Any]) -> None:
    request, open_ones = told(SERVE + flags)
    assert says.items() <= request.items()
    assert open_ones == []


@pytest.mark.parametrize(
    "config",
    [
        {"kv_connector": "OwnConnector", "kv_role": "kv_both"},
        {**NIXL, "kv_buffer_device": "cpu"},
        {**NIXL, "kv_connector_module_path": "mine"},
        {**HOST, "kv_connector_extra_config": {"num_cpu_blocks": 100}},
        {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [NIXL, {}]}},
        [], "no object",
    ],
)  # fmt: skip
def test_what_was_not_read_stays_open(config: object) -> None:
    request, open_ones = told(f"{SERVE}--kv-transfer-config '{json.dumps(config)}'")
    assert "serving.kv_connector" not in request
    assert open_ones == ["--kv-transfer-config"]


def test_the_environment_of_lmcache() -> None:
    flags = f"--kv-transfer-config '{json.dumps(LMCACHE)}'"
    request, open_ones = told(f"LMCACHE_MAX_LOCAL_CPU_SIZE=20 {SERVE}{flags}")
    assert (request["serving.host_kv_gib"], open_ones) == (20, [])
    assert told(f"LMCACHE_CONFIG_FILE=own.yaml {SERVE}{flags}")[1] == ["LMCACHE_CONFIG_FILE"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--enable-hierarchical-cache", {"serving.host_kv_ratio": 2.0}),
        ("--enable-hierarchical-cache --hicache-ratio 1.5 --hicache-io-backend kernel", {"serving.host_kv_ratio": 1.5}),
        ("--enable-hierarchical-cache --hicache-size 1", {"serving.host_kv_gib": 10**9 / 2**30}), ("--hicache-ratio 4", {}),
    ],
)  # fmt: skip
def test_sglang_flags(flags: str, says: dict[str, Any]) -> None:
    request, open_ones = told(f"python -m sglang.launch_server --model-path Qwen/Qwen3-8B {flags}")
    assert {at: held for at, held in request.items() if at.startswith("serving.host_kv")} == says
    assert open_ones == []
