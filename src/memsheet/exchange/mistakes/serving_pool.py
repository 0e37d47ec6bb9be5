"""Mistakes of a server's command about the room of its cache: what the card has, what is left of it, and who
holds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import floor
from typing import Any

from memsheet.budget import Answer, Result
from memsheet.exchange.mistakes.case import Case, FoundMistake, answer_fits
from memsheet.exchange.mistakes.server_case import is_sized_pool, server_commands, server_pool_facts
from memsheet.exchange.shared.moved_states import moves_weights_of_server
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.layers import has_experts
from memsheet.plan.model import Attention, LatentAttention
from memsheet.sheet import Bytes, Component
from memsheet.units import format_bytes, format_count

DEFAULT_WORTH = 20
"""A default that nobody chose is told where the cure gives the cache at least one in so many bytes more, as
other cures are.
"""
FAR_ABOVE, STEP, ROUND, BITS = 4, 64, 1024, 16
"""Of sequences that may start beside those that have room; what lengths and counts of a cure are multiples
of.
"""


def cache_bytes(answer: Answer) -> int:
    """Of the fullest rank."""
    return max(int(sheet.of(Component.KV_CACHE).value) for sheet in answer.sheets)


def _cuda_context_bytes(answer: Answer) -> Bytes:
    return next((item.largest for item in answer.sheets[0].items if item.path == "cuda"), Bytes.exact(0))


def fraction_of_more_than_is_free(case: Case) -> Iterator[FoundMistake]:
    """The engine compares what it asks for with what is free once its own context is there."""
    told = server_pool_facts(case)
    for name, _, flags in (
        server_commands(case)
        if told and case.answer and engine_of(case.answer.plan).serving.checks_free_memory
        else ()
    ):
        assert told is not None
        answer = told[0]
        assert answer.cluster is not None
        total, context, asked = (
            answer.cluster.device.framework_bytes,
            _cuda_context_bytes(answer),
            float(answer.plan.cache.memory_fraction or 0),
        )
        if total * asked > total - context.value:
            most = floor(100 * (total - context.high) / total) / 100
            yield FoundMistake(
                where=f"{name}: {flags['fraction']}",
                cure=f"{flags['fraction']} {most:g}",
                changes={"serving.memory_fraction": most},
                says=(
                    f"{asked:g} of the card is {format_bytes(int(total * asked))}, and beside its own "
                    f"context {format_bytes(int(total - context.value), headroom=True)} are free"
                ),
                stops=total * asked > total - context.low,
            )


def fraction_leaves_too_little(case: Case) -> Iterator[FoundMistake]:
    """What lives besides the fraction (graphs, activations, communicators) does not fit into what it
    leaves. A fraction that the engine takes by itself is told of where that is expected, and not at the end
    of a range alone.
    """
    told = server_pool_facts(case)
    if told is None or answer_fits(case.answer) or is_sized_pool(told[1]):
        return
    answer, facts = told
    assert answer.cluster is not None
    room, need = (
        answer.cluster.device.framework_low_bytes,
        max(int(sheet.device.high) for sheet in answer.sheets),
    )
    asked = float(answer.plan.cache.memory_fraction or 0)
    expected = max(int(sheet.device.value) for sheet in answer.sheets)
    if case.request.get("serving.memory_fraction") is None and expected <= room:
        return
    less = floor(100 * (asked - (need - room) / answer.cluster.device.framework_bytes)) / 100
    if facts["short_bytes"].value > 0 or need <= room or not 0 < less < asked:
        return
    for name, _, flags in server_commands(case):
        yield FoundMistake(
            where=f"{name}: {flags['fraction']}",
            cure=f"{flags['fraction']} {less:g}",
            changes={"serving.memory_fraction": less},
            says=(
                f"with {asked:g} up to {format_bytes(need)} are used of "
                f"{format_bytes(room, headroom=True)}: graphs and libraries come on top of the fraction"
            ),
        )


def length_that_has_no_room(case: Case) -> Iterator[FoundMistake]:
    """One sequence of the longest length does not fit into the pool: vLLM refuses, SGLang ends requests
    early. Nothing is said where a flag takes weights off the card, which may leave the room.
    """
    told = server_pool_facts(case)
    left = (at for read in case.reads.values() for at, _ in read.unmodelled if at.startswith("--"))
    if told is None or any(map(moves_weights_of_server, left)):
        return
    answer, facts = told
    length, tokens, short = (
        int(answer.plan.serving.max_model_len or 0),
        int(facts.get("kv_tokens") or 0),
        facts["short_bytes"].value > 0,
    )
    if not (short or tokens < length):  # that it does not start is the verdict's to say
        return
    sure = facts["short_bytes"].low > 0 or (not short and int(facts.get("kv_tokens_high") or tokens) < length)
    held = int(facts.get("longest_that_fits") or 0) if short else _held_length(case, facts, length)
    for name, _, flags in server_commands(case):
        lacks = (
            (
                f"; {format_bytes(int(facts['short_bytes'].value))} a GPU are "
                f"{'missing' if sure else 'expected to be missing'}"
            )
            if short
            else ""
        )
        ways = [*([f"{flags['length']} {held}"] if held else []), *_room_making_flags(facts, flags)]
        yield FoundMistake(
            where=f"{name}: {flags['length']}",
            cure=", or ".join(ways) or _other_ways(facts),
            says=(
                f"the cache {'has' if sure else 'may have'} no room for one sequence of {length:,} "
                f"tokens{lacks}"
            ),
            changes={"serving.max_model_len": held} if held else {},
        )


def _other_ways(facts: Mapping[str, Any]) -> str:
    """Words for what is left where no length, cache or number of GPUs suffices alone."""
    tried = (*facts.get("makes_room", ()), facts.get("makes_room_together") or {})
    if any(one.get("result") == Result.FITS.value for one in tried):
        return "one of the changes that are listed above, which is sure to make room"
    return "a smaller model: no change that was tried is sure to make room"


def _room_making_flags(facts: Mapping[str, Any], flags: Mapping[str, str]) -> Iterator[str]:
    """Another cut, another cache and, where neither suffices, more GPUs: each accounted, and sure."""
    ways = [one["changes"] for one in facts.get("makes_room", ()) if one["result"] == Result.FITS.value]
    for changes in ways:
        if changes.get("mesh.dp_replicate"):
            yield f"{flags['tp']} {changes['mesh.tp']} with {flags['copies']} {changes['mesh.dp_replicate']}"
        if changes.get("serving.kv_dtype"):
            yield f"{flags['cache']} {changes['serving.kv_dtype']}"
        if changes.get("gpus") and all("gpus" in other for other in ways):
            yield f"{changes['gpus']}" + f" with {flags['tp']} {changes['mesh.tp']}" * ("mesh.tp" in changes)


def _held_length(case: Case, facts: Mapping[str, Any], length: int) -> int:
    """The longest that is sure to have room, as accounted; nothing where there is none."""
    room, each = facts["budget"].get("kv_cache"), int(facts.get("kv_bytes_per_token_per_rank") or 0)
    found = min(length, int(max(0, room.low) // each)) // ROUND * ROUND if room is not None and each else 0
    while found:
        shorter = case.ask({"serving.max_model_len": found})
        held = shorter.serving if shorter and answer_fits(shorter) else None
        if held and int(held.get("kv_tokens_low", held["kv_tokens"])) >= found:
            return found
        found = found // 2 // ROUND * ROUND
    return 0


def copied_cache(case: Case) -> Iterator[FoundMistake]:
    """Ranks that are more than heads keep copies; of a latent every rank does."""
    told = server_pool_facts(case)
    if told is None or case.model is None:
        return
    answer, facts = told
    mesh = answer.plan.mesh
    own, copies = int(mesh.attention_tp), _kv_cache_copies(case, int(mesh.attention_tp))
    if copies < 2:
        return
    said = (
        f"{own} ranks keep {copies} copies of the same cache, "
        f"{format_bytes(int(facts['kv_bytes_per_token_per_rank']))} a token on each"
    )
    for name, _, flags in server_commands(case):
        changes, cure = _without_copies(case, answer, copies, flags)
        if cure:
            yield FoundMistake(where=f"{name}: {flags['tp']}", says=said, cure=cure, changes=changes)


def _kv_cache_copies(case: Case, ranks: int) -> int:
    """How often the cache is kept, where every layer's is kept as often."""
    assert case.model is not None
    mixers = case.model.mixers()
    found = [
        ranks if isinstance(m, LatentAttention) else ranks // m.kv_heads
        for m in mixers
        if isinstance(m, Attention | LatentAttention)
    ]
    return min(found, default=1)


