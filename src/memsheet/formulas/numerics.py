"""How a part of a model runs: dtypes, kernels, adapters; and the linear layers that every part is made of."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from memsheet.formulas.packed_linear import gemm_linear, unpacked_linear
from memsheet.formulas.tapes.graph import Chosen, GradientSum, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Axis, Shape
from memsheet.frozen import dataclass, hash_once, replace
from memsheet.late import late_functions
from memsheet.plan.dtypes import BF16, FP32, DType
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import Attention, Mixer, Role, Weight
from memsheet.plan.plan import AdapterKind, AttentionKind, Plan, Quantization

with late_functions(__name__):
    from memsheet.formulas.adapters import (
        rotated_blocks,
        scales_inputs,
        until_here,
        with_adapter,
        with_factors,
        with_rotation,
    )
    from memsheet.formulas.int8 import int8_linear
    from memsheet.formulas.whole_products import whole_factors


class AttentionKernel(Enum):
    """Which implementation computes softmax(q k) v."""

    EAGER = "eager"
    FUSED = "flash"  # flash through torch's scaled_dot_product_attention or the flash-attn package
    # torch's plain operations, where no kernel takes the operands: fp32 with fewer heads of keys than of
    # queries
    MATH = "math"
    # torch's flash attention on a CPU, which takes every dtype, masks, and fewer heads of keys than of
    # queries
    PROCESSOR = "processor"
    EFFICIENT = (
        "efficient"  # torch's memory-efficient kernel: one head of keys a query head, a mask if there is one
    )


def writes_scores(plan: Plan, mixer: Mixer) -> bool:
    """Whether attention makes a matrix of its scores: by plain operations, or where torch has no fused kernel
    on the card. Before compute capability 8.0 that is bf16, and fewer heads of keys than of queries
    (sdp_utils.cpp, can_use_flash_attention, can_use_mem_efficient_attention).
    """
    if plan.attention is AttentionKind.EAGER:
        return True
    grouped = isinstance(mixer, Attention) and mixer.heads != mixer.kv_heads
    return (
        plan.before_ampere
        and plan.attention is AttentionKind.SDPA
        and (plan.precision.compute is BF16 or grouped)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """What decides how a block runs, apart from its shapes. Part of the key under which a recording is
    kept.
    """

    __hash__ = hash_once

    layers: str | None = None  # whose model code (``Engine.layers``)
    parameters: DType
    stream: DType  # of the residual stream that enters the block
    autocast: DType | None
    attention: AttentionKernel
    dropout: bool = False
    trains: bool = True  # the base weights train; False under adapters
    input_grad: bool = True
    adapter_targets: frozenset[str] = frozenset()  # last names of the linear layers that carry LoRA matrices
    adapter_dtype: DType | None = None
    adapter_dropout: bool = False
    adapter_kind: AdapterKind = AdapterKind.LORA
    adapter_block: int = 0  # inputs that OFT rotates together
    adapter_rank: int = 0  # of those whose factors' shapes follow from it
    whole: frozenset[str] = (
        frozenset()
    )  # last names of modules of which a copy is trained beside the frozen one
    tensor_parallel: bool = False  # linear layers are cut over ranks as transformers' plans cut them
    quantized: bool = False  # linear weights are dequantized for each use
    stored: str = "4-bit"  # how: a row of STORED
    padded_head: int | None = None  # flash pads the head dim to this many
    # more than one sequence: eager products copy operands whose batch and heads are no single dimension
    several: bool = False
    again: frozenset[str] = frozenset()  # last names of modules that run their forward again in backward
    positions_each: bool = False  # learned positions are looked up, and turned ones made, for each sequence
    offloads: bool = False  # what is saved for backward waits on the host
    processor: bool = False  # a CPU's kernels and a CPU's list of what autocast widens
    # torch before 1.11: softmax saves its input; models of the time added a mask in their parameters' dtype
    keeps_scores: bool = False
    # linear layers multiply with a transposed view of their weight, whose cast autocast does not cache
    transposed: bool = False
    # frozen embeddings are asked for a gradient of what they look up, for checkpoints to begin with
    asks_grad: bool = False
    # a layer is handed its floating arguments and its parameters in the compute dtype, whatever their own was
    handed_low: bool = False
    head: str = "causal_lm"  # the kind of head, which decides the loss
    scattered: bool = False  # outside tensor parallelism a rank has its part of the sequence
    one_group: bool = False  # a rank's queries share one head of keys and values
    transposes: bool = False  # the attention kernel wants sequences in front of positions
    exchanges: bool = False  # context-parallel ranks exchange positions for heads
    capacity: bool = False  # experts take no more than so many tokens
    shares_experts: bool = False  # expert-parallel ranks exchange tokens
    splits_experts: bool = False  # an expert is cut over ranks
    several_experts: bool = True  # a rank has more than one
    options: frozenset[str] = frozenset()  # switches of the model code that runs
    chosen: frozenset[Chosen] = frozenset()  # operations whose results a selective checkpoint keeps
    run: str = ""  # of a recorded model: the way to run that its recording holds
    by_sequences: bool = False  # one sequence runs otherwise than several
    at: tuple[int, int] | None = None  # sequences and tokens, for what is on record at single sizes
    side: str = ""  # of a recorded model's windows: what a way to run says of it, as JSON
    kept_keys: DType | None = None  # a generation's cache takes the prompt's keys and values, in this dtype
    mask: bool = (
        False  # the efficient kernel gets a mask, turned into a bias in the compute dtype for each layer
    )


def casts_arguments(plan: Plan) -> bool:
    """Whether every layer's floating arguments are cast to a lower dtype before it runs."""
    engine = engine_of(plan)
    return engine.sharding.casts_arguments and plan.precision.compute is not FP32 and not engine.autocast


