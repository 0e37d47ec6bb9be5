"""A job of several models that configuration files start, out of the sheet of the one that trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from math import gcd
from types import MappingProxyType
from typing import Any

from memsheet.budget import Answer, Result, worst_sheet
from memsheet.errors import InputError, Problem
from memsheet.exchange.shared.file_format import FileReading, Moved
from memsheet.frozen import NamedTuple, replace
from memsheet.jobs.shorter import (
    MOST_HALVES,
    batch_of_pass,
    rows_at_once,
    tokens_at_once,
    with_rows_of,
    with_shorter_rows,
)
from memsheet.jobs.templates.generation import is_own_generation
from memsheet.plan.device import Cluster
from memsheet.plan.document import model_reference
from memsheet.plan.model import ModelSpec
from memsheet.questions.job import WITH_OUTPUT, answer_job
from memsheet.questions.job_makers import (
    ACCOUNTED,
    AREAL,
    MAKERS,
    NEMO_RL,
    OPENRLHF,
    PRIME_RL,
    ROLL,
    SLIME,
    VERL,
    requested_nodes,
)
from memsheet.questions.length_doubts import of_rows
from memsheet.questions.named_models import is_surely_bundled, likely_by_path, model_of
from memsheet.questions.plainer_models import plainer_model
from memsheet.questions.question_parts import SHARE as SHARE_OF_SLACK
from memsheet.questions.server_releases import with_server_releases
from memsheet.report.shared.jobs.phases import fullest_instant
from memsheet.sheet import Component, Item

LAUNCHERS = (VERL, OPENRLHF, SLIME, NEMO_RL, PRIME_RL, AREAL, ROLL)
"""Whose file says all of its models, so that the job accounts whatever it moves."""


class JobOfFiles(NamedTuple):
    """The answer about all models, what of them stays open, the files without what it accounts, and the
    machines. ``elsewhere``: roles that may be on other cards.
    """

    answer: Answer
    open_words: tuple[str, ...]
    reads: Mapping[str, FileReading]
    where: Mapping[str, Any]
    shorter_rows: bool = False
    over_words: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    known: Mapping[str, ModelSpec] = MappingProxyType({})
    """By their names, models as they stand in for those that nobody knows."""
    file: str = ""
    """Which of the files says the job's settings."""
    row_ranks: int = 1
    """Ranks that share a row."""
    length_flag: str = ""
    """What says how long rows are in every pass."""
    unbounded: bool = False
    """Whether what is open may be of any size."""

    @property
    def least_bytes(self) -> int:
        """What the fullest card holds at the least, however short its rows are, and without what may be on
        others.
        """
        roles = (self.answer.job or {}).get("roles", {})
        own = tuple(f"{name}/" for name, role in roles.items() if is_own_generation(role))
        away = tuple(f"{name}/" for name in self.elsewhere)
        return max(
            int(
                sum(
                    item.at[when].low
                    for item in sheet.items
                    if when in item.at
                    and not (of_rows(item, when) or _is_cache_of(own, item) or item.path.startswith(away))
                )
            )
            for sheet in self.answer.sheets
            for when in sheet.instants
        )

    @property
    def serves(self) -> bool:
        """Whether a server shares the cards."""
        roles = (self.answer.job or {}).get("roles", {}).values()
        return any(role["plan"].get("task") == "infer" for role in roles)


class TokensThatFit(NamedTuple):
    """Tokens of a micro-batch with which a job is expected to fit, 0 where it is not with the fewest that are
    tried, and those that are counted; ``rows``: that the micro-batch has; ``phase``: whose it is.
    """

    fitting: int
    counted: int
    rows: int
    phase: str = ""


FINER = 4
"""Halves of what lies between tokens that fit and twice as many: a sixteenth of them."""


