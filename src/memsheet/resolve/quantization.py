"""What weights are stored in, as released or as asked."""

from __future__ import annotations

from memsheet.frozen import replace
from memsheet.plan import dtypes
from memsheet.plan.defaults import (
    DEQUANTIZED,
    DOUBLED,
    FIXED_BLOCK,
    GROUPED,
    LORA_ALONE,
    PACKED,
    QUANTIZED,
    STORED_TRAINABLE,
    TRAINABLE_QUANTIZED,
)
from memsheet.plan.device import Cluster
from memsheet.plan.dtypes import DType, dtype_named
from memsheet.plan.engine import Engine
from memsheet.plan.engine_registry import GGUF_SERVER, pool_servers, rules_of
from memsheet.plan.gaps import RequestResolver
from memsheet.plan.hardware import version_of
from memsheet.plan.layers import has_experts
from memsheet.plan.model import ModelSpec, Source, StoredQuantization
from memsheet.plan.plan import Adapter, AdapterKind, Plan, Quantization
from memsheet.plan.workload import Training
from memsheet.resolve.serving import missing_compute_capability

OVER_PACKED = (AdapterKind.LORA, AdapterKind.PROMPT_TUNING, AdapterKind.P_TUNING)
OVER_NONE = (
    AdapterKind.IA3,
    AdapterKind.VERA,
    AdapterKind.ADALORA,
    AdapterKind.OFT,
    AdapterKind.LOHA,
    AdapterKind.LOKR,
    AdapterKind.LN_TUNING,
    AdapterKind.PREFIX_TUNING,
    AdapterKind.PROJECTED_PREFIX,
)
"""Kinds of adapters that are modelled beside quantized layers that have no others, and beside none."""
NEVER_QUANTIZED = ("embed_tokens", "norm")  # skipped anyway, whatever a model calls them


def quantization_of(
    gaps: RequestResolver,
    model: ModelSpec | None,
    engine: Engine,
    task: str,
    adapter: Adapter | None,
    cluster: Cluster | None = None,
) -> Quantization | None:
    """What the linear weights are stored in: as the plan says, else as the checkpoint was released; an engine
    with model code of its own has weights of its own, whatever a checkpoint stores.
    """
    name = gaps.request.get("quantization.weights")
    if task == "train" and name is None and engine.layers is not None:
        return None
    dequantized = task == "train" and dequantizes_to_train(model)
    if dequantized and name is None:
        return None
    if task == "train" and model is not None and model.quantization is not None and not dequantized:
        _check_stored(gaps, model.quantization, adapter, model.source)
    stored = model.quantization.weights if model is not None and model.quantization is not None else None
    if task == "train" and name is None and stored is not None:
        _check_beside(gaps, stored, engine, adapter, model)
    if name is None:
        return _stored_quantization(gaps, model, engine, cluster if task == "infer" else None)
    in_files = name.startswith("gguf:")
    weights = rules_of(GGUF_SERVER).stored_dtype(name) if in_files else QUANTIZED.get(name)
    if weights is None:
        gaps.wrong(
            "quantization.weights",
            name,
            "is not a known format",
            f"known: {', '.join(QUANTIZED)}, gguf:Q4_K …",
        )
        return None
    _check_gguf_mix(gaps, name, engine)
    if task == "train" and name not in TRAINABLE_QUANTIZED:
        hint = f"modelled: {', '.join(TRAINABLE_QUANTIZED)}"
        gaps.wrong("quantization.weights", name, "is not modelled for training yet", hint)
    if task == "train":
        _check_beside(gaps, name, engine, adapter, model)
    if task == "train" and adapter is None and not gaps.frozen:
        gaps.wrong(
            "quantization.weights",
            name,
            "freezes the weights, and nothing else trains",
            "add an adapter: --lora-rank 16",
        )
    found = Quantization(
        weights=_dtype_with_scales(gaps, name, weights, model),
        skip=_unquantized_modules(gaps, model),
        experts=_quantizes_experts(gaps, model, engine, task),
        storage=_packed_storage(gaps, engine, task, name, "bf16"),
    )
    found = _as_unpacked(found, gaps, engine, task)
    return None if name.startswith("gguf:") and _unpacks_gguf(gaps, engine, task) else found


