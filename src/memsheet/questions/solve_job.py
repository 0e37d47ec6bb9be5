"""What may be largest of a job so that every phase fits: the share of the card that its server takes, the
tokens of a row, those of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from os import PathLike
from typing import Any, Unpack

from memsheet.budget import Answer, budget_of
from memsheet.errors import input_error
from memsheet.frozen import replace
from memsheet.jobs.document import read_job
from memsheet.jobs.limits import BATCH, ROWS, SHARE, JobLimit
from memsheet.jobs.shorter import tokens_at_once, with_rows_of, with_so_many_rows
from memsheet.plan.options import Document, TemplateOptions
from memsheet.questions.job import MACHINES, NOWHERE, answer_job, document_of
from memsheet.report.answer import public_answer

HUNDREDTHS = 100
"""Shares are looked at in hundredths: what people write."""


def solve_job(
    what: str,
    document: Document | str | PathLike[str],
    *,
    gpus: str | None = None,
    nodes: int | None = None,
    per_node: int | None = None,
    host_memory: str | None = None,
    cluster: Document | str | PathLike[str] | None = None,
    **options: Unpack[TemplateOptions],
) -> JobLimit:
    """The most of ``what`` with which every phase of a job of several models fits: the share of the card that
    its server takes ("gpu-memory-utilization"), tokens of a row ("row-tokens") or of a micro-batch
    ("micro-batch-tokens"). The rest as of ``memsheet.job``. Raises InputError with every problem.
    """
    where = dict(zip(MACHINES, (gpus, nodes, per_node, host_memory, cluster), strict=True))
    found = job_limit(what, document_of(document, {**where, **options}), where)
    beyond = public_answer(found.beyond) if found.beyond else None
    return replace(found, answer=public_answer(found.answer), beyond=beyond)


def job_limit(what: str, document: Mapping[str, Any], where: Mapping[str, Any] = NOWHERE) -> JobLimit:
    """The limit of a document of ``memsheet/job/1``. Raises InputError for what is no limit of a job, and as
    the searches do.
    """
    search = LIMITS.get(str(what).replace("_", "-"))
    if search is None:
        raise input_error(
            "what", what, "is nothing that is solved for of a job", f"one of {', '.join(LIMITS)}"
        )
    read_job(document)  # every problem of it, before anything is looked up in it
    return search(document, where)


def largest_share(document: Mapping[str, Any], where: Mapping[str, Any] = NOWHERE) -> JobLimit:
    """The largest share of the server of a job (``memsheet/job/1``), in hundredths, other roles as they are.

    What a card needs grows with the share, so the edge is found by halves; every step is a whole answer.
    Raises InputError where the job has no server, or several, or no cards are named.
    """
    servers = [role.name for role in read_job(document).roles if role.serves]
    if len(servers) != 1:
        reason = f"has {len(servers)} servers, and the share of one is solved for"
        raise input_error("job", None, reason, "a job with one role that serves")
    low, found, beyond = _largest_that_fits(
        lambda hundredths: answer_job(with_share(document, servers[0], hundredths / HUNDREDTHS), where),
        HUNDREDTHS,
    )
    share = low / HUNDREDTHS if low and _starts(found) else None
    return JobLimit(what=SHARE, largest=share, counted=None, answer=found, beyond=beyond)


def least_share_above(
    document: Mapping[str, Any], given: float, most: JobLimit, where: Mapping[str, Any] = NOWHERE
) -> tuple[float, Answer]:
    """The least share, in hundredths, with which a server starts that does not with ``given``, and the answer
    with it. ``most``: the largest with which every phase fits.
    """
    assert most.largest is not None
    server = next(role.name for role in read_job(document).roles if role.serves)
    low, high, found = int(given * HUNDREDTHS), round(most.largest * HUNDREDTHS), most.answer
    while high - low > 1:
        middle = (low + high) // 2
        answer = answer_job(with_share(document, server, middle / HUNDREDTHS), where)
        low, high, found = (low, middle, answer) if _starts(answer) else (middle, high, found)
    return high / HUNDREDTHS, found


PART = 64
"""Tokens of a row are looked at in parts of so many."""
MOST_TOKENS, MOST_ROWS = 2**20, 2**12


def longest_rows(document: Mapping[str, Any], where: Mapping[str, Any] = NOWHERE) -> JobLimit:
    """The longest rows of what trains, prompts and answers in the proportion that they have, with a server's
    longest sequence as much longer. Raises InputError where nothing trains, or no cards are named.
    """
    counted = _row_tokens(document)
    low, found, beyond = _largest_that_fits(
        lambda parts: answer_job(with_rows_of(document, parts * PART, counted), where), MOST_TOKENS // PART
    )
    return JobLimit(what=ROWS, largest=low * PART or None, counted=counted, answer=found, beyond=beyond)


def largest_micro_batch(document: Mapping[str, Any], where: Mapping[str, Any] = NOWHERE) -> JobLimit:
    """The most tokens of a micro-batch: rows as long as they are, and where they are packed into one, that
    one. Raises InputError as ``longest_rows`` does.
    """
    counted, row = tokens_at_once(document), _row_tokens(document)
    if counted <= row:
        return replace(longest_rows(document, where), what=BATCH)
    rows = counted // row
    low, found, beyond = _largest_that_fits(
        lambda count: answer_job(with_so_many_rows(document, count, rows), where), MOST_ROWS
    )
    return JobLimit(what=BATCH, largest=low * row or None, counted=counted, answer=found, beyond=beyond)


LIMITS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], JobLimit]] = {
    SHARE: largest_share, ROWS: longest_rows, BATCH: largest_micro_batch,
}  # fmt: skip
"""What is solved for of a job."""


def _row_tokens(document: Mapping[str, Any]) -> int:
    roles = read_job(document).roles
    found = [length for role in roles if role.trained and type(length := role.plan.get("seq_len")) is int]
    if not found:
        raise input_error("job", None, "trains nothing whose rows have a length", "a role with seq_len")
    return max(found)


def _largest_that_fits(ask: Callable[[int], Answer], most: int) -> tuple[int, Answer, Answer | None]:
    """The largest count with which every phase fits, nothing where one does not; the answer at it, or at one;
    and the answer of the next, where there is one. Every step is a whole answer.
    """
    known: dict[int, Answer] = {}

    def asked(count: int) -> Answer:
        if count not in known:
            known[count] = ask(count)
        return known[count]

    if asked(1).verdict is None:
        raise input_error("gpus", None, "is missing", "for example --gpus 8xH100-80GB")
    low, high = 0, 1
    while high <= most and _has_room(asked(high)):
        low, high = high, 2 * high
    high = min(high, most + 1)  # the one fits, the other does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _has_room(asked(middle)) else (low, middle)
    return low, asked(max(low, 1)), asked(high) if high <= most else None


def with_share(document: Mapping[str, Any], name: str, share: float) -> dict[str, Any]:
    """The document with a server's share in the place of its own."""
    changed = deepcopy(dict(document))
    plan = changed["roles"][name]["plan"]
    plan.pop("serving.memory_fraction", None)
    plan["serving"] = {**(plan.get("serving") or {}), "memory_fraction": share}
    return changed


def _has_room(answer: Answer) -> bool:
    """Whether every phase fits surely, whatever the server's pool holds."""
    verdict, cluster = answer.verdict, answer.cluster
    assert verdict is not None
    assert cluster is not None
    return verdict.device.high <= budget_of(cluster).low_bytes and not verdict.host_short_bytes


def _starts(answer: Answer) -> bool:
    from memsheet.budget import Result

    return answer.verdict is not None and answer.verdict.result is Result.FITS