def _without_copies(
    case: Case, answer: Answer, copies: int, flags: Mapping[str, str]
) -> tuple[dict[str, Any], str]:
    """Groups of ranks with requests of their own, or replicas of fewer ranks, whichever holds the most;
    nothing where neither holds more.
    """
    mesh, replicas = answer.plan.mesh, engine_of(answer.plan).serving.replicas_share_experts
    groups, own = int(mesh.attn_dp) * copies, int(mesh.attention_tp) // copies
    rest = f" {flags['tp']} {own}" if replicas else ""
    shared = not replicas or (case.model is not None and has_experts(case.model))
    ways = (
        (
            {"mesh.tp": int(mesh.tp), "mesh.attn_dp": groups},
            f"data-parallel attention ({flags['groups']} {groups}{rest})",
        ),
        (
            {
                "mesh.tp": int(mesh.tp) // copies,
                "mesh.attn_dp": int(mesh.attn_dp),
                "mesh.dp_replicate": int(mesh.dp_replicate) * copies,
            },
            f"{copies} replicas with tp {int(mesh.tp) // copies}",
        ),
    )
    tried = [(words, changes, case.ask(changes)) for changes, words in (ways if shared else ways[1:])]
    found = [
        (_in_all(other), words, changes)
        for words, changes, other in tried
        if other is not None and other.verdict and other.verdict.result is not Result.DOES_NOT_FIT
    ]
    held, words, changes = max(found, key=lambda one: one[0], default=(0, "", {}))
    whole = _in_all(answer)
    return (
        (changes, f"{words}: room for {format_count(held)} tokens in all in place of {format_count(whole)}")
        if held > whole
        else ({}, "")
    )


