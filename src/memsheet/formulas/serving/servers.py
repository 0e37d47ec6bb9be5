"""Which module accounts a server's memory, each as its engine says (``Engine.server``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from memsheet.formulas.states.open_storage import mixers_left_whole, with_both_ends
from memsheet.plan.device import Cluster
from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import engine_module, engine_of
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


def server_facts(
    spec: ModelSpec, plan: Plan, cluster: Cluster | None, sheets: tuple[Sheet, ...]
) -> Mapping[str, Any]:
    """The facts of the plan's server, with both ends of what a copy's name leaves open."""
    server, largest = server_of(engine_of(plan)), mixers_left_whole(spec, plan)
    facts = server.facts(spec, plan, cluster, sheets)
    return facts if largest is None else with_both_ends(facts, server.facts(spec, largest, cluster, sheets))


def sequence_room(spec: ModelSpec, plan: Plan, cluster: Cluster | None) -> Callable[[int], Bytes]:
    """How many sequences of a length the pool of the plan's server holds, with both ends of what a copy's
    name leaves open.
    """
    engine, largest = engine_of(plan), mixers_left_whole(spec, plan)
    assert engine.serving.pools_cache
    server = cast("PoolServer", server_of(engine))
    usual = server.room(spec, plan, cluster)
    if largest is None:
        return usual
    least = server.room(spec, largest, cluster)
    return lambda tokens: usual(tokens).with_ends_of(least(tokens))
