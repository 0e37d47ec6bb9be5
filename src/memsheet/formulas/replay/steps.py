"""What the allocator reserves for steps that are all alike: their script, played through the allocator's
rules.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cache
from importlib import import_module

from memsheet.allocator.settings import Settings
from memsheet.allocator.whole_script import live_peak_bytes, play_whole_script
from memsheet.formulas.groups import StageLayers
from memsheet.formulas.numerics import stored_as
from memsheet.formulas.replay.order import THREADS, Run, StepContext
from memsheet.formulas.replay.script import Recorded, Script
from memsheet.formulas.replay.tape_logs import Lifetimes
from memsheet.frozen import NamedTuple, dataclass
from memsheet.plan.engine import Sharding
from memsheet.plan.plan import Plan
from memsheet.references import TORCH_ALLOCATOR, formula
from memsheet.sheet import Bytes, Derived

RUNS: Mapping[Sharding, tuple[str, ...]] = {
    Sharding.PER_PARAMETER_SHARDS: ("gathered", "staged"),
    Sharding.REPLICATED: ("spread", "whole"),
    Sharding.DISTRIBUTED_OPTIMIZER: ("buffers",),
    Sharding.PARTITIONED: ("partitioned", "fetched"),
    Sharding.FLAT_SHARDS: ("flat",),
}
"""Ways of dividing states whose steps can be played, and the modules of this folder that write them."""

REPLAYED = Derived(
    "replay of the step's own allocations, in their order and streams, through the caching allocator's "
    "rules (torch 2.13, "
    "c10/cuda/CUDACachingAllocator.cpp); low and high: a layer's forward that makes nothing for itself, "
    "and one that keeps it to its end"
)

REPLAYED_SHARES = Derived(
    f"{REPLAYED.why}; besides, what several ranks of the stage reserve, whose parts of the optimizer's "
    "states end inside other tensors; high: and the largest tensor finds its place taken"
)


@dataclass(frozen=True, slots=True)
class Reserved:
    """What the allocator reserves, and whether cached blocks had to go back to the device for that, which
    takes time. ``scratch``: what kernels' own adds to the most that backward has; ``rests``: of blocks in
    use, beyond what was asked for; ``fills``: they had to in what is
    reserved at the most alone, which would be more on a larger device.
    """

    bytes: Bytes
    flushes: bool
    rests: int = 0
    scratch: int = 0
    fills: bool = False


class Replayed(NamedTuple):
    """The most that is reserved, whether cached blocks went back to the device for it, and the most that
    blocks hold which are in use: what torch counts as allocated. A block is larger than what was asked for
    where the rest of it is too small to be split off. ``ever``: the most that is reserved, from the script's
    own beginning.
    """

    most: int
    flushes: bool
    in_blocks: int
    ever: int = 0


def replay_script(
    script: Script, start: int, settings: Settings, capacity: int | None = None
) -> Replayed | None:
    """What becomes of a script from its event ``start`` on; None where it dies on a device of ``capacity``
    bytes.
    """
    found = play_whole_script(script.events, script.sizes, script.streams, start, settings, capacity)
    if found is None:
        return None
    most = found.reserved  # what was reserved before, and has gone back, does not count
    return Replayed(most, found.retries > 0, found.in_blocks, max(found.before, most))


def replay_within_room(script: Script, start: int, settings: Settings, room: int | None) -> Replayed:
    """The same on a device that leaves ``room``, None for one without end. Cached blocks go back to the
    device before memory runs out; where it does, what would have been reserved.
    """
    key = script.digest(start, settings)
    free = _replayed.get((key, None))
    if free is not None and (room is None or free.ever <= room):
        return _remember_replay(key, None, free)
    found = _replayed.get((key, room)) or replay_script(script, start, settings, room)
    if found is None:
        found = free or replay_script(script, start, settings)
        assert found is not None
        return _remember_replay(key, None, found)
    return _remember_replay(key, room if found.flushes else None, found)


def _remember_replay(key: Hashable, room: int | None, found: Replayed) -> Replayed:
    """``room``: the one that it took another course in, None for what happens wherever there is enough."""
    _replayed.pop((key, room), None)
    _replayed[key, room] = found
    for oldest in list(_replayed)[:-REMEMBERED]:
        _replayed.pop(oldest, None)
    return found


REMEMBERED = 64
"""Scripts: a question asks for the same ones again, on other cards and beside its changes."""
_replayed: dict[tuple[Hashable, int | None], Replayed] = {}


def script_of_steps(
    walk: StageLayers, plan: Plan, lifetimes: Lifetimes, told: StepContext, sharding: Sharding
) -> tuple[Script, int]:
    """The script of two steps of a stage, and the event at which the second begins: the optimizer's states
    are made in the first; what that leaves in pieces shows in the second.
    """
    run, start = run_of_steps(walk, plan, lifetimes, told, sharding)
    return run.script, start


def run_of_steps(
    walk: StageLayers,
    plan: Plan,
    lifetimes: Lifetimes,
    told: StepContext,
    sharding: Sharding,
    recorded: dict[int, Recorded] | None = None,
) -> tuple[Run, int]:
    """The same, of the run that has written it. ``recorded``: parts of the same stage with these lifetimes,
    as far as another run has had them.
    """
    run = _run_of(plan, sharding)(walk, plan, lifetimes, told)
    run.recorded = run.recorded if recorded is None else recorded
    run.load()
    run.step()
    start = len(run.script.events)
    run.step()
    return run, start


@formula(
    cites=TORCH_ALLOCATOR,
    at="the rules of malloc and free, for the allocations of a step in their order and streams",
    counts="int",
)
def steady_reserved_bytes(
    walk: StageLayers,
    plan: Plan,
    room: Bytes | None,
    told: StepContext,
    sharding: Sharding,
    tensors: Bytes,
    backward: int,
) -> Reserved | None:
    """What the allocator reserves in a steady step of a stage on a device that leaves it ``room``: least
    where most is reserved. None where the script's own tensors are not the sheet's, which are ``tensors``
    at their most, and ``backward`` at that instant's: it leaves something out.

    Between a layer whose forward makes nothing for itself and one where all of it stays until the layer is
    through: what kernels are fused, and what an operation makes inside, is not known. Beside weights that are
    dequantized it stays until the module that made it has returned. Expected is what is recorded; what
    torch.compile makes takes the place of what went. Libraries' workspaces are in it.

    Other ranks of the stage, and other ways to start, reserve other bytes (``Run.others``,
    ``StepContext.may_expand``). Where states end
    inside tensors the largest one may find that its place was taken, since parts of a kernel's library make
    some that no script has.
    """
    expected = Lifetimes.REUSED if plan.compile else Lifetimes.RECORDED
    rooms = (int(room.high), int(room.value), int(room.low)) if room else (None, None, None)
    settings = Settings(expandable_segments=plan.expandable_segments)
    run, start = run_of_steps(walk, plan, expected, told, sharding)
    script = run.script
    beside, live = THREADS * told.workspace + sum(told.kept.values()), script.live_peak(start)
    alone = script.without_scratch()
    peak, apart = live_peak_bytes(script.events, alone, start) - beside, APART * int(tensors.value)
    if not tensors.low - apart <= peak <= tensors.high + apart:
        return None
    value, flushes, in_blocks, _ = replay_within_room(script, start, settings, rooms[1])
    recorded = script if expected is Lifetimes.RECORDED else None

    def of_lifetimes(lifetimes: Lifetimes) -> Script:
        other = recorded.of_lifetimes(lifetimes) if recorded else None
        return other or script_of_steps(walk, plan, lifetimes, told, sharding)[0]

    least, most_kept = (
        replay_within_room(of_lifetimes(lifetimes), start, settings, left)
        for lifetimes, left in ((Lifetimes.NONE, rooms[0]), (_longest_lifetimes(plan), rooms[2]))
    )
    low, high = least.most, most_kept.most
    for other in _run_of(plan, sharding).others(plan, told):
        made = run.other_script(other, start)
        if made is None:
            another, begin = run_of_steps(walk, plan, expected, other, sharding, run.recorded)
            made = another.script, begin
        most = replay_within_room(*made, settings, rooms[1]).most
        low, high = min(low, most), max(high, most)
    if told.may_expand:
        most = replay_within_room(script, start, Settings(expandable_segments=True), rooms[1]).most
        low, high = min(low, most), max(high, most)
    if told.buffers:
        high += script.largest(start)
    if (
        room and high <= room.low
    ):  # what stays within the least room does so whatever it could have cached in more
        low, value = min(low, int(room.low)), min(value, int(room.low))
    rests = in_blocks - live
    ends = Bytes(min(low, value, high), value, max(low, value, high))
    begin, end = run.backward_events
    events = script.events[:end]
    inside, without = (live_peak_bytes(events, sizes, begin) - beside for sizes in (script.sizes, alone))
    largest = max((script.sizes[number] for number in script.scratch), default=0)
    scratch = min(max(0, inside - backward), largest) if inside > without else 0
    fills = most_kept.flushes and not flushes
    return Reserved(ends, flushes, rests, scratch, fills)


def _longest_lifetimes(plan: Plan) -> Lifetimes:
    """How long what a layer's forward makes may stay at the most. What 4-bit layers and the adapters on them
    make (the dequantized weight, its product, a clone of that, a branch) is named in functions of
    bitsandbytes' and peft's, which return one of them and let go of the rest, in every release (bitsandbytes
    95f9af3 autograd/_functions.py:323-384; peft 0.21.2 tuners/lora/bnb.py:513-561).
    """
    dequantizes = plan.quantization is not None and stored_as(plan.quantization) == "4-bit"
    return Lifetimes.CALLED if dequantizes and not plan.compile else Lifetimes.LATE


APART = 0.005
"""Of its tensors, by which a script's may differ from the sheet's."""


def is_equal_step_replayable(plan: Plan, sharding: Sharding) -> bool:
    """Whether the plan's step can be written as a script."""
    return any(_run_named(name).plays(plan) for name in RUNS.get(sharding, ()))


def _run_of(plan: Plan, sharding: Sharding) -> type[Run]:
    """The first that plays a plan; the last where none does."""
    runs = [_run_named(name) for name in RUNS[sharding]]
    return next((run for run in runs if run.plays(plan)), runs[-1])


@cache
def _run_named(name: str) -> type[Run]:
    """Of a module of this folder, loaded where it is asked for."""
    found: type[Run] = import_module(f"memsheet.formulas.replay.{name}").RUN
    return found
