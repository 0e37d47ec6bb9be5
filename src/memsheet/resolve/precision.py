"""What a plan computes and keeps its states in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.plan import dtypes
from memsheet.plan.defaults import (
    ADAPTER_PRECISION,
    NAMED_PRECISIONS,
)
from memsheet.plan.device import Device
from memsheet.plan.dtypes import BF16, FP16, FP32, DType, dtype_named
from memsheet.plan.engine import Engine
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.hardware import BF16_UNITS, is_older_device, lowers_itself, not_served_in
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import (
    EIGHT_BITS,
    PAGED,
    Adapter,
    AdapterKind,
    Implementation,
    OptimizerName,
    Plan,
    Precision,
)
from memsheet.plan.workload import Training

with late_functions(__name__):
    from memsheet.resolve.adapters import in_base_dtype


def precision_of(
    gaps: RequestResolver,
    engine: Engine,
    task: str,
    adapter: Adapter | None,
    model: ModelSpec | None,
    device: Device | None = None,
) -> Precision:
    """The declared dtypes: named, or one by one, or the engine's."""
    name = gaps.request.get("precision.name")
    fields = {
        k.split(".")[1]: v
        for k, v in gaps.request.items()
        if k.startswith("precision.") and k != "precision.name"
    }
    if name is not None:
        _check_name(gaps, name, engine, task)
        base = NAMED_PRECISIONS[name]
    elif task == "infer":
        refused = not_served_in(
            engine, gaps.request.get("engine_version"), device, model.model_type if model else ""
        )
        base = _weights_only_precision(
            _served_weight_dtype(gaps, engine, model, silent=bool(fields), refused=refused)
        )
    elif adapter is not None:
        base = (
            ADAPTER_PRECISION
            if engine.adapter_dtype == "fp32"
            else NAMED_PRECISIONS[engine.default_precision]
        )
        halved = _in_half(engine, device) and base is ADAPTER_PRECISION
        base = replace(base, parameters=FP16, compute=FP16) if halved else base
        copied = adapter.kind is AdapterKind.LN_TUNING
        kept = base.parameters.name if copied else engine.adapter_dtype
        gaps.assumed += (
            []
            if fields
            else [
                (
                    f"precision = {base.parameters.name} frozen base, {kept} "
                    f"adapters{_why_half(device, halved)}"
                )
            ]
        )
    else:
        halved = _in_half(engine, device)
        usual = HALF if halved else engine.default_precision
        base = NAMED_PRECISIONS[usual]
        gaps.assumed += (
            _usual_dtypes(base, fields) if fields else [f"precision = {usual}{_why_half(device, halved)}"]
        )
    found = _with_fields(base, fields)
    if task == "infer":
        found = _cast_down(gaps, found, engine, device)
        _check_served_in(gaps, found, engine, model, device)
        return _serving_precision(gaps, found)
    if adapter is not None and not engine.copies_adapters:
        found = _of_adapters(gaps, found, in_base_dtype(gaps, adapter, found.parameters), engine)
    _check_reduce(gaps, found, engine)
    return found


def _usual_dtypes(base: Precision, fields: Mapping[str, Any]) -> list[str]:
    """What parameters are kept in where only what is computed in was said, and they are wider."""
    said, kept = fields.get("compute"), base.parameters
    computed = dtype_named(said) if said is not None and fields.keys() == {"compute"} else None
    if computed is None or kept.bits <= computed.bits:
        return []
    return [f"precision.parameters = {kept.name} (precision.compute = {said} is said alone)"]


HALF = "fp16-autocast"


def _in_half(engine: Engine, device: Device | None) -> bool:
    """Whether an engine that autocasts is taken to do so in fp16, on a card that has no units for bf16."""
    return (
        device is not None
        and is_older_device(device, BF16_UNITS)
        and engine.autocast
        and HALF in engine.precisions
    )


def _why_half(device: Device | None, halved: bool) -> str:  # noqa: FBT001 - a fact beside the card
    return f" ({device.name} has no bf16 units)" if device is not None and halved else ""


def _check_name(gaps: RequestResolver, name: str, engine: Engine, task: str) -> None:
    beside = engine.adapter_precisions if gaps.request.get("adapter.rank") else ()
    if task == "train" and name not in (*engine.precisions, *beside):
        gaps.wrong(
            "precision", name, f"is not how {engine.name} trains", f"it has {', '.join(engine.precisions)}"
        )
    if task == "infer" and name in ("bf16-master", "fsdp2-mixed", "megatron-mixed"):
        gaps.wrong(
            "precision",
            name,
            "is a way to train: nothing is stepped or sharded in infer",
            "bf16-pure keeps weights in bf16",
        )


