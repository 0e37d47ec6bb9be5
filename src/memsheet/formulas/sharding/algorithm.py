"""One way in which data-parallel ranks divide states: what every algorithm is asked, and where each is
found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module

from memsheet.arith import Count
from memsheet.formulas.groups import StageLayers
from memsheet.formulas.sharding.resident_state import Host, ResidentState
from memsheet.formulas.states.held import HeldTensor, whole_parameter
from memsheet.formulas.tapes.bytes_by_path import BytesByPath, Key
from memsheet.frozen import dataclass
from memsheet.plan.engine import Engine, Sharding
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.sheet import Instant

Steps = dict[Instant, BytesByPath]
Ranges = Mapping[Key, tuple[Count, Count]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """How ranks tell one another parameters and gradients. ``copies_gathered``: parameters are copied out of
    the buffer that they are gathered in. ``broadcasts``: each rank tells the others its whole parameters in
    turn, and gradients are summed on all of them. ``beside_backward``: gradients are reduced beside it unless
    one asks otherwise. ``reduces_each``: where gradients are divided and parameters are not, after every
    micro-batch. ``adds_on_device``: to gradients on the host, which are fetched for it.
    """

    copies_gathered: bool = False
    broadcasts: bool = False
    beside_backward: bool = True
    reduces_each: bool = False
    adds_on_device: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Algorithm:
    """What an algorithm answers.

    ``check``: raises InputError for what it does not have, or what is not modelled of it. ``walk``: layers of
    a part of a model, with what becomes of their gradients. ``resident_state``: what a rank keeps through a
    step, overhead around the layers included. ``state_alone``: the same without a walk, where layers do not
    decide it; ``with_lengths``: one that was made for a plan of any length, with what lengths decide of it.
    ``parameter_shard``: elements of a parameter that a rank keeps between steps. ``bare_states``:
    states of so many parameters of which nothing else is known; ``bare_host``: of them, on the host;
    ``bare_ranges``: what of them the engine's configuration leaves open. ``offloads_apart``: parameters and
    states go to the host one without the other.
    """

    walk: Callable[[ModelSpec, Plan, Engine], StageLayers]
    resident_state: Callable[[ModelSpec, Plan, Engine, StageLayers], ResidentState]
    bare_states: Callable[[int, Plan, Engine], Steps]
    check: Callable[[Plan], None] = lambda _: None
    state_alone: Callable[[ModelSpec, Plan], ResidentState] | None = None
    with_lengths: Callable[[ResidentState, ModelSpec, Plan], ResidentState] = lambda kept, *_: kept
    parameter_shard: Callable[[HeldTensor, Plan], Count] = whole_parameter
    bare_host: Callable[[int, Plan], Host] = lambda *_: Host()
    bare_ranges: Callable[[int, Plan, Engine], Ranges] = lambda *_: {}
    offloads_apart: bool = False
    traffic: Traffic = Traffic()


@cache
def algorithm_of(sharding: Sharding) -> Algorithm:
    """The algorithm of that name: a module of this folder, imported where it is asked for."""
    found: Algorithm = import_module(f"memsheet.formulas.sharding.{sharding.value}").ALGORITHM
    return found
