"""Why a sheet's verdict may not hold for the files that it was made of, and what of their findings is
sure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.budget import Answer, Result, budget_of
from memsheet.exchange.file_releases import DTYPE_UNKNOWN, in_sixteen_bits
from memsheet.exchange.mistakes import Case, FoundMistake, Rule, find_mistakes
from memsheet.exchange.mistakes.batch_scripts import HOST_MEMORY, requested_host_memory
from memsheet.exchange.mistakes.case import ENGINE_REFUSES, TRAINERS
from memsheet.exchange.mistakes.pods import POD_HOST_MEMORY, container_memory
from memsheet.exchange.shared.file_format import EVERYTHING, MORE, FileReading, Moved
from memsheet.exchange.shared.launched_script import ACCELERATE
from memsheet.exchange.shared.moved_states import moves_states, moves_weights_of_server
from memsheet.exchange.shared.script_defaults import ASK_FOR_CARDS, LAUNCHED, LOOPS, absent_files
from memsheet.exchange.shared.script_places import (
    FAMILY_CLASS,
    NO_PROMPT,
    ONE_PROCESS,
    SCRIPT,
)
from memsheet.exchange.shared.stand_in_server import ACCOUNTING
from memsheet.exchange.verdict_doubts import (
    BY_SIZE,
    FURTHER,
    TRAININGS,
    Doubt,
    another_model,
    least_of,
    left_open,
    movable_bytes,
    says_sequences_alone,
    stored_as,
)
from memsheet.frozen import NamedTuple, replace
from memsheet.late import late_functions
from memsheet.plan.plan import Schedule
from memsheet.plan.workload import Training
from memsheet.questions.cache_doubts import unsaid_cache
from memsheet.questions.length_doubts import resting_states, unsaid_length
from memsheet.questions.named_models import (
    TAKEN_FOR,
    folder_words,
    is_guessed_model,
    likely_served,
    likely_trained,
    model_of,
    named_model,
    served_model,
    sized_stand_in,
)
from memsheet.questions.probed_pools import is_settled, tight_words
from memsheet.questions.recognised_files import engine_default_places
from memsheet.questions.spread_layers import (
    even_share,
    spread_words,
    spreads_layers,
)

with late_functions(__name__):
    from memsheet.exchange.shared.loop_places import wraps_by_itself
    from memsheet.exchange.shared.model_classes import class_of_family
    from memsheet.exchange.shared.peft_configs import names_peft_config
    from memsheet.questions.job_of_files import leaves_out_models


LEFT_OUT = "the sheet leaves out"


def without_guessed_stops(
    mistakes: tuple[tuple[Rule, FoundMistake], ...], case: Case, model: Any
) -> tuple[tuple[Rule, FoundMistake], ...]:
    """Mistakes that stop a job for a model that its name alone tells, as remarks: another of that name may
    have what this one lacks.
    """
    if not any(found.stops for _, found in mistakes) or not is_guessed_model(case.reads, model):
        return mistakes
    whatever = find_mistakes(replace(case, model=None, answer=None, refused=()))
    sure = {(rule.id, found.where) for rule, found in whatever if found.stops}
    return tuple(
        (rule, found if (rule.id, found.where) in sure else replace(found, stops=False))
        for rule, found in mistakes
    )


def without_stand_in_log(answer: Answer | None, reads: Mapping[str, FileReading]) -> Answer | None:
    """The answer without the lines that a log should have, where they are a server's that stands in."""
    stands_in = any(ACCOUNTING in read.values for read in reads.values())
    if answer is None or not stands_in or not answer.serving:
        return answer
    return replace(answer, serving={at: held for at, held in answer.serving.items() if at != "start_up"})


def with_changes_in_host_memory(
    answer: Answer | None, reads: Mapping[str, FileReading], ask: Callable[[int], Answer | None]
) -> Answer | None:
    """The answer with changes that the host memory that a batch script asks for holds; where none is found,
    with what they need besides. ``ask``: the same question where a node has so many bytes.
    """
    given = _host_memory_given(reads)
    if given is None or answer is None or answer.verdict is None or answer.cluster is None:
        return answer
    fix, ranks = answer.verdict.cheapest_fix, answer.cluster.per_node
    needs = (*((fix.host_bytes,) if fix else ()), *(way.host_bytes for way in answer.ways_to_fit))
    if max(needs, default=0) * ranks <= given:
        return answer
    within = ask(given)
    found = within.verdict.cheapest_fix if within and within.verdict else None
    if found is None and fix is not None and (short := fix.host_bytes * ranks - given) > 0:
        found = replace(fix, host_short_bytes=short)
    ways = within.ways_to_fit if within else ()
    return replace(answer, verdict=replace(answer.verdict, cheapest_fix=found), ways_to_fit=ways)


