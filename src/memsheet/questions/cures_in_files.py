"""A list of changes in the words of the files that it is for: the keys that a file is to say otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.budget import Answer
from memsheet.errors import InputError
from memsheet.exchange.joined_files import written_answer
from memsheet.exchange.plan_files import values_of
from memsheet.exchange.shared.allocator_env import ALLOCATOR, ON
from memsheet.exchange.shared.file_format import FileReading, Values, read_format_values
from memsheet.exchange.shared.script_places import SCRIPT, TRAINS_STATES
from memsheet.exchange.shared.sentence_script import ACCUMULATED, BATCH
from memsheet.frozen import replace
from memsheet.plan.document import plan_document

Account = Callable[[Mapping[str, FileReading]], Answer | None]
"""The answer about the files as they would be read."""
NOT_IN_A_FILE = ("script.", "loop.", "#", "$")
"""What names of values begin with that a reader makes of a text, and that no key of a file says."""


def cure_in_files(
    reads: Mapping[str, FileReading], before: Answer, after: Answer, account: Account
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Of each file its name, and the keys that make ``after`` of ``before``, as its own format says them.
    Nothing where files so changed are not read as that job, to the byte.
    """
    changed = {name: _changed_keys(read, before, after) for name, read in reads.items()}
    needed = {
        name: {at: held for at, held in keys.items() if held or reads[name].values.get(at)}
        for name, keys in changed.items()
    }
    for keys in (needed, changed):
        if any(keys.values()) and _are_read_as(reads, keys, after, account):
            return tuple((name, tuple(_written(name, said))) for name, said in keys.items() if said)
    return ()


def without_allocator(
    changed: Mapping[str, Any],
) -> tuple[dict[str, Any], tuple[tuple[str, tuple[str, ...]], ...]]:
    """Changes that a file can say, and those that are said beside all files: the allocator's, to torch."""
    said = {key: value for key, value in changed.items() if not key.startswith("allocator.")}
    told = tuple(
        f"{ALLOCATOR}={ON}"
        for key in changed
        if key == "allocator.expandable_segments" and changed[key] is True
    )
    if len(said) + len(told) != len(changed):  # others have no words here, nor then has the list
        return dict(changed), ()
    return said, (("the environment", told),) if told else ()


def _are_read_as(
    reads: Mapping[str, FileReading], keys: Mapping[str, Values], after: Answer, account: Account
) -> bool:
    """Whether files with other keys are read as a job that needs what ``after`` does."""
    told = {
        name: replace(read, **_read_again(read, keys[name])) if keys[name] else read
        for name, read in reads.items()
    }
    again = account(told)
    if again is None or again.verdict is None or after.verdict is None:
        return False
    return again.verdict.device == after.verdict.device


def _read_again(read: FileReading, keys: Values) -> dict[str, Any]:
    said = {**read.values, **keys}
    made = read_format_values(read.form, {at: held for at, held in said.items() if held is not None})
    return {"values": made.values, "request": made.request, "unsaid": made.unsaid, "assumed": made.assumed}


def _changed_keys(read: FileReading, before: Answer, after: Answer) -> Values:
    """Keys that the file's format writes otherwise for the one plan than for the other."""
    form = read.form
    if before.plan.engine not in form.engines or after.plan.engine not in form.engines:
        return {}
    try:
        old, new = (values_of(form, _values_after_change(answer)) for answer in (before, after))
    except InputError:
        return {}
    differing = {at: held for at, held in new.items() if old.get(at) != held}
    differing |= {at: None for at in old.keys() - new.keys() if read.values.get(at)}
    texts = read.values.get(
        f"{SCRIPT}.{TRAINS_STATES}"
    )  # places of the batch count rows of several, or pieces
    if any(at.startswith(NOT_IN_A_FILE) or (texts and at in (BATCH, ACCUMULATED)) for at in differing):
        return {}
    return {at: held for at, held in differing.items() if read.values.get(at) != held}


def _values_after_change(answer: Answer) -> dict[str, Any]:
    written = plan_document(answer.plan, model=answer.model.name, cluster=answer.cluster)
    return written_answer(answer, written)


def _written(name: str, keys: Values) -> Iterator[str]:
    """As it is typed: an argument of a script's, else a key of a file; None of one that is taken out."""
    for at, held in keys.items():
        if held is None:
            yield f"without {at}"
            continue
        yield f"{at}={held!r}" if name.endswith((".py", ".ipynb")) else f"{at}: {json.dumps(held)}"
