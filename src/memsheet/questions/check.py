"""What an engine's configuration comes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from memsheet.budget import Answer, Result
from memsheet.catalog import find_device, find_gpus, named_cards
from memsheet.errors import InputError, Problem, input_error, raise_if_problems
from memsheet.exchange import as_released
from memsheet.exchange.asked_card import as_card_answers, with_kernels_of_card
from memsheet.exchange.joined_files import join_files, with_shipped_files, with_their_files
from memsheet.exchange.mistakes import Case, Found, Rule, find_mistakes
from memsheet.exchange.shared.file_format import Moved, Read, Together
from memsheet.exchange.shared.stand_in_server import share_of_card, share_of_free
from memsheet.exchange.verdict_doubts import (
    AUTO_LENGTH,
    Doubt,
    beside_draft,
    both_doubts,
    left_to_script,
    widen_verdict,
)
from memsheet.frozen import dataclass, replace
from memsheet.plan.accumulated_batch import with_accumulated_batch
from memsheet.plan.check import flatten_document
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.hardware import BF16_UNITS, is_older_device
from memsheet.plan.model import ModelSpec
from memsheet.plan.options import InferOptions
from memsheet.plan.plan import Mesh
from memsheet.plan.values import option_problems
from memsheet.plan.words import in_our_words, sequences_at_once
from memsheet.plan.workload import Training
from memsheet.questions import accounted
from memsheet.questions.common_cards import cards_named_in_files, with_common_cards
from memsheet.questions.doubts_of_files import (
    bytes_beyond,
    claimed_fit,
    doubt_of,
    host_memory_doubt,
    length_doubt,
    limit_doubt,
    may_fit,
    moved_bytes,
    with_changes_in_host_memory,
    with_moved_range,
    with_sure_changes,
    without_stand_in_log,
)
from memsheet.questions.files_on_disk import (
    adjacent_file_texts,
    files_as_they_lie,
    folders_of_job,
    large_scripts,
    read_texts_and_plan,
    started_scripts,
    with_called_scripts,
    with_inherited_trees,
    with_settings_beside,
    with_variables_beside,
)
from memsheet.questions.labelled_models import with_labels_head
from memsheet.questions.launched_settings import with_launched_settings
from memsheet.questions.named_models import (
    bundled_draft,
    bundled_name,
    model_of,
    model_of_files,
    names_no_model,
    stored_dtype,
    strange_draft,
    unnamed_words,
)
from memsheet.questions.open_degrees import open_degrees, with_degree_of_cards
from memsheet.questions.plainer_models import plainer_model
from memsheet.questions.pod_jobs import with_pod_commands
from memsheet.questions.pooled_models import without_output
from memsheet.questions.preference_jobs import preference_doubt, reference_beside
from memsheet.questions.question_parts import plan_document_of
from memsheet.questions.recognised_files import of_folders, recognise_files
from memsheet.questions.sized_models import in_place_of_model
from memsheet.questions.stretched_positions import LENGTH, with_stretched_positions
from memsheet.questions.without_unmodelled import Left, answer_without
from memsheet.report.answer import public_answer
from memsheet.report.shared.checked import Checked
from memsheet.resolve.length import derived_max_length
from memsheet.resolve.mesh import NOT_THE_PRODUCT, mesh_product
from memsheet.units import parse_bytes

if TYPE_CHECKING:
    from memsheet.questions.job_of_files import JobOfFiles

MACHINES = ("gpus", "nodes", "per_node", "host_memory", "cluster", "parameters", "plan")
BATCH, DRAFTING, SEQUENCES = "global_batch", "speculative.", "serving.max_sequences"
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
    files_read = _read_job_files(files, question.get("plan"), server, root, as_run)

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


SHORTER_ROWS = "rows are counted as long as the longest prompt and answer, and shorter ones need less"
UNDER_A_SERVER = ("fragmentation",)
"""Rules whose cure a server that sleeps cannot have: its pools do not go with expandable segments (vLLM
010c211 device_allocator/cumem.py), and verl switches them itself.
"""
RANKS_OPEN: Mapping[str, Any] = {"ranks_open": True}
"""Of a question whose cards nobody named: how many there are is still open."""
VERDICT_ALONE: Mapping[str, Any] = {"cures": False, "verdict_alone": True}
"""Of a question that is about a verdict: no cures, and of mistakes only what may change it."""


def _named_ranks(question: Mapping[str, Any]) -> Mapping[str, int]:
    """The ranks that named cards are, which a file need not say again."""
    count = None if question.get("ranks_open") else named_cards(str(question["gpus"] or "auto"))[0]
    return dict.fromkeys(("@gpus", "@nodes", "@per_node"), count) if count else {}


def _check_job(
    files_read: _JobFiles,
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
    said = _said_of_engine(files_read.reads, planned)
    flags = {**flags, **read_flags(words, question["gpus"], said)}
    at_once = sequences_demanded(words, said)
    reads = {name: _of_release(read, flags, planned) for name, read in files_read.reads.items()}
    bf16 = _has_bf16(question["gpus"] or files_read.document.get("gpus"))
    reads = {name: as_card_answers(read, bf16=bf16) for name, read in reads.items()}
    named = model or files_read.document.get("model")
    name, unreadable = (named, ()) if named else model_of_files(reads)
    cards = question["gpus"] or files_read.document.get("gpus")
    reads = {one: _as_cards_decide(read, cards, name) for one, read in reads.items()}
    reads = with_kernels_of_card(reads, lambda: model_of(name)) if bf16 is False else reads
    name, reads = without_output(*with_labels_head(name, reads))
    name = with_stretched_positions(name, reads, files_read.texts)
    files_read = replace(files_read, reads={one: stored_dtype(read, name) for one, read in reads.items()})
    raise_if_problems(problem for read in files_read.reads.values() for problem in read.problems)
    gpus = question["gpus"] or _gpus_for_processes(files_read.document.get("gpus"), files_read.reads)
    whole, gpus = _join_on_cards(files_read.reads, planned, flags, gpus, where)
    ask = {**where, "gpus": gpus, "model": name, "sequences": at_once, "fix": question.get("cures", True)}
    job = _account_job(files_read.reads, whole, ask, {**planned, **flags})
    own = _gpus_of_degrees(gpus, job) or _gpus_for_processes(gpus, files_read.reads)
    kept = job.answer is not None and job.whole.request.get(BATCH) == whole.request.get(BATCH)
    if not kept and own and own != str(gpus):
        job = _account_on_own_cards(files_read.reads, job, own, {**planned, **flags})
    started = _gpus_for_processes(gpus, files_read.reads)
    if job.answer is None and started and started not in (own, str(gpus)):
        job = _account_on_own_cards(files_read.reads, job, started, {**planned, **flags})
    flags = {**flags, **_named_ranks(question)}
    checked = _judge_job(files_read, job, flags, verdict_alone=question.get("verdict_alone", False))
    return replace(
        checked,
        why_not=(*unreadable, *checked.why_not),
        no_model="" if name or unreadable else unnamed_words(files_read.reads),
        keys_alone=not cards and all(map(names_no_model, files_read.reads.values())),
    )


@dataclass(frozen=True, slots=True)
class _JobFiles:
    """The files of a job: their texts, what was read of them, and the plan among them."""

    texts: dict[str, str]
    reads: dict[str, Read]
    document: Mapping[str, Any]
    not_read: tuple[str, ...]
    written: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _AccountedJob:
    """The files of a job as one request, and the sheet of it or why there is none."""

    ask: Mapping[str, Any]
    whole: Together
    answer: Answer | None
    why_not: tuple[str, ...]
    unaccounted: Doubt


def _read_job_files(
    files: tuple[str, ...],
    plan: Any,
    server: str,
    root: Path | None,
    as_run: Callable[[str], str] | None,
) -> _JobFiles:
    texts, document = read_texts_and_plan(files, plan)
    written = files_as_they_lie(files, texts)
    too_large = tuple(
        f"{path.name}: a script of {path.stat().st_size:,} bytes: name it to have it read"
        for path in large_scripts(files)
    )
    texts = with_pod_commands({name: as_run(text) for name, text in texts.items()} if as_run else texts)
    folders = folders_of_job(files, root)
    texts, put_in = with_variables_beside(files, texts, folders)
    texts, stood_on = with_inherited_trees(files, texts, folders)
    put_in |= stood_on
    texts = with_called_scripts(folders, texts)
    texts, launched = with_launched_settings(folders, texts)
    put_in |= launched
    folder, scripts = of_folders(files, texts), started_scripts(folders, texts)
    texts, scripts, settings = with_settings_beside(folders, texts, scripts)
    put_in |= settings
    reads, skipped = recognise_files(texts, folder, server, scripts)
    if beside := adjacent_file_texts(folders, texts, reads):
        texts |= beside
        written |= {path: (path, text) for path, text in beside.items()}
        reads, skipped = recognise_files(texts, folder, server, scripts)
    reads = {name: bundled_draft(read) for name, read in with_their_files(with_shipped_files(reads)).items()}
    put_in |= {name: put_in[script] for name in reads if (script := _started_script(name)) in put_in}
    reads = {
        name: replace(read, assumed=(*read.assumed, *put_in.get(name, ()))) for name, read in reads.items()
    }
    whole = {**dict.fromkeys(reads, ""), **texts}
    return _JobFiles(whole, reads, document, (*skipped, *too_large), written)


def _started_script(name: str) -> str:
    """The script of a name that a command's was put before."""
    return name.rpartition(": ")[2]