def _cast_down(gaps: RequestResolver, found: Precision, engine: Engine, device: Device | None) -> Precision:
    """What a server computes in that casts on an old card, and does not refuse."""
    refused = not_served_in(engine, None, device, "") if engine.limits.casts_down else {}
    if found.compute not in refused:
        return found
    other = _served_in_place(refused)
    gaps.assumed.append(
        f"precision.compute = {other.name} ({found.compute.name} {refused[found.compute]}: {engine.name} "
        "casts it)"
    )
    return replace(found, parameters=other, compute=other)


def _check_served_in(
    gaps: RequestResolver, found: Precision, engine: Engine, model: ModelSpec | None, device: Device | None
) -> None:
    """A dtype that the server refuses for the card or the family."""
    refused = not_served_in(
        engine, gaps.request.get("engine_version"), device, model.model_type if model else ""
    )
    if (reason := refused.get(found.compute)) is not None:
        asked = any(key.startswith("precision.") for key in gaps.request)
        other = _served_in_place(refused).name
        gaps.wrong(
            "precision.compute",
            found.compute.name,
            reason,
            f"leave it out, and it takes {other}" if asked else other,
            refused=True,
        )


def _served_in_place(refused: Mapping[DType, str]) -> DType:
    """What a server takes in place of what it refuses: the first of bf16, fp16 and fp32 (``READ_IN``)."""
    return next(dtype for dtype in (BF16, FP16, FP32) if dtype not in refused)


def _served_weight_dtype(
    gaps: RequestResolver,
    engine: Engine,
    model: ModelSpec | None,
    *,
    silent: bool,
    refused: Mapping[DType, str],
) -> DType:
    """What weights are served in: the file's dtype where it is one of the three that are computed in. A
    server with a pool makes 16 bits of fp32 (``READ_IN``; SGLang
    v0.5.23 configs/model_config.py _get_and_verify_dtype).
    """
    stored = dtype_named(model.dtype) if model and model.dtype else None
    halves = engine.serving.pools_cache and stored is FP32
    kept = stored if stored in (FP16, FP32, BF16) and not halves else BF16
    if kept in refused and lowers_itself(engine, gaps.request.get("engine_version")):
        other = _served_in_place(refused)
        gaps.assumed += (
            [] if silent else [f"precision.parameters = {other.name} ({kept.name} {refused[kept]})"]
        )
        return other
    odd = (
        f" (the file's {model.dtype} is not {'served' if engine.serving.pools_cache else 'computed'} in)"
        if model and model.dtype and stored is not kept
        else ""
    )
    gaps.assumed += [] if silent else [f"precision.parameters = {kept.name}{odd}"]
    return kept


def _weights_only_precision(kept: DType, compute: DType | None = None) -> Precision:
    """Weights that are not trained: what belongs to a step has their dtype and no bytes."""
    return Precision(
        parameters=kept,
        compute=compute or kept,
        gradients=kept,
        reduce=kept,
        master_weights=None,
        moments=kept,
    )


def _serving_precision(gaps: RequestResolver, found: Precision) -> Precision:
    plain = _weights_only_precision(found.parameters, found.compute)
    for key in ("gradients", "reduce", "master_weights", "moments"):
        given = gaps.request.get(f"precision.{key}")
        if given is not None and dtype_named(given) is not getattr(plain, key):
            gaps.wrong(f"precision.{key}", given, "has no meaning in infer", "leave it out")
    return plain


def _of_adapters(gaps: RequestResolver, found: Precision, adapter: Adapter, engine: Engine) -> Precision:
    """The gradients and moments of adapters have the adapters' dtype; the frozen base has neither. Replicas
    reduce in it too.
    """
    for key in ("gradients", "moments"):
        given = gaps.request.get(f"precision.{key}")
        if (
            given is not None
            and dtype_named(given) is not adapter.dtype
            and not (key == "moments" and _of_optimizer(gaps, given))
        ):
            hint = "give adapter.dtype, or leave it out"
            gaps.wrong(
                f"precision.{key}",
                given,
                f"is not what adapters of {adapter.dtype.name} have: the frozen base has none",
                hint,
            )
    if found.master_weights is not None:
        name = gaps.request.get("precision.name") or found.master_weights.name
        gaps.wrong(
            "precision",
            name,
            f"keeps copies of what trains, and adapters train in {adapter.dtype.name} themselves",
            "bf16-pure",
        )
    own = engine.sharding.gathers or gaps.request.get("precision.reduce") is not None
    return replace(
        found, gradients=adapter.dtype, moments=adapter.dtype, reduce=found.reduce if own else adapter.dtype
    )


