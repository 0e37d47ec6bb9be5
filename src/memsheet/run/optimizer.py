"""The optimizer a plan names, as its own library makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from memsheet.errors import input_error
from memsheet.plan.plan import Implementation, OptimizerName, Plan
from memsheet.run.dtypes import torch_dtype
from memsheet.run.in_backward import InBackward
from memsheet.run.master import MasterWeights
from memsheet.run.other_optimizers import RATE, other_optimizer

MOMENTUM = 0.9
_SWITCHES: dict[Implementation, dict[str, bool]] = {
    Implementation.FOREACH: {"foreach": True}, Implementation.FUSED: {"fused": True}, Implementation.LOOP: {"foreach": False},
}  # fmt: skip


def build_optimizer(
    parameters: Iterable[nn.Parameter], plan: Plan, model: nn.Module | None = None
) -> torch.optim.Optimizer:
    """What steps the parameters that train: the plan's optimizer, one by one in backward or over copies in
    higher precision if it says so.

    ``model``: whose embeddings an 8-bit optimizer leaves alone. Raises InputError where its library is not
    installed.
    """
    trained = [p for p in parameters if p.requires_grad]
    make = partial(_make_optimizer, plan=plan, model=model)
    if plan.optimizer_in_backward:
        return InBackward(trained, make)
    master = plan.precision.master_weights
    if master is None:
        return make(trained)
    return MasterWeights(
        trained, torch_dtype(master, "precision.master_weights"), partial(make, originals=trained)
    )


def _embedding_parameters(model: nn.Module | None) -> set[torch.Tensor]:
    return (
        {module.weight for module in model.modules() if isinstance(module, nn.Embedding)} if model else set()
    )


def _make_optimizer(
    trained: list[nn.Parameter],
    *,
    plan: Plan,
    model: nn.Module | None,
    originals: list[nn.Parameter] | None = None,
) -> torch.optim.Optimizer:
    """``originals``: the model's own parameters, where ``trained`` are copies of them in the same order."""
    assert plan.optimizer is not None
    meant = list(zip(trained, originals or trained, strict=True))
    switches: dict[str, Any] = dict(_SWITCHES.get(plan.optimizer.implementation, {}))
    match plan.optimizer.name:
        case OptimizerName.ADAMW if plan.optimizer.implementation in (
            Implementation.APEX,
            Implementation.TRANSFORMERS,
        ):
            raise input_error(
                "optimizer.implementation",
                plan.optimizer.implementation.value,
                "is no longer made here",
                "fused, foreach or loop",
            )
        case OptimizerName.ADAMW:
            return torch.optim.AdamW(trained, lr=RATE, **switches)
        case OptimizerName.SGD:
            return torch.optim.SGD(trained, lr=RATE, **switches)
        case OptimizerName.SGD_MOMENTUM:
            return torch.optim.SGD(trained, lr=RATE, momentum=MOMENTUM, **switches)
        case OptimizerName.RMSPROP if plan.optimizer.implementation is not Implementation.BNB:
            return torch.optim.RMSprop(trained, lr=RATE, **switches)
        case OptimizerName.ADAGRAD:
            return torch.optim.Adagrad(trained, lr=RATE, **switches)
        case OptimizerName.ADAMW_8BIT | OptimizerName.ADAMW_4BIT if (
            plan.optimizer.implementation is Implementation.TORCHAO
        ):
            return _torchao_adamw(trained, plan.optimizer.name)
        case OptimizerName.MUON:
            hidden = _hidden_layer_matrices(model)
            return Together(trained, {copy for copy, own in meant if own in hidden}, switches)
        case _:
            embeddings = _embedding_parameters(model)
            return other_optimizer(
                _name_parameters(meant, model),
                plan,
                model,
                [copy for copy, own in meant if own in embeddings],
            )


def _name_parameters(
    meant: list[tuple[nn.Parameter, nn.Parameter]], model: nn.Module | None
) -> list[tuple[str, nn.Parameter]]:
    names = {parameter: name for name, parameter in model.named_parameters()} if model else {}
    return [(names.get(own, f"parameter{number}"), copy) for number, (copy, own) in enumerate(meant)]


def _hidden_layer_matrices(model: nn.Module | None) -> set[torch.Tensor]:
    """The matrices of hidden layers: of linear layers but the output projection."""
    if model is None:
        return set()
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
    return {
        module.weight for module in model.modules() if isinstance(module, nn.Linear) and module is not head
    }


class Together(torch.optim.Optimizer):
    """Muon over matrices of hidden layers, AdamW over the rest, stepped one after the other."""

    def __init__(
        self, trained: list[nn.Parameter], hidden: set[torch.Tensor], switches: dict[str, Any]
    ) -> None:
        super().__init__(trained, {})
        matrices = [p for p in trained if p in hidden]
        rest = [p for p in trained if p not in hidden]
        muon: list[torch.optim.Optimizer] = [torch.optim.Muon(matrices, lr=RATE)] if matrices else []
        self.both = [*muon, *([torch.optim.AdamW(rest, lr=RATE, **switches)] if rest else [])]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Each steps its own; states are found under the parameters here too."""
        for one in self.both:
            one.step(closure)
            self.state.update(one.state)


TORCHAO_BLOCK = 256
"""As transformers asks for it, of four bits too (5.23.0 trainer_optimizer.py:471)."""


def _torchao_adamw(trained: list[nn.Parameter], name: OptimizerName) -> torch.optim.Optimizer:
    """Its step is compiled for a GPU; a processor, which may have no compiler, takes it operation by
    operation.
    """
    try:
        from torchao.optim import AdamW4bit, AdamW8bit
    except ImportError:
        raise input_error(
            "optimizer.implementation", "torchao", "is not installed", "pip install torchao"
        ) from None
    kind = AdamW4bit if name is OptimizerName.ADAMW_4BIT else AdamW8bit
    made: torch.optim.Optimizer = kind(trained, lr=RATE, block_size=TORCHAO_BLOCK)
    if trained[0].device.type != "cuda":
        made.step = partial(_step_eagerly, made.step)  # type: ignore[method-assign]
    return made


def _step_eagerly(step: Callable[..., Any], *args: Any) -> Any:
    with torch.compiler.set_stance("force_eager"):
        return step(*args)
