"""The gated delta rule by chunks of a sequence, in plain operations of torch (transformers 5.23,
modeling_qwen3_next.py:373-516): first what is inside each chunk, all at once in fp32, then a loop over chunks
that hands a state on. Names stand for those of its function.

Of the loop the last two chunks are recorded, which backward takes first: with them every gradient of full
size is there, so that no chunk before them stands higher; what those keep is recorded in one piece. Axes
besides those of ``delta.py``: ``m`` chunks of ``Q`` positions, ``N`` in all; ``m-2`` and ``m-3`` chunks
before the last two, with the first or without.
"""

from __future__ import annotations

from memsheet.arith import Count, agreed, ceil_div, maximum
from memsheet.formulas.model_code.transformers.norms import reciprocal_root
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.plan.dtypes import BOOL, FP32, DType
from memsheet.references import TRANSFORMERS, formula

CHUNK = 64
"""Positions that are solved at once (modeling_qwen3_next.py:380)."""
PADDED, ONE, TWO = "padded", "one chunk", "two chunks"
"""Options of a recording: the last chunk is filled up; how few chunks there are."""
KEY: Shape = ("b", "H", "s", "p")
VALUE: Shape = ("b", "H", "s", "w")
NUMBER: Shape = ("b", "H", "s", 1)
CHUNKS: Shape = ("b", "H", "m", "Q")
KEY_CHUNKS: Shape = (*CHUNKS, "p")
VALUE_CHUNKS: Shape = (*CHUNKS, "w")
PAIRS: Shape = (*CHUNKS, "Q")
STATE: Shape = ("b", "H", "p", "w")


@formula(cites=TRANSFORMERS, at="modeling_qwen3_next.py:380, 426-430: chunks are filled up")
def chunk_axes(seq_len: Count) -> dict[str, Count]:
    """Values of the axes of chunks."""
    chunks = ceil_div(seq_len, CHUNK)
    return {
        "m": chunks,
        "Q": CHUNK,
        "N": chunks * CHUNK,
        "m-2": maximum(chunks - 2, 0),
        "m-3": maximum(chunks - 3, 0),
    }


def chunk_options(seq_len: Count) -> frozenset[str]:
    """What a recording of a sequence depends on."""
    few = {
        ONE: seq_len <= CHUNK,
        TWO: (seq_len > CHUNK) & (seq_len <= 2 * CHUNK),
        PADDED: seq_len % CHUNK != 0,
    }
    return frozenset(name for name, holds in few.items() if agreed(holds))


def chunk_rule(
    r: Recorder, heads: tuple[Tensor, Tensor, Tensor], decay: Tensor, beta: Tensor, path: str, how: RunConfig
) -> Tensor:
    """torch_chunk_gated_delta_rule. ``heads``: queries, keys and values by position."""
    q, k, v = heads
    dtype, repeated = q.dtype, ("b", "s", "H", "p")
    if q.shape != repeated:
        q, k = (
            _repeat_qk_heads(r, t, repeated, f"{path}/{name}_repeated") for t, name in ((q, "q"), (k, "k"))
        )
    q, k, v, beta = (
        r.cast(r.view(t, shape), FP32, f"{path}/{name}_fp32")
        for t, shape, name in ((q, KEY, "q"), (k, KEY, "k"), (v, VALUE, "v"), (beta, NUMBER, "beta"))
    )
    decay = r.view(decay, NUMBER)
    q, k = _l2_normalize_rows(r, q, path + "/q"), _l2_normalize_rows(r, k, path + "/k")
    q = r.scale(q, path + "/q_scaled")
    q, k, v = (_pad_to_chunks(r, t, f"{path}/{name}") for t, name in ((q, "q"), (k, "k"), (v, "v")))
    beta, decay = _pad_to_chunks(r, beta, path + "/beta"), _pad_to_chunks(r, decay, path + "/decay")
    v_beta, k_beta = r.mul(v, beta, path + "/v_beta"), r.mul(k, beta, path + "/k_beta")
    q, k = r.view(q, KEY_CHUNKS), r.view(k, KEY_CHUNKS)
    k_beta, v_beta = r.transposed_view(k_beta, KEY_CHUNKS), r.transposed_view(v_beta, VALUE_CHUNKS)
    total = r.unary(r.view(decay, CHUNKS), path + "/cum_decay", saves="nothing")
    pairwise = _pairwise_decay(r, total, path)
    system = r.mul(r.product(k_beta, k, PAIRS, path + "/ut"), pairwise, path + "/ut_system")
    attn = r.mul(r.product(q, k, PAIRS, path + "/intra"), pairwise, path + "/intra_attn")
    decayed = r.mul(k_beta, _cumulative_decay_exp(r, total, path), path + "/decayed_k_beta")
    new, k_cum = (
        _solve_triangular(r, system, v_beta, path + "/new_values"),
        _solve_triangular(r, system, decayed, path + "/k_cumdecay"),
    )
    out = r.tensor(path + "/core", VALUE_CHUNKS, FP32)
    q = r.mul(q, _cumulative_decay_exp(r, total, path), path + "/q_decayed")
    left = r.unary(r.add(total, total, path + "/rest"), path + "/rest_exp", saves="output")
    k = r.mul(k, r.view(left, (*CHUNKS, 1)), path + "/k_decayed")
    whole = r.unary(r.slice(total, ("b", "H", "m", 1)), path + "/chunk_decay", saves="output")
    out, *_named = _chunk_loop(r, (new, k_cum, q, attn, k, whole), out, path, how)
    out = r.copy(out, ("b", "H", "N", "w"), path + "/context")
    out = r.slice(out, VALUE) if PADDED in how.options else r.view(out, VALUE)
    return r.cast(r.view(out, ("b", "s", "H", "w")), dtype, path + "/context")