def run_checkpointed(
    r: Recorder, run: Callable[[Tensor], Tensor], x: Tensor, path: str, how: RunConfig
) -> Tensor:
    """``run(x)``, the module at ``path``: as it is, or run again in backward."""
    return r.again(run, x) if path.rpartition(".")[2] in how.again else run(x)


def vocabulary_table(
    r: Recorder, path: str, shape: Shape, how: RunConfig, *, joined: GradientSum = GradientSum.NO
) -> Tensor:
    """The matrix of embeddings or of the output projection: the model's own, or the copy that is trained
    (peft utils/other.py).
    """
    name = path.removesuffix(".weight")
    if name.rpartition(".")[2] in how.whole:
        return r.parameter(f"{name}.modules_to_save", shape, how.parameters)
    return r.parameter(path, shape, how.parameters, trains=how.trains, joined=joined)


def head_adapter(r: Recorder, x: Tensor, base: list[Tensor], how: RunConfig) -> Tensor:
    """Logits with LoRA's of the output projection, which no format quantizes."""
    from memsheet.formulas.adapters import Branch

    assert how.adapter_dtype is not None
    branch = Branch(
        kind=how.adapter_kind,
        name="lm_head",
        out="V",
        width="h",
        dtype=how.adapter_dtype,
        kept=how.parameters,
        dropout=how.adapter_dropout,
        quantized=False,
    )
    return with_adapter(r, x, base, branch)


def record_parameter(r: Recorder, weight: Weight, how: RunConfig, path: str) -> Tensor:
    return r.parameter(path, tuple(weight.shape), how.parameters, trains=how.trains or weight.adapter)


