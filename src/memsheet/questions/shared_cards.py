"""Servers of one file that take shares of the same card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memsheet.budget import Result, budget_of
from memsheet.exchange.mistakes import FoundMistake, Rule
from memsheet.exchange.mistakes.server_case import FLAGS
from memsheet.frozen import replace
from memsheet.report.shared.checked import Checked, Launch
from memsheet.report.shared.look import Look
from memsheet.sheet import Bytes, sum_byte_ranges

SHARES_ABOVE_CARD = Rule(
    id="shares-above-card",
    source=(
        "vLLM v0.10.2 v1/worker/gpu_worker.py, init_device: free memory on start-up less than the "
        "share of the whole card that is asked for"
    ),
    looks=lambda _: iter(()),
)
"""Told of servers together, none of which has the others' shares."""


IDLE_MEMORY = "idle-memory"
"""The rule of a share that leaves room on a card: not on one that others have the rest of."""


def with_shared_cards(launches: Sequence[Launch], cards: Mapping[str, tuple[str, ...]]) -> tuple[Launch, ...]:
    """Launches, of which those that share cards do not start where their shares of the whole card are more
    than it. ``cards``: the numbers of the cards that are named for each, by its name.
    """
    of_whole = {_format_of(one) for one in launches if _takes_of_whole(one)}
    groups: dict[tuple[str, ...], list[Launch]] = {}
    for one in launches:
        if one.file in cards and _share_of_card(one.checked) is not None and _format_of(one) in of_whole:
            groups.setdefault(cards[one.file], []).append(one)
    over = {
        one.file: (numbers, group)
        for numbers, group in groups.items()
        if sum(_share_of_card(one.checked) or 0 for one in group) > 1
        for one in group
    }
    told = tuple(_with_group(one, *over[one.file]) if one.file in over else one for one in launches)
    return tuple(_with_summed_needs(one, told, cards) for one in told)


def _with_summed_needs(
    one: Launch, launches: Sequence[Launch], cards: Mapping[str, tuple[str, ...]]
) -> Launch:
    """A launch with what its cards hold together with others that name one of them: no surer than their sum
    is of the card.
    """
    own = frozenset(cards.get(one.file, ()))
    group = [
        each
        for each in launches
        if own & frozenset(cards.get(each.file, ())) and _device_bytes(each) is not None
    ]
    answer = one.checked.answer if one.checked else None
    if (
        len(group) < 2
        or answer is None
        or answer.verdict is None
        or answer.cluster is None
        or one not in group
    ):
        return one
    assert one.checked is not None
    sizes = [size for each in group if (size := _device_bytes(each)) is not None]
    whole, budget = sum_byte_ranges(sizes), budget_of(answer.cluster)
    look = Look(digits=2)
    parts = " + ".join(look.need(size.value, look.digits) for size in sizes)
    names = ", ".join(each.file.rpartition(": ")[2] for each in group if each is not one)
    low, value, high = (look.need(end, look.digits) for end in (whole.low, whole.value, whole.high))
    words = (
        f"GPU {', '.join(sorted(own))} is shared with {names}: {parts} = {value} together "
        f"(range {low} to {high}) of {look.room(budget.low_bytes, look.digits)}"
    )
    result = answer.verdict.result
    if whole.low > budget.high_bytes:
        result = Result.DOES_NOT_FIT
    elif whole.high > budget.low_bytes and result is Result.FITS:
        result = Result.UNCERTAIN
    judged = replace(answer, verdict=replace(answer.verdict, result=result))
    doubt = "; ".join(filter(None, (words if result is Result.UNCERTAIN else "", one.checked.doubt)))
    mistakes = tuple(found for found in one.checked.mistakes if found[0].id != IDLE_MEMORY)
    return replace(
        one, checked=replace(one.checked, answer=judged, doubt=doubt, cards_words=words, mistakes=mistakes)
    )


def _device_bytes(one: Launch) -> Bytes | None:
    """What a server needs of a card; None where nothing was judged."""
    verdict = one.checked.answer.verdict if one.checked and one.checked.answer else None
    return verdict.device if verdict else None


def _share_of_card(checked: Checked | None) -> float | None:
    """The share of a card that a server asks for; None of one whose pool another flag sizes."""
    answer = checked.answer if checked else None
    budget = (answer.serving or {}).get("budget", {}) if answer else {}
    if answer is None or budget.get("pool_flag"):
        return None
    return float(answer.plan.cache.memory_fraction or 0) or None


def _format_of(one: Launch) -> str:
    """The format of a server's command, by which its share is one of the whole card or of what is free."""
    return next((read.form.name for read in one.checked.reads.values()), "") if one.checked else ""


def _takes_of_whole(one: Launch) -> bool:
    answer = one.checked.answer if one.checked else None
    return answer is not None and "requested_bytes" in (answer.serving or {}).get("budget", {})


def _with_group(one: Launch, numbers: tuple[str, ...], group: Sequence[Launch]) -> Launch:
    """A launch that asks for more of its cards than others leave."""
    if one.checked is None:
        return one
    shares = [(_share_of_card(each.checked) or 0, each.file.rpartition(": ")[2]) for each in group]
    told = " + ".join(f"{share:g} ({name})" for share, name in shares)
    name, read = next(iter(one.checked.reads.items()))
    flag = FLAGS.get(read.form.name, {}).get("fraction", "")
    found = FoundMistake(
        where=f"{name}: {flag}",
        says=(
            f"{told} of GPU {', '.join(numbers)} is more than the card: the last to start finds too little "
            "free"
        ),
        cure="shares that are less than 1 together, as each server's context stands beside its own",
        stops=True,
    )
    return replace(
        one, checked=replace(one.checked, mistakes=((SHARES_ABOVE_CARD, found), *one.checked.mistakes))
    )
