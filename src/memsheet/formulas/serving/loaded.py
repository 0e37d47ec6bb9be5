"""Weights of a server with kernels of its own as its ranks hold them once loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from memsheet.arith import Count, ceil_div
from memsheet.formulas.runtime import ALLOCATOR, MIDDLE_SEGMENT, kept_rest_bytes, loading_slack
from memsheet.formulas.serving.packed_experts import ANY_KERNEL, Packing, padded_experts
from memsheet.formulas.serving.recorded_serving import uncut_ranges, unread_table_items
from memsheet.formulas.states.held import HeldTensor, held_tensors, parameter_bytes
from memsheet.frozen import dataclass, replace
from memsheet.plan.dtypes import BF16, FP8, FP32, DType
from memsheet.plan.model import Attention, Block, LatentAttention, Mixer, ModelSpec, Role, Weight
from memsheet.plan.plan import Plan
from memsheet.references import PAGED_SERVER_CODE, formula
from memsheet.sheet import Bytes, Component, Evidence, FromCode, Instant, Item

VOCABULARY = 64
"""The vocabulary is padded to a multiple of it (v0.11.0 model_executor/layers/vocab_parallel_embedding.py:23,
SGLang v0.5.23 the same).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """How a server loads. ``rope``: the dtype of the tables of rotary positions, None for the model's;
    ``absorbs``: latent attention copies its projections whether they are quantized or not; ``refines``: bytes
    by module path of experts that are cut inside a block of elements with one scale; ``wide``: ends of the
    paths of parameters that are made in fp32 whatever the model's dtype, by type of model;
    ``turns_wide``: types whose tables of rotary positions are fp32; ``turns_in_place``: that have
    no tables, but frequencies; ``packing``: how experts of four bits are kept.
    """

    rope: DType | None
    absorbs: bool
    refines: Callable[[ModelSpec, Plan], dict[str, Bytes]] = lambda *_: {}
    wide: Mapping[str, tuple[str, ...]]
    turns_wide: frozenset[str] = frozenset()
    turns_in_place: frozenset[str] = frozenset()
    packing: Callable[[ModelSpec], Packing] = lambda _: ANY_KERNEL
    table: Evidence
    rotary: Evidence
    absorbed: Evidence


PADDED = FromCode("vllm-project/vllm", "v0.11.0", "vllm/model_executor/layers/quantization/mxfp4.py", 599)
SCALED = FromCode(
    "vllm-project/vllm",
    "v0.11.0",
    "vllm/model_executor/layers/quantization/compressed_tensors/schemes/compressed_tensors_w8a8_fp8.py",
    105,
)


def loaded_tensors(part: ModelSpec, plan: Plan, ways: Ways) -> tuple[HeldTensor, ...]:
    """Every parameter of a stage as a rank holds it: latent projections whole, heads and experts cut, the
    vocabulary padded, and some in fp32.
    """
    wide = (*DECAYS, *ways.wide.get(part.model_type, ()))
    held = held_tensors(_with_value_matrices(part), replace(plan, vocab_multiple=VOCABULARY))
    return tuple(replace(one, dtype=FP32) if one.path.endswith(wide) else one for one in held)


DECAYS = (".A_log",)
"""Ends of paths of what servers make in fp32 of every state space (vLLM v0.33.0
model_executor/layers/mamba/mamba_mixer.py:145, mamba_mixer2.py:484, gdn/qwen_gdn_linear_attn.py:652; SGLang
v0.5.23 layers/attention/mamba/mamba1.py:168, mamba.py:409).
"""