def _join_on_cards(
    reads: Mapping[str, Read],
    planned: Mapping[str, Any],
    flags: Mapping[str, Any],
    gpus: Any,
    where: Mapping[str, Any],
) -> tuple[Together, Any]:
    """The files as one request, and the cards that it runs on."""
    whole = join_files(reads, planned, flags, named_cards(str(gpus))[0] if gpus else None)
    if named := list(open_degrees(reads, {**planned, **flags})):
        return with_degree_of_cards(whole, named, named_cards(str(gpus))[0] if gpus else None), gpus
    taken = _fewer_cards(gpus, where, whole, reads)
    if not taken:
        return whole, gpus
    whole = join_files(reads, planned, flags, named_cards(taken)[0])
    idle = f"gpus = {taken}: the command takes no more of {gpus}"
    return replace(whole, assumed=(idle, *whole.assumed)), taken


def _fitted_length(reads: Mapping[str, Read], answer: Answer) -> int | None:
    """The longest sequence that is sure to have room, where the engine is to find it and the model's own has
    none; None elsewhere.
    """
    asked = any(read.values.get(AUTO_LENGTH) == -1 for read in reads.values())
    serving = answer.serving or {}
    short = "short_bytes" in serving and serving["short_bytes"].high > 0
    return serving.get("longest_that_fits") if asked and short else None


