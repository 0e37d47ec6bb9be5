"""The optimizer's step and what travels between device and host."""

from __future__ import annotations

from collections.abc import Sequence

from memsheet.formulas.sharding.algorithm import algorithm_of
from memsheet.formulas.step_time.numbers import Real, exposed_seconds
from memsheet.formulas.step_time.parts import Part
from memsheet.formulas.step_time.rates import Rates
from memsheet.formulas.step_time.replicas import EVEN, groups_of
from memsheet.plan.engine import Sharding
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.plan import EIGHT_BITS, Implementation, OptimizerName, Plan, RecomputeMode
from memsheet.references import MEGATRON_SP, TORCH_OPTIM, ZERO_OFFLOAD, formula

SEPARATE = {Implementation.FOREACH: 12, Implementation.LOOP: 12}
"""Passes of four bytes that an optimizer written operation by operation makes besides (torch/optim/adam.py,
_multi_tensor_adam: lerp, mul, addcmul, sqrt, div, add, addcdiv, each with a temporary).
"""
MOMENTS = {
    OptimizerName.SGD: 0,
    OptimizerName.SGD_MOMENTUM: 1,
    OptimizerName.LION: 1,
    OptimizerName.LION_8BIT: 1,
    OptimizerName.PAGED_LION: 1,
    OptimizerName.PAGED_LION_8BIT: 1,
    OptimizerName.RMSPROP: 1,
    OptimizerName.RMSPROP_8BIT: 1,
    OptimizerName.ADAGRAD: 1,
    OptimizerName.ADEMAMIX: 3,
    OptimizerName.ADEMAMIX_8BIT: 3,
    OptimizerName.PAGED_ADEMAMIX: 3,
    OptimizerName.PAGED_ADEMAMIX_8BIT: 3,
    OptimizerName.MUON: 1,
}
"""States of the size of a parameter; two of the others (those of Adafactor, Adam-mini and GaLore are smaller:
never faster than this).
"""
CPU_ADAM_BYTES = 28
"""Of host memory an element: gradient, master and two moments read, three written."""


def updated_elements(parts: Sequence[Part], plan: Plan, sharding: Sharding) -> Real:
    """Elements whose states a rank updates."""
    dense, experts = groups_of(plan)
    divided = plan.zero >= 1 or sharding.gathers
    own, theirs = (sum((part.total(name) for part in parts), 0.0) for name in ("trained", "routed_trained"))
    return own / dense.shards + theirs / experts.shards if divided else own + theirs


@formula(
    cites=ZERO_OFFLOAD,
    at="section 4: parameters of a rank, frozen ones too, in the dtype that they are stored in",
)
def parameter_bytes_on_rank(parts: Sequence[Part], plan: Plan, sharding: Sharding) -> Real:
    """Bytes of a rank's parameters."""
    dense, experts = groups_of(plan)
    divided = plan.zero == 3 or sharding.gathers
    own, theirs = (sum((part.total(name) for part in parts), 0.0) for name in ("dense", "experts"))
    dtype = plan.quantization.weights if plan.quantization else plan.precision.parameters
    each = float(dtype.nbytes(EVEN)) / EVEN
    return (own / dense.shards + theirs / experts.shards if divided else own + theirs) * each


@formula(
    cites=TORCH_OPTIM,
    at=(
        "gradient, parameter and two moments read, three written; the gradient's norm before and its "
        "zeroing after"
    ),
)
def update_s(elements: Real, plan: Plan, rates: Rates) -> Real:
    if plan.optimizer is None:
        return 0.0
    precision = plan.precision
    gradient = precision.gradients.bits / 8
    moment = (
        (1.0 if plan.optimizer.name in EIGHT_BITS else precision.moments.bits / 8)
        * MOMENTS.get(plan.optimizer.name, 2)
        / 2
    )
    master = (
        precision.master_weights.bits / 8 + precision.parameters.bits / 8
        if precision.master_weights
        else precision.parameters.bits / 4
    )
    size = 3 * gradient + 4 * moment + master + 4.0 * SEPARATE.get(plan.optimizer.implementation, 0)
    return (1.0 - plan.offload.optimizer) * elements * size / rates.memory_bytes


@formula(
    cites=ZERO_OFFLOAD,
    at=(
        "section 4: 2M bytes of gradients to the host and 2M of parameters back every step, and the update "
        "on the processor"
    ),
)
def offloaded_s(
    elements: Real, parameters: Real, activations: Real, passes_s: Real, plan: Plan, rates: Rates
) -> Real:
    """``elements`` that are trained, bytes of ``parameters`` on the host and of a micro-batch's
    ``activations``. Seconds besides the passes: the optimizer's on the host, and parameters fetched for every
    pass as far as the passes do not hide them.
    """
    link, microbatches = rates.host_link, plan.accumulation
    seconds: Real = 0.0
    if plan.offload.optimizer:
        share = plan.offload.optimizer
        gradient = plan.precision.gradients.bits / 8
        seconds = (
            share * elements * ((gradient + 2.0) / link + CPU_ADAM_BYTES * rates.near / rates.host_memory)
        )
        seconds = seconds + share * accumulated_s(elements, passes_s, microbatches - 1, plan, rates)
    if plan.offload.parameters:
        seconds = seconds + exposed_seconds(
            plan.offload.parameters * parameters * 2 * microbatches / link, passes_s
        )
    if plan.offload.activations:  # out with forward, back with backward; hooks that only copy, as
        # torch.autograd.graph.save_on_cpu's do, do it on the stream that computes (torch 2.13
        # autograd/graph.py)
        copied = 2 * activations * microbatches / link
        seconds = seconds + (exposed_seconds(copied, passes_s) if engine_of(plan).streams_offload else copied)
    return seconds


ADD_BYTES = 12
"""Of host memory an element: two numbers of fp32 read, their sum written."""


@formula(
    cites=ZERO_OFFLOAD,
    at=(
        "section 4.1: gradients go to the host as they are made; those of later micro-batches are "
        "added to them"
    ),
)
def accumulated_s(elements: Real, passes_s: Real, later: Real, plan: Plan, rates: Rates) -> Real:
    """Seconds of adding the gradients of ``later`` micro-batches to those on the host.

    FSDP2 waits for the copy of each and adds on the processor (torch 2.13
    _fully_shard/_fsdp_collectives.py:710-750, foreach_reduce). DeepSpeed fetches what is there, adds on the
    device and sends it back, beside the passes: of ZeRO-3 the rank's share (runtime/zero/stage3.py 1904-1916
    of edaa7221), of stages 1 and 2 every gradient whole (stage_1_and_2.py:1516-1560).
    """
    link = rates.host_link
    gradient = plan.precision.gradients.bits / 8
    if algorithm_of(engine_of(plan).sharding).traffic.adds_on_device:
        whole = 1.0 if plan.zero == 3 else groups_of(plan)[0].shards
        return exposed_seconds(2 * gradient * elements * whole * later / link, passes_s)
    return later * elements * (gradient / link + ADD_BYTES * rates.near / rates.host_memory)


@formula(
    cites=MEGATRON_SP,
    at="table 2: 34 s b h bytes a layer, of which recompute keeps the layer's input, 2 s b h",
)
def activation_bytes(tokens: Real, hidden: int, layers: float, plan: Plan) -> Real:
    kept_bytes = 2 if plan.recompute.mode is RecomputeMode.FULL else 34
    return kept_bytes * tokens * hidden * layers / plan.mesh.tp
