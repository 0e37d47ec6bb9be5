"""One text, or several of one job → what it died of: the first message that failed decides, later ones are
its echo.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from memsheet.diagnose.candidates import Axes
from memsheet.diagnose.causes.growth import growth_of_steps
from memsheet.diagnose.cleaned import Log, cleaned_log
from memsheet.diagnose.contradictions import (
    contradictions_of,
    doubtful_process_words,
    judge_contradictions,
    without_doubtful_process,
)
from memsheet.diagnose.cures.choice import MOST, cures_of, without_growth
from memsheet.diagnose.cures.tables import FUSED_LOSS, RECOMPUTE
from memsheet.diagnose.cures.tensors import shared_term
from memsheet.diagnose.figures import Figures, figure_facts, own_process, read_figures
from memsheet.diagnose.frames import PROFILE, SERVING
from memsheet.diagnose.identities import product_of_text, tensor_of
from memsheet.diagnose.interval import Interval, size_words, sum_intervals
from memsheet.diagnose.log_messages import (
    SAME_FAILURE,
    SIGNS,
    context_facts,
    failing_messages,
    figures_behind,
    first_of_each_card,
    fullest_of_card,
    is_servers_own,
    stand_in,
    stand_in_behind,
    stands_in,
)
from memsheet.diagnose.message import NO, Cause, Cure, Judgement, Message, Term
from memsheet.diagnose.messages import (
    below_torch,
    colocated,
    echoes,
    host,
    memory_summary,
    nvidia_smi,
)
from memsheet.diagnose.messages.colocated import SHARE
from memsheet.diagnose.messages.holders import name_holders
from memsheet.diagnose.messages.stated import share_called
from memsheet.diagnose.printed import Printed
from memsheet.diagnose.rules import judge_figures
from memsheet.diagnose.signs import Signs, read_signs
from memsheet.frozen import dataclass, field, replace
from memsheet.units import MIB

if TYPE_CHECKING:
    from memsheet.budget import Answer
    from memsheet.diagnose.snapshot.findings import SnapshotFacts

WITHOUT_WORDS = ("driver", "bare")
"""Kinds of messages that say nothing but that memory ran out."""
FILLED = "what the process held is memory_summary()'s: the message does not say it"
GENERAL = (("recompute", RECOMPUTE), ("fused loss", FUSED_LOSS))
"""How accounted changes begin, and the same without a plan."""
HANDED_OVER = (
    Cause.WAKE_UP_RACE, Cause.OTHER_PROCESS, Cause.OUTSIDE_ALLOCATOR, Cause.ENGINE_OVERCOMMIT, Cause.ENGINE_UNDERPROVISION, Cause.UNKNOWN,
)  # fmt: skip
"""Where somebody else than the trainer's own allocator lacks what the trainer keeps without tensors."""
NONE_FOUND = "no memory error found"
FILLS_ITS_SHARE = (
    "a server takes its share of the card for its KV cache when it starts, {} here, whatever its model needs: a full card is no "
    "shortage; {} sets the share"
)  # fmt: skip
CAUGHT = (
    "{} failed and {} caught: the program went on, with a retry that succeeded or without what was refused, "
    "and nothing has to change"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a text comes to. ``cause``: UNKNOWN where nothing was found (``found`` is false) or where it is
    open between ``open_between``; ``facts``: sizes by the names of the document.
    """

    inputs: tuple[str, ...]
    found: bool
    cause: Cause
    because: str
    open_between: tuple[Cause, ...] = ()
    arithmetic: tuple[str, ...] = ()
    facts: Mapping[str, Interval] = field(default_factory=dict)
    term: Term | None = None
    missing: Interval | None = None
    cures: tuple[Cure, ...] = ()
    notes: tuple[str, ...] = ()
    program: str = ""
    contradictory: bool = False
    """Whether its figures cannot all be true, so that nothing was judged."""
    answer: Answer | None = None
    """The sheet of the plan that ran, where one was named."""
    printed: tuple[Printed, ...] = ()
    """Figures of the log beside the sheet's, where a plan was named."""
    held: SnapshotFacts | None = None
    """What a snapshot shows, where one was given: of the rank that died."""

    @property
    def undecided(self) -> bool:
        return self.found and self.cause is Cause.UNKNOWN


def diagnose_texts(texts: Mapping[str, bytes | str], known: Axes | None = None) -> Diagnosis:
    """What texts of one job, by their names, come to. ``known``: sizes of the plan, where there is one."""
    log = cleaned_log(texts.values(), SIGNS)
    log.card = known.card if known else None
    inputs, context = tuple(texts), context_facts(log)
    caught, messages = failing_messages(log)
    if not messages:
        return _without_message(inputs, log, context, caught)
    cards = [fullest_of_card(each, messages) for each in first_of_each_card(messages)]
    judged = [(first, _judged_message(first, messages, log, known or Axes())) for first in cards]
    first, found = min(judged, key=lambda pair: _severity(pair[1]))
    besides = [other for message, other in judged if message is not first and other.cause is not found.cause]
    return replace(
        found, inputs=inputs, facts={**context, **found.facts}, cures=name_holders(found.cures, log),
        notes=(*found.notes, *_other_card_notes(besides, first, judged), *_notes_beside(cards, messages, context, caught, found.cause, nvidia_smi.card_table(log))),
    )  # fmt: skip


def _severity(found: Diagnosis) -> int:
    """What has to be mended first where several cards failed: what no setting mends."""
    return 0 if found.cause is Cause.REAL_NEED else 2 if found.cause is Cause.UNKNOWN else 1


def _other_card_notes(
    others: Iterable[Diagnosis], first: Message, judged: Sequence[tuple[Message, Diagnosis]]
) -> Iterator[str]:
    """Cards that failed of something else."""
    named = {id(found): message.words["device"] for message, found in judged if message is not first}
    for found in others:
        cause = found.cause.value.replace("_", " ")
        yield f"card {named[id(found)]} failed of its own: {cause}: {found.because}"


def _judged_message(first: Message, messages: list[Message], log: Log, known: Axes) -> Diagnosis:
    """The first message's verdict; a server's own words behind it say more than its bytes."""
    told, first = first, figures_behind(first, messages) or first
    own = next(
        (each for each in messages if is_servers_own(each) and 0 <= each.line - told.line <= SAME_FAILURE),
        None,
    )
    signs = _signs_with_plan(read_signs(log, first.line), known)
    filled = memory_summary.with_summary(first, log) if first.judge is None else None
    figures = read_figures(filled or first) if first.judge is None else None
    if figures is not None:
        table = nvidia_smi.card_table(log) or _table_of_list(figures, nvidia_smi.listed_holders(log))
        figures = _with_processes_of_table(figures, table, first.words.get("device", ""))
    facts = figure_facts(figures) if figures else _named_facts(first)
    named = told if told is not first and stands_in(told) else stand_in_behind(first, messages)
    speaker = own or stand_in(first, messages) or first
    if speaker.judge is not None:
        judged = speaker.judge(speaker, log)
        if speaker.kind in WITHOUT_WORDS or len(judged.causes) > 1:
            judged = _grown(signs) or judged
        if judged.term is None and speaker is not own:
            judged = replace(judged, term=_term_of_judged(judged, speaker, figures, signs, known))
        if own is not None and own is not first:
            facts = {**facts, **_named_facts(own)}
        return _diagnosis_of(judged, {**facts, **judged.facts}, signs, judged.cures)
    if figures is None:
        judged = _grown(signs) or below_torch.judge_bare(first, log)
        return _diagnosis_of(judged, facts, signs, judged.cures)
    found = _judged_figures(figures, first, signs, known, facts)
    if named and found.cause in OF_SUMS:
        found = _told_by_server(found, named, log)
    return replace(found, notes=(*found.notes, FILLED)) if filled else found


def _term_of_judged(
    judged: Judgement, speaker: Message, figures: Figures | None, signs: Signs, known: Axes
) -> Term | None:
    """The tensor of a request whose message has its verdict in its own words; on the host, or where nothing
    of the model is as large, what numbers of the text come to.
    """
    asked = figures.asked if figures else speaker.facts.get("asked")
    if asked is None or (asked.low != asked.high and figures is None):
        return None
    trial = replace(signs, frame=signs.frame or PROFILE) if stands_in(speaker) else signs
    of_card = Cause.NOT_GPU_MEMORY not in judged.causes
    return (tensor_of(asked, trial, known) if of_card else None) or product_of_text(asked, signs.text)


def _grown(signs: Signs) -> Judgement | None:
    """What a message without figures died of where what is allocated only grew."""
    grown = growth_of_steps(signs)
    return replace(grown, cures=(without_growth(signs),)) if grown else None


OF_SUMS = (Cause.REAL_NEED, Cause.UNKNOWN, Cause.FRAGMENTATION)
"""Causes that bytes alone show, of which a server's own words behind them say more."""


def _told_by_server(found: Diagnosis, named: Message, log: Log) -> Diagnosis:
    """The same with the cause and the changes of the server's words, beside what certainly does not help."""
    assert named.judge is not None
    judged = named.judge(named, log)
    told = {cure.change for cure in judged.cures}
    useless = tuple(cure for cure in found.cures if cure.helps == NO and cure.change not in told)
    return replace(
        found, cause=judged.causes[0], because=judged.because, open_between=(), arithmetic=(found.because,),
        cures=(*judged.cures, *useless)[:4],
    )  # fmt: skip


def _signs_with_plan(signs: Signs, known: Axes) -> Signs:
    """What is on already by the text or by the plan beside it."""
    return replace(
        signs,
        recomputes=signs.recomputes or known.recomputes,
        eight_bits=signs.eight_bits or known.eight_bits,
        single_rows=signs.single_rows or known.single_rows,
    )


def _judged_figures(
    figures: Figures, message: Message, signs: Signs, known: Axes, facts: Mapping[str, Interval]
) -> Diagnosis:
    doubts = tuple(contradictions_of(message, figures))
    if doubts:
        return replace(
            _diagnosis_of(judge_contradictions(doubts), facts, signs, ()), contradictory=True, cures=()
        )
    trusted = without_doubtful_process(figures)
    notes = () if trusted is figures else (doubtful_process_words(figures),)
    figures = trusted
    if _captured_graphs(figures, signs):
        signs = replace(signs, phase="run")
    judged = judge_figures(figures, signs)
    term = tensor_of(figures.asked, signs, known) or _term_of_frame(signs)
    cause = judged.causes[0] if len(judged.causes) == 1 else Cause.UNKNOWN
    likely = (each for each in (Cause.ENGINE_OVERCOMMIT, Cause.REAL_NEED) if each in judged.causes)
    asked_of = next(likely, cause) if cause is Cause.UNKNOWN else cause
    cured = shared_term(term) or _term_of_frame(signs)
    cures = cures_of(asked_of, figures, signs, cured, message.words.get("who", "CUDA"))
    if not cures and Cause.OTHER_PROCESS in judged.causes:
        cures = (below_torch.LOOK,)
    return replace(_diagnosis_of(replace(judged, term=term), facts, signs, cures), notes=notes)


def _captured_graphs(figures: Figures, signs: Signs) -> bool:
    """Whether a server that says no phase has graphs, which it captures behind its cache: what is in private
    pools, but for a server that sleeps, whose weights are in one (vllm/device_allocator/cumem.py).
    """
    pooled = figures.private_pools is not None and figures.private_pools.low > 0
    return signs.task == SERVING and not signs.phase and pooled and not colocated.shares_a_card(signs.text)


def _table_of_list(figures: Figures, holders: tuple[nvidia_smi.Holder, ...]) -> nvidia_smi.Table | None:
    """A list of processes that says no card, as one of the card that the message is of, where that holds all
    of them.
    """
    whole, held = figures.capacity, sum_intervals(each.size for each in holders)
    if whole is None or not holders or held.low > whole.high or len({each.card for each in holders}) > 1:
        return None
    return nvidia_smi.Table(
        cards=((held, whole),), names={each.pid: each.name for each in holders},
        processes=tuple((0, each.pid, each.size) for each in holders),
    )  # fmt: skip


def _with_processes_of_table(figures: Figures, table: nvidia_smi.Table | None, device: str) -> Figures:
    """A message that names no other process, with those of an nvidia-smi table of the same card, of several
    alike the only one that has any, else the ``device`` of the message; where it says its own, those alone
    that what nobody is named for has room for.
    """
    if table is None or figures.others or figures.capacity is None or figures.reserved is None:
        return figures
    whole = figures.capacity.middle
    cards = [place for place, (_, total) in enumerate(table.cards) if abs(total.middle - whole) * 20 <= whole]
    if len(cards) > 1:
        held_cards = sorted({place for place, *_ in table.processes} & set(cards))
        cards = held_cards if len(held_cards) == 1 else [place for place in cards if str(place) == device]
    there = [(pid, size) for place, pid, size in table.processes if place in cards]
    if len(cards) != 1 or not there:
        return figures
    process, others = own_process(None, tuple(there), figures.reserved)
    if figures.process is None:
        return replace(figures, process=process, others=others, names=table.names)
    held = sum_intervals(size for _, size in others)
    if figures.unseen is None or held.low > figures.unseen.high:
        return figures
    return replace(figures, others=others, names=table.names, unseen=(figures.unseen - held).positive)


def _term_of_frame(signs: Signs) -> Term | None:
    frame = signs.frame
    return (
        Term(component=frame.component, path=frame.path, shape="", exact=False, words=frame.words)
        if frame
        else None
    )


def _diagnosis_of(
    judged: Judgement, facts: Mapping[str, Interval], signs: Signs, cures: tuple[Cure, ...]
) -> Diagnosis:
    decided = len(judged.causes) == 1
    if not judged.causes and not cures:
        cures = (below_torch.WHOLE_MESSAGE,)
    if not decided and Cause.OTHER_PROCESS in judged.causes and len(cures) < MOST and not _looks(cures):
        cures = (*cures, below_torch.LOOK)
    return Diagnosis(
        inputs=(), found=True, cause=judged.causes[0] if decided else Cause.UNKNOWN, because=judged.because,
        open_between=() if decided else judged.causes, arithmetic=judged.arithmetic, facts=facts, term=judged.term,
        missing=judged.missing, cures=cures[:4], program=signs.program,
    )  # fmt: skip


def _looks(cures: tuple[Cure, ...]) -> bool:
    return any("nvidia-smi" in cure.where for cure in cures)


def _named_facts(message: Message) -> dict[str, Interval]:
    return {f"{name}_bytes": size for name, size in message.facts.items()}


def _without_message(
    inputs: tuple[str, ...], log: Log, context: Mapping[str, Interval], caught: int
) -> Diagnosis:
    failed = memory_summary.failed_requests(log)
    nothing = Diagnosis(inputs=inputs, found=False, cause=Cause.UNKNOWN, because=NONE_FOUND, facts=context)
    if caught:
        return replace(
            nothing,
            notes=(CAUGHT.format(_request_words(caught), _was_or_were(caught)),),
        )
    if not failed and (echo := echoes.echo_words(log)):
        return replace(
            nothing, found=True, cause=Cause.FOLLOW_UP_ERROR, because=echo, cures=(echoes.FIRST_ERROR,)
        )
    deaths = tuple(words for sign, words in host.DEATHS if sign in log.squeezed)
    if deaths and not failed:
        return replace(nothing, notes=deaths)
    pool = context.get("kv_available_bytes") or context.get("kv_allocated_bytes")
    if pool is not None and not failed:
        option = f"--{(share_called(log.text) or SHARE).replace('_', '-')}"
        return replace(nothing, notes=(FILLS_ITS_SHARE.format(size_words(pool), option),))
    if failed:
        because = (
            f"a table counts {_request_words(failed)} that failed; what was asked for and what was free "
            f"then is not in it"
        )
        return replace(nothing, found=True, because=because, open_between=())
    return nothing


def _request_words(count: int) -> str:
    return "one request" if count == 1 else f"{count:,} requests"


def _was_or_were(count: int) -> str:
    return "was" if count == 1 else "were"


def _notes_beside(
    cards: list[Message],
    messages: list[Message],
    context: Mapping[str, Interval],
    caught: int,
    cause: Cause,
    table: nvidia_smi.Table | None,
) -> Iterator[str]:
    firsts = [each.line for each in cards]
    later = sum(
        each.line > min(firsts)
        and each.line not in firsts
        and not is_servers_own(each)
        and not stands_in(each)
        for each in messages
    )
    if later:
        yield (
            f"{later} later {'message is' if later == 1 else 'messages are'} taken as "
            f"{'its' if later == 1 else 'their'} echo: the first decides"
        )
    if caught:
        yield f"{_request_words(caught)} failed before and {_was_or_were(caught)} caught"
    left = context.get("left_after_graphs_bytes") or context.get("left_after_pool_bytes")
    if left is not None:
        yield f"the server left {size_words(left)} for everything beside weights and cache when it started"
    freed = context.get("sleep_freed_bytes")
    if freed is not None and freed.high < 8 * MIB:
        yield "a sleeping server freed nothing: expandable segments keep its memory from being taken back"
    kept = context.get("kept_before_bytes")
    if kept is not None and kept.low > 0 and cause in HANDED_OVER:
        yield (
            f"the trainer kept {size_words(kept)} without tensors in it before: torch.cuda.empty_cache() "
            f"gives that back"
        )
    if table is not None and (emptiest := nvidia_smi.emptiest_card(table)):
        place, free = emptiest
        yield f"card {place} of nvidia-smi's table has {size_words(free)} free, at its own time"
    if "card_used_bytes" in context:
        yield (
            f"nvidia-smi in the same text shows {size_words(context['card_used_bytes'])} of "
            f"{size_words(context['card_bytes'])} used, at its own time"
        )


def cured_first(found: Diagnosis, cures: Iterable[Cure]) -> Diagnosis:
    """The same with accounted changes in front, four at the most; advice that does not help stays."""
    extra = tuple(cures)
    useless = tuple(cure for cure in found.cures if cure.helps == "no")[:1]
    general = {each.change: each.where for each in found.cures}
    extra = tuple(replace(cure, where=cure.where or general.get(_general_change(cure), "")) for cure in extra)
    told = {_general_change(cure) for cure in extra}
    rest = tuple(cure for cure in found.cures if cure not in useless and cure.change not in told)
    extra = tuple(sorted((*extra, *rest), key=lambda cure: cure.helps != "yes"))
    return replace(found, cures=(*extra[: 4 - len(useless)], *useless))


def _general_change(accounted: Cure) -> str:
    """What an accounted change is called where no plan is known."""
    return next((words for begins, words in GENERAL if accounted.change.startswith(begins)), "")


def predicted_bytes(answer: Answer, component: str) -> int | None:
    """What the sheet of the plan that ran has of a component on its worst rank, at that sheet's peak; None
    where it has no such row.
    """
    worst = max(answer.sheets, key=lambda sheet: sheet.device.value)
    for known, size in worst.sums()[worst.peak_instant].items():
        if known.value == component:
            return int(size.value)
    return None
