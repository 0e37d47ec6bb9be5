"""How optimizers can be stepped where ranks hold whole tensors, and where each has a part of every tensor."""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.plan.plan import Implementation, OptimizerName

TORCH = (Implementation.FUSED, Implementation.FOREACH, Implementation.LOOP)

WHOLE_TENSORS: Mapping[OptimizerName, tuple[Implementation, ...]] = {
    OptimizerName.ADAMW: (*TORCH, Implementation.APEX, Implementation.TRANSFORMERS),
    OptimizerName.ADAMW_8BIT: (Implementation.BNB, Implementation.TORCHAO),
    OptimizerName.LION: (Implementation.LOOP, Implementation.FOREACH, Implementation.BNB),
}
"""Other libraries step whole tensors besides."""

SHARDED_TENSORS: Mapping[OptimizerName, tuple[Implementation, ...]] = {
    OptimizerName.SGD: (Implementation.FOREACH, Implementation.LOOP),
    OptimizerName.SGD_MOMENTUM: (Implementation.FOREACH, Implementation.LOOP),
    OptimizerName.ADAMW_8BIT: (Implementation.TORCHAO,),
}
"""torchao's states are of the part that a rank has (torchao 0.18.0 optim/adam.py:64-86); bitsandbytes' steps
take no DTensor (``Sharding.hands_out_dtensors``). DTensor shards no fused SGD (torch 2.13
distributed/tensor/_ops/_pointwise_ops.py)."""
