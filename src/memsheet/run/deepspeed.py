"""DeepSpeed's engine: the plan as its configuration, the model handed to it, and its own step to call.

Written for 0.19.8, with its defaults for all that a plan does not say, bucket sizes among them. Micro-batches
are weighed here, as everywhere in ``run``, so the engine is told not to divide their losses
(runtime/engine.py:3382, ``scale_wrt_gas``).
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from memsheet.errors import input_error
from memsheet.frozen import replace
from memsheet.plan.dtypes import BF16, FP16, FP32
from memsheet.plan.packages import DEEPSPEED
from memsheet.plan.plan import Implementation, OptimizerName, Plan
from memsheet.run.accumulate import Batch, micro_batches
from memsheet.run.model import initialize_model_weights
from memsheet.run.optimizer import build_optimizer
from memsheet.run.other_optimizers import RATE
from memsheet.run.step import mark_loss
from memsheet.run.watch import Watch
from memsheet.sheet import Component, Instant

WEIGHT_DECAY = 0.01
"""torch's for AdamW; DeepSpeed's own is none."""
Kept = Iterator[tuple[torch.Tensor, Component, str]]
_TYPES = {OptimizerName.ADAMW: "AdamW", OptimizerName.LION: "Lion"}
_MODEL = {BF16: "bf16", FP16: "fp16"}
_ONE_LEVEL = ("tp", "pp", "cp", "ep")


def check_deepspeed_run(plan: Plan) -> None:
    """Raises InputError for what the engine is not given here."""
    for axis in _ONE_LEVEL:
        if getattr(plan.mesh, axis) > 1:
            raise input_error(
                f"mesh.{axis}",
                getattr(plan.mesh, axis),
                "is not run with DeepSpeed",
                "data parallelism alone, or engine fsdp2",
            )


def deepspeed_config(plan: Plan, micro: int) -> dict[str, Any]:
    """What ``deepspeed.initialize`` is given for ``plan``, of which ``micro`` micro-batches come before the
    optimizer's turn.
    """
    precision = plan.precision
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": int(plan.training.microbatch), "gradient_accumulation_steps": micro, "zero_optimization": _zero_optimization_config(plan),
        "gradient_clipping": 0.0,  # no plan has it; DeepSpeed's own is 1, which is done in place (runtime/constants.py:203)
    }  # fmt: skip
    if precision.parameters is not FP32:
        config[_MODEL[precision.parameters]] = {"enabled": True}
    if precision.gradients is not precision.parameters:
        config["data_types"] = {"grad_accum_dtype": precision.gradients.name}
    if owns_optimizer(plan):
        assert plan.optimizer is not None
        config["optimizer"] = {
            "type": _TYPES[plan.optimizer.name],
            "params": {"lr": RATE, "weight_decay": WEIGHT_DECAY},
        }
    elif plan.offload.optimizer:
        config["zero_force_ds_cpu_optimizer"] = False
    return config


def _zero_optimization_config(plan: Plan) -> dict[str, Any]:
    """``zero_optimization``: the stage, and what is on the host. A share is said at stage 3 alone
    (zero/offload_config.py, ``ratio``).
    """
    offload, found = plan.offload, dict[str, Any](stage=plan.zero)
    if plan.gathers.secondary_shard > 1:
        found["zero_hpz_partition_size"] = plan.gathers.secondary_shard
    if offload.optimizer:
        ratio = {"ratio": offload.optimizer} if offload.optimizer < 1 else {}
        found["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available(), **ratio}
    if offload.parameters:
        found["offload_param"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    return found


def owns_optimizer(plan: Plan) -> bool:
    """Whether DeepSpeed makes the optimizer itself, by compiling it: where it asks for its own (on the host,
    engine.py:2342-2346; in low precision without ZeRO, engine.py:2564), and for what torch has not. Elsewhere
    it is given torch's, as transformers' Trainer does.
    """
    assert plan.optimizer is not None
    if plan.optimizer.implementation is not Implementation.FUSED:
        return False
    low = plan.zero == 0 and plan.precision.parameters is not FP32
    return plan.optimizer.name is OptimizerName.LION or bool(plan.offload.optimizer) or low


class DeepSpeedStep:
    """A step by the engine. ``optimizer``: the one that has states, under DeepSpeed's."""

    def __init__(self, model: Any, plan: Plan, device: str, watch: Watch, micro: int) -> None:
        """``model`` has memory and values. Raises InputError where DeepSpeed is not installed."""
        self.plan, self.watch, self.micro = plan, watch, micro
        given = {} if owns_optimizer(plan) else {"optimizer": _unsharded_optimizer(model, plan)}
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        mark_loss(model, watch.at)
        self.engine, *_ = _import_deepspeed(device).initialize(
            model=model,
            model_parameters=trained,
            config=deepspeed_config(plan, micro),
            dist_init_required=False,
            **given,
        )
        self.optimizer: torch.optim.Optimizer = self.engine.basic_optimizer
        watch.keeps(kept_by(self.engine))
        self._end = self.engine.destroy
        if plan.zero:  # DeepSpeed holds on to sharded optimizers that nobody else does
            self._end = weakref.finalize(self, self.engine.destroy)
            self._end.atexit = False

    def __call__(self, batch: Batch) -> None:
        """On one micro-batch that serves again, or the whole step's rows."""
        for number, (part, share) in enumerate(micro_batches(batch, self.plan, self.micro), 1):
            self.watch.at(Instant.FORWARD)
            loss = self.engine(**part).loss
            if self.micro > 1:
                loss = loss * share
            if self.watch.seen is not None:
                self.watch.seen(loss.detach())
            self.watch.at(Instant.BACKWARD)
            self.engine.backward(loss, scale_wrt_gas=False)
            del loss
            if number == self.micro:
                self.watch.at(Instant.OPTIMIZER_STEP)
            self.engine.step()  # which counts micro-batches until the last one's

    def close(self) -> None:
        """Let go of what DeepSpeed keeps beyond an engine's life."""
        self._end()