def tokens_that_fit(found: JobOfFiles) -> TokensThatFit:
    """The most tokens of a micro-batch with which the job is expected to fit, to a sixteenth."""
    document: Mapping[str, Any] = found.answer.job or {}
    low, high = 0, MOST_HALVES
    phase, rows, row = _fullest_batch(found)
    counted = rows * row
    if not _is_expected(found, with_shorter_rows(document, high)):
        return TokensThatFit(0, counted, rows, phase)
    while high - low > 1:  # it does not fit with `low` halves, and does with `high`
        middle = (low + high) // 2
        fits = _is_expected(found, with_shorter_rows(document, middle))
        low, high = (low, middle) if fits else (middle, high)
    fitting, most = row >> high, row >> low
    for _ in range(FINER):
        middle = (fitting + most) // 2
        fits = middle > fitting and _is_expected(found, with_rows_of(document, middle, row))
        fitting, most = (middle, most) if fits else (fitting, middle)
    return TokensThatFit(rows * fitting, counted, rows, phase)


def _fullest_batch(found: JobOfFiles) -> tuple[str, int, int]:
    """The phase in which a card is fullest, and rows of its micro-batch and tokens of each; of no phase the
    largest micro-batch that is learnt from, where a server works in it.
    """
    document: Mapping[str, Any] = found.answer.job or {}
    name = fullest_instant(worst_sheet(found.answer.sheets)).phase
    phase = next(one for one in document["phases"] if one["name"] == name)
    active = document["roles"].get(phase.get("active") or "", {})
    if active.get("plan", {}).get("task") == "train":
        return name, *batch_of_pass(document, phase)
    rows = rows_at_once(document)
    return "", rows, tokens_at_once(document) // rows


def _is_expected(found: JobOfFiles, shorter: Mapping[str, Any]) -> bool:
    """Whether the expected need of a job with shorter rows is what a card has."""
    try:
        answer = answer_job(shorter, found.where, slack=SHARE_OF_SLACK, known=found.known, any_release=True)
    except InputError:
        return False
    needs = max(int(sheet.device.value) for sheet in answer.sheets)
    return answer.cluster is not None and needs <= answer.cluster.device.framework_low_bytes


def _longer_words(
    key: str,
    document: Mapping[str, Any],
    where: Mapping[str, Any],
    whole: Answer,
    known: Mapping[str, ModelSpec],
) -> tuple[str, ...]:
    """What is told of a server that starts with the rows that it is asked for, and would not with sequences
    as long as its model was made for, where nobody says which it takes. ``key``: what would say it.
    """
    changed = deepcopy(dict(document))
    for role in changed["roles"].values():
        if role["plan"].get("task") == "infer":
            role["plan"].get("serving", {}).pop("max_model_len", None)
    longer = _answer_or_plainer(changed, where, known)
    stops = longer is not None and longer[0].verdict and longer[0].verdict.result is Result.DOES_NOT_FIT
    if not stops or (whole.verdict and whole.verdict.result is Result.DOES_NOT_FIT):
        return ()
    return (UNSAID_LONGEST.format(key=key),)


def _tuned_length_words(document: Mapping[str, Any], whole: Answer) -> tuple[str, ...]:
    """What is told of a server that takes its model's own length, where that is one nobody says of a tuned
    model, and its pool is too small for one such sequence.
    """
    own = model_reference(whole.model)
    takes = any(
        role["plan"].get("task") == "infer"
        and role["model"] == own
        and not role["plan"].get("serving", {}).get("max_model_len")
        for role in document["roles"].values()
    )
    stops = whole.verdict is not None and whole.verdict.result is Result.DOES_NOT_FIT
    if not (takes and stops and whole.model.source.positions_open):
        return ()
    told = f"{whole.model.max_positions or 0:,} tokens of its base"
    return (
        f"what length {whole.model.name} was made for is not known: its server is counted with the {told}",
    )


UNSAID_LONGEST = (
    "{key} is not said: counted as a prompt and an answer, as older releases take it, and newer ones "
    "take as many tokens as the model was made for, for one sequence of which the server's pool is too small"
)


def _is_cache_of(roles: tuple[str, ...], item: Item) -> bool:
    return item.component is Component.KV_CACHE and item.path.startswith(roles)


