"""How a part of a model runs: dtypes, kernels, adapters; and the linear layers that every part is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from memsheet.formulas.graph import Tensor
from memsheet.formulas.recorder import Recorder
from memsheet.formulas.tape import Axis
from memsheet.spec.dtypes import DType
from memsheet.spec.engine import Code
from memsheet.spec.model import Role, Weight


class AttentionKernel(Enum):
    """Which implementation computes softmax(q k) v."""

    EAGER = "eager"
    FUSED = "flash"  # flash through torch's scaled_dot_product_attention or the flash-attn package
    MATH = "math"  # torch's plain operations, where no kernel takes the operands: fp32 with fewer heads of keys than of queries
    PROCESSOR = "processor"  # torch's flash attention on a CPU, which takes every dtype, masks, and fewer heads of keys than of queries
    EFFICIENT = "efficient"  # torch's memory-efficient kernel: one head of keys a query head, a mask if there is one


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """What decides how a block runs, apart from its shapes. Part of the key under which a recording is kept."""

    code: Code = Code.TRANSFORMERS
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
    tensor_parallel: bool = False  # linear layers are cut over ranks as transformers' plans cut them
    quantized: bool = False  # linear weights are dequantized for each use
    padded_head: int | None = None  # flash pads the head dim to this many
    several: bool = False  # more than one sequence: eager products copy operands whose batch and heads are no single dimension
    again: frozenset[str] = frozenset()  # last names of modules that run their forward again in backward
    positions_each: bool = False  # learned positions are looked up for each sequence
    offloads: bool = False  # what is saved for backward waits on the host
    processor: bool = False  # a CPU's kernels and a CPU's list of what autocast widens
    mask: bool = False  # the efficient kernel gets a mask, turned into a bias in the compute dtype for each layer


def checkpointed(r: Recorder, run: Callable[[Tensor], Tensor], x: Tensor, path: str, how: Numerics) -> Tensor:
    """``run(x)``, the module at ``path``: as it is, or run again in backward."""
    return r.again(run, x) if path.rpartition(".")[2] in how.again else run(x)


def parameter(r: Recorder, weight: Weight, how: Numerics, path: str) -> Tensor:
    return r.parameter(path, tuple(weight.shape), how.parameters, trains=how.trains)


def project(r: Recorder, x: Tensor, weights: dict[str, Weight], name: str, out: Axis, width: Axis, how: Numerics) -> Tensor:
    """The linear layer ``name`` of a block, with its LoRA branch where it carries one."""
    weight, bias = weights[name + ".weight"], weights.get(name + ".bias")
    low = parameter(r, bias, how, f"{name}.bias") if bias else None
    if how.quantized and weight.role is Role.LINEAR:
        result = r.dequantized_linear(x, (out, width), out, name, bias=low)
    else:
        given = r.spread(x, name) if how.tensor_parallel and weight.cut == 0 else x
        result = r.linear(given, r.parameter(name, (out, width), how.parameters, trains=how.trains), out, name, bias=low)
        if how.tensor_parallel and weight.cut == 1:
            result = r.reduced(result, f"{name}/all_reduce")
    if name.rsplit(".", 1)[-1] in how.adapter_targets and how.adapter_dtype is not None:
        if how.quantized:  # peft clones it first (tuners/lora/bnb.py:529-534)
            result = r.copy(result, result.shape, f"{name}/output")
        base = [result]
        del result
        return _with_adapter(r, x, base, name, out, width, how.adapter_dtype, how)
    return result


def _with_adapter(r: Recorder, x: Tensor, base: list[Tensor], name: str, out: Axis, width: Axis, dtype: DType, how: Numerics) -> Tensor:
    """``base + lora_B(lora_A(dropout(x))) * scaling``, the input cast to the adapter's dtype (peft's Linear.forward), and the sum back to the
    base's. ``base`` gives its one tensor up, which goes when the sum is there.

    On a quantized base (tuners/lora/bnb.py) it is left as it is under autocast; elsewhere the branch is cast to the base's dtype before it
    is added.
    """
    down = r.parameter(f"{name}.lora_A", ("r", width), dtype)
    up = r.parameter(f"{name}.lora_B", (out, "r"), dtype)
    if r.compute is None or not how.quantized:
        x = r.cast(x, dtype, f"{name}/lora_input")
    x = r.dropout(x, f"{name}/lora_dropout", active=how.adapter_dropout)
    branch = r.linear(r.linear(x, down, "r", f"{name}.lora_A"), up, out, f"{name}.lora_B")
    scaled = r.scale(branch, f"{name}/lora_scaled")
    del branch
    lower = base[0].dtype
    if how.quantized:
        scaled = scaled if r.compute is not None else r.cast(scaled, lower, f"{name}/lora_cast")
        return r.add(base.pop(), scaled, f"{name}/output")
    total = r.add(base.pop(), scaled, f"{name}/output")
    del scaled
    return r.cast(total, lower, f"{name}/output")
