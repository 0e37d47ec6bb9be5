"""The sheet of what the files of a job ask for together, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import lcm
from typing import Any

from memsheet.budget import Answer, worst_sheet
from memsheet.catalog import named_cards
from memsheet.errors import InputError, Problem
from memsheet.exchange.joined_files import join_files
from memsheet.exchange.shared.file_format import FileReading, Together
from memsheet.exchange.shared.stand_in_server import share_of_card, share_of_free
from memsheet.exchange.verdict_doubts import (
    AUTO_LENGTHS,
    Doubt,
    Left,
    beside_draft,
    both_doubts,
)
from memsheet.frozen import dataclass, replace
from memsheet.late import late_functions
from memsheet.patterns import late_pattern
from memsheet.plan.device import with_less_room
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Mesh, Schedule
from memsheet.plan.workload import Training
from memsheet.questions import accounted
from memsheet.questions.accounted import answer_for_model
from memsheet.questions.named_models import (
    model_of,
    strange_draft,
)
from memsheet.questions.probed_pools import KEY as BATCHED
from memsheet.questions.probed_pools import is_settled, probed_batch, settled_words
from memsheet.questions.question_parts import parse_question, read_named_model
from memsheet.questions.spread_layers import IDLE, is_balanced, process_words, spreads_layers
from memsheet.questions.stretched_positions import LENGTH
from memsheet.sheet import STATES, Instant
from memsheet.units import parse_bytes

with late_functions(__name__):
    from memsheet.questions.plainer_models import plainer_model, tower_state_bytes
    from memsheet.questions.sized_models import in_place_of_model
    from memsheet.questions.unread_drafts import room_for_draft
    from memsheet.questions.without_unmodelled import answer_without


BATCH, DRAFTING, SEQUENCES = "global_batch", "speculative.", "serving.max_sequences"


@dataclass(frozen=True, slots=True)
class AccountedJob:
    """The files of a job as one request, and the sheet of it or why there is none."""

    ask: Mapping[str, Any]
    whole: Together
    answer: Answer | None
    why_not: tuple[str, ...]
    unaccounted: Doubt
    too_few_cards: tuple[int, int] | None = None  # GPUs that are named, and the ranks that take one each
    refused: tuple[
        Problem, ...
    ] = ()  # what the engine stops at, too, of what keeps the sheet from being made


CURES = "cures"
"""In what is asked: look for what helps a job of several models."""
OF_ENGINE = late_pattern(r"engine = ")
WHOLE_COPIES: Mapping[str, Any] = {"zero": 0}
"""What trains a model that the engine which is taken for several GPUs does not, where nobody says one."""


def account_job(
    reads: Mapping[str, FileReading], whole: Together, ask: Mapping[str, Any], said: Mapping[str, Any]
) -> AccountedJob:
    """The files' request accounted, as far as it is modelled. ``ask``: what is asked beside it (model,
    machines, sequences); ``said``: what a plan and flags ask for, which is never left out.
    """
    if ask["model"] is None:
        return AccountedJob(ask, whole, None, (), Doubt(""))
    strange = strange_draft(reads, said)
    usual = _usual_with_draft(whole.request) if strange else {}
    drafted = whole.request
    if strange:
        alone = {at: held for at, held in whole.request.items() if not at.startswith(DRAFTING)}
        whole = replace(whole, request={**alone, **usual})
    answer, why_not, without = _answer_or_reasons(ask, whole.request, said)
    asked = whole.request
    said_there = {at: held for at, held in without.request.items() if at not in usual}
    whole = replace(whole, request=said_there, assumed=(*whole.assumed, *without.assumed))
    if answer is None and "engine" not in {**whole.request, **said} and any(map(OF_ENGINE.match, why_not)):
        copies = replace(
            whole,
            request={**whole.request, **WHOLE_COPIES},
            assumed=(f"a whole copy on each GPU, for {why_not[0].partition(';')[0]}", *whole.assumed),
        )
        found, reasons, _ = _answer_or_reasons(ask, copies.request, said)
        whole, answer, why_not = (copies, found, reasons) if found else (whole, answer, why_not)
    if answer is None and not ask["gpus"] and (ranks := _ranks_of_experts(whole.request)):
        counted = f"{', '.join(f'{at} = {held}' for at, held in ranks.items())}: the fewest that experts need"
        whole = replace(whole, request={**whole.request, **ranks}, assumed=(counted, *whole.assumed))
        answer, why_not, _ = _answer_or_reasons(ask, whole.request, said)
    if answer and not ask["gpus"] and (ranks := _data_parallel(answer, whole)):
        counted = f"{whole.gpus} GPUs, as many as the files start processes: --gpus names the card"
        whole = replace(whole, request={**whole.request, **ranks}, assumed=(counted, *whole.assumed))
        answer, why_not, _ = _answer_or_reasons(ask, whole.request, said)
    if answer and spreads_layers(reads, answer) and "schedule" not in said:
        whole, answer = _of_one_process(reads, whole, answer, ask, said)
    if answer and (share := _share_of_card(reads, answer, said)):
        whole = replace(whole, request={**whole.request, "serving.memory_fraction": share})
        answer, why_not, _ = _answer_or_reasons(ask, whole.request, said)
    if answer and BATCHED not in said and (tokens := probed_batch(reads, answer)):
        told = f"{BATCHED} = {tokens}: what the launcher takes of this model on {ask['gpus']}"
        whole = replace(whole, request={**whole.request, BATCHED: tokens}, assumed=(told, *whole.assumed))
        answer, why_not, _ = _answer_or_reasons(ask, whole.request, said)
    if answer and (length := _fitted_length(reads, answer)):
        fitted = f"{LENGTH} = {length}: the engine takes what fits of the model's, and is sure of as many"
        whole = replace(whole, request={**whole.request, LENGTH: length}, assumed=(fitted, *whole.assumed))
        answer, why_not, _ = _answer_or_reasons(ask, whole.request, said)
    if answer and any(is_settled(read, answer) for read in reads.values()):
        whole = replace(whole, assumed=(settled_words(answer), *whole.assumed))
    if held := room_for_draft(strange, answer, drafted.get("speculative.tokens")):
        whole, strange = replace(whole, assumed=(held, *whole.assumed)), ""
    more = beside_draft(strange, answer)
    refused = (
        _engine_refusals(ask, asked if answer else whole.request) if without.doubt.words or not answer else ()
    )
    return AccountedJob(ask, whole, answer, why_not, both_doubts(without.doubt, more), refused=refused)


def _of_one_process(
    reads: Mapping[str, FileReading],
    whole: Together,
    copies: Answer,
    ask: Mapping[str, Any],
    said: Mapping[str, Any],
) -> tuple[Together, Answer]:
    """The request of the one process that spreads the layers over all cards, and its sheet; that of a whole
    copy on each where the map or the model is not modelled.
    """
    if not is_balanced(reads):
        return whole, copies
    alone = join_files(reads, {}, said, 1)
    kept = {at: held for at, held in alone.request.items() if not at.startswith("mesh.")}
    request = {**kept, "schedule": Schedule.NAIVE.value}
    answer, _, _ = _answer_or_reasons(ask, request, said)
    if answer is None:
        return whole, copies
    idle = (words for words in whole.assumed if IDLE in words)
    return replace(alone, request=request, assumed=(*idle, process_words(answer), *alone.assumed)), answer


def _engine_refusals(ask: Mapping[str, Any], request: Mapping[str, Any]) -> tuple[Problem, ...]:
    """What the engine stops at of a request that no sheet can be made of."""
    try:
        _answer_from_request({**ask, "fix": False}, request)
    except InputError as error:
        return tuple(problem for problem in error.problems if problem.refused)
    return ()


def nodes_of_files(gpus: Any, where: Mapping[str, Any], reads: Mapping[str, FileReading]) -> dict[str, Any]:
    """The cluster's words with the GPUs of a node that files say, where they start as many processes as
    there are cards, and nobody else says how the cards are divided over nodes.
    """
    if where["nodes"] or where["per_node"] or where["cluster"] or not gpus:
        return dict(where)
    count = named_cards(str(gpus))[0]
    said = (read.request.get("@per_node") for read in reads.values() if read.request.get("@gpus") == count)
    each = next((held for held in said if isinstance(held, int)), None)
    return {**where, "per_node": each if each and count and each < count else None}


def account_on_own_cards(
    reads: Mapping[str, FileReading], job: AccountedJob, own: str, said: Mapping[str, Any]
) -> AccountedJob:
    """The job on as many cards as its files are for, where it has no sheet on those that are named;
    ``own``: those cards.
    """
    whole = join_files(reads, {}, said, named_cards(own)[0])
    again = account_job(reads, whole, {**job.ask, **nodes_of_files(own, job.ask, reads), "gpus": own}, said)
    if again.answer is None or again.whole.request.get(BATCH) != whole.request.get(BATCH):
        return job
    counted = named_cards(str(job.ask["gpus"]))[0]
    beside = f", and {job.ask['gpus']} cannot run it" if counted else ""
    told = f"gpus = {own}: as many as the files are for{beside}"
    return replace(again, whole=replace(again.whole, assumed=(told, *again.whole.assumed)))


def _share_of_card(reads: Mapping[str, FileReading], answer: Answer, said: Mapping[str, Any]) -> float | None:
    """The share of a card that its server takes, where files say one of what is free beside the weights."""
    free = next((share for read in reads.values() if (share := share_of_free(read.values))), None)
    budget = (answer.serving or {}).get("budget")
    if free is None or not budget or answer.cluster is None or "serving.memory_fraction" in said:
        return None
    total = answer.cluster.device.framework_bytes
    return round(share_of_card(free, total, budget["requested_bytes"], int(budget["kv_cache"].value)), 4)


def _fitted_length(reads: Mapping[str, FileReading], answer: Answer) -> int | None:
    """The longest sequence that is sure to have room, where the engine is to find it and the model's own has
    none; None elsewhere.
    """
    asked = any(read.values.get(at) == -1 for read in reads.values() for at in AUTO_LENGTHS)
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


def _ranks_of_experts(request: Mapping[str, Any]) -> dict[str, int]:
    """The least degree of data parallelism at which the experts' degrees divide the ranks of a stage, where
    no card is named that would be counted and files say none.
    """
    tp, cp, ep, etp = (request.get(f"mesh.{axis}") or 1 for axis in ("tp", "cp", "ep", "etp"))
    axis = "mesh.dp_shard" if request.get("zero") else "mesh.dp_replicate"
    if not all(type(degree) is int for degree in (tp, cp, ep, etp)) or request.get(axis) is not None:
        return {}
    least = lcm(tp * cp, ep * etp) // (tp * cp)
    return {axis: least} if ep > 1 and least > 1 and request.get("task") == "train" else {}


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
        ranks = request.get("mesh.ep")
        found = in_place_of_model(
            ask["model"], (*refused.problems, *last.problems), ranks if type(ranks) is int else 1
        )
    if found is None:
        return None
    sized, why = found
    dealt = {at: held for at, held in request.items() if at != "layers_per_stage"}  # the model's own
    try:
        left = _answer_of_plainer({**ask, "model": sized.spec}, dealt, said)
    except InputError:
        return None
    return left._replace(doubt=both_doubts(Doubt(f"the sheet is of {sized.words}: {why}"), left.doubt))


def _answer_of_plainer(ask: Mapping[str, Any], request: Mapping[str, Any], said: Mapping[str, Any]) -> Left:
    """The answer to what is accounted of the files' request, of the model or of a plainer one. Raises
    InputError where nothing stands in.
    """
    told: list[str] = []
    towers: list[ModelSpec] = []

    def answer_plainer(rest: Mapping[str, Any]) -> Answer:
        try:
            return _answer_from_request({**ask, "fix": False}, rest)
        except InputError as error:
            of_model = any(one.field in ("model", "model_type") for one in error.problems)
            spec = model_of(ask["model"]) if of_model else None
            plainer = plainer_model(spec, error.problems) if spec is not None else None
            if plainer is None:
                raise
            told.append(plainer[1])
            towers[:] = [spec] if spec is not None and not plainer[0].towers else []
            return _answer_from_request({**ask, "model": plainer[0], "fix": False}, rest)

    try:
        left = Left(request, answer_plainer(request))
    except InputError as error:
        left = answer_without(request, said, answer_plainer, error)
    plain = Doubt("".join(told[-1:]))
    verdict = left.answer.verdict if left.answer else None
    if (
        towers
        and towers[0].towers
        and left.answer
        and verdict
        and isinstance(left.answer.plan.workload, Training)
    ):
        least = int(worst_sheet(left.answer.sheets).of(*STATES, instant=Instant.LOAD).low)
        more = tower_state_bytes(towers[0], left.answer.plan)  # which come on top of the sheet's
        plain = replace(plain, least_bytes=least, most_bytes=int(verdict.device.high) + more)
    return left._replace(doubt=both_doubts(plain, left.doubt))


def answer_with_changes(
    ask: Mapping[str, Any], request: Mapping[str, Any], changes: Mapping[str, Any]
) -> Answer | None:
    """The answer to the plan with some keys changed, None where that is no plan."""
    if ask["model"] is None:
        return None
    try:
        return _answer_from_request({**ask, "fix": False}, {**request, **changes})
    except InputError:
        return None


def answer_in_host_memory(ask: Mapping[str, Any], request: Mapping[str, Any], size: int) -> Answer | None:
    """The answer where a node has so many bytes of host memory, or as few as are named."""
    if ask.get("cluster") is not None:
        return None
    named = ask.get("host_memory")
    least = size if named is None else min(size, parse_bytes(str(named), "host_memory"))
    try:
        return _answer_from_request({**ask, "host_memory": f"{least}B"}, request)
    except InputError:
        return None


def answer_with_less_room(ask: Mapping[str, Any], request: Mapping[str, Any], spare: int) -> Answer | None:
    """The answer, with changes, where ``spare`` bytes of each card are not there; None where nothing is named
    that has room, or not even that much.
    """
    task, named, options = _question_of_request({**ask, "fix": True}, request)
    try:
        model, parsed, cluster, _ = parse_question(task, named, options)
        if cluster is None or cluster.device.framework_low_bytes <= spare or model is None:
            return None
        spec = read_named_model(model, task, parsed.get("engine"))
        return answer_for_model(spec, parsed, with_less_room(cluster, spare))
    except InputError:
        return None


def assumed_length(answer: Answer | None) -> dict[str, int]:
    """The length that the sheet took of several where nobody said one: what a change frees is told at the
    same.
    """
    return (
        {"seq_len": int(answer.plan.training.seq_len)}
        if answer and answer.ladder and answer.plan.training.seq_len
        else {}
    )


def memoize_answers(
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
    task, named, options = _question_of_request(ask, request)
    return (accounted.infer if task == "infer" else accounted.train)(named, **options)


def _question_of_request(
    ask: Mapping[str, Any], request: Mapping[str, Any]
) -> tuple[str, Any, dict[str, Any]]:
    """The task, the model and the options of a request and what is asked beside it."""
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
    asked = {key: held for key, held in ask.items() if key not in ("model", CURES)}
    options = {**asked, "sequences": demanded, "plan": document}
    return "infer" if serves else "train", named, options
