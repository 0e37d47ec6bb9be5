"""Everything that one snapshot shows, put together once."""

from __future__ import annotations

from memsheet.diagnose.snapshot.held import (
    Group,
    Live,
    Meanings,
    highest_place,
    live_at,
    live_groups,
    reserved_at,
    run_of,
)
from memsheet.diagnose.snapshot.history import Frame, History
from memsheet.diagnose.snapshot.steps import Growth, steady_growth, step_places
from memsheet.diagnose.snapshot.what_if import (
    Replayed,
    WhatIf,
    least_bytes,
    other_settings,
    replay_recorded,
    room_bytes,
)
from memsheet.frozen import NamedTuple, dataclass
from memsheet.sheet import Component, Instant

EXPANDABLE = "expandable_segments:True"
LINES = 12
"""Lines that are told of what is live."""


class RankState(NamedTuple):
    """One of several snapshots of a job: bytes live and reserved, and whether a request failed there."""

    name: str
    live_bytes: int
    reserved_bytes: int
    died: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFacts:
    """What a snapshot shows at the request that failed, or at its highest where none did.

    ``live_bytes``: of tensors, as requested; ``room_bytes``: what the allocator could have had;
    ``request_line``, ``request_component``: whose the request was; ``checkpoints``: whether any stack
    recomputes, None where that cannot be seen; ``has_stacks``: whether frames were recorded; ``conf``: how
    the allocator was set.
    """

    name: str
    events: int
    failures: int
    died: bool
    complete: bool
    asked_bytes: int | None
    free_bytes: int | None
    live_bytes: int
    reserved_bytes: int
    room_bytes: int | None
    least_bytes: int | None
    components: tuple[Group, ...]
    lines: tuple[Group, ...]
    request_line: str
    request_component: str
    request_stack: tuple[Frame, ...] = ()
    steps: int = 0
    growth: Growth | None = None
    checkpoints: bool | None = None
    has_stacks: bool = False
    conf: str = ""
    replayed: Replayed | None = None
    what_if: tuple[WhatIf, ...] = ()
    ranks: tuple[RankState, ...] = ()
    torn: bool = False
    """Whether events are missing between its beginning and its end."""
    most_bytes: int | None = None
    """What the process could have at the most: the card, or a limit that is set on it."""

    def bytes_of(self, component: Component) -> int:
        return sum(group.bytes for group in self.components if group.component == component.value)


def held_of(history: History) -> SnapshotFacts:
    """What a history shows."""
    run, meanings = run_of(history), Meanings(history)
    died = run.death is not None
    end = run.end if died or not len(history.events) else highest_place(run)
    live = live_at(run, end)
    components, lines = live_groups(live, meanings)
    places = step_places(run, meanings)
    growth = None if run.torn else _named_growth(steady_growth(run, meanings, places), lines)
    reserved = reserved_at(run, end)
    room, replayed = room_bytes(run), replay_recorded(run)
    stack = history.events.stack[run.death] if run.death is not None else 0
    asked = history.events.size[run.death] if run.death is not None else None
    free = history.events.address[run.death] if run.death is not None else None
    return SnapshotFacts(
        name=history.name, events=len(history.events), failures=run.failures, died=died, complete=run.before_reserved == 0 and not run.before,
        torn=run.torn,
        asked_bytes=asked, free_bytes=free, live_bytes=sum(held.size for held in live.values()), reserved_bytes=reserved,
        room_bytes=reserved + free if free is not None else None, least_bytes=least_bytes(run) if died else None, components=components, lines=lines[:LINES],
        request_line=meanings.meaning_of(stack).line, request_component=_request_component(history, meanings, run.death), request_stack=history.stacks[stack],
        steps=len(places), growth=growth, checkpoints=_recomputes(history, meanings),
        has_stacks=meanings.has_stacks, conf=history.settings_text or (EXPANDABLE if history.settings.expandable_segments else ""), replayed=replayed,
        what_if=tuple(other_settings(run, room)) if room is not None and asked is not None and free is not None and free < asked else (),
    )  # fmt: skip


def _recomputes(history: History, meanings: Meanings) -> bool | None:
    """Whether a stack goes through torch.utils.checkpoint, or activations are made anew in backward; None of
    a traced history that has no whole steady backward, where that would be seen.
    """
    if any(meanings.meaning_of(number).recomputed for number in range(1, len(history.stacks))):
        return True
    kept = Component.SAVED_ACTIVATIONS.value
    if kept not in history.categories:
        return False if meanings.has_stacks else None
    wanted, events = history.categories.index(kept), history.events
    rows = dict.fromkeys(zip(events.category, events.stack, strict=True))
    instants = [(category, meanings.instant_of(stack)) for category, stack in rows]
    if (wanted, Instant.BACKWARD) in instants:
        return True
    ended = any(stack and stack[-1].name == Instant.OPTIMIZER_STEP.value for stack in history.stacks)
    return False if ended else None


def _request_component(history: History, meanings: Meanings, death: int | None) -> str:
    if death is None:
        return ""
    events = history.events
    return meanings.component_of(Live(0, events.stack[death], events.category[death]))


def _named_growth(growth: Growth | None, lines: tuple[Group, ...]) -> Growth | None:
    """The same with the component that the line's blocks have at the end."""
    if growth is None:
        return None
    component = next((group.component for group in lines if group.line == growth.line), growth.component)
    return growth._replace(component=component)