def initialize_before_engine(model: Any) -> None:
    """Values before the engine copies them: without, its checks for overflow would leave out steps."""
    with _disable_current_modes():
        initialize_model_weights(model)


def kept_by(engine: Any) -> Kept:
    """What DeepSpeed's optimizer keeps from step to step (zero/stage_1_and_2.py, zero/stage3.py,
    fp16/fused_optimizer.py).
    """
    optimizer = engine.optimizer
    for names, component, path in _BUFFERS:
        for name in names:
            found = getattr(optimizer, name, None)
            for tensor in [found] if isinstance(found, torch.Tensor) else found or ():
                if isinstance(tensor, torch.Tensor):
                    yield tensor, component, path


_BUFFERS = (
    (("bit16_groups_flat", "lp_param_buffer", "fp16_partitioned_groups_flat"), Component.PARAMETERS, "zero/parameters"),
    (("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat", "fp32_groups_flat_partition", "fp32_groups_flat"), Component.MASTER_WEIGHTS, "zero/fp32_partition"),
    (("grad_partitions_flat_buffer", "fp32_groups_gradients_flat"), Component.GRADIENTS, "zero/grad_partitions_flat_buffer"),
)  # fmt: skip


def _unsharded_optimizer(model: Any, plan: Plan) -> torch.optim.Optimizer:
    """torch's, over the model's own parameters, which the engine exchanges for its parts."""
    bare = replace(plan, precision=replace(plan.precision, master_weights=None))
    return build_optimizer(model.parameters(), bare, model)


def _import_deepspeed(device: str) -> Any:
    """DeepSpeed, on the device asked for. It wants to know its rank on this machine (engine.py:1957), and
    says much.
    """
    os.environ.setdefault("LOCAL_RANK", "0")
    if device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    try:
        deepspeed = import_module(DEEPSPEED)
    except ImportError:
        raise input_error("engine", DEEPSPEED, "is not installed", "pip install deepspeed") from None
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    return deepspeed
