"""What may or may not fit: what decides it, and what is said of changes where none makes it sure."""

from __future__ import annotations

from memsheet.budget import Answer, Result, Verdict, budget_of, worst_sheet
from memsheet.plan.device import Cluster
from memsheet.sheet import Bytes, Component, Sheet
from memsheet.units import format_bytes

ROUTING = "expert routing decides: "
"""How the note of a training job begins that fits where experts are chosen evenly, and may not where they are
not.
"""


TYPES = "the types in the file decide: "
"""The same of a file of weights that is known by its name alone."""
SEGMENTS = "cached segments decide: "
"""The same of a job whose tensors and context fit, and whose allocator keeps more than the card has."""
DECIDES = {
    ROUTING: "expert routing",
    TYPES: "the types in the file",
    SEGMENTS: "cached segments",
}


def deciding_notes(answer: Answer) -> tuple[str, ...]:
    """The notes that say what decides whether an uncertain job fits."""
    unsure = answer.verdict is not None and answer.verdict.result is Result.UNCERTAIN
    return tuple(note for note in answer.notes if note.startswith(tuple(DECIDES))) if unsure else ()


def types_notes(verdict: Verdict | None, sheets: tuple[Sheet, ...]) -> tuple[str, ...]:
    """That a mix of types decides which a file's name leaves open: where a job is uncertain, and half of what
    its need is open by, or more, is of weights.
    """
    if verdict is None or verdict.result is not Result.UNCERTAIN:
        return ()
    open_ones = [(sheet.of(Component.PARAMETERS), sheet.device) for sheet in sheets]
    weights, device = max(open_ones, key=lambda one: one[0].high - one[0].low)
    if 2 * (weights.high - weights.low) < device.high - device.low:
        return ()
    low, high = (format_bytes(int(size), digits=2) for size in (weights.low, weights.high))
    said = f"its weights take {low} to {high} a GPU by its name alone"
    return (f"{TYPES}{said}; the .gguf file itself, given as the model, says which",)


def beside_segments(verdict: Verdict | None, sheet: Sheet, cluster: Cluster | None) -> Bytes | None:
    """What a job needs beside the allocator's slack, and no less than it has at the least with it, where that
    is sure to fit and the expected need is above the card, or where most of what is too much is slack; None
    elsewhere.
    """
    if verdict is None or cluster is None or verdict.no_most or verdict.host_short_bytes:
        return None
    budget, expected = budget_of(cluster), verdict.device.value
    need = sheet.beside(Component.ALLOCATOR_SLACK).max(Bytes.exact(sheet.device.low))
    if verdict.result is Result.UNCERTAIN:
        return need if need.high <= budget.low_bytes < expected else None
    over = need.value - budget.capacity_bytes
    return need if verdict.result is Result.DOES_NOT_FIT and 0 < over < expected - need.value else None


def segment_notes(
    verdict: Verdict | None, sheets: tuple[Sheet, ...], cluster: Cluster | None
) -> tuple[str, ...]:
    """That the allocator decides, where nothing else does."""
    unsure = verdict is not None and verdict.result is Result.UNCERTAIN
    if not sheets or not unsure or beside_segments(verdict, worst_sheet(sheets), cluster) is None:
        return ()
    size = format_bytes(int(worst_sheet(sheets).beside(Component.ALLOCATOR_SLACK).high), digits=2)
    return (
        (
            f"{SEGMENTS}tensors and context take {size} at their most; the rest are freed blocks that the "
            "allocator keeps where it has room. On a full card it gives back those that are whole, and asks "
            "again, which is slow; it fails where gaps are left in them"
        ),
    )


def in_vain_words(verdict: Verdict) -> str:
    """What is said where changes were tried, and none fits."""
    if verdict.result is Result.UNCERTAIN:
        ends = (
            "the job asks for too little of a node's host memory"
            if verdict.host_short_bytes
            else "the expected need does, the range's high end does not"
            if verdict.headroom_bytes >= 0
            else "the range's low end does"
        )
        return f"nothing that was tried is sure to fit as the job stands: {ends}{_tried_words(verdict)}"
    return f"nothing that was tried makes it fit on these GPUs{_tried_words(verdict)}"


def _tried_words(verdict: Verdict) -> str:
    """What was tried, alone and together."""
    tried = ", ".join(verdict.tried_changes)
    return f" (alone and together: {tried})" if tried else ""
