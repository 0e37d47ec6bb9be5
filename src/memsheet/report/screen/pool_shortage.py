"""A server whose pool has no room for one sequence, or perhaps none: how much is missing, what of it before
any cache, and what makes room.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.budget import Answer, Result, worst_sheet
from memsheet.plan.aliases import engine_word
from memsheet.report.screen.layout import join_phrases, wrap_command_line
from memsheet.report.shared.look import Look
from memsheet.report.shared.typed_changes import change_line
from memsheet.sheet import Bytes, Component
from memsheet.units import format_count

LENGTHS = dict.fromkeys(
    ("seq_len", "serving.max_model_len", "serving.prompt_tokens", "serving.output_tokens")
)
"""What says how long sequences are, which another length takes the place of."""
SEQUENCES, WEIGHTS = "serving.max_sequences", "quantization.weights"
MOST, WORTH = 5, 0.1
"""Changes that are shown, and the share of what is missing that one gives to be worth a line where it does
not suffice.
"""


def pool_lacks(answer: Answer, look: Look) -> str:
    """What a server lacks for one sequence, in the headline's words: the card may have room that the server
    may not take.
    """
    short = (answer.serving or {}).get("short_bytes")
    if short is None or short.high <= 0:
        return _sequences_short(answer)
    refused = answer.verdict is not None and answer.verdict.result is Result.DOES_NOT_FIT
    if refused and short.value <= 0 and (lack := _sequences_short(answer)):
        return lack
    tokens = _needed_sequence_tokens(answer)
    what = f" for one sequence of {tokens:,} tokens" if tokens > 1 else ""
    if _is_certain_shortage(answer, short):
        whose = "its pool" if _kv_pool_room_bytes(answer) >= 0 else "its fraction of the card"
        return f"{whose} lacks {look.need(int(short.value))}{what}"
    return f"its pool may lack up to {look.need(int(short.high))}{what}"


def request_end(answer: Answer) -> tuple[str, ...]:
    """Where requests end of a server that starts with less cache than a sequence of its longest needs: longer
    prompts are refused and answers are cut there (sgl-project/sglang v0.5.23 srt/managers/tp_worker.py
    max_req_len).
    """
    serving = answer.serving or {}
    short = serving.get("short_bytes")
    if short is None or short.low > 0 or "needs_tokens" not in serving["budget"]:
        return ()
    full = answer.plan.serving.max_model_len or 0
    low, value = (int(serving[key]) for key in ("kv_tokens_low", "kv_tokens"))
    if value < full and not value:
        return ("its pool is expected to have room for no request",)
    if value < full:
        return (f"requests end at {value:,} of {full:,} tokens, all its pool has",)
    return (f"requests may end at {low:,} of {full:,} tokens",) if low < full else ()


def _sequences_short(answer: Answer) -> str:
    """How many of the sequences that were asked for a server's pool holds, where those are fewer."""
    asked = (answer.serving or {}).get("asked")
    if not asked or asked["held_low"] >= asked["sequences"]:
        return ""
    least = f" (at least {format_count(asked['held_low'])})" if asked["held_low"] != asked["held"] else ""
    return (
        f"its pool holds {format_count(asked['held'])}{least} of the "
        f"{format_count(asked['sequences'])} sequences of {asked['tokens']:,} tokens"
    )


def pool_shortage_lines(answer: Answer, look: Look) -> Iterator[str]:
    """That a server starts without room for all that was asked for, and what would hold it."""
    asked = (answer.serving or {}).get("asked")
    if not asked or not _sequences_short(answer):
        return
    starts = "starts" if asked["starts"] == Result.FITS.value else "may start"
    runs = ("it runs as many sequences as its pool holds", "and computes the others later or again.")
    if request_end(answer) and not asked["held"]:
        runs = ("it refuses prompts that are longer than its pool", "and ends answers there.")
    limit = engine_word(SEQUENCES, answer.plan.engine)
    verdict = (f"The verdict is about all of them; of --{limit} it is about one.",) if limit else ()
    yield join_phrases(
        (f"{look.program or answer.plan.engine} {starts} all the same: {runs[0]}", runs[1], *verdict),
        look.width,
        between=" ",
    )
    ways = [change_line(one, look, answer.plan.task) for one in asked.get("holds_instead", ())]
    if ways:
        yield "What it is sure to hold, each alone:"
        yield from (wrap_command_line(line, look.width, indent=2) for line in ways)


