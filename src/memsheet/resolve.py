"""A plan with gaps + its engine's defaults + the cluster → a whole, legal plan, or every problem at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from memsheet.engines import MODELLED, find_engine
from memsheet.engines.verified import NO_SDPA
from memsheet.errors import Problem, require
from memsheet.spec import dtypes
from memsheet.spec.check import Request, check_request
from memsheet.spec.defaults import ADAPTER_PRECISION, LORA_TARGETS, NAMED_PRECISIONS, OTHER_TASK, QUANTIZED, TRAINABLE_QUANTIZED, UNMODELLED
from memsheet.spec.device import Cluster
from memsheet.spec.dtypes import BF16, FP16, FP32, DType, dtype_named
from memsheet.spec.engine import Engine, Sharding
from memsheet.spec.model import Attention, LatentAttention, ModelSpec, Moe
from memsheet.spec.plan import (
    Adapter,
    AttentionKind,
    Implementation,
    Loss,
    Mesh,
    Offload,
    Optimizer,
    OptimizerName,
    Plan,
    Precision,
    Quantization,
    Recompute,
    RecomputeMode,
    Schedule,
)

E = TypeVar("E", bound=Enum)


@dataclass(slots=True)
class _Gaps:
    """The request while its gaps are filled: what was assumed, what is wrong."""

    request: Request
    assumed: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def get(self, key: str, default: Any = None, *, silent: bool = False) -> Any:
        value = self.request.get(key)
        if value is not None:
            return value
        if default is not None and not silent:
            self.assumed.append(f"{key} = {_shown(default)}")
        return default

    def wrong(self, key: str, value: object, reason: str, hint: str = "") -> None:
        self.problems.append(Problem(field=key, value=value, reason=reason, hint=hint))

    def choice(self, key: str, default: E, allowed: tuple[E, ...], who: str, *, silent: bool = False) -> E:
        text = self.request.get(key)
        if text is None:
            self.assumed += [] if silent else [f"{key} = {default.value}"]
            return default
        for member in allowed:
            if member.value == text:
                return member
        self.wrong(key, text, f"is not modelled for {who} yet", f"modelled: {', '.join(str(m.value) for m in allowed)}")
        return default


def _shown(value: object) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Resolved:
    """A whole plan and what it took for granted."""

    plan: Plan
    assumed: tuple[str, ...]


def resolve(request: Request, model: ModelSpec | None, cluster: Cluster | None = None) -> Resolved:
    """Fill every gap of ``request`` (checked first) for ``model``, None when only a parameter count is known.

    Raises InputError with all problems: unknown keys, values out of range, meshes that do not multiply, degrees that do not
    divide, options that are not modelled.
    """
    require(check_request(request))
    gaps = _Gaps(request)
    task = gaps.get("task", "train", silent=True)
    gpus = cluster.count if cluster else None
    engine = _engine(gaps, task, gpus)
    for key, harmless in UNMODELLED.items():
        value = request.get(key)
        if value is not None and value not in harmless:
            gaps.wrong(key, value, "is not modelled yet, and an option is never ignored", "leave it out to see the job without it")
    for key, harmless in OTHER_TASK[task].items():
        value = request.get(key)
        if value is not None and value not in harmless:
            gaps.wrong(key, value, f"has no meaning in {task}", "leave it out")
    zero = _zero(gaps, engine, task, gpus)
    mesh = _mesh(gaps, engine, task, zero, gpus, model)
    adapter = _adapter(gaps, model, engine)
    quantization = _quantization(gaps, model, task, adapter)
    precision = _precision(gaps, engine, task, adapter, model)
    plan = Plan(
        task=task, engine=engine.name, engine_version=gaps.get("engine_version", engine.tested, silent=True), mesh=mesh, zero=zero,
        reshard_after_forward=gaps.get("reshard_after_forward", zero == 3, silent=engine.sharding is not Sharding.FSDP2),
        schedule=_schedule(gaps, engine, mesh, task), layers_per_stage=_layers_per_stage(gaps, mesh, model),
        microbatch=gaps.get("microbatch", 1, silent=task != "train"), global_batch=_global_batch(gaps, mesh, task),
        seq_len=_seq_len(gaps, task, model), vocab_multiple=gaps.get("vocab_multiple", 1, silent=True), precision=precision,
        optimizer=_optimizer(gaps, engine) if task == "train" else None,
        recompute=_recompute(gaps, engine, model),
        attention=gaps.choice("attention", _default_attention(model), engine.attention, engine.name),
        loss=gaps.choice("loss", Loss.PLAIN, engine.losses, engine.name) if task == "train" else Loss.PLAIN,
        dropout=float(gaps.get("dropout", 0.0, silent=True)), adapter=adapter, quantization=quantization,
        offload=_offload(gaps, engine), expandable_segments=gaps.get("allocator.expandable_segments", False, silent=True),
        kv_dtype=_kv_dtype(gaps, precision), max_model_len=_max_model_len(gaps, task),
        max_sequences=_sequences(gaps, task),
        prompt_tokens=gaps.get("serving.prompt_tokens", silent=True), phase=gaps.get("phase", silent=True),
    )  # fmt: skip
    require(gaps.problems)
    return Resolved(plan, tuple(gaps.assumed))


def _engine(gaps: _Gaps, task: str, gpus: int | None) -> Engine:
    several = (gpus or _product(gaps.request)) > 1
    default = "fsdp2" if task == "train" and several and gaps.request.get("zero") != 0 else "transformers"
    name = gaps.get("engine", default)
    engine = find_engine(name)
    if engine is None or task not in engine.tasks:
        known = [e for e in MODELLED if (found := find_engine(e)) and task in found.tasks]
        gaps.wrong("engine", name, f"is not modelled for {task} yet", f"modelled: {', '.join(known)}")
        require(gaps.problems)
    assert engine is not None
    return engine


def _default_attention(model: ModelSpec | None) -> AttentionKind:
    """sdpa, where the family has it."""
    kinds = {block.kind for stack in model.stacks for run in stack.runs for block in run.pattern} if model else set()
    return AttentionKind.EAGER if kinds & NO_SDPA else AttentionKind.SDPA


def _product(request: Request) -> int:
    degrees = (request.get(f"mesh.{axis}") for axis in ("dp_replicate", "dp_shard", "cp", "tp", "pp"))
    result = 1
    for degree in degrees:
        result *= degree or 1
    return result


def _zero(gaps: _Gaps, engine: Engine, task: str, gpus: int | None) -> int:
    if task != "train":
        return 0
    single = gpus == 1 or (gpus is None and _product(gaps.request) == 1)
    zero: int = gaps.get("zero", engine.default_zero, silent=single)
    if zero not in engine.zero:
        hint = {0: "engine transformers replicates the model", 1: "engine deepspeed has it"}.get(zero, "engine fsdp2 or deepspeed has it")
        gaps.wrong("zero", zero, f"does not exist in {engine.name}, which has {', '.join(map(str, engine.zero))}", hint)
    return zero


def _mesh(gaps: _Gaps, engine: Engine, task: str, zero: int, gpus: int | None, model: ModelSpec | None) -> Mesh:
    given = {axis: gaps.request.get(f"mesh.{axis}") for axis in ("dp_replicate", "dp_shard", "cp", "tp", "pp", "vpp", "ep", "etp")}
    degrees = {axis: value or 1 for axis, value in given.items()}
    product = _product(gaps.request)
    if gpus is not None and gpus % product:
        gaps.wrong(
            "gpus",
            gpus,
            f"is not a multiple of the mesh's product {product}",
            "dp_replicate · dp_shard · cp · tp · pp is the number of GPUs",
        )
    elif gpus is not None and gpus != product:
        rest = ("dp_shard" if zero else "dp_replicate") if task == "train" else "tp"
        if given[rest] is not None:
            gaps.wrong("gpus", gpus, f"is not the mesh's product {product}", f"leave {rest} out and it takes the rest")
        degrees[rest] *= gpus // product
        gaps.assumed.append(f"mesh.{rest} = {degrees[rest]}")
    axes = engine.serving_axes if task == "infer" else engine.axes if model is not None else (*engine.axes, *engine.bare_axes)
    for axis, degree in degrees.items():
        if degree > 1 and axis not in axes and axis not in ("ep", "etp", "vpp"):
            gaps.wrong(f"mesh.{axis}", degree, f"is not modelled for {engine.name} yet", f"modelled there: {', '.join(axes) or 'none'}")
        elif degree > 1 and axis not in axes:
            gaps.wrong(f"mesh.{axis}", degree, f"is not modelled for {engine.name} yet")
    if zero == 0 and degrees["dp_shard"] > 1:
        gaps.wrong("mesh.dp_shard", degrees["dp_shard"], "shards nothing at zero 0", "use dp_replicate, or zero 1 to 3")
    if given["etp"] is None and engine.splits_experts_over_tp:
        degrees["etp"] = degrees["tp"]
    mesh = Mesh(**degrees)
    if model is not None:
        _divisibility(gaps, mesh, model)
    return mesh


def _divisibility(gaps: _Gaps, mesh: Mesh, model: ModelSpec) -> None:
    blocks = [block for stack in model.stacks for run in stack.runs for block in run.pattern]
    for heads in sorted({m.heads for b in blocks for m in b.mixers if isinstance(m, Attention | LatentAttention)}):
        if heads % mesh.tp:
            gaps.wrong("mesh.tp", mesh.tp, f"does not divide the {heads} attention heads of {model.name}")
    for kv in sorted({m.kv_heads for b in blocks for m in b.mixers if isinstance(m, Attention)}):
        if kv % mesh.tp and mesh.tp % kv:
            gaps.wrong("mesh.tp", mesh.tp, f"neither divides the {kv} key/value heads of {model.name} nor is a multiple of them")
    for experts in sorted({b.feed_forward.experts for b in blocks if isinstance(b.feed_forward, Moe)}):
        if experts % mesh.ep:
            gaps.wrong("mesh.ep", mesh.ep, f"does not divide the {experts} experts of {model.name}")


def _layers_per_stage(gaps: _Gaps, mesh: Mesh, model: ModelSpec | None) -> tuple[int, ...] | None:
    given, stages = gaps.request.get("layers_per_stage"), mesh.pp * mesh.vpp
    layers = sum(stack.layers for stack in model.stacks) if model else None
    if given is None:
        if layers is not None and layers % stages:
            gaps.wrong("mesh.pp", mesh.pp, f"does not divide {layers} layers over {stages} stages", "give layers_per_stage")
        return None
    if len(given) != stages or (layers is not None and sum(given) != layers):
        gaps.wrong("layers_per_stage", given, f"must list {stages} stages that sum to {layers} layers")
    return tuple(given)


def _schedule(gaps: _Gaps, engine: Engine, mesh: Mesh, task: str) -> Schedule | None:
    if mesh.pp == 1 or task != "train":
        return None
    return gaps.choice("schedule", Schedule.ONE_F_ONE_B, engine.schedules, engine.name)


def _global_batch(gaps: _Gaps, mesh: Mesh, task: str) -> int | None:
    batch = gaps.request.get("global_batch")
    per_pass = (gaps.request.get("microbatch") or 1) * mesh.dp_replicate * mesh.dp_shard
    if task == "train" and batch and batch % per_pass:
        gaps.wrong("global_batch", batch, f"is not a multiple of microbatch · data-parallel ranks = {per_pass}")
    return batch or None


def _seq_len(gaps: _Gaps, task: str, model: ModelSpec | None) -> int:
    seq_len = gaps.request.get("seq_len")
    if task == "train" and model is not None and not seq_len:
        gaps.wrong("seq_len", seq_len, "is missing; saved activations depend on it", "for example --seq-len 4096")
    learned = model and model.max_positions and any("position" in w.path or "wpe" in w.path for w in model.embeddings.weights)
    if model and learned and seq_len and model.max_positions and seq_len > model.max_positions:
        gaps.wrong("seq_len", seq_len, f"exceeds the {model.max_positions} learned positions of {model.name}")
    return seq_len or 0


def _max_model_len(gaps: _Gaps, task: str) -> int | None:
    given: int | None = gaps.request.get("serving.max_model_len")
    asked = gaps.request.get("serving.prompt_tokens")
    if given is not None and asked is not None and asked > given:
        gaps.wrong("serving.prompt_tokens", asked, f"exceeds max_model_len {given}")
    if given is None:
        prompt, output = gaps.request.get("serving.prompt_tokens"), gaps.request.get("serving.output_tokens")
        given = prompt + output if prompt is not None and output is not None else gaps.request.get("seq_len")
    if task == "infer" and given is None and gaps.request.get("phase") != "load":
        gaps.wrong("serving.max_model_len", None, "is missing; the cache depends on it", "for example --max-model-len 8192")
    return given


def _sequences(gaps: _Gaps, task: str) -> int:
    """Sequences served at once: by their own name, or as a batch of generation."""
    given = gaps.request.get("serving.batch") or (gaps.request.get("microbatch") if task == "infer" else None)
    sequences: int = gaps.get("serving.max_sequences", given or 1, silent=task == "train" or given is not None)
    return sequences


def _precision(gaps: _Gaps, engine: Engine, task: str, adapter: Adapter | None, model: ModelSpec | None) -> Precision:
    name = gaps.request.get("precision.name")
    fields = {k.split(".")[1]: v for k, v in gaps.request.items() if k.startswith("precision.") and k != "precision.name"}
    if name is not None:
        if task == "train" and adapter is None and name not in engine.precisions:
            gaps.wrong("precision", name, f"is not how {engine.name} trains", f"it has {', '.join(engine.precisions)}")
        base = NAMED_PRECISIONS[name]
    elif task == "infer":
        stored = dtype_named(model.dtype) if model and model.dtype else None
        kept = stored if stored in (FP16, FP32, BF16) else BF16
        base = Precision(parameters=kept, compute=kept, gradients=kept, reduce=kept, master_weights=None, moments=kept)
        gaps.assumed += [] if fields else [f"precision.parameters = {kept.name}"]
    elif adapter is not None:
        base = ADAPTER_PRECISION if engine.adapter_dtype == "fp32" else NAMED_PRECISIONS[engine.default_precision]
        gaps.assumed += [] if fields else [f"precision = bf16 frozen base, {engine.adapter_dtype} adapters"]
    else:
        base = NAMED_PRECISIONS[engine.default_precision]
        gaps.assumed += [] if fields else [f"precision = {engine.default_precision}"]
    return _with_fields(base, fields)


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


def _optimizer(gaps: _Gaps, engine: Engine) -> Optimizer:
    spelled = gaps.request.get("optimizer.name")
    alias = {"adam": "adamw", "adamw8bit": "adamw_8bit", "adam8bit": "adamw_8bit"}
    plain = str(spelled).lower().replace("-", "").replace("_", "")
    names = _Gaps({"optimizer.name": alias.get(plain, spelled)}, gaps.assumed, gaps.problems)
    name = names.choice("optimizer.name", OptimizerName.ADAMW, engine.optimizers, engine.name)
    eight_bit = name is OptimizerName.ADAMW_8BIT
    allowed = (Implementation.BNB,) if eight_bit else (Implementation.FUSED, Implementation.FOREACH, Implementation.LOOP)
    default = Implementation.BNB if eight_bit else engine.default_implementation
    return Optimizer(name=name, implementation=gaps.choice("optimizer.implementation", default, allowed, name.value))


def _recompute(gaps: _Gaps, engine: Engine, model: ModelSpec | None) -> Recompute:
    every, segments = gaps.request.get("recompute.every"), gaps.request.get("recompute.segments")
    counted = gaps.request.get("recompute.layers")
    implied = RecomputeMode.FULL if every or segments or counted else RecomputeMode.NONE
    mode = gaps.choice("recompute.mode", implied, engine.recompute, engine.name, silent=gaps.request.get("task") == "infer")
    layers = sum(stack.layers for stack in model.stacks) if model else None
    if mode is not RecomputeMode.FULL and implied is RecomputeMode.FULL:
        gaps.wrong(
            "recompute.mode",
            mode.value,
            "recomputes nothing layer by layer, and every, layers or segments is given",
            "give --recompute full",
        )
    if sum(x is not None for x in (every, segments, counted)) > 1:
        gaps.wrong("recompute", None, "every, layers and segments exclude one another")
    for key, value in (("segments", segments), ("layers", counted)):
        if value is not None and layers is not None and value > layers:
            gaps.wrong(f"recompute.{key}", value, f"exceeds the model's {layers} layers")
    return Recompute(mode=mode, every=every or 1, segments=segments, layers=counted)


def _adapter(gaps: _Gaps, model: ModelSpec | None, engine: Engine) -> Adapter | None:
    rank = gaps.request.get("adapter.rank")
    if rank is None:
        return None
    targets = gaps.request.get("adapter.targets")
    if targets is None:
        targets = LORA_TARGETS.get(model.model_type) if model else None
        if targets is None:
            gaps.wrong("adapter.targets", None, "is missing; this family has no default", "for example --lora-targets q_proj,v_proj")
            targets = ()
        else:
            gaps.assumed.append(f"adapter.targets = {','.join(targets)} (peft's default)")
    if model is not None and targets:
        present = linear_names(model)
        for target in targets:
            if target not in present:
                gaps.wrong("adapter.targets", target, f"names no linear layer of {model.name}", f"it has {', '.join(sorted(present))}")
    dtype = dtype_named(gaps.get("adapter.dtype", engine.adapter_dtype))
    assert dtype is not None
    return Adapter(rank=rank, targets=tuple(targets), dtype=dtype, dropout=float(gaps.get("adapter.dropout", 0.0, silent=True)))


def linear_names(model: ModelSpec) -> set[str]:
    """Last names of the linear layers in a model's blocks (``q_proj``)."""
    blocks = (block for stack in model.stacks for run in stack.runs for block in run.pattern)
    return {w.path.split(".")[-2] for b in blocks for w in b.weights if w.role.value == "linear" and w.path.endswith(".weight")}


