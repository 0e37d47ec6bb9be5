"""The verdict on a job by its sheet, with what its files hold beside it, and their mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memsheet.budget import Answer, Result
from memsheet.exchange.mistakes import Case, FoundMistake, Rule, find_mistakes
from memsheet.exchange.shared.file_format import FileReading, Moved
from memsheet.exchange.verdict_doubts import (
    Doubt,
    both_doubts,
    left_to_script,
    widen_verdict,
)
from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.questions.cards_of_job import join_on_cards
from memsheet.questions.cut_experts import cut_experts_doubt
from memsheet.questions.doubts_of_files import (
    bytes_beyond,
    claimed_fit,
    doubt_of,
    host_memory_doubt,
    may_fit,
    refusal_doubt,
    unheard_doubt,
    with_changes_in_host_memory,
    with_host_short,
    without_guessed_stops,
    without_stand_in_log,
)
from memsheet.questions.earlier_defaults import earlier_defaults_doubt, earlier_reading_doubt
from memsheet.questions.expert_bits import expert_adapter_doubt, expert_bits_doubt
from memsheet.questions.file_answers import (
    CURES,
    AccountedJob,
    answer_in_host_memory,
    answer_with_changes,
    answer_with_less_room,
    assumed_length,
    memoize_answers,
)
from memsheet.questions.job_files import JobFiles
from memsheet.questions.length_doubts import length_doubt, limit_doubt
from memsheet.questions.moved_bytes import moved_bytes, with_moved_range
from memsheet.questions.named_models import (
    bundled_name,
    model_of,
)
from memsheet.questions.preference_jobs import preference_doubt
from memsheet.questions.server_releases import refuse_server_releases
from memsheet.report.shared.checked import Checked
from memsheet.units import format_bytes

if TYPE_CHECKING:
    from memsheet.questions.job_of_files import JobOfFiles
with late_functions(__name__):
    from memsheet.questions.cures_in_files import cure_in_files, without_allocator
    from memsheet.questions.sure_changes import changed_values, with_judged_changes
    from memsheet.questions.without_unmodelled import other_job_words

NOTHING: Mapping[str, str] = {}
MACHINES = ("nodes", "per_node", "host_memory", "cluster")
OF_PHASES = ("whole-logits",)
"""Rules about what phases of a job say themselves, with their framework's own cures: a loss that makes no
whole logits is none of the model's own plan.
"""
UNDER_A_SERVER = ("fragmentation",)
"""Rules whose cure a server that sleeps cannot have: its pools do not go with expandable segments (vLLM
010c211 device_allocator/cumem.py), and verl switches them itself.
"""


def judge_job(
    files: JobFiles,
    job: AccountedJob,
    flags: Mapping[str, Any],
    *,
    verdict_alone: bool,
    servers: Mapping[str, str] = NOTHING,
) -> Checked:
    """The sheet with what the files say beyond it, and their mistakes. ``servers``: releases that are told of
    a job's servers, by their engines.
    """
    answer, whole, reads = job.answer, job.whole, files.reads
    at_length = {**whole.request, **assumed_length(answer)}
    case = Case(
        reads=reads,
        texts=files.texts,
        together=whole,
        answer=answer,
        model=answer.model if answer else model_of(job.ask["model"]),
        bundled=bundled_name,
        too_few_cards=job.too_few_cards,
        refused=job.refused,
        ask=memoize_answers(lambda changes: answer_with_changes(job.ask, at_length, changes)),
    )
    mistakes = find_mistakes(case, beyond_alone=verdict_alone)
    mistakes = without_guessed_stops(mistakes, case, job.ask["model"])
    if any(read.unmodelled for read in reads.values()):  # where further models are told
        from memsheet.questions.job_of_files import job_of_files

        beside = {"told_length": flags.get("seq_len"), "servers": servers}
        if whole_job := job_of_files(reads, answer, {**job.ask, **beside}):
            return _judge_several(files, job, flags, case, mistakes, whole_job)
    refuse_server_releases(servers, whole.request.get("engine"))
    moved = (*moved_bytes(reads, answer), *bytes_beyond(mistakes))
    lasting = both_doubts(job.unaccounted, length_doubt(answer))
    doubt = both_doubts(doubt_of(reads, answer, moved, flags, case), lasting)
    doubt = both_doubts(doubt, limit_doubt(answer, case, flags))
    doubt = both_doubts(doubt, host_memory_doubt(mistakes, answer))
    doubt = both_doubts(doubt, refusal_doubt(mistakes, answer))
    doubt = both_doubts(doubt, unheard_doubt(mistakes, answer))
    doubt = both_doubts(doubt, cut_experts_doubt(answer, reads, flags))
    doubt = both_doubts(doubt, expert_bits_doubt(answer, case, flags))
    doubt = both_doubts(doubt, expert_adapter_doubt(answer, case, flags))
    doubt = both_doubts(doubt, earlier_defaults_doubt(reads, answer, case, flags))
    doubt = both_doubts(doubt, earlier_reading_doubt(reads, answer, case, flags))
    doubt = both_doubts(doubt, preference_doubt(reads, whole, answer, case.ask))
    if answer and answer.verdict:
        unsaid = left_to_script(whole.script, whole.request, answer, case.ask)
        if answer.verdict.result is not Result.DOES_NOT_FIT or may_fit(answer, unsaid):
            doubt, lasting = both_doubts(doubt, unsaid), both_doubts(lasting, unsaid)
    changed = with_changes_in_host_memory(
        answer, reads, lambda size: answer_in_host_memory(job.ask, at_length, size)
    )
    told = with_moved_range(without_stand_in_log(widen_verdict(changed, doubt), reads), answer, moved)
    told = with_host_short(told, reads, mistakes)
    unsure = told is not None and told.verdict is not None and told.verdict.result is not Result.FITS
    other = job.unaccounted.words and other_job_words(job.unaccounted.words)
    if told and told.verdict and other:  # whose changes help no one
        told = replace(told, verdict=replace(told.verdict, cheapest_fix=None, unsought=True), ways_to_fit=())
    elif unsure and job.ask.get("fix", True):
        told = with_judged_changes(
            told,
            answer,
            lambda changes: _judged_answer(files, job, {**at_length, **changes}, {**flags, **changes}),
            lambda beyond: answer_with_less_room(job.ask, at_length, beyond),
            lasting=bool(lasting.words),
        )
        told = _in_words_of_files(told, files, job, case, flags) if not files.document else told
    claimed = tuple((rule, claimed_fit(found, moved, flags, case)) for rule, found in mistakes)
    return _checked_job(files, job, reads, told, claimed, moved, doubt)


def _in_words_of_files(
    told: Answer | None, files: JobFiles, job: AccountedJob, case: Case, flags: Mapping[str, Any]
) -> Answer | None:
    """The answer with its list of changes in the files' own keys, too, where they can say it."""
    verdict = told.verdict if told else None
    if told is None or verdict is None or verdict.cheapest_fix is None or job.answer is None:
        return told
    fix, where = verdict.cheapest_fix, {key: job.ask[key] for key in MACHINES}
    said, beside = without_allocator(changed_values(fix))
    after = case.ask(said) if said else None

    # what the sheet has that no file says: layers that one process spreads, what stands for a refused key
    own = join_on_cards(files.reads, {}, flags, job.ask["gpus"], where)[0].request
    meant = job.whole.request
    instead = {key: value for key, value in meant.items() if own.get(key) != value and key not in said}
    taken = own.keys() - meant.keys() - said.keys()

    def account(reads: Mapping[str, FileReading]) -> Answer | None:
        whole, gpus = join_on_cards(reads, {}, flags, job.ask["gpus"], where)
        request = {key: value for key, value in whole.request.items() if key not in taken}
        return answer_with_changes(
            {**job.ask, "gpus": gpus}, {**request, **instead, **assumed_length(job.answer)}, {}
        )

    keys = cure_in_files(files.reads, job.answer, after, account) if after else ()
    keys = (*keys, *beside) if keys or not said else ()
    return replace(told, verdict=replace(verdict, cheapest_fix=replace(fix, in_files=keys))) if keys else told