def _packed_storage(
    gaps: RequestResolver, engine: Engine, task: str, name: str, unless_said: str
) -> DType | None:
    """What bitsandbytes' four bits are kept in where parameters are divided (bnb_4bit_quant_storage). FSDP2
    takes those that are floating alone (accelerate 1.14 utils/fsdp_utils.py:789-811), and who asks for both
    is taken to have said so.
    """
    asked = dtype_named(str(gaps.request.get("quantization.storage") or ""))
    if task != "train" or not name.startswith(DOUBLED) or engine.divides_scales or not engine.divides_states:
        if asked is not None and asked is not dtypes.UINT8:
            why = "changes nothing: no rank has a part of bitsandbytes' tensors"
            gaps.assumed.append(f"quantization.storage = {asked.name} ({why})")
        return None
    if engine.sharding.divides_floating:
        return dtype_named(gaps.get("quantization.storage", unless_said))
    return asked


def _check_gguf_mix(gaps: RequestResolver, name: str, engine: Engine) -> None:
    if name.startswith("gguf:") and name.removeprefix("gguf:") not in dtypes.GGUF and not engine.stores_gguf:
        hint = "engine llama.cpp runs it; or one type for all, such as gguf:Q4_K"
        gaps.wrong(
            "quantization.weights",
            name,
            "is a mix of types that llama.cpp writes, modelled for that engine",
            hint,
        )


def _unpacks_gguf(gaps: RequestResolver, engine: Engine, task: str) -> bool:
    """Whether a GGUF file's tensors are turned into the precision while they are read (transformers
    modeling_gguf_pytorch_utils.py).
    """
    if task != "infer" or not engine.limits.unpacks_gguf:
        return False
    gaps.assumed.append(
        "quantization.weights = none (transformers unpacks a GGUF file as it reads it; engine llama.cpp "
        "keeps it packed)"
    )
    return True


def dequantizes_to_train(model: ModelSpec | None) -> bool:
    """Whether a released checkpoint is trained from weights that its loader dequantizes."""
    return model is not None and model.quantization is not None and model.quantization.method in DEQUANTIZED


def tell_dequantized(gaps: RequestResolver, model: ModelSpec | None, engine: Engine, plan: Plan) -> None:
    """That a checkpoint was released in another format than its training begins with."""
    if model is None or model.quantization is None or engine.layers is not None:
        return
    if not isinstance(plan.workload, Training) or not dequantizes_to_train(model):
        return
    stored, dtype, then = model.quantization.weights, plan.precision.parameters.name, plan.quantization
    asked = "none" if then is None else then.weights.name
    first = "" if then is None else " first"
    gaps.assumed.append(
        f"quantization.weights = {asked} (released in {stored}; training dequantizes it to {dtype}{first})"
    )


def _check_stored(
    gaps: RequestResolver, of: StoredQuantization, adapter: Adapter | None, source: Source
) -> None:
    """A checkpoint that is quantized can carry adapters where its format is modelled, and is never trained
    itself.
    """
    stored = of.weights
    base = f", {source.base}" if source.base else ""
    if stored not in STORED_TRAINABLE.get(of.method, ()):
        gaps.wrong(
            "quantization_config",
            stored,
            "is a stored format that is not modelled for training",
            f"give the base model{base}",
        )
    elif adapter is None and not gaps.frozen:
        gaps.wrong(
            "quantization_config",
            stored,
            "freezes the weights, and nothing else trains",
            f"give the base model{base}, or --lora-rank 16",
        )