def _usual_with_draft(request: Mapping[str, Any]) -> dict[str, Any]:
    """As many sequences as a server starts with a draft, where nobody says and that is another number."""
    alone = {at: held for at, held in request.items() if not at.startswith(DRAFTING)}
    engine = find_engine(str(request.get("engine")))
    if engine is None or engine.served is None or request.get(SEQUENCES) is not None:
        return {}
    usual, drafting = (engine.served(one, None, Mesh(), latent=False)[SEQUENCES] for one in (alone, request))
    return {SEQUENCES: drafting} if drafting != usual else {}


def _account_job(
    reads: Mapping[str, Read], whole: Together, ask: Mapping[str, Any], said: Mapping[str, Any]
) -> _AccountedJob:
    if ask["model"] is None:
        return _AccountedJob(ask, whole, None, (), Doubt(""))
    strange = strange_draft(reads, said)
    usual = _usual_with_draft(whole.request) if strange else {}
    if strange:
        alone = {at: held for at, held in whole.request.items() if not at.startswith(DRAFTING)}
        whole = replace(whole, request={**alone, **usual})
    answer, why_not, without = _answer_or_reasons(ask, whole.request, said)
    said_there = {at: held for at, held in without.request.items() if at not in usual}
    whole = replace(whole, request=said_there, assumed=(*whole.assumed, *without.assumed))
    if answer and not ask["gpus"] and (ranks := _data_parallel(answer, whole)):
        counted = f"{whole.gpus} GPUs, as many as the files start processes: --gpus names the card"
        whole = replace(whole, request={**whole.request, **ranks}, assumed=(counted, *whole.assumed))
        answer, why_not, _ = _answer_or_reasons(ask, whole.request, said)
    if answer and (share := _share_of_card(reads, answer, said)):
        whole = replace(whole, request={**whole.request, "serving.memory_fraction": share})
        answer, why_not, _ = _answer_or_reasons(ask, whole.request, said)
    if answer and (length := _fitted_length(reads, answer)):
        fitted = f"{LENGTH} = {length}: the engine takes what fits of the model's, and is sure of as many"
        whole = replace(whole, request={**whole.request, LENGTH: length}, assumed=(fitted, *whole.assumed))
        answer, why_not, _ = _answer_or_reasons(ask, whole.request, said)
    more = beside_draft(strange, answer)
    return _AccountedJob(ask, whole, answer, why_not, both_doubts(without.doubt, more))


