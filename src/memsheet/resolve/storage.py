"""What a plan's tensors are stored in: its precision, its adapter, its quantized weights, its cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from memsheet.gaps import Gaps
from memsheet.resolve.serving import LIBRARY, dequantizes
from memsheet.spec import dtypes
from memsheet.spec.defaults import (
    ADAPTER_PRECISION,
    DEQUANTIZED,
    FIXED_BLOCK,
    FUSED_TARGETS,
    GROUPED,
    LORA_TARGETS,
    NAMED_PRECISIONS,
    PROMPTED,
    QUANTIZED,
    STORED_TRAINABLE,
    TRAINABLE_QUANTIZED,
    UNPACKED,
)
from memsheet.spec.device import Cluster, Device
from memsheet.spec.dtypes import BF16, FP16, FP32, DType, dtype_named
from memsheet.spec.engine import Code, Engine, Sharding
from memsheet.spec.gguf_mixes import gguf_named
from memsheet.spec.hardware import HALF_SINCE, not_served_in, version_of
from memsheet.spec.model import ModelSpec
from memsheet.spec.plan import Adapter, AdapterKind, Implementation, OptimizerName, Plan, Precision, Quantization

NEVER_QUANTIZED = ("embed_tokens", "norm")  # skipped anyway, whatever a model calls them
ALL_LINEAR = "all-linear"
"""peft's word for every linear layer but the head (target_modules)."""

# ---- precision ---------------------------------------------------------------------------------------------------------------


def precision_of(
    gaps: Gaps, engine: Engine, task: str, adapter: Adapter | None, model: ModelSpec | None, device: Device | None = None
) -> Precision:
    """The declared dtypes: named, or one by one, or the engine's."""
    name = gaps.request.get("precision.name")
    fields = {k.split(".")[1]: v for k, v in gaps.request.items() if k.startswith("precision.") and k != "precision.name"}
    if name is not None:
        _check_name(gaps, name, engine, task)
        base = NAMED_PRECISIONS[name]
    elif task == "infer":
        refused = not_served_in(engine.name, gaps.request.get("engine_version"), device, model.model_type if model else "")
        base = _only(_kept(gaps, model, silent=bool(fields), lowers=engine.served is not None, refused=refused))
    elif adapter is not None:
        base = ADAPTER_PRECISION if engine.adapter_dtype == "fp32" else NAMED_PRECISIONS[engine.default_precision]
        gaps.assumed += [] if fields else [f"precision = bf16 frozen base, {engine.adapter_dtype} adapters"]
    else:
        base = NAMED_PRECISIONS[engine.default_precision]
        gaps.assumed += [] if fields else [f"precision = {engine.default_precision}"]
    found = _with_fields(base, fields)
    if task == "infer":
        _check_served_in(gaps, found, engine, model, device)
        return _served(gaps, found)
    if adapter is not None and engine.sharding not in (
        Sharding.DEEPSPEED,
        Sharding.MEGATRON,
    ):  # whose optimizers keep copies of adapters too
        found = _of_adapters(gaps, found, adapter, engine)
    _check_reduce(gaps, found, engine)
    return found


def _check_name(gaps: Gaps, name: str, engine: Engine, task: str) -> None:
    if (
        task == "train"
        and name not in engine.precisions
        and not (engine.sharding is Sharding.DEEPSPEED and gaps.request.get("adapter.rank"))
    ):
        gaps.wrong("precision", name, f"is not how {engine.name} trains", f"it has {', '.join(engine.precisions)}")
    if task == "infer" and name in ("bf16-master", "fsdp2-mixed"):
        gaps.wrong("precision", name, "is a way to train: nothing is stepped or sharded in infer", "bf16-pure keeps weights in bf16")


def _check_served_in(gaps: Gaps, found: Precision, engine: Engine, model: ModelSpec | None, device: Device | None) -> None:
    """A dtype that the server refuses for the card or the family."""
    refused = not_served_in(engine.name, gaps.request.get("engine_version"), device, model.model_type if model else "")
    if (reason := refused.get(found.compute)) is not None:
        asked = any(key.startswith("precision.") for key in gaps.request)
        other = _served_in_place(refused).name
        gaps.wrong("precision.compute", found.compute.name, reason, f"leave the precision out, and it takes {other}" if asked else other)


