"""What a component is called on the screen, and in a few words why it is as large as it is under a plan."""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.budget import Answer, Fix
from memsheet.errors import printable_line
from memsheet.formulas.states.gradients import reduces_surely_last
from memsheet.formulas.states.optimizers import keeps_wide_moments, quantizes_all_moments
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.names import SHORT
from memsheet.plan.plan import Adapter, AdapterKind, GradientSync, OptimizerName, Plan, RecomputeMode
from memsheet.report.shared.closing_words import closing_words
from memsheet.report.shared.look import Look
from memsheet.sheet import Bytes, Component, Instant, Sheet, sum_byte_ranges

SHARDED_FROM = {
    Component.OPTIMIZER_STATES: 1,
    Component.MASTER_WEIGHTS: 1,
    Component.GRADIENTS: 2,
    Component.PARAMETERS: 3,
}
"""The zero stage from which dp_shard splits a component (ZeRO, arXiv:1910.02054, section 5)."""

MOSTLY = 0.3
"""A path is named as the reason for a component's size from this share of it on."""

INSTANTS = {
    Instant.LOAD: "loading", Instant.FORWARD: "forward", Instant.LOSS: "the loss", Instant.BACKWARD: "backward",
    Instant.OPTIMIZER_STEP: "the optimizer step", Instant.PREFILL: "prefill", Instant.DECODE: "decode",
}  # fmt: skip


MOMENTS = {
    OptimizerName.ADAMW: "two {dtype} moments", OptimizerName.PAGED_ADAMW: "moments of small tensors, others in pages",
    OptimizerName.ADAMW_8BIT: "two moments in 8 bits", OptimizerName.PAGED_ADAMW_8BIT: "maxima of 8-bit moments, which are in pages",
    OptimizerName.LION: "one {dtype} moment", OptimizerName.LION_8BIT: "one moment in 8 bits",
    OptimizerName.SGD: "none but scalars", OptimizerName.SGD_MOMENTUM: "one {dtype} moment",
    OptimizerName.ADAFACTOR: "second moments as rows and columns", OptimizerName.MUON: "one {dtype} moment of matrices, two of the rest",
    OptimizerName.ADAM_MINI: "one {dtype} moment and a second one a block", OptimizerName.GALORE: "two {dtype} moments of projections",
    OptimizerName.LORA_FA: "two {dtype} moments of the second matrices",
}  # fmt: skip
"""What an optimizer keeps between steps."""

EIGHT_BIT = (OptimizerName.ADAMW_8BIT, OptimizerName.LION_8BIT)


def component_name(component: Component) -> str:
    return component.value.replace("_", " ")


def component_size_reason(component: Component, answer: Answer, sheet: Sheet, look: Look) -> str:
    """A few words on a component's size: its dtype and how it is split, or the path that takes most of it."""
    plan = answer.plan
    if answer.trace is not None and "step" in answer.trace:  # a step of one's own: nobody knows its plan
        return dominant_path_words(component, sheet)
    closing = ""
    if component in SHARDED_FROM and plan.task == "train":
        closing = closing_words(component, answer, sheet, look, _shares_of_state(component, plan))
    match component:
        case Component.PARAMETERS:
            return _join_nonempty(
                _parameter_dtype_words(plan), *_sharding_axis_words(component, plan), closing
            )
        case Component.MASTER_WEIGHTS:
            return _join_nonempty(
                f"{plan.precision.master_weights.name} copy" if plan.precision.master_weights else "",
                *_sharding_axis_words(component, plan),
                closing,
            )
        case Component.GRADIENTS:
            of = "of the adapters" if plan.adapter else ""
            # what waits unreduced has the dtype that autograd made it in, beside shards of their own
            dtype = "" if plan.gradient_sync is GradientSync.LAST else plan.precision.gradients.name
            return _join_nonempty(dtype, of, *_sharding_axis_words(component, plan), closing)
        case Component.OPTIMIZER_STATES:
            return _join_nonempty(
                _optimizer_moment_words(plan),
                "of the adapters" if plan.adapter else "",
                *_sharding_axis_words(component, plan),
                closing,
            )
        case Component.SAVED_ACTIVATIONS:
            return _join_nonempty(_recompute_mode_words(plan), dominant_path_words(component, sheet))
        case Component.UNSHARDED_PARAMETERS:
            return _join_nonempty(
                f"gathered in {plan.precision.compute.name}", dominant_path_words(component, sheet)
            )
        case Component.KV_CACHE:
            if plan.cache.memory_fraction is None or answer.cluster is None:
                return _kv_cache_words(plan)
            flag = (answer.serving or {}).get("budget", {}).get("pool_flag")
            left = f"as {flag} says" if flag else f"what {plan.cache.memory_fraction:g} of the card leaves"
            return _join_nonempty(plan.cache.kv_dtype.name if plan.cache.kv_dtype else "", left)
        case Component.BUFFERS if plan.served_adapters is not None:
            return _room_for_adapters(sheet) or dominant_path_words(component, sheet)
        case Component.ALLOCATOR_SLACK:
            return "segments beyond the bytes asked for"
        case Component.CONTEXT:
            return "driver, kernels and libraries"
        case _:
            return dominant_path_words(component, sheet) or _alike_path_words(component, sheet)