def _share_of_card(reads: Mapping[str, Read], answer: Answer, said: Mapping[str, Any]) -> float | None:
    """The share of a card that its server takes, where files say one of what is free beside the weights."""
    free = next((share for read in reads.values() if (share := share_of_free(read.values))), None)
    budget = (answer.serving or {}).get("budget")
    if free is None or not budget or answer.cluster is None or "serving.memory_fraction" in said:
        return None
    total = answer.cluster.device.framework_bytes
    return round(share_of_card(free, total, budget["requested_bytes"], int(budget["kv_cache"].value)), 4)


def _account_on_own_cards(
    reads: Mapping[str, Read], job: _AccountedJob, own: str, said: Mapping[str, Any]
) -> _AccountedJob:
    """The job on as many cards as its files are for, where it has no sheet on those that are named;
    ``own``: those cards.
    """
    whole = join_files(reads, {}, said, named_cards(own)[0])
    again = _account_job(reads, whole, {**job.ask, "gpus": own}, said)
    if again.answer is None or again.whole.request.get(BATCH) != whole.request.get(BATCH):
        return job
    counted = named_cards(str(job.ask["gpus"]))[0]
    beside = f", and {job.ask['gpus']} cannot run it" if counted else ""
    told = f"gpus = {own}: as many as the files are for{beside}"
    return replace(again, whole=replace(again.whole, assumed=(told, *again.whole.assumed)))


def _judge_job(
    files: _JobFiles, job: _AccountedJob, flags: Mapping[str, Any], *, verdict_alone: bool
) -> Checked:
    """The sheet with what the files say beyond it, and their mistakes."""
    answer, whole, reads = job.answer, job.whole, files.reads
    at_length = {**whole.request, **_length_taken(answer)}
    case = Case(
        reads=reads,
        texts=files.texts,
        together=whole,
        answer=answer,
        model=answer.model if answer else model_of(job.ask["model"]),
        bundled=bundled_name,
        ask=_memoize_answers(lambda changes: _answer_with_changes(job.ask, at_length, changes)),
    )
    mistakes = find_mistakes(case, beyond_alone=verdict_alone)
    if any(read.unmodelled for read in reads.values()):  # where further models are told
        from memsheet.questions.job_of_files import job_of_files

        if whole_job := job_of_files(reads, answer, job.ask):
            return _judge_several(files, job, flags, case, mistakes, whole_job)
    moved = (*moved_bytes(reads, answer), *bytes_beyond(mistakes))
    doubt = both_doubts(doubt_of(reads, answer, moved, flags, case), job.unaccounted)
    doubt = both_doubts(doubt, length_doubt(answer))
    doubt = both_doubts(doubt, limit_doubt(answer, case, flags))
    doubt = both_doubts(doubt, host_memory_doubt(mistakes, answer))
    doubt = both_doubts(doubt, preference_doubt(reads, whole, answer, case.ask))
    if answer and answer.verdict:
        unsaid = left_to_script(whole.script, whole.request, answer, case.ask)
        if answer.verdict.result is not Result.DOES_NOT_FIT or may_fit(answer, unsaid):
            doubt = both_doubts(doubt, unsaid)
    changed = with_changes_in_host_memory(
        answer, reads, lambda size: _answer_in_host_memory(job.ask, at_length, size)
    )
    told = with_moved_range(
        with_sure_changes(
            without_stand_in_log(widen_verdict(changed, doubt), reads),
            (*moved, *reference_beside(reads, answer)),
        ),
        answer,
        moved,
    )
    claimed = tuple((rule, claimed_fit(found, moved, flags, case)) for rule, found in mistakes)
    return _checked_job(files, job, reads, told, claimed, moved, doubt)


