"""The optimizer by any of its names, and how it is stepped."""

from __future__ import annotations

from functools import cache

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
    spelled = gaps.request.get("optimizer.name")
    plain = str(spelled).lower().replace("-", "").replace("_", "")
    known = _plain_names()
    names = RequestResolver(
        {"optimizer.name": OPTIMIZER_ALIASES.get(plain, known.get(plain, spelled))},
        gaps.assumed,
        gaps.problems,
    )
    name = names.choice("optimizer.name", OptimizerName.ADAMW, engine.optimizers, engine.name)
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