def with_blocks(part: ModelSpec, change: Callable[[Block], Block]) -> ModelSpec:
    """The model with every block changed."""
    stacks = (
        replace(
            stack, runs=tuple(replace(run, pattern=tuple(map(change, run.pattern))) for run in stack.runs)
        )
        for stack in part.stacks
    )
    return replace(part, stacks=tuple(stacks))


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 model_executor/models/gemma4.py:421: keys' matrix is loaded into the values' place of the "
        "joined projection too; SGLang v0.5.23 models/gemma4_causal.py:1337 the same"
    ),
)
def _with_value_matrices(part: ModelSpec) -> ModelSpec:
    """The model with a matrix for values in layers whose values are what the keys' matrix makes."""
    if not any(isinstance(mixer, Attention) and mixer.value_is_key for mixer in part.mixers()):
        return part

    def doubled(mixer: Mixer) -> Mixer:
        if not isinstance(mixer, Attention) or not mixer.value_is_key:
            return mixer
        keys = (weight for weight in mixer.weights if ".k_proj." in weight.path)
        values = (replace(weight, path=weight.path.replace(".k_proj.", ".v_proj.")) for weight in keys)
        return replace(mixer, weights=(*mixer.weights, *values))

    return with_blocks(part, lambda block: replace(block, mixers=tuple(map(doubled, block.mixers))))


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.20.2 model_executor/models/gemma4.py: one joined projection in every layer, whether it has keys "
        "of its own or reads an earlier layer's; SGLang v0.5.23 models/gemma4_causal.py:358 the same"
    ),
)
def with_own_projections(part: ModelSpec) -> ModelSpec:
    """The model with matrices for keys and values in layers that read an earlier layer's, too."""

    def built(mixer: Mixer) -> Mixer:
        if not isinstance(mixer, Attention) or not mixer.shares_kv:
            return mixer
        own = [
            _key_or_value(weight, mixer, name)
            for weight in mixer.weights
            if ".q_proj." in weight.path
            for name in ("k_proj", "v_proj")
        ]
        norm = mixer.qk_norm
        if norm is not None:
            keys = (replace(weight, path=weight.path.replace("q_norm", "k_norm")) for weight in norm.weights)
            norm = replace(norm, weights=(*norm.weights, *keys))
        return replace(mixer, qk_norm=norm, weights=(*mixer.weights, *own))

    if not any(isinstance(mixer, Attention) and mixer.shares_kv for mixer in part.mixers()):
        return part
    return with_blocks(part, lambda block: replace(block, mixers=tuple(map(built, block.mixers))))


def _key_or_value(query: Weight, mixer: Attention, name: str) -> Weight:
    """The projection to keys or values as wide as the layer's own heads."""
    shape = (mixer.kv_heads * mixer.head_dim, *query.shape[1:])
    return replace(query, path=query.path.replace("q_proj", name), shape=shape, units=mixer.kv_heads)


def loaded_items(
    part: ModelSpec, plan: Plan, held: tuple[HeldTensor, ...], instants: Sequence[Instant], ways: Ways
) -> list[Item]:
    """Parameters, tables of rotary positions, copies that latent attention makes of projections, scales, and
    the gaps between segments.
    """
    sizes = parameter_bytes(part, plan, held)
    unread = uncut_ranges(part, plan, sizes)
    ranges = {**unread, **padded_experts(held, ways.packing(part)), **ways.refines(part, plan)}
    items = [
        Item(
            component,
            path,
            dict.fromkeys(instants, ranges.get(path, Bytes.exact(size))),
            PADDED if path in ranges and path not in unread else ways.table,
        )
        for (component, path), size in sizes.items()
    ]
    besides = (
        ("rotary_emb", _turned_bytes(part, plan, ways), ways.rotary),
        ("absorbed", mla_absorbed_projection_bytes(part, plan, always=ways.absorbs), ways.absorbed),
    )
    items += [
        Item(Component.BUFFERS, path, dict.fromkeys(instants, Bytes.exact(size)), source)
        for path, size, source in besides
        if size
    ]
    items += unread_table_items(part, plan, instants, ways.rotary)
    if scales := row_scales_bytes(held):
        items.append(
            Item(Component.BUFFERS, "weight_scale", dict.fromkeys(instants, Bytes(0, scales, scales)), SCALED)
        )
    return [*items, *slack_items(held, instants, joined=joined_tensors(held))]


JOINED = {
    "q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj",
    "q_a_proj": "fused_qkv_a_proj", "kv_a_proj_with_mqa": "fused_qkv_a_proj",
}  # fmt: skip
"""Matrices of one input, which are one tensor (packed_modules_mapping of v0.11.0 model_executor/models,
llama.py:487 and deepseek_v2.py:1185; SGLang v0.5.23 models/llama.py and deepseek_v2.py the same).
"""
RESTS = "weights.rests"
"""The path of what blocks of weights are larger than these, which torch counts as allocated."""