def _judged_answer(
    files: JobFiles, job: AccountedJob, request: Mapping[str, Any], flags: Mapping[str, Any]
) -> Answer | None:
    """The answer about the same files with another request, judged as they are."""
    ask = {**job.ask, "fix": False, CURES: False}
    answer = answer_with_changes(ask, request, {})
    changed = replace(job, ask=ask, whole=replace(job.whole, request=request), answer=answer)
    return judge_job(files, changed, flags, verdict_alone=True).answer


def _checked_job(
    files: JobFiles,
    job: AccountedJob,
    reads: Mapping[str, FileReading],
    answer: Answer | None,
    mistakes: tuple[tuple[Rule, FoundMistake], ...],
    moved: tuple[Moved, ...],
    doubt: Doubt,
) -> Checked:
    """What is told of files that were judged. ``reads``: as they are told; ``moved``: bytes beyond the
    sheet.
    """
    return Checked(
        reads=reads,
        answer=answer,
        why_not=_reasons_beside(job, mistakes),
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


def _reasons_beside(job: AccountedJob, mistakes: tuple[tuple[Rule, FoundMistake], ...]) -> tuple[str, ...]:
    """Why there is no sheet, less what stands above it as what the engine stops at."""
    stops = any(found.stops for _, found in mistakes)
    told = [problem.reason for problem in job.refused if stops]
    return tuple(reason for reason in job.why_not if not any(says in reason for says in told))


def _judge_several(
    files: JobFiles,
    job: AccountedJob,
    flags: Mapping[str, Any],
    case: Case,
    mistakes: tuple[tuple[Rule, FoundMistake], ...],
    found: JobOfFiles,
) -> Checked:
    """The sheet of all models of a job, with what stays open of it and of its files."""
    from memsheet.questions.cures_of_jobs import mistakes_of_job

    moved = (*moved_bytes(found.reads, job.answer), *bytes_beyond(mistakes))
    doubt = both_doubts(doubt_of(found.reads, job.answer, moved, flags, case), job.unaccounted)
    if found.open_words and job.answer and job.answer.verdict:
        least = found.least_bytes
        if any(OF_PROMPTS not in words for words in found.open_words):  # the server may be elsewhere
            least = min(int(job.answer.verdict.device.low), least)
        doubt = both_doubts(doubt, Doubt("; ".join(found.open_words), least, no_most=found.unbounded))
    verdict = found.answer.verdict
    if verdict and verdict.result is Result.DOES_NOT_FIT and found.over_words:
        doubt = both_doubts(doubt, Doubt("; ".join(found.over_words), found.least_bytes))
    if job.answer and (unsaid := job.whole.script):
        doubt = both_doubts(doubt, Doubt("; ".join(unsaid), found.least_bytes, no_most=True))
    doubt = both_doubts(doubt, _shorter_rows_doubt(found))
    doubt = both_doubts(doubt, refusal_doubt(mistakes, found.answer))
    doubt = both_doubts(doubt, unheard_doubt(mistakes, found.answer))
    earlier = earlier_defaults_doubt(found.reads, found.answer, case, flags, alone=job.answer)
    doubt = both_doubts(doubt, earlier)
    mistakes = tuple(one for one in mistakes if one[0].id not in OF_PHASES)
    if found.serves:
        mistakes = tuple(one for one in mistakes if one[0].id not in UNDER_A_SERVER)
    # what a change frees of one model's plan is not what it frees of the job
    mistakes = tuple((rule, replace(one, saves_bytes=None)) for rule, one in mistakes)
    if job.ask.get(CURES):
        text = files.texts.get(found.file.partition(":")[0], "")
        mistakes = (*mistakes, *mistakes_of_job(found, text))
    claimed = tuple((rule, claimed_fit(one, moved, flags, case)) for rule, one in mistakes)
    told = with_moved_range(widen_verdict(found.answer, doubt), found.answer, moved)
    return _checked_job(files, job, found.reads, told, claimed, moved, doubt)


OF_PROMPTS = "how long prompts are"
"""In what is open of a job: rows, and nothing that a card may be without."""


def _shorter_rows_doubt(found: JobOfFiles) -> Doubt:
    """Of a job that is not expected to fit with micro-batches as large as they may be: with which it is."""
    from memsheet.questions.job_of_files import tokens_that_fit

    verdict, cluster = found.answer.verdict, found.answer.cluster
    if verdict is None or cluster is None or not found.shorter_rows:
        return Doubt("")
    if verdict.device.value <= cluster.device.framework_low_bytes:
        return Doubt("")
    fitting, counted, rows, phase = tokens_that_fit(found)
    whole = found.row_ranks
    each = f", {fitting // rows * whole:,} of each row's {counted // rows * whole:,}" if rows > 1 else ""
    least = f"{format_bytes(found.least_bytes)} at the least"
    if found.length_flag and fitting and rows > 1:
        each += f" ({found.length_flag} says how long yours are)"
    told = f"it is expected to fit with {fitting:,}{each}" if fitting else f"fewer need less, {least}"
    of_phase = f" of {phase}" if phase else ""
    most = f"the {counted:,} tokens that it may have at the most"
    words = f"a micro-batch{of_phase} is counted with {most}, and {told}"
    return Doubt(words, found.least_bytes)
