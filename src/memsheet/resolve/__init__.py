"""A plan with gaps + its engine's defaults + the cluster → a whole, legal plan, or every problem at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from memsheet.engines import MODELLED, find_engine
from memsheet.errors import InputError, require
from memsheet.frozen import dataclass
from memsheet.gaps import Gaps
from memsheet.resolve.adapters import adapter_of
from memsheet.resolve.attention import MESH, attention_groups, check_groups
from memsheet.resolve.cache import kv_dtype_of
from memsheet.resolve.cut import cut_hint, rest_over
from memsheet.resolve.length import check_length, longest
from memsheet.resolve.llama_cpp import llama_options
from memsheet.resolve.lora import BY_ENGINE, served_adapters_of
from memsheet.resolve.options import switches
from memsheet.resolve.precision import check_in_backward, check_moments, precision_of
from memsheet.resolve.quantization import quantization_of
from memsheet.resolve.serving import (
    attention_of,
    check_decodes,
    check_positions,
    check_tensor_parallel,
    experts_split,
    pages,
    server_options,
    usual_options,
)
from memsheet.resolve.speculative import speculative_of
from memsheet.resolve.version import check_version
from memsheet.resolve.without_effect import check_effects
from memsheet.spec.check import Request, check_request, flatten
from memsheet.spec.defaults import OTHER_TASK, UNMODELLED
from memsheet.spec.device import Cluster
from memsheet.spec.engine import Engine, Sharding
from memsheet.spec.hardware import BF16_UNITS, below, unsupported
from memsheet.spec.model import Attention, Dense, LatentAttention, ModelSpec, Moe
from memsheet.spec.plan import (
    Implementation,
    Loss,
    Mesh,
    Offload,
    Optimizer,
    OptimizerName,
    Plan,
    Recompute,
    RecomputeMode,
    Schedule,
)
from memsheet.spec.together import contradictions


@dataclass(frozen=True, slots=True)
class Resolved:
    """A whole plan and what it took for granted."""

    plan: Plan
    assumed: tuple[str, ...]


def resolve(request: Request, model: ModelSpec | None, cluster: Cluster | None = None, *, real: bool = False) -> Resolved:
    """Fill every gap of ``request`` (checked first) for ``model``, None when only a parameter count is known.

    ``real``: the engine's own code will run the plan, so that what it can do but nobody has modelled is allowed.

    Raises InputError with all problems: unknown keys, values out of range, meshes that do not multiply, degrees that do not
    divide, options that are not modelled.
    """
    require(check_request(request))
    gaps = Gaps(request)
    task = gaps.get("task", "train", silent=True)
    gpus = cluster.count if cluster else None
    engine = _engine(gaps, task, cluster, model)
    if real:
        engine = replace(
            engine, axes=(*engine.axes, *engine.real_axes), schedules=(*engine.schedules, *engine.real_schedules),
            zero=(*engine.zero, *engine.real_zero),
        )  # fmt: skip
    _refuse_unread(gaps, engine, task)
    check_decodes(gaps, engine, model, task)
    check_version(gaps, engine)
    zero = _zero(gaps, engine, task, gpus)
    mesh = _mesh(gaps, engine, task, zero, gpus, model)
    adapter = None if task == "infer" and engine.name in BY_ENGINE else adapter_of(gaps, model, engine)
    card = cluster if engine.server == "transformers" else None  # whose capability decides whether transformers dequantizes
    quantization = quantization_of(gaps, model, engine, task, adapter, card)
    precision = precision_of(gaps, engine, task, adapter, model, cluster.device if cluster else None)
    served_adapters = served_adapters_of(gaps, engine, model, mesh, precision)
    usual = usual_options(gaps, engine, mesh, model, cluster)
    sequences = _sequences(gaps, task, usual.get("serving.max_sequences"))
    plan = Plan(
        task=task, engine=engine.name, engine_version=gaps.get("engine_version", engine.tested, silent=not usual), mesh=mesh, zero=zero,
        reshard_after_forward=_reshard(gaps, engine, zero),
        schedule=_schedule(gaps, engine, mesh, task), layers_per_stage=_layers_per_stage(gaps, engine, mesh, model),
        microbatch=gaps.get("microbatch", 1) if task == "train" else sequences, global_batch=_global_batch(gaps, engine, mesh, task),
        seq_len=_seq_len(gaps, task, model), vocab_multiple=_vocab_multiple(gaps, engine, mesh), precision=precision, served_adapters=served_adapters,
        optimizer=_optimizer(gaps, engine) if task == "train" else None,
        recompute=_recompute(gaps, engine, model),
        attention=attention_of(gaps, engine, model, cluster),
        loss=gaps.choice("loss", _usual_loss(gaps, engine, mesh), engine.losses, engine.name) if task == "train" else Loss.PLAIN,
        dropout=float(gaps.get("dropout", 0.0, silent=True)), adapter=adapter, quantization=quantization,
        offload=_offload(gaps, engine), expandable_segments=gaps.get("allocator.expandable_segments", False, silent=True),
        kv_dtype=kv_dtype_of(gaps, precision, engine, model),
        max_model_len=_max_model_len(gaps, task, model, engine, served=bool(usual) or engine.server == "llama_cpp"),
        max_sequences=sequences,
        prompt_tokens=gaps.get("serving.prompt_tokens", silent=True), phase=gaps.get("phase", silent=True),
        **{**server_options(gaps, usual, engine, model), **llama_options(gaps, engine, task)},
        optimizer_in_backward=gaps.get("optimizer_in_backward", False, silent=True),
        **switches(gaps, mesh, model, engine), varied=engine.varies and request.get("seq_len_kind") == "maximum",
        before_ampere=cluster is not None and below(cluster.device, BF16_UNITS),
        speculative=speculative_of(gaps, engine, mesh, model, sequences=sequences, real=real),
    )  # fmt: skip
    check_effects(gaps, plan, engine, model)
    check_moments(gaps, plan)
    check_in_backward(gaps, plan, engine)
    gaps.problems += contradictions(request, task)
    require(gaps.problems)
    return Resolved(plan, tuple(gaps.assumed))


def _refuse_unread(gaps: Gaps, engine: Engine, task: str) -> None:
    """Options that nobody has modelled for the engine, and those of the other task."""
    for key, harmless in UNMODELLED.items():
        value = gaps.request.get(key)
        if value is not None and value not in harmless and key not in engine.models and key not in OTHER_TASK[task]:
            gaps.wrong(key, value, "is not modelled yet, and an option is never ignored", "leave it out to see the job without it")
    for key, harmless in OTHER_TASK[task].items():
        value = gaps.request.get(key)
        if value is not None and value not in harmless and key not in engine.models:
            beside = task == "infer" and key.startswith("adapter.")
            unread = f"is not modelled for adapters that {engine.name} serves" if beside else f"has no meaning in {task}"
            hint = f"merged, an adapter costs nothing; beside a model: {', '.join(BY_ENGINE)}" if beside else "leave it out"
            gaps.wrong(key, value, unread, hint)


DESCRIBED = ("schema", "model", "gpus")
"""Keys of a plan's document that are no choices of the plan."""


