"""Attention over ranks that exchange positions for heads, as accelerate has DeepSpeed run it (DeepSpeed
edaa722 runtime/sequence_parallel/ulysses_sp.py, UlyssesSPAttentionHF; accelerate 1.15.0
accelerator.py:2395-2447).

Outside attention a rank has one part of every sequence; inside, all positions of its part of the heads.
"""

from __future__ import annotations

from collections.abc import Iterable

from memsheet.arith import agreed
from memsheet.errors import Problem
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.plan.dtypes import BF16, FP16, FP32, INT64
from memsheet.plan.model import Attention, ModelSpec
from memsheet.plan.plan import AttentionKind, ContextParallel, Plan

REPEATED = "repeated heads of keys"
"""And there are fewer heads of keys than ranks."""
ONE_KEY, ONE_QUERY = "one head of keys", "one head of queries"
"""And a rank has no more than one of them."""
BY_POSITION = "results by position"
"""And attention's result lies by positions: the flash-attn package's does, torch's lies as the queries do."""
MERGED: Shape = ("b", "s", "a", "d")
SEQUENCES_FIRST: Shape = ("s", "b", "a", "d")
OF_ALL: Shape = ("b", "k+", "s", "d")
"""Keys or values of a rank's heads at all positions, as many numbers as all heads at its own: ``k+`` heads,
one a rank at least.
"""
EXCHANGING = frozenset({
    "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe",
})  # fmt: skip
"""Families of plain causal attention through the library's table of attention functions."""


def exchange_problems(spec: ModelSpec, plan: Plan) -> Iterable[Problem]:
    """What DeepSpeed or accelerate refuses of ranks that exchange heads, and what is not modelled of them."""
    if plan.context_parallel is not ContextParallel.ALL_TO_ALL:
        return []
    degree, low, length = plan.mesh.cp, plan.precision.compute, plan.training.seq_len
    mixers = [at for at in spec.mixers() if isinstance(at, Attention)]
    windows = any(at.window or at.chunk or at.sinks or at.softcap for at in mixers)
    kinds = sorted({block.kind for block in spec.blocks()} - EXCHANGING)
    heads = sorted({at.heads for at in mixers if agreed(at.heads % degree != 0)})
    keys = sorted(
        {at.kv_heads for at in mixers if agreed((at.kv_heads % degree) * (degree % at.kv_heads) != 0)}
    )
    adapter = plan.adapter is not None and plan.adapter.kind.prompts
    fused = (AttentionKind.SDPA, AttentionKind.FLASH)
    reasons = [
        ("is not modelled of windows, sinks or caps of scores, whose masks it leaves out", windows),
        (f"is not modelled of {', '.join(kinds)}", bool(kinds) and not windows),
        (f"does not divide {min(heads, default=0)} heads, which DeepSpeed refuses", bool(heads)),
        (f"neither divides {min(keys, default=0)} heads of keys nor is a multiple of them, which DeepSpeed refuses", bool(keys)),
        (f"is not modelled with {plan.attention.value} attention", plan.attention not in fused),
        (f"is not modelled in {low.name}, for which there is no flash kernel", low not in (BF16, FP16) or plan.before_ampere),
        (f"does not divide {length} tokens, which DeepSpeed refuses", agreed(length % degree != 0)),
        ("is not modelled of heads that are padded", any(at.head_dim % 8 for at in mixers)),
        ("is not modelled of pictures", bool(spec.towers)),
        ("is not modelled with prompts before a sequence, of which every rank would have its own", adapter),
    ]  # fmt: skip
    hint = "sequences of which a rank has all"
    return [Problem(field="mesh.cp", value=degree, reason=why, hint=hint) for why, holds in reasons if holds]


def exchange_options(at: Attention, plan: Plan) -> frozenset[str]:
    """What of ``RunConfig.options`` ranks that exchange heads make of a block."""
    told = {
        REPEATED: agreed(plan.mesh.cp > at.kv_heads),
        ONE_KEY: agreed(plan.mesh.cp >= at.kv_heads),
        ONE_QUERY: agreed(plan.mesh.cp >= at.heads),
        BY_POSITION: plan.attention is AttentionKind.FLASH,
    }
    return frozenset(name for name, holds in told.items() if holds)


