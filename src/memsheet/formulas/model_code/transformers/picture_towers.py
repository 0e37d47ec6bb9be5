"""Vision towers of Qwen2-VL and Qwen2.5-VL as the transformers library runs them (5.23,
modeling_qwen2_5_vl.py, modeling_qwen2_vl.py), written over shape-only tensors: patches in, layers over all
patches of a micro-batch as one sequence, merged tokens among the words.

Axes: ``b``, ``s``, ``h`` are the tower's own (one row of patches); ``p`` patches, ``q`` merged tokens; ``B``,
``S`` sequences and their positions. Widths are plain numbers. Words are looked up before the tower runs
(modeling_qwen2_5_vl.py:1193-1214).
"""

from __future__ import annotations

from math import prod

from memsheet.arith import Count
from memsheet.formulas.model_code.transformers.attention import CORES, MERGED
from memsheet.formulas.model_code.transformers.families import (
    LLAMA,
    TOWER_ASKED,
    TOWER_JOIN,
    TOWER_START,
    of_tower,
)
from memsheet.formulas.model_code.transformers.feed_forward import dense_feed_forward
from memsheet.formulas.model_code.transformers.language_stacks import has_pictures
from memsheet.formulas.model_code.transformers.norms import apply_norm
from memsheet.formulas.numerics import AttentionKernel, RunConfig, record_linear
from memsheet.formulas.states.held import module_of
from memsheet.formulas.states.params import JOIN, START
from memsheet.formulas.tapes.bytes_by_path import BytesByPath
from memsheet.formulas.tapes.evaluate import NOTHING, Beside, with_products
from memsheet.formulas.tapes.graph import Grad, Node, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Axis, Shape
from memsheet.frozen import replace
from memsheet.plan.dtypes import FP32, DType
from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    Dense,
    ModelSpec,
    Norm,
    Run,
    Stack,
    Tower,
    Weight,
)
from memsheet.plan.plan import Plan, RecomputeMode
from memsheet.references import TRANSFORMERS, formula
from memsheet.sheet import Component

WINDOWED = "qwen2_5_vl_vision"
"""The kind whose patches are sorted into windows first and back again after the merger
(modeling_qwen2_5_vl.py:455, :480).
"""
MERGED_PATCHES = 4
"""Patches of one token: spatial_merge_size squared, 2 x 2 in every released model of these families."""
STREAM: Shape = ("b", "s", "h")
HEAD_ALIGNMENT = 8
"""Flash pads heads to a multiple (torch sdp_utils.cpp)."""
PIXELS = FP32
"""Image processors hand out fp32 (image_processing_backends.py, rescale_and_normalize)."""


def with_pictures(spec: ModelSpec, plan: Plan) -> ModelSpec:
    """The model with its tower as the first of its layers: what cuts pictures into patches, the tower's
    layers, what joins the words.
    """
    (tower,) = spec.towers
    block = tower.stack.runs[0].pattern[0]
    norms, rest = _merger_norm_and_linears(tower, block.norms[0])
    other = Arrangement.OTHER
    asked = TOWER_ASKED if plan.adapter is not None and plan.recompute.mode is RecomputeMode.FULL else ""
    start = Block(
        kind=block.kind + TOWER_START + asked,
        hidden=spec.hidden,
        arrangement=other,
        extras=_tower_relative_weights(tower, tower.embeddings),
    )
    join = Block(
        kind=block.kind + TOWER_JOIN + asked, hidden=block.hidden, arrangement=other, norms=norms, extras=rest
    )
    first, last = (
        Stack(path=tower.path, hidden=tower.stack.hidden, runs=(Run(pattern=(one,), count=1),), role=role)
        for one, role in ((start, START), (join, JOIN))
    )
    return replace(spec, stacks=(first, tower.stack, last, *spec.stacks), towers=())


def _tower_relative_weights(tower: Tower, weights: tuple[Weight, ...]) -> tuple[Weight, ...]:
    """Weights by their names within the tower."""
    return tuple(replace(weight, path=weight.path.removeprefix(f"{tower.path}.")) for weight in weights)


def _merger_norm_and_linears(tower: Tower, like: Norm) -> tuple[tuple[Norm, ...], tuple[Weight, ...]]:
    """The merger's norm, of the layers' kind, and its two linear layers."""
    own = _tower_relative_weights(tower, tower.projector)
    norm, rest = tuple(w for w in own if ".mlp." not in w.path), tuple(w for w in own if ".mlp." in w.path)
    return (
        Norm(path=norm[0].path.removesuffix(".weight"), kind=like.kind, size=like.size, weights=norm),
    ), rest