def _checked_job(
    files: _JobFiles,
    job: _AccountedJob,
    reads: Mapping[str, Read],
    answer: Answer | None,
    mistakes: tuple[tuple[Rule, Found], ...],
    moved: tuple[Moved, ...],
    doubt: Doubt,
) -> Checked:
    """What is told of files that were judged. ``reads``: as they are told; ``moved``: bytes beyond the
    sheet.
    """
    return Checked(
        reads=reads,
        answer=answer,
        why_not=job.why_not,
        assumed=(
            *(f"{name}: {text}" for name, read in reads.items() for text in read.assumed),
            *job.whole.assumed,
        ),
        mistakes=mistakes,
        moved=moved,
        doubt=doubt.words,
        not_read=files.not_read,
        written=files.written,
        on_cards=bool(job.ask["gpus"]),
    )


def _judge_several(
    files: _JobFiles,
    job: _AccountedJob,
    flags: Mapping[str, Any],
    case: Case,
    mistakes: tuple[tuple[Rule, Found], ...],
    found: JobOfFiles,
) -> Checked:
    """The sheet of all models of a job, with what stays open of it and of its files."""
    from memsheet.questions.cures_of_jobs import mistakes_of_job

    moved = (*moved_bytes(found.reads, job.answer), *bytes_beyond(mistakes))
    doubt = both_doubts(doubt_of(found.reads, job.answer, moved, flags, case), job.unaccounted)
    if found.open_words and job.answer and job.answer.verdict:
        least = min(int(job.answer.verdict.device.low), found.least_bytes)
        doubt = both_doubts(doubt, Doubt("; ".join(found.open_words), least))
    verdict = found.answer.verdict
    if verdict and verdict.result is Result.DOES_NOT_FIT and found.over_words:
        doubt = both_doubts(doubt, Doubt("; ".join(found.over_words), found.least_bytes))
    if job.answer and (unsaid := job.whole.script):
        doubt = both_doubts(doubt, Doubt("; ".join(unsaid), found.least_bytes, no_most=True))
    doubt = both_doubts(doubt, _shorter_rows_doubt(found))
    if found.serves:
        mistakes = tuple(one for one in mistakes if one[0].id not in UNDER_A_SERVER)
    # what a change frees of one model's plan is not what it frees of the job
    mistakes = tuple((rule, replace(one, saves_bytes=None)) for rule, one in mistakes)
    if job.ask.get("fix"):
        mistakes = (*mistakes, *mistakes_of_job(found.answer, found.where, next(iter(found.reads))))
    claimed = tuple((rule, claimed_fit(one, moved, flags, case)) for rule, one in mistakes)
    told = with_moved_range(widen_verdict(found.answer, doubt), found.answer, moved)
    return _checked_job(files, job, found.reads, told, claimed, moved, doubt)


def _shorter_rows_doubt(found: JobOfFiles) -> Doubt:
    """Of a job that is not expected to fit with micro-batches as large as they may be: with which it is."""
    from memsheet.questions.job_of_files import tokens_that_fit

    verdict, cluster = found.answer.verdict, found.answer.cluster
    if verdict is None or cluster is None or not found.shorter_rows:
        return Doubt("")
    if verdict.device.value <= cluster.device.framework_low_bytes:
        return Doubt("")
    fitting, counted = tokens_that_fit(found)
    told = f"it is expected to fit with {fitting:,}" if fitting else "fewer need less"
    words = f"a micro-batch is counted with the {counted:,} tokens that it may have at the most, and {told}"
    return Doubt(words, found.least_bytes)


def _said_of_engine(reads: Mapping[str, Read], planned: Mapping[str, Any]) -> dict[str, Any]:
    """The engine and its sharding as the files say them, the plan among them: a word beside them means what
    it does there.
    """
    said = [
        planned,
        *({key: read.request[key] for key in read.request.keys() - read.unsaid} for read in reads.values()),
    ]
    return {key: value for one in said for key in ("engine", "zero") if (value := one.get(key)) is not None}


