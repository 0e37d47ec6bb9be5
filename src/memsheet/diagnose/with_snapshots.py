"""Snapshots of one job, one a rank, and what its texts said → one diagnosis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from memsheet.diagnose.candidates import Axes
from memsheet.diagnose.figures import figure_facts
from memsheet.diagnose.identities import tensor_of
from memsheet.diagnose.interval import Interval
from memsheet.diagnose.message import Cause, Term
from memsheet.diagnose.snapshot.findings import RankState, SnapshotFacts
from memsheet.diagnose.snapshot.judged import figures_of, growth_words, judge_held, leak_cure, replay_counts
from memsheet.diagnose.verdict import Diagnosis, predicted_bytes
from memsheet.frozen import replace
from memsheet.plan.plan import RecomputeMode
from memsheet.sheet import Component

if TYPE_CHECKING:
    from memsheet.budget import Answer

OF_TEXT = (
    Cause.OTHER_PROCESS, Cause.OUTSIDE_ALLOCATOR, Cause.LIMIT_SET, Cause.NOT_GPU_MEMORY, Cause.WAKE_UP_RACE, Cause.FOLLOW_UP_ERROR,
    Cause.ENGINE_OVERCOMMIT, Cause.ENGINE_UNDERPROVISION, Cause.REGIME_CHANGE,
)  # fmt: skip
"""What a snapshot cannot see, and a message can: there the message speaks."""
NOTHING_FAILED = "no request failed in it; what is shown is where it held most"


def diagnose_held(
    every: Sequence[SnapshotFacts], said: Diagnosis | None, known: Axes | None = None
) -> Diagnosis:
    """The diagnosis of snapshots, beside that of the texts of the same job. ``known``: sizes of the plan."""
    told = max(every, key=lambda held: (held.died, held.live_bytes))
    if len(every) > 1:
        told = replace(
            told, ranks=tuple(RankState(h.name, h.live_bytes, h.reserved_bytes, h.died) for h in every)
        )
    inputs = (*(said.inputs if said else ()), *(held.name for held in every))
    own = _diagnosis_of(told, inputs, known or Axes())
    if said is None or not said.found:
        return replace(own, notes=(*(said.notes if said else ()), *own.notes))
    if not own.found or said.cause in OF_TEXT:
        return replace(said, inputs=inputs, held=told, notes=(*said.notes, *own.notes))
    return replace(
        own,
        facts={**own.facts, **said.facts},
        term=_joined_term(own.term, said.term),
        program=said.program,
        notes=(*said.notes, *own.notes),
    )


def _joined_term(own: Term | None, said: Term | None) -> Term | None:
    """The tensor by its size where the text or the plan knows it, at the line that asked."""
    if said is None or not said.exact:
        return own or said
    return replace(said, words=f"{said.words}, at {own.words}" if own is not None else said.words)


def _diagnosis_of(held: SnapshotFacts, inputs: tuple[str, ...], known: Axes) -> Diagnosis:
    notes = tuple(_notes_of(held))
    if not held.died:
        nothing = Diagnosis(
            inputs=inputs,
            found=held.growth is not None,
            cause=Cause.UNKNOWN,
            because=NOTHING_FAILED,
            held=held,
            notes=notes,
            facts=_live_facts(held),
        )
        if held.growth is None:
            return nothing
        return replace(nothing, cause=Cause.LEAK, because=growth_words(held), cures=(leak_cure(held),))
    figures = figures_of(held)
    assert figures is not None
    judged, signs = judge_held(held)
    term = _joined_term(judged.term, tensor_of(figures.asked, signs, known))
    decided = len(judged.causes) == 1
    unsaid = ("capacity_bytes",) if held.most_bytes is None else ()
    facts = {name: size for name, size in figure_facts(figures).items() if name not in unsaid}
    return Diagnosis(
        inputs=inputs, found=True, cause=judged.causes[0] if decided else Cause.UNKNOWN, because=judged.because,
        open_between=() if decided else judged.causes, arithmetic=judged.arithmetic, facts=facts, term=term, missing=judged.missing,
        cures=judged.cures, held=held, notes=notes,
    )  # fmt: skip


def _live_facts(held: SnapshotFacts) -> dict[str, Interval]:
    return {
        "allocated_bytes": Interval(held.live_bytes, held.live_bytes),
        "reserved_bytes": Interval(held.reserved_bytes, held.reserved_bytes),
    }


def _notes_of(held: SnapshotFacts) -> Iterator[str]:
    replayed = held.replayed
    if held.ranks:
        dead = sum(rank.died for rank in held.ranks)
        yield f"{dead} of {len(held.ranks)} snapshots hold a request that failed; {held.name} is told"
    if held.failures > 1:
        yield f"{held.failures} requests failed in it: the last is told"
    if not held.has_stacks and held.events:
        yield "no frames were recorded: _record_memory_history(stacks='python') tells whose memory it is"
    if not held.complete:
        yield "the history begins with memory in use: what came before is known by its blocks alone"
    if not held.events:
        return
    if held.torn:
        yield "events are missing (skip_actions?): what was live, and what grows, cannot be told of it"
    if replayed is None:
        yield "its allocator's settings are not modelled, so that nothing was replayed"
    elif replayed.events and not replay_counts(held):
        yield "the replay differs from the recorded segments: it cannot say what other settings would do"


RECOMPUTES_NOT = "the plan recomputes activations, and no stack of the snapshot does: it is off in what ran"


def recompute_notes(held: SnapshotFacts | None, answer: Answer) -> Iterator[str]:
    """What a plan says of recompute and its run does not do."""
    if held is None or not held.has_stacks or held.checkpoints is not False:
        return
    kept = held.bytes_of(Component.SAVED_ACTIVATIONS)
    predicted = predicted_bytes(answer, Component.SAVED_ACTIVATIONS.value) or 0
    if answer.plan.recompute.mode is not RecomputeMode.NONE and kept > predicted:
        yield RECOMPUTES_NOT
