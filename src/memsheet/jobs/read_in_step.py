"""The pass of a frozen model within another's step: its layers run when all that the step saves is there, and
no other instant has both.

Autocast keeps the frozen model's casts for as long as its forward runs where nobody told its weights that
they want no gradient (pytorch/pytorch cf30153c aten/src/ATen/autocast_mode.cpp, cached_cast), and its logits
are made beside them.
"""

from __future__ import annotations

from collections.abc import Iterable

from memsheet.jobs.forward import CAST, cast_output_matrix, forward_items
from memsheet.jobs.logits import positions
from memsheet.plan.job import Job, Logits, Phase, Residency, Role, Work
from memsheet.plan.plan import Plan
from memsheet.sheet import Bytes, Component, Derived, Instant, Item, Sheet

WHY = Derived("what the frozen model's pass takes beyond the forward before it, whose saved tensors stay")


def readers_of(job: Job, phase: Phase) -> tuple[Role, ...]:
    """Frozen models of the learning role's process that no phase is of: they read within its step."""
    owner = next((role for role in job.roles if role.name == phase.active), None)
    if owner is None or phase.logits is None or phase.work is not Work.STEP:
        return ()
    active = {each.active for each in job.phases}
    return tuple(
        role
        for role in job.roles
        if not (role.trained or role.serves or role.name in active) and role.process == owner.process
    )


def read_item(
    reader: Role, plan: Plan, recomputed: Sheet, logits: Logits, step: Iterable[Item]
) -> Item | None:
    """What the pass takes at FORWARD beyond the step's own forward, bytes of a rank; None where it takes no
    more. ``plan``, ``recomputed``: the reader's, over the rows of the step, and its step that recomputes
    every layer; ``step``: items of the step that learns.
    """
    own = tuple(step)
    saved = Component.SAVED_ACTIVATIONS
    later = _bytes_at(own, saved, Instant.LOSS) - _bytes_at(own, saved, Instant.FORWARD)
    there = _bytes_at(own, Component.TEMPORARIES, Instant.FORWARD)
    layers = tuple(forward_items(reader, recomputed, Residency.PARAMETERS))
    inside = _bytes_at(layers, Component.TEMPORARIES, Instant.FORWARD)
    more = max(inside, _head_bytes(reader, plan, layers, logits)) + later - there
    if more <= 0:
        return None
    return Item(Component.TEMPORARIES, f"{reader.name}_pass", {Instant.FORWARD: Bytes(0, more, more)}, WHY)


def _head_bytes(reader: Role, plan: Plan, layers: tuple[Item, ...], logits: Logits) -> int:
    """Casts that autocast keeps, that of the output matrix among them, and the logits that it makes."""
    kept = [item for item in layers if item.path.endswith(CAST) and Instant.FORWARD in item.at]
    casts = sum(int(item.at[Instant.FORWARD].value) for item in kept)
    output = int(cast_output_matrix(reader).at[Instant.LOSS].value) if kept else 0
    words = -(-int(reader.model.head.width) // int(plan.mesh.tp))
    return casts + output + int(plan.precision.compute.nbytes(positions(plan, logits) * words))


def _bytes_at(items: Iterable[Item], component: Component, when: Instant) -> int:
    return sum(int(item.at[when].value) for item in items if item.component is component and when in item.at)