# ---- inside a chunk ----------------------------------------------------------------------------------------


def _repeat_qk_heads(r: Recorder, x: Tensor, shape: Shape, path: str) -> Tensor:
    """Queries or keys for every head of values; their gradient is summed back."""
    back, dtype = x.shape, x.dtype
    return r.apply(r.tensor(path, shape, dtype), (x,), (), lambda _: [r.grad(back, dtype)])


def _l2_normalize_rows(r: Recorder, x: Tensor, path: str) -> Tensor:
    """Each row over the root of its squares' sum, whose gradient is spread as a view (l2norm, :366-370)."""
    squares, line = r.mul(x, x, path + "/squares"), (*x.shape[:-1], 1)
    back = squares.shape
    total = r.apply(
        r.tensor(path + "/sum", line, FP32), (squares,), (), lambda g: [Grad(g.storage, back, FP32)]
    )
    del squares
    return r.mul(x, reciprocal_root(r, total, path), path + "/unit")


def _pad_to_chunks(r: Recorder, x: Tensor, path: str) -> Tensor:
    """Copied to whole chunks."""
    back = x.shape
    return r.apply(
        r.tensor(path + "/padded", (*back[:2], "N", back[3]), FP32), (x,), (), lambda _: [r.grad(back, FP32)]
    )


def _cumulative_decay_exp(r: Recorder, total: Tensor, path: str) -> Tensor:
    return r.view(r.unary(total, path + "/cum_exp", saves="output"), (*CHUNKS, 1))


def _pairwise_decay(r: Recorder, total: Tensor, path: str) -> Tensor:
    """The decay between each two positions of a chunk (:458-460)."""
    ones = r.tensor(path + "/ones", ("Q", "Q"), BOOL)
    mask = r.tensor(path + "/mask", ("Q", "Q"), BOOL)
    del ones

    def differ(_: Grad) -> list[Grad | None]:
        negated = r.grad(PAIRS, FP32)
        sums = [r.grad(CHUNKS, FP32), r.grad(CHUNKS, FP32)]
        del negated
        return [*sums]

    made = r.apply(r.tensor(path + "/pairs", PAIRS, FP32), (total, total), (), differ)
    made = r.apply(r.tensor(path + "/masked", PAIRS, FP32), (made,), (mask,), lambda _: [r.grad(PAIRS, FP32)])
    return r.unary(made, path + "/pairwise", saves="output")


def _solve_triangular(r: Recorder, system: Tensor, b: Tensor, path: str) -> Tensor:
    """A triangular system solved for ``b``: keeps the system and what was found (torch FunctionsManual.cpp,
    linalg_solve_triangular_backward).
    """
    shape = b.shape
    needs = (system.needs_grad, b.needs_grad)
    out = r.tensor(path, shape, FP32)

    def backward(_: Grad) -> list[Grad | None]:
        of_b = r.grad(shape, FP32)
        product = r.grad(PAIRS, FP32)
        negated = r.grad(PAIRS, FP32)
        del product
        of_system = r.grad(PAIRS, FP32)
        del negated
        return [of_system if needs[0] else None, of_b if needs[1] else None]

    return r.apply(out, (system, b), (system, out), backward)


