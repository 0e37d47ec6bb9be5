"""A loss that never has the logits of all tokens at once: the output projection becomes a part of it.

The model's forward is replaced by its backbone and the loss, as kernels of this kind are put into
transformers' models. Labels are shifted as there (5.23.0 loss/loss_utils.py:47, ForCausalLMLoss): each
position is asked for the next token, and the last one for none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from memsheet.errors import input_error
from memsheet.plan.plan import Loss, Plan
from memsheet.run.chunked_loss import chunked_cross_entropy
from memsheet.run.fused_loss import fused_cross_entropy
from memsheet.run.pooled_loss import apply_pooled_loss, has_no_loss

Projected = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(hidden states, the output projection's weight, labels) → the mean over labelled tokens."""
IGNORED = -100
LOSSES: dict[Loss, Projected] = {Loss.CHUNKED: chunked_cross_entropy, Loss.FUSED: fused_cross_entropy}
LOSSES_ON_RECORD: dict[Loss, Projected] = {
    **LOSSES,
    Loss.FUSED: partial(fused_cross_entropy, unlike_parts_only=True),
}
"""Those of a step whose operations nobody counts."""
_CHANGES_LOGITS = ("final_logit_softcapping", "logits_scaling", "logit_scale", "lm_head_multiplier")


def apply_loss(model: nn.Module, plan: Plan, losses: Mapping[Loss, Projected] = LOSSES) -> None:
    """Replace the model's forward where the plan's loss is no plain one. Raises InputError for models with
    more than a linear head.
    """
    if plan.loss is Loss.PLAIN:
        if has_no_loss(model):
            apply_pooled_loss(model)
        return
    found: Any = model
    base, head = getattr(found, "base_model", None), found.get_output_embeddings()
    parts = list(model.children())
    scaled = [name for name in _CHANGES_LOGITS if getattr(found.config, name, None) not in (None, 1, 1.0)]
    if getattr(found.config, "output_router_logits", False):
        raise input_error(
            "loss",
            plan.loss.value,
            "leaves out the routers' own loss, which output_router_logits asks for",
            "plain",
        )
    if (
        len(parts) != 2
        or base not in parts
        or head not in parts
        or type(head) is not nn.Linear
        or head.bias is not None
        or scaled
    ):
        why = f"is not known for {type(model).__name__}, whose logits are more than one matrix product"
        raise input_error("loss", plan.loss.value, why, "plain")
    found.forward = partial(_projected_loss_forward, base, head, losses[plan.loss])


def _projected_loss_forward(
    base: nn.Module, head: nn.Linear, loss: Projected, *, labels: Tensor, **inputs: Tensor
) -> Any:
    from transformers.modeling_outputs import CausalLMOutput

    hidden = base(**inputs)[0]
    following = functional.pad(labels, (0, 1), value=IGNORED)[..., 1:]
    return CausalLMOutput(loss=loss(hidden.flatten(0, 1), head.weight, following.flatten()))