def _in_all(answer: Answer) -> int:
    """Tokens that all groups and replicas hold."""
    mesh = answer.plan.mesh
    return int((answer.serving or {}).get("kv_tokens") or 0) * int(mesh.attn_dp * mesh.dp_replicate)


def more_than_the_pool_holds(case: Case) -> Iterator[FoundMistake]:
    """Far more sequences may start than have room, and vLLM's sampler is sized for all of them."""
    told = server_pool_facts(case)
    asked = case.request.get("serving.max_sequences")
    if told is None or not isinstance(asked, int):
        return
    answer, facts = told
    held = facts.get("capacity") or {}
    worst, limit = int(held.get("worst") or 0), int(held.get("limit") or 0)
    if not worst or limit < FAR_ABOVE * worst:
        return
    fewer = worst
    usual = _costs_as_usual(case, answer, asked, fewer) if fewer < asked else False
    groups = int(answer.plan.mesh.attn_dp) if engine_of(answer.plan).serving.limits_all_groups else 1
    if usual is False or fewer * groups >= asked:
        return
    each = int(facts.get("kv_tokens_low") or facts.get("kv_tokens") or 0) // limit // STEP * STEP
    shorter = f", or requests of up to {each:,} tokens, which all have room" if each else ""
    length = (
        "of the lengths asked about"
        if "expected" in held
        else f"of {int(answer.plan.serving.max_model_len or 0):,} tokens"
    )
    for name, _, flags in server_commands(case):
        yield FoundMistake(
            where=f"{name}: {flags['sequences']}",
            cure=f"{flags['sequences']} {fewer * groups}{shorter}",
            changes={"serving.max_sequences": fewer * groups},
            says=(
                f"up to {limit:,} start, and {worst:,} {length} have room: the others are preempted and "
                "computed again"
            )
            + " (the engine's own default; fewer leave its sampler less to keep room for)" * bool(usual),
        )


def _costs_as_usual(case: Case, answer: Answer, asked: int, fewer: int) -> bool | None:
    """None where a count is not the engine's own; else whether its own takes a part of the cache that is
    worth telling.
    """
    own = case.ask({"serving.max_sequences": None})
    if own is None or int(own.plan.serving.max_sequences or 0) != asked:
        return None
    cured = case.ask({"serving.max_sequences": fewer})
    return cured is not None and (cache_bytes(cured) - cache_bytes(answer)) * DEFAULT_WORTH > cache_bytes(
        answer
    )