def dominant_path_words(component: Component, sheet: Sheet) -> str:
    """The largest path of a component at the peak, where it takes a good part of it."""
    sizes = _sizes_at_peak(component, sheet)
    top = max(sizes, key=lambda path: sizes[path], default="")
    if not top or sizes[top] < MOSTLY * sum(sizes.values()):
        return ""
    return f"{'all' if len(sizes) == 1 else 'mostly'} in {printable_line(top)}"


def _alike_path_words(component: Component, sheet: Sheet) -> str:
    """What paths that end alike are (``*/cast``), where they take a good part together; else the largest."""
    sizes, ends = _sizes_at_peak(component, sheet), dict[str, int]()
    for path, size in sizes.items():
        _, slash, end = path.rpartition("/")
        ends[slash + end] = ends.get(slash + end, 0) + size
    most = max((end for end in ends if end.startswith("/")), key=lambda end: ends[end], default="")
    if most and ends[most] >= MOSTLY * sum(sizes.values()):
        return f"mostly in *{printable_line(most)}"
    top = max(sizes, key=lambda path: sizes[path], default="")
    return f"the largest in {printable_line(top)}" if top and sizes[top] else ""


def _sizes_at_peak(component: Component, sheet: Sheet) -> dict[str, int]:
    instant = sheet.peak_instant
    return {
        item.path: int(item.at[instant].value)
        for item in sheet.items
        if item.component is component and instant in item.at
    }


def _room_for_adapters(sheet: Sheet) -> str:
    """Said where the rows of all layers together are most of a server's buffers."""
    sizes = [
        (item.path, item.at[sheet.peak_instant].value)
        for item in sheet.items
        if item.component is Component.BUFFERS and sheet.peak_instant in item.at
    ]
    room = sum(size for path, size in sizes if ".lora_" in path)
    return "mostly room for adapters" if room >= MOSTLY * sum(size for _, size in sizes) else ""


def model_state_bytes(sheet: Sheet) -> tuple[str, Bytes]:
    """The model states by name, and their bytes, each at its own largest."""
    return ", ".join(map(component_name, sheet.states)), sum_byte_ranges(sheet.states.values())


