"""Mistakes of a server's command: what it refuses at its start, what its pool cannot hold, what costs its
cache without need. Each cure is accounted; what it frees is the cache's, since a pool takes all that its
fraction leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import floor
from typing import Any

from memsheet.budget import Answer, Result
from memsheet.exchange.mistakes.case import Case, Found, Rule, answer_fits
from memsheet.exchange.shared.moved_states import moves_states
from memsheet.exchange.shared.serve_script import OTHERS
from memsheet.plan.hardware import BF16_UNITS, FP8_UNITS, eight_bit_cache, is_older_device
from memsheet.plan.model import Attention, LatentAttention, Moe
from memsheet.resolve.attention import has_experts
from memsheet.resolve.length import derived_max_length
from memsheet.sheet import Bytes, Component
from memsheet.units import format_bytes, format_count

FLAGS = {
    "vllm": {
        "fraction": "--gpu-memory-utilization", "length": "--max-model-len", "sequences": "--max-num-seqs", "batch": "--max-num-batched-tokens",
        "graphs": "--enforce-eager", "cache": "--kv-cache-dtype", "tp": "--tensor-parallel-size", "page": "--block-size",
    },
    "sglang": {
        "fraction": "--mem-fraction-static", "length": "--context-length", "sequences": "--max-running-requests", "batch": "--chunked-prefill-size",
        "graphs": "--disable-cuda-graph", "cache": "--kv-cache-dtype", "tp": "--tp-size", "page": "--page-size",
    },
}  # fmt: skip
DEFAULT_WORTH = 20
"""A default that nobody chose is told where the cure gives the cache at least one in so many bytes more, as
other cures are.
"""
FAR_ABOVE, STEP, USUAL_FRACTION, ROUND, BITS = 4, 64, 0.9, 1024, 16
"""Of sequences that may start beside those that have room; what lengths and counts of a cure are multiples
of; vLLM's fraction before 0.20.
"""


def _server_commands(case: Case) -> Iterator[tuple[str, Mapping[str, Any], dict[str, str]]]:
    """Commands: the file, its values, and what its engine calls the flags."""
    for name, read in case.of(*FLAGS):
        yield name, read.values, FLAGS[read.form.name]


def _server_pool_facts(case: Case) -> tuple[Answer, Mapping[str, Any]] | None:
    """The answer of a server with a pool on a card, and its facts."""
    answer = case.answer
    if answer is None or answer.cluster is None or not answer.serving or "short_bytes" not in answer.serving:
        return None
    return answer, answer.serving


def cache_bytes(answer: Answer) -> int:
    """Of the fullest rank."""
    return max(int(sheet.of(Component.KV_CACHE).value) for sheet in answer.sheets)


def _cuda_context_bytes(answer: Answer) -> Bytes:
    return next((item.largest for item in answer.sheets[0].items if item.path == "cuda"), Bytes.exact(0))


def _fraction_of_more_than_is_free(case: Case) -> Iterator[Found]:
    """The engine compares what it asks for with what is free once its own context is there."""
    told = _server_pool_facts(case)
    for name, _, flags in (
        _server_commands(case) if told and case.answer and case.answer.plan.engine == "vllm" else ()
    ):
        assert told is not None
        answer = told[0]
        assert answer.cluster is not None
        total, context, asked = (
            answer.cluster.device.framework_bytes,
            _cuda_context_bytes(answer),
            float(answer.plan.memory_fraction or 0),
        )
        if total * asked > total - context.value:
            most = floor(100 * (total - context.high) / total) / 100
            yield Found(
                where=f"{name}: {flags['fraction']}",
                cure=f"{flags['fraction']} {most:g}",
                changes={"serving.memory_fraction": most},
                says=(
                    f"{asked:g} of the card is {format_bytes(int(total * asked))}, and beside its own "
                    f"context {format_bytes(int(total - context.value), headroom=True)} are free"
                ),
                stops=total * asked > total - context.low,
            )


def _fraction_leaves_too_little(case: Case) -> Iterator[Found]:
    """What lives besides the fraction (graphs, activations, communicators) does not fit into what it
    leaves.
    """
    told = _server_pool_facts(case)
    if told is None or answer_fits(case.answer):
        return
    answer, facts = told
    assert answer.cluster is not None
    room, need = (
        answer.cluster.device.framework_low_bytes,
        max(int(sheet.device.high) for sheet in answer.sheets),
    )
    asked = float(answer.plan.memory_fraction or 0)
    less = floor(100 * (asked - (need - room) / answer.cluster.device.framework_bytes)) / 100
    if facts["short_bytes"].value > 0 or need <= room or not 0 < less < asked:
        return
    for name, _, flags in _server_commands(case):
        yield Found(
            where=f"{name}: {flags['fraction']}",
            cure=f"{flags['fraction']} {less:g}",
            changes={"serving.memory_fraction": less},
            says=(
                f"with {asked:g} up to {format_bytes(need)} are used of "
                f"{format_bytes(room, headroom=True)}: graphs and libraries come on top of the fraction"
            ),
        )


def _length_that_has_no_room(case: Case) -> Iterator[Found]:
    """One sequence of the longest length does not fit into the pool: vLLM refuses, SGLang ends requests
    early. Nothing is said where a flag takes weights off the card, which may leave the room.
    """
    told = _server_pool_facts(case)
    if told is None or moves_states(
        at for read in case.reads.values() for at, _ in read.unmodelled if at.startswith("--")
    ):
        return
    answer, facts = told
    length, tokens, short = (
        int(answer.plan.max_model_len or 0),
        int(facts.get("kv_tokens") or 0),
        facts["short_bytes"].value > 0,
    )
    if not (short or tokens < length):  # that it does not start is the verdict's to say
        return
    sure = facts["short_bytes"].low > 0 or (not short and int(facts.get("kv_tokens_high") or tokens) < length)
    held = int(facts.get("longest_that_fits") or 0) if short else _held_length(case, facts, length)
    for name, _, flags in _server_commands(case):
        lacks = (
            (
                f"; {format_bytes(int(facts['short_bytes'].value))} a GPU are "
                f"{'missing' if sure else 'expected to be missing'}"
            )
            if short
            else ""
        )
        ways = [*([f"{flags['length']} {held}"] if held else []), *_room_making_flags(facts, flags)]
        yield Found(
            where=f"{name}: {flags['length']}",
            cure=", or ".join(ways) or "a smaller model: nothing that was tried is sure to make room",
            says=(
                f"the cache {'has' if sure else 'may have'} no room for one sequence of {length:,} "
                f"tokens{lacks}"
            ),
            changes={"serving.max_model_len": held} if held else {},
        )


def _room_making_flags(facts: Mapping[str, Any], flags: Mapping[str, str]) -> Iterator[str]:
    """Another cache and more GPUs, where they were accounted and suffice for sure."""
    for one in facts.get("makes_room", ()):
        changes, sure = one["changes"], one["result"] == Result.FITS.value
        if sure and changes.get("serving.kv_dtype"):
            yield f"{flags['cache']} {changes['serving.kv_dtype']}"
        if sure and changes.get("gpus"):
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


def _beyond_the_model(case: Case) -> Iterator[Found]:
    most, length = derived_max_length(case.model), case.request.get("serving.max_model_len")
    if most and isinstance(length, int) and length > most:
        for name, _, flags in _server_commands(case):
            yield Found(
                where=f"{name}: {flags['length']}",
                says=(
                    f"{length:,} tokens, and {case.model.name if case.model else ''} was made for "
                    f"{most:,}: it stops unless it is told to go beyond"
                ),
                cure=f"{flags['length']} {most}",
                changes={"serving.max_model_len": most},
                stops=True,
            )


def _copied_cache(case: Case) -> Iterator[Found]:
    """Ranks that are more than heads keep copies; of a latent every rank does."""
    told = _server_pool_facts(case)
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
    changes, cure = _without_copies(case, answer, copies)
    for name, _, flags in _server_commands(case) if cure else ():
        yield Found(where=f"{name}: {flags['tp']}", says=said, cure=cure, changes=changes)


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


def _without_copies(case: Case, answer: Answer, copies: int) -> tuple[dict[str, Any], str]:
    """Groups of ranks with requests of their own, or replicas of fewer ranks, whichever holds the most;
    nothing where neither holds more.
    """
    mesh, sglang = answer.plan.mesh, answer.plan.engine == "sglang"
    groups, own = int(mesh.attn_dp) * copies, int(mesh.attention_tp) // copies
    rest = "" if sglang else f" --tensor-parallel-size {own}"
    shared = sglang or (case.model is not None and has_experts(case.model))
    ways = (
        (
            {"mesh.tp": int(mesh.tp), "mesh.attn_dp": groups},
            (
                f"data-parallel attention ({'--attn-dp-size' if sglang else '--data-parallel-size'} "
                f"{groups}{rest})"
            ),
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


def _more_than_the_pool_holds(case: Case) -> Iterator[Found]:
    """Far more sequences may start than have room, and vLLM's sampler is sized for all of them."""
    told = _server_pool_facts(case)
    asked = case.request.get("serving.max_sequences")
    if told is None or not isinstance(asked, int):
        return
    answer, facts = told
    held = facts.get("capacity") or {}
    worst, limit = int(held.get("worst") or 0), int(held.get("limit") or 0)
    if not worst or limit < FAR_ABOVE * worst:
        return
    fewer = max(1, -(-FAR_ABOVE * worst // STEP) * STEP // 2)
    usual = _costs_as_usual(case, answer, asked, fewer) if fewer < asked else False
    if usual is False:
        return
    length = (
        "of the lengths asked about"
        if "expected" in held
        else f"of {int(answer.plan.max_model_len or 0):,} tokens"
    )
    groups = int(answer.plan.mesh.attn_dp) if answer.plan.engine == "sglang" else 1
    for name, _, flags in _server_commands(case):
        yield Found(
            where=f"{name}: {flags['sequences']}",
            cure=f"{flags['sequences']} {fewer * groups}, or shorter requests",
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
    if own is None or int(own.plan.max_sequences or 0) != asked:
        return None
    cured = case.ask({"serving.max_sequences": fewer})
    return cured is not None and (cache_bytes(cured) - cache_bytes(answer)) * DEFAULT_WORTH > cache_bytes(
        answer
    )


def _disabled_cuda_graphs(case: Case) -> Iterator[Found]:
    if case.request.get("serving.cuda_graphs") is False and answer_fits(
        case.ask({"serving.cuda_graphs": True})
    ):
        for name, _, flags in _server_commands(case):
            yield Found(
                where=f"{name}: {flags['graphs']}",
                says="the host starts every kernel of every token, and graphs have room",
                cure="leave it out",
                changes={"serving.cuda_graphs": True},
            )


def _is_older_gpu(answer: Answer | None, units: tuple[int, int]) -> bool:
    """Whether the cards are known to be older."""
    return answer is not None and answer.cluster is not None and is_older_device(answer.cluster.device, units)


def _eight_bits_without_units(case: Case) -> Iterator[Found]:
    if case.answer is None or case.answer.cluster is None or not _is_older_gpu(case.answer, FP8_UNITS):
        return
    card = case.answer.cluster.device.name
    for name, values, flags in _server_commands(case):
        if says := eight_bit_cache(case.answer.plan, case.answer.cluster.device, case.model):
            yield Found(
                where=f"{name}: {flags['cache']}",
                says=says,
                cure="a card from Ada and Hopper on, or leave it out: a token then takes twice the bytes",
            )
        if values.get("--quantization") in ("fp8", "fp8_per_tensor"):
            yield Found(
                where=f"{name}: --quantization",
                says=(
                    f"{card} multiplies no fp8: weights take half the room and are unpacked for every product"
                ),
                cure="a checkpoint in awq or gptq takes a quarter, or leave it out where there is room",
            )


def _batch_below_length(case: Case) -> Iterator[Found]:
    told = case.answer.plan if case.answer else None
    for name, values in case.values("vllm"):
        whole = values.get("--enable-chunked-prefill") is False
        length = case.request.get("serving.max_model_len") or (told.max_model_len if told else None)
        batch = case.request.get("serving.max_batched_tokens") or (told.max_batched_tokens if told else None)
        if whole and isinstance(length, int) and isinstance(batch, int) and batch < length:
            yield Found(
                where=f"{name}: --max-num-batched-tokens",
                says=f"{batch:,}, and prompts of up to {length:,} tokens are read whole without chunks",
                cure=f"leave --no-enable-chunked-prefill out, or --max-num-batched-tokens {length}",
                stops=True,
            )


def _batch_below_sequences(case: Case) -> Iterator[Found]:
    for name, _ in case.values("vllm"):
        batch, sequences = (
            case.request.get(f"serving.{key}") for key in ("max_batched_tokens", "max_sequences")
        )
        if isinstance(batch, int) and isinstance(sequences, int) and batch < sequences:
            yield Found(
                where=f"{name}: --max-num-batched-tokens",
                says=f"{batch:,} tokens for {sequences:,} sequences, each of which makes one",
                cure=f"--max-num-batched-tokens {max(2048, sequences)}",
                changes={"serving.max_batched_tokens": max(2048, sequences)},
                stops=True,
            )


def _chunk_of_broken_pages(case: Case) -> Iterator[Found]:
    for name, values in case.values("sglang"):
        chunk, page = values.get("--chunked-prefill-size"), values.get("--page-size", 1)
        if isinstance(chunk, int) and isinstance(page, int) and page > 0 and chunk > 0 and chunk % page:
            yield Found(
                where=f"{name}: --chunked-prefill-size",
                says=f"{chunk} is no multiple of pages of {page} tokens",
                stops=True,
                cure=f"--chunked-prefill-size {-(-chunk // page) * page}",
                changes={"serving.max_batched_tokens": -(-chunk // page) * page},
            )


def _idle_memory(case: Case) -> Iterator[Found]:
    """A fraction below the usual one, while sequences wait for room. What further commands of a script take
    of the card is not known.
    """
    if any(OTHERS in values for _, values, _ in _server_commands(case)):
        return
    told, asked = _server_pool_facts(case), case.request.get("serving.memory_fraction")
    if (
        told is None
        or not isinstance(asked, float)
        or asked >= USUAL_FRACTION
        or case.request.get("engine") != "vllm"
        or not answer_fits(case.answer)
    ):
        return
    held = told[1].get("capacity") or {}
    if held.get("preempts") and answer_fits(case.ask({"serving.memory_fraction": USUAL_FRACTION})):
        for name, _, flags in _server_commands(case):
            yield Found(
                where=f"{name}: {flags['fraction']}",
                says=f"{1 - asked:.0%} of the card is left to nobody while sequences wait for room",
                cure=f"{flags['fraction']} {USUAL_FRACTION}",
                changes={"serving.memory_fraction": USUAL_FRACTION},
            )


def _old_card(case: Case) -> Iterator[Found]:
    """Sixteen bits that a card does not compute in; such a plan is refused before it is accounted, so it is
    asked about without them.
    """
    for name, values in case.values("vllm"):  # SGLang takes fp16 by itself there
        if values.get("--dtype") not in ("bfloat16", "bf16"):
            continue
        if _is_older_gpu(
            case.answer or case.ask({key: None for key in case.request if key.startswith("precision.")}),
            BF16_UNITS,
        ):
            yield Found(
                where=f"{name}: --dtype",
                says="bfloat16 needs compute capability 8.0",
                cure="--dtype half",
                stops=True,
            )


def _no_experts(case: Case) -> Iterator[Found]:
    """Experts dealt that there are none of."""
    ep = case.request.get("mesh.ep")
    layers = (
        [b.feed_forward for b in case.model.blocks() if isinstance(b.feed_forward, Moe)] if case.model else []
    )
    if case.model is not None and isinstance(ep, int) and ep > 1 and not layers:
        for name, _ in case.values("vllm"):
            yield Found(
                where=f"{name}: --enable-expert-parallel",
                says=f"{case.model.name} has no experts to deal",
                cure="leave it out",
                changes={"mesh.ep": None},
                stops=True,
            )


_V, _S = "vLLM v0.33.0 vllm", "SGLang v0.5.23 srt"
SERVING = (
    Rule(id="fraction-above-free", source=f"{_V}/v1/worker/utils.py:761", looks=_fraction_of_more_than_is_free),
    Rule(id="fraction-leaves-too-little", source=f"{_S}/arg_groups/memory_hook.py:61; {_V}/v1/worker/gpu_worker.py:1049", looks=_fraction_leaves_too_little),
    Rule(id="length-without-room", source=f"{_V}/v1/core/kv_cache_planning.py:80; {_S}/managers/tp_worker.py:425", looks=_length_that_has_no_room),
    Rule(id="length-beyond-model", source=f"{_V}/config/model.py:2664; {_S}/configs/model_config.py:1296", looks=_beyond_the_model),
    Rule(id="copied-cache", source="Ainslie et al. 2023, GQA, section 2.2; DeepSeek-V2, arXiv:2405.04434, section 2.1.2", looks=_copied_cache),
    Rule(id="preempted-sequences", source=f"{_V}/v1/core/sched/scheduler.py:931; {_S}/managers/schedule_batch.py, retract_decode; Kwon et al. 2023, PagedAttention, section 4.5", looks=_more_than_the_pool_holds),
    Rule(id="no-graphs", source=f"{_V}/config/model.py:276; {_S}/server_args.py:410", looks=_disabled_cuda_graphs),
    Rule(id="fp8-without-units", source=f"{_V}/v1/attention/backends/triton_attn.py:515; Triton third_party/nvidia/backend/compiler.py, supported_fp8_dtypes", looks=_eight_bits_without_units),
    Rule(id="batch-below-length", source=f"{_V}/config/scheduler.py:318", looks=_batch_below_length),
    Rule(id="batch-below-sequences", source=f"{_V}/config/scheduler.py:331", looks=_batch_below_sequences),
    Rule(id="chunk-of-broken-pages", source=f"{_S}/arg_groups/validation_hook.py:244", looks=_chunk_of_broken_pages),
    Rule(id="idle-memory", source=f"{_V}/config/cache.py:215", looks=_idle_memory),
    Rule(id="bf16-on-old-card", source=f"{_V}/platforms/cuda.py:639", looks=_old_card),
    Rule(id="no-experts-to-deal", source=f"{_V}/config/model.py:1566", looks=_no_experts),
)  # fmt: skip