# ---- what is there of a micro-batch ------------------------------------------------------------------------


@formula(
    cites=TRANSFORMERS,
    at=(
        "modeling_qwen2_5_vl.py: spatial_merge_size squared patches of a tower are one token of the "
        "language model"
    ),
)
def image_patch_count(spec: ModelSpec, plan: Plan) -> Count:
    """Patches of all pictures of a micro-batch."""
    return plan.training.microbatch * plan.training.image_tokens * patches_per_token(spec)


def patches_per_token(spec: ModelSpec) -> int:
    """Patches of one token, by the merger's first linear layer."""
    join = _merger_block(spec)
    first = next(w for w in join.extras if len(w.shape) > 1)
    return first.shape[1] // join.hidden


def _merger_block(spec: ModelSpec) -> Block:
    return next(stack.runs[0].pattern[0] for stack in spec.stacks if stack.role == JOIN)


@formula(
    cites=TRANSFORMERS,
    at="modeling_qwen2_5_vl.py: all patches of a micro-batch are one sequence of the tower",
)
def tower_axes(block: Block, plan: Plan) -> dict[str, Count]:
    """Of a layer of the tower or of its ends. A merge of 2 x 2 patches is all that these families' released
    models have.
    """
    seen = plan.training.microbatch * plan.training.image_tokens
    rows = seen * MERGED_PATCHES
    own: dict[str, Count] = {"p": rows, "q": seen, "B": plan.training.microbatch, "S": plan.training.seq_len}
    if TOWER_START in block.kind:
        return {**own, "b": plan.training.microbatch, "s": plan.training.seq_len, "h": block.hidden}
    own |= {"b": 1, "s": rows, "h": block.hidden, "s32": -(-rows // 32) * 32, "s8": -(-rows // 8) * 8}
    at, ff = block.mixers[0] if block.mixers else None, block.feed_forward
    if not isinstance(at, Attention) or not isinstance(ff, Dense):
        return own
    return with_products(
        {**own, "a": at.heads, "k": at.heads, "d": at.head_dim, "f": ff.intermediate, "r": 0}
    )


@formula(
    cites=TRANSFORMERS,
    at="image_processing_backends.py, rescale_and_normalize: values in fp32, a row for every patch",
)
def pixel_bytes(spec: ModelSpec, plan: Plan) -> Count:
    """Of the patches' values, as an image processor makes them."""
    start = next(stack.runs[0].pattern[0] for stack in spec.stacks if stack.role == START)
    return PIXELS.nbytes(image_patch_count(spec, plan) * prod(start.extras[0].shape[1:]))


@formula(
    cites=TRANSFORMERS,
    at=(
        "modeling_qwen2_5_vl.py:458: cosines and sines of every patch in fp32, which all layers of the "
        "tower take"
    ),
)
def table_bytes(spec: ModelSpec, plan: Plan) -> Count:
    at = next(m for b in spec.blocks() if of_tower(b.kind) for m in b.mixers)
    assert isinstance(at, Attention)
    return 2 * FP32.nbytes(image_patch_count(spec, plan) * at.head_dim)


@formula(
    cites=TRANSFORMERS,
    at=(
        "modeling_qwen2_5_vl.py:1197-1245: the tower's outputs and the joined ones go by names while the "
        "layers run"
    ),
)
def named_beside(spec: ModelSpec, plan: Plan, how: RunConfig) -> Beside:
    """What the model's forward names of the tower."""
    if not has_pictures(spec):
        return NOTHING
    low, seen = tower_stream(how), plan.training.microbatch * plan.training.image_tokens
    path, kept = next(stack.path for stack in spec.stacks if stack.role == JOIN), Component.TEMPORARIES
    states = low.nbytes(image_patch_count(spec, plan) * _merger_block(spec).hidden)
    features = low.nbytes(seen * spec.hidden) + how.stream.nbytes(seen * spec.hidden)
    lowered = (
        0
        if how.trains or how.parameters is PIXELS
        else pixel_bytes(spec, plan) // PIXELS.nbytes(1) * how.parameters.nbytes(1)
    )
    tables = 0 if kept_beside(spec, plan, how) else table_bytes(spec, plan)
    return Beside(
        features=BytesByPath.of([((kept, f"{path}.merger/features"), features)]),
        states=BytesByPath.of([((kept, f"{path}.merger/states"), states)]),
        inside=BytesByPath.of(
            [((kept, f"{path}/pixel_values"), lowered), ((kept, f"{path}.rotary_pos_emb"), tables)]
        ),
    )


@formula(
    cites=TRANSFORMERS,
    at=(
        "modeling_qwen2_5_vl.py:458, :1214; modeling_utils.py:2137: what is asked for a gradient stays in "
        "the graph"
    ),
)
def kept_beside(spec: ModelSpec, plan: Plan, how: RunConfig) -> list[tuple[str, Count]]:
    """What the whole graph keeps: the tower's tables, and the words' embeddings where adapters under
    checkpoints ask for their gradient.
    """
    if not has_pictures(spec) or not (how.trains or how.asks_grad):
        return []
    path = next(stack.path for stack in spec.stacks if stack.role == JOIN)
    words = module_of(spec.embeddings.weights[0].path)
    asked = (
        how.stream.nbytes(plan.training.microbatch * plan.training.seq_len * spec.hidden)
        if how.asks_grad
        else 0
    )
    return [(f"{path}.rotary_pos_emb", table_bytes(spec, plan)), (f"{words}/output", asked)]


def tower_stream(how: RunConfig) -> DType:
    """A convolution and linear layers make what autocast makes of them, and nothing widens it again."""
    return how.autocast or how.parameters


def tower_numerics(block: Block, plan: Plan, how: RunConfig) -> RunConfig:
    """Flash takes windows and whole pictures in two bytes an element; four go to the memory-efficient
    kernel.
    """
    how = replace(how, asks_grad=block.kind.endswith(TOWER_ASKED))
    how = how if TOWER_START in block.kind else replace(how, stream=tower_stream(how))
    if how.processor:
        return replace(how, attention=AttentionKernel.PROCESSOR)
    if (how.autocast or how.parameters) is FP32:
        return replace(how, attention=AttentionKernel.EFFICIENT)
    at = block.mixers[0] if block.mixers else None
    short = at.head_dim % HEAD_ALIGNMENT if isinstance(at, Attention) else 0
    return (
        replace(how, padded_head=at.head_dim + HEAD_ALIGNMENT - short)
        if short and isinstance(at, Attention)
        else how
    )


# ---- operations --------------------------------------------------------------------------------------------


def tower_block(r: Recorder, x: Tensor, block: Block, how: RunConfig) -> Tensor:
    """A layer of the tower, or one of its ends."""
    if TOWER_START in block.kind:
        return _patch_embedding_rows(r, block, how)
    if TOWER_JOIN in block.kind:
        return _merge_image_tokens(r, x, block, how)
    (at,), ff = block.mixers, block.feed_forward
    assert isinstance(at, Attention)
    assert isinstance(ff, Dense)
    x = r.add(_vision_attention(r, apply_norm(r, x, block.norms[0], how), at, how), x, "/residual")
    return r.add(dense_feed_forward(r, apply_norm(r, x, block.norms[1], how), ff, how), x, "/residual")


def _patch_embedding_rows(r: Recorder, block: Block, how: RunConfig) -> Tensor:
    """A convolution whose stride is its kernel, which saves its weight as well as the patches, then those of
    each window next to one another.
    """
    kernel = block.extras[0]
    values = prod(kernel.shape[1:])
    name = kernel.path.removesuffix(".weight")
    weight = r.autocast(r.parameter(name, (kernel.shape[0], values), how.parameters, trains=how.trains), name)
    picture: Tensor = r.cast(Tensor(None, ("p", values), PIXELS), how.parameters, f"{name}/input")
    given = r.autocast(picture, f"{name}/input")
    out: Shape = ("p", kernel.shape[0])

    def backward(_: object) -> list[Grad | None]:
        return [None, r.grad((kernel.shape[0], values), weight.dtype)]

    x = r.apply(r.tensor(f"{name}/output", out, weight.dtype), (given, weight), (given, weight), backward)
    if (
        how.asks_grad and r.saves
    ):  # of the patches' embeddings too (modeling_utils.py:2137, _input_embed_layer)
        x.node = Node(0, "", (), [], [], lambda _: [])
    return (
        _reorder_rows(r, x, out, f"{name}/sorted", kept=(x,) if how.asks_grad else ())
        if block.kind.startswith(WINDOWED)
        else x
    )


def _reorder_rows(
    r: Recorder, x: Tensor, shape: Shape, path: str, *, kept: tuple[Tensor, ...] = ()
) -> Tensor:
    """Rows picked by a list of indices: a copy, and its gradient is put into zeros. ``kept``: what was asked
    for a gradient, which the graph holds on to.
    """
    dtype = x.dtype
    return r.apply(r.tensor(path, shape, dtype), (x,), kept, lambda _: [r.grad(shape, dtype)])


def _vision_attention(r: Recorder, x: Tensor, at: Attention, how: RunConfig) -> Tensor:
    """Queries and keys are turned in fp32; all three are cut into pictures or windows, whose results are
    joined again.
    """
    weights = {w.path: w for w in at.weights}
    first, last = (w.path.removesuffix(".weight") for w in at.weights if w.path.endswith(".weight"))
    whole = record_linear(r, x, weights, first, "(a+2k)·d", "h", how)
    q, k, v = r.split(whole, (MERGED, MERGED, MERGED))
    del whole
    q, k = _fp32_rotary_qk(r, q, k, at)
    cut = [_window_views(r, each) for each in (q, k, v)]
    context = CORES[how.attention](r, cut[0], cut[1], cut[2], at, how, LLAMA)[0]
    joined = r.cat((context,), ("b", "s", "a·d"), at.path + "/joined")
    return record_linear(r, joined, weights, last, "h", "a·d", how)


def _fp32_rotary_qk(r: Recorder, q: Tensor, k: Tensor, at: Attention) -> tuple[Tensor, Tensor]:
    """Both raised to fp32 before either is turned, and lowered after both are."""
    dtype, table = q.dtype, Tensor(None, ("s", at.head_dim), FP32)
    q, k = r.cast(q, FP32, at.path + "/q/fp32"), r.cast(k, FP32, at.path + "/k/fp32")
    turned = [
        _apply_vision_rotary(r, x, table, f"{at.path}/{name}", at.head_dim)
        for x, name in ((q, "q"), (k, "k"))
    ]
    low = r.cast(turned[0], dtype, at.path + "/q/rotary")
    return low, r.cast(turned[1], dtype, at.path + "/k/rotary")


def _apply_vision_rotary(r: Recorder, x: Tensor, table: Tensor, path: str, width: int) -> Tensor:
    half: Shape = (*x.shape[:-1], width // 2)
    cosine = r.mul(x, table, path + "/cos")
    first, second = r.slice(x, half), r.slice(x, half)
    rotated = r.cat((r.scale(second, path + "/neg"), first), x.shape, path + "/rotated")
    sine = r.mul(rotated, table, path + "/sin")
    del rotated, first, second
    return r.add(cosine, sine, path + "/rotary")


def _window_views(r: Recorder, x: Tensor) -> Tensor:
    """Views of one picture or window each; their gradients are joined into a new tensor."""
    shape: Shape = ("b", "a", "s", "d")
    back, dtype = x.shape, x.dtype
    return r.apply(Tensor(x.storage, shape, dtype), (x,), (), lambda _: [r.grad(back, dtype)])


def _merge_image_tokens(r: Recorder, x: Tensor, block: Block, how: RunConfig) -> Tensor:
    """The merger, then its tokens in their places among the words'."""
    weights = {w.path: w for w in block.extras}
    first, last = (w.path.removesuffix(".weight") for w in block.extras if len(w.shape) > 1)
    inner, width = weights[first + ".weight"].shape[0], weights[last + ".weight"].shape[0]
    y = r.view(apply_norm(r, x, block.norms[0], how), ("q", inner))
    y = record_linear(r, y, weights, first, inner, inner, how)
    y = r.unary(y, "merger/activation", saves="input")
    y = record_linear(r, y, weights, last, width, inner, how)
    seen: Shape = ("q", width)
    made = _reorder_rows(r, y, seen, "merger/sorted") if block.kind.startswith(WINDOWED) else y
    pieces = _image_views(r, made, seen)
    features = r.cast(r.cat((pieces,), seen, "merger/joined"), how.parameters, "merger/features")
    return _scatter_image_features(r, features, seen, width, how)


def _image_views(r: Recorder, x: Tensor, shape: Shape) -> Tensor:
    """Views, one for each picture, whose gradients are joined."""
    dtype = x.dtype
    return r.apply(Tensor(x.storage, shape, dtype), (x,), (), lambda _: [r.grad(shape, dtype)])


def _scatter_image_features(
    r: Recorder, features: Tensor, seen: Shape, width: Axis, how: RunConfig
) -> Tensor:
    """The words' states with the pictures' in place of some: a copy. Backward makes both gradients; the
    words' waits for the tower's.
    """
    shape, dtype = ("B", "S", width), how.parameters
    needed = how.trains or how.asks_grad
    words = Tensor(None, shape, dtype, Node(0, "", (), [], [], lambda _: []) if needed else None)

    def backward(_: object) -> list[Grad | None]:
        return [r.grad(shape, dtype) if needed else None, r.grad(seen, dtype)]

    return r.apply(r.tensor("merger/scattered", shape, dtype), (words, features), (), backward)