def reread(document: Mapping[str, Any], model: ModelSpec | None = None, *, real: bool = False) -> Plan:
    """The plan that ``report.json.plan_document`` wrote down. Raises InputError as ``resolve`` does."""
    return resolve({key: value for key, value in flatten(document).items() if key not in DESCRIBED}, model, None, real=real).plan


def _engine(gaps: Gaps, task: str, cluster: Cluster | None, model: ModelSpec | None) -> Engine:
    several = (cluster.count if cluster else _product(gaps.request)) > 1
    sharded = task == "train" and several and gaps.request.get("zero") != 0
    default = "fsdp2" if sharded else "vllm" if task == "infer" and several and pages(model) else "transformers"
    if task == "infer" and model is not None and model.source.kind == "gguf":
        default = "llama.cpp"
    if default == "transformers" and task == "infer" and gaps.request.get("engine") is None and cluster and model:
        default = "vllm" if _asks_a_server(gaps.request) and pages(model) and _serves("vllm", gaps.request, model, cluster) else default
    if cluster and cluster.device.engines is not None:
        default = _engine_there(cluster.device.engines, task) or default
    name = gaps.get("engine", default)
    engine = find_engine(name)
    if engine is None or task not in engine.tasks:
        known = [e for e in MODELLED if (found := find_engine(e)) and task in found.tasks]
        gaps.wrong("engine", name, f"is not modelled for {task} yet", f"modelled: {', '.join(known)}")
        require(gaps.problems)
    assert engine is not None
    return engine.alone if engine.alone is not None and not several else engine


