"""A model as litgpt builds it: its own module names, one matrix for queries, keys and values, a head of its
own, adapters inside.

Lightning-AI/litgpt 0f021f3a: lit_gpt/model.py, lora.py, adapter.py, adapter_v2.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from memsheet.frozen import dataclass, replace
from memsheet.plan.model import (
    Arrangement,
    Attention,
    Block,
    Dense,
    Head,
    ModelSpec,
    Norm,
    NormKind,
    Role,
    Run,
    Stack,
    Weight,
)
from memsheet.plan.plan import Adapter, AdapterKind, Plan

BEFORE, FIRST, AFTER = (
    "litgpt layer before the prompts",
    "litgpt layer with the first prompts",
    "litgpt layer",
)
"""Kinds of blocks: nothing trains in those before the first prompts of a llama-adapter, nor ahead of the
first that has them.
"""
KINDS = frozenset({BEFORE, FIRST, AFTER})
JOINED = ("query_key_value", "qkv_proj", "c_attn", "Wqkv")
GELU = frozenset(
    {"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh"}
)  # one function of torch in litgpt
NORMS = {NormKind.RMS: NormKind.RMS_FP32_SCALE, NormKind.LAYER: NormKind.LAYER}
"""litgpt's RMSNorm (rmsnorm.py:19-26) raises its input, and lowers the product with the weight."""
ARRANGEMENTS = (Arrangement.PRE, Arrangement.PARALLEL, Arrangement.PARALLEL_TWO_NORMS)
ALIGNMENT = 8
"""Elements that a flash kernel's heads are a multiple of, where nothing is padded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enabled:
    """Where LoRA matrices go (lora.py, Config.to_*)."""

    query: bool = False
    key: bool = False
    value: bool = False
    projection: bool = False
    mlp: bool = False


def enabled_lora_targets(spec_block: Block, adapter: Adapter | None) -> Enabled:
    """Which of litgpt's switches the targets turn on, by the names of the model's own layers."""
    if adapter is None or adapter.kind is not AdapterKind.LORA:
        return Enabled()
    targets, whole = set(adapter.targets), bool(set(adapter.targets) & set(JOINED))
    feeds = set(_linear_layer_names(spec_block.feed_forward.weights)) if spec_block.feed_forward else set()
    return Enabled(
        query=whole or "q_proj" in targets,
        key=whole or "k_proj" in targets,
        value=whole or "v_proj" in targets,
        projection=bool({"o_proj", _linear_layer_names(spec_block.mixers[0].weights)[-1]} & targets),
        mlp=bool(feeds & targets),
    )


def _linear_layer_names(weights: tuple[Weight, ...]) -> list[str]:
    """Last names of linear layers."""
    return [w.path.split(".")[-2] for w in weights if w.role is Role.LINEAR]


# ---- what litgpt cannot build ------------------------------------------------------------------------------


def unbuildable_reasons(spec: ModelSpec, plan: Plan) -> list[str]:
    """Why litgpt's one model class does not fit a model, or a plan's adapter it."""
    blocks = list(dict.fromkeys(spec.blocks()))
    whole = {
        "it is no decoder with one output projection": len(spec.stacks) != 1
        or spec.head.kind != "causal_lm"
        or bool(spec.towers),
        "its embeddings are more than one table": len(spec.embeddings.weights) != 1
        or bool(spec.embeddings.norms),
        "its embeddings or logits are scaled or capped": spec.embeddings.scaled
        or spec.head.scaled
        or spec.head.softcap is not None,
    }
    found = [why for why, holds in whole.items() if holds]
    return found or [
        why for block in blocks for why in (*_block_reasons(block), *_target_reasons(block, plan))
    ]


def _block_reasons(block: Block) -> Iterator[str]:
    at, ff = block.mixers[0] if len(block.mixers) == 1 else None, block.feed_forward
    if not isinstance(at, Attention) or not isinstance(ff, Dense):
        yield f"{block.kind} layers are not attention and one feed-forward"
        return
    biases = {
        f"{name}.bias" in {w.path for w in part.weights}
        for part in (at, ff)
        for name in _linear_layer_paths(part.weights)
    }
    odd = {
        "its norms are of another kind or place": any(norm.kind not in NORMS for norm in block.norms)
        or block.arrangement not in ARRANGEMENTS,
        "its attention has norms, caps, sinks, gates or biases of scores": bool(
            at.qk_norm or at.softcap or at.sinks or at.gated_output or at.position_bias
        ),
        "positions are no rotary ones": not at.rotary_dim,
        f"heads of {at.head_dim} are not hidden over {at.heads} heads, or no multiple of "
        f"{ALIGNMENT}": at.heads * at.head_dim != block.hidden or at.head_dim % ALIGNMENT != 0,
        "some linear layers have biases and some have none": len(biases) > 1,
        f"its feed-forward's {ff.activation} is another function": ff.activation
        not in ({"silu", "swish"} if ff.gated else GELU),
        "its branches are scaled": block.residual_scale,
    }
    yield from (why for why, holds in odd.items() if holds)


def _linear_layer_paths(weights: tuple[Weight, ...]) -> list[str]:
    return [w.path.removesuffix(".weight") for w in weights if w.role is Role.LINEAR]


def _target_reasons(block: Block, plan: Plan) -> Iterator[str]:
    """LoRA is on all of a feed-forward's layers or on none of them."""
    feeds = set(_linear_layer_names(block.feed_forward.weights)) if block.feed_forward else set()
    targets = set(plan.adapter.targets) if plan.adapter and plan.adapter.kind is AdapterKind.LORA else set()
    if feeds & targets and not feeds <= targets:
        yield f"litgpt has LoRA on all of {', '.join(sorted(feeds))} or on none of them"


