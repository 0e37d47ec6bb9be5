"""What of a role is on the card in a phase: at rest, asleep, or on the host; and what it costs the host.

Of a server that sleeps: vllm-project/vllm 010c211 vllm/device_allocator/cumem.py frees all of the pools
"weights" and "kv_cache", at level 1 with a copy of the weights in pinned host memory, at level 2 with one of
the model's buffers (v1/worker/gpu_worker.py, sleep).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from memsheet.arith import maximum, minimum
from memsheet.formulas.runtime import outside_tensors
from memsheet.frozen import replace
from memsheet.plan.device import Cluster
from memsheet.plan.job import Residency, Role
from memsheet.sheet import (
    NOTHING,
    OUTSIDE_TENSORS,
    STATES,
    Bytes,
    Component,
    Instant,
    Item,
    Sheet,
    sum_byte_ranges,
)

Rows = tuple[Item, ...]
"""Items of one instant, LOAD, whatever phase they come to stand in."""
OF_PROCESS = (Component.CONTEXT, Component.WORKSPACES)
PASSING = (Component.TEMPORARIES, Component.INPUTS, Component.ALLOCATOR_SLACK)


def resident_items(role: Role, sheet: Sheet, how: Residency, cluster: Cluster | None) -> Rows:
    """What a role that is not active has on the card, as items at LOAD. ``sheet``: of its own plan."""
    if how is Residency.ABSENT:
        return ()
    held = tuple(_held_at_rest(role, sheet, how))
    return (*held, *_slack_at_rest(role, sheet, how, held, cluster))


def _held_at_rest(role: Role, sheet: Sheet, how: Residency) -> Iterator[Item]:
    rest = Instant.DECODE if role.serves else Instant.LOAD
    weights = {(item.component, item.path) for item in sheet.items if Instant.LOAD in item.at}
    for item in sheet.items:
        size = item.at.get(rest)
        loaded = (item.component, item.path) in weights and item.component not in OF_PROCESS
        if size is None or item.component in PASSING:
            continue
        kept = (
            _keeps_of_server(item, how, loaded=loaded) if role.serves else _keeps_of_training(role, item, how)
        )
        if kept:
            yield replace(item, at={Instant.LOAD: _in_order(size)})


def _in_order(size: Bytes) -> Bytes:
    """A range by itself: a server's pool is the smaller the more its passes take, which are not there."""
    return Bytes(minimum(size.low, size.high), size.value, maximum(size.low, size.high))


def _keeps_of_server(item: Item, how: Residency, *, loaded: bool) -> bool:
    """Graphs, workspaces and what the sampler holds outlast sleep; what was loaded and the cache do not."""
    if how is Residency.WHOLE:
        return True
    if how is Residency.PARAMETERS:
        return item.component is not Component.KV_CACHE
    return not loaded and item.component is not Component.KV_CACHE


def _keeps_of_training(role: Role, item: Item, how: Residency) -> bool:
    """States that are there when a step begins; of a model that is not trained its parameters alone."""
    of_states = item.component in STATES and item.component is not Component.PARAMETERS
    if not role.trained and (of_states or item.component is Component.COMMUNICATION):
        return False
    match how:
        case Residency.WHOLE:
            return True
        case Residency.PARAMETERS:
            return not of_states and not is_gradient_bucket(item)
        case Residency.STATES:
            return item.component not in (Component.PARAMETERS, Component.BUFFERS)
        case _:
            return item.component in OF_PROCESS


def is_gradient_bucket(item: Item) -> bool:
    """Whether it is what gradients are reduced through, which leaves the card with the optimizer's states
    (deepspeedai/DeepSpeed edaa7221 runtime/zero/stage3.py:3652-3658, contiguous_grad_buffer).
    """
    return item.component is Component.COMMUNICATION and item.path.endswith("bucket")


def _slack_at_rest(
    role: Role, sheet: Sheet, how: Residency, held: Rows, cluster: Cluster | None
) -> Iterator[Item]:
    """What the allocator reserves beyond what rests: from nothing to a share of it, where its cache is
    emptied; else all that it reserved at its most. A server that rests has no more than one that serves.
    """
    slack = [item for item in sheet.items if item.component is Component.ALLOCATOR_SLACK]
    if not slack or cluster is None:
        return
    rest = tensor_bytes(held)
    if role.keeps_cache and how not in (Residency.RESIDUE, *_SLEEPS):
        most = max((sheet.reserved.value - rest.value, 0))
        size = Bytes(0, most, maximum(most, sheet.reserved.high - rest.low))
    else:
        shares = outside_tensors(role.plan, cluster, {Instant.LOAD: rest.high})
        high = [item.at[Instant.LOAD].high for item in shares if item.component is Component.ALLOCATOR_SLACK]
        own = max((int(size.high) for item in slack for size in item.at.values()), default=0)
        size = Bytes(0, 0, min(sum(high), own) if role.serves else sum(high))
    yield replace(slack[0], path="allocator", at={Instant.LOAD: size})


_SLEEPS = (Residency.ASLEEP_1, Residency.ASLEEP_2)


def tensor_bytes(items: Iterable[Item]) -> Bytes:
    """What items at LOAD add up to without what is beside tensors."""
    sizes = [item.at[Instant.LOAD] for item in items if item.component not in OUTSIDE_TENSORS]
    return sum_byte_ranges(sizes) if sizes else NOTHING


def host_bytes(role: Role, sheet: Sheet, how: Residency) -> int:
    """Host memory of one card's part of a role while it is so, beyond what its own plan takes."""
    at_load = [item for item in sheet.items if Instant.LOAD in item.at]

    def bytes_of(*components: Component) -> int:
        return sum(int(item.at[Instant.LOAD].high) for item in at_load if item.component in components)

    parameters = (Component.PARAMETERS,)
    states = tuple(each for each in STATES if each is not Component.PARAMETERS) if role.trained else ()
    match how:
        case Residency.PARAMETERS if not role.serves:
            return bytes_of(*states)
        case Residency.STATES:
            return bytes_of(*parameters, Component.BUFFERS)
        case Residency.OFFLOADED:
            return bytes_of(*parameters, Component.BUFFERS, *states)
        case Residency.ASLEEP_1:
            return bytes_of(*parameters, Component.BUFFERS)
        case Residency.ASLEEP_2:
            return bytes_of(Component.BUFFERS)
        case _:
            return 0
