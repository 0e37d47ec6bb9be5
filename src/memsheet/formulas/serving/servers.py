"""Which module accounts a server's memory, each as its engine says (``Engine.server``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from memsheet.plan.device import Cluster
from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import engine_module
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.sheet import Bytes, Item, Sheet


class Server(Protocol):
    """What such a module has. ``items``: everything on a rank of a stage, context and slack included.
    ``facts``: what a serving engineer asks besides, among it ``short_bytes`` where the engine would refuse to
    start.
    """

    def items(
        self, spec: ModelSpec, plan: Plan, engine: Engine, cluster: Cluster | None, stage: int
    ) -> list[Item]: ...

    def facts(
        self, spec: ModelSpec, plan: Plan, cluster: Cluster | None, sheets: tuple[Sheet, ...]
    ) -> Mapping[str, Any]: ...


class PoolServer(Server, Protocol):
    """A server whose cache is a pool (``ServingFacts.pools_cache``). ``room``: how many sequences of a length
    it holds.
    """

    def room(self, spec: ModelSpec, plan: Plan, cluster: Cluster | None) -> Callable[[int], Bytes]: ...


def server_of(engine: Engine) -> Server:
    """The module that accounts the engine's inference."""
    return cast("Server", engine_module(engine.server, "server"))


def pool_server_of(engine: Engine) -> PoolServer:
    """The same, of an engine whose cache is a pool."""
    assert engine.serving.pools_cache
    return cast("PoolServer", server_of(engine))