def _check_beside(
    gaps: RequestResolver, name: str, engine: Engine, adapter: Adapter | None, model: ModelSpec | None
) -> None:
    """The kinds of adapters and the engines that are modelled beside a format. LLM.int8() is in transformers'
    models, on weights that are whole: a row's scale is an attribute of the parameter, no part of it
    (bitsandbytes 95f9af3, nn/modules.py:719-748). Packed weights are buffers, which nothing divides
    (ModelCloud/GPTQModel f4c327a1 gptqmodel/nn_modules/qlinear/__init__.py).
    """
    alone = name in LORA_ALONE
    if name in PACKED and model is not None and has_experts(model):
        gaps.wrong(
            "quantization.weights",
            name,
            "is not modelled for training beside routed experts, which are stacked and no linear layers",
            "nf4",
        )
    if adapter is not None and (adapter.kind in OVER_NONE or (alone and adapter.kind not in OVER_PACKED)):
        gaps.wrong("adapter.kind", adapter.kind.value, f"is not modelled over {name}", "lora")
    if alone and (engine.layers is not None or engine.sharding.gathers):
        gaps.wrong(
            "quantization.weights",
            name,
            f"is not modelled for {engine.name}",
            "engine transformers or deepspeed; or nf4",
        )


def _with_stored_groups(weights: DType, stored: StoredQuantization) -> DType:
    """A released format with the scales of its own groups."""
    group = stored.group_size
    if group is None or group < 1:
        return weights
    if weights is dtypes.INT4:
        return dtypes.packed_int(weights.bits, group, name=weights.name)
    if weights in (dtypes.GPTQ_INT4, dtypes.GPTQ_INT8, dtypes.AWQ_INT4):
        return dtypes.grouped_int(weights.bits, group, zero_bits=weights.bits, name=weights.name)
    return weights


def _dtype_with_scales(
    gaps: RequestResolver, name: str, weights: DType, model: ModelSpec | None = None
) -> DType:
    """The format with the scales that are asked for: how many elements share one, and whether they are
    quantized again.
    """
    group, double = gaps.request.get("quantization.group_size"), gaps.request.get("quantization.double_quant")
    fixed = FIXED_BLOCK.get(name) or (
        weights.block if name.startswith("gguf:") and weights.block > 1 else None
    )
    if group is not None and name not in GROUPED and group != fixed:
        reason = f"is not the group of {name}" + (f", which is {fixed}" if fixed else ", which has none")
        gaps.wrong(
            "quantization.group_size",
            group,
            reason,
            f"formats whose group may be chosen: {', '.join(GROUPED)}",
        )
    if double and name not in DOUBLED:
        gaps.wrong(
            "quantization.double_quant",
            double,
            f"does not exist in {name}",
            f"{' and '.join(DOUBLED)} have it",
        )
    if (storage := gaps.request.get("quantization.storage")) is not None and not name.startswith(DOUBLED):
        gaps.wrong(
            "quantization.storage",
            storage,
            f"is what bitsandbytes packs four bits in, and weights in {name} are not its",
            f"{' and '.join(DOUBLED)} have it",
        )
    if name == "nf4":
        return dtypes.NF4 if gaps.get("quantization.double_quant", True) else dtypes.NF4_SINGLE
    if name == "fp4":
        return dtypes.FP4_BNB_DOUBLE if double else weights
    if group is None or name not in GROUPED:
        return weights
    stored = model.quantization if model else None
    if stored is not None and (stored.weights, stored.group_size) == (name, group):
        return _with_stored_groups(weights, stored)
    if weights.name.startswith("fp8"):
        return dtypes.fp8_blocks(group)
    return dtypes.grouped_int(weights.bits, group, zero_bits=weights.bits, name=weights.name)


ONE_SCALE = {dtypes.NF4: dtypes.NF4_SINGLE, dtypes.FP4_BNB_DOUBLE: dtypes.FP4_BNB}


def _as_unpacked(found: Quantization, gaps: RequestResolver, engine: Engine, task: str) -> Quantization:
    """Bitsandbytes' four bits as a server keeps them that has experts in them, too: with whole scales."""
    since = engine.serving.few_bit_experts
    own = found.weights in (*ONE_SCALE, *ONE_SCALE.values())
    if task != "infer" or not since or not own or version_of(gaps.request.get("engine_version")) < since:
        return found
    return replace(found, weights=ONE_SCALE.get(found.weights, found.weights), experts=True)