def _quantization(gaps: _Gaps, model: ModelSpec | None, task: str, adapter: Adapter | None) -> Quantization | None:
    name = gaps.request.get("quantization.weights")
    skip = tuple(gaps.request.get("quantization.skip") or ())
    if name is None:
        return _stored(gaps, model) if task == "infer" else None
    weights = dtypes.GGUF.get(name.removeprefix("gguf:")) if name.startswith("gguf:") else QUANTIZED.get(name)
    if weights is None:
        gaps.wrong("quantization.weights", name, "is not a known format", f"known: {', '.join(QUANTIZED)}, gguf:Q4_K …")
        return None
    if task == "train" and name not in TRAINABLE_QUANTIZED:
        gaps.wrong("quantization.weights", name, "is not modelled for training yet", f"modelled: {', '.join(TRAINABLE_QUANTIZED)}")
    if task == "train" and adapter is None:
        gaps.wrong("quantization.weights", name, "freezes the weights, and nothing else trains", "add an adapter: --lora-rank 16")
    group, double = gaps.request.get("quantization.group_size"), gaps.request.get("quantization.double_quant")
    if name == "nf4":
        double = gaps.get("quantization.double_quant", True)
        weights = dtypes.NF4 if double else dtypes.NF4_SINGLE
    elif name == "fp8" and group is not None:
        weights = dtypes.fp8_blocks(group)
    elif group is not None:
        weights = dtypes.grouped_int(weights.bits, group, zero_bits=weights.bits, name=weights.name)
    return Quantization(weights=weights, skip=skip)