def _served_in_place(refused: Mapping[DType, str]) -> DType:
    """What a server takes in place of what it refuses (current_platform.supported_dtypes, vLLM v0.11.0 platforms/cuda.py: bf16, fp16, fp32)."""
    return next(dtype for dtype in (BF16, FP16, FP32) if dtype not in refused)


def _kept(gaps: Gaps, model: ModelSpec | None, *, silent: bool, lowers: bool = False, refused: Mapping[DType, str] | None = None) -> DType:
    """What weights are served in: the file's dtype where it is one of the three that are computed in. ``lowers``: a server makes 16 bits of
    fp32 (vLLM v0.11.0 config/model.py _resolve_auto_dtype, SGLang v0.5.23 configs/model_config.py _get_and_verify_dtype).
    """
    stored = dtype_named(model.dtype) if model and model.dtype else None
    kept = stored if stored in (FP16, FP32, BF16) and not (lowers and stored is FP32) else BF16
    if refused and kept in refused and version_of(gaps.request.get("engine_version")) >= HALF_SINCE:
        other = _served_in_place(refused)
        gaps.assumed += [] if silent else [f"precision.parameters = {other.name} ({kept.name} {refused[kept]})"]
        return other
    odd = (
        f" (the file's {model.dtype} is not {'served' if lowers else 'computed'} in)"
        if model and model.dtype and stored is not kept
        else ""
    )
    gaps.assumed += [] if silent else [f"precision.parameters = {kept.name}{odd}"]
    return kept


def _only(kept: DType, compute: DType | None = None) -> Precision:
    """Weights that are not trained: what belongs to a step has their dtype and no bytes."""
    return Precision(parameters=kept, compute=compute or kept, gradients=kept, reduce=kept, master_weights=None, moments=kept)


def _served(gaps: Gaps, found: Precision) -> Precision:
    plain = _only(found.parameters, found.compute)
    for key in ("gradients", "reduce", "master_weights", "moments"):
        given = gaps.request.get(f"precision.{key}")
        if given is not None and dtype_named(given) is not getattr(plain, key):
            gaps.wrong(f"precision.{key}", given, "has no meaning in infer", "leave it out")
    return plain


def _of_adapters(gaps: Gaps, found: Precision, adapter: Adapter, engine: Engine) -> Precision:
    """The gradients and moments of adapters have the adapters' dtype; the frozen base has neither. Replicas reduce in it too."""
    for key in ("gradients", "moments"):
        given = gaps.request.get(f"precision.{key}")
        if given is not None and dtype_named(given) is not adapter.dtype and not (key == "moments" and _in_fp32(gaps, given)):
            hint = "give adapter.dtype, or leave it out"
            gaps.wrong(f"precision.{key}", given, f"is not what adapters of {adapter.dtype.name} have: the frozen base has none", hint)
    if found.master_weights is not None:
        name = gaps.request.get("precision.name") or found.master_weights.name
        gaps.wrong("precision", name, f"keeps copies of what trains, and adapters train in {adapter.dtype.name} themselves", "bf16-pure")
    own = engine.sharding.gathers or gaps.request.get("precision.reduce") is not None
    return replace(found, gradients=adapter.dtype, moments=adapter.dtype, reduce=found.reduce if own else adapter.dtype)


def _in_fp32(gaps: Gaps, given: str) -> bool:
    """Whether moments are said to be what some kernels keep them in whatever trains (``formulas.optimizers``)."""
    return dtype_named(given) is FP32 and gaps.request.get("optimizer.implementation") in (
        Implementation.BNB.value,
        Implementation.APEX.value,
    )


def _check_reduce(gaps: Gaps, found: Precision, engine: Engine) -> None:
    given = gaps.request.get("precision.reduce")
    if given is not None and not engine.sharding.gathers and found.reduce is not found.gradients:
        gaps.wrong("precision.reduce", given, f"is not how {engine.name} reduces: in the gradients' {found.gradients.name}", "leave it out")


EIGHT_BITS = (OptimizerName.ADAMW_8BIT, OptimizerName.LION_8BIT, OptimizerName.PAGED_ADAMW_8BIT)
OWN_DTYPE = (OptimizerName.SGD, OptimizerName.ADAFACTOR, OptimizerName.PAGED_ADAMW)
"""What keeps no moments, or keeps them in a dtype of its own."""


