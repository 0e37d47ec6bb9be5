"""A job of several models that configuration files start, out of the sheet of the one that trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

from memsheet.budget import Answer
from memsheet.errors import InputError
from memsheet.exchange.formats.trl import METHOD
from memsheet.exchange.formats.verl.losses import ROLES
from memsheet.exchange.shared.file_format import Read
from memsheet.jobs.templates.nemo_rl import nemo_rl_job
from memsheet.jobs.templates.openrlhf import openrlhf_job
from memsheet.jobs.templates.planned import Made, Sizes
from memsheet.jobs.templates.slime import slime_job
from memsheet.jobs.templates.trl import dpo_document, grpo_of_recipe
from memsheet.jobs.templates.verl import has_shorter_rows, open_words, verl_document
from memsheet.plan.device import Cluster
from memsheet.plan.document import asked_as, plan_document
from memsheet.plan.model import ModelSpec
from memsheet.questions.job import WITH_OUTPUT, answer_job
from memsheet.questions.named_models import is_surely_bundled, likely_name
from memsheet.sheet import Component, Instant, Item

DPO, GRPO = "DPO", "GRPO"
VERL, TRL, OPENRLHF, SLIME, NEMO_RL = "verl", "trl", "openrlhf", "slime", "nemo-rl"
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
    over_words: tuple[str, ...] = ()

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
    found_answer = _answer_or_plainer(document, where, {asked_as(answer.model): answer.model})
    if found_answer is None:
        return None
    whole, left = found_answer
    rest = tuple(one for one in read.unmodelled if one[0] != key)
    known = replace(read, unmodelled=rest, form=replace(read.form, moves=None))
    if where["gpus"] != ask.get("gpus"):
        told = f"gpus = {where['gpus']}: as many as its models have places on"
        known = replace(known, assumed=(*known.assumed, told))
    words = (*made.open_words, *taken, *left, *(note for note in whole.notes if WITH_OUTPUT in note))
    return JobOfFiles(whole, words, {**reads, name: known}, where, made.shorter_rows, made.over_words)


MAY_LEAVE = (
    "serving.max_model_len",
    "mesh.attn_dp",
    "serving.dispatch",
    "serving.dp_dense",
    "serving.dp_lm_head",
    "speculative",
)
"""Of a server's plan, what a sheet is made without where nobody accounts it: keys, and a group."""
MOST_LEFT = 4


def _answer_or_plainer(
    document: Mapping[str, Any], where: Mapping[str, Any], known: Mapping[str, ModelSpec]
) -> tuple[Answer, tuple[str, ...]] | None:
    """The answer, without those parts of its servers' plans that nobody accounts, and these in words."""
    words: list[str] = []
    for _ in range(MOST_LEFT):
        try:
            return answer_job(document, where, known=known), tuple(words)
        except InputError as error:
            fields = dict.fromkeys(problem.field for problem in error.problems)
        plainer = deepcopy(dict(document))
        left = [field for field in fields if _leaves_out(plainer["roles"], field)]
        if not left:
            return None
        words += [f"{field.removeprefix('roles.')} is not counted" for field in left]
        document = plainer
    return None


def _leaves_out(roles: dict[str, Any], field: str) -> bool:
    """Whether a problem's key was one that a server's plan can do without; it is taken out."""
    top, _, rest = field.partition(".")
    name, _, key = rest.partition(".")
    plan = roles.get(name, {}).get("plan", {}) if top == "roles" else {}
    group, _, inner = key.partition(".")
    if plan.get("task") != "infer" or not {key, group} & set(MAY_LEAVE):
        return False
    held = plan if group in MAY_LEAVE else plan.get(group, {})
    return held.pop(group if group in MAY_LEAVE else inner, None) is not None


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


def _trainer_of_launch(read: Read, answer: Answer) -> Made | None:
    sizes = Sizes(vocab=answer.model.vocab, hidden=answer.model.hidden)
    return slime_job(read.values, plan_document(answer.plan), asked_as(answer.model), sizes)


def _policy_of_settings(read: Read, answer: Answer) -> Made | None:
    sizes = Sizes(vocab=answer.model.vocab, hidden=answer.model.hidden)
    return nemo_rl_job(read.values, plan_document(answer.plan), asked_as(answer.model), sizes)


def _groups_of_launch(read: Read, answer: Answer) -> Made | None:
    sizes = Sizes(vocab=answer.model.vocab, hidden=answer.model.hidden)
    return openrlhf_job(read.values, plan_document(answer.plan), asked_as(answer.model), sizes)


MAKERS: Mapping[str, tuple[str, Callable[[Read, Answer], Made | None]]] = {
    VERL: (ROLES, _roles_of_launch), TRL: (METHOD, _pairs_of_recipe), OPENRLHF: (ROLES, _groups_of_launch),
    SLIME: (ROLES, _trainer_of_launch),
    NEMO_RL: (ROLES, _policy_of_settings),
}  # fmt: skip
"""By the name of a format the key that says that further models share the cards, and what makes the job."""
