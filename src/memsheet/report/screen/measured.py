"""What a measured answer says besides its sheet: how fast, where, under which of the framework's names, over
many steps, and how it died.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from memsheet.budget import Answer
from memsheet.errors import printable_line
from memsheet.measure.categories import profiler_category
from memsheet.plan.packages import TRANSFORMERS
from memsheet.report.screen.layout import join_phrases, labelled_row
from memsheet.report.screen.traced import IN
from memsheet.report.shared.look import Look
from memsheet.report.shared.words import component_name
from memsheet.sheet import Component, Instant, Sheet, Witness

if TYPE_CHECKING:
    from memsheet.report.screen.written.parts import Part

PROCESSOR = "cpu"
_NAMED = ("python", "torch", TRANSFORMERS, "peft", "cuda", "driver")


def measured_of(answer: Answer) -> Mapping[str, Any]:
    """What the device and the clock said; empty where nothing was measured."""
    found: Mapping[str, Any] = (answer.trace or {}).get("measured") or {}
    return found


def on_processor(answer: Answer) -> bool:
    return measured_of(answer).get("device") == PROCESSOR


def measured_speed_phrases(answer: Answer) -> Iterator[str]:
    """Seconds and tokens, for the headline."""
    found = measured_of(answer)
    if "step_s" not in found:
        return
    each = "a token" if answer.plan.task == "infer" else "a step"
    yield f"{_format_step_seconds(found['step_s'])} {each}"
    if "tokens_per_s" in found:
        yield f"{found['tokens_per_s']:,.0f} tokens/s"


def _format_step_seconds(value: float) -> str:
    return f"{value:.3f} s" if value >= 0.1 else f"{1000 * value:.2f} ms"


def out_of_memory_headline(answer: Answer, look: Look) -> Part | None:
    """Where a step ran out of memory; None where none did."""
    found = (answer.trace or {}).get("died")
    if found is None:
        return None
    asked = "" if found["request_bytes"] is None else f"asked for {look.need(found['request_bytes'], 2)}"
    who = " ".join(
        filter(
            None,
            (
                printable_line(found["op"]),
                f"at {printable_line(found['path'])}" if found["path"] else "",
                asked,
            ),
        )
    )
    when = (
        f"{IN[Instant(found['instant'])]} of step {found['step']}"
        if found["instant"] != Instant.LOAD.value
        else "while the model was built"
    )
    return labelled_row(
        "OUT OF MEMORY",
        "bold red",
        (when, who, f"{look.need(found['resident_bytes'])} of tensors were there"),
        look,
    )


def framework_name(component: Component, sheet: Sheet) -> str:
    """The profiler's name of a component at the peak."""
    return profiler_category(component, sheet.peak_instant) if sheet.witness is Witness.MEASURED else ""


def measured_lines(answer: Answer, look: Look) -> Iterator[str]:
    """Sentences on how it was measured."""
    found = measured_of(answer)
    if died := (answer.trace or {}).get("died"):
        rows = (
            (
                f"{component_name(Component(each['component']))} {printable_line(each['path'])} "
                f"{look.need(each['bytes'])}"
            )
            for each in died["largest"][:4]
        )
        yield join_phrases(("What was there, the largest first:", *rows), look.width, between="  ")
        if died.get("limit_bytes"):
            whose = "The process may take" if on_processor(answer) else "The device has"
            included = ", libraries included" if on_processor(answer) else ""
            yield f"{whose} {look.room(died['limit_bytes'])}{included}."
    if "step_s" in found:
        each, many = "token" if answer.plan.task == "infer" else "step", found["steps"]
        spread = (
            f"Median of {many} {each}s, {_format_step_seconds(found['fastest_s'])} to "
            f"{_format_step_seconds(found['slowest_s'])}."
        )
        yield (spread if many > 1 else f"One {each} was timed.") + _prefill_speed_sentence(found)
    if about := found.get("environment"):
        threads = f"{about['threads']} thread{'s' * (about['threads'] != 1)}"
        names = (f"{name} {printable_line(str(about[name]))}" for name in _NAMED if about.get(name))
        allocator = " ".join(
            f"{key}={printable_line(str(value))}" for key, value in (about.get("allocator") or {}).items()
        )
        where = f"Measured on {printable_line(str(about.get('device_name', about['device'])))}"
        yield join_phrases(
            (where, threads if about["device"] == PROCESSOR else "", *names, allocator), look.width
        )


def _prefill_speed_sentence(found: Mapping[str, Any]) -> str:
    if "prefill_s" not in found:
        return ""
    return (
        f" The prompt took {_format_step_seconds(found['prefill_s'])}, "
        f"{found['prompt_tokens_per_s']:,.0f} tokens/s."
    )


def over_steps(answer: Answer, look: Look) -> Iterator[Part]:
    """What the allocator holds over many steps, under each of its settings; nothing where only one length was
    run.
    """
    from memsheet.report.screen.written.parts import Table, Text

    found = measured_of(answer).get("over_steps")
    if not found:
        return
    lengths = found["lengths"]
    title = f"Over {len(lengths)} steps of {min(lengths)} to {max(lengths)} tokens"
    how = "the real step's allocations through a simulation of CUDA's caching allocator"
    table = Table(
        gap=1,
        header_style="bold",
        title=Text(title, "bold"),
        title_justify="left",
    )
    table.add_column("", no_wrap=True)
    for name in (
        "step 1\nallocated",
        "\nreserved",
        "worst step\nallocated",
        "\nreserved",
        "\nidle",
        "\nstep",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for kind in found["settings"]:
        at = kind["worst_step"] - 1
        held = [
            kind[key][place]
            for key, place in (
                ("allocated_bytes", 0),
                ("reserved_bytes", 0),
                ("allocated_bytes", at),
                ("reserved_bytes", at),
                ("idle_bytes", at),
            )
        ]
        table.add_row(printable_line(kind["name"]), *map(look.need, held), str(at + 1))
    for name, counts in _device_counter_rows(found):
        table.add_row(name, *map(look.need, counts[:-1]), str(counts[-1]))
    yield table
    yield Text(f"{_fragmentation_verdict(found, look)} By {how} that never runs out.")


def _device_counter_rows(found: Mapping[str, Any]) -> Iterator[tuple[str, list[int]]]:
    """The device's own counters, where it has them, in the same columns."""
    steps = found.get("counted") or []
    if steps:
        at = max(range(len(steps)), key=lambda number: steps[number]["reserved_bytes"])
        first, worst = steps[0], steps[at]
        sizes = (
            first["allocated_bytes"],
            first["reserved_bytes"],
            worst["allocated_bytes"],
            worst["reserved_bytes"],
            worst["inactive_bytes"],
        )
        yield "counted by the device", [*sizes, at + 1]


def _fragmentation_verdict(found: Mapping[str, Any], look: Look) -> str:
    """First step against worst, and the setting that keeps the worst smallest."""
    plain = found["settings"][0]
    first, worst = plain["reserved_bytes"][0], max(plain["reserved_bytes"])
    best = min(found["settings"], key=lambda kind: max(kind["reserved_bytes"]))
    least = max(best["reserved_bytes"])
    grown = (
        f"Step {plain['worst_step']} reserves {look.need(worst - first)} more than step 1: a job that "
        "gets through step 1 may still run out later."
    )
    same = "No step reserves more than step 1."
    helps = f" Least with {best['name']}: {look.need(least)}." if least < worst else ""
    return (grown if worst > first else same) + helps
