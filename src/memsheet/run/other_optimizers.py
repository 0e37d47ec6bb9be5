"""Optimizers of libraries beside torch, each as its library makes it. What is not installed is refused by
name.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from memsheet.errors import input_error
from memsheet.plan.plan import Implementation, OptimizerName, Plan

RATE = 1e-4
BNB = {
    OptimizerName.ADAMW_8BIT: "AdamW8bit", OptimizerName.PAGED_ADAMW_8BIT: "PagedAdamW8bit", OptimizerName.PAGED_ADAMW: "PagedAdamW32bit",
    OptimizerName.LION: "Lion", OptimizerName.LION_8BIT: "Lion8bit", OptimizerName.PAGED_LION: "PagedLion32bit", OptimizerName.PAGED_LION_8BIT: "PagedLion8bit",
    OptimizerName.ADEMAMIX: "AdEMAMix", OptimizerName.ADEMAMIX_8BIT: "AdEMAMix8bit", OptimizerName.PAGED_ADEMAMIX: "PagedAdEMAMix32bit", OptimizerName.PAGED_ADEMAMIX_8BIT: "PagedAdEMAMix8bit",
    OptimizerName.RMSPROP: "RMSprop", OptimizerName.RMSPROP_8BIT: "RMSprop8bit",
}  # fmt: skip
GAP, SCALE = 200, 0.25
"""Steps between projections, and the factor of what is projected back (transformers 5.23
trainer_optimizer.py:115-120).
"""


def other_optimizer(
    named: list[tuple[str, nn.Parameter]], plan: Plan, model: nn.Module | None, embeddings: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """The plan's optimizer, of a library that is no part of torch."""
    trained = [parameter for _, parameter in named]
    assert plan.optimizer is not None
    name, way = plan.optimizer.name, plan.optimizer.implementation
    if way is Implementation.BNB:
        return _bitsandbytes_optimizer(trained, name, embeddings)
    try:
        return _library_optimizer(named, plan, model)
    except ImportError as missing:
        raise input_error(
            "optimizer",
            name.value,
            f"is {missing.name}'s, which is not installed",
            f"pip install {missing.name}",
        ) from None


def _library_optimizer(
    named: list[tuple[str, nn.Parameter]], plan: Plan, model: nn.Module | None
) -> torch.optim.Optimizer:
    assert plan.optimizer is not None
    trained = [parameter for _, parameter in named]
    match plan.optimizer.name:
        case OptimizerName.ADAFACTOR if plan.optimizer.implementation is Implementation.FOREACH:
            return torch.optim.Adafactor(trained, lr=RATE, foreach=True)
        case OptimizerName.ADAFACTOR:
            from transformers.optimization import Adafactor

            return Adafactor(trained, lr=RATE, scale_parameter=False, relative_step=False)
        case OptimizerName.LION:
            from lion_pytorch import Lion
            from lion_pytorch.foreach import Lion as ForeachLion

            made: torch.optim.Optimizer = (
                ForeachLion if plan.optimizer.implementation is Implementation.FOREACH else Lion
            )(trained, lr=RATE)
            return made
        case OptimizerName.ADAM_MINI:
            from adam_mini import Adam_mini

            config: Any = getattr(model, "config", None)
            mini: torch.optim.Optimizer = Adam_mini(
                named,
                lr=RATE,
                dim=config.hidden_size,
                n_heads=config.num_attention_heads,
                n_kv_heads=config.num_key_value_heads,
                verbose=False,
            )
            return mini
        case OptimizerName.GALORE:
            from galore_torch import GaLoreAdamW

            galore: torch.optim.Optimizer = GaLoreAdamW(
                _galore_param_groups(named, plan), lr=RATE, no_deprecation_warning=True
            )
            return galore
        case OptimizerName.LORA_FA:
            from peft.optimizers import create_lorafa_optimizer

            assert plan.adapter is not None
            rank = int(plan.adapter.rank)
            projecting: torch.optim.Optimizer = create_lorafa_optimizer(
                model,  # type: ignore[arg-type]
                r=rank,
                lora_alpha=2 * rank,
                lr=RATE,
            )
            return projecting
        case name:
            raise input_error(
                "optimizer", name.value, "is not run here", "its formulas are known: memsheet train"
            )


def _galore_param_groups(named: list[tuple[str, nn.Parameter]], plan: Plan) -> list[dict[str, Any]]:
    """Two groups: matrices of layers, whose gradients are projected, and the rest."""
    assert plan.optimizer is not None
    inner = [p for name, p in named if p.dim() == 2 and "embed" not in name and "lm_head" not in name]
    rest = [p for name, p in named if not any(p is one for one in inner)]
    how = {"rank": int(plan.optimizer.rank), "update_proj_gap": GAP, "scale": SCALE, "proj_type": "std"}
    return [{"params": inner, **how}, {"params": rest}]


def _bitsandbytes_optimizer(
    trained: list[nn.Parameter], name: OptimizerName, embeddings: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """In 8 bits embeddings keep states in 32, as the Trainer of transformers has it (5.23.0
    trainer.py:1338).
    """
    if (
        name.value.startswith("paged")
        and any(p.device.type == "cuda" for p in trained)
        and not torch.cuda.is_available()
    ):
        raise input_error(
            "optimizer",
            name.value,
            "has its states in pages of a card's driver, and there is none",
            "memsheet train counts them",
        )
    with _disable_current_modes():  # it works its quantization tables out from values when it is made
        try:
            import bitsandbytes.optim as library
        except ImportError:
            raise input_error(
                "optimizer",
                name.value,
                "is bitsandbytes', which is not installed",
                "pip install bitsandbytes",
            ) from None
        manager = library.GlobalOptimManager.get_instance()
        manager.initialize()  # one for the whole process, which still knows the parameters of models before
        manager.override_config(embeddings, "optim_bits", 32)
        manager.register_parameters(trained)
        made: torch.optim.Optimizer = getattr(library, BNB[name])(trained, lr=RATE)
    return made