# ---- building ----------------------------------------------------------------------------------------------


def is_built(spec: ModelSpec) -> bool:
    return all(block.kind in KINDS for block in spec.blocks())


def litgpt_spec(spec: ModelSpec, plan: Plan) -> ModelSpec:
    """The model with litgpt's modules and the adapter's own; as it is where litgpt has no such model."""
    if is_built(spec) or unbuildable_reasons(spec, plan):
        return spec
    (stack,) = spec.stacks
    layers = [block for run in stack.runs for _ in range(run.count) for block in run.pattern]
    blocks = [_litgpt_block(block, plan, number) for number, block in enumerate(layers)]
    runs = tuple(Run(pattern=(block,), count=len(list(same))) for block, same in groupby(blocks))
    (final,) = stack.final_norms
    new = Stack(
        path="transformer.h",
        hidden=stack.hidden,
        runs=runs,
        final_norms=(_litgpt_norm(final, "ln_f", plan),),
        final_path="transformer",
    )
    table = replace(spec.embeddings.weights[0], path="transformer.wte.weight")
    return replace(
        spec,
        stacks=(new,),
        embeddings=replace(spec.embeddings, weights=(table,), dropout=False),
        head=_untied_lm_head(spec, table, plan),
    )


def _untied_lm_head(spec: ModelSpec, table: Weight, plan: Plan) -> Head:
    """A matrix of its own, whatever the checkpoint ties; bitsandbytes takes every linear layer, the head too
    (BitsandbytesPrecision).
    """
    bias = any(w.path.endswith(".bias") for w in spec.head.weights)
    own = _linear_layer_weights("lm_head", table.shape[0], table.shape[1], plan, bias=bias)
    role = Role.LINEAR if plan.quantization else Role.HEAD
    weights = tuple(
        replace(w, role=role if w.role is Role.LINEAR else w.role, padded=w.shape[0] == table.shape[0])
        for w in own
    )
    return replace(spec.head, tied=False, weights=weights)


def _litgpt_norm(norm: Norm, path: str, plan: Plan) -> Norm:
    """Norms train beside an adapter of the second kind (adapter_v2.py:34-47)."""
    trains = plan.adapter is not None and plan.adapter.kind is AdapterKind.LLAMA_ADAPTER_V2
    weights = tuple(
        replace(w, path=f"{path}.{w.path.rpartition('.')[2]}", adapter=trains) for w in norm.weights
    )
    return Norm(path=path, kind=NORMS[norm.kind], size=norm.size, weights=weights)


def _litgpt_block(block: Block, plan: Plan, number: int) -> Block:
    (at,), ff = block.mixers, block.feed_forward
    assert isinstance(at, Attention)
    assert isinstance(ff, Dense)
    adapter, on = plan.adapter, enabled_lora_targets(block, plan.adapter)
    prompts = adapter is not None and adapter.kind.layered and number >= adapter.start_layer
    kind = AFTER
    if adapter is not None and adapter.kind is AdapterKind.LLAMA_ADAPTER and number <= adapter.start_layer:
        kind = FIRST if prompts else BEFORE
    norms = tuple(_litgpt_norm(norm, f"norm_{place}", plan) for place, norm in enumerate(block.norms, 1))
    return Block(
        kind=kind,
        hidden=block.hidden,
        arrangement=block.arrangement,
        mixers=(_litgpt_attention(at, block, plan, on, prompts=prompts),),
        feed_forward=_feed_forward(ff, block.hidden, plan, on),
        norms=norms,
    )


