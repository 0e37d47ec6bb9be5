"""Mistakes of a server's command: what it refuses at its start, what its pool cannot hold, what costs its
cache without need. Each cure is accounted; what it frees is the cache's, since a pool takes all that its
fraction leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from memsheet.budget import Answer
from memsheet.exchange.mistakes.case import Case, FoundMistake, Rule, answer_fits
from memsheet.exchange.mistakes.server_case import FLAGS, is_sized_pool, server_commands, server_pool_facts
from memsheet.exchange.mistakes.serving_pool import (
    copied_cache,
    fraction_leaves_too_little,
    fraction_of_more_than_is_free,
    length_that_has_no_room,
    more_than_the_pool_holds,
)
from memsheet.exchange.shared.named_server import BESIDE_RUNTIME
from memsheet.exchange.shared.serve_script import OTHERS
from memsheet.exchange.shared.visible_cards import CARDS, DIRECTIVES, EACH_NODE, ELSEWHERE, VISIBLE
from memsheet.plan.hardware import BF16_UNITS, FP8_UNITS, eight_bit_cache, is_older_device
from memsheet.plan.model import Moe
from memsheet.plan.sequence_length import derived_max_length

USUAL_FRACTIONS = {"vllm": 0.9}
"""By a server's format: the fraction that it takes of every card where nobody says one (vLLM before 0.20)."""


def _beyond_the_model(case: Case) -> Iterator[FoundMistake]:
    most, length = derived_max_length(case.model), case.request.get("serving.max_model_len")
    if most and isinstance(length, int) and length > most:
        for name, _, flags in server_commands(case):
            yield FoundMistake(
                where=f"{name}: {flags['length']}",
                says=(
                    f"{length:,} tokens, and {case.model.name if case.model else ''} was made for "
                    f"{most:,}: it stops unless it is told to go beyond"
                ),
                cure=f"{flags['length']} {most}",
                changes={"serving.max_model_len": most},
                stops=True,
            )


def _disabled_cuda_graphs(case: Case) -> Iterator[FoundMistake]:
    if case.request.get("serving.cuda_graphs") is False and answer_fits(
        case.ask({"serving.cuda_graphs": True})
    ):
        for name, _, flags in server_commands(case):
            yield FoundMistake(
                where=f"{name}: {flags['graphs']}",
                says="the host starts every kernel of every token, and graphs have room",
                cure="leave it out",
                changes={"serving.cuda_graphs": True},
            )


def _is_older_gpu(answer: Answer | None, units: tuple[int, int]) -> bool:
    """Whether the cards are known to be older."""
    return answer is not None and answer.cluster is not None and is_older_device(answer.cluster.device, units)


def _eight_bits_without_units(case: Case) -> Iterator[FoundMistake]:
    if case.answer is None or case.answer.cluster is None or not _is_older_gpu(case.answer, FP8_UNITS):
        return
    card = case.answer.cluster.device.name
    for name, values, flags in server_commands(case):
        if says := eight_bit_cache(case.answer.plan, case.answer.cluster.device, case.model):
            yield FoundMistake(
                where=f"{name}: {flags['cache']}",
                says=says,
                cure="a card from Ada and Hopper on, or leave it out: a token then takes twice the bytes",
            )
        if values.get("--quantization") in ("fp8", "fp8_per_tensor"):
            yield FoundMistake(
                where=f"{name}: --quantization",
                says=(
                    f"{card} multiplies no fp8: weights take half the room and are unpacked for every product"
                ),
                cure="a checkpoint in awq or gptq takes a quarter, or leave it out where there is room",
            )


def _batch_below_length(case: Case) -> Iterator[FoundMistake]:
    """A batch that is said: left to the engine it is as long as a prompt may be (engine/arg_utils.py,
    _set_default_max_num_seqs_and_batched_tokens_args), or prompts are chunked whatever is said.
    """
    told = case.answer.plan if case.answer else None
    for name, values in case.values("vllm"):
        whole = values.get("--enable-chunked-prefill") is False
        length = case.request.get("serving.max_model_len") or (told.serving.max_model_len if told else None)
        batch = case.request.get("serving.max_batched_tokens")
        if whole and isinstance(length, int) and isinstance(batch, int) and batch < length:
            yield FoundMistake(
                where=f"{name}: --max-num-batched-tokens",
                says=f"{batch:,}, and prompts of up to {length:,} tokens are read whole without chunks",
                cure=f"leave --no-enable-chunked-prefill out, or --max-num-batched-tokens {length}",
                stops=True,
            )