def check_moments(gaps: Gaps, plan: Plan) -> None:
    """Moments in a dtype that the optimizer does not keep them in."""
    given, optimizer = gaps.request.get("precision.moments"), plan.optimizer
    alone = plan.adapter is not None and plan.adapter.kind is AdapterKind.LORA_FA
    if optimizer is not None and optimizer.name is OptimizerName.LORA_FA and not alone:
        gaps.wrong("optimizer.name", optimizer.name.value, "steps the second matrices of LoRA-FA alone", "give adapter.kind lora-fa")
    if given is None or optimizer is None:
        return
    dtype, name = dtype_named(given), optimizer.name
    if dtype is dtypes.INT8 and name not in EIGHT_BITS:
        gaps.wrong("precision.moments", given, f"is not how {name.value} keeps them", "--optimizer adamw_8bit does")
    usual = (FP32, dtypes.INT8, plan.precision.parameters, plan.precision.gradients)
    if (name in EIGHT_BITS or name in OWN_DTYPE) and dtype not in usual:
        gaps.wrong("precision.moments", given, f"changes nothing: {name.value} keeps none of that dtype", "leave it out")


NEVER_IN_BACKWARD = (OptimizerName.MUON, OptimizerName.ADAM_MINI, OptimizerName.GALORE, OptimizerName.LORA_FA)


def check_in_backward(gaps: Gaps, plan: Plan, engine: Engine) -> None:
    """What a step inside backward leaves no room for."""
    if not plan.optimizer_in_backward:
        return
    precision = plan.precision
    reasons = {
        f"is not modelled for {engine.name} yet": not engine.steps_in_backward,
        "steps with every micro-batch, and a step of several gathers their gradients": engine.steps_in_backward and plan.accumulation > 1,
        "steps before ranks have summed their gradients": engine.steps_in_backward and plan.mesh.gpus > 1,
        "steps before the scaler knows whether a gradient overflowed": engine.autocast and precision.casts and precision.compute is FP16,
        "is not modelled with copies in higher precision": precision.master_weights is not None,
        "is not modelled for this optimizer": plan.optimizer is not None and plan.optimizer.name in NEVER_IN_BACKWARD,
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
        parameters=parameters, compute=compute, gradients=gradients, reduce=pick("reduce", gradients),
        master_weights=master if "master_weights" in fields else base.master_weights if not fields else None,
        moments=pick("moments", base.moments),
    )  # fmt: skip


MODES = ("serving.mla_mode", "serving.fused_moe")


def llama_options(gaps: Gaps, engine: Engine, task: str) -> dict[str, Any]:
    """The fields of a plan that only llama.cpp reads."""
    if task != "infer" or engine.server != "llama_cpp":
        return {}
    from memsheet.engines.llama_cpp import MAX_SEQUENCES, UBATCH, is_fork

    given, fork = gaps.request.get("serving.k_dtype"), is_fork(gaps.request.get("engine_version"))
    values = dtype_named(gaps.request.get("serving.kv_dtype") or "fp16")
    if values is not None and values.block > 1 and gaps.request.get("attention") not in (None, "flash"):
        gaps.wrong(
            "serving.kv_dtype",
            values.name,
            "needs flash attention in llama.cpp, which stores values turned without it",
            "--attention flash",
        )
    if gaps.request.get("serving.page_tokens") not in (None, 1):
        gaps.wrong(
            "serving.page_tokens",
            gaps.request["serving.page_tokens"],
            "does not exist in llama.cpp, whose cache has no pages",
            "leave it out",
        )
    for key in ("serving.mla_mode", "serving.attn_max_batch"):
        if gaps.request.get(key) and not fork:
            gaps.wrong(key, gaps.request[key], "is the fork's alone", "--engine-version ik_llama.cpp")
    if gaps.request.get("serving.fused_moe") not in (None, True) or (gaps.request.get("serving.fused_moe") and not fork):
        gaps.wrong("serving.fused_moe", gaps.request["serving.fused_moe"], "is not modelled for this version", "leave it out")
    sequences = gaps.request.get("serving.max_sequences") or 1
    if sequences > MAX_SEQUENCES and not fork:
        gaps.wrong("serving.max_sequences", sequences, f"is above what one llama.cpp context has: {MAX_SEQUENCES}", "--sequences 256")
    if sequences > 1:
        gaps.assumed.append(f"serving.max_model_len is llama.cpp's -c: the cells of all {sequences} sequences together")
    return {
        "max_batched_tokens": gaps.get("serving.max_batched_tokens", UBATCH), "k_dtype": dtype_named(given) if given else None,
        "gpu_layers": gaps.get("serving.gpu_layers", silent=True), "host_experts": gaps.get("serving.host_experts", 0, silent=True),
        "mla_mode": gaps.get("serving.mla_mode", 0, silent=True), "attn_max_batch": gaps.get("serving.attn_max_batch", 0, silent=True),
    }  # fmt: skip