def _gpus_of_degrees(gpus: Any, job: _AccountedJob) -> str | None:
    """As many cards as the files' own degrees multiply to, where they say all of them and others are
    named.
    """
    if not gpus or not any(NOT_THE_PRODUCT in reason for reason in job.why_not):
        return None
    return f"{mesh_product(job.whole.request)}x{named_cards(str(gpus))[1]}"


def _as_cards_decide(found: Read, gpus: Any, name: str | ModelSpec | None) -> Read:
    """A file with what its program takes by the memory of the named cards, no longer than the model."""
    if found.form.by_cards is None or not gpus:
        return found
    try:
        count, card = find_gpus(str(gpus))
    except InputError:
        return found
    total = (count or 1) * (card.driver_bytes or card.framework_high_bytes)
    taken = dict(found.form.by_cards(found.values, total))
    longest = derived_max_length(model_of(name))
    if longest and taken.get(LENGTH):
        taken[LENGTH] = min(longest, taken[LENGTH])
    return replace(found, request={**taken, **found.request})


def _has_bf16(gpus: Any) -> bool | None:
    """Whether the named cards have units for bf16; None where none are named, or nobody knows them."""
    try:
        return not is_older_device(find_device(named_cards(str(gpus))[1]), BF16_UNITS) if gpus else None
    except InputError:
        return None


def _gpus_for_processes(named: Any, reads: Mapping[str, Read]) -> str | None:
    """The cards of a plan, as many as the files start processes."""
    counts = [read.request["@gpus"] for read in reads.values() if isinstance(read.request.get("@gpus"), int)]
    if not named or not counts:
        return str(named) if named else None
    return f"{counts[-1]}x{named_cards(str(named))[1]}"


def _fewer_cards(
    gpus: Any, where: Mapping[str, Any], whole: Together, reads: Mapping[str, Read]
) -> str | None:
    """The cards that a server's command takes, where it says its degrees and more are named; or a training
    that starts its processes itself.
    """
    if not gpus or where["nodes"] or where["cluster"]:
        return None
    count, card = named_cards(str(gpus))
    serves = whole.request.get("task") == "infer" and whole.request.get("mesh.tp") is not None
    own = (read.request.get("@gpus") for read in reads.values() if read.form.own_processes)
    ranks = mesh_product(whole.request) if serves else next(own, None)
    return f"{ranks}x{card}" if ranks and count and ranks < count else None


def _of_release(read: Read, flags: Mapping[str, Any], planned: Mapping[str, Any]) -> Read:
    """The file as the engine's release has it: a flag's before the file's own, which is before the plan's
    beside it.
    """
    return as_released(
        read,
        flags.get("engine_version") or read.request.get("engine_version") or planned.get("engine_version"),
    )


def _answer_or_reasons(
    ask: Mapping[str, Any], request: Mapping[str, Any], said: Mapping[str, Any]
) -> tuple[Answer | None, tuple[str, ...], Left]:
    """The answer, or why there is none; and what of the files' request the answer is of. ``said``: what a
    plan and flags ask for, which is never left out.
    """
    try:
        return _answer_from_request(ask, request), (), Left(request)
    except InputError as error:
        left = _answer_with_stand_ins(ask, request, said, error)
        if left is not None:
            return left.answer, (), left
        reasons = tuple(str(problem).replace("\n  ", "; ") for problem in error.problems)
        return None, reasons, Left(request)


def _answer_with_stand_ins(
    ask: Mapping[str, Any], request: Mapping[str, Any], said: Mapping[str, Any], refused: InputError
) -> Left | None:
    """The answer to what is accounted of the files' request, of the model, of a plainer one or at the last of
    one of its size.
    """
    try:
        return _answer_of_plainer(ask, request, said)
    except InputError as last:
        found = in_place_of_model(ask["model"], (*refused.problems, *last.problems))
    if found is None:
        return None
    sized, why = found
    try:
        left = _answer_of_plainer({**ask, "model": sized.spec}, request, said)
    except InputError:
        return None
    return left._replace(doubt=both_doubts(Doubt(f"the sheet is of {sized.words}: {why}"), left.doubt))


