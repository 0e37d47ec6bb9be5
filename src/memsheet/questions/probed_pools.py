"""Servers whose memory nobody accounts and whose cache takes what a run of their own largest batch leaves:
what that run may need more than the sheet says comes off the cache alone
(huggingface/text-generation-inference db931fcf,
server/text_generation_server/models/flash_causal_lm.py:1508, warmup).
"""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.budget import Answer, Result, worst_sheet
from memsheet.exchange.shared.file_format import FileReading
from memsheet.exchange.shared.stand_in_server import ACCOUNTING
from memsheet.formulas.serving.widest_layer import whole_layer_bytes
from memsheet.formulas.states.params import parameter_tensors
from memsheet.plan.dtypes import FP32
from memsheet.plan.model import Attention, Dense, ModelSpec, Role
from memsheet.plan.sequence_length import derived_max_length
from memsheet.sheet import Component, Instant
from memsheet.units import format_bytes

TGI, BATCH = "text-generation-inference", "--max-batch-prefill-tokens"
LONGEST, DECIDES = "--max-total-tokens", -1
KEY = "serving.max_batched_tokens"
UNKNOWN_CARD, FEWEST = 4096, 100
TERAFLOPS: Mapping[str, int] = {
    "L4": 121, "L40": 181, "L40S": 363, "A10G": 125, "A40": 149, "A100-40GB": 312, "A100-80GB": 312, "A100-80GB-PCIe": 312, "H100-80GB": 900, "H200": 989,
}  # fmt: skip
"""Of the cards whose names the launcher knows; a batch is as many tokens as a second of them, and a fixed
number on others (launcher/src/main.rs:28 compute_optimal, :1711, :1754).
"""
DRAWN, ROWS = 8, 128
"""Tensors of logits in fp32 that the choosers of a token may have at once: what each penalty and each filter
makes of them (utils/tokens.py HeterogeneousNextTokenChooser, utils/logits_process.py), for as many requests
as the router takes at once (launcher/src/main.rs, max_concurrent_requests).
"""


def _layer_flops(model: ModelSpec) -> int | None:
    """Operations of a token in all layers as the launcher counts them (launcher/src/main.rs, Config::flop);
    None of a model that it does not count so.
    """
    attention = next((mixer for mixer in model.mixers() if isinstance(mixer, Attention)), None)
    dense = next(
        (block.feed_forward for block in model.blocks() if isinstance(block.feed_forward, Dense)), None
    )
    if attention is None or dense is None or model.towers:
        return None
    heads = 3 * int(attention.heads) + 2 * int(attention.kv_heads)
    layer = 2 * heads * int(attention.head_dim) * model.hidden + 6 * model.hidden * int(dense.intermediate)
    return layer * model.layers


def probed_batch(reads: Mapping[str, FileReading], answer: Answer) -> int | None:
    """Tokens of the batch that the launcher takes on a card that it knows, where no file says them; None
    where they are what the sheet has.
    """
    if not any(_is_probed(read) and BATCH not in read.values for read in reads.values()):
        return None
    flops, cluster = _layer_flops(answer.model), answer.cluster
    speed = TERAFLOPS.get(cluster.device.name) if cluster else None
    if flops is None or speed is None or cluster is None:
        return None
    tokens = speed * 10**12 * int(answer.plan.mesh.tp) // flops
    found = min(tokens if tokens > FEWEST else UNKNOWN_CARD, derived_max_length(answer.model) or tokens)
    return found if found != answer.plan.serving.max_batched_tokens else None


def _is_probed(read: FileReading) -> bool:
    return read.values.get(ACCOUNTING) == TGI


READ, LOGITS_OF_ALL = "3.3", "--enable-prefill-logprobs"
"""Releases that have logits of last tokens alone unless a flag asks for all (flash_causal_lm.py:285); of
those before it nobody has read that.
"""


def _has_all_logits(read: FileReading) -> bool:
    release = str(read.values.get("version") or READ)
    return read.values.get(LOGITS_OF_ALL) is True or not release.lstrip("v").startswith(READ)


def most_of_run(answer: Answer, *, all_logits: bool) -> int | None:
    """The most bytes that a run of the largest batch takes on a rank beside weights and its cache: every
    tensor of a layer at once, what the choosers make, a weight whole where it is kept in fewer bits, and
    logits of every token. None of a model with a tower.
    """
    model, plan = answer.model, answer.plan
    if model.towers:
        return None
    tokens = int(plan.serving.max_batched_tokens or 0)
    each = FP32.bits // 8 + int(plan.precision.compute.bits) // 8
    logits = (tokens * model.vocab * each if all_logits else 0) + DRAWN * ROWS * model.vocab * FP32.bits // 8
    unpacked = (
        max(
            (
                int(weight.elements)
                for _, weight, _ in parameter_tensors(model)
                if weight.role in (Role.LINEAR, Role.EXPERT)
            ),
            default=0,
        )
        if plan.quantization is not None
        else 0
    )
    return int(whole_layer_bytes(model, plan, tokens)) + logits + int(plan.precision.compute.nbytes(unpacked))


def _spare_bytes(read: FileReading, answer: Answer) -> int | None:
    """Bytes of a cache that is sure beyond the sequence that it needs, or beyond a batch where a sequence is
    as long as the cache allows; None of what does not fit or of another server.
    """
    serving = answer.serving or {}
    if not _is_probed(read) or answer.verdict is None or "short_bytes" not in serving:
        return None
    if answer.verdict.result is not Result.FITS:
        return None
    pool = worst_sheet(answer.sheets).of(Component.KV_CACHE, instant=Instant.DECODE)
    if read.values.get(LONGEST) != DECIDES:
        return -int(serving["short_bytes"].high)
    job = answer.plan.serving
    tokens = min(int(job.max_batched_tokens or 0), int(job.max_model_len or 0))
    return int(pool.low) - tokens * int(serving["kv_bytes_per_token_per_rank"])


def is_settled(read: FileReading, answer: Answer) -> bool:
    """Whether a fit is sure whatever the server's own run takes."""
    spare = _spare_bytes(read, answer)
    most = None if spare is None else most_of_run(answer, all_logits=_has_all_logits(read))
    return spare is not None and most is not None and spare >= most


def tight_words(read: FileReading, answer: Answer) -> str:
    """Why a fit is not sure, with the flag that lessens it; nothing where more is open than that."""
    spare = _spare_bytes(read, answer)
    most = None if spare is None else most_of_run(answer, all_logits=_has_all_logits(read))
    if spare is None or most is None:
        return ""
    tokens = int(answer.plan.serving.max_batched_tokens or 0)
    return (
        f"{ACCOUNTING}: {TGI}'s own run of {tokens:,} tokens, which vLLM's activations stand in for, may "
        f"take up to {format_bytes(most)}, and the cache spares {format_bytes(max(0, spare))}: "
        f"{BATCH} {tokens // 2} does with less"
    )


def settled_words(answer: Answer) -> str:
    """What of such a server's sheet is another's."""
    tokens = int(answer.plan.serving.max_batched_tokens or 0)
    return (
        f"activations and graphs are vLLM's: {TGI}'s cache takes what its own run of {tokens:,} tokens "
        "leaves, and is what differs"
    )