# ---- adapters ----------------------------------------------------------------------------------------------------------------


def adapter_of(gaps: Gaps, model: ModelSpec | None, engine: Engine) -> Adapter | None:
    """The adapter that is asked for: matrices of some rank, or prompts."""
    rank, asked = gaps.request.get("adapter.rank"), gaps.request.get("adapter.kind")
    if rank is None and asked not in PROMPTED:
        return None
    kind = gaps.choice("adapter.kind", AdapterKind.LORA, engine.adapters, engine.name, silent=True)
    dtype = dtype_named(gaps.get("adapter.dtype", engine.adapter_dtype))
    assert dtype is not None
    if kind.prompts:
        return _prompts(gaps, kind, dtype)
    for key in ("adapter.prompt_length", "adapter.start_layer"):
        if gaps.request.get(key) is not None:
            gaps.wrong(key, gaps.request[key], f"has no meaning for {kind.value}", "leave it out")
    return Adapter(
        kind=kind, rank=rank or 0, targets=targets_of(gaps, model, engine), dtype=dtype, full_modules=_full_modules(gaps, model),
        dropout=float(gaps.get("adapter.dropout", 0.0, silent=True)),
    )  # fmt: skip


PROMPT_LENGTH, START_LAYER = 10, 2
"""Learned positions, and the first layer that has them (Lightning-AI/litgpt, litgpt/adapter.py, Config)."""


def _prompts(gaps: Gaps, kind: AdapterKind, dtype: DType) -> Adapter:
    """A llama-adapter, which is on every attention by what it is; names of targets describe it."""
    for key in ("adapter.rank", "adapter.dropout", "adapter.full_modules"):
        if gaps.request.get(key):
            gaps.wrong(key, gaps.request[key], f"has no meaning for {kind.value}", "leave it out")
    length, start = gaps.get("adapter.prompt_length", PROMPT_LENGTH), gaps.request.get("adapter.start_layer")
    if start is None:
        start = START_LAYER
        gaps.assumed.append(f"adapter.start_layer = {start}")
    targets = tuple(gaps.request.get("adapter.targets") or ())
    return Adapter(kind=kind, rank=0, targets=targets, dtype=dtype, prompt_length=length, start_layer=start)


def _full_modules(gaps: Gaps, model: ModelSpec | None) -> tuple[str, ...]:
    """Modules of which a copy is trained whole, by their last names: embeddings and the output projection."""
    names = tuple(gaps.request.get("adapter.full_modules") or ())
    if model is not None and names:
        known = {weight.path.split(".")[-2] for weight in (*model.embeddings.weights, *model.head.weights) if "." in weight.path}
        for name in names:
            if name not in known:
                gaps.wrong("adapter.full_modules", name, "is not modelled as trained whole", f"modelled: {', '.join(sorted(known))}")
        if model.head.tied:
            gaps.wrong(
                "adapter.full_modules", list(names), "is not modelled where embeddings and output projection are one", "leave it out"
            )
        if gaps.request.get("loss") not in (None, "plain"):
            gaps.wrong("loss", gaps.request["loss"], "is not modelled beside modules that are trained whole", "plain")
    return names


def targets_of(gaps: Gaps, model: ModelSpec | None, engine: Engine) -> tuple[str, ...]:
    targets = gaps.request.get("adapter.targets")
    if targets is None and engine.usual_targets:
        gaps.assumed.append(f"adapter.targets = {','.join(engine.usual_targets)} ({engine.name}'s default)")
        return engine.usual_targets
    if targets is None:
        found = LORA_TARGETS.get(model.model_type) if model else None
        if found is None:
            gaps.wrong("adapter.targets", None, "is missing; this family has no default", "for example --lora-targets q_proj,v_proj")
        else:
            gaps.assumed.append(f"adapter.targets = {','.join(found)} (peft's default)")
        targets = found or ()
    if model is None:
        return tuple(targets)
    present = linear_names(model)
    if list(targets) == [ALL_LINEAR]:
        gaps.assumed.append(f"adapter.targets = {','.join(sorted(present))} (all-linear)")
        return tuple(sorted(present))
    for target in targets:
        if target not in present and target not in engine.targets and not _joined_from(gaps, target, targets, present):
            hint = f"it has {', '.join(sorted(present))}; or all-linear alone"
            gaps.wrong("adapter.targets", target, f"names no linear layer of {model.name}", hint)
    return tuple(targets)