def _answer_of_plainer(ask: Mapping[str, Any], request: Mapping[str, Any], said: Mapping[str, Any]) -> Left:
    """The answer to what is accounted of the files' request, of the model or of a plainer one. Raises
    InputError where nothing stands in.
    """
    told: list[str] = []

    def answer_plainer(rest: Mapping[str, Any]) -> Answer:
        try:
            return _answer_from_request({**ask, "fix": False}, rest)
        except InputError as error:
            spec = model_of(ask["model"]) if any(one.field == "model" for one in error.problems) else None
            plainer = plainer_model(spec, error.problems) if spec is not None else None
            if plainer is None:
                raise
            told.append(plainer[1])
            return _answer_from_request({**ask, "model": plainer[0], "fix": False}, rest)

    try:
        left = Left(request, answer_plainer(request))
    except InputError as error:
        left = answer_without(request, said, answer_plainer, error)
    return left._replace(doubt=both_doubts(Doubt("".join(told[-1:])), left.doubt))


def _data_parallel(answer: Answer, whole: Together) -> dict[str, int]:
    """The degree that the ranks which the files start leave to data parallelism, where no card is named that
    would be counted.
    """
    mesh, count = answer.plan.mesh, whole.gpus or 1
    ranks = mesh.dp_replicate * mesh.dp_shard * mesh.cp * mesh.tp * mesh.pp
    axis = "mesh.dp_shard" if answer.plan.zero else "mesh.dp_replicate"
    if (
        not isinstance(answer.plan.workload, Training)
        or count <= ranks
        or count % ranks
        or whole.request.get(axis) is not None
    ):
        return {}
    return {axis: count // ranks}


def _answer_with_changes(
    ask: Mapping[str, Any], request: Mapping[str, Any], changes: Mapping[str, Any]
) -> Answer | None:
    """The answer to the plan with some keys changed, None where that is no plan."""
    if ask["model"] is None:
        return None
    try:
        return _answer_from_request({**ask, "fix": False}, {**request, **changes})
    except InputError:
        return None


def _answer_in_host_memory(ask: Mapping[str, Any], request: Mapping[str, Any], size: int) -> Answer | None:
    """The answer where a node has so many bytes of host memory, or as few as are named."""
    if ask.get("cluster") is not None:
        return None
    named = ask.get("host_memory")
    least = size if named is None else min(size, parse_bytes(str(named), "host_memory"))
    try:
        return _answer_from_request({**ask, "host_memory": f"{least}B"}, request)
    except InputError:
        return None


def _length_taken(answer: Answer | None) -> dict[str, int]:
    """The length that the sheet took of several where nobody said one: what a change frees is told at the
    same.
    """
    return (
        {"seq_len": int(answer.plan.training.seq_len)}
        if answer and answer.ladder and answer.plan.training.seq_len
        else {}
    )


def _memoize_answers(
    ask: Callable[[Mapping[str, Any]], Answer | None],
) -> Callable[[Mapping[str, Any]], Answer | None]:
    """The answer to each change, accounted once: a rule asks whether it fits, and then what it frees."""
    known: dict[str, Answer | None] = {}

    def asked(changes: Mapping[str, Any]) -> Answer | None:
        key = repr(sorted(changes.items(), key=lambda change: change[0]))
        if key not in known:
            known[key] = ask(changes)
        return known[key]

    return asked


def _answer_from_request(ask: Mapping[str, Any], request: Mapping[str, Any]) -> Answer:
    document: dict[str, Any] = {}
    named = request.get("model") or ask["model"]
    for key, value in request.items():
        if key == "model":
            continue
        group, dot, inner = key.partition(".")
        if key == "precision.name" and value is not None:
            document["precision"] = value
        elif value is not None and not (dot and isinstance(document.get(group), str)):
            document.setdefault(group, {})[inner] = value if dot else None
            if not dot:
                document[group] = value
    serves = document.get("task") == "infer"
    demanded = request.get("serving.max_sequences") if serves and ask["sequences"] else None
    asks = accounted.infer if serves else accounted.train
    return asks(**{**ask, "model": named, "sequences": demanded}, plan=document)