def _batch_below_sequences(case: Case) -> Iterator[FoundMistake]:
    for name, _ in case.values("vllm"):
        batch, sequences = (
            case.request.get(f"serving.{key}") for key in ("max_batched_tokens", "max_sequences")
        )
        if isinstance(batch, int) and isinstance(sequences, int) and batch < sequences:
            yield FoundMistake(
                where=f"{name}: --max-num-batched-tokens",
                says=f"{batch:,} tokens for {sequences:,} sequences, each of which makes one",
                cure=f"--max-num-batched-tokens {max(2048, sequences)}",
                changes={"serving.max_batched_tokens": max(2048, sequences)},
                stops=True,
            )


def _chunk_of_broken_pages(case: Case) -> Iterator[FoundMistake]:
    for name, values in case.values("sglang"):
        chunk, page = values.get("--chunked-prefill-size"), values.get("--page-size", 1)
        if isinstance(chunk, int) and isinstance(page, int) and page > 0 and chunk > 0 and chunk % page:
            yield FoundMistake(
                where=f"{name}: --chunked-prefill-size",
                says=f"{chunk} is no multiple of pages of {page} tokens",
                stops=True,
                cure=f"--chunked-prefill-size {-(-chunk // page) * page}",
                changes={"serving.max_batched_tokens": -(-chunk // page) * page},
            )


def _idle_memory(case: Case) -> Iterator[FoundMistake]:
    """A fraction below the usual one, while sequences wait for room. What further commands of a script take
    of the card is not known.
    """
    if any(OTHERS in values for _, values, _ in server_commands(case)):
        return
    told, asked = server_pool_facts(case), case.request.get("serving.memory_fraction")
    if told is None or not isinstance(asked, float) or not answer_fits(case.answer) or is_sized_pool(told[1]):
        return
    waiting = bool((told[1].get("capacity") or {}).get("preempts"))
    for name, read in case.of(*USUAL_FRACTIONS):
        usual, flag = USUAL_FRACTIONS[read.form.name], FLAGS[read.form.name]["fraction"]
        if waiting and asked < usual and answer_fits(case.ask({"serving.memory_fraction": usual})):
            yield FoundMistake(
                where=f"{name}: {flag}",
                says=f"{1 - asked:.0%} of the card is left to nobody while sequences wait for room",
                cure=f"{flag} {usual}",
                changes={"serving.memory_fraction": usual},
            )


def _old_card(case: Case) -> Iterator[FoundMistake]:
    """Sixteen bits that a card does not compute in; such a plan is refused before it is accounted, so it is
    asked about without them.
    """
    for name, values in case.values("vllm"):  # SGLang takes fp16 by itself there
        if values.get("--dtype") not in ("bfloat16", "bf16"):
            continue
        unsaid = {key: None for key in case.request if key.startswith("precision.")}
        other = case.answer or case.ask(unsaid)
        if other is not None and _is_older_gpu(other, BF16_UNITS):
            says = "bfloat16 needs compute capability 8.0"
            dtype = DTYPE_WORDS[other.plan.precision.compute.name]
            cure = f"--dtype {dtype}{'' if answer_fits(other) else ', and what makes room in it'}"
            yield FoundMistake(where=f"{name}: --dtype", says=says, cure=cure, stops=True)


DTYPE_WORDS = {"fp16": "half", "fp32": "float32", "bf16": "bfloat16"}


def _no_experts(case: Case) -> Iterator[FoundMistake]:
    """Experts dealt that there are none of."""
    ep = case.request.get("mesh.ep")
    layers = (
        [b.feed_forward for b in case.model.blocks() if isinstance(b.feed_forward, Moe)] if case.model else []
    )
    if case.model is not None and isinstance(ep, int) and ep > 1 and not layers:
        for name, _ in case.values("vllm"):
            yield FoundMistake(
                where=f"{name}: --enable-expert-parallel",
                says=f"{case.model.name} has no experts to deal",
                cure="leave it out",
                changes={"mesh.ep": None},
                stops=True,
            )


def _more_ranks_than_cards(case: Case) -> Iterator[FoundMistake]:
    """Ranks of one node's server beyond the cards that its process has. A cluster of Ray, or further nodes,
    may have more; a release before the check looked for a cluster itself.
    """
    if any(ELSEWHERE.search(text) for text in case.texts.values()):
        return
    for name, read in case.of(*FLAGS):
        values, flags, held = read.values, FLAGS[read.form.name], read.values.get(CARDS)
        sizes = [values.get(flags[axis], 1) for axis in ("tp", "pp")]
        several = values.get("--nnodes", 1) != 1 or any(not isinstance(size, int) for size in sizes)
        if several or not isinstance(held, list) or prod(sizes) <= held[0]:
            continue
        count, at = held
        if at == EACH_NODE:  # what joins the nodes may stand elsewhere
            continue
        searches = at in (VISIBLE, DIRECTIVES) and read.form.name in USUAL_FRACTIONS and bool(read.release)
        yield FoundMistake(
            where=f"{name}: {flags['tp']}",
            says=f"{prod(sizes)} ranks, and {at} gives the process {count} of the cards",
            cure="as many cards as ranks, or no more ranks than cards",
            stops=not searches and at != BESIDE_RUNTIME,
        )


def _rows_without_split_buffers(case: Case) -> Iterator[FoundMistake]:
    """Matrices cut by rows, which newer builds for CUDA do not do; which build runs is not known here."""
    for name, read in case.of("llama.cpp"):
        if read.values.get("--split-mode") == "row":
            yield FoundMistake(
                where=f"{name}: --split-mode",
                says=(
                    "row is gone from CUDA's builds since b9890, which stop as they load: \"device CUDA0 "
                    'does not support split buffers". Older ones cut dense matrices by rows and leave '
                    "experts, norms and the cache with their layers"
                ),
                cure="--split-mode layer, or tensor in builds that have it",
            )


_V, _S = "vLLM v0.33.0 vllm", "SGLang v0.5.23 srt"
SERVING = (
    Rule(id="ranks-above-cards", source=f"{_V}/config/parallel.py, __post_init__: World size; {_S}/model_executor/model_runner.py, init_torch_distributed", looks=_more_ranks_than_cards),
    Rule(id="rows-without-split-buffers", source="ggml-org/llama.cpp 0c1e5709 src/llama-model.cpp:1163; pull request 24216 (CUDA: remove -sm row), issues 25594 and 27465; pull request 13919 for matrices of experts", looks=_rows_without_split_buffers),
    Rule(id="fraction-above-free", source=f"{_V}/v1/worker/utils.py:761", looks=fraction_of_more_than_is_free),
    Rule(id="fraction-leaves-too-little", source=f"{_S}/arg_groups/memory_hook.py:61; {_V}/v1/worker/gpu_worker.py:1049", looks=fraction_leaves_too_little),
    Rule(id="length-without-room", source=f"{_V}/v1/core/kv_cache_planning.py:80; {_S}/managers/tp_worker.py:425", looks=length_that_has_no_room),
    Rule(id="length-beyond-model", source=f"{_V}/config/model.py:2664; {_S}/configs/model_config.py:1296", looks=_beyond_the_model),
    Rule(id="copied-cache", source="Ainslie et al. 2023, GQA, section 2.2; DeepSeek-V2, arXiv:2405.04434, section 2.1.2", looks=copied_cache),
    Rule(id="preempted-sequences", source=f"{_V}/v1/core/sched/scheduler.py:931; {_S}/managers/schedule_batch.py, retract_decode; Kwon et al. 2023, PagedAttention, section 4.5", looks=more_than_the_pool_holds),
    Rule(id="no-graphs", source=f"{_V}/config/model.py:276; {_S}/server_args.py:410", looks=_disabled_cuda_graphs),
    Rule(id="fp8-without-units", source=f"{_V}/v1/attention/backends/triton_attn.py:515; Triton third_party/nvidia/backend/compiler.py, supported_fp8_dtypes", looks=_eight_bits_without_units),
    Rule(id="batch-below-length", source=f"{_V}/config/scheduler.py:318", looks=_batch_below_length),
    Rule(id="batch-below-sequences", source=f"{_V}/config/scheduler.py:331", looks=_batch_below_sequences),
    Rule(id="chunk-of-broken-pages", source=f"{_S}/arg_groups/validation_hook.py:244", looks=_chunk_of_broken_pages),
    Rule(id="idle-memory", source=f"{_V}/config/cache.py:215", looks=_idle_memory),
    Rule(id="bf16-on-old-card", source=f"{_V}/platforms/cuda.py:639", looks=_old_card),
    Rule(id="no-experts-to-deal", source=f"{_V}/config/model.py:1566", looks=_no_experts),
)  # fmt: skip
