"""Servers of one file that take shares of the same card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memsheet.budget import Result, budget_of
from memsheet.exchange.mistakes import FoundMistake, Rule
from memsheet.exchange.mistakes.server_case import FLAGS
from memsheet.exchange.shared.named_server import NamedServer
from memsheet.frozen import replace
from memsheet.plan.engine_registry import engine_of
from memsheet.report.shared.checked import Checked, Launch
from memsheet.report.shared.look import Look
from memsheet.sheet import NOTHING, Bytes, sum_byte_ranges

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


def with_shared_cards(launches: Sequence[Launch], servers: Mapping[str, NamedServer]) -> tuple[Launch, ...]:
    """Launches, of which those that share cards are judged by their sum, and by what each finds free when it
    starts. ``servers``: those whose cards are named by their numbers, by the launch's name.
    """
    summed = tuple(_with_summed_needs(one, launches, servers) for one in launches)
    told = tuple(_with_room_at_start(one, launches, servers) for one in summed)
    return tuple(_with_unjudged(one, launches, servers) for one in told)


def _with_unjudged(one: Launch, launches: Sequence[Launch], servers: Mapping[str, NamedServer]) -> Launch:
    """A launch whose cards others have, too, of which there is no sheet: never sure to fit."""
    own, answer = servers.get(one.file), one.checked.answer if one.checked else None
    judged = {each.file for each in launches if _device_bytes(each)}
    left = [
        each.name
        for file, each in servers.items()
        if own is not None and file not in judged | {one.file} and {*own.cards} & {*each.cards}
    ]
    if not left or one.checked is None or answer is None or answer.verdict is None:
        return one
    shared = ", ".join(own.cards if own else ())
    return _less_sure(one, f"GPU {shared} is shared with {', '.join(left)}, of which there is no sheet")


def _less_sure(one: Launch, words: str) -> Launch:
    """A launch that is not sure to fit, for a reason that stands before the others."""
    assert one.checked is not None
    answer = one.checked.answer
    if answer is not None and answer.verdict is not None and answer.verdict.result is Result.FITS:
        answer = replace(answer, verdict=replace(answer.verdict, result=Result.UNCERTAIN))
    doubt = "; ".join(filter(None, (words, one.checked.doubt)))
    return replace(one, checked=replace(one.checked, answer=answer, doubt=doubt))


def _with_room_at_start(
    one: Launch, launches: Sequence[Launch], servers: Mapping[str, NamedServer]
) -> Launch:
    """A launch that asks for a share of its whole cards, beside what others hold of them when it starts: it
    stops where those that are up before it leave less for sure, and is not sure where those may leave less
    that wait for nobody.
    """
    answer, server = one.checked.answer if one.checked else None, servers.get(one.file)
    wanted = _wanted_bytes(one)
    if one.checked is None or answer is None or answer.cluster is None or server is None or not wanted:
        return one
    beside = [each for each in _on_same_cards(one, launches, servers) if each.file != one.file]
    up = [each for each in beside if servers[each.file].name in server.after]
    may = [each for each in beside if server.name not in servers[each.file].after]
    room = budget_of(answer.cluster)
    held = sum(_needed_bytes(each).low - _open_pool_bytes(each, up, servers) for each in up)
    if up and wanted > room.high_bytes - held:
        found = _too_little_free(one, server, [servers[each.file].name for each in up])
        return replace(
            one, checked=replace(one.checked, mistakes=((SHARES_ABOVE_CARD, found), *one.checked.mistakes))
        )
    if not may or wanted <= room.low_bytes - sum_byte_ranges(map(_needed_bytes, may)).high:
        return one
    look = Look(digits=2)
    names = ", ".join(servers[each.file].name for each in may)
    words = (
        f"{server.name} starts where {look.need(wanted, 2)} of GPU {', '.join(server.cards)} are free, its "
        f"share of {_share_of_card(one.checked):g}, and finds less where {names} may be up before it: a "
        "smaller share, or an order that the file says (depends_on with condition: service_healthy)"
    )
    return _less_sure(one, words)


def _on_same_cards(
    one: Launch, launches: Sequence[Launch], servers: Mapping[str, NamedServer]
) -> list[Launch]:
    """Those of the launches that were judged and that name one of a launch's cards, itself among them."""
    own = frozenset(servers[one.file].cards) if one.file in servers else frozenset()
    return [
        each
        for each in launches
        if each.file in servers and own & frozenset(servers[each.file].cards) and _device_bytes(each)
    ]