def _quantizes_experts(gaps: RequestResolver, model: ModelSpec | None, engine: Engine, task: str) -> bool:
    """Whether stacked experts are quantized by bitsandbytes as they are loaded, which is training's; where no
    layer has any, nobody's.
    """
    asked = bool(gaps.request.get("quantization.experts")) and (model is None or has_experts(model))
    if asked and (task != "train" or engine.layers is not None):
        why = f"is not modelled for {engine.name}"
        gaps.wrong("quantization.experts", True, why, "training with engine transformers")
    return asked


def _unquantized_modules(gaps: RequestResolver, model: ModelSpec | None) -> tuple[str, ...]:
    """Modules kept as they are. A tied head has no tensor, and what a checkpoint lists itself is taken as it
    stands.
    """
    skip = tuple(gaps.request.get("quantization.skip") or ())
    if model is not None:
        blocks = ((stack, block) for stack in model.stacks for run in stack.runs for block in run.pattern)
        paths = [f"{stack.path}.*.{weight.path}" for stack, block in blocks for weight in block.weights]
        paths += [weight.path for weight in (*model.embeddings.weights, *model.head.weights, *model.extras)]
        paths += [f"{stack.final_path}.{norm.path}." for stack in model.stacks for norm in stack.final_norms]
        known = {"lm_head", *NEVER_QUANTIZED, *(model.quantization.skip if model.quantization else ())}
        for name in skip:
            if name not in known and not any(
                path.startswith(name) or f".{name}." in f".{path}" for path in paths
            ):
                gaps.wrong("quantization.skip", name, f"names nothing in {model.name}", "for example lm_head")
    return skip


def _stored_quantization(
    gaps: RequestResolver, model: ModelSpec | None, engine: Engine, cluster: Cluster | None
) -> Quantization | None:
    """A released checkpoint that is quantized stays so unless the plan says otherwise, or the cards cannot
    compute with it.
    """
    if model is None or model.quantization is None:
        return None
    stored = model.quantization
    in_files = stored.method == "gguf"
    weights = (
        rules_of(GGUF_SERVER).stored_dtype(stored.weights)
        if in_files
        else QUANTIZED.get(stored.weights) or dtype_named(stored.weights)
    )
    if weights is None:
        gaps.wrong("quantization_config", stored.weights, "is not a known format")
        return None
    weights = _with_stored_groups(weights, stored)
    if (
        stored.method == "modelopt" and gaps.request.get("task") == "infer" and engine.limits.library_modules
    ):  # transformers 5.23 quantizers/auto.py
        gaps.wrong(
            "quantization_config",
            "modelopt",
            f"is not read by {engine.name}",
            f"--engine {' or '.join(pool_servers())}; or --quantize with another format",
        )
    if in_files and _unpacks_gguf(gaps, engine, "infer"):
        return None
    if in_files:
        _check_gguf_mix(gaps, stored.weights, engine)
    if not rules_of(engine.name).keeps_stored(stored):
        gaps.assumed.append(
            f"quantization.weights = none (released in {stored.weights}, which {engine.name}'s converter "
            "unpacks; a file of fewer bits: --quantize gguf:Q4_K_M)"
        )
        return None
    if needed := missing_compute_capability(engine, stored.method, cluster):
        gaps.assumed.append(
            f"quantization.weights = none (transformers dequantizes released {stored.method} below "
            f"compute capability {needed})"
        )
        return None
    whence = "by its name" if model.source.assumed else "as released"
    gaps.assumed.append(f"quantization.weights = {stored.weights} ({whence})")
    task = str(gaps.request.get("task"))
    storage = _packed_storage(gaps, engine, task, stored.weights, "uint8")
    return _as_unpacked(Quantization(weights=weights, skip=stored.skip, storage=storage), gaps, engine, task)
