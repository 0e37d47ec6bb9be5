"""One part of a pipeline: seconds of a micro-batch's forward and backward through its layers, and the
parameters a rank keeps of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from memsheet.formulas.pipeline import layers_of_stage
from memsheet.formulas.states.params import tower_tensors
from memsheet.formulas.step_time.exchange import Exchange, layer_communication_s
from memsheet.formulas.step_time.kernels import ROUTING_CALLS
from memsheet.formulas.step_time.layers import has_adapter, head_operators, layer_operators
from memsheet.formulas.step_time.numbers import Real, larger
from memsheet.formulas.step_time.operators import OperatorTime, TrainTiming
from memsheet.formulas.step_time.pictures import layers_of_towers
from memsheet.frozen import dataclass, replace
from memsheet.plan.model import Block, ModelSpec, Role, Weight
from memsheet.plan.plan import Plan, Recompute, RecomputeMode
from memsheet.references import LORA, formula


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A layer, or an end of the model: what one micro-batch takes of it. ``recompute_s`` without its
    exchanges, which are with the others of their axis; ``waited_s``: for the host to start kernels.
    ``dense``, ``experts``: elements that a rank computes with.
    """

    forward_s: Real
    backward_s: Real  # with what is recomputed first
    recompute_s: Real
    tensor_s: Real
    context_s: Real
    routed_s: Real
    attention_s: Real
    waited_s: Real
    flops: Real
    dense: Real
    experts: Real
    trained: Real  # of the dense ones
    routed_trained: Real  # of experts: all, or none beside an adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Units with how often they come, in no order."""

    units: tuple[tuple[int, Unit], ...]

    def total(self, field: str) -> Real:
        return sum([n * getattr(unit, field) for n, unit in self.units], 0.0)


def parts_of(shop: TrainTiming, spec: ModelSpec) -> dict[tuple[int, int], Part]:
    """By (stage, chunk); equal ones are one. Equal layers are timed once."""
    plan, blocks = (
        shop.plan,
        [b for stack in spec.stacks for run in stack.runs for _ in range(run.count) for b in run.pattern],
    )
    timed: dict[int, Unit] = {}
    by_id = {id(block): block for block in blocks}
    share = _recomputed_layer_share(plan.recompute, len(blocks))
    mesh, found = plan.mesh, dict[tuple[int, int], Part]()
    alike: dict[tuple[tuple[int, int], ...], Part] = {}
    first, last = _embedding_unit(shop, spec), _head_unit(shop, spec)
    towers = _tower_units(shop, spec, share)
    for stage in range(mesh.pp):
        for chunk in range(mesh.vpp):
            low, high = (
                layers_of_stage(len(blocks), plan, stage, chunk)
                if mesh.pp * mesh.vpp > 1
                else (0, len(blocks))
            )
            units: list[tuple[int, Unit]] = []
            for key, count in Counter(id(b) for b in blocks[low:high]).items():
                if key not in timed:
                    timed[key] = _layer_unit(shop, by_id[key], share)
                units.append((count, timed[key]))
            number = chunk * mesh.pp + stage
            units += [(1, first), *towers] if number == 0 else []
            units += [(1, last)] if number == mesh.pp * mesh.vpp - 1 else []
            found[stage, chunk] = alike.setdefault(
                tuple((count, id(unit)) for count, unit in units), Part(units=tuple(units))
            )
    return found


def _tower_units(shop: TrainTiming, spec: ModelSpec, share: float) -> tuple[tuple[int, Unit], ...]:
    """What pictures pass. Without them the towers' parameters are gathered with the model's all the same, and
    have no gradients.
    """
    timed = tuple(layers_of_towers(spec, shop, lambda own, block: _layer_unit(own, block, share)))
    if timed or not spec.towers:
        return timed
    elements = sum((weight.elements * times for _, weight, times in tower_tensors(spec)), 0.0)
    return ((1, replace(_edge_unit(0.0, 0.0, 0.0, elements, shop.plan), trained=0.0)),)


def _layer_unit(shop: TrainTiming, block: Block, share: float) -> Unit:
    operators = layer_operators(shop, block)
    told = layer_communication_s(shop, block, operators)
    forward = sum((op.forward_s for op in operators), 0.0)
    again, told_again = _recompute_seconds(shop, operators, told, share)
    dense = sum(
        (
            _weight_elements_on_rank(w, shop.tp)
            for w in block.weights
            if w.role not in (Role.EXPERT, Role.EXPERT_BIAS)
        ),
        0.0,
    )
    held = [w for w in block.weights if w.role in (Role.EXPERT, Role.EXPERT_BIAS)]
    experts = sum((w.elements / (shop.plan.mesh.ep * shop.plan.mesh.etp) for w in held), 0.0)
    calls = shop.call_s * (
        shop.kernels.calls * len(operators) + (ROUTING_CALLS if shop.kernels.calls and held else 0)
    )
    cast = CAST_BYTES * (dense + experts) / shop.rates.memory_bytes if shop.kernels.casts else 0.0
    backward = sum((op.backward_s for op in operators), 0.0)
    busy = forward + told.forward_s + cast, backward + told.backward_s + cast, again
    taken = larger(busy[0], calls), larger(busy[1], BACKWARD_CALLS * calls), larger(busy[2], share * calls)
    return Unit(
        forward_s=taken[0],
        backward_s=taken[1] + taken[2],
        recompute_s=again - sum(told_again, 0.0),
        tensor_s=told.tp[0] + told.tp[1] + told_again[0],
        context_s=told.cp[0] + told.cp[1] + told_again[1],
        routed_s=told.ep[0] + told.ep[1] + told_again[2],
        waited_s=sum(taken, 0.0) - sum(busy, 0.0),
        attention_s=sum((op.forward_s + op.backward_s for op in operators if op.attention), 0.0),
        flops=sum((op.flops for op in operators), 0.0),
        dense=dense,
        experts=experts,
        trained=trainable_elements(shop.plan, block.weights, shop.tp, dense),
        routed_trained=experts if shop.plan.adapter is None else 0.0,
    )