def _joined_from(gaps: Gaps, target: str, targets: Sequence[str], present: set[str]) -> bool:
    """Whether a target joins layers that the model has in parts, none of which is a target too."""
    parts = FUSED_TARGETS.get(target)
    if parts is None or not present.issuperset(parts) or set(parts) & set(targets):
        return False
    gaps.assumed.append(f"{target} = {', '.join(parts)} as one layer, by code that joins them")
    return True


def linear_names(model: ModelSpec) -> set[str]:
    """Last names of the linear layers in a model's blocks (``q_proj``)."""
    blocks = (block for stack in model.stacks for run in stack.runs for block in run.pattern)
    return {w.path.split(".")[-2] for b in blocks for w in b.weights if w.role.value == "linear" and w.path.endswith(".weight")}


# ---- quantized weights -------------------------------------------------------------------------------------------------------


def quantization_of(
    gaps: Gaps, model: ModelSpec | None, engine: Engine, task: str, adapter: Adapter | None, cluster: Cluster | None = None
) -> Quantization | None:
    """What the linear weights are stored in: as the plan says, else as the checkpoint was released; an engine with model code of its own
    has weights of its own, whatever a checkpoint stores.
    """
    name = gaps.request.get("quantization.weights")
    if task == "train" and name is None and engine.code is not Code.TRANSFORMERS:
        return None
    if task == "train" and name is None and adapter is None and _dequantized(gaps, model):
        return None
    if task == "train" and model is not None and model.quantization is not None:
        _check_stored(gaps, model.quantization.weights, adapter)
    if name is None:
        return _stored(gaps, model, engine, cluster if task == "infer" else None)
    weights = gguf_named(name) if name.startswith("gguf:") else QUANTIZED.get(name)
    if weights is None:
        gaps.wrong("quantization.weights", name, "is not a known format", f"known: {', '.join(QUANTIZED)}, gguf:Q4_K …")
        return None
    if name.startswith("gguf:") and name.removeprefix("gguf:") not in dtypes.GGUF and engine.server != "llama_cpp":
        hint = "engine llama.cpp runs it; or one type for all, such as gguf:Q4_K"
        gaps.wrong("quantization.weights", name, "is a mix of types that llama.cpp writes, modelled for that engine", hint)
    if task == "train" and name not in (*TRAINABLE_QUANTIZED, *UNPACKED):
        hint = f"modelled: {', '.join((*TRAINABLE_QUANTIZED, *UNPACKED))}"
        gaps.wrong("quantization.weights", name, "is not modelled for training yet", hint)
    if task == "train" and name in UNPACKED and adapter is not None and adapter.kind is not AdapterKind.LORA:
        gaps.wrong("adapter.kind", adapter.kind.value, f"is not modelled over {name}", "lora")
    if task == "train" and adapter is None:
        gaps.wrong("quantization.weights", name, "freezes the weights, and nothing else trains", "add an adapter: --lora-rank 16")
    found = Quantization(weights=_scaled(gaps, name, weights), skip=_skipped(gaps, model))
    return None if name.startswith("gguf:") and _unpacked(gaps, engine, task) else found


def _unpacked(gaps: Gaps, engine: Engine, task: str) -> bool:
    """Whether a GGUF file's tensors are turned into the precision while they are read (transformers modeling_gguf_pytorch_utils.py)."""
    if task != "infer" or engine.server != "transformers":
        return False
    gaps.assumed.append("quantization.weights = none (transformers unpacks a GGUF file as it reads it; engine llama.cpp keeps it packed)")
    return True


def _dequantized(gaps: Gaps, model: ModelSpec | None) -> bool:
    """Whether a released checkpoint is trained in the precision that is asked for, as transformers loads it with ``dequantize=True``
    (transformers 5.23 utils/quantization_config.py:1691, 1800).
    """
    stored = model.quantization.weights if model is not None and model.quantization is not None else None
    if stored not in DEQUANTIZED or not any(key.startswith("precision.") for key in gaps.request):
        return False
    gaps.assumed.append(f"quantization.weights = none (the released {stored} is dequantized to train)")
    return True


