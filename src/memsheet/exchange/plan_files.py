"""A plan as the files of a format, read back before anyone sees them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from memsheet.errors import Problem, input_error, raise_if_problems
from memsheet.exchange import NAMES, find_format
from memsheet.exchange.shared.dotted_places import nest_dotted_keys
from memsheet.exchange.shared.file_format import Format, Values, read_format_values
from memsheet.plan.plan import Schedule

DESCRIBED = ("schema", "model", "gpus", "task", "engine_version")
"""Keys of a plan's document that no file needs to say."""
DERIVED = ("reshard_after_forward", "precision.name", "seq_len_kind")
Files = dict[str, str]
MOST_COMMENT = 300
GRADIENT_SYNC = "gradient_sync"
SPREAD = ("schedule", "mesh.pp", "layers_per_stage", "end_stages")
"""What a script says that loads a model over several cards (``device_map``), for formats that leave it to
one.
"""


def of_version(form: Format, asked: Values) -> Format:
    """The format that the engine's version has, where an older one has another."""
    older = form.older.get(str(asked.get("engine_version")))
    return find_format(older) if older else form


def write_format_files(form: Format, asked: Values, comments: Iterable[str] = ()) -> Files:
    """The files of one format. Raises InputError for a plan that its engine cannot run as it stands."""
    form = of_version(form, asked)
    if asked.get("engine") not in form.engines:
        own = _own_formats(str(asked.get("engine")), str(asked.get("task")))
        raise input_error(
            "engine",
            asked.get("engine"),
            f"is not what {form.name} runs",
            f"it runs {', '.join(form.engines)}{own}",
        )
    values = values_of(form, asked)
    if problems := _plan_problems(form, asked):
        from memsheet.exchange.flags_to_export import with_flags_to_export

        found, made = partial(_plan_problems, form), partial(engine_request, form)
        raise_if_problems(with_flags_to_export(problems, asked, found, made, form.name))
    lines = [
        _printable_comment(line)
        for line in (*comments, f"written for {form.tested}", *form.notes, *engine_differences(form, asked))
    ]
    text = form.compose(values, asked) if form.compose else RENDER[form.kind](nest_dotted_keys(values))
    files = {form.file: _prepend_comments(form.kind, lines, text)}
    if form.more is not None:
        files |= {
            name: _prepend_comments("python", lines, held)
            for name, held in form.more(nest_dotted_keys(values)).items()
        }
    return files


def _own_formats(engine: str, task: str) -> str:
    """The formats that an engine's plans are written in, in words."""
    found = (
        name
        for name in NAMES
        if engine in (form := find_format(name)).engines and _can_write_task(form, task)
    )
    names = ", ".join(found)
    return f"; {engine}'s plans are written with --to {names}" if names else ""


def _can_write_task(form: Format, task: str) -> bool:
    """Whether plans of a task are written in a format."""
    return form.said.get("task") in (None, task) and (bool(form.compose) or form.kind in RENDER)


def engine_request(form: Format, asked: Values) -> Mapping[str, Any]:
    """What the engine runs of the files that are written of a plan."""
    return read_format_values(form, values_of(form, asked)).request


def _plan_problems(form: Format, asked: Values) -> list[Problem]:
    """What of a plan the format's files do not say, or say otherwise."""
    made = engine_request(form, asked)
    return [
        *form.problems(asked),
        *_unsaid_key_problems(form, asked, made),
        *_changed_key_problems(form, asked, made),
    ]


def _printable_comment(line: str) -> str:
    """One line of a comment, whatever a name in it holds."""
    return "".join(c if c.isprintable() else "?" for c in line[:MOST_COMMENT])


def values_of(form: Format, asked: Values) -> Values:
    """What is asked as the file's values."""
    return {
        **form.fixed(asked),
        **{key.at: held for key in form.keys if (held := key.write(asked)) is not None},
    }


def engine_differences(form: Format, asked: Values) -> Iterator[str]:
    """What the engine runs otherwise than the plan says, in words."""
    made = read_format_values(form, values_of(form, asked)).request
    for key, where in form.differs.items():
        if key in made and made[key] != asked.get(key):
            yield f"{key} = {asked.get(key)} in the plan, {made[key]} here: {where}"


def _unsaid_key_problems(form: Format, asked: Values, made: Mapping[str, Any]) -> Iterator[Problem]:
    """Keys that are asked for and that neither the file nor the training script beside it says."""
    spreads = form.spreads and asked.get("schedule") == Schedule.NAIVE.value
    beside = {*form.beside, *(SPREAD if spreads else ())}
    for key, value in asked.items():
        left_out = key[0] in "@?" or key in DESCRIBED or key in DERIVED or key in made or beside & {key, "*"}
        own = key == GRADIENT_SYNC and form.gradient_sync in (
            "",
            value,
        )  # what the tool does, or another file
        if not left_out and not own and not says_nothing(key, value):
            yield Problem(
                field=key,
                value=value,
                reason=f"cannot be said to {form.tested}",
                hint="another format, or leave it out",
            )


def says_nothing(key: str, value: Any) -> bool:
    """Whether a key is at what every engine does without being told."""
    return (
        value in (None, False, 0, "none", [], ())
        or (value == 1 and (key.startswith("mesh.") or key == "vocab_multiple"))
        or (value == "uint8" and key == "quantization.storage")
    )


def _changed_key_problems(form: Format, asked: Values, made: Mapping[str, Any]) -> Iterator[Problem]:
    """Where what is written reads as another plan."""
    for key, value in made.items():
        wanted = asked.get(key)
        same = _says_the_same(value, wanted) or (says_nothing(key, value) and says_nothing(key, wanted))
        if not same and not key.startswith("?") and key not in form.differs:
            yield Problem(
                field=key, value=wanted, reason=f"cannot be said to {form.tested}, which would run {value}"
            )


def _says_the_same(value: Any, wanted: Any) -> bool:
    """Names of layers stand in any order."""
    lists = isinstance(value, list) and isinstance(wanted, list)
    return sorted(map(str, value)) == sorted(map(str, wanted)) if lists else bool(value == wanted)


def _render_json(tree: Mapping[str, Any]) -> str:
    return json.dumps(tree, indent=2, allow_nan=False) + "\n"


def _render_yaml(tree: Mapping[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump(tree, sort_keys=False, default_flow_style=False, allow_unicode=False))


RENDER: dict[str, Callable[[Mapping[str, Any]], str]] = {"json": _render_json, "yaml": _render_yaml}


def _prepend_comments(kind: str, lines: Iterable[str], text: str) -> str:
    """Comments on top, where the format has any; after the first line of a script."""
    block = "".join(f"# {line.encode('ascii', 'replace').decode()}\n" for line in lines)
    if kind == "json":
        return text
    first, _, rest = text.partition("\n")
    return f"{first}\n{block}{rest}" if first.startswith("#!") else block + text
