"""The code that Qwen's first models brought along, as other families of the hub do, and the losses of its
time (modeling_qwen.py of Qwen/Qwen-7B; transformers 4.36).

Its shapes are those of qwen2 with as many heads of keys as of queries; queries, keys and values come out of
one projection (attn.c_attn).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memsheet.frozen import replace
from memsheet.plan.defaults import FUSED_TARGETS
from memsheet.plan.dtypes import FP32
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import Attention, Block, ModelSpec, Stack, Weight
from memsheet.plan.plan import Plan
from memsheet.plan.verified_families import JOINED_QKV
from memsheet.plan.workload import Training

if TYPE_CHECKING:
    from memsheet.formulas.tapes.graph import Tensor
    from memsheet.formulas.tapes.recorder import Recorder
    from memsheet.formulas.tapes.tape import Shape


KIND = "qwen"
SHIFTED, SHIFTED_LOW, SHIFTED_SAME = "shifted_lm", "shifted_low_lm", "shifted_same_lm"
"""Kinds of heads by their loss: logits raised to fp32 before they are shifted (Llama's code), or shifted as
they are (Qwen's) and raised by autocast, or never raised.
"""


def spec_with_fused_qkv(spec: ModelSpec, plan: Plan) -> ModelSpec:
    """The model with its projections as one where the plan's adapter is on such a one."""
    targets = plan.adapter.targets if plan.adapter else ()
    named = any(name in FUSED_TARGETS for name in targets)
    if spec.source.own_code and isinstance(plan.workload, Training):
        return _as_own_code(spec, joined=named or (not targets and spec.source.own_code in JOINED_QKV))
    if not named or not any(_separate_qkv_weights(block) for block in spec.blocks()):
        return spec
    stacks = _fused_stacks(spec, KIND)
    kind = SHIFTED_SAME if engine_of(plan).casts_whole_model else SHIFTED_LOW
    head = replace(spec.head, kind=kind) if spec.head.kind == "causal_lm" else spec.head
    return replace(spec, stacks=stacks, head=head)


def _as_own_code(spec: ModelSpec, *, joined: bool) -> ModelSpec:
    """A family of the hub as its own code trains it: logits are raised to fp32 and then shifted, as Llama's
    code did of which theirs are copies, and where it has one matrix of queries, keys and values, they are
    parts of what that makes.

    InternLM2's (OpenGVLab/InternVL 2410d1d, internvl/model/internlm2/modeling_internlm2.py), run on tensors
    without memory, keeps 152.25 MiB a layer for 512 tokens, of which 152.00 are accounted here: it makes its
    rotary tables in every layer.
    """
    head = replace(spec.head, kind=SHIFTED) if spec.head.kind == "causal_lm" else spec.head
    return replace(spec, stacks=_fused_stacks(spec) if joined else spec.stacks, head=head)


def _fused_stacks(spec: ModelSpec, kind: str = "") -> tuple[Stack, ...]:
    """``kind``: whose code runs them, where it is not the family's."""
    return tuple(
        replace(
            stack,
            runs=tuple(
                replace(
                    run, pattern=tuple(_fuse_block_qkv(block, kind or block.kind) for block in run.pattern)
                )
                for run in stack.runs
            ),
        )
        for stack in spec.stacks
    )


def _separate_qkv_weights(block: Block) -> tuple[Weight, ...]:
    """The weights (then the biases) of the three projections."""
    at = block.mixers[0] if block.mixers else None
    if not isinstance(at, Attention) or at.fused_qkv:
        return ()
    names = tuple(f"{at.path}.{name}" for name in FUSED_TARGETS["qkv_proj"])
    return tuple(
        w for kind in (".weight", ".bias") for name in names for w in at.weights if w.path == name + kind
    )


def _fuse_block_qkv(block: Block, kind: str) -> Block:
    parts, at = _separate_qkv_weights(block), block.mixers[0]
    if not parts or not isinstance(at, Attention):
        return block
    whole = [
        _fused_qkv_weight(at, [w for w in parts if w.path.endswith(kind)], kind)
        for kind in (".weight", ".bias")
    ]
    rest = tuple(w for w in at.weights if w not in parts)
    weights = (*(w for w in whole if w), *rest)
    return replace(block, kind=kind, mixers=(replace(at, fused_qkv=True, weights=weights),))


def _fused_qkv_weight(at: Attention, parts: list[Weight], kind: str) -> Weight | None:
    """Three matrices above one another, or three biases."""
    if not parts:
        return None
    shape = (sum(w.shape[0] for w in parts), *parts[0].shape[1:])
    units = at.heads + 2 * at.kv_heads if parts[0].units else parts[0].units
    return replace(parts[0], path=f"{at.path}.qkv_proj{kind}", shape=shape, units=units)


# ---- losses over logits that are shifted -------------------------------------------------------------------

LOGITS: Shape = ("b", "s", "V0")


def shifted_loss(r: Recorder, logits: Tensor, kind: str) -> Tensor:
    """``logits[..., :-1, :].contiguous()`` and its cross-entropy, whose log-softmax is of the logits' dtype.
    One position less is not counted.
    """
    low = r.cast(logits, FP32, "loss/logits_fp32") if kind == SHIFTED else logits
    copied = r.copy(r.slice(low, LOGITS), LOGITS, "loss/shifted")
    raised = copied if kind == SHIFTED_SAME else r.cast(copied, FP32, "loss/fp32")
    dtype = raised.dtype
    logged = r.unary(raised, "loss/log_softmax", saves="output", dtype=dtype)
    del raised
    return r.apply(
        r.tensor("loss/value", (1,), dtype), (logged,), (logged,), lambda _: [r.grad(LOGITS, dtype)]
    )