def joined_tensors(held: Iterable[HeldTensor]) -> list[tuple[Count, int]]:
    """(bytes, how many) of each tensor as it is made: matrices of one input are one."""
    sizes: dict[tuple[str, int], Count] = {}
    for one in held:
        module, _, name = one.path.rpartition(".")
        before, _, last = module.rpartition(".")
        made = f"{before}.{JOINED[last]}.{name}" if last in JOINED else one.path
        sizes[made, one.times] = sizes.get((made, one.times), 0) + one.dtype.nbytes(one.elements)
    return [(size, times) for (_, times), size in sizes.items()]


def slack_items(
    held: tuple[HeldTensor, ...], instants: Sequence[Instant], *, joined: list[tuple[Count, int]]
) -> list[Item]:
    """Gaps between segments that weights lie in, and what is part of a weight's own block. What is packed is
    made anew once it is loaded, in whatever blocks are there.
    """
    gaps, rests = loading_slack(joined), kept_rest_bytes(joined)
    packed = any(one.dtype.bits < BF16.bits for one in held)
    sizes = (
        ("weights", Bytes(0, gaps - rests, gaps - rests + MIDDLE_SEGMENT)),
        (RESTS, Bytes(0 if packed else rests, rests, rests)),
    )
    return [
        Item(Component.ALLOCATOR_SLACK, path, dict.fromkeys(instants, size), ALLOCATOR)
        for path, size in sizes
        if path != RESTS or rests
    ]


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 compressed_tensors_w8a8_fp8.py: one fp32 scale an output channel, or one a matrix where "
        "it was quantized while loading"
    ),
)
def row_scales_bytes(held: Iterable[HeldTensor]) -> Count:
    """Bytes of the scales of eight-bit matrices that are scaled by rows."""
    total: Count = 0
    for one in held:
        if one.dtype is FP8 and one.role in (Role.LINEAR, Role.EXPERT) and len(one.shape) > 1:
            total = total + one.times * FP32.nbytes(one.elements // one.shape[-1])
    return total


def _mixer_layer_counts(part: ModelSpec) -> Iterable[tuple[Mixer, int]]:
    return (
        (mixer, run.count)
        for stack in part.stacks
        for run in stack.runs
        for block in run.pattern
        for mixer in block.mixers
    )


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 rotary_embedding/__init__.py get_rope: one table of cosines and sines for each kind of "
        "rotation"
    ),
)
def rope_bytes(part: ModelSpec, dtype: DType) -> Count:
    """Bytes of the tables of rotary positions, up to the longest the model was made for. Layers with and
    without a window share one unless they turn by other angles.
    """
    return sum(dtype.nbytes((part.max_positions or 0) * size) for size in _rotations(part))


def _rotations(part: ModelSpec) -> list[int]:
    """Elements that each kind of rotation turns."""
    rotated = dict.fromkeys(
        (_rotated_elements(mixer), part.windows_rotate_apart and getattr(mixer, "window", None) is not None)
        for mixer, _ in _mixer_layer_counts(part)
        if isinstance(mixer, Attention | LatentAttention)
    )
    return [size for size, _ in rotated]


def _turned_bytes(part: ModelSpec, plan: Plan, ways: Ways) -> Count:
    """Bytes by which a model turns positions: tables, or fp32 frequencies of every other element, twice."""
    if part.model_type in ways.turns_in_place:
        return sum(2 * FP32.nbytes(size // 2) for size in _rotations(part))
    wide = FP32 if part.model_type in ways.turns_wide else None
    return rope_bytes(part, wide or ways.rope or plan.precision.compute)


def _rotated_elements(mixer: Attention | LatentAttention) -> int:
    return mixer.qk_rope_head_dim * mixer.rotates if isinstance(mixer, LatentAttention) else mixer.rotary_dim


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 mla/common.py process_weights_after_loading: views of kv_b_proj, or a 16-bit copy where "
        "it is quantized"
    ),
)
def mla_absorbed_projection_bytes(part: ModelSpec, plan: Plan, *, always: bool = False) -> Count:
    """Bytes of the key and value projections that latent attention multiplies with the query and the
    output.
    """
    if plan.quantization is None and not always:
        return 0
    total: Count = 0
    for mixer, layers in _mixer_layer_counts(part):
        if isinstance(mixer, LatentAttention):
            rows = ceil_div(mixer.heads, plan.mesh.tp) * (mixer.qk_nope_head_dim + mixer.v_head_dim)
            total = total + layers * plan.precision.compute.nbytes(rows * mixer.kv_lora_rank)
    return total
