"""What a component is called on the screen, and in a few words why it is as large as it is under a plan."""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.budget import Answer, Fix
from memsheet.errors import printable_line
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.names import SHORT
from memsheet.plan.plan import Plan, RecomputeMode
from memsheet.report.shared.closing_words import closing_words
from memsheet.report.shared.look import Look
from memsheet.report.shared.state_words import (
    SHARDED_FROM,
    gradient_dtype_words,
    optimizer_moment_words,
    parameter_dtype_words,
    sharding_axis_words,
    shares_of_state,
)
from memsheet.sheet import Bytes, Component, Instant, Sheet, sum_byte_ranges

MOSTLY = 0.3
"""A path is named as the reason for a component's size from this share of it on."""


class _InstantWords(dict[Instant, str]):
    """Words of the instants of a step; those of a job's phases are made of them."""

    def __missing__(self, instant: Instant) -> str:
        return f"{instant.phase} ({self[instant.step]})"


INSTANTS: Mapping[Instant, str] = _InstantWords({
    Instant.LOAD: "loading", Instant.FORWARD: "forward", Instant.LOSS: "the loss", Instant.BACKWARD: "backward",
    Instant.OPTIMIZER_STEP: "the optimizer step", Instant.PREFILL: "prefill", Instant.DECODE: "decode",
})  # fmt: skip


def component_name(component: Component) -> str:
    return component.value.replace("_", " ")


def component_size_reason(component: Component, answer: Answer, sheet: Sheet, look: Look) -> str:
    """A few words on a component's size: its dtype and how it is split, or the path that takes most of it."""
    plan = answer.plan
    if answer.job is not None:  # of several plans
        return dominant_path_words(component, sheet)
    if answer.trace is not None and "step" in answer.trace:  # a step of one's own: nobody knows its plan
        return dominant_path_words(component, sheet)
    if component in SHARDED_FROM:
        return _state_words(component, answer, sheet, look)
    match component:
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


def _state_words(component: Component, answer: Answer, sheet: Sheet, look: Look) -> str:
    """Of a model state: its dtype, how the mesh divides it, and what else there is of it at the peak."""
    plan, at_step = answer.plan, sheet.peak_instant is Instant.OPTIMIZER_STEP
    shares = shares_of_state(component, plan, at_step=at_step)
    closing = closing_words(component, answer, sheet, look, shares) if plan.task == "train" else ""
    dtype: tuple[str, ...] = ()
    match component:
        case Component.PARAMETERS:
            dtype = (parameter_dtype_words(plan),)
        case Component.MASTER_WEIGHTS if plan.precision.master_weights:
            dtype = (f"{plan.precision.master_weights.name} copy",)
        case Component.GRADIENTS:
            dtype = gradient_dtype_words(plan)
        case Component.OPTIMIZER_STATES:
            dtype = optimizer_moment_words(plan)
    axes = sharding_axis_words(component, plan, answer.model, at_step=at_step)
    return _join_nonempty(*dtype, *axes, closing)


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