def _host_memory_given(reads: Mapping[str, FileReading]) -> int | None:
    """Bytes of a node's memory that files ask for, or that a container is given."""
    return min(filter(None, (requested_host_memory(reads), container_memory(reads))), default=None)


def with_host_short(
    answer: Answer | None, reads: Mapping[str, FileReading], mistakes: tuple[tuple[Rule, FoundMistake], ...]
) -> Answer | None:
    """The answer with what a batch script asks for too little of a node's host memory."""
    given = _host_memory_given(reads)
    found = any(rule.id in (HOST_MEMORY, POD_HOST_MEMORY) for rule, _ in mistakes)
    if not found or given is None or answer is None or answer.verdict is None or answer.cluster is None:
        return answer
    need = max(int(sheet.host_bytes) for sheet in answer.sheets) * answer.cluster.per_node
    short = max(answer.verdict.host_short_bytes, need - given)
    return replace(answer, verdict=replace(answer.verdict, host_short_bytes=short))


def may_fit(answer: Answer, doubt: Doubt) -> bool:
    """Whether what is open may need so much less than a sheet that does not fit that it does."""
    return (
        bool(doubt.words)
        and answer.cluster is not None
        and doubt.least_bytes <= budget_of(answer.cluster).high_bytes
    )


def claimed_fit(
    found: FoundMistake, moved: tuple[Moved, ...], given: Mapping[str, Any], case: Case
) -> FoundMistake:
    """A finding with what is known of the fit of the plan that it speaks of: where files hold more than the
    sheet, that of the sheet alone.
    """
    other = case.ask(found.other) if found.fits else None
    if other is None or other.verdict is None:
        return found.claimed(sure=False)
    doubt = doubt_of(case.reads, other, moved, given, replace(case, answer=other))
    return found.claimed(sure=other.verdict.result is Result.FITS and not doubt.words)


def bytes_beyond(mistakes: tuple[tuple[Rule, FoundMistake], ...]) -> tuple[Moved, ...]:
    """Bytes of mistakes that come on top of the sheet."""
    return tuple(
        Moved(at=found.where, why=rule.id, low_bytes=0, high_bytes=found.saves_bytes)
        for rule, found in mistakes
        if rule.beyond and found.saves_bytes
    )


def refusal_doubt(mistakes: tuple[tuple[Rule, FoundMistake], ...], answer: Answer | None) -> Doubt:
    """Whether the program takes the files at all: the release that the sheet is of would not. What an engine
    refuses of a plan is told with what stands in for it.
    """
    may_stop = (found for rule, found in mistakes if found.may_stop and rule.id != ENGINE_REFUSES)
    told = [f"{found.where} {found.says}" for found in may_stop]
    if not told or answer is None or answer.verdict is None:
        return Doubt("")
    device = answer.verdict.device
    return Doubt("; ".join(told), int(device.low), int(device.high))


def unheard_doubt(mistakes: tuple[tuple[Rule, FoundMistake], ...], answer: Answer | None) -> Doubt:
    """What is meant by keys that their program ignores, each like one that moves the sheet: corrected, it may
    need any more. What does not fit as it stands does not.
    """
    told = [f"{found.where} {found.says} ({found.cure})" for _, found in mistakes if found.unheard]
    if not told or answer is None or answer.verdict is None:
        return Doubt("")
    return Doubt("; ".join(told), int(answer.verdict.device.low), no_most=True)


def host_memory_doubt(mistakes: tuple[tuple[Rule, FoundMistake], ...], answer: Answer | None) -> Doubt:
    """Whether a batch script asks for as much host memory as what is offloaded takes: less is enforced on
    some clusters alone.
    """
    short = next((found.where for rule, found in mistakes if rule.id in (HOST_MEMORY, POD_HOST_MEMORY)), "")
    if not short or answer is None or answer.verdict is None:
        return Doubt("")
    device = answer.verdict.device
    words = f"what lies on the host takes more host memory than {short} allows"
    return Doubt(words, int(device.low), int(device.high))


