"""What optimizers make of one tensor at a time beyond copies of it, piece by piece and in order, and the
tensors that they keep of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from memsheet.formulas.replay.script import Script
from memsheet.formulas.states.held import HeldTensor
from memsheet.formulas.states.optimizers import (
    galore_scratch,
    is_muon_stepped,
    lora_fa_scratch,
    moments_dtype,
    optimizer_bytes,
    step_count_bytes,
)
from memsheet.plan.dtypes import BF16
from memsheet.plan.plan import OptimizerName, Plan

PAIRED = frozenset({OptimizerName.ADAMW, OptimizerName.ADAMW_8BIT, OptimizerName.ADAMW_4BIT})
"""Optimizers with two alike states of a tensor."""
ITERATIONS = 5
"""Newton-Schulz steps of torch.optim.Muon by default (torch 2.13 optim/_muon.py)."""
BY_TENSOR = frozenset({OptimizerName.MUON, OptimizerName.GALORE, OptimizerName.LORA_FA})
"""Optimizers whose copies are more than those of a tensor."""
STATES_FROM_START = frozenset({OptimizerName.ADAGRAD})
"""Optimizers that make their states when they are made themselves, before the first step (torch 2.13
optim/adagrad.py:84-108); all others do in it.
"""
Stepped = Iterable[tuple[HeldTensor, int]]


def state_sizes(held: HeldTensor, elements: int, plan: Plan, head: int) -> tuple[int, ...]:
    """Bytes of the tensors that the optimizer keeps for one. ``head``: elements of the block that Adam-mini
    takes for a head.
    """
    step, optimizer = step_count_bytes(plan), plan.optimizer
    rest = int(optimizer_bytes(held, elements, plan, head)) - step
    if optimizer is None:
        return (step, rest)
    first = int(moments_dtype(held, plan).nbytes(elements))
    match optimizer.name:
        case OptimizerName.MUON if is_muon_stepped(held):
            return (rest + step,)
        case OptimizerName.ADAM_MINI:
            return (first, rest - first)
        case name if name in PAIRED or name in BY_TENSOR:
            return (step, rest // 2, rest - rest // 2)
        case _:
            return (step, rest)


def step_by_tensor(script: Script, stepped: Stepped, plan: Plan) -> list[tuple[HeldTensor, int]]:
    """Tensors that the plan's optimizer steps in a way of its own, one after another; those that are left to
    the one beside it.
    """
    assert plan.optimizer is not None
    match plan.optimizer.name:
        case OptimizerName.MUON:
            own = [pair for pair in stepped if is_muon_stepped(pair[0])]
            _orthogonalize_matrices(script, own, plan)
            return [pair for pair in stepped if not is_muon_stepped(pair[0])]
        case OptimizerName.GALORE:
            for held, elements in stepped:
                script.give(script.take_all([*_galore_pieces(held, elements, plan)]))
        case _:
            for held, elements in stepped:
                script.give([script.take(int(lora_fa_scratch(held, elements)))])
    return []


def _orthogonalize_matrices(script: Script, stepped: Stepped, plan: Plan) -> None:
    """Newton-Schulz: a name is given to what comes next before what it was goes (torch 2.13 optim/_muon.py,
    _single_tensor_muon and _zeropower_via_newtonschulz).
    """
    before: list[int] = []
    for held, elements in stepped:
        short = min(int(side) for side in held.shape)
        update = script.take(int(moments_dtype(held, plan).nbytes(elements)))
        script.give(before)
        iterate, grams = script.take(int(BF16.nbytes(elements))), list[int]()
        for _ in range(ITERATIONS):
            square = int(BF16.nbytes(short * short))
            made = [script.take(square)]
            script.give(grams[:1])
            made.append(script.take(square))
            script.give(grams[1:])
            grams, last = made, iterate
            iterate = script.take(int(BF16.nbytes(elements)))
            script.give([last])
        script.give([*grams, update])
        before = [iterate]
    script.give(before)


def _galore_pieces(held: HeldTensor, elements: int, plan: Plan) -> Iterator[int]:
    """By halves: the copies of a tensor that is not projected, and of one that is what decomposes its
    gradient, for want of the solver's own order.
    """
    size = int(galore_scratch(held, elements, plan))
    yield from (size // 2, size - size // 2)
