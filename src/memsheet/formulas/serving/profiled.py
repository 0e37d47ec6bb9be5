"""The memory that vLLM's profiling run peaks at: one batch of as many tokens as may be batched, then the
sampler for all sequences.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from memsheet.arith import Count, at_least, ceil_div, given_or, maximum, minimum, where
from memsheet.formulas.serving.pictures import kept_pictures
from memsheet.formulas.serving.sampling import masked_sampler_bytes, sampler_bytes
from memsheet.formulas.serving.work import MERGED_PATCHES
from memsheet.frozen import dataclass
from memsheet.plan.model import Attention, Block, Dense, LatentAttention, ModelSpec, Moe
from memsheet.plan.plan import Mesh, Plan
from memsheet.plan.profiled_release import Release
from memsheet.references import DEEPEP_BUFFERS, VLLM, formula
from memsheet.sheet import Bytes
from memsheet.units import MIB

CONTEXT_TOKENS = 64 * 1024
"""Tokens of earlier chunks that latent attention unpacks at once, at most (v0.11.0
v1/attention/backends/mla/common.py:458).
"""
UNSPLIT = 8 * MIB
"""Of the eight large tensors at the sampler's peak: a block is not split where less than 1 MiB would be left,
and counts whole (kSmallSize, pytorch/pytorch c10/cuda/CUDACachingAllocator.cpp should_split).
"""
CHUNK_TOKENS = 32768
"""Tokens that experts are given at once (VLLM_FUSED_MOE_CHUNK_SIZE, v0.11.0 envs.py:778)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """``pictures``: what is kept of them under all that follows; ``resting``: hidden states that the sampler
    stands on; ``sampler`` and ``layer``: what is highest above them, in turn.
    """

    pictures: Bytes
    resting: Bytes
    sampler: Bytes
    layer: Bytes

    @property
    def total(self) -> Bytes:
        """The higher of the two, each with what it stands on: no hidden states are left beside a layer."""
        drawn = self.resting + self.sampler
        return self.pictures + Bytes.max(self.layer, drawn)


def profile_run_peak(part: ModelSpec, plan: Plan, release: Release, tokens: Count) -> Peak:
    """The peak of a run of ``tokens`` on a rank of a stage. Stages before the last have no sampler."""
    assert plan.max_sequences is not None
    rows, dtype, pictures = (
        minimum(tokens, plan.max_sequences),
        plan.precision.compute,
        kept_pictures(part, plan, release),
    )
    if part.head.kind == "none":
        return Peak(
            pictures=pictures,
            resting=Bytes.exact(0),
            sampler=Bytes.exact(0),
            layer=layer_bytes(part, plan, tokens),
        )
    chosen = sampler_bytes(release.sampler_of(part.model_type), rows, part.head.width, dtype)
    least = minimum(
        chosen, masked_sampler_bytes(rows, part.head.width, dtype)
    )  # FlashInfer's where it is installed and asked for
    resting = sampler_hidden_state_bytes(part.hidden, plan, tokens, rows)
    drawn = Bytes(least, chosen, chosen + UNSPLIT)
    return Peak(
        pictures=pictures, resting=Bytes.exact(resting), sampler=drawn, layer=layer_bytes(part, plan, tokens)
    )


@formula(
    cites=VLLM,
    at=(
        "v0.11.0 v1/worker/gpu_model_runner.py:3391, 3190: hidden states of all tokens, of the last ones, "
        "and random ones"
    ),
)
def sampler_hidden_state_bytes(hidden: int, plan: Plan, tokens: Count, rows: Count) -> Count:
    """Bytes of hidden states while the sampler runs."""
    return plan.precision.compute.nbytes((tokens + 2 * rows) * hidden)


