"""The part of the screen that a serving engineer reads: the cache, the engine's own start-up lines, who fits
and who has to wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from textwrap import wrap
from typing import Any

from memsheet.budget import Answer
from memsheet.plan.engine_registry import engine_of
from memsheet.report.screen.draft_words import drafting_lines
from memsheet.report.screen.layout import join_phrases
from memsheet.report.screen.token_words import token_factors, windowed_token_words
from memsheet.report.shared.look import Look
from memsheet.units import format_count


def serving_lines(answer: Answer, look: Look) -> Iterator[str]:
    """The facts of a server, for one replica; with data-parallel attention, for one of its groups."""
    serving, groups = answer.serving or {}, int(answer.plan.mesh.attn_dp)
    if groups > 1:
        own = int(answer.plan.mesh.attention_tp)
        who = f"{groups} GPUs" if own == 1 else f"{groups} groups of {own} GPUs"
        yield f"Attention is data-parallel: each of {who} has requests and a cache of its own."
        yield "What follows is of one of them, as is each rank's log:"
    if weights := serving.get("weights_by_dtype"):
        yield join_phrases(
            ("Weights of a GPU in other dtypes:", *_weight_size_phrases(weights, look)),
            look.width,
            between=" ",
        )
    if per_token := serving.get("kv_bytes_per_token"):
        yield from _token_cache_phrases(answer, int(per_token), look)
    if found := serving.get("speculative"):
        mesh = answer.plan.mesh
        whole = engine_of(answer.plan).serving.whole_drafts
        yield from drafting_lines(found, look, several=not whole and mesh.tp * mesh.pp > 1)
    if room := serving.get("lora"):
        yield from _adapter_room_phrases(answer, room, look)
    short = serving.get("short_bytes")
    if short is not None and short.value > 0:
        return
    if serving.get("start_up"):
        yield from _startup_log_lines(serving, look)
    if shared := serving.get("shared_prefix_bytes_per_rank"):
        yield (
            f"The {answer.plan.serving.shared_prefix_tokens:,} tokens that all prompts begin with are kept "
            f"once: {look.need(int(shared))} a GPU."
        )
    if answer.cluster is None and answer.plan.cache.memory_fraction is not None:
        return  # without a card there is no pool: what it would hold of all that may be started says nothing
    if fitting := serving.get("max_sequences"):
        rows = [f"{format_count(int(count))} of {int(length):,} tokens" for length, count in fitting.items()]
        yield join_phrases((_cache_room_name(serving), *rows), look.width, between="  ")
    if held := serving.get("capacity"):
        yield from _concurrency_phrases(held, serving, look)
    if mix := serving.get("lengths"):
        yield from _request_file_phrases(mix, look)


def _weight_size_phrases(weights: Mapping[str, int], look: Look) -> Iterator[str]:
    """Names and sizes, one after another."""
    *others, last = (f"{name} {look.need(size, 2)}" for name, size in weights.items())
    yield from (*(f"{words}," for words in others), f"{last}.")


def _token_cache_phrases(answer: Answer, per_token: int, look: Look) -> Iterator[str]:
    """A token's cache with its factors, and what all sequences take where they are told of."""
    plan = answer.plan
    factors = token_factors(answer.model, plan.cache.kv_dtype, per_token) if plan.cache.kv_dtype else ""
    said = f"A token takes {look.need(per_token, 2)} of cache in one replica{_rank_cache_share(answer, look)}"
    yield join_phrases((f"{said}:", f"{factors}.") if factors else (f"{said}.",), look.width, between=" ")
    whole = per_token * int(plan.serving.max_model_len or 0)
    if plan.cache.kv_dtype and int((answer.serving or {}).get("kv_bytes_per_sequence") or whole) < whole:
        yield from windowed_token_words(answer.model, plan.cache.kv_dtype, look)


def prompt_lines(answer: Answer, look: Look) -> Iterator[str]:
    """How long prompts may be where the verdict hangs on that."""
    serving = answer.serving or {}
    if "prompt_tokens_that_fit" not in serving:
        return
    together, many = serving["prompt_tokens_that_fit"], int(answer.plan.serving.max_sequences or 1)
    those = f"{many:,} prompts" if many > 1 else "a prompt"
    fits = (
        f"{those} of up to {together:,} tokens, read at once, fit"
        if together
        else f"no length of {those}, read at once, is sure to fit"
    )
    pieces = serving["in_pieces"]
    other = (
        f"{pieces} reads them in pieces and holds the same load: --engine {pieces}"
        if pieces
        else "read in pieces they take less"
    )
    yield join_phrases(
        (f"The verdict hangs on the prompts: {fits}", f"(--prompt-tokens); {other}."), look.width, between=" "
    )


def _rank_cache_share(answer: Answer, look: Look) -> str:
    """What a rank holds of it, where the model is cut over several."""
    serving, mesh = answer.serving or {}, answer.plan.mesh
    on_a_rank = serving.get("kv_bytes_per_token_per_rank")
    return (
        f", {look.need(int(on_a_rank), 2)} on a GPU" if on_a_rank and mesh.attention_tp * mesh.pp > 1 else ""
    )