def _needed_bytes(one: Launch) -> Bytes:
    return _device_bytes(one) or NOTHING


def _wanted_bytes(one: Launch) -> int:
    """What a server wants free of a card before it loads; 0 where it asks for no share of the whole."""
    answer = one.checked.answer if one.checked else None
    share = _share_of_card(one.checked)
    if share is None or answer is None or answer.cluster is None:
        return 0
    if not engine_of(answer.plan).limits.wants_share_free:
        return 0
    return int(share * answer.cluster.device.framework_bytes)


def _with_summed_needs(one: Launch, launches: Sequence[Launch], servers: Mapping[str, NamedServer]) -> Launch:
    """A launch with what its cards hold together with others that name one of them: no surer than their sum
    is of the card. Servers that may start at once count each other's bytes as their own (vLLM v0.10.2
    utils/__init__.py, memory_profiling), so that pools which are too large together may come out smaller.
    """
    group = _on_same_cards(one, launches, servers)
    answer = one.checked.answer if one.checked else None
    if (
        len(group) < 2
        or answer is None
        or answer.verdict is None
        or answer.cluster is None
        or one not in group
    ):
        return one
    own = servers[one.file].cards
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
        least = sum(
            size.low - _open_pool_bytes(each, group, servers) for each, size in zip(group, sizes, strict=True)
        )
        result = Result.DOES_NOT_FIT if least > budget.high_bytes else Result.UNCERTAIN
    elif whole.high > budget.low_bytes and result is Result.FITS:
        result = Result.UNCERTAIN
    judged = replace(answer, verdict=replace(answer.verdict, result=result))
    doubt = "; ".join(filter(None, (words if whole.high > budget.low_bytes else "", one.checked.doubt)))
    mistakes = tuple(found for found in one.checked.mistakes if found[0].id != IDLE_MEMORY)
    return replace(
        one,
        checked=replace(
            one.checked, answer=judged, doubt=doubt, cards_words=words, beside_others=True, mistakes=mistakes
        ),
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


def _open_pool_bytes(one: Launch, group: Sequence[Launch], servers: Mapping[str, NamedServer]) -> int:
    """The pool of a server at its low end where another of its cards may start at the same time as it does;
    nothing where all wait for one another, or where its share is not of the whole card.
    """
    mine = servers[one.file]
    at_once = any(
        mine.name not in servers[each.file].after and servers[each.file].name not in mine.after
        for each in group
        if each.file != one.file
    )
    if not at_once or not _wanted_bytes(one):
        return 0
    assert one.checked is not None
    assert one.checked.answer is not None
    pool = (one.checked.answer.serving or {}).get("budget", {}).get("kv_cache", NOTHING)
    return int(pool.low)


def _too_little_free(one: Launch, server: NamedServer, up: Sequence[str]) -> FoundMistake:
    """What a server stops at that asks for more of its cards than those leave that are up before it."""
    assert one.checked is not None
    name, read = next(iter(one.checked.reads.items()))
    flag = FLAGS.get(read.form.name, {}).get("fraction", "")
    return FoundMistake(
        where=f"{name}: {flag}",
        says=(
            f"{_share_of_card(one.checked):g} of GPU {', '.join(server.cards)} is more than "
            f"{', '.join(up)} leaves free, which is up before {server.name} starts"
        ),
        cure="shares that are less than 1 together, as each server's context stands beside its own",
        stops=True,
    )