def _check_stored(gaps: Gaps, stored: str, adapter: Adapter | None) -> None:
    """A checkpoint that is quantized can carry adapters where its format is modelled, and is never trained itself."""
    hint = "give the base model" + (", or the precision to train it in: --precision bf16-pure" if stored in DEQUANTIZED else "")
    if stored not in STORED_TRAINABLE:
        gaps.wrong("quantization_config", stored, "is a stored format that is not modelled for training", hint)
    elif adapter is None:
        gaps.wrong("quantization_config", stored, "freezes the weights, and nothing else trains", "give the base model, or --lora-rank 16")


def _scaled(gaps: Gaps, name: str, weights: DType) -> DType:
    """The format with the scales that are asked for: how many elements share one, and whether they are quantized again."""
    group, double = gaps.request.get("quantization.group_size"), gaps.request.get("quantization.double_quant")
    fixed = FIXED_BLOCK.get(name) or (weights.block if name.startswith("gguf:") and weights.block > 1 else None)
    if group is not None and name not in GROUPED and group != fixed:
        reason = f"is not the group of {name}" + (f", which is {fixed}" if fixed else ", which has none")
        gaps.wrong("quantization.group_size", group, reason, f"formats whose group may be chosen: {', '.join(GROUPED)}")
    if double and name not in TRAINABLE_QUANTIZED:
        gaps.wrong("quantization.double_quant", double, f"does not exist in {name}", f"{' and '.join(TRAINABLE_QUANTIZED)} have it")
    if name == "nf4":
        return dtypes.NF4 if gaps.get("quantization.double_quant", True) else dtypes.NF4_SINGLE
    if name == "fp4":
        return dtypes.FP4_BNB_DOUBLE if double else weights
    if group is None or name not in GROUPED:
        return weights
    if weights.name.startswith("fp8"):
        return dtypes.fp8_blocks(group)
    return dtypes.grouped_int(weights.bits, group, zero_bits=weights.bits, name=weights.name)


def _skipped(gaps: Gaps, model: ModelSpec | None) -> tuple[str, ...]:
    """Modules kept as they are. A tied head has no tensor, and what a checkpoint lists itself is taken as it stands."""
    skip = tuple(gaps.request.get("quantization.skip") or ())
    if model is not None:
        blocks = ((stack, block) for stack in model.stacks for run in stack.runs for block in run.pattern)
        paths = [f"{stack.path}.*.{weight.path}" for stack, block in blocks for weight in block.weights]
        paths += [weight.path for weight in (*model.embeddings.weights, *model.head.weights, *model.extras)]
        paths += [f"{stack.final_path}.{norm.path}." for stack in model.stacks for norm in stack.final_norms]
        known = {"lm_head", *NEVER_QUANTIZED, *(model.quantization.skip if model.quantization else ())}
        for name in skip:
            if name not in known and not any(path.startswith(name) or f".{name}." in f".{path}" for path in paths):
                gaps.wrong("quantization.skip", name, f"names nothing in {model.name}", "for example lm_head")
    return skip


def _stored(gaps: Gaps, model: ModelSpec | None, engine: Engine, cluster: Cluster | None) -> Quantization | None:
    """A released checkpoint that is quantized stays so unless the plan says otherwise, or the cards cannot compute with it."""
    if model is None or model.quantization is None:
        return None
    stored = model.quantization
    weights = QUANTIZED.get(stored.weights) or dtype_named(stored.weights)
    if weights is None:
        gaps.wrong("quantization_config", stored.weights, "is not a known format")
        return None
    if (
        stored.method == "modelopt" and gaps.request.get("task") == "infer" and engine.server in LIBRARY
    ):  # transformers 5.23 quantizers/auto.py
        gaps.wrong(
            "quantization_config", "modelopt", f"is not read by {engine.name}", "--engine vllm or sglang; or --quantize with another format"
        )
    if stored.method == "gguf" and _unpacked(gaps, engine, "infer"):
        return None
    if needed := dequantizes(stored.method, cluster):
        gaps.assumed.append(
            f"quantization.weights = none (transformers dequantizes released {stored.method} below compute capability {needed})"
        )
        return None
    gaps.assumed.append(f"quantization.weights = {stored.weights} (as released)")
    return Quantization(weights=weights, skip=stored.skip)