@formula(
    cites=VLLM,
    at=(
        "v0.11.0 gpu_model_runner.py:3325: one layer after another, then pictures through the "
        "tower before them"
    ),
)
def layer_bytes(part: ModelSpec, plan: Plan, tokens: Count) -> Bytes:
    """The widest layer over a batch, and at the high end a batch of pictures through the tower."""
    blocks = dict.fromkeys(part.blocks())
    sizes = [size for block in blocks for size in block_bytes(block, plan, tokens)]
    nothing = Bytes.exact(0)
    widest = reduce(Bytes.max, sizes, nothing)
    if not part.towers:
        return widest
    return Bytes(widest.low, widest.value, maximum(widest.high, pictures_bytes(part, plan, tokens)))


@formula(
    cites=VLLM,
    at=(
        "v0.11.0 gpu_model_runner.py:3336: as many pictures as fill a batch, at once; models/pixtral.py a "
        "mask of all their patches"
    ),
)
def pictures_bytes(part: ModelSpec, plan: Plan, tokens: Count) -> Count:
    """A high end for the tower: twice its widest operation over all patches, and a mask where pictures of any
    size lie in one row.
    """
    dtype, most = plan.precision.compute, 0
    for tower in part.towers:
        rows = [
            w.shape[0]
            for w in tower.embeddings
            if "position" in w.path and len(w.shape) > 1 and w.shape[1] == tower.stack.hidden
        ]
        fixed = tower.tokens_per_image
        patches = max([*rows, fixed or 0]) * ceil_div(tokens, fixed) if fixed else MERGED_PATCHES * tokens
        alone = replace(plan, mesh=Mesh())
        blocks = dict.fromkeys(block for run in tower.stack.runs for block in run.pattern)
        widths = [3 * b.hidden + _feed_forward_width(b.feed_forward, alone) for b in blocks if b.feed_forward]
        mask = 0 if fixed else dtype.nbytes(patches * patches)
        most = maximum(most, dtype.nbytes(2 * patches * max(widths, default=0)) + mask)
    return most


def block_bytes(block: Block, plan: Plan, tokens: Count) -> list[Bytes]:
    """Each part of a layer with the residual and its own input; compiled code may free the input early (low)
    or keep one more (high).
    """
    dtype, hidden = plan.precision.compute, block.hidden
    above = [dtype.nbytes(tokens * width) for mixer in block.mixers for width in _mixer_widths(mixer, plan)]
    above += [
        unpacked_bytes(mixer, plan)
        for mixer in block.mixers
        if isinstance(mixer, LatentAttention) and plan.engine != "sglang"
    ]
    if block.feed_forward:
        routed = isinstance(block.feed_forward, Moe)
        groups = gathered_groups(plan) if routed else 1
        every = tokens * groups
        at_once = minimum(every, CHUNK_TOKENS) if routed else tokens
        gathered = where(at_least(groups, 2), dtype.nbytes((2 * every - at_once) * hidden), 0)
        gathered = received_bytes(block, plan, tokens) if routed and plan.dispatch == SENT else gathered
        above.append(dtype.nbytes(at_once * _feed_forward_width(block.feed_forward, plan)) + gathered)
    row = dtype.nbytes(tokens * hidden)
    return [Bytes(size + row, size + 2 * row, size + 3 * row) for size in above]


