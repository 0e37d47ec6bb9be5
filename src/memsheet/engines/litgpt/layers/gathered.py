"""What is gathered on several GPUs while litgpt's loss is taken and run backward, in bytes: axes of the
loss's tape, which has the output layer of the model's forward, too.

Blocks are FullyShardedDataParallel's units (finetune/full.py:108-115), or fully_shard's groups where LoRA
trains (finetune/lora.py:522 of v0.5.11).
"""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.engines.shared.gathered_units import all_gather_bytes, flat_unit_bytes, last_layer_parameters
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import TORCH_FSDP1, formula

STILL, AHEAD = "gathered", "ahead"
"""The buffer that the model's forward ends with, and the block that is gathered ahead."""


@formula(
    cites=TORCH_FSDP1,
    at=(
        "_runtime_utils.py, _pre_backward_hook of the root: its output's gradient has come when the last "
        "unit is gathered ahead; fully_shard's root does so, and has a buffer besides"
    ),
)
def buffers_at_loss(spec: ModelSpec, plan: Plan) -> dict[str, Count]:
    """Bytes of the last block. A flat parameter is gathered in place."""
    layer = last_layer_parameters(spec, plan)
    if plan.adapter is None:
        return {STILL: 0, AHEAD: flat_unit_bytes(layer, plan)}
    size = all_gather_bytes(layer, plan)
    return {STILL: size, AHEAD: size}
