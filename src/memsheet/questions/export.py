"""A plan as the configuration of the engine that runs it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsheet import budget
from memsheet.budget import Answer
from memsheet.errors import InputError, Problem, input_error, raise_if_problems
from memsheet.exchange import find_format, format_to_write
from memsheet.exchange.joined_files import is_key_set, written_answer
from memsheet.exchange.plan_files import (
    Files,
    engine_differences,
    engine_request,
    of_version,
    says_nothing,
    write_format_files,
)
from memsheet.exchange.shared.dotted_places import nest_dotted_keys
from memsheet.exchange.shared.file_format import Format
from memsheet.frozen import NamedTuple
from memsheet.late import late_functions
from memsheet.plan.check import RULES, flatten_document
from memsheet.plan.document import PLAN, SHEET, plan_document
from memsheet.plan.plan import Schedule
from memsheet.plan.workload import Serving
from memsheet.questions import accounted
from memsheet.questions.question_parts import plan_document_of
from memsheet.report.json.sheet import sheet_document
from memsheet.report.shared.json_text import dump_json_line
from memsheet.units import format_bytes

if TYPE_CHECKING:
    from memsheet.plan.options import Document, File
with late_functions(__name__):
    from memsheet.report.shared.files import check_folder, write_all


class Exported(NamedTuple):
    """Files by name, the one that was asked for first, and what is to be said about them."""

    files: Files
    notes: tuple[str, ...]
    formats: tuple[Format, ...]


def export(
    plan: budget.Answer | File | Document,
    to: str | Sequence[str],
    *,
    out: str | PathLike[str] | None = None,
    pick: int | None = None,
    force: bool = False,
) -> dict[str, str]:
    """The files that run a plan, name by name, and written into the folder ``out`` where one is named: all of
    them or none.

    ``plan``: an answer, or an object or a file of memsheet/plan/1, plans/1 or sheet/1; ``to``: formats
    ("deepspeed,accelerate"); ``pick``: which plan of several; ``force``: write over files that are there.
    Raises InputError for what a format cannot say.
    """
    exported = exported_files(_plan_or_sheet_document(plan), _format_names(to), pick)
    if out is not None:
        write_files(exported.files, Path(out), force=force)
    return dict(exported.files)


def _format_names(to: Any) -> list[str]:
    names = to.split(",") if isinstance(to, str) else to
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise input_error("to", to, "is no list of names of formats", 'for example "deepspeed,accelerate"')
    return [name.strip() for name in names if name.strip()]


def exported_files(document: Mapping[str, Any], names: Sequence[str], pick: int | None = None) -> Exported:
    """Every file of some formats for a plan, with the plan and its sheet."""
    formats, notes = [format_to_write(name) for name in names], list[str]()
    if not formats:
        raise input_error("to", None, "names no format", "for example --to deepspeed")
    engines = [engine for engine in formats[0].engines if all(engine in form.engines for form in formats)]
    document = pick_plan(document, pick, engines, notes)
    answer = (accounted.infer if document.get("task") == "infer" else accounted.train)(
        plan=document, fix=False
    )
    written = plan_document(
        answer.plan, model=str(document.get("model") or answer.model.name), cluster=answer.cluster
    )
    asked = written_answer(answer, written)
    if isinstance(answer.plan.workload, Serving):
        asked = _as_released(answer, asked)
    formats = [of_version(form, asked) for form in formats]
    named = [form.name for form in formats]
    formats += [find_format(name) for name in _companion_formats(formats, asked) if name not in named]
    left = tuple(left_out_lines(formats, asked, written))
    comments, notes = (*sheet_summary_lines(answer), *left), [*notes, *left]
    files: Files = {}
    for form in formats:
        files |= write_format_files(form, _named_by_hub(form, asked), comments)
    notes += [note for form in formats for note in engine_differences(form, asked)]
    files |= {
        PLAN: dump_json_line(written, indent=2),
        SHEET: dump_json_line({**sheet_document(answer), "plan": written}, indent=2),
    }
    return Exported(files, tuple(notes), tuple(formats))


BY_LAUNCH = ("schema", "model", "gpus", "task", "engine", "engine_version", "gradient_sync")
"""Keys of a plan that whoever starts it settles, or the engine's own code."""
LINE = 100
"""Characters of a comment's line."""


