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
from memsheet.jobs.templates.openrlhf import openrlhf_job
from memsheet.jobs.templates.planned import Made, Sizes
from memsheet.jobs.templates.trl import dpo_document, grpo_of_recipe
from memsheet.jobs.templates.verl import has_shorter_rows, open_words, verl_document
from memsheet.plan.device import Cluster
from memsheet.plan.document import asked_as, plan_document
from memsheet.questions.job import WITH_OUTPUT, answer_job
from memsheet.questions.named_models import is_surely_bundled, likely_name
from memsheet.sheet import Component, Instant, Item

DPO, GRPO, VERL, TRL, OPENRLHF = "DPO", "GRPO", "verl", "trl", "openrlhf"
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
    made = make(read, answer)
    if made is None:
        return None
    document, taken = _with_known_models(made.document, asked_as(answer.model))
    where = _where_placed(document, ask, answer.cluster)
    try:
        whole = answer_job(document, where)
    except InputError:
        return None
    rest = tuple(one for one in read.unmodelled if one[0] != key)
    known = replace(read, unmodelled=rest, form=replace(read.form, moves=None))
    words = (*made.open_words, *taken, *(note for note in whole.notes if WITH_OUTPUT in note))
    return JobOfFiles(whole, words, {**reads, name: known}, where, made.shorter_rows)


def _where_placed(document: Mapping[str, Any], ask: Mapping[str, Any], cluster: Cluster) -> dict[str, Any]:
    """The machines, with as many cards as the roles have places on, where they have their own."""
    where = {key: ask.get(key) for key in ("gpus", "nodes", "per_node", "host_memory", "cluster")}
    places = document.get("placement", {}).values()
    count = max((first + many for first, many in places), default=0)
    if count and where["cluster"] is None and count != cluster.count:
        where |= {"gpus": f"{count}x{cluster.device.name}", "nodes": None, "per_node": None}
    return where


def _with_known_models(document: Mapping[str, Any], main: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The document with models that are known in the place of names that are not, and what is taken for
    which, in words. ``main``: the model that trains, which stands for one of which nobody knows anything.
    """
    roles, words = {}, []
    for name, role in document["roles"].items():
        own = role["model"]
        sure = own == main or is_surely_bundled(own)
        known = own if sure else likely_name(own)
        roles[name] = {**role, "model": known or main}
        if not sure:
            words.append(f"{own} is taken for {known or main}, and nothing of it was read")
    return {**document, "roles": roles}, tuple(words)


def _key_of_job(read: Read) -> bool:
    """Whether a file says that several models share the cards, of a program whose job is known."""
    made = MAKERS.get(read.form.name)
    return made is not None and any(at == made[0] for at, _ in read.unmodelled)


def _roles_of_launch(read: Read, answer: Answer) -> Made | None:
    sizes = Sizes(vocab=answer.model.vocab, hidden=answer.model.hidden)
    found = verl_document(read.values, plan_document(answer.plan), asked_as(answer.model), sizes)
    return Made(found, open_words(read.values), has_shorter_rows(read.values)) if found else None


def _pairs_of_recipe(read: Read, answer: Answer) -> Made | None:
    """Of GRPO and DPO alone: how much other methods hold is known as a range (``preference_jobs``)."""
    if dict(read.unmodelled)[METHOD] == GRPO:
        found = grpo_of_recipe(read.values, plan_document(answer.plan), asked_as(answer.model))
        return Made(found) if found else None
    method = read.form.preferences(read.values)
    if method is None or method.method != DPO or not method.sure:
        return None
    return Made(dpo_document(read.values, plan_document(answer.plan), asked_as(answer.model)))


def _groups_of_launch(read: Read, answer: Answer) -> Made | None:
    sizes = Sizes(vocab=answer.model.vocab, hidden=answer.model.hidden)
    return openrlhf_job(read.values, plan_document(answer.plan), asked_as(answer.model), sizes)


MAKERS: Mapping[str, tuple[str, Callable[[Read, Answer], Made | None]]] = {
    VERL: (ROLES, _roles_of_launch), TRL: (METHOD, _pairs_of_recipe), OPENRLHF: (ROLES, _groups_of_launch),
}  # fmt: skip
"""By the name of a format the key that says that further models share the cards, and what makes the job."""