def job_of_files(
    reads: Mapping[str, FileReading], answer: Answer | None, ask: Mapping[str, Any]
) -> JobOfFiles | None:
    """The job that one of the files is of; None where none is, or where a role of it is not accounted.
    ``answer``: of what trains, ``ask``: the machines, how long rows are and its servers' releases, where
    they are told.
    """
    found = next(((name, read) for name, read in reads.items() if _key_of_job(read)), None)
    if found is None or answer is None or answer.cluster is None or answer.verdict is None:
        return None
    name, read = found
    key, make = MAKERS[read.form.name]
    made = make(read, answer, ask)
    if made is None:
        return None
    released = with_server_releases(made.document, ask.get("servers") or {})
    document, taken, strange = _with_known_models(released, model_reference(answer.model))
    where = _where_placed(document, ask, answer.cluster)
    known_models = {model_reference(answer.model): answer.model}
    found_answer = _answer_or_plainer(document, where, known_models)
    if found_answer is None:
        return None
    whole, left, missing = found_answer
    rest = tuple(one for one in read.unmodelled if one[0] not in {key, *made.accounted})
    known = replace(read, unmodelled=rest, form=replace(read.form, moves=_moves_beside(read)))
    if where["gpus"] != ask.get("gpus"):
        told = f"gpus = {where['gpus']}: as many as its models have places on"
        known = replace(known, assumed=(*known.assumed, told))
    unsaid = made.unsaid_longest
    longer = _longer_words(unsaid, document, where, whole, known_models) if unsaid else ()
    longer = longer or _tuned_length_words(document, whole)
    words = (*made.open_words, *longer, *taken, *left, *(note for note in whole.notes if WITH_OUTPUT in note))
    return JobOfFiles(
        whole,
        words,
        {**reads, name: known},
        where,
        made.shorter_rows,
        made.over_words,
        made.elsewhere,
        known_models,
        name,
        made.row_ranks,
        made.length_flag,
        made.unbounded or strange or missing,
    )


MAY_LEAVE = (
    "serving.max_model_len",
    "mesh.attn_dp",
    "mesh.ep",
    "serving.dispatch",
    "serving.dp_dense",
    "serving.dp_lm_head",
    "speculative",
    "adapter",
)
"""Of a server's plan, what a sheet is made without where nobody accounts it: keys, and a group."""
MOST_LEFT = 4


def _answer_or_plainer(
    document: Mapping[str, Any], where: Mapping[str, Any], known: Mapping[str, ModelSpec]
) -> tuple[Answer, tuple[str, ...], bool] | None:
    """The answer, without those parts of its servers' plans that nobody accounts, these in words, and whether
    a role is missing: one beside what trains that nobody accounts at all.
    """
    words: list[str] = []
    missing = False
    for _ in range(MOST_LEFT):
        try:
            return answer_job(document, where, known=known, any_release=True), tuple(words), missing
        except InputError as error:
            fields, first = dict.fromkeys(problem.field for problem in error.problems), error.problems[0]
            stands = _plainer_models(document, error, known)
        if stands:
            known = {**known, **{name: made for name, (made, _) in stands.items()}}
            words += [f"{name}: {told}" for name, (_, told) in stands.items()]
            continue
        plainer = deepcopy(dict(document))
        left = [field for field in fields if _leaves_out(plainer["roles"], field)]
        if not left:
            gone = _role_of_problems(document, fields)
            if gone is None:
                return None
            missing = True
            words.append(f"the {gone} is not counted: {_problem_words(first)}")
            document = without_role(document, gone)
            continue
        words += [f"{field.removeprefix('roles.')} is not counted" for field in left]
        document = plainer
    return None


def _role_of_problems(document: Mapping[str, Any], fields: Mapping[str, Any]) -> str | None:
    """The role that all problems are of, where it is another than the first, which trains, and no other one's
    weights are its own.
    """
    names = {field.split(".")[1] for field in fields if field.startswith("roles.")}
    first, *others = document["roles"]
    if len(names) != 1 or not all(field.startswith("roles.") for field in fields):
        return None
    name = names.pop()
    owners = {role.get("weights_of") for role in document["roles"].values()}
    return name if name in others and name != first and name not in owners else None