def left_out_lines(
    formats: Sequence[Format], asked: Mapping[str, Any], written: Mapping[str, Any]
) -> Iterator[str]:
    """What a plan's sheet rests on and none of its files says, in lines: their request is resolved again and
    compared with the plan.
    """
    if asked["task"] == "infer":
        return
    said: dict[str, Any] = {}
    for form in formats:
        said |= engine_request(form, asked)
    weak = {key.removeprefix("?"): value for key, value in said.items() if key.startswith("?")}
    said = {key: value for key, value in said.items() if not key.startswith("?")}
    said |= {key: value for key, value in weak.items() if not is_key_set(key, said)}
    keys = _unsaid_plan_keys(said, written)
    if not keys:
        return
    yield "the sheet rests on these, which no file here says: the training script or its environment must"
    if asked.get("schedule") == Schedule.NAIVE.value:
        yield '  the model is loaded with device_map="auto", by one process that no launcher starts'
    line = ""
    for key in keys:
        one = f"{key} = {_typed_value(asked[key])}"
        if line and len(line) + len(one) > LINE:
            yield f"  {line}"
            line = ""
        line = f"{line}; {one}" if line else one
    yield f"  {line}"


def _typed_value(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _unsaid_plan_keys(said: Mapping[str, Any], written: Mapping[str, Any]) -> list[str]:
    """Keys of the plan that another value has where only its files, and the ranks, say what to run."""
    flat = {key: value for key, value in flatten_document(written).items() if value is not None}
    given = {key: flat[key] for key in flat if key in BY_LAUNCH or key.startswith("mesh.")}
    given |= {key: value for key, value in said.items() if key in RULES}
    sizes = [key for key in ("seq_len", "microbatch", "global_batch") if key in flat and key not in said]
    sizes = [key for key in sizes if key != "global_batch" or "@accumulation" not in said]
    given |= {key: flat[key] for key in ("seq_len", "microbatch", "global_batch") if key in flat}
    try:
        made = accounted.train(plan=nest_dotted_keys(given), fix=False)
    except InputError:  # no plan by itself: whatever is unsaid counts
        unsaid = (key for key in flat if key not in said and key not in given)
        return [key for key in unsaid if not says_nothing(key, flat[key])]
    read = flatten_document(
        plan_document(made.plan, model=str(written.get("model") or ""), cluster=made.cluster)
    )
    other = (key for key in flat if key not in given and read.get(key) != flat[key])
    return [*sizes, *(key for key in other if flat[key] != [] and not _is_no_share(flat[key]))]


def _is_no_share(value: Any) -> bool:
    return isinstance(value, float) and not value


def _plan_or_sheet_document(plan: Any) -> Mapping[str, Any]:
    if isinstance(plan, budget.Answer):
        return sheet_document(plan)
    if plan is None:
        raise input_error("plan", None, "is missing", "a file of memsheet/plan/1")
    return plan_document_of(plan)


def _checkpoint_folder(name: str) -> str:
    """What an engine loads: the folder of a configuration."""
    inside = name.endswith((".safetensors", ".safetensors.index.json")) or Path(name).name == "config.json"
    return str(Path(name).parent) if inside else name


def _as_released(answer: Answer, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked of a server: the model by the hub's name, and no quantization where that is the
    checkpoint's own, which it reads by itself.
    """
    stored, quantized = answer.model.quantization, answer.plan.quantization
    own = (
        stored
        and quantized
        and (stored.weights, tuple(stored.skip)) == (quantized.weights.name, tuple(quantized.skip))
    )
    kept = {key: value for key, value in asked.items() if not (own and key.startswith("quantization."))}
    drafts = {key: _on_the_hub(kept[key]) for key in ("speculative.model",) if kept.get(key)}
    return {**kept, **drafts, "@model": _checkpoint_folder(_on_the_hub(asked["@model"]))}


def _companion_formats(formats: Sequence[Format], asked: Mapping[str, Any]) -> list[str]:
    """Formats of the files that others name or are launched with."""
    return list(dict.fromkeys(name for form in formats for name in form.along(asked)))


def _named_by_hub(form: Format, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is asked of a format, whose file may name the model: then as the hub does."""
    names_it = asked["task"] == "train" and any(key.says == "@model" for key in form.keys)
    return {**asked, "@model": _checkpoint_folder(_on_the_hub(asked["@model"]))} if names_it else asked


def _on_the_hub(name: str) -> str:
    """The name that a server finds a bundled model by: the hub's, which is the first of its other names; any
    other name as it is.
    """
    from memsheet.catalog import find_model

    return next((alias for alias in (find_model(name) or {}).get("aliases", ()) if "/" in alias), name)


def pick_plan(
    document: Mapping[str, Any],
    number: int | None,
    engines: Sequence[str] = (),
    notes: list[str] | None = None,
) -> Mapping[str, Any]:
    """The plan in a document of plans, of a sheet, or itself; of several the best that one of ``engines``
    runs, where no number is given. ``notes`` gets what is said about that choice. Raises InputError where
    there is none of that number.
    """
    if "plans" in document:
        plans = document["plans"]
        if number is None and (fitting := _best_plan_for_engines(document, engines)) is not None:
            if notes is not None and (line := _substitute_plan_note(plans, fitting)):
                notes.append(line)
            plans, number = [fitting], 1
        count = len(plans) if isinstance(plans, list) else 0
        if not 1 <= (number or 1) <= count:
            raise input_error(
                "pick",
                number or 1,
                f"is none of the {count} plans",
                "fewer, or search again" if count else "no plan fits",
            )
        document = plans[(number or 1) - 1]
    elif number not in (None, 1):
        raise input_error("pick", number, "is of several plans, and there is one", "leave it out")
    found = document.get("plan", document) if isinstance(document, Mapping) else None
    if not isinstance(found, Mapping):
        raise input_error("plan", None, "holds no plan", "`memsheet plan train … --json` writes some")
    return found


def _best_plan_for_engines(document: Mapping[str, Any], engines: Sequence[str]) -> Any:
    """The best plan of a search that one of some engines runs; None where there is none, or its first one is
    it.
    """
    best = document.get("by_engine")
    others = [best[engine] for engine in engines if engine in best] if isinstance(best, Mapping) else []
    every = [*document["plans"], *others] if isinstance(document["plans"], list) else []
    return next(
        (one for one in every if isinstance(one, Mapping) and _plan_engine_name(one) in engines), None
    )


def _substitute_plan_note(plans: Any, taken: Mapping[str, Any]) -> str:
    """What is said where the best plan is of an engine that these files are not for: another was taken, and
    what that costs.
    """
    from memsheet.report.shared.plans.words import format_seconds

    best = plans[0] if isinstance(plans, list) and plans and isinstance(plans[0], Mapping) else taken
    if _plan_engine_name(best) == _plan_engine_name(taken):
        return ""
    times = [
        f"{_plan_engine_name(one)}'s takes {format_seconds(float(time))} a step"
        for one in (best, taken)
        if (time := _plan_step_time_s(one)) is not None
    ]
    return (
        f"the best plan of {_plan_engine_name(taken)} is taken, as {_plan_engine_name(best)} does not run "
        "these files"
    ) + (f"; {', '.join(times)}" if len(times) == 2 else "")


def _plan_step_time_s(one: Mapping[str, Any]) -> Any:
    times = one.get("step_time_s")
    value = times.get("value") if isinstance(times, Mapping) else None
    return value if isinstance(value, int | float) else None


def _plan_engine_name(one: Mapping[str, Any]) -> Any:
    plan = one.get("plan")
    return plan.get("engine") if isinstance(plan, Mapping) else None


def sheet_summary_lines(answer: Answer) -> Iterator[str]:
    """The sheet in a few lines, for whoever opens the file."""
    sheet = max(answer.sheets, key=lambda held: held.device.high)
    cluster = f" on {answer.cluster.count}x{answer.cluster.device.name}" if answer.cluster else ""
    yield f"memsheet: {answer.model.name}{cluster}, {answer.plan.engine}"
    if answer.verdict and answer.cluster:
        size = sheet.device
        room = f" of {format_bytes(answer.cluster.device.framework_bytes, headroom=True)}"
        span = f"{format_bytes(int(size.low))} to {format_bytes(int(size.high))}"
        yield (
            f"predicted for each GPU: {format_bytes(int(size.value))}{room} ({span}), peak in "
            f"{sheet.peak_instant.value}: {answer.verdict.result.value.replace('_', ' ')}"
        )
    parts: dict[str, int] = {}
    for item in sheet.items:
        held = item.at.get(sheet.peak_instant)
        if held is not None and held.value:
            parts[item.component.value] = parts.get(item.component.value, 0) + int(held.value)
    for name, size_bytes in sorted(parts.items(), key=lambda pair: -pair[1]):
        yield f"  {format_bytes(size_bytes):>12}  {name.replace('_', ' ')}"


def write_files(files: Files, folder: Path, *, force: bool) -> None:
    """All files, or none where one cannot be."""
    check_folder(folder, "out")
    there = [name for name in files if os.path.lexists(folder / name) and not (folder / name).is_symlink()]
    raise_if_problems(
        Problem(
            field="out",
            value=str(folder / name),
            reason="is there already",
            hint="another folder, or --force",
        )
        for name in there
        if not force
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise input_error("out", str(folder), f"cannot be made: {error.strerror}") from None
    write_all({folder / name: text.encode() for name, text in files.items()}, "out")
