"""Buffers that fully_shard gathers into while torchtune's loss is taken and run backward, in bytes: axes of
the loss's tape, which has both the logits of the model's forward and what comes of them.
"""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.engines.shared.gathered_units import all_gather_bytes, last_layer_parameters, unit_parameters
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Loss, Plan
from memsheet.references import TORCH_FSDP2, formula

STILL, AGAIN, AHEAD = "gathered", "head", "ahead"
"""The buffer that the model's forward ends with, a head that is gathered for every piece of the logits, and
the buffer of the layer that is gathered ahead.
"""


@formula(
    cites=TORCH_FSDP2,
    at=(
        "_fsdp_state.py: _post_forward of the root frees the last buffer; _pre_backward of the root, of the "
        "gradient of any logits, gathers the last layer ahead"
    ),
)
def buffers_at_loss(spec: ModelSpec, plan: Plan) -> dict[str, Count]:
    """Bytes of the last layer's buffer, or of the head's where that is a unit of its own. Then every piece
    gathers it, forward and backward, and nothing ahead of it.
    """
    stack, frees = spec.stacks[-1], plan.reshard_after_forward
    if not stack.runs:
        return {STILL: 0, AGAIN: 0, AHEAD: 0}
    if spec.head.tied or plan.adapter is not None:
        size = all_gather_bytes(last_layer_parameters(spec, plan), plan)
        return {STILL: size, AGAIN: 0, AHEAD: size if frees else 0}
    norms = (w for norm in stack.final_norms for w in norm.weights)
    size = all_gather_bytes(unit_parameters((*spec.head.weights, *norms), "", plan), plan)
    return {STILL: size, AGAIN: size if frees and plan.loss is Loss.CHUNKED else 0, AHEAD: 0}