# ---- from chunk to chunk -----------------------------------------------------------------------------------


Operands = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""New values, decayed keys that read the state, queries, what is inside chunks, keys that write it, decay of
chunks.
"""


def _chunk_loop(
    r: Recorder, operands: Operands, out: Tensor, path: str, how: RunConfig
) -> tuple[Tensor, ...]:
    """The loop; and what it still names when it is through."""
    if {ONE, TWO} & how.options:
        state = r.tensor(path + "/state", STATE, FP32)
    else:
        state, out = _earlier_chunks_state(r, operands, out, path, r.compute or FP32)
    named: dict[str, Tensor] = {}  # each until the next chunk has its own
    for _ in range(1 if ONE in how.options else 2):
        out, state = _chunk_recurrence(r, operands, state, out, path, named)
    return out, *named.values()


def _earlier_chunks_state(
    r: Recorder, operands: Operands, out: Tensor, path: str, low: DType
) -> tuple[Tensor, Tensor]:
    """All chunks but the last two: what their products and their decay keep, autocast's copies in its
    dtype.
    """
    kept: list[Tensor] = []
    if r.saves and any(t.needs_grad for t in operands):
        kept.append(r.tensor(path + "/states", (*STATE, "m-2"), FP32))
        if low is FP32:
            kept.append(r.tensor(path + "/values", ("b", "H", "m-2", "Q", "w"), FP32))
        else:
            kept += [r.tensor(path + "/states", (*STATE, "m-2"), low) for _ in range(2)]
            kept += [r.tensor(path + "/values", ("b", "H", "m-2", "Q", "w"), low) for _ in range(2)]
            kept += [
                r.tensor(path + "/intra", ("b", "H", "m-2", "Q", "Q"), low),
                r.tensor(path + "/k", ("b", "H", "m-2", "Q", "p"), low),
            ]
            kept += [r.tensor(path + "/reads", ("b", "H", "m-3", "Q", "p"), low) for _ in range(2)]
    made = r.tensor(path + "/state", STATE, FP32)
    read, many = (
        (operands if low is FP32 else operands[-1:]),
        len(operands),
    )  # autocast's products keep their copies
    made = r.apply(made, operands, (*kept, *read), lambda *_: [None] * many)
    return made, Tensor(out.storage, out.shape, FP32, made.node, 1)


def _chunk_recurrence(
    r: Recorder, operands: Operands, state: Tensor, out: Tensor, path: str, named: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """One chunk: what it says, and the state after it. ``named``: what goes by a name past its end."""
    new, k_cum, q, attn, k, whole = operands
    one: Shape = ("b", "H", "Q")
    said = r.product(r.slice(k_cum, (*one, "p")), state, (*one, "w"), path + "/read")
    v = named["v_new"] = _subtract_fp32(r, r.slice(new, (*one, "w")), said, path + "/v_new")
    del said
    inter = r.product(r.slice(q, (*one, "p")), state, (*one, "w"), path + "/inter")
    named["inter_chunk_attn"] = inter
    out = _write_slice_inplace(
        r,
        out,
        r.add(inter, r.product(r.slice(attn, (*one, "Q")), v, (*one, "w"), path + "/intra"), path + "/sum"),
    )
    state = r.add(
        r.mul(state, r.slice(whole, ("b", "H", 1, 1)), path + "/left"),
        r.product(r.slice(k, (*one, "p")), v, STATE, path + "/update"),
        path + "/state",
    )
    return out, state


def _subtract_fp32(r: Recorder, a: Tensor, b: Tensor, path: str) -> Tensor:
    shape = a.shape
    return r.apply(
        r.tensor(path, shape, FP32), (a, b), (), lambda g: [Grad(g.storage, shape, FP32), r.grad(shape, FP32)]
    )


def _write_slice_inplace(r: Recorder, out: Tensor, part: Tensor) -> Tensor:
    """A part of ``out`` written in place: backward copies the whole gradient and the part's, and clears the
    part in the whole (torch autograd/functions/tensor.cpp, CopySlices::apply).
    """
    whole, shape, dtype, earlier = out.shape, part.shape, part.dtype, out.needs_grad

    def backward(_: Grad) -> list[Grad | None]:
        left, own = r.grad(whole, FP32), r.grad(shape, FP32)
        cleared = r.grad(shape, FP32) if earlier else None
        low = r.grad(shape, dtype) if dtype is not FP32 else own
        del cleared
        return [left if earlier else None, low]

    return r.apply(Tensor(out.storage, whole, FP32), (out, part), (), backward)
