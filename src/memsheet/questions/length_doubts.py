"""What is not sure because of lengths: those that nobody says, and those that rows may stay below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.budget import Answer, Result, worst_sheet
from memsheet.catalog.stated_bases import OTHER_LENGTH
from memsheet.exchange.mistakes import Case
from memsheet.exchange.shared.file_format import FileReading
from memsheet.exchange.verdict_doubts import Doubt
from memsheet.plan.sequence_length import derived_max_length
from memsheet.plan.workload import Training
from memsheet.sheet import STATES, Component, Instant, Item


def unsaid_length(reads: Mapping[str, FileReading], answer: Answer) -> str:
    """That a server takes the model's own length, and of a tuned one nobody says it; empty where the files
    say a length, and where that of its base, which few go beyond, fits.
    """
    model, length, job = answer.model, derived_max_length(answer.model), answer.plan.workload
    said = any(read.request.get("serving.max_model_len") for read in reads.values())
    longer = any(OTHER_LENGTH in words for words in model.source.assumed)
    fits = answer.verdict is not None and answer.verdict.result is Result.FITS and not longer
    asked = None if isinstance(job, Training) else job.max_model_len
    if said or fits or not model.source.positions_open or length is None or asked != length:
        return ""
    return (
        f"what length {model.name} was made for is not known, and its server takes that: the sheet is of "
        f"{length:,} tokens: --max-model-len says it"
    )


def length_doubt(answer: Answer | None) -> Doubt:
    """What is not sure where nobody says how long sequences are, and some lengths fit."""
    steps = answer.ladder if answer else ()
    if answer is None or answer.verdict is None or all(one.result is Result.FITS for one in steps):
        return Doubt("")
    fitting = [one.seq_len for one in steps if one.result is Result.FITS]
    first = steps[0]
    if first.result is Result.DOES_NOT_FIT:
        told = f"at {first.seq_len:,} it does not fit"
    else:
        told = f"it fits up to {max(fitting):,}" if fitting else f"at {first.seq_len:,} it is not sure to fit"
    words = f"nothing says how many tokens a sequence has, and {told}: --seq-len says it"
    return Doubt(words, least_of_any_length(answer))


def limit_doubt(answer: Answer | None, case: Case, flags: Mapping[str, Any]) -> Doubt:
    """What is not sure where rows may be shorter than the limit that they are counted with, and some such job
    fits.
    """
    denied = answer and answer.verdict and answer.verdict.result is Result.DOES_NOT_FIT
    if answer is None or not denied or answer.ladder:
        return Doubt("")
    job = answer.plan.workload
    if not isinstance(job, Training) or flags.get("seq_len") or case.request.get("seq_len_kind") != "maximum":
        return Doubt("")
    from memsheet.jobs.shorter import MOST_HALVES

    counted = int(job.seq_len)
    for halves in range(1, MOST_HALVES + 1):
        shorter = case.ask({"seq_len": counted >> halves})
        if shorter is not None and shorter.verdict is not None and shorter.verdict.result is Result.FITS:
            most = f"rows are counted with the {counted:,} tokens that they may have at the most"
            words = f"{most}, and it fits with {counted >> halves:,}: --seq-len says it"
            return Doubt(words, least_of_any_length(answer))
    return Doubt("")


OF_TOKENS = (
    Component.SAVED_ACTIVATIONS, Component.AUTOGRAD_DETAIL, Component.INPUTS, Component.ALLOCATOR_SLACK,
)  # fmt: skip


def of_rows(item: Item, when: Instant) -> bool:
    """Whether its size follows the tokens that a pass has: of temporaries all but an optimizer's own."""
    passing = item.component is Component.TEMPORARIES and when.step is not Instant.OPTIMIZER_STEP
    return passing or item.component in OF_TOKENS


def least_of_any_length(answer: Answer) -> int:
    """What the fullest GPU holds at the least however short its sequences are: the model at rest, or all that
    the optimizer's step has but what is left of passes.
    """
    sheet, when = worst_sheet(answer.sheets), Instant.OPTIMIZER_STEP
    step = sum(int(one.at[when].low) for one in sheet.items if when in one.at and not of_rows(one, when))
    return max(resting_states(answer), step)


def resting_states(answer: Answer) -> int:
    """What the model takes of a GPU before it does anything."""
    sheet = worst_sheet(answer.sheets)
    return int(sheet.of(*STATES, Component.CONTEXT, instant=Instant.LOAD).low)