def refused_lines(answer: Answer, look: Look) -> Iterator[str]:
    """Why the engine does not start, or may not, and what of its options would let it."""
    serving = answer.serving or {}
    short: Bytes = serving["short_bytes"]
    yield join_phrases(_shortage_reason_phrases(answer, short, look), look.width, between=" ")
    if not _is_certain_shortage(answer, short):
        phrases = (*_shortage_range_phrases(short, look), *_unsure_phrases(answer, short, look))
        yield join_phrases(phrases, look.width, between=" ")
        yield from _expected_start_words(serving, short, _needed_sequence_tokens(answer))
    yield from _pool_fix_lines(answer, short, look)


def _needed_sequence_tokens(answer: Answer) -> int:
    return int((answer.serving or {})["budget"].get("needs_tokens") or answer.plan.serving.max_model_len or 0)


def _kv_pool_room_bytes(answer: Answer) -> int:
    """Of the pool, negative where the fraction is spent before it."""
    return int((answer.serving or {})["budget"]["kv_cache"].value)


def _is_certain_shortage(answer: Answer, short: Bytes) -> bool:
    return bool(short.low > 0) or (
        answer.verdict is not None and answer.verdict.result is Result.DOES_NOT_FIT and short.value > 0
    )


def _shortage_reason_phrases(answer: Answer, short: Bytes, look: Look) -> Iterator[str]:
    plan, room, tokens = answer.plan, _kv_pool_room_bytes(answer), _needed_sequence_tokens(answer)
    program = look.program or plan.engine
    weights = max(int(sheet.of(Component.PARAMETERS).value) for sheet in answer.sheets)
    missing = look.need(max(0, int(short.value)))
    does = "refuses to start" if _is_certain_shortage(answer, short) else "may refuse to start"
    needs, fraction = look.need(int(short.value) + room), f"its fraction of {plan.cache.memory_fraction:g}"
    one = f"one sequence of {tokens:,} tokens needs {needs} of cache"
    if flag := (answer.serving or {})["budget"].get("pool_flag"):
        yield f"{program} {does}: {one}, and {flag} gives {look.room(room)}."
        return
    card = answer.cluster.device.framework_bytes if answer.cluster else 0
    if room >= 0 and tokens <= 1:
        yield f"{program} {does}: {fraction} leaves {look.room(room) if room else 'nothing'} for its cache."
        return
    if room >= 0:
        yield f"{program} {does}: {one},"
        yield f"and {fraction} leaves {look.room(room) if room else 'nothing'}."
        return
    if weights > card:
        yield (
            f"{program} {does}: the weights alone are {look.need(weights)}, more than the "
            f"{look.room(card)} that a GPU gives."
        )
    else:
        yield f"{program} {does}: before any cache it takes {look.need(-room)} more than {fraction},"
        yield f"{look.need(weights)} of that for weights."
    yield f"With that, {one}; {missing} are missing." if tokens > 1 else f"{missing} are missing."


def _shortage_range_phrases(short: Bytes, look: Look) -> Iterator[str]:
    best = f"{look.room(-int(short.low))} left" if short.low <= 0 else f"{look.need(int(short.low))} missing"
    middle = (
        f"{look.need(int(short.value))} missing"
        if short.value > 0
        else f"{look.room(-int(short.value))} left"
    )
    yield f"Expected: {middle};"
    yield f"at best {best}, at worst {look.need(int(short.high))} missing."


def _unsure_phrases(answer: Answer, short: Bytes, look: Look) -> Iterator[str]:
    """What is more than half of what is not known of the room for a cache."""
    spreads = {
        component: size
        for component in Component
        if component is not Component.KV_CACHE and (size := worst_sheet(answer.sheets).of(component)).high
    }
    widest = max(spreads, key=lambda one: int(spreads[one].high - spreads[one].low), default=None)
    if widest is None:
        return
    size = spreads[widest]
    if 2 * int(size.high - size.low) > int(short.high - short.low):
        what = widest.value.replace("_", " ")
        yield f"What is not known is {what}: {look.room(int(size.low))} to {look.need(int(size.high))}."