def _join_nonempty(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _sharding_axis_words(component: Component, plan: Plan) -> tuple[str, ...]:
    """How the mesh splits a state; the axes that do not are left out."""
    mesh, words, sharded = plan.mesh, [], _shares_of_state(component, plan)
    if component is Component.GRADIENTS and reduces_surely_last(plan, engine_of(plan)):
        words.append("whole until the last micro-batch")
    elif sharded > 1:
        words.append(f"1/{sharded} on each rank")
        if component is Component.PARAMETERS and plan.secondary_shard > 1:
            words.append(f"and 1/{plan.secondary_shard} again for gathers inside a node")
    elif mesh.data_parallel > 1:
        words.append("a whole copy on each rank")
    if mesh.tp > 1:
        words.append(f"split over tp {mesh.tp}")
    if mesh.attn_dp > 1:
        words.append("attention whole" if mesh.attention_tp == 1 else f"attention over {mesh.attention_tp}")
    if mesh.ep > 1:
        words.append(f"experts over ep {mesh.ep}")
    if mesh.pp > 1:
        words.append("of this stage's layers")
    return tuple(words)


def _shares_of_state(component: Component, plan: Plan) -> int:
    """Data-parallel ranks that divide a state between them, before the last micro-batch."""
    mesh, engine = plan.mesh, engine_of(plan)
    # parameters rest in shards, however long they stay gathered
    gathers = plan.zero >= 2 and engine.sharding.gathers
    whole = component is Component.GRADIENTS and reduces_surely_last(plan, engine)
    shares = not whole and (gathers or plan.zero >= SHARDED_FROM[component])
    return mesh.dp_shard * mesh.cp if shares else 1


def _parameter_dtype_words(plan: Plan) -> str:
    base = plan.quantization.weights.name if plan.quantization else plan.precision.parameters.name
    return _with_adapter(base, plan.adapter) if plan.adapter else base


def _with_adapter(base: str, adapter: Adapter) -> str:
    if adapter.kind is AdapterKind.IA3:
        return f"frozen {base} base, {adapter.dtype.name} factors"
    if adapter.kind is AdapterKind.OFT:
        return f"frozen {base} base, {adapter.dtype.name} rotations of {adapter.block_size} inputs"
    if adapter.kind.before_text:
        learned = f"{adapter.prompt_length} {adapter.dtype.name} tokens"
        return f"frozen {base} base, {learned} before every sequence"
    if adapter.kind is AdapterKind.LN_TUNING:
        return f"frozen {base} base, copies of norms"
    if adapter.kind.before_keys:
        return f"frozen {base} base, {adapter.prompt_length} learned keys and values a layer"
    size = f"{adapter.prompt_length} prompts a layer" if adapter.kind.prompts else f"rank {adapter.rank}"
    return f"frozen {base} base, {adapter.dtype.name} adapters of {size}"


def _optimizer_moment_words(plan: Plan) -> str:
    if plan.optimizer is None:
        return ""
    name, dtype = plan.optimizer.name, "fp32" if keeps_wide_moments(plan) else plan.precision.moments.name
    words = MOMENTS[name].format(dtype=dtype)
    wide = name in EIGHT_BIT and not quantizes_all_moments(plan) and plan.adapter is None
    return f"{words} (fp32 of embeddings)" if wide else words


def _recompute_mode_words(plan: Plan) -> str:
    match plan.recompute.mode:
        case RecomputeMode.NONE:
            return "nothing recomputed"
        case RecomputeMode.SELECTIVE:
            return "recomputed in part"
        case RecomputeMode.FULL:
            return "layers recomputed"


def _kv_cache_words(plan: Plan) -> str:
    dtype = plan.cache.kv_dtype.name if plan.cache.kv_dtype else ""
    if plan.serving.max_sequences is None or plan.serving.max_model_len is None:
        return dtype
    if plan.serving.pooled is not None:
        return _join_nonempty(
            dtype, f"one sequence of {plan.serving.max_model_len:,} tokens; a card holds more"
        )
    plural = "s" if plan.serving.max_sequences != 1 else ""
    if engine_of(plan).serving.shares_length:
        return _join_nonempty(
            dtype,
            f"{plan.serving.max_model_len:,} tokens"
            + (f" for {plan.serving.max_sequences} sequences" if plural else ""),
        )
    return _join_nonempty(
        dtype, f"{plan.serving.max_sequences} sequence{plural} of {plan.serving.max_model_len:,} tokens"
    )


def flags_of(fix: Fix) -> str:
    """What to add to the command line to get a fix: ``--recompute full --offload optimizer,parameters``."""
    return flags_for(changed_keys(fix))


def changed_keys(fix: Fix) -> dict[str, object]:
    """The keys of a request that a fix changes, each with its last value."""
    return {
        key: after
        for change in fix.changes
        for key, _, after in ((change.key, change.before, change.after), *change.also)
    }


def flags_for(values: Mapping[str, object]) -> str:
    """Keys of a request as flags of the command line."""
    short = {key: name for name, key in SHORT.items()}
    moved = ",".join(
        key.removeprefix("offload.") for key, value in values.items() if key.startswith("offload.") and value
    )
    given = [
        _plan_flag(short.get(key, key), value)
        for key, value in values.items()
        if not key.startswith("offload.")
    ]
    return " ".join([*given, *([f"--offload {moved}"] if moved else [])])


def _plan_flag(name: str, value: object) -> str:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    if isinstance(value, tuple | list):
        return (
            f"--{flag} "
            f"{','.join(str(part) if isinstance(part, int) else printable_line(part) for part in value)}"
        )
    return f"--{flag} {printable_line(value)}"
