"""Rotary positions as torchtitan's models turn them: complex numbers, or cosines and sines."""

from __future__ import annotations

from memsheet.arith import agreed
from memsheet.engines.torchtitan.facts import Rotations, version_of
from memsheet.engines.torchtitan.layers.switches import COMPILED, COSINES, OWN_ROTATIONS, RING
from memsheet.formulas.model_code.transformers.rotary_positions import rotate_half
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.bytes_by_path import BytesByPath
from memsheet.formulas.tapes.graph import Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Axis
from memsheet.plan.dtypes import FP32
from memsheet.plan.model import Attention, LatentAttention, ModelSpec
from memsheet.plan.plan import Plan
from memsheet.plan.workload import PassShape
from memsheet.sheet import Component

COSINE_KINDS = frozenset({"qwen3", "qwen3_moe"})
"""Blocks whose table is CosSinRoPE's (b5bcd76, models/qwen3/__init__.py:226), twice as wide as ComplexRoPE's.
"""


def apply_rotary_emb(r: Recorder, pair: list[Tensor], path: str, how: RunConfig) -> tuple[Tensor, Tensor]:
    """Queries and keys turned in fp32 by a table that does not train, and lowered again (9dec370
    models/llama/model.py:87-113; b5bcd76 models/common/rope.py:248-258, 326-346). Before layers had tables
    of their own, cosines and sines were handed to each in its parameters' dtype (238fa99
    models/qwen3/model/model.py:123-131). ``pair`` is emptied.
    """
    if COMPILED in how.options:
        return _compiled_rotary(r, pair, path, how)
    q, k = pair
    pair.clear()
    dtype = q.dtype
    rows = table_rows(r, path, how, "d")
    wide = FP32 if rows.dtype is FP32 else dtype
    low = (r.cast(q, wide, path + "/q_fp32"), r.cast(k, wide, path + "/k_fp32"))
    turned = [turned_by(r, x, rows, f"{path}/{name}", how) for x, name in zip(low, "qk", strict=True)]
    return r.cast(turned[0], dtype, path + "/q_rotary"), r.cast(turned[1], dtype, path + "/k_rotary")


def _compiled_rotary(r: Recorder, pair: list[Tensor], path: str, how: RunConfig) -> tuple[Tensor, Tensor]:
    """The same in a compiled layer, where rows are taken as they are read. Cosines and sines are one kernel
    for each. For complex numbers inductor writes none: what is read as such is made, and so is the product
    (torch 2.6.0 and 2.13.0 _inductor/lowering.py, unsupported_input_tensor); keys stay in fp32 where what
    repeats them lowers them.
    """
    if COSINES in how.options:
        q, k = (r.scale(pair.pop(0), f"{path}/{name}_rotary") for name in "qk")
        return q, k
    dtype, rows = pair[0].dtype, Tensor(None, ("s", "d"), FP32)
    wide = [r.cast(pair.pop(0), FP32, f"{path}/{name}_fp32") for name in "qk"]
    turned = [r.mul(wide.pop(0), rows, f"{path}/{name}_turned") for name in "qk"]
    return r.cast(turned.pop(0), dtype, path + "/q_rotary"), turned.pop()


def table_rows(r: Recorder, path: str, how: RunConfig, width: Axis) -> Tensor:
    """The table's rows of a layer's tokens, in fp32 as wide as what they turn (cosines and sines twice): a
    view, or as many as tokens where they are taken by position.
    """
    low = COSINES in how.options and OWN_ROTATIONS not in how.options
    dtype = how.stream if low else FP32
    if OWN_ROTATIONS in how.options:
        return r.tensor(
            path + "/rotary_rows", ("b", "s", 1, "2·d" if COSINES in how.options else width), dtype
        )
    if low and RING in how.options:  # ranks that share a sequence index the table by position
        return r.tensor(path + "/rotary_rows", ("s", "2·d"), dtype)
    return Tensor(None, ("s", "d"), dtype)


def turned_by(r: Recorder, x: Tensor, rows: Tensor, path: str, how: RunConfig) -> Tensor:
    if COSINES not in how.options:
        return r.mul(x, rows, path + "_turned")
    cosine = r.mul(x, rows, path + "_cos")
    return r.add(cosine, r.mul(rotate_half(r, x, path), rows, path + "_sin"), path + "_turned")


def _turned_width(at: Attention | LatentAttention) -> int:
    return at.head_dim if isinstance(at, Attention) else at.qk_rope_head_dim


def rotation_bytes(spec: ModelSpec, plan: Plan, shape: PassShape, how: RunConfig) -> BytesByPath:
    """Tables of rotations in fp32 for the longest sequence. One for the model, of which ranks that share a
    sequence keep a copy to put back (820504e utils.py:171-192 and torch's context_parallel); besides, where
    they are cosines and sines, a copy in the parameters' dtype for each layer, to which fully_shard casts
    what a layer is handed (238fa99 models/llama4/infra/parallelize.py:353); or one for each layer (b5bcd76
    models/common/rope.py:107, attention.py:902).
    """
    way = version_of(plan.engine_version).rotations
    layers = [
        (2 if block.kind in COSINE_KINDS else 1, _turned_width(at), run.count)
        for stack in spec.stacks
        for run in stack.runs
        for block in run.pattern
        for at in block.mixers
        if isinstance(at, Attention | LatentAttention)
    ]
    if way is Rotations.OWN:
        sizes = (4 * shape.tokens * wide * dim * count for wide, dim, count in layers)
        return BytesByPath.of(((Component.BUFFERS, "layers.*.attention.rope.cache"), size) for size in sizes)
    copies = 1 + (1 if agreed(plan.mesh.cp > 1) else 0)
    tables = [
        ((Component.BUFFERS, "freqs_cis"), copies * 4 * shape.tokens * wide * dim)
        for wide, dim in dict.fromkeys((wide, dim) for wide, dim, _ in layers)
    ]
    handed = [
        (
            (Component.SAVED_ACTIVATIONS, "layers.*/rope_cache"),
            how.stream.nbytes(shape.tokens * wide * dim * count),
        )
        for wide, dim, count in layers
        if wide > 1 and how.stream is not FP32
    ]
    return BytesByPath.of([*tables, *handed])