SERVERS_KEYS = ("serving.max_model_len", "serving.max_sequences", "serving.max_batched_tokens", "serving.memory_fraction")
"""What nobody says but of a server."""


def _asks_a_server(request: Request) -> bool:
    return any(request.get(key) is not None for key in SERVERS_KEYS)


def _serves(engine: str, request: Request, model: ModelSpec, cluster: Cluster) -> bool:
    """Whether a server takes the question as it stands."""
    try:
        plan = resolve({**request, "engine": engine}, model, cluster).plan
    except InputError:
        return False
    return not any(unsupported(plan, cluster, model))


def _engine_there(names: tuple[str, ...], task: str) -> str | None:
    """The first engine of those accounted on a device that has the task."""
    return next((name for name in names if (engine := find_engine(name)) and task in engine.tasks), None)


def _product(request: Request) -> int:
    degrees = (request.get(f"mesh.{axis}") for axis in ("dp_replicate", "dp_shard", "cp", "tp", "pp"))
    result = 1
    for degree in degrees:
        result *= degree or 1
    return result


def _zero(gaps: Gaps, engine: Engine, task: str, gpus: int | None) -> int:
    if task != "train":
        return 0
    single = gpus == 1 or (gpus is None and _product(gaps.request) == 1)
    kept = engine.whole_in_pipelines and (gaps.request.get("mesh.pp") or 1) > 1 and gaps.request.get("reshard_after_forward") is None
    whole = kept or (engine.sharding is Sharding.FSDP2 and gaps.request.get("reshard_after_forward") is False)  # that is what zero 2 does
    zero: int = gaps.get("zero", 2 if whole else engine.default_zero, silent=single)
    if zero not in engine.zero:
        hint = {0: "engine transformers replicates the model", 1: "engine deepspeed has it"}.get(zero, "engine fsdp2 or deepspeed has it")
        gaps.wrong("zero", zero, f"does not exist in {engine.name}, which has {', '.join(map(str, engine.zero))}", hint)
    return zero