def _stored(gaps: _Gaps, model: ModelSpec | None) -> Quantization | None:
    """A released checkpoint that is quantized stays so unless the plan says otherwise."""
    if model is None or model.quantization is None:
        return None
    stored = model.quantization
    weights = QUANTIZED.get(stored.weights) or dtype_named(stored.weights)
    if weights is None:
        gaps.wrong("quantization_config", stored.weights, "is not a known format")
        return None
    gaps.assumed.append(f"quantization.weights = {stored.weights} (as released)")
    return Quantization(weights=weights, skip=stored.skip)


def _offload(gaps: _Gaps, engine: Engine) -> Offload:
    wanted = {key: gaps.request.get(f"offload.{key}") for key in ("optimizer", "parameters", "activations")}
    for key, value in wanted.items():
        if value and key not in engine.offload:
            has = f"it offloads {', '.join(engine.offload)}" if engine.offload else "engine deepspeed offloads optimizer and parameters"
            gaps.wrong(f"offload.{key}", value, f"is not modelled for {engine.name} yet", has)
    return Offload(
        optimizer=float(wanted["optimizer"] or 0), parameters=float(wanted["parameters"] or 0), activations=bool(wanted["activations"])
    )


def _kv_dtype(gaps: _Gaps, precision: Precision) -> DType:
    given = gaps.request.get("serving.kv_dtype")
    found = dtype_named(given) if given else precision.compute
    assert found is not None
    return found
