"""What may or may not fit: what decides it, and what is said of changes where none makes it sure."""

from __future__ import annotations

from memsheet.budget import Answer, Result, Verdict

ROUTING = "expert routing decides: "
"""How the note of a training job begins that fits where experts are chosen evenly, and may not where they are
not.
"""


def deciding_notes(answer: Answer) -> tuple[str, ...]:
    """The notes that say what decides whether an uncertain job fits."""
    unsure = answer.verdict is not None and answer.verdict.result is Result.UNCERTAIN
    return tuple(note for note in answer.notes if note.startswith(ROUTING)) if unsure else ()


def in_vain_words(verdict: Verdict) -> str:
    """What is said where changes were tried, and none fits."""
    if verdict.result is Result.UNCERTAIN:
        ends = (
            "the expected need does, the range's high end does not"
            if verdict.headroom_bytes >= 0
            else "the range's low end does"
        )
        return f"no change, and no list of changes that was tried, is sure to fit as the job stands: {ends}"
    return "no change, and no list of changes that was tried, makes it fit on these GPUs"