class QuantizedLinear(Protocol):
    """A linear layer over a quantized weight of a shape."""

    def __call__(
        self,
        r: Recorder,
        x: Tensor,
        weight: tuple[Axis, Axis],
        out: Axis,
        path: str,
        /,
        *,
        bias: Tensor | None,
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """How layers of a quantized format compute, and how peft adds a branch to their result."""

    linear: QuantizedLinear
    clones: bool = False  # it is cloned first
    sums_wide: bool = False  # the sum is cast, and not the branch
    scales_low: bool = False  # the branch is cast, then scaled
    holds: bool = False  # layers hold what a checkpoint does not drop


STORED = {
    "4-bit": Stored(
        linear=Recorder.dequantized_linear, clones=True
    ),  # peft 0.21.2 tuners/lora/bnb.py:529-534
    "int8": Stored(linear=int8_linear, holds=True),  # the same file, 237-282
    "gptq": Stored(linear=unpacked_linear, sums_wide=True),  # gptq.py:73-104
    "awq": Stored(linear=gemm_linear, scales_low=True),  # awq.py:58-87
}


def stored_as(quantization: Quantization | None) -> str:
    """The row of STORED for a format; what has none is dequantized, as four bits are."""
    return next(
        (name for name in STORED if quantization is not None and quantization.weights.name.startswith(name)),
        "4-bit",
    )


def _factors_beside(weight: Weight, how: RunConfig) -> tuple[tuple[str, tuple[int, int]], ...]:
    if not how.adapter_kind.whole_product:
        return ()
    out, across = (int(size) for size in weight.shape)
    return tuple(whole_factors(how.adapter_kind, out, across, how.adapter_rank))


def record_linear(
    r: Recorder, x: Tensor, weights: dict[str, Weight], name: str, out: Axis, width: Axis, how: RunConfig
) -> Tensor:
    """The linear layer ``name`` of a block, with its LoRA branch where it carries one."""
    weight, bias = weights[name + ".weight"], weights.get(name + ".bias")
    last = name.rsplit(".", 1)[-1]
    dtype = how.adapter_dtype if last in how.adapter_targets else None
    scaled = how.adapter_kind is AdapterKind.IA3 and dtype is not None
    if dtype is not None and how.adapter_kind is AdapterKind.OFT:
        from memsheet.formulas.adapters import Blocks

        number, size = rotated_blocks(int(weight.shape[1]), how.adapter_block)
        rotated = with_rotation(r, x, Blocks(number=number, size=size, dtype=dtype), name)
        alone = replace(how, adapter_targets=frozenset())
        handed = [
            until_here(r, r.cast(rotated, x.dtype, f"{name}/oft_output"), name)
        ]  # given up to the layer
        result = record_linear(r, handed.pop(), weights, name, out, width, alone)
        return r.cast(result, x.dtype, f"{name}/oft_result")
    if scaled and dtype and scales_inputs(last):
        x = with_factors(r, x, width, dtype, name)
    low = record_parameter(r, bias, how, f"{name}.bias") if bias else None
    if how.quantized and weight.role is Role.LINEAR:
        result = STORED[how.stored].linear(r, x, (out, width), out, name, bias=low)
    else:
        given = r.spread(x, name) if how.tensor_parallel and weight.cut == 0 else x
        matrix = r.parameter(name, (out, width), how.parameters, trains=how.trains)
        result = r.linear(
            given, r.view(matrix, (width, out)) if how.transposed else matrix, out, name, bias=low
        )
        if how.tensor_parallel and weight.cut == 1:
            result = r.reduced(result, f"{name}/all_reduce")
    if scaled and dtype:
        return result if scales_inputs(last) else with_factors(r, result, out, dtype, name)
    if dtype is not None:
        from memsheet.formulas.adapters import Branch

        if how.quantized and STORED[how.stored].clones:
            result = r.copy(result, result.shape, f"{name}/output")
        base = [result]
        del result
        branch = Branch(
            kind=how.adapter_kind,
            name=name,
            out=out,
            width=width,
            dtype=dtype,
            kept=how.parameters,
            dropout=how.adapter_dropout,
            quantized=how.quantized and weight.role is Role.LINEAR and not STORED[how.stored].sums_wide,
            scales_low=how.quantized and STORED[how.stored].scales_low,
            factors=_factors_beside(weight, how),
        )
        return with_adapter(r, x, base, branch)
    return result
