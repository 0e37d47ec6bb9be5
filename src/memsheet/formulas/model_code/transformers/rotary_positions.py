"""Rotary positions: heads turned by tables of cosines and sines, whole or in part."""

from __future__ import annotations

from memsheet.formulas.model_code.transformers.families import FamilyTraits, PartialRotary
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.graph import Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.plan.dtypes import FP32, INT64, DType
from memsheet.plan.model import Attention


def apply_rotary_positions(
    r: Recorder, q: Tensor, k: Tensor, at: Attention, how: RunConfig, own: FamilyTraits
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Positions turned into all of each head, or into its first ``rotary_dim`` elements, which then join the
    rest.

    Besides queries and keys, what the caller still names while attention runs.
    """
    gathered = _gathered_table(r, q, at, how) if own.own_tables and own.table_buffer else ()
    tables = _cos_sin_tables(r, q, at, how, own)
    paths = (at.path + "/q", at.path + "/k")
    if own.rest is PartialRotary.NONE and (own.wide_tables or own.wide_rotary) and not own.rotary_kernel:
        return *_turned_in_fp32(r, (q, k), tables, paths, own), ()
    if own.rest is PartialRotary.NONE:
        return _apply_cos_sin(r, q, tables, paths[0], own), _apply_cos_sin(r, k, tables, paths[1], own), ()
    (q_turned, q_rest), (k_turned, k_rest) = _split_rotary_dims(r, q, at), _split_rotary_dims(r, k, at)
    if own.rest is PartialRotary.AT_ONCE:
        q = _join_rotary_dims(r, _apply_cos_sin(r, q_turned, tables, paths[0], own), q_rest, paths[0])
        return (
            q,
            _join_rotary_dims(r, _apply_cos_sin(r, k_turned, tables, paths[1], own), k_rest, paths[1]),
            (),
        )
    q_turned = _apply_cos_sin(r, q_turned, tables, paths[0], own)
    k_turned = _apply_cos_sin(
        r, k_turned, _cos_sin_tables(r, q, at, how, own) if own.table_buffer else tables, paths[1], own
    )
    named = (q_turned, q_rest, k_turned, k_rest, *gathered) if own.rest is PartialRotary.TO_THE_END else ()
    q = _join_rotary_dims(r, q_turned, q_rest, paths[0])
    if own.rest is PartialRotary.IN_TURN:
        del q_turned
    return q, _join_rotary_dims(r, k_turned, k_rest, paths[1]), named


def _turned_in_fp32(
    r: Recorder, heads: tuple[Tensor, Tensor], tables: list[Tensor], paths: tuple[str, str], own: FamilyTraits
) -> tuple[Tensor, Tensor]:
    """Queries and keys turned in fp32, which are lowered when both are there (modeling_olmo2.py,
    modeling_cohere.py, modeling_ernie4_5.py: apply_rotary_pos_emb). Cohere names both as they were raised;
    ERNIE raises each operand for its own product.
    """
    named = own.wide_rotary and not own.wide_tables
    raised = [r.cast(x, FP32, path + "/fp32") if named else x for x, path in zip(heads, paths, strict=True)]
    wide = [
        _cos_sin_sum(r, x, tables, path, raises=own.wide_rotary)
        for x, path in zip(raised, paths, strict=True)
    ]
    q, k = (r.cast(wide[place], x.dtype, paths[place] + "/rotary") for place, x in enumerate(heads))
    return q, k


def scale_by_position(r: Recorder, q: Tensor, path: str) -> Tensor:
    """Queries times a number of their position, which each layer makes in fp32 and lowers
    (modeling_ministral3.py:104-106).
    """
    wide = r.tensor(path + "/position_scale", (1, 1, "s", 1), FP32)
    number = r.tensor(path + "/position_scale", (1, 1, "s", 1), q.dtype) if q.dtype is not FP32 else wide
    del wide
    return r.mul(q, number, path + "/q_scaled")


def _cos_sin_tables(r: Recorder, q: Tensor, at: Attention, how: RunConfig, own: FamilyTraits) -> list[Tensor]:
    """Cosines and sines: the model's, or copies of this layer's own."""
    shape: Shape = ("b", "s", at.rotary_dim) if how.positions_each else ("s", at.rotary_dim)
    dtype = q.dtype if own.table_buffer else table_dtype(how, own)
    path = at.path + "/rotary_table"
    return [r.tensor(path, shape, dtype) if own.own_tables else Tensor(None, shape, dtype) for _ in range(2)]


def _gathered_table(r: Recorder, q: Tensor, at: Attention, how: RunConfig) -> tuple[Tensor, Tensor]:
    """Indices of every element that a layer takes out of its table, and those elements, sines beside cosines
    (modeling_gptj.py:193-195).
    """
    shape: Shape = ("b" if how.positions_each else 1, "s", at.rotary_dim)
    path = at.path + "/rotary_table"
    return r.tensor(path + "/indices", shape, INT64), r.tensor(path + "/rows", shape, q.dtype)


def table_dtype(how: RunConfig, own: FamilyTraits) -> DType:
    return FP32 if own.wide_tables and not how.handed_low else how.stream


def lowers_tables(how: RunConfig, own: FamilyTraits) -> bool:
    """Whether a layer is handed copies of fp32 tables in a lower dtype."""
    return how.handed_low and own.wide_tables and not own.rotary_kernel


def _split_rotary_dims(r: Recorder, x: Tensor, at: Attention) -> tuple[Tensor, Tensor]:
    first, rest = (*x.shape[:-1], at.rotary_dim), (*x.shape[:-1], at.head_dim - at.rotary_dim)
    return r.slice(x, first), r.slice(x, rest)


def _join_rotary_dims(r: Recorder, turned: Tensor, rest: Tensor, path: str) -> Tensor:
    return r.cat((turned, rest), (*turned.shape[:-1], "d"), path + "/rotary")


def _apply_cos_sin(r: Recorder, x: Tensor, tables: list[Tensor], path: str, own: FamilyTraits) -> Tensor:
    """The sum of x * cos and rotated x * sin; what fp32 tables or an fp32 head widened is lowered again."""
    dtype = x.dtype
    if own.rotary_kernel:
        x = r.cast(x, FP32, path + "/fp32") if own.wide_rotary else x
        return r.cast(r.scale(x, path + "/rotary"), dtype, path + "/rotary")
    turned = _cos_sin_sum(r, x, tables, path)
    return r.cast(turned, dtype, path + "/rotary") if own.wide_tables else turned


def _cos_sin_sum(r: Recorder, x: Tensor, tables: list[Tensor], path: str, *, raises: bool = False) -> Tensor:
    """``raises``: each operand to fp32, for its own product alone."""

    def operand(y: Tensor) -> Tensor:
        return r.cast(y, FP32, path + "/fp32") if raises else y

    cosine = r.mul(operand(x), tables[0], path + "/cos")
    sine = r.mul(operand(rotate_half(r, x, path)), tables[1], path + "/sin")
    return r.add(cosine, sine, path + "/rotary")


def rotate_half(r: Recorder, x: Tensor, path: str) -> Tensor:
    """Two halves of a head (or its odd and even elements) change places, one of them negated."""
    last = x.shape[-1]
    half = (*x.shape[:-1], last // 2 if isinstance(last, int) else f"{last}/2")
    first, second = r.slice(x, half), r.slice(x, half)
    return r.cat((r.scale(second, path + "/neg"), first), x.shape, path + "/rotated")
