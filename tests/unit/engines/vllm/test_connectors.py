"""What carries vLLM's cache off a GPU."""

from __future__ import annotations

import pytest

import memsheet
from memsheet.budget import Answer
from memsheet.engines.vllm.connectors import CONNECTORS
from memsheet.exchange.shared import host_caches
from memsheet.sheet import Component, Instant
from memsheet.units import GIB

CHUNK = 256


def served(model: str = "llama-3.1-8b", **options: object) -> Answer:
    return memsheet.infer(model, gpus="1xH100-80GB", engine="vllm", max_model_len=8192, **options)  # type: ignore[arg-type]


def test_every_connector_that_is_read_is_known_to_the_engine() -> None:
    assert {*host_caches.REGISTERING, *host_caches.OFFLOADING} == set(CONNECTORS)


@pytest.mark.parametrize("name", CONNECTORS)
def test_the_pool_is_as_large_as_without_it(name: str) -> None:
    pools = [
        one.sheets[0].of(Component.KV_CACHE, instant=Instant.DECODE)
        for one in (served(), served(kv_connector=name))
    ]
    assert pools[0] == pools[1]


def test_a_chunk_on_the_card_and_a_pool_on_the_host() -> None:
    plain, copied = served(), served(kv_connector="LMCacheConnectorV1")
    assert plain.serving is not None
    more = copied.sheets[0].of(Component.WORKSPACES).value - plain.sheets[0].of(Component.WORKSPACES).value
    assert more == CHUNK * plain.serving["kv_bytes_per_token_per_rank"]
    assert copied.sheets[0].host_bytes == 5 * GIB
    for held in (0.5, 20):
        assert served(host_kv_gib=held).sheets[0].host_bytes == held * GIB


def test_windows_keep_every_token_beside_a_connector_that_knows_one_kind() -> None:
    groups = [
        one.serving["groups"] if one.serving else None
        for one in (
            served("gemma-3-27b", kv_connector="NixlConnector"),
            served("gemma-3-27b", kv_connector="LMCacheConnectorV1"),
            served("gemma-3-27b", swa_full=True),
            served("gemma-3-27b", kv_connector="NixlConnector", engine_version="0.18.0"),
        )
    ]
    assert groups[0] != groups[1]
    assert groups[1] == groups[2] == groups[3] == ["62 layers that keep all tokens"]


def test_an_unread_connector_is_refused() -> None:
    with pytest.raises(memsheet.InputError, match="is no connector that was read"):
        served(kv_connector="NixlConnector+OwnConnector")