def exchanged_attention(
    r: Recorder, qkv: tuple[Tensor, Tensor, Tensor], path: str, how: RunConfig
) -> tuple[Tensor, None]:
    """Each of the three laid out by ranks, sent, and what comes laid out by heads; attention over all
    positions; and its result sent back. Positions of all ranks are gathered and joined meanwhile.
    """
    gathered = r.tensor(f"{path}/positions", ("cp", "b", "s"), INT64)
    positions = r.tensor(f"{path}/all_positions", ("cp", "b", "s"), INT64)
    received = [
        _head_positions(r, x, f"{path}/{name}", name, how) for x, name in zip(qkv, "qkv", strict=True)
    ]
    laid = [_by_head(r, received, number, f"{path}/{name}_heads", how) for number, name in enumerate("qkv")]
    context = _flash_attention(r, laid, path, how)
    sent = r.copy(context, SEQUENCES_FIRST, f"{path}/context_sent") if how.several else context
    back = [_sent_to_all(r, sent, f"{path}/context_received", contiguous=False)]
    out = r.copy(back[0], SEQUENCES_FIRST, f"{path}/context_joined")
    back.clear()
    del sent, context, laid, gathered, positions
    return (r.copy(out, MERGED, f"{path}/context_joined") if how.several else out), None


def _head_positions(r: Recorder, x: Tensor, path: str, name: str, how: RunConfig) -> Tensor:
    """A rank's heads at all positions, of all heads at its own. Where there are fewer heads of keys than
    ranks, they are repeated first. A gradient that comes back by ranks is laid out by positions.
    """
    keys, whole, dtype = name != "q", x.shape, x.dtype
    repeats, laid = (
        keys and REPEATED in how.options,
        not how.several and name == "v",
    )  # as its product wants it
    if repeats:
        x = r.apply(
            r.tensor(f"{path}_repeated", OF_ALL, dtype),
            (x,),
            (),
            lambda g: [_laid(r, g, whole, copies=not laid)],
        )
    one, sent_shape = _has_one(name, how), x.shape
    if one and name != "v" and not repeats and not how.several:
        sent = r.view(x, sent_shape)
    else:
        copies = not one and not (laid and not repeats)
        sent = r.apply(
            r.tensor(f"{path}_sent", sent_shape, dtype),
            (x,),
            (),
            lambda g: [_laid(r, g, sent_shape, copies=copies)],
        )
    del x
    return _sent_to_all(r, sent, f"{path}_received", contiguous=one and not how.several)


def _has_one(name: str, how: RunConfig) -> bool:
    """Whether a rank has one head of them."""
    return (ONE_QUERY if name == "q" else ONE_KEY) in how.options


def _laid(r: Recorder, g: Grad, shape: Shape, *, copies: bool) -> Grad:
    return r.grad(shape, g.dtype) if copies else Grad(g.storage, shape, g.dtype)


def _by_head(r: Recorder, received: list[Tensor], number: int, path: str, how: RunConfig) -> Tensor:
    """A copy by heads, in whose place what came goes; one head of one sequence lies as it should."""
    x = received[number]
    made = (
        r.view(x, x.shape) if not how.several and _has_one("qkv"[number], how) else r.copy(x, x.shape, path)
    )
    received[number] = made
    return made


def _flash_attention(r: Recorder, qkv: list[Tensor], path: str, how: RunConfig) -> Tensor:
    """Over all positions of a rank's heads. What lies by heads, as the queries do, is copied."""
    q = qkv[0]
    out = r.tensor(f"{path}/context", q.shape, q.dtype)
    rows = r.tensor(f"{path}/logsumexp", ("b", "a", "s"), FP32)
    seed = r.tensor(f"{path}/rng", (3,), INT64)
    r.custom(path, tuple(qkv), out, (*qkv, out, rows, seed))
    lies = BY_POSITION in how.options or (not how.several and _has_one("q", how))
    return r.view(out, MERGED) if lies else r.copy(out, MERGED, f"{path}/context")


def _sent_to_all(r: Recorder, x: Tensor, path: str, *, contiguous: bool) -> Tensor:
    """An exchange with all ranks, whose gradient is exchanged as well: into memory like the gradient's and
    then contiguous, of a contiguous copy (deepspeed/sequence/layer.py, _DimZeroAllToAll).
    """
    shape, dtype = x.shape, x.dtype

    def backward(_: Grad) -> list[Grad | None]:
        alike = None if contiguous else r.grad(shape, dtype, f"{path}/alike")
        made = r.grad(shape, dtype, path)
        del alike
        given = None if contiguous else r.grad(shape, dtype, f"{path}/contiguous")
        del given
        return [made]

    return r.apply(r.tensor(path, shape, dtype), (x,), (), backward)