def _differing_model_sizes(read: FileReading, answer: Answer | None) -> Iterator[tuple[str, int]]:
    """Sizes of the model that a file says and that are not the sheet's."""
    if answer is None:
        return
    own = {"layers": answer.model.layers, "hidden": answer.model.hidden}
    for at, size in read.form.describes.items():
        if read.values.get(at) not in (None, own[size]):
            yield at, own[size]


def doubt_of(
    reads: Mapping[str, FileReading],
    answer: Answer | None,
    moved: tuple[Moved, ...],
    given: Mapping[str, Any],
    case: Case,
) -> Doubt:
    """Why the sheet's verdict does not hold for these files: what nobody accounts, or buckets that do not fit
    into what is free; with the most that a GPU needs where the files hold more than the sheet.
    """
    doubt = _reason_to_doubt(reads, answer, moved, given, case)
    if not doubt.words or answer is None or answer.verdict is None:
        return doubt
    most = int(answer.verdict.device.high) + sum(
        one.high_bytes for one in moved if one.high_bytes < EVERYTHING
    )
    unbounded = any(one.high_bytes >= EVERYTHING for one in moved)
    return replace(doubt, most_bytes=max(doubt.most_bytes, most), no_most=doubt.no_most or unbounded)


BY_ENGINE = "--engine says it (transformers: a whole copy on each GPU; fsdp2 or deepspeed: divided)"
OPEN_LAUNCHER = (
    "nothing says what starts its processes, and accelerate's own configuration may divide the states: "
    f"{BY_ENGINE}"
)
ACCELERATES_OWN = (
    "accelerate's own configuration, which is in the user's home and no file of the job, may divide the "
    f"states or offload them: {BY_ENGINE}"
)


def _open_launcher(reads: Mapping[str, FileReading], answer: Answer, given: Mapping[str, Any]) -> str:
    """What may divide or offload the states of a Trainer's job that does not fit whole on each GPU, where no
    file says what starts its processes on several, or accelerate does with a configuration that is the
    user's and no file of the job (accelerate 1.15.0 commands/launch.py, _validate_launch_command).
    """
    plan, verdict = answer.plan, answer.verdict
    if verdict is None or verdict.result is not Result.DOES_NOT_FIT or plan.zero:
        return ""
    if any(given.get(at) is not None for at in ("engine", "zero")) or plan.schedule is Schedule.NAIVE:
        return ""
    trainers = [read for read in reads.values() if read.form.name in TRAINERS]
    launchers = [
        read for read in reads.values() if read.form.name in LAUNCHED and read.form.name not in ASK_FOR_CARDS
    ]
    started = any(read.form.name in (*TRAINERS, LOOPS) for read in reads.values())
    said = any(read.values.get(at) for read in trainers for at in (*read.form.refers, "fsdp"))
    alone = any(read.values.get(f"{SCRIPT}.{ONE_PROCESS}") for read in trainers)
    if said or not started or any(map(wraps_by_itself, reads.values())):
        return ""
    if launchers:
        left = all(
            read.form.name == ACCELERATE and not ({"distributed_type", "config_file"} & read.values.keys())
            for read in launchers
        )
        return ACCELERATES_OWN if left else ""
    return OPEN_LAUNCHER if trainers and not alone and plan.mesh.dp_replicate > 1 else ""


def _other_family(reads: Mapping[str, FileReading], answer: Answer) -> str:
    """That a script loads the model with the class of another family than the model is of."""
    of, classes = answer.model, (read.values.get(f"{SCRIPT}.{FAMILY_CLASS}") for read in reads.values())
    found = next(
        (one for one in classes if isinstance(one, str) and not class_of_family(one, of.model_type)), ""
    )
    return (
        f"the script loads it with {found}, and {of.name} is of another family ({of.model_type})"
        if found
        else ""
    )


def _reason_to_doubt(
    reads: Mapping[str, FileReading],
    answer: Answer | None,
    moved: tuple[Moved, ...],
    given: Mapping[str, Any],
    case: Case,
) -> Doubt:
    if answer is None or answer.verdict is None:
        return Doubt("")
    fewer, unsure = _at_fewest(answer, case)
    least = int(fewer.verdict.device.low) if fewer.verdict else 0
    found = _left_open_by(reads, answer, given)
    doubt = _doubt_of_model(reads, answer, found, fewer, case) or _doubt_of_files(reads, answer, found, least)
    if doubt is None and found.named:
        doubt = _doubt_of_options(reads, answer, found, fewer)
    if doubt is None and answer.verdict.result is not Result.FITS and unsure:
        doubt = Doubt(DTYPE_UNKNOWN, least)
    return doubt or _doubt_of_moved_bytes(answer, moved, least) or Doubt("")