def _adapter_room_phrases(answer: Answer, room: Mapping[str, Any], look: Look) -> Iterator[str]:
    """Room for adapters, which the cache has less of whether any is loaded or not."""
    slots, size, host = int(room["slots"]), int(room["room_bytes"].value), int(room["host_bytes"])
    a_token = int((answer.serving or {}).get("kv_bytes_per_token_per_rank") or 0)
    many = f"{slots} LoRA adapters" if slots > 1 else "one LoRA adapter"
    instead = f", as much as {format_count(size // a_token)} tokens of cache" if a_token else ""
    said = f"Room for {many} of rank {int(room['rank'])} takes {look.need(size)} a GPU{instead}"
    each = f"{look.need(size // slots)} each, " if slots > 1 else ""
    yield join_phrases(
        (f"{said}:", f"{each}whether loaded or not; copies on the host {look.need(host)} a rank."),
        look.width,
        between=" ",
    )
    if cut := room.get("fully_sharded_bytes"):
        yield join_phrases(
            (
                "Tensor parallelism cuts one matrix of each pair;",
                f"with --fully-sharded-loras both, which take {look.need(int(cut))}.",
            ),
            look.width,
            between=" ",
        )


def _cache_room_name(serving: Mapping[str, Any]) -> str:
    """What the sequences have room in: a pool of pages, or what weights leave; none where none is kept."""
    if serving.get("kv_bytes_per_sequence") == 0:
        return "Texts at once, of which it keeps nothing:"
    return (
        "Sequences that the pool holds:"
        if serving.get("pages")
        else "Sequences that have room beside the weights:"
    )


def _startup_log_lines(serving: Mapping[str, Any], look: Look) -> Iterator[str]:
    """The lines to compare with the log, and how far the tokens may be off."""
    read = f" (as read at {serving['read']})" if serving.get("read") else ""
    yield f"It should say when it starts{read}:"
    yield from _indent_wrapped_lines(serving["start_up"], look)
    low, high = int(serving.get("kv_tokens_low") or 0), int(serving.get("kv_tokens_high") or 0)
    pages = int(serving.get("pages") or 0)
    blocks = (
        f"{pages:,} blocks of {int(serving['page_tokens']):,} tokens"
        if pages and serving.get("page_tokens", 0) > 1
        else ""
    )
    spread = f"between {low:,} and {high:,} tokens" if low != high else ""
    if warning := serving.get("warning"):
        yield f"  But {warning}."
    yield from _indent_wrapped_lines(
        (
            part
            for part in ("; ".join(filter(None, (spread, blocks))), *_kv_cache_group_phrases(serving))
            if part
        ),
        look,
    )


def _indent_wrapped_lines(lines: Iterable[str], look: Look) -> Iterator[str]:
    for line in lines:
        yield from wrap(line, look.width, initial_indent="  ", subsequent_indent="    ")


def _kv_cache_group_phrases(serving: Mapping[str, Any]) -> Iterator[str]:
    """Groups of layers with blocks of their own, where there are several."""
    groups: list[str] = list(serving.get("groups") or ())
    if len(groups) > 1:
        counted = {group: groups.count(group) for group in groups}
        yield "layers in groups that share the pool: " + ", ".join(
            f"{times} × {group}" for group, times in counted.items()
        )
    if any("a window" in group for group in groups) and len(groups) > 1:
        yield (
            "its concurrency counts a window with what is in flight beside it, sequences below once "
            "they are read"
        )


def _concurrency_phrases(held: Mapping[str, Any], serving: Mapping[str, Any], look: Look) -> Iterator[str]:
    """Concurrency for the lengths that were asked about, what paging saves, and whether requests are computed
    again.
    """
    limit, worst = int(held["limit"]), int(held["worst"])
    replicas = int(held.get("replicas", 1))
    each = " a replica" if replicas > 1 else ""
    if "expected" in held:
        lengths = f"{int(held['prompt_tokens']):,} tokens in and {int(held['output_tokens']):,} out"
        told = (
            f"{format_count(int(held['expected']))} at once{each} while answers are half done, "
            f"{format_count(worst)} when all are"
        )
        yield join_phrases((f"With {lengths}:", told), look.width, between=" ")
    if waste := int(held.get("waste_per_sequence_bytes") or 0):
        full = int(serving.get("kv_bytes_per_sequence") or 0)
        share = f", {100 * waste / full:.2g}% of a full one" if full else ""
        yield join_phrases(
            (
                f"Paging leaves about {look.need(waste)} of a sequence's last blocks empty{share};",
                f"reserving max_model_len for each would hold {format_count(int(held['contiguous']))}.",
            ),
            look.width,
            between=" ",
        )
    yield join_phrases(_preemption_phrases(held, limit, worst), look.width, between=" ")


def _request_file_phrases(mix: Mapping[str, Any], look: Look) -> Iterator[str]:
    """Concurrency of a file of requests."""
    sizes = (
        f"half of them up to {mix['median_tokens']:,} tokens, 95% up to {mix['most_tokens']:,}, the "
        f"longest {mix['longest_tokens']:,}"
    )
    yield join_phrases(
        (
            f"Of the {mix['requests']:,} requests of the file ({sizes})",
            f"about {format_count(int(mix['expected']))} run at once;",
            f"if all were the longest, {format_count(int(mix['worst']))}.",
        ),
        look.width,
        between=" ",
    )


def _preemption_phrases(held: Mapping[str, Any], limit: int, worst: int) -> Iterator[str]:
    """What happens when more requests run than have room at their full length."""
    lengths = "at that length" if "expected" in held else "at max_model_len"
    if not held.get("preempts"):
        yield (
            f"It runs up to {format_count(limit)} sequences at once, and has room for all of them "
            f"{lengths}: none is ever preempted."
        )
        return
    yield f"It starts up to {format_count(limit)} sequences and has room for {format_count(worst)} {lengths}."
    yield "Beyond that some are preempted and computed again."
