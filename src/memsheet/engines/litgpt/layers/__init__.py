"""litgpt's model code: one class for every decoder, with LoRA or llama-adapters inside (Lightning-AI/litgpt
0f021f3a, lit_gpt/).

The model is built in ``built.py``, its blocks are in ``block.py``, output layer and loss in ``loss.py``.

What the loop still names of the micro-batch before when the next one runs is counted once, with its own:
finetuning runs the longest sample first, and others are shorter.
"""

from __future__ import annotations

from memsheet.arith import Count, agreed, ceil_div, minimum
from memsheet.engines.litgpt.layers.block import litgpt_block_forward
from memsheet.engines.litgpt.layers.built import is_built, litgpt_spec, unbuildable_reasons
from memsheet.engines.litgpt.layers.gathered import buffers_at_loss
from memsheet.engines.litgpt.layers.loss import (
    LM_HEAD_CHUNK,
    SCALED,
    chunked_loss,
    lm_head_hidden_states,
    loss_input,
    named_logits,
)
from memsheet.errors import Problem
from memsheet.formulas.model_code import ModelCode
from memsheet.formulas.model_code.transformers.ends import input_embeddings
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.bytes_by_path import BytesByPath
from memsheet.formulas.tapes.evaluate import with_products
from memsheet.frozen import replace
from memsheet.plan.dtypes import FP32
from memsheet.plan.model import Attention, Block, Dense, ModelSpec
from memsheet.plan.plan import AdapterKind, Loss, Plan
from memsheet.plan.workload import PassShape
from memsheet.references import LITGPT, formula
from memsheet.sheet import Component


def litgpt_problems(spec: ModelSpec, plan: Plan) -> list[Problem]:
    """What litgpt has no model for, and what its scripts do not do."""
    several = plan.mesh.gpus > 1
    other = "transformers" if not several else "fsdp2" if plan.adapter else "fsdp1"
    found = [
        Problem(
            field="model",
            value=spec.name,
            reason=f"is no model of litgpt's: {why}",
            hint=f"engine {other}",
        )
        for why in (() if is_built(spec) else unbuildable_reasons(spec, plan))
    ]
    adapter, layers = plan.adapter, spec.layers
    if plan.dropout:
        found.append(
            Problem(
                field="dropout",
                value=plan.dropout,
                reason="does not exist in litgpt's models",
                hint="adapter.dropout does",
            )
        )
    if adapter is not None and adapter.kind.layered and agreed(adapter.start_layer >= layers):
        reason = f"leaves none of {layers} layers for the prompts"
        found.append(
            Problem(
                field="adapter.start_layer", value=adapter.start_layer, reason=reason, hint="a smaller one"
            )
        )
    if adapter is None and plan.loss is Loss.CHUNKED:
        reason = (
            "is how litgpt trains adapters; its script for all weights takes logits whole "
            "(finetune/full.py:155)"
        )
        found.append(Problem(field="loss", value=plan.loss.value, reason=reason, hint="plain"))
    if several and plan.adapter is not None and _trains_flat_parts(plan.engine_version):
        reason = "trains a part of every flat parameter with LoRA on several GPUs, which is not modelled"
        found.append(
            Problem(field="engine_version", value=plan.engine_version, reason=reason, hint="0.5.11 or later")
        )
    if several and plan.quantization is not None:
        reason = "is for one GPU alone in litgpt (finetune/lora.py:153-157 of v0.5.11)"
        value = plan.quantization.weights.name
        found.append(
            Problem(field="quantization.weights", value=value, reason=reason, hint="one GPU, or leave it out")
        )
    elif plan.quantization is not None and (bits := plan.quantization.weights.name) not in (
        "nf4",
        "nf4-single",
    ):
        found.append(
            Problem(
                field="quantization.weights", value=bits, reason="is not modelled for litgpt yet", hint="nf4"
            )
        )
    return found


def _trains_flat_parts(version: str | None) -> bool:
    """Before v0.5.11, whose LoRA is sharded by fully_shard (finetune/lora.py:157 of 5ac69b06)."""
    numbers = [int(n) for n in (version or "").split(" ")[0].split(".") if n.isdigit()]
    return len(numbers) > 1 and tuple(numbers) < (0, 5, 11)


def plan_numerics(plan: Plan, how: RunConfig) -> RunConfig:
    """Switches of the output layer."""
    scaled = plan.adapter is not None and plan.adapter.kind is AdapterKind.LLAMA_ADAPTER_V2
    return replace(how, options=how.options | {SCALED}) if scaled else how


def block_numerics(_: Block, __: Plan, shape: PassShape, how: RunConfig) -> RunConfig:
    return replace(how, several=agreed(shape.sequences > 1))


@formula(cites=LITGPT, at="model.py: shapes of a block's tensors")
def block_axes(block: Block, _: Plan, shape: PassShape) -> dict[str, Count]:
    """Values of the axes that a block's tensors are named by."""
    (at,), ff = block.mixers, block.feed_forward
    assert isinstance(at, Attention)
    assert isinstance(ff, Dense)
    return with_products({
        "b": shape.sequences, "s": shape.tokens, "h": block.hidden, "a": at.heads, "k": at.kv_heads, "d": at.head_dim, "f": ff.intermediate,
        "s32": 32 * ceil_div(shape.tokens, 32),
    })  # fmt: skip


@formula(
    cites=LITGPT,
    at="lora.py:528-530: chunks of positions, of all sequences at once; all weights are trained on one chunk",
)
def end_axes(spec: ModelSpec, plan: Plan, shape: PassShape) -> dict[str, Count]:
    chunk = minimum(LM_HEAD_CHUNK, shape.tokens) if plan.loss is Loss.CHUNKED else shape.tokens
    vocab = spec.embeddings.weights[0].shape[0] if spec.embeddings.weights else spec.vocab
    before = (ceil_div(shape.tokens, chunk) - 1) * chunk
    return {
        "b": shape.sequences, "s": shape.tokens, "h": spec.hidden, "V": vocab, "V0": vocab, "c": shape.sequences * chunk,
        "s0": shape.tokens - before, "s1": before, **buffers_at_loss(spec, plan),
    }  # fmt: skip


@formula(
    cites=LITGPT,
    at=(
        "model.py:47-64: cosines and sines of as many positions as the longest sample has, made again in "
        "fp32 for it"
    ),
)
def rotary_table_buffers(spec: ModelSpec, _: Plan, shape: PassShape, how: RunConfig) -> BytesByPath:
    """The rotary tables, which are buffers of the model."""
    at = spec.stacks[0].runs[0].pattern[0].mixers[0]
    assert isinstance(at, Attention)
    return BytesByPath.of(
        ((Component.BUFFERS, f"transformer.{name}"), FP32.nbytes(shape.tokens * at.rotary_dim))
        for name in ("cos", "sin")
    )


def named_logits_bytes(spec: ModelSpec, plan: Plan, shape: PassShape, _: RunConfig) -> BytesByPath:
    return BytesByPath.of(
        [
            (
                (Component.SAVED_ACTIVATIONS, "lm_head/logits"),
                named_logits(end_axes(spec, plan, shape)),
            )
        ]
    )


CODE = ModelCode(
    forward=litgpt_block_forward, embed=input_embeddings, head=lm_head_hidden_states, loss=chunked_loss, loss_input=loss_input, problems=litgpt_problems, built=litgpt_spec,
    plan_numerics=plan_numerics, block_numerics=block_numerics, axes=block_axes, end_axes=end_axes, shared=rotary_table_buffers, named=named_logits_bytes,
    knows_shards=True,
)  # fmt: skip