def _problem_words(problem: Problem) -> str:
    """What is wrong with a role's plan, by the plan's own key."""
    value = "" if problem.value is None else f" = {problem.value}"
    return f"{problem.field.split('.', 2)[-1]}{value} {problem.reason}"


def without_role(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A job without one of its roles, the phases in which that works, and what they have of it."""
    kept = deepcopy(dict(document))
    for group in ("roles", "placement"):
        kept.get(group, {}).pop(name, None)
    kept["phases"] = [one for one in kept["phases"] if one.get("active") != name]
    for phase in kept["phases"]:
        phase.get("residents", {}).pop(name, None)
        phase["items"] = [one for one in phase.get("items", ()) if one.get("role") != name]
        for at in ("items", "joined"):
            if not phase.get(at) or (at == "joined" and phase[at] == name):
                phase.pop(at, None)
    return kept


def _plainer_models(
    document: Mapping[str, Any], error: InputError, known: Mapping[str, ModelSpec]
) -> dict[str, tuple[ModelSpec, str]]:
    """Plainer models, by their names, for those of roles that train or are read and that nobody accounts
    under their engine, and what is told of each.
    """
    named = [role["model"] for role in document["roles"].values() if role["plan"].get("task") == "train"]
    found = {}
    for name in dict.fromkeys(one for one in named if one not in known):
        spec = model_of(name)
        own = [one for one in error.problems if spec is not None and one.value == spec.name]
        stands = plainer_model(spec, own) if spec is not None and own else None
        if stands is not None:
            found[name] = stands
    return found


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
    where = requested_nodes(ask)
    places = document.get("placement", {}).values()
    count = max((first + many for first, many in places), default=0)
    if count and where["cluster"] is None and count != cluster.count:
        each = gcd(cluster.per_node, *(end for first, many in places for end in (first, many)))
        fills = count <= cluster.per_node or count % cluster.per_node == 0
        where |= {
            "gpus": f"{count}x{cluster.device.name}",
            "nodes": None,
            "per_node": None if fills else each,
        }
    return where


def _with_known_models(
    document: Mapping[str, Any], main: str
) -> tuple[dict[str, Any], tuple[str, ...], bool]:
    """The document with models that are known in the place of names that are not; what is taken for which,
    in words; and whether nothing is known of one of them. ``main``: the model that trains, which stands for
    such a one.
    """
    roles, words, strange = {}, [], False
    for name, role in document["roles"].items():
        own = role["model"]
        sure = own == main or is_surely_bundled(own)
        known = own if sure else likely_by_path(own)
        roles[name] = {**role, "model": known or main}
        strange = strange or known is None
        if not sure:
            words.append(f"{own} is taken for {known or main}, and nothing of it was read")
    return {**document, "roles": roles}, tuple(words), strange


def _key_of_job(read: FileReading) -> bool:
    """Whether a file says that several models share the cards, of a program whose job is known."""
    made = MAKERS.get(read.form.name)
    return made is not None and any(at == made[0] for at, _ in read.unmodelled)


def is_of_job(reads: Mapping[str, FileReading]) -> bool:
    """Whether one of the files says so."""
    return any(map(_key_of_job, reads.values()))


def leaves_out_models(read: FileReading) -> bool:
    """Whether a file is of a job of several models that nothing bounds where a sheet has one of them; those
    of preferences are in its range.
    """
    return _key_of_job(read) and read.form.preferences(read.values) is None


def _moves_beside(read: FileReading) -> Callable[[Any, Any], Iterator[Moved]] | None:
    """What a file moves beside a model that trains, less what the job accounts."""
    own = read.form.moves
    if own is None or read.form.name in LAUNCHERS:
        return None
    return lambda values, asked: (one for one in own(values, asked) if one.at not in ACCOUNTED)
