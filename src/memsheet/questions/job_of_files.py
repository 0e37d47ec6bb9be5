"""A job of several models that configuration files start, out of the sheet of the one that trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from memsheet.budget import Answer
from memsheet.errors import InputError
from memsheet.exchange.formats.verl.losses import ROLES
from memsheet.exchange.shared.file_format import Read
from memsheet.jobs.templates.verl import Sizes, open_words, verl_document
from memsheet.plan.document import asked_as, plan_document
from memsheet.questions.job import answer_job


class JobOfFiles(NamedTuple):
    """The answer about all models, what of them stays open, and the files without what it accounts."""

    answer: Answer
    open_words: tuple[str, ...]
    reads: Mapping[str, Read]


def job_of_files(
    reads: Mapping[str, Read], answer: Answer | None, ask: Mapping[str, Any]
) -> JobOfFiles | None:
    """The job that one of the files is of; None where none is, or where a role of it is not accounted.
    ``answer``: of what trains, ``ask``: the machines.
    """
    found = next(((name, read) for name, read in reads.items() if _shares_cards(read)), None)
    if found is None or answer is None or answer.cluster is None or answer.verdict is None:
        return None
    name, read = found
    sizes = Sizes(vocab=answer.model.vocab, hidden=answer.model.hidden)
    document = verl_document(read.values, plan_document(answer.plan), asked_as(answer.model), sizes)
    if document is None:
        return None
    where = {key: ask.get(key) for key in ("gpus", "nodes", "per_node", "host_memory", "cluster")}
    try:
        whole = answer_job(document, where)
    except InputError:
        return None
    rest = tuple(one for one in read.unmodelled if one[0] != ROLES)
    known = replace(read, unmodelled=rest, form=replace(read.form, moves=None))
    return JobOfFiles(whole, open_words(read.values), {**reads, name: known})


def _shares_cards(read: Read) -> bool:
    """Whether a file says that several models share the cards."""
    return any(at == ROLES for at, _ in read.unmodelled)
