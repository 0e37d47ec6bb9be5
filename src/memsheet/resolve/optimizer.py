"""The optimizer by any of its names, and how it is stepped."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from memsheet.plan.engine import Engine
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.plan import PAGED, Implementation, Optimizer, OptimizerName

OPTIMIZER_ALIASES = {
    "adam": "adamw", "adamwtorch": "adamw", "adamwhf": "adamw", "adam8bit": "adamw_8bit", "adamwbnb8bit": "adamw_8bit",
    "pagedadamw32bit": "paged_adamw", "pagedadam": "paged_adamw", "pagedadam8bit": "paged_adamw_8bit", "lion32bit": "lion",
    "galoreadamw": "galore", "adamwtorch4bit": "adamw_4bit", "adam4bit": "adamw_4bit", "pagedlion32bit": "paged_lion", "pagedademamix32bit": "paged_ademamix",
    "rmspropbnb": "rmsprop", "rmspropbnb32bit": "rmsprop", "rmspropbnb8bit": "rmsprop_8bit",
}  # fmt: skip
"""Other names of optimizers, without dashes and underscores."""
GALORE_RANK = 128
"""Of the projections (transformers 5.23 trainer_optimizer.py:115)."""


def optimizer_of(gaps: RequestResolver, engine: Engine) -> Optimizer:
    names = RequestResolver(
        {"optimizer.name": _plain_name(gaps.request.get("optimizer.name"))},
        assumed=gaps.assumed,
        problems=gaps.problems,
    )
    if engine.sharding.hands_out_dtensors and asks_bitsandbytes(gaps.request):
        _refuse_bitsandbytes(gaps, engine)
        return Optimizer(name=OptimizerName.ADAMW, implementation=engine.default_implementation)
    name = names.choice("optimizer.name", OptimizerName.ADAMW, engine.optimizers, engine.name)
    if names.is_wrong("optimizer.name"):  # how it is stepped is of that one
        return Optimizer(name=name, implementation=engine.default_implementation)
    allowed = _optimizer_implementations(name, engine)
    default = engine.default_implementation if engine.default_implementation in allowed else allowed[0]
    chosen = gaps.choice("optimizer.implementation", default, allowed, name.value)
    if name is OptimizerName.GALORE:
        return Optimizer(name=name, implementation=chosen, rank=gaps.get("optimizer.rank", GALORE_RANK))
    if gaps.request.get("optimizer.rank") is not None:
        gaps.wrong(
            "optimizer.rank",
            gaps.request["optimizer.rank"],
            f"has no meaning for {name.value}",
            "galore has projections",
        )
    return Optimizer(name=name, implementation=chosen)


def _plain_name(spelled: Any) -> Any:
    """The plan's word for an optimizer by any of its names; what was written where it is none of them."""
    plain = str(spelled).lower().replace("-", "").replace("_", "")
    return OPTIMIZER_ALIASES.get(plain, _plain_names().get(plain, spelled))


def asks_bitsandbytes(request: Mapping[str, Any]) -> bool:
    """Whether bitsandbytes, named or alone in having the optimizer that is, steps the parameters."""
    said = request.get("optimizer.implementation")
    alone = any(
        member.value == _plain_name(request.get("optimizer.name"))
        for member, ways in _OTHERS.items()
        if ways == (Implementation.BNB,) and member is not OptimizerName.ADAMW_8BIT
    )
    return said == Implementation.BNB.value or (said is None and alone)


def _refuse_bitsandbytes(gaps: RequestResolver, engine: Engine) -> None:
    """Say that the first step stops (``Sharding.hands_out_dtensors``), and what is stepped there."""
    field = "optimizer.implementation" if gaps.request.get("optimizer.implementation") else "optimizer.name"
    other = "torchao's adamw_8bit (optim: adamw_torch_8bit)"
    other = other if OptimizerName.ADAMW_8BIT in engine.optimizers else "adamw"
    copies = f", or engine {engine.whole_copies_by}" if engine.whole_copies_by else ""
    gaps.wrong(
        field,
        gaps.request[field],
        f"bitsandbytes takes no DTensor, which {engine.name}'s parameters are: torch stops at the first step",
        f"{other}{copies}",
        refused=True,
    )


@cache
def _plain_names() -> dict[str, str]:
    return {member.value.replace("_", ""): member.value for member in OptimizerName}


_TORCH = (Implementation.FUSED, Implementation.FOREACH, Implementation.LOOP)
_OTHERS: dict[OptimizerName, tuple[Implementation, ...]] = {
    **dict.fromkeys((OptimizerName.ADAMW_8BIT, OptimizerName.LION_8BIT, OptimizerName.RMSPROP_8BIT, *PAGED, OptimizerName.ADEMAMIX, OptimizerName.ADEMAMIX_8BIT), (Implementation.BNB,)),
    OptimizerName.ADAMW_4BIT: (Implementation.TORCHAO,),
    OptimizerName.RMSPROP: (Implementation.FOREACH, Implementation.LOOP, Implementation.BNB),
    OptimizerName.ADAGRAD: (Implementation.FOREACH, Implementation.LOOP),  # its fused step is a processor's
    **dict.fromkeys((OptimizerName.ADAM_MINI, OptimizerName.GALORE, OptimizerName.LORA_FA), (Implementation.LOOP,)),
    OptimizerName.ADAFACTOR: (Implementation.LOOP, Implementation.FOREACH),  # transformers' own, torch's
    OptimizerName.LION: (Implementation.LOOP, Implementation.FOREACH),  # lion-pytorch's two
    OptimizerName.MUON: _TORCH,  # of the AdamW beside it
}  # fmt: skip


def _optimizer_implementations(name: OptimizerName, engine: Engine) -> tuple[Implementation, ...]:
    """How an optimizer can run; the first is the usual one."""
    return engine.implementations.get(name) or _OTHERS.get(name) or _TORCH