def _mesh(gaps: Gaps, engine: Engine, task: str, zero: int, gpus: int | None, model: ModelSpec | None) -> Mesh:
    given = {axis: gaps.request.get(f"mesh.{axis}") for axis in MESH}
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
        rest = ("dp_shard" if zero else "dp_replicate") if task == "train" else "tp" if "tp" in engine.serving_axes else "pp"
        if given[rest] is not None:
            gaps.wrong("gpus", gpus, f"is not the mesh's product {product}", f"leave {rest} out and it takes the rest")
        rest_over(gaps, degrees, rest, gpus // product, engine, model)
    if task == "infer" and engine.experts_whole:
        attention_groups(gaps, degrees, engine, model)
    axes = engine.serving_axes if task == "infer" else engine.axes if model is not None else (*engine.axes, *engine.bare_axes)
    for axis, degree in degrees.items():
        if axis == "etp" and engine.experts_whole:
            degrees["etp"] = experts_split(gaps, degrees, engine.name)
        elif axis == "etp" and engine.splits_experts_over_tp:
            _expert_split(gaps, engine, degrees["tp"], model)
        elif degree > 1 and axis not in axes and axis not in ("ep", "etp", "vpp"):
            gaps.wrong(f"mesh.{axis}", degree, f"is not modelled for {engine.name} yet", f"modelled there: {', '.join(axes) or 'none'}")
        elif degree > 1 and axis not in axes:
            gaps.wrong(f"mesh.{axis}", degree, f"is not modelled for {engine.name} yet")
    if zero == 0 and degrees["dp_shard"] > 1:
        gaps.wrong("mesh.dp_shard", degrees["dp_shard"], "shards nothing at zero 0", "use dp_replicate, or zero 1 to 3")
    if given["etp"] is None and engine.splits_experts_over_tp and not engine.experts_whole:
        degrees["etp"] = degrees["tp"]
    mesh = Mesh(**degrees)
    if engine.server == "transformers":
        check_tensor_parallel(gaps, mesh, model, task)
    check_groups(gaps, mesh, engine, model)
    if model is not None:
        _divisibility(gaps, mesh, model)
    return mesh


def _expert_split(gaps: Gaps, engine: Engine, tp: int, model: ModelSpec | None) -> None:
    """Experts are cut over the tensor-parallel ranks: another degree inside them does not exist there."""
    given = gaps.request.get("mesh.etp")
    blocks = (block for stack in model.stacks for run in stack.runs for block in run.pattern) if model else ()
    if given not in (None, tp) and (given != 1 or any(isinstance(block.feed_forward, Moe) for block in blocks)):
        gaps.wrong("mesh.etp", given, f"is not modelled: {engine.name} cuts experts over all {tp} tensor-parallel ranks", "leave it out")


def _reshard(gaps: Gaps, engine: Engine, zero: int) -> bool:
    """Whether gathered parameters are freed after forward: what zero 3 is, and zero 2 is not."""
    given: bool = gaps.get("reshard_after_forward", zero == 3, silent=engine.sharding is not Sharding.FSDP2)
    if given != (zero == 3) and gaps.request.get("task") != "infer":
        does = "frees gathered parameters after forward" if zero == 3 else "keeps parameters whole through backward"
        hint = "that is zero 2 on fsdp2" if zero == 3 else "that is zero 3"
        gaps.wrong("reshard_after_forward", given, f"contradicts zero {zero}, which {does}", hint)
    return given


def _divisibility(gaps: Gaps, mesh: Mesh, model: ModelSpec) -> None:
    blocks = [block for stack in model.stacks for run in stack.runs for block in run.pattern]
    for heads in sorted({m.heads for b in blocks for m in b.mixers if isinstance(m, Attention | LatentAttention)}):
        if heads % max(1, mesh.attention_tp):
            hint = cut_hint(model, {"tp": mesh.tp, "attn_dp": mesh.attn_dp}, gaps.request.get("task", "train"))
            gaps.wrong("mesh.tp", mesh.tp, f"does not divide the {heads} attention heads of {model.name}", hint)
    for kv in sorted({m.kv_heads for b in blocks for m in b.mixers if isinstance(m, Attention)}):
        if kv % (own := max(1, mesh.attention_tp)) and own % kv:
            hint = cut_hint(model, {"tp": mesh.tp, "attn_dp": mesh.attn_dp}, gaps.request.get("task", "train"))
            gaps.wrong("mesh.tp", mesh.tp, f"neither divides the {kv} key/value heads of {model.name} nor is a multiple of them", hint)
    for experts in sorted({b.feed_forward.experts for b in blocks if isinstance(b.feed_forward, Moe)}):
        if experts % mesh.ep:
            gaps.wrong("mesh.ep", mesh.ep, f"does not divide the {experts} experts of {model.name}")
    ranks = mesh.data_parallel * mesh.cp * mesh.tp
    if ranks % (mesh.ep * mesh.etp):  # Megatron-LM 23e00ed core/parallel_state.py:703: the world is divided by ep · etp · pp
        gaps.wrong("mesh.ep", mesh.ep, f"times etp does not divide the {ranks} ranks of a stage")


def _usual_loss(gaps: Gaps, engine: Engine, mesh: Mesh) -> Loss:
    return engine.usual_loss(mesh.tp, gaps.request.get("engine_version")) if engine.usual_loss else Loss.PLAIN


def _layers_per_stage(gaps: Gaps, engine: Engine, mesh: Mesh, model: ModelSpec | None) -> tuple[int, ...] | None:
    given, stages = gaps.request.get("layers_per_stage"), mesh.pp * mesh.vpp
    layers = sum(stack.layers for stack in model.stacks) if model else None
    if given is None and engine.stages is not None and stages > 1 and layers is not None:
        found = engine.stages(layers, stages, gaps.request.get("engine_version"))
        gaps.assumed += [f"layers_per_stage = {','.join(map(str, found))} ({engine.name}'s own rule)"] if found else []
        if found is None:
            gaps.wrong("mesh.pp", mesh.pp, f"leaves stages of {layers} layers without any", "fewer stages")
        return found
    if given is None:
        if layers is not None and layers % stages:
            gaps.wrong("mesh.pp", mesh.pp, f"does not divide {layers} layers over {stages} stages", "give layers_per_stage")
        return None
    if len(given) != stages or (layers is not None and sum(given) != layers):
        gaps.wrong("layers_per_stage", given, f"must list {stages} stages that sum to {layers} layers")
    return tuple(given)


def _schedule(gaps: Gaps, engine: Engine, mesh: Mesh, task: str) -> Schedule | None:
    given = gaps.request.get("schedule")
    if mesh.pp == 1 and task == "train" and given is not None:
        gaps.wrong("schedule", given, "orders the stages of a pipeline, and there is one stage", "leave it out")
    if mesh.pp == 1 or task != "train":
        return None
    return gaps.choice("schedule", Schedule.ONE_F_ONE_B, engine.schedules, engine.name)


def _global_batch(gaps: Gaps, engine: Engine, mesh: Mesh, task: str) -> int | None:
    """Sequences of a step. Where they are no multiple, the last micro-batch is smaller, if the engine takes one and all ranks have as many."""
    batch, micro = gaps.request.get("global_batch"), gaps.request.get("microbatch") or 1
    ranks = mesh.dp_replicate * mesh.dp_shard
    if task == "train" and not batch and mesh.pp > 1:  # fewer micro-batches than stages would keep less, and leave stages idle
        batch = micro * ranks * mesh.pp
        gaps.assumed.append(f"global_batch = {batch} (a micro-batch for each of {mesh.pp} stages)")
    if task == "train" and batch and batch % (micro * ranks):
        if not engine.takes_remainder or mesh.pp > 1 or batch % ranks:
            gaps.wrong("global_batch", batch, f"is not a multiple of microbatch · data-parallel ranks = {micro * ranks}")
        else:
            gaps.assumed.append(f"the last micro-batch of a step has {batch // ranks % micro} of {micro} sequences")
    return batch or None


def _vocab_multiple(gaps: Gaps, engine: Engine, mesh: Mesh) -> int:
    """What the vocabulary is padded to: as the plan says, else the engine's own multiple for every tensor-parallel rank."""
    own = engine.vocab_multiple * int(mesh.tp) if engine.vocab_multiple > 1 else 1
    multiple: int = gaps.get("vocab_multiple", own, silent=own == 1)
    if multiple % int(mesh.tp) and engine.vocab_multiple > 1:
        gaps.wrong("vocab_multiple", multiple, f"is no multiple of the {mesh.tp} tensor-parallel ranks that share the vocabulary")
    return multiple


def _seq_len(gaps: Gaps, task: str, model: ModelSpec | None) -> int:
    seq_len = gaps.request.get("seq_len")
    if task == "train" and model is not None and not seq_len:
        gaps.wrong("seq_len", seq_len, "is missing; saved activations depend on it", "for example --seq-len 4096")
    check_positions(gaps, "seq_len", seq_len, model)
    return seq_len or 0


UNKNOWN_LENGTH = 4096
"""Tokens of a sequence where neither the question nor the model says how many: what Llama 2 was trained on (arXiv:2307.09288)."""


def _max_model_len(gaps: Gaps, task: str, model: ModelSpec | None, engine: Engine, *, served: bool) -> int | None:
    given: int | None = gaps.request.get("serving.max_model_len") or gaps.request.get("seq_len")
    prompt, output = gaps.request.get("serving.prompt_tokens"), gaps.request.get("serving.output_tokens")
    if given is None and prompt is not None and output is not None:
        given = prompt + output
    elif given and output is not None and (prompt or 0) + output < given and not served:
        gaps.assumed.append(f"serving.max_model_len = {given} is how long the cache is; serving.output_tokens = {output} ends before")
    if task == "infer" and given is None and gaps.request.get("phase") != "load" and model is not None:
        own = (
            longest(model) if served and engine.name == "vllm" else model.max_positions
        )  # vLLM takes the length it derives, scaling and all
        given = own or UNKNOWN_LENGTH
        gaps.assumed.append(
            f"serving.max_model_len = {given} ({'as long as the model was made for' if own else 'the model says no length'})"
        )
    elif task == "infer" and given is None and gaps.request.get("phase") != "load":
        gaps.wrong("serving.max_model_len", None, "is missing; the cache depends on it", "for example --max-model-len 8192")
    if task == "infer" and given != gaps.request.get("seq_len"):
        check_positions(gaps, "serving.max_model_len", given, model)
    if task == "infer":
        check_length(gaps, engine.name, model, given)
    return given


def _sequences(gaps: Gaps, task: str, usual: int | None) -> int:
    """Sequences served at once: by their own name, or as a batch of generation. ``usual``: what the server takes where nobody says."""
    if task == "train":
        return 1
    given = gaps.request.get("serving.batch") or gaps.request.get("microbatch")
    sequences: int = gaps.get("serving.max_sequences", given or usual or 1, silent=given is not None)
    return sequences


OPTIMIZER_ALIASES = {
    "adam": "adamw", "adamwtorch": "adamw", "adamwhf": "adamw", "adam8bit": "adamw_8bit", "adamwbnb8bit": "adamw_8bit",
    "pagedadamw32bit": "paged_adamw", "pagedadam": "paged_adamw", "pagedadam8bit": "paged_adamw_8bit", "lion32bit": "lion",
    "galoreadamw": "galore",
}  # fmt: skip
"""Other names of optimizers, without dashes and underscores."""
GALORE_RANK = 128
"""Of the projections (transformers 5.23 trainer_optimizer.py:115)."""


def _optimizer(gaps: Gaps, engine: Engine) -> Optimizer:
    spelled = gaps.request.get("optimizer.name")
    plain = str(spelled).lower().replace("-", "").replace("_", "")
    known = {member.value.replace("_", ""): member.value for member in OptimizerName}
    names = Gaps({"optimizer.name": OPTIMIZER_ALIASES.get(plain, known.get(plain, spelled))}, gaps.assumed, gaps.problems)
    name = names.choice("optimizer.name", OptimizerName.ADAMW, engine.optimizers, engine.name)
    allowed = _implementations(name, engine)
    default = engine.default_implementation if engine.default_implementation in allowed else allowed[0]
    chosen = gaps.choice("optimizer.implementation", default, allowed, name.value)
    if name is OptimizerName.GALORE:
        return Optimizer(name=name, implementation=chosen, rank=gaps.get("optimizer.rank", GALORE_RANK))
    if gaps.request.get("optimizer.rank") is not None:
        gaps.wrong("optimizer.rank", gaps.request["optimizer.rank"], f"has no meaning for {name.value}", "galore has projections")
    return Optimizer(name=name, implementation=chosen)


_TORCH = (Implementation.FUSED, Implementation.FOREACH, Implementation.LOOP)
_OTHERS: dict[OptimizerName, tuple[Implementation, ...]] = {
    **dict.fromkeys((OptimizerName.ADAMW_8BIT, OptimizerName.LION_8BIT, OptimizerName.PAGED_ADAMW, OptimizerName.PAGED_ADAMW_8BIT), (Implementation.BNB,)),
    **dict.fromkeys((OptimizerName.ADAM_MINI, OptimizerName.GALORE, OptimizerName.LORA_FA), (Implementation.LOOP,)),
    OptimizerName.ADAFACTOR: (Implementation.LOOP, Implementation.FOREACH),  # transformers' own, torch's
    OptimizerName.LION: (Implementation.LOOP, Implementation.FOREACH),  # lion-pytorch's two
    OptimizerName.MUON: _TORCH,  # of the AdamW beside it
}  # fmt: skip


def _implementations(name: OptimizerName, engine: Engine) -> tuple[Implementation, ...]:
    """How an optimizer can run; the first is the usual one. DTensor shards no fused SGD (torch 2.13 distributed/tensor/_ops/_pointwise_ops.py)."""
    alone = engine.sharding is Sharding.REPLICATED
    if name is OptimizerName.LION and engine.sharding is Sharding.DEEPSPEED:
        return _TORCH  # its FusedLion
    if name in _OTHERS:
        more = {OptimizerName.ADAMW_8BIT: (Implementation.TORCHAO,), OptimizerName.LION: (Implementation.BNB,)}.get(name, ())
        return (*_OTHERS[name], *(more if alone else ()))
    if engine.sharding is Sharding.FSDP2 and name in (OptimizerName.SGD, OptimizerName.SGD_MOMENTUM):
        return Implementation.FOREACH, Implementation.LOOP
    if name is OptimizerName.ADAMW and engine.default_implementation not in _TORCH:
        return (engine.default_implementation, Implementation.APEX, *_TORCH)
    return (*_TORCH, Implementation.APEX, Implementation.TRANSFORMERS) if alone and name is OptimizerName.ADAMW else _TORCH


def _recompute(gaps: Gaps, engine: Engine, model: ModelSpec | None) -> Recompute:
    every, segments = gaps.request.get("recompute.every"), gaps.request.get("recompute.segments")
    counted = gaps.request.get("recompute.layers")
    named = RecomputeMode.SELECTIVE if gaps.request.get("recompute.modules") else RecomputeMode.NONE
    by_layers = tuple(gaps.request.get("recompute.modules") or ()) == ("layer",) and "layer" in engine.policies
    implied = RecomputeMode.FULL if (every and not by_layers) or segments or counted else named
    if implied not in engine.recompute and gaps.request.get("recompute.mode") is None:
        key = next(f"recompute.{part}" for part in ("modules", "every", "layers", "segments") if gaps.request.get(f"recompute.{part}"))
        hint = f"modelled: {', '.join(known.value for known in engine.recompute)}"
        gaps.wrong(key, gaps.request[key], f"asks for recompute {implied.value}, which is not modelled for {engine.name} yet", hint)
    mode = gaps.choice("recompute.mode", implied, engine.recompute, engine.name, silent=gaps.request.get("task") == "infer")
    layers = sum(stack.layers for stack in model.stacks) if model else None
    if mode not in engine.recompute and gaps.request.get("recompute.mode") is None:
        chosen = ", ".join(one.value for one in engine.recompute)
        gaps.wrong(
            "recompute.modules", gaps.request.get("recompute.modules"), f"is not modelled for {engine.name} yet", f"modelled: {chosen}"
        )
    if mode is not RecomputeMode.FULL and implied is RecomputeMode.FULL:
        gaps.wrong(
            "recompute.mode",
            mode.value,
            "recomputes nothing layer by layer, and every, layers or segments is given",
            "leave those out, or give --recompute full",
        )
    if sum(x is not None for x in (every, segments, counted)) > 1:
        gaps.wrong("recompute", None, "every, layers and segments exclude one another")
    for key, value in (("segments", segments), ("layers", counted)):
        if value is not None and layers is not None and value > layers:
            gaps.wrong(f"recompute.{key}", value, f"exceeds the model's {layers} layers")
    modules = tuple(gaps.request.get("recompute.modules") or ())
    if mode is RecomputeMode.SELECTIVE and not modules:
        modules = engine.selective or _attention_modules(model)
        gaps.assumed += [f"recompute.modules = {','.join(modules)}"] if modules else []
    if mode is RecomputeMode.FULL and modules:  # whole layers are computed again, and those modules with them
        gaps.assumed.append(f"recompute.modules = none (recompute full takes {','.join(modules)} with the rest of each layer)")
        modules = ()
    if (mode is RecomputeMode.SELECTIVE) != bool(modules):
        hint = "for example --recompute-modules mlp" if not modules else "leave the modules out, or give --recompute selective"
        gaps.wrong("recompute.modules", modules or None, f"does not go with recompute {mode.value}", hint)
    return Recompute(mode=mode, every=every or 1, segments=segments, layers=counted, modules=modules)


def _attention_modules(model: ModelSpec | None) -> tuple[str, ...]:
    """What selective recompute is of where nobody names modules and the engine has no default: attention (Korthikanti et al. 2022, section 5),
    else the feed-forward, else norms, by the model's own names.
    """
    blocks = [block for stack in model.stacks for run in stack.runs for block in run.pattern] if model else []
    attention = [mixer.path for block in blocks for mixer in block.mixers if isinstance(mixer, Attention)]
    feed_forward = [block.feed_forward.path for block in blocks if isinstance(block.feed_forward, Dense)]
    norms = [norm.path for block in blocks for norm in block.norms]
    found = ({path.rpartition(".")[2] for path in paths} - {""} for paths in (attention, feed_forward, norms))
    return tuple(sorted(next(filter(None, found), ())))


def _offload(gaps: Gaps, engine: Engine) -> Offload:
    wanted = {key: gaps.request.get(f"offload.{key}") for key in ("optimizer", "parameters", "activations")}
    for key, value in wanted.items():
        if value and key not in engine.offload:
            has = f"it offloads {', '.join(engine.offload)}" if engine.offload else "engine deepspeed offloads optimizer and parameters"
            gaps.wrong(f"offload.{key}", value, f"is not modelled for {engine.name} yet", has)
    return Offload(
        optimizer=float(wanted["optimizer"] or 0), parameters=float(wanted["parameters"] or 0), activations=bool(wanted["activations"])
    )
