"""What an engine's configuration comes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from memsheet.catalog import named_cards
from memsheet.errors import InputError, Problem, input_error, raise_if_problems
from memsheet.exchange.asked_card import as_card_answers, with_kernels_of_card
from memsheet.exchange.file_releases import as_released
from memsheet.exchange.shared.file_format import FileReading, Together
from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.plan.accumulated_batch import with_accumulated_batch
from memsheet.plan.check import flatten_document
from memsheet.plan.plan import Schedule
from memsheet.plan.values import option_problems
from memsheet.plan.words import in_our_words, sequences_at_once
from memsheet.questions.cards_of_job import (
    as_cards_decide,
    counted_cards,
    gpus_for_processes,
    gpus_of_degrees,
    has_bf16_units,
    join_on_cards,
    too_few_cards,
    words_of_more_cards,
    words_of_node,
    words_of_processes,
)
from memsheet.questions.common_cards import cards_named_in_files, with_common_cards
from memsheet.questions.file_answers import (
    BATCH,
    CURES,
    AccountedJob,
    account_job,
    account_on_own_cards,
    nodes_of_files,
)
from memsheet.questions.job_files import (
    JobFiles,
    engine_keys,
    read_job_files,
    told_release,
)
from memsheet.questions.judged_files import judge_job
from memsheet.questions.labelled_models import with_labels_head
from memsheet.questions.named_models import (
    TAKEN_FOR,
    folder_words,
    model_of,
    model_of_files,
    names_no_model,
    stored_dtype,
    unnamed_words,
)
from memsheet.questions.pooled_models import without_output
from memsheet.questions.question_parts import plan_document_of
from memsheet.questions.server_releases import VERSION, without_other_releases
from memsheet.questions.stated_bits import with_stated_bits
from memsheet.questions.stretched_positions import with_stretched_positions
from memsheet.questions.text_only_models import without_unused_towers
from memsheet.report.shared.checked import Checked

if TYPE_CHECKING:
    from memsheet.plan.options import InferOptions
with late_functions(__name__):
    from memsheet.questions.job_of_files import is_of_job
    from memsheet.questions.without_unmodelled import other_job_words
    from memsheet.report.answer import public_answer


MACHINES = ("gpus", "nodes", "per_node", "host_memory", "cluster", "parameters", "plan")
NOTHING: Mapping[str, Any] = {}


def check(*files: str | PathLike[str], model: str | None = None, **options: Unpack[InferOptions]) -> Checked:
    """What an engine's configuration files come to: ``answer`` (a sheet and a verdict), ``mistakes``, what
    they leave open.

    ``files``: those of one job, or the folder that holds them; ``model``: the one that is trained or served,
    where no file names it. Keywords as for ``memsheet.train``, ``gpus`` among them, say what the files leave
    open. Raises InputError for what cannot be read.
    """
    raise_if_problems(option_problems(options))
    asked = {**dict.fromkeys(MACHINES), **options}
    question = {key: asked.pop(key) for key in MACHINES}
    question["plan"] = plan_document_of(question["plan"]) or None
    raise_if_problems(
        Problem(field="file", value=file, reason="is no name of a file")
        for file in files
        if not isinstance(file, str | PathLike)
    )
    checked = check_configuration_files(tuple(map(str, files)), model, question, words=asked)
    return replace(checked, answer=public_answer(checked.answer)) if checked.answer else checked


def read_flags(given: Mapping[str, Any], gpus: Any, planned: Mapping[str, Any]) -> dict[str, Any]:
    """Options in words of either task, whichever knows them all, as the engine that the files are of
    (``planned``) has them: what runs is theirs to say.
    """
    try:
        found = in_our_words(given, "train", planned)
    except InputError as error:
        try:
            found = in_our_words(given, "infer", planned)
        except InputError:
            raise error from None
    return with_accumulated_batch(found.request, named_cards(str(gpus))[0] if gpus else None)[0]


def sequences_demanded(given: Mapping[str, Any], planned: Mapping[str, Any]) -> int | None:
    """How many sequences are asked for at once beside the files, whose own number is the most that start."""
    try:
        return sequences_at_once(in_our_words(given, "infer", planned))
    except InputError:
        return None  # words of a training


def check_configuration_files(
    files: tuple[str, ...],
    model: str | None,
    question: dict[str, Any],
    flags: Mapping[str, Any] = NOTHING,
    words: Mapping[str, Any] = NOTHING,
    server: str = "",
    root: Path | None = None,
    as_run: Callable[[str], str] | None = None,
) -> Checked:
    """The files read together, accounted and looked over; on some common cards where none are named.
    ``flags``: what is said beside them, as keys of a plan; ``words``: as people say it; ``server``: the one
    of several that a file starts; ``root``: the tree that they lie in; ``as_run``: of a script's text as it
    lies the text as it runs. Raises InputError for what cannot be read at all.
    """
    if question["parameters"] is not None:
        raise input_error(
            "parameters",
            question["parameters"],
            "says nothing of a file's activations",
            "name the model: --model",
        )
    files_read = read_job_files(files, question.get("plan"), server, root, as_run)

    def check_on(more: Mapping[str, Any]) -> Checked:
        return _check_job(files_read, model, {**question, **more}, flags, words)

    said = question["gpus"] or question["cluster"] or files_read.document.get("gpus")
    own = None if said else cards_named_in_files(files_read.texts, files_read.reads)
    if own:
        checked = check_on({"gpus": own.gpus, **RANKS_OPEN})
        return replace(checked, assumed=(own.words, *checked.assumed))
    return with_common_cards(
        check_on({}), lambda gpus: check_on({"gpus": gpus, **VERDICT_ALONE, **RANKS_OPEN})
    )


RANKS_OPEN: Mapping[str, Any] = {"ranks_open": True}
"""Of a question whose cards nobody named: how many there are is still open."""
VERDICT_ALONE: Mapping[str, Any] = {"cures": False, "verdict_alone": True}
"""Of a question that is about a verdict: no cures, and of mistakes only what may change it."""


def _is_spread(job: AccountedJob) -> bool:
    """Whether the sheet is of one process on all cards, and a count of processes none of cards."""
    return job.answer is not None and job.answer.plan.schedule is Schedule.NAIVE


def _words_beside(question: Mapping[str, Any], job: AccountedJob, reads: Mapping[str, FileReading]) -> str:
    """What is said of the cards above the verdict, where the job is on those that are named."""
    if question.get("ranks_open") or job.too_few_cards or job.answer is None or _is_spread(job):
        return ""
    cluster = job.answer.cluster
    named = named_cards(str(question["gpus"]))[0] if question["gpus"] else None
    return words_of_processes(question["gpus"], reads) if cluster and cluster.count == named else ""


def _named_ranks(question: Mapping[str, Any]) -> Mapping[str, int]:
    """The ranks that named cards are, which a file need not say again."""
    count = None if question.get("ranks_open") else named_cards(str(question["gpus"] or "auto"))[0]
    return dict.fromkeys(("@gpus", "@nodes", "@per_node"), count) if count else {}


def _judge_on_cards(
    files_read: JobFiles,
    whole: Together,
    ask: Mapping[str, Any],
    question: Mapping[str, Any],
    told: tuple[Mapping[str, Any], Mapping[str, Any]],
    servers: Mapping[str, str],
    *,
    fix: bool,
) -> tuple[AccountedJob, str, Checked]:
    """What trains or serves, accounted on the cards that it is for, what is said of its node, and what is
    told of all. ``told``: the keys of a plan and of flags, and flags with the ranks that cards are; ``fix``:
    look for changes of what trains, which are not those of a job of several models.
    """
    (said, flags), gpus = told, ask["gpus"]
    job = account_job(files_read.reads, whole, {**ask, "fix": fix and ask[CURES]}, said)
    own = gpus_of_degrees(gpus, job) or gpus_for_processes(gpus, files_read.reads)
    kept = job.answer is not None and job.whole.request.get(BATCH) == whole.request.get(BATCH)
    if not (kept or _is_spread(job)) and own and own != str(gpus):
        job = account_on_own_cards(files_read.reads, job, own, said)
    started = gpus_for_processes(gpus, files_read.reads)
    if job.answer is None and started and started not in (own, str(gpus)):
        job = account_on_own_cards(files_read.reads, job, started, said)
    of_node = words_of_node(question["gpus"], job, files_read.texts)
    if not of_node and not question.get("ranks_open"):
        job = replace(job, too_few_cards=too_few_cards(question["gpus"], job))
    alone = question.get("verdict_alone", False)
    return job, of_node, judge_job(files_read, job, flags, verdict_alone=alone, servers=servers)


def _check_job(
    files_read: JobFiles,
    model: str | None,
    question: Mapping[str, Any],
    flags: Mapping[str, Any],
    words: Mapping[str, Any],
) -> Checked:
    where = {key: question[key] for key in ("nodes", "per_node", "host_memory", "cluster")}
    planned = {
        key: value
        for key, value in flatten_document(files_read.document).items()
        if value is not None and key not in ("schema", "model", "gpus")
    }
    said = engine_keys(files_read.reads, planned)
    servers: Mapping[str, str] = NOTHING
    libraries: Mapping[str, str] = NOTHING
    if words.get(VERSION):
        formats = {read.form.name for read in files_read.reads.values()}
        words, servers, libraries = without_other_releases(words, said.get("engine"), formats)
    flags = {**flags, **read_flags(words, question["gpus"], said)}
    at_once = sequences_demanded(words, said)
    reads = {
        name: as_released(read, libraries.get(read.form.name) or told_release(read, flags, planned))
        for name, read in files_read.reads.items()
    }
    question = {**question, "gpus": counted_cards(question["gpus"], files_read.document.get("gpus"), reads)}
    bf16 = has_bf16_units(question["gpus"] or files_read.document.get("gpus"))
    reads = {name: as_card_answers(read, bf16=bf16) for name, read in reads.items()}
    named = model or files_read.document.get("model")
    name, unreadable = (named, ()) if named else model_of_files(reads)
    cards = question["gpus"] or files_read.document.get("gpus")
    reads = {one: as_cards_decide(read, cards, name) for one, read in reads.items()}
    reads = with_kernels_of_card(reads, lambda: model_of(name)) if bf16 is False else reads
    name, reads = without_output(*with_labels_head(name, reads))
    name, reads = without_unused_towers(name, reads, lambda read: told_release(read, flags, planned))
    name = with_stretched_positions(name, reads, files_read.texts)
    reads = dict(with_stated_bits(reads, name))
    files_read = replace(files_read, reads={one: stored_dtype(read, name) for one, read in reads.items()})
    raise_if_problems(problem for read in files_read.reads.values() for problem in read.problems)
    gpus = question["gpus"] or gpus_for_processes(files_read.document.get("gpus"), files_read.reads)
    whole, gpus = join_on_cards(files_read.reads, planned, flags, gpus, where)
    asked = {"gpus": gpus, "model": name, "sequences": at_once, CURES: question.get("cures", True)}
    ask = {**nodes_of_files(gpus, where, files_read.reads), **asked}
    told = {**planned, **flags}, {**flags, **_named_ranks(question)}
    several = any(read.unmodelled for read in files_read.reads.values()) and is_of_job(files_read.reads)
    job, of_node, checked = _judge_on_cards(files_read, whole, ask, question, told, servers, fix=not several)
    if several and checked.answer and not checked.answer.job:
        job, of_node, checked = _judge_on_cards(files_read, whole, ask, question, told, servers, fix=True)
    folder = folder_words(files_read.reads) if not named else ""
    likely = () if not folder or TAKEN_FOR in checked.doubt else (folder,)
    return replace(
        checked,
        assumed=(*likely, *checked.assumed),
        cards_words=words_of_more_cards(question["gpus"], checked.answer, beyond=job.ask["gpus"])
        or of_node
        or _words_beside(question, job, files_read.reads),
        other_job=other_job_words(job.unaccounted.words) if job.unaccounted.words else "",
        why_not=(*unreadable, *checked.why_not),
        no_model="" if name or unreadable else unnamed_words(files_read.reads, files_read.texts),
        keys_alone=not cards and all(map(names_no_model, files_read.reads.values())),
    )
