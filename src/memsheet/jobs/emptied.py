"""What an allocator still has reserved where a training step begins, of a process that empties its cache
while another works on its card: what rests beside tensors, or what its own passes since then have left.

Of verl: volcengine/verl b178a3cd5 verl/workers/fsdp_workers.py:679, before the server wakes; and after each
pass of a model that goes to the host (verl/utils/fsdp_utils.py:166, 173).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memsheet.formulas.runtime import outside_tensors
from memsheet.frozen import replace
from memsheet.jobs.resident import OF_PROCESS, tensor_bytes
from memsheet.plan.device import Cluster
from memsheet.plan.job import Phase, Role, Work
from memsheet.sheet import NOTHING, Bytes, Component, Instant, Item, sum_byte_ranges


def with_emptied_loads(
    items: Iterable[Item], phases: Sequence[Phase], roles: Sequence[Role], cluster: Cluster | None
) -> tuple[Item, ...]:
    """A card's items with no more slack at a step's LOAD than its process can have kept.

    ``phases``, ``roles``: those of the card.
    """
    found = tuple(items)
    for phase in phases:
        role = next((one for one in roles if one.name == phase.active), None)
        passed = _passed_since_emptied(phase, phases, roles, role) if role else None
        if role is None or passed is None or phase.work is not Work.STEP or role.serves or role.keeps_cache:
            continue
        own = _items_of_process(found, role, roles)
        most = _most_slack(own, phase, passed, role, cluster)
        slack = Component.ALLOCATOR_SLACK, f"{role.name}/"
        found = tuple(
            _with_slack_at(item, Instant.LOAD.of_phase(phase.name), most)
            if item.component is slack[0] and item.path.startswith(slack[1])
            else item
            for item in found
        )
    return found


def _passed_since_emptied(
    phase: Phase, phases: Sequence[Phase], roles: Sequence[Role], role: Role
) -> list[Phase] | None:
    """Phases of the role's process before ``phase`` and after the last in which another process works; None
    where no other does.
    """
    processes = {one.name: one.process for one in roles}
    at = phases.index(phase)
    passed: list[Phase] = []
    for before in [*phases[:at][::-1], *phases[at + 1 :][::-1]]:
        if processes.get(before.active or "", role.process) != role.process:
            return passed
        passed.append(before)
    return None


def _items_of_process(items: Iterable[Item], role: Role, roles: Sequence[Role]) -> tuple[Item, ...]:
    names = tuple(f"{one.name}/" for one in roles if one.process == role.process)
    return tuple(item for item in items if item.path.startswith(names) and item.component not in OF_PROCESS)


def _most_slack(
    own: tuple[Item, ...], phase: Phase, passed: list[Phase], role: Role, cluster: Cluster | None
) -> Bytes:
    load = Instant.LOAD.of_phase(phase.name)
    rest = tensor_bytes(replace(item, at={Instant.LOAD: item.at[load]}) for item in own if load in item.at)
    shares = outside_tensors(role.plan, cluster, {Instant.LOAD: rest.high})
    share = sum(
        int(one.at[Instant.LOAD].high) for one in shares if one.component is Component.ALLOCATOR_SLACK
    )
    names = {before.name for before in passed}
    whens = {when for item in own for when in item.at if when.phase in names}
    held = [sum_byte_ranges([item.at[when] for item in own if when in item.at]) for when in whens]
    value = max([0, *(int(size.value - rest.value) for size in held)])
    return Bytes(0, value, max([value, share, *(int(size.high - rest.low) for size in held)]))


def _with_slack_at(item: Item, when: Instant, most: Bytes) -> Item:
    size = item.at.get(when, NOTHING)
    if when not in item.at:
        return item
    ends = (min(int(getattr(size, end)), int(getattr(most, end))) for end in ("low", "value", "high"))
    return replace(item, at={**item.at, when: Bytes(*ends)})
