"""A job of several models that configuration files start, out of the sheet of the one that trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from memsheet.budget import Answer
from memsheet.errors import InputError
from memsheet.exchange.formats.trl import METHOD
from memsheet.exchange.formats.verl.losses import ROLES
from memsheet.exchange.shared.file_format import Read
from memsheet.jobs.templates.trl import dpo_document, grpo_of_recipe
from memsheet.jobs.templates.verl import Sizes, has_shorter_rows, open_words, verl_document
from memsheet.plan.document import asked_as, plan_document
from memsheet.questions.job import answer_job
from memsheet.sheet import Component, Instant, Item

DPO, GRPO, VERL, TRL = "DPO", "GRPO", "verl", "trl"
"""Methods, and the names of formats."""


class JobOfFiles(NamedTuple):
    """The answer about all models, what of them stays open, the files without what it accounts, and the
    machines.
    """

    answer: Answer
    open_words: tuple[str, ...]
    reads: Mapping[str, Read]
    where: Mapping[str, Any]
    shorter_rows: bool = False

    @property
    def least_bytes(self) -> int:
        """What the fullest card holds at the least, however short its rows are."""
        return max(
            int(
                sum(item.at[when].low for item in sheet.items if when in item.at and not _of_rows(item, when))
            )
            for sheet in self.answer.sheets
            for when in sheet.instants
        )

    @property
    def serves(self) -> bool:
        """Whether a server shares the cards."""
        roles = (self.answer.job or {}).get("roles", {}).values()
        return any(role["plan"].get("task") == "infer" for role in roles)


OF_ROWS = (
    Component.SAVED_ACTIVATIONS, Component.TEMPORARIES, Component.AUTOGRAD_DETAIL, Component.INPUTS, Component.ALLOCATOR_SLACK,
)  # fmt: skip


def _of_rows(item: Item, when: Instant) -> bool:
    """Whether its size follows the tokens that a pass has."""
    return item.component in OF_ROWS and when.step is not Instant.OPTIMIZER_STEP


def job_of_files(
    reads: Mapping[str, Read], answer: Answer | None, ask: Mapping[str, Any]
) -> JobOfFiles | None:
    """The job that one of the files is of; None where none is, or where a role of it is not accounted.
    ``answer``: of what trains, ``ask``: the machines.
    """
    found = next(((name, read) for name, read in reads.items() if _key_of_job(read)), None)
    if found is None or answer is None or answer.cluster is None or answer.verdict is None:
        return None
    name, read = found
    key, make = MAKERS[read.form.name]
    document = make(read, answer)
    if document is None:
        return None
    where = {key: ask.get(key) for key in ("gpus", "nodes", "per_node", "host_memory", "cluster")}
    try:
        whole = answer_job(document, where)
    except InputError:
        return None
    rest = tuple(one for one in read.unmodelled if one[0] != key)
    known = replace(read, unmodelled=rest, form=replace(read.form, moves=None))
    of_launch = key == ROLES
    words = open_words(read.values) if of_launch else ()
    shorter = of_launch and has_shorter_rows(read.values)
    return JobOfFiles(whole, words, {**reads, name: known}, where, shorter)


def _key_of_job(read: Read) -> bool:
    """Whether a file says that several models share the cards, of a program whose job is known."""
    made = MAKERS.get(read.form.name)
    return made is not None and any(at == made[0] for at, _ in read.unmodelled)


def _roles_of_launch(read: Read, answer: Answer) -> dict[str, Any] | None:
    sizes = Sizes(vocab=answer.model.vocab, hidden=answer.model.hidden)
    return verl_document(read.values, plan_document(answer.plan), asked_as(answer.model), sizes)


def _pairs_of_recipe(read: Read, answer: Answer) -> dict[str, Any] | None:
    """Of GRPO and DPO alone: how much other methods hold is known as a range (``preference_jobs``)."""
    if dict(read.unmodelled)[METHOD] == GRPO:
        return grpo_of_recipe(read.values, plan_document(answer.plan), asked_as(answer.model))
    method = read.form.preferences(read.values)
    if method is None or method.method != DPO or not method.sure:
        return None
    return dpo_document(read.values, plan_document(answer.plan), asked_as(answer.model))


MAKERS: Mapping[str, tuple[str, Callable[[Read, Answer], dict[str, Any] | None]]] = {
    VERL: (ROLES, _roles_of_launch), TRL: (METHOD, _pairs_of_recipe),
}  # fmt: skip
"""By the name of a format the key that says that further models share the cards, and what makes the job."""
