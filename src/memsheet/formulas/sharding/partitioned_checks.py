"""What DeepSpeed does not have of a plan, or what of it is not modelled."""

from __future__ import annotations

from memsheet.arith import agreed, minimum
from memsheet.errors import Problem, raise_if_problems
from memsheet.plan.dtypes import BF16, FP32
from memsheet.plan.plan import Implementation, Plan
from memsheet.plan.stored_dtypes import FOUR_BITS


def check_partitioned(plan: Plan) -> None:
    """Raise InputError naming every part of a plan that DeepSpeed does not have or that is not modelled."""
    found: list[Problem] = []

    def wrong(field: str, value: object, reason: str, hint: str = "") -> None:
        found.append(Problem(field=field, value=value, reason=reason, hint=hint))

    precision, offload = plan.precision, plan.offload
    if plan.zero and agreed(plan.mesh.dp_replicate > 1):
        wrong(
            "mesh.dp_replicate",
            plan.mesh.dp_replicate,
            f"replicas of shards at zero {plan.zero} are not modelled",
            "use dp_shard",
        )
    if precision.compute is not precision.parameters:
        wrong(
            "precision",
            precision.compute.name,
            "DeepSpeed casts the whole model and computes in its dtype",
            "--precision bf16-master",
        )
    if plan.adapter and plan.adapter.dtype is not precision.parameters:
        wrong(
            "adapter.dtype",
            plan.adapter.dtype.name,
            f"becomes {precision.parameters.name}: DeepSpeed casts the whole model",
            "leave it out",
        )
    if precision.gradients not in (precision.parameters, FP32) or (
        precision.gradients is not precision.parameters and plan.zero in (0, 2)
    ):
        wrong(
            "precision.gradients",
            precision.gradients.name,
            f"zero {plan.zero} keeps gradients in the model's dtype",
            "zero 1 or 3 has fp32",
        )
    if (
        plan.zero == 1
        and precision.gradients is FP32
        and precision.parameters is not FP32
        and (offload.optimizer or precision.parameters is not BF16)
    ):
        wrong(
            "precision.gradients",
            "fp32",
            "at zero 1 is modelled for bf16 without offload only",
            "leave it out, or zero 3",
        )
    if precision.master_weights not in (None, FP32) or precision.moments is not FP32:
        wrong(
            "precision.moments",
            precision.moments.name,
            "bf16_master_weights_and_grads and bf16_optimizer_states are not modelled",
            "fp32",
        )
    unfused = plan.optimizer is not None and plan.optimizer.implementation is not Implementation.FUSED
    if plan.zero == 0 and precision.parameters is not FP32 and unfused:
        wrong(
            "optimizer.implementation",
            "unfused",
            "FP16_UnfusedOptimizer, which DeepSpeed takes at zero 0, is not modelled",
            "fused, or zero 1",
        )
    if plan.quantization and plan.zero == 3 and plan.quantization.weights not in FOUR_BITS:
        wrong(
            "quantization.weights",
            plan.quantization.weights.name,
            "is not modelled at zero 3, which divides parameters: its layers keep what they multiply with in "
            "attributes beside them",  # bitsandbytes 0.50.2 nn/modules.py:1159-1163, init_8bit_state
            "nf4, which zero 3 divides; or zero 2",
        )
    if plan.optimizer is not None and plan.optimizer.implementation is Implementation.BNB:
        found += _bitsandbytes_problems(plan)
    found += _offload_problems(plan)
    found += _secondary_problems(plan)
    raise_if_problems(found)


def _bitsandbytes_problems(plan: Plan) -> list[Problem]:
    """Its states are of flat fp32 partitions on the device, and its kernels are the device's."""
    name = plan.optimizer.name.value if plan.optimizer else ""
    reasons = [
        ("at zero 0 is not modelled, where parameters are not flat", plan.zero == 0, "zero 1 to 3"),
        ("is not modelled beside states on the host", bool(plan.offload.optimizer), "adamw"),
    ]
    return [
        Problem(field="optimizer.name", value=name, reason=why, hint=hint)
        for why, holds, hint in reasons
        if holds
    ]


def _offload_problems(plan: Plan) -> list[Problem]:
    offload, found = plan.offload, []
    if offload.parameters and plan.zero != 3:
        found.append(
            Problem(
                field="offload.parameters",
                value=offload.parameters,
                reason="exists at zero 3 only",
                hint="--zero 3",
            )
        )
    if offload.optimizer and plan.zero == 0:
        found.append(
            Problem(
                field="offload.optimizer",
                value=offload.optimizer,
                reason="exists from zero 1 on",
                hint="--zero 2",
            )
        )
    if 0 < offload.parameters < 1:
        found.append(
            Problem(
                field="offload.parameters",
                value=offload.parameters,
                reason="has no partial form in DeepSpeed",
                hint="give 0 or 1",
            )
        )
    if 0 < offload.optimizer < 1 and plan.zero != 3:
        hint = "give 0 or 1; the ratio of offload_optimizer exists at zero 3"
        found.append(
            Problem(
                field="offload.optimizer",
                value=offload.optimizer,
                reason=f"is not divided at zero {plan.zero}",
                hint=hint,
            )
        )
    return found


def _secondary_problems(plan: Plan) -> list[Problem]:
    """Of hpZ: it is of stage 3 (engine.py:2428-2444), and its groups are whole (utils/groups.py:872-881)."""
    size, ranks, found = plan.gathers.secondary_shard, plan.mesh.sharded, []
    if size > 1 and plan.zero != 3:
        found.append(("exists at zero 3 only", "--zero 3"))
    elif size > 1 and agreed(ranks % minimum(size, ranks) != 0):
        found.append((f"does not divide {ranks} ranks", "a node's ranks, for example"))
    return [Problem(field="secondary_shard", value=size, reason=why, hint=hint) for why, hint in found]
