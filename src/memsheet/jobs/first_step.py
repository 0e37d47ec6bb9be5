"""What a card holds in a job's first step, in which an optimizer makes its states at the end of its update:
phases before are without them, and a job that dies in its second step has passed them in its first.

States are made by the first update whoever divides them (pytorch/pytorch cf30153c torch/optim/adamw.py,
_init_group; deepspeedai/DeepSpeed edaa7221 runtime/zero/stage3.py:1251-1310, stage_1_and_2.py:837-857;
NVIDIA/Megatron-LM core_v0.14.0 megatron/core/optimizer/distrib_optimizer.py); a master copy is there before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memsheet.frozen import NamedTuple
from memsheet.plan.job import Job, Work
from memsheet.sheet import NOTHING, Bytes, Component, Instant, Item, Sheet


class FirstStep(NamedTuple):
    """Where a card is fullest in the first step, what it holds there, and the states that the role's update
    makes of it.
    """

    instant: Instant
    size: Bytes
    made: Mapping[str, int]


def first_step(job: Job, sheet: Sheet) -> FirstStep | None:
    """The fullest instant of a card's first step; None where no states are made late on it."""
    places = {when: number for number, when in enumerate(sheet.phased)}
    updates = {role: places[when] for role, when in _first_updates(job, places)}
    made = {role: _states_of(sheet, role, sheet.phased[number]) for role, number in updates.items()}
    made = {role: size for role, size in made.items() if size}
    if not made:
        return None
    sizes = {when: _held_at(sheet, when, number, updates) for when, number in places.items()}
    fullest = max(sizes, key=lambda when: sizes[when].value)
    return FirstStep(fullest, sizes[fullest], made)


def _first_updates(job: Job, places: Mapping[Instant, int]) -> Iterator[tuple[str, Instant]]:
    """Of each role that learns, where its optimizer first steps."""
    for role in job.roles:
        own = [one for one in job.phases if one.active == role.name and one.work is Work.STEP]
        steps = [when for one in own if (when := Instant.OPTIMIZER_STEP.of_phase(one.name)) in places]
        if role.trained and steps:
            yield role.name, steps[0]


def _is_state_of(item: Item, role: str) -> bool:
    return item.component is Component.OPTIMIZER_STATES and item.path.startswith(f"{role}/")


def _states_of(sheet: Sheet, role: str, when: Instant) -> int:
    return sum(
        int(item.at[when].value) for item in sheet.items if _is_state_of(item, role) and when in item.at
    )


def _held_at(sheet: Sheet, when: Instant, number: int, updates: Mapping[str, int]) -> Bytes:
    """What is there at an instant of the first step."""
    held = NOTHING
    late = [role for role, at in updates.items() if number < at]
    for item in sheet.items:
        if when in item.at and not any(_is_state_of(item, role) for role in late):
            held = held + item.at[when]
    return held