class _LeftOpen(NamedTuple):
    """What is open. ``named``: options that no sheet has, with what is told of each; ``asked``: their
    keys; ``elsewhere``: files that are not there and launchers that nobody names; ``words``: both in words;
    ``states``: whether any of it may move what the model takes at rest.
    """

    named: list[str]
    asked: list[str]
    elsewhere: tuple[str, ...]
    words: tuple[str, ...]
    states: bool


def _left_open_by(reads: Mapping[str, FileReading], answer: Answer, given: Mapping[str, Any]) -> _LeftOpen:
    assert answer.verdict is not None
    named = [
        tight_words(read, answer) or one if one.startswith(ACCOUNTING) else one
        for read in reads.values()
        for one in left_open(read, given, answer.verdict.result)
        if not (one.startswith(ACCOUNTING) and is_settled(read, answer))
    ]
    absent = [name for name in absent_files(reads) if not _is_known_whole(reads.get(name))]
    not_there = (
        f"{absent[0]} is named and is not among the files: name it on the command line, too" if absent else ""
    )
    elsewhere = tuple(filter(None, (not_there, _open_launcher(reads, answer, given))))
    asked = [one.partition(" ")[0] for one in named if not one.startswith((FURTHER, TRAININGS))]
    serves = not isinstance(answer.plan.workload, Training)
    moves = any(map(moves_weights_of_server, asked)) if serves else moves_states(asked)
    more = any(MORE in read.values for read in reads.values())
    words = (*elsewhere, *((_not_held(reads, named),) if named else ()))
    return _LeftOpen(named, asked, elsewhere, words, bool(elsewhere or more or moves))


def _doubt_of_files(
    reads: Mapping[str, FileReading], answer: Answer, found: _LeftOpen, least: int
) -> Doubt | None:
    """That files are of other machines, of a model of other sizes or another family, or not all there."""
    least, further = 0 if found.elsewhere else least, "".join(f"; {words}" for words in found.words)
    if apart := [*_other_nodes(reads, answer)]:
        return Doubt("; ".join(apart), least)
    other = [
        f"{at} {read.values[at]}, and the model has {own}"
        for read in reads.values()
        for at, own in _differing_model_sizes(read, answer)
    ]
    if other:
        return Doubt(f"the files are of another model: {'; '.join(other)}", least)
    if strange := _other_family(reads, answer):
        return Doubt(strange + further)
    fits = answer.verdict is not None and answer.verdict.result is Result.FITS
    if spreads_layers(reads, answer) and not fits:
        return Doubt(spread_words(answer) + further, 0 if further else even_share(answer))
    return Doubt("; ".join(found.words)) if found.elsewhere else None


def _doubt_of_model(
    reads: Mapping[str, FileReading], answer: Answer, found: _LeftOpen, fewer: Answer, case: Case
) -> Doubt | None:
    """That the sheet is of another model than the files name, or of another length than it was made for."""
    further = "".join(f"; {words}" for words in found.words)
    kept = least_of(fewer, found.asked) if fewer.verdict else 0
    stands_in = answer.model.name.endswith(BY_SIZE)
    if not stands_in and (
        stranger := another_model(served_model(reads), model_of(named_model(reads)), answer)
    ):
        stored = _least_as_stored(served_model(reads) or "", stranger, answer, case.ask)
        return Doubt(stranger + further, 0 if further else stored)
    served = likely_served(reads)
    fits = answer.verdict is not None and answer.verdict.result is Result.FITS
    likely = likely_trained(reads) or (served.name if served else None)
    if likely and not (fits and folder_words(reads)):
        words = f"{served_model(reads)} {TAKEN_FOR} {likely} by its name, and nothing of it was read"
        return Doubt(words + further, 0 if found.states else min(_least_resting(answer), kept))
    if not stands_in and (unsaid := unsaid_length(reads, answer) or unsaid_cache(reads, answer)):
        return Doubt(unsaid + further, 0 if found.states else min(resting_states(answer), kept))
    if (sized := sized_stand_in(reads)) is not None and answer.model.name == sized.spec.name:
        words = (
            f"nothing is known of {served_model(reads)} but the size in its name: the sheet is of "
            f"{sized.words}"
        )
        return Doubt(
            f"{words}: --model names another, or its config.json{further}",
            0 if found.states else int(_least_resting(answer) * sized.least_share),
        )
    return None