def _expected_start_words(serving: Mapping[str, Any], short: Bytes, tokens: int) -> Iterator[str]:
    """That no shorter sequence is needed for it to be expected to start, and how long one may be."""
    longest = serving.get("longest_expected") or 0
    if short.value <= 0:
        yield "As asked it is expected to start" + (
            f", and so it is up to --max-model-len {longest}." if longest > tokens else "."
        )


def _pool_fix_lines(answer: Answer, short: Bytes, look: Look) -> Iterator[str]:
    """Changes that were accounted again, those that suffice first; more GPUs only where no change of the same
    model on these suffices. Where nobody asked for sequences at once,
    fewer are said in the engine's word, which asks for none.
    """
    serving: Mapping[str, Any] = answer.serving or {}
    limit = engine_word(SEQUENCES, answer.plan.engine)
    words = {SEQUENCES: limit} if limit and "asked" not in serving else {}
    if "makes_room" not in serving:  # nobody asked for changes
        return
    worth = max(1, int(WORTH * short.value))
    told = [
        one
        for one in serving.get("makes_room", ())
        if one["frees_bytes"] >= worth or one["result"] == Result.FITS.value
    ][:MOST]
    together = serving.get("makes_room_together")
    sure = [one for one in told if one["result"] == Result.FITS.value and "gpus" not in one["changes"]]
    sure.sort(key=lambda one: bool(one["changes"].get(WEIGHTS)))  # the same weights before others
    rows = [(change_line(one["changes"], look, "infer", words), _pool_fix_effect(one, look)) for one in sure]
    rows += [
        (change_line(changes, look, "infer"), gives)
        for changes, gives in _shorter_sequence_fixes(serving, short)
    ]
    same_model = any(not one["changes"].get(WEIGHTS) for one in sure)
    rest = [
        (change_line(one["changes"], look, "infer", words), _pool_fix_effect(one, look))
        for one in told
        if one not in sure and not (same_model and "gpus" in one["changes"])
    ]
    if together:
        line = change_line(together["changes"], look, "infer", words)
        several = [(line, f"together {_pool_fix_effect(together, look)}")]
        rest = rest + several if "gpus" in together["changes"] else several + rest
    rows += rest
    if not rows:
        makes = "makes room" if short.value > 0 else "makes it sure to start"
        yield f"Nothing that was tried {makes}: no shorter sequence, no other format, no more GPUs."
        return
    yield "What makes room, each accounted again:"
    beside = (flags for flags, gives in rows if len(flags) + len(gives) + 4 <= look.width)
    wide = max(map(len, beside), default=0)
    for flags, gives in rows:
        line = f"  {flags:<{wide}}  {gives}"
        yield (
            line
            if len(line) <= look.width
            else f"{wrap_command_line(flags, look.width, indent=2)}\n      {gives}"
        )


def _shorter_sequence_fixes(
    serving: Mapping[str, Any], short: Bytes
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """A shorter sequence with which it starts: where what is asked is expected to, one with which it is
    expected to is no cure.
    """
    sure, expected = serving.get("longest_that_fits"), serving.get("longest_expected")
    if sure:
        more = (
            f"; up to {expected} is expected to" if expected and expected > sure and short.value > 0 else ""
        )
        yield (
            {**LENGTHS, "serving.max_model_len": sure},
            f"the longest with which it is sure to start{more}",
        )
    elif expected and short.value > 0:
        yield {**LENGTHS, "serving.max_model_len": expected}, "the longest that is expected to start"


def _pool_fix_effect(one: Mapping[str, Any], look: Look) -> str:
    lacks, frees = int(one["lacks_bytes"]), f"gives {look.room(int(one['frees_bytes']))} a GPU"
    if one["result"] == Result.FITS.value:
        return f"{frees}: starts with {look.room(-lacks)} to spare"
    if lacks <= 0:
        return f"{frees}: may start"
    return f"{frees}: {look.need(lacks)} are still missing"