def _litgpt_attention(at: Attention, block: Block, plan: Plan, on: Enabled, *, prompts: bool) -> Attention:
    hidden, bias = block.hidden, any(w.path.endswith(".bias") for w in at.weights)
    joined = (at.heads + 2 * at.kv_heads) * at.head_dim
    sizes = [
        size
        for size, wanted in zip(
            (hidden, *[at.kv_heads * at.head_dim] * 2), (on.query, on.key, on.value), strict=True
        )
        if wanted
    ]
    weights = (
        *_linear_layer_weights("attn.attn", joined, hidden, plan, bias=bias), *_joined_lora(sizes, hidden, plan),
        *_linear_layer_weights("attn.proj", hidden, hidden, plan, bias=bias, lora=on.projection),
    )  # fmt: skip
    return replace(
        at,
        path="attn",
        fused_qkv=True,
        weights=(*weights, *_adapter_prompt_weights(at, hidden, joined, plan)) if prompts else weights,
    )


def _joined_lora(sizes: list[int], hidden: int, plan: Plan) -> tuple[Weight, ...]:
    """One pair of matrices for all of queries, keys and values that have them (lora.py:234-250)."""
    if not sizes:
        return ()
    assert plan.adapter is not None
    rank = int(plan.adapter.rank)
    return (
        _adapter_weight("attn.attn.lora_A", (rank * len(sizes), hidden)),
        _adapter_weight("attn.attn.lora_B", (sum(sizes), rank)),
    )


def _adapter_prompt_weights(at: Attention, hidden: int, joined: int, plan: Plan) -> tuple[Weight, ...]:
    """A gate for each head, and the prompts. Their keys and values are made once, in the validation that
    comes before training and takes no gradients, and kept (adapter.py:127-144): no gradient ever reaches the
    prompts.
    """
    assert plan.adapter is not None
    length = plan.adapter.prompt_length
    return (
        Weight(path="attn.adapter_wte.weight", shape=(length, hidden), role=Role.OTHER),
        _adapter_weight("attn.gating_factor", (1, 1, at.heads, 1)),
        Weight(path="attn.adapter_kv_cache", shape=(length, joined), role=Role.BUFFER),
    )


def _feed_forward(ff: Dense, hidden: int, plan: Plan, on: Enabled) -> Dense:
    bias = any(w.path.endswith(".bias") for w in ff.weights)
    names = ("mlp.fc_1", "mlp.fc_2") if ff.gated else ("mlp.fc",)
    weights = [
        w
        for name in names
        for w in _linear_layer_weights(name, ff.intermediate, hidden, plan, bias=bias, lora=on.mlp)
    ]
    weights += _linear_layer_weights("mlp.proj", hidden, ff.intermediate, plan, bias=bias, lora=on.mlp)
    return replace(
        ff, path="mlp", fused=False, activation="silu" if ff.gated else "gelu", weights=tuple(weights)
    )


def _linear_layer_weights(
    path: str, out: int, width: int, plan: Plan, *, bias: bool, lora: bool = False
) -> tuple[Weight, ...]:
    """A linear layer, inside LoRALinear or AdapterV2Linear where the adapter replaces them all."""
    adapter = plan.adapter
    wrapped = adapter is not None and adapter.kind is not AdapterKind.LLAMA_ADAPTER
    base = f"{path}.linear" if wrapped else path
    weights = [Weight(path=f"{base}.weight", shape=(out, width), role=Role.LINEAR)]
    weights += [Weight(path=f"{base}.bias", shape=(out,), role=Role.BIAS)] if bias else []
    if adapter is not None and adapter.kind is AdapterKind.LLAMA_ADAPTER_V2:
        weights += [
            _adapter_weight(f"{path}.adapter_bias", (out,)),
            _adapter_weight(f"{path}.adapter_scale", (out,)),
        ]
    if adapter is not None and lora:
        rank = int(adapter.rank)
        weights += [
            _adapter_weight(f"{path}.lora_A", (rank, width)),
            _adapter_weight(f"{path}.lora_B", (out, rank)),
        ]
    return tuple(weights)


def _adapter_weight(path: str, shape: tuple[int, ...]) -> Weight:
    """A tensor of the adapter's."""
    return Weight(path=path, shape=shape, role=Role.OTHER, adapter=True)