def _doubt_of_options(
    reads: Mapping[str, FileReading], answer: Answer, found: _LeftOpen, fewer: Answer
) -> Doubt:
    """Of options that no sheet has, where nothing else is open."""
    job, words = answer.plan.workload, _not_held(reads, found.named)
    of_one = not isinstance(job, Training) or int(job.microbatch) == 1
    if of_one and says_sequences_alone(reads.values(), found.named):
        prompts = all(NO_PROMPT in one for one in found.named)
        beyond = "" if prompts else "; the range is of one sequence, and more need more"
        least = int(fewer.verdict.device.low) if fewer.verdict else 0
        return Doubt(words + beyond, least, no_most=True)
    grows = names_peft_config(found.asked) or any(
        map(leaves_out_models, reads.values())
    )  # which may hold any more
    movable = movable_bytes(fewer, found.asked)
    return Doubt(words, least_of(fewer, found.asked), movable_bytes=movable, no_most=grows)


def _doubt_of_moved_bytes(answer: Answer, moved: tuple[Moved, ...], least: int) -> Doubt | None:
    """Of what the files hold beside the sheet, or keep elsewhere, where that decides."""
    verdict, room = answer.verdict, answer.cluster.device.framework_low_bytes if answer.cluster else 0
    assert verdict is not None
    more, less = sum(one.high_bytes for one in moved), sum(one.low_bytes for one in moved)
    denied = verdict.result is Result.DOES_NOT_FIT
    if more and not denied and int(verdict.device.high) + more > room:
        what = ", ".join(one.at for one in moved if one.high_bytes > 0)
        return Doubt(f"with {what} it may need more than a GPU has", least)
    if less and denied and int(verdict.device.low) + less <= room:
        what = ", ".join(one.at for one in moved if one.low_bytes < 0)
        return Doubt(f"with {what} it may fit", max(0, least + less))
    return None


def _is_known_whole(read: FileReading | None) -> bool:
    """Whether a file that lies nowhere is one that its project ships, and is read as it has it."""
    return read is not None and read.shipped and not read.guessed


FEWEST_BITS = 4
"""Of a weight in the formats that checkpoints for servers are stored in (exchange/verdict_doubts.py)."""


def _least_resting(answer: Answer) -> int:
    """The same of a model of which no file was read: a server takes its checkpoint as that is stored, and a
    folder's name need not say that it is in few bits.
    """
    plan, resting = answer.plan, resting_states(answer)
    if isinstance(plan.workload, Training) or plan.quantization is not None:
        return resting
    return resting * FEWEST_BITS // int(plan.precision.parameters.bits)


def _at_fewest(answer: Answer, case: Case) -> tuple[Answer, bool]:
    """The answer with weights of unknown dtype in sixteen bits, where the request takes them of a file;
    whether there are any.
    """
    changes = {
        key: held
        for read in case.reads.values()
        for key, held in in_sixteen_bits(read).items()
        if key in case.request
    }
    return (case.ask(changes) or answer, True) if changes else (answer, False)


def _other_nodes(reads: Mapping[str, FileReading], answer: Answer) -> Iterator[str]:
    """A server's command for another number of nodes than the cluster has."""
    for read in reads.values():
        said = read.values.get("--nnodes")
        if (
            read.request.get("task") == "infer"
            and answer.cluster
            and isinstance(said, int)
            and said != answer.cluster.nodes
        ):
            yield f"the command is for {said} nodes, and the cluster has {answer.cluster.nodes}"


def _least_as_stored(
    served: str, words: str, answer: Answer, ask: Callable[[Mapping[str, Any]], Answer | None]
) -> int:
    """The least of the sheet's model, in the format that the served one's name says if that is what the doubt
    is of.
    """
    form = stored_as(served)
    asked = ask({"quantization.weights": form}) if form and form in words else answer
    return int(asked.verdict.device.low) if asked and asked.verdict else 0


def _not_held(reads: Mapping[str, FileReading], named: list[str]) -> str:
    """What the sheet does not hold, in words: what the files say, and what the engine does where they say
    nothing.
    """
    alone = [
        one
        for one in named
        if any(one.startswith(f"{at} ") for read in reads.values() for at in engine_default_places(read))
    ]
    set_there = [one for one in named if one not in alone]
    said = f"{LEFT_OUT} {', '.join(set_there)}" if set_there else ""
    unsaid = f"{LEFT_OUT} what the tool does by default: {', '.join(alone)}" if alone else ""
    return "; ".join(filter(None, (said, unsaid)))