def _of_optimizer(gaps: RequestResolver, given: str) -> bool:
    """Whether moments are said to be what an optimizer or its kernels keep them in whatever trains
    (``formulas.optimizers``); ``check_moments`` knows which keep eight bits.
    """
    if dtype_named(given) is dtypes.INT8:
        return True
    return dtype_named(given) is FP32 and gaps.request.get("optimizer.implementation") in (
        Implementation.BNB.value,
        Implementation.APEX.value,
    )


def _check_reduce(gaps: RequestResolver, found: Precision, engine: Engine) -> None:
    given = gaps.request.get("precision.reduce")
    if given is not None and not engine.sharding.gathers and found.reduce is not found.gradients:
        gaps.wrong(
            "precision.reduce",
            given,
            f"is not how {engine.name} reduces: in the gradients' {found.gradients.name}",
            "leave it out",
        )


OWN_DTYPE = (
    OptimizerName.SGD,
    OptimizerName.ADAFACTOR,
    OptimizerName.ADAMW_4BIT,
    OptimizerName.ADEMAMIX,
    *PAGED,
)
"""What keeps no moments, or keeps them in a dtype of its own."""


def check_moments(gaps: RequestResolver, plan: Plan) -> None:
    """Moments in a dtype that the optimizer does not keep them in."""
    given, optimizer = gaps.request.get("precision.moments"), plan.optimizer
    alone = plan.adapter is not None and plan.adapter.kind is AdapterKind.LORA_FA
    if optimizer is not None and optimizer.name is OptimizerName.LORA_FA and not alone:
        gaps.wrong(
            "optimizer.name",
            optimizer.name.value,
            "steps the second matrices of LoRA-FA alone",
            "give adapter.kind lora-fa",
        )
    if given is None or optimizer is None:
        return
    dtype, name = dtype_named(given), optimizer.name
    if dtype is dtypes.INT8 and name not in EIGHT_BITS:
        gaps.wrong(
            "precision.moments", given, f"is not how {name.value} keeps them", "--optimizer adamw_8bit does"
        )
    usual = (FP32, dtypes.INT8, plan.precision.parameters, plan.precision.gradients)
    if (name in EIGHT_BITS or name in OWN_DTYPE) and dtype not in usual:
        gaps.wrong(
            "precision.moments",
            given,
            f"changes nothing: {name.value} keeps none of that dtype",
            "leave it out",
        )


NEVER_IN_BACKWARD = (OptimizerName.MUON, OptimizerName.ADAM_MINI, OptimizerName.GALORE, OptimizerName.LORA_FA)


def check_in_backward(gaps: RequestResolver, plan: Plan, engine: Engine) -> None:
    """What a step inside backward leaves no room for."""
    if not plan.optimizer_in_backward or not isinstance(plan.workload, Training):
        return
    precision = plan.precision
    together = engine.steps_in_backward and plan.accumulation > 1
    reasons = {
        f"is not modelled for {engine.name} yet": not engine.steps_in_backward,
        "steps with every micro-batch, and a step of several gathers their gradients": together,
        "steps before ranks have summed their gradients": engine.steps_in_backward and plan.mesh.gpus > 1,
        "steps before the scaler knows whether a gradient overflowed": engine.autocast
        and precision.casts
        and precision.compute is FP16,
        "is not modelled with copies in higher precision": precision.master_weights is not None,
        "is not modelled for this optimizer": plan.optimizer is not None
        and plan.optimizer.name in NEVER_IN_BACKWARD,
    }
    for reason, holds in reasons.items():
        if holds:
            gaps.wrong("optimizer_in_backward", True, reason, "leave it out")


def _with_fields(base: Precision, fields: Mapping[str, Any]) -> Precision:
    """Dtypes given one by one; a null master_weights means that there is no separate copy."""

    def pick(key: str, default: DType) -> DType:
        found = dtype_named(fields[key]) if fields.get(key) else default
        assert found is not None
        return found

    parameters = pick("parameters", base.parameters)
    compute = pick("compute", base.compute if "parameters" not in fields else parameters)
    gradients = pick("gradients", base.gradients if "parameters" not in fields else parameters)
    master = dtype_named(fields["master_weights"]) if fields.get("master_weights") else None
    return Precision(
        parameters=parameters,
        compute=compute,
        gradients=gradients,
        reduce=pick("reduce", gradients),
        master_weights=master if "master_weights" in fields else base.master_weights if not fields else None,
        moments=pick("moments", base.moments),
    )