@formula(
    cites=VLLM,
    at=(
        "v0.33.0 layers/fused_moe/config.py:1207 experts over tp · dp ranks, all2all.py:116 the tokens of "
        "all of them gathered (the usual backend)"
    ),
)
def groups_sharing_experts(plan: Plan) -> Count:
    """Groups of tensor-parallel ranks whose tokens go to the same experts: one, unless experts are cut or
    dealt over several (dp_attention).
    """
    return maximum(1, maximum(plan.mesh.ep, plan.mesh.etp) // maximum(1, plan.mesh.tp))


SENT = "deepep"
"""The way on which a token goes to the ranks of its experts alone, and not to all."""


@formula(
    cites=DEEPEP_BUFFERS,
    at="deep_ep/buffers/legacy.py dispatch: a token goes to the ranks of its experts alone",
)
def gathered_groups(plan: Plan) -> Count:
    """Groups whose tokens come together on every rank: all that share experts, unless tokens are sent."""
    return 1 if plan.dispatch == SENT else groups_sharing_experts(plan)


@formula(
    cites=DEEPEP_BUFFERS,
    at=(
        "deep_ep/buffers/legacy.py dispatch: a rank receives a token once, whichever of its experts it "
        "goes to"
    ),
)
def received_bytes(block: Block, plan: Plan, tokens: Count) -> Count:
    """Bytes of the tokens that a rank receives of an even routing, where every rank has ``tokens`` of its
    own.
    """
    layer = block.feed_forward
    if not isinstance(layer, Moe):
        return 0
    return plan.precision.compute.nbytes(
        minimum(layer.experts_per_token, plan.mesh.ep) * tokens * block.hidden
    )


@formula(
    cites=VLLM,
    at=(
        "v0.11.0 models/llama.py:211: queries, keys and values joined, then rotated, then the output of "
        "all heads"
    ),
)
def _mixer_widths(mixer: object, plan: Plan) -> list[Count]:
    """Elements a token that a mixer has at once, besides its input and the residual."""
    tp = plan.mesh.tp
    match mixer:
        case Attention():
            heads, kv_heads = ceil_div(mixer.heads, tp), maximum(1, ceil_div(mixer.kv_heads, tp))
            return [(2 * (heads + 2 * kv_heads) + heads) * mixer.head_dim]
        case LatentAttention():
            query = ceil_div(mixer.heads, tp) * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
            return [
                2 * query
                + ceil_div(mixer.heads, tp) * mixer.v_head_dim
                + mixer.kv_lora_rank
                + (mixer.q_lora_rank or 0)
            ]
        case _:
            inner: int = getattr(mixer, "inner", 0) or getattr(mixer, "width", 0)
            inner = inner or getattr(mixer, "value_heads", 0) * getattr(mixer, "value_head_dim", 0)
            return [4 * ceil_div(inner, tp)]


@formula(
    cites=VLLM,
    at=(
        "v0.11.0 v1/attention/backends/mla/common.py:446: eight full sequences or four pages of each, at "
        "most 64k"
    ),
)
def unpacked_tokens(plan: Plan) -> Count:
    """Tokens of earlier chunks that latent attention unpacks at once."""
    assert plan.max_sequences is not None
    assert plan.page_tokens is not None
    pages = plan.max_sequences * plan.page_tokens
    return maximum(minimum(CONTEXT_TOKENS, maximum(8 * given_or(plan.max_model_len, 0), 4 * pages)), pages)


@formula(
    cites=VLLM, at="v0.11.0 mla/common.py:1652: the profiling run takes what unpacking earlier chunks takes"
)
def unpacked_bytes(mixer: LatentAttention, plan: Plan) -> Count:
    """Keys and values of all of a rank's heads over the earlier chunks that are unpacked at once."""
    heads = ceil_div(mixer.heads, plan.mesh.tp)
    return plan.precision.compute.nbytes(
        unpacked_tokens(plan) * heads * (mixer.qk_nope_head_dim + mixer.v_head_dim)
    )


@formula(
    cites=VLLM,
    at=(
        "v0.11.0 layers/activation.py:71 joined projections and their product; fused_moe.py:1565 one "
        "buffer for the first and third"
    ),
)
def _feed_forward_width(layer: Dense | Moe, plan: Plan) -> Count:
    """Elements a token of a feed-forward layer, of every expert that a token goes to."""
    if isinstance(layer, Dense):
        own = ceil_div(layer.intermediate, plan.mesh.tp)
        return 3 * own if layer.gated else 2 * own
    inner = ceil_div(layer.intermediate, plan.mesh.etp)
    hidden = next(w.shape[-1] for w in layer.weights)
    routed = layer.experts_per_token * (maximum(2 * inner, hidden) + inner) + hidden
    shared = ceil_div(layer.shared.intermediate, plan.mesh.tp) if layer.shared else 0
    return routed + shared
