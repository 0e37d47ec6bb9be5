"""What helps a job of several models of which a phase does not fit: each change accounted, and the largest
share that its server may have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.budget import Answer, Result
from memsheet.errors import InputError
from memsheet.exchange.mistakes import Case, FoundMistake, Rule
from memsheet.frozen import dataclass, replace
from memsheet.jobs.cures import (
    BATCH,
    PLAIN,
    ROWS,
    SHARE,
    TOKENS,
    Cure,
    job_cures,
    smaller_batches,
    smaller_passes,
)
from memsheet.jobs.document import fraction_of_plan
from memsheet.jobs.templates import (
    offload_places,
    offloaded_by,
    raises_to_fp32,
    rows_of_example,
    words_in_file,
    words_of_cures,
    words_of_pass,
)
from memsheet.jobs.templates.liger import fused_loss
from memsheet.jobs.templates.planned import Sizes
from memsheet.questions.job import answer_job
from memsheet.questions.job_of_files import JobOfFiles
from memsheet.questions.solve_job import largest_share, least_share_above
from memsheet.report.shared.jobs.phases import fullest_instant, highest_instant

MOST_TOGETHER = 4
OF_BATCHES = (BATCH, ROWS, TOKENS)
TOGETHER = "together"
WORTH_TELLING = 20
"""A change is told where it frees at least one in so many bytes of a card."""
SOURCES: Mapping[str, str] = {
    "sleep": "vLLM 010c211 device_allocator/cumem.py", "offload": "volcengine/verl b178a3cd5 workers/fsdp_workers.py:683, 721",
    "logits": "Wijmans et al. 2024, Cut Your Losses, section 1", "share": "vLLM 010c211 v1/worker/gpu_worker.py, determine_available_memory",
    "shard": "arXiv:1910.02054 (ZeRO), section 5.3", "batch": "Korthikanti et al. 2022, arXiv:2205.05198, section 4",
    **dict.fromkeys((ROWS, TOKENS), "volcengine/verl b178a3cd5 workers/actor/dp_actor.py:463-470"),
    TOGETHER: "the sum of changes that are told by themselves",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Helps:
    """A change and what a card needs with it. ``words``: what to write."""

    kind: str
    says: str
    words: str
    answer: Answer
    saves_bytes: int


def what_helps(
    answer: Answer, where: Mapping[str, Any], *, write: Callable[[str], str] = str, row_ranks: int = 1
) -> tuple[Helps, ...]:
    """Changes that free a part worth telling, or with which it fits, the most first; none of what fits.
    ``write``: a change's words as they are typed where the job is started; ``row_ranks``: that share a row.
    """
    if answer.job is None or answer.verdict is None or answer.verdict.result is Result.FITS:
        return ()
    alone = [*_accounted_cures(answer, where, row_ranks), *_smaller_share(answer, where)]
    found = sorted(alone, key=lambda one: (not _fits(one), -one.saves_bytes))
    together = () if any(map(_fits, found)) else tuple(_all_together(answer, where, write, row_ranks))
    return (*together, *(replace(one, words=write(one.words)) for one in found))


def _all_together(
    answer: Answer, where: Mapping[str, Any], write: Callable[[str], str], row_ranks: int
) -> Iterator[Helps]:
    """One change after another, each the best of those that are left, where they make it fit."""
    taken: list[Helps] = []
    now = answer
    for _ in range(MOST_TOGETHER):
        before = {one.words for one in taken}
        left = [one for one in _accounted_cures(now, where, row_ranks) if one.words not in before]
        if not left:
            return
        best = max(left, key=lambda one: (_fits(one), one.saves_bytes))
        taken, now = [*taken, best], best.answer
        if _fits(best):
            taken = _with_largest_batches(answer, where, row_ranks, taken)
            now = taken[-1].answer
            said = [write(one.words) for one in taken]
            words = (" " if all(one.startswith("--") for one in said) else ", ").join(said)
            frees = sum(one.saves_bytes for one in taken)
            yield Helps(kind=TOGETHER, says="all of them at once", words=words, answer=now, saves_bytes=frees)
            return


def _with_largest_batches(
    answer: Answer, where: Mapping[str, Any], row_ranks: int, taken: list[Helps]
) -> list[Helps]:
    """The same changes with those of batches last, where the largest are found that fit beside the others; as
    they were ``taken`` where that is none.
    """
    order = sorted(taken, key=lambda one: one.kind in OF_BATCHES)
    if [one.says for one in order] == [one.says for one in taken]:
        return taken
    now, again = answer, list[Helps]()
    for one in order:
        same = (found for found in _accounted_cures(now, where, row_ranks) if _is_like(found, one))
        best = max(same, key=lambda found: (_fits(found), found.saves_bytes), default=None)
        if best is None:
            return taken
        again, now = [*again, best], best.answer
    return again if _fits(again[-1]) else taken


def _is_like(one: Helps, other: Helps) -> bool:
    """Whether a change is of the same kind, and of the same phase where it is of one phase's batch alone."""
    return one.kind == other.kind and (one.kind not in (ROWS, TOKENS) or one.says == other.says)


def _fits(one: Helps) -> bool:
    return one.answer.verdict is not None and one.answer.verdict.result is Result.FITS