@formula(cites=LORA, at="section 4.1: r (in + out) elements for each adapted matrix")
def trainable_elements(plan: Plan, weights: Iterable[Weight], tp: Real, dense: Real) -> Real:
    if plan.adapter is None:
        return dense
    return sum((plan.adapter.rank * (sum(w.shape) / tp) for w in weights if has_adapter(plan, w)), 0.0)


BACKWARD_CALLS = 2
"""Gradients of input and weight, each started by the host as well."""
CAST_BYTES = 6
"""A matrix read in fp32 and written in 16 bits, its gradient the other way (torch
aten/src/ATen/autocast_mode.cpp, cached_cast).
"""


def _weight_elements_on_rank(weight: Weight, tp: Real) -> Real:
    return weight.elements / tp if weight.cut is not None else weight.elements * 1.0


def _recomputed_layer_share(recompute: Recompute, layers: int) -> float:
    """Of the layers, those that are recomputed whole."""
    if recompute.by_layers:
        return 1 / recompute.every
    if recompute.mode is not RecomputeMode.FULL:
        return 0.0
    return min(recompute.layers, layers) / layers if recompute.layers is not None else 1.0


OP_POLICY = 0.5
"""torchtitan's policy keeps every second product and all attention (parallelize_llama.py:214-250 of 9dec370).
"""
ByAxis = tuple[Real, Real, Real]


def _recompute_seconds(
    shop: TrainTiming, operators: tuple[OperatorTime, ...], told: Exchange, share: float
) -> tuple[Real, ByAxis]:
    """Seconds of what runs a second time, and of them those spent in exchanges: of tensor, context and expert
    parallelism.
    """
    how = shop.plan.recompute
    if share:
        # torch's own (not reentrant) stops once all that backward needs is there, before the product whose
        # result leaves the layer (torch/utils/checkpoint.py, _StopRecomputationError)
        stops = not shop.kernels.own.recomputes_whole
        moved = share * (1.0 - LAST_SCATTER * stops) * told.tp[0], share * told.cp[0], share * told.ep[0]
        return share * sum((op.forward_s for op in operators if not (stops and op.ends)), 0.0) + sum(
            moved, 0.0
        ), moved
    if how.mode is not RecomputeMode.SELECTIVE:
        return 0.0, NOTHING
    if "op" in how.modules:
        return sum(
            (op.forward_s * (OP_POLICY if op.product else 1.0) for op in operators if not op.attention), 0.0
        ), NOTHING
    modules = {*how.modules} or {"core_attn"}
    names = modules | ({"moe_act"} if "moe" in modules else set())
    found = sum((op.forward_s for op in operators if op.part in names), 0.0)
    sent = told.ep[0] if "moe" in modules else 0.0
    return found + sent, (0.0, 0.0, sent)


NOTHING: ByAxis = (0.0, 0.0, 0.0)
LAST_SCATTER = 0.25
"""Of a layer's four gathers and scatters, the one after its last product."""


def _embedding_unit(shop: TrainTiming, spec: ModelSpec) -> Unit:
    rows = shop.tokens * 4.0 * spec.hidden / shop.between / shop.rates.memory_bytes
    return _edge_unit(
        rows,
        3 * rows,
        0.0,
        sum((_weight_elements_on_rank(w, shop.tp) for w in spec.embeddings.weights), 0.0),
        shop.plan,
    )


def _head_unit(shop: TrainTiming, spec: ModelSpec) -> Unit:
    operators = head_operators(shop, spec.head, spec.hidden) if spec.head.kind != "none" else ()
    forward, backward = (sum((getattr(op, f) for op in operators), 0.0) for f in ("forward_s", "backward_s"))
    return _edge_unit(
        forward,
        backward,
        sum((op.flops for op in operators), 0.0),
        sum((_weight_elements_on_rank(w, shop.tp) for w in spec.head.weights), 0.0),
        shop.plan,
    )


def _edge_unit(forward: Real, backward: Real, flops: Real, elements: Real, plan: Plan) -> Unit:
    return Unit(
        forward_s=forward,
        backward_s=backward,
        recompute_s=0.0,
        tensor_s=0.0,
        context_s=0.0,
        routed_s=0.0,
        attention_s=0.0,
        waited_s=0.0,
        flops=flops,
        dense=elements,
        experts=0.0,
        trained=0.0 if plan.adapter is not None else elements,
        routed_trained=0.0,
    )