def _accounted_cures(answer: Answer, where: Mapping[str, Any], row_ranks: int) -> Iterator[Helps]:
    document: Mapping[str, Any] = answer.job or {}
    worst = max(answer.sheets, key=lambda sheet: sheet.device.value)
    before = int(worst.device.value)
    name = str(document.get("name"))
    words = {**PLAIN, **words_of_cures(name)}
    widest = max(answer.sheets, key=lambda sheet: sheet.device.high)
    phases = tuple(dict.fromkeys((fullest_instant(worst).phase, highest_instant(widest).phase)))
    for phase in phases:
        yield from _smaller_passes(document, phase, before, where, row_ranks)
    phase = phases[0]
    plan: Mapping[str, Any] = next(
        (one["plan"] for one in document["roles"].values() if one.get("trained", True)), {}
    )
    fused = fused_loss(name, plan, Sizes(vocab=answer.model.vocab, hidden=answer.model.hidden))
    moved, raised = offloaded_by(name), raises_to_fp32(name)
    ranks, rounds = int(answer.plan.mesh.data_parallel), int(answer.plan.accumulation)
    for cure in job_cures(document, phase, moved=moved, raised=raised, fused=fused, ranks=ranks):
        one = _accounted_cure(cure, words.get(cure.kind), before, where)
        if one is not None and (one.saves_bytes * WORTH_TELLING > before or _fits(one)):
            yield one
    smaller: Helps | None = None
    together = rows_of_example(name)
    batches = smaller_batches(document, phase, ranks=ranks, rounds=rounds, together=together)
    for cure in batches if words.get(BATCH) else ():
        smaller = _accounted_cure(cure, words.get(BATCH), before, where) or smaller
        if smaller is not None and _fits(smaller):
            break  # the largest that fits, else the smallest
    if smaller is not None and (smaller.saves_bytes * WORTH_TELLING > before or _fits(smaller)):
        yield smaller


def _smaller_passes(
    document: Mapping[str, Any], phase: str, before: int, where: Mapping[str, Any], row_ranks: int
) -> Iterator[Helps]:
    """Fewer rows or tokens of one phase's passes: the most with which it fits, else the fewest."""
    active = next((one.get("active") for one in document["phases"] if one["name"] == phase), None)
    said = words_of_pass(str(document.get("name")), phase, str(active))
    words = dict(zip((ROWS, TOKENS), said, strict=True))
    smaller: Helps | None = None
    for cure in smaller_passes(document, phase) if any(words.values()) else ():
        whole = replace(
            cure, numbers=(*cure.numbers, ("whole", row_ranks * int(dict(cure.numbers)["count"])))
        )
        smaller = _accounted_cure(whole, words[cure.kind], before, where) or smaller
        if smaller is not None and _fits(smaller):
            break
    if smaller is not None and (smaller.saves_bytes * WORTH_TELLING > before or _fits(smaller)):
        yield smaller


def _accounted_cure(cure: Cure, words: str | None, before: int, where: Mapping[str, Any]) -> Helps | None:
    """A change with what a card needs after it; None where it has no words, or is no job."""
    if not words:
        return None
    try:
        after = answer_job(cure.document, where)
    except InputError:
        return None
    frees = before - max(int(sheet.device.value) for sheet in after.sheets)
    role = cure.document["roles"].get(cure.role) or {}
    places = offload_places(cure.role, str((role.get("plan") or {}).get("engine")))
    said = words.format(**dict(cure.numbers), **places)
    return Helps(kind=cure.kind, says=cure.says, words=said, answer=after, saves_bytes=frees)


def _smaller_share(answer: Answer, where: Mapping[str, Any]) -> Iterator[Helps]:
    document: Mapping[str, Any] = answer.job or {}
    words = {**PLAIN, **words_of_cures(str(document.get("name")))}[SHARE]
    worst = max(answer.sheets, key=lambda sheet: sheet.device.value)
    before, phase = int(worst.device.value), fullest_instant(worst).phase
    try:
        found = largest_share(document, where)
    except InputError:
        return
    if found.largest is None:
        return
    given = max((fraction_of_plan(role["plan"]) or 0 for role in document["roles"].values()), default=0)
    share, after = found.largest, found.answer
    says = f"the server's share leaves {phase} too little"
    if share > given:
        share, after = least_share_above(document, given, found, where)
        says = "the server's pool is too small for one sequence of its longest"
    frees = before - max(int(sheet.device.value) for sheet in after.sheets)
    yield Helps(kind=SHARE, says=says, words=words.format(share=share), answer=after, saves_bytes=frees)


def mistakes_of_job(found: JobOfFiles, text: str) -> tuple[tuple[Rule, FoundMistake], ...]:
    """What helps, as findings about the file that starts the job, and is of that ``text``."""
    answer, own = found.answer, found.file.partition(":")[0]
    return tuple(
        (
            Rule(id=f"job-{one.kind}", source=SOURCES[one.kind], looks=_found_elsewhere),
            FoundMistake(
                where=f"{found.file}: {fullest_instant(answer.sheets[0]).phase}",
                says=one.says + (_fitting_words(found) if _fits(one) else ""),
                cure=one.words,
                saves_bytes=one.saves_bytes,
            ),
        )
        for one in what_helps(
            answer,
            found.where,
            write=lambda words: words_in_file(words, own, text),
            row_ranks=found.row_ranks,
        )
    )


def _fitting_words(found: JobOfFiles) -> str:
    """That a cure suffices, and what is to be said beside it where it would stay uncertain without."""
    words = ", and with the cure every phase that is counted fits"
    if not found.open_words:
        return words
    roles = (found.answer.job or {}).get("roles", {}).values()
    rows = max((int(role["plan"].get("seq_len") or 0) for role in roles), default=0)
    if rows and all("--seq-len says" in one for one in found.open_words):
        return f"{words}, with rows of up to {rows:,} tokens (--seq-len {rows} says so)"
    return f"{words}; what is told to be open stays so"


def _found_elsewhere(_: Case) -> Iterator[FoundMistake]:
    """These are found of the job, not of a case."""
    return iter(())
