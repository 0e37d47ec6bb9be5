"""What ``train`` and ``infer`` share: the question from flags and a plan file, the answer, the exit code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memsheet.budget import Answer
from memsheet.cli import screen
from memsheet.cli.flags import plan_flag_values
from memsheet.cli.forms import check_form, write_form
from memsheet.cli.line import Given
from memsheet.errors import InputError, Problem, input_error, raise_if_problems
from memsheet.guard import MAX_JSON_BYTES, parse_json, read_json, read_stdin
from memsheet.patterns import late_pattern
from memsheet.plan.values import parse_whole_number
from memsheet.plan.words import in_our_words
from memsheet.report.shared.exit_codes import EXIT
from memsheet.units import parse_bytes

_FUNCTION = late_pattern(r".+\.py:\w+")


def run_job(ask: Callable[..., Answer], asked: Given) -> int:
    """Ask, print, and return the verdict's exit code."""
    decimal = screen.wants_decimal_units(asked.units)
    check_form("train", asked.output)
    return print_answer(
        ask(**job_arguments(asked)),
        json=asked.json,
        full=asked.full,
        decimal=decimal,
        form=asked.output,
        typed=() if asked.json or asked.output else typed_options(asked, ask.__name__),
    )


def typed_options(asked: Given, task: str) -> tuple[tuple[str, Any, Mapping[str, Any]], ...]:
    """The options of a plan, the model and the machines that a line gives, each with the keys that it comes
    to.
    """
    from memsheet.report.shared.typed_changes import MACHINES

    machines = tuple(
        (name, value, {name: value}) for name in MACHINES if (value := getattr(asked, name, None)) is not None
    )
    options = in_our_words(
        plan_flag_values(asked), task, read_plan(asked.plan) if asked.plan not in (None, "-") else None
    ).options
    return tuple(sorted((*options, *machines), key=lambda option: option[0] != "model"))


def options_beside_files(asked: Given) -> tuple[tuple[str, Any, Mapping[str, Any]], ...]:
    """The same of a line beside files, whose words are of either task, whichever knows them all; the machines
    alone where neither does.
    """
    for task in ("infer", "train"):
        try:
            return typed_options(asked, task)
        except InputError:
            continue
    return ()


def print_answer(
    answer: Answer,
    *,
    json: bool,
    full: bool,
    decimal: bool,
    form: str | None = None,
    curve: Callable[[Any], Any] | None = None,
    typed: tuple[Any, ...] = (),
) -> int:
    """Print an answer, for a program or for a person, and return its exit code. ``curve`` draws memory over
    the step for a look; ``typed``: the options of the line; ``form``: one of those of
    report.page.formats in place of the screen.
    """
    if form is not None:
        write_form("train", form, answer)
    elif json:
        from memsheet.report.json.sheet import sheet_document

        screen.write_json(sheet_document(answer))
    else:
        from memsheet.report.screen.table import render_answer

        look = screen.terminal_look(decimal=decimal, full=full, typed=typed)
        screen.write_stdout(render_answer(answer, look, curve(look) if curve else None))
    return EXIT[answer.verdict.result] if answer.verdict else 0


def job_arguments(asked: Given) -> dict[str, Any]:
    """The arguments of ``memsheet.train`` and ``memsheet.infer``. A plan file may name the model and the GPUs
    too.
    """
    plan = read_plan(asked.plan) if asked.plan else None
    if plan and asked.parameters is not None:
        plan = {key: value for key, value in plan.items() if key != "model"}
    where = {
        "nodes": parse_positive_int("nodes", asked.nodes),
        "per_node": parse_positive_int("per_node", asked.per_node),
    }
    machines = {**where, "host_memory": asked.host_memory}
    if asked.gpus is None and asked.cluster is None and not (plan and plan.get("gpus")):
        raise_if_problems(
            Problem(
                field=name,
                value=value,
                reason="says nothing without GPUs",
                hint="for example --gpus 8xH100-80GB",
            )
            for name, value in machines.items()
            if value is not None
        )
    texts = {
        "gpus": asked.gpus,
        "host_memory": asked.host_memory,
        "cluster": asked.cluster,
        "parameters": asked.parameters,
    }
    return {"model": asked.model, "plan": plan, **where, **texts, **plan_flag_values(asked)}


def runnable_job_arguments(line: Given) -> tuple[dict[str, Any], bool]:
    """The question to code that is really run, and whether it is a person's own step, by its file
    (``FILE.py:FUNCTION``).
    """
    asked, model = job_arguments(line), line.model
    if asked.pop("parameters", None) is not None:
        raise input_error("parameters", None, "says nothing that could be run", "name a model")
    if model is None or not _FUNCTION.fullmatch(model):
        if model is not None and model.endswith(".py"):
            raise input_error(
                "model",
                model,
                "is Python, and which function makes the step is not said",
                f"{model}:FUNCTION",
            )
        return asked, False
    given = [key for key, value in asked.items() if value is not None and key != "model"]
    if given:
        raise input_error(
            given[0], asked[given[0]], "has no meaning for a step of one's own", "say it in the step's code"
        )
    return asked, True


def read_plan(name: str) -> Mapping[str, Any]:
    """The plan in a file, or on stdin for ``-``."""
    if name != "-":
        from pathlib import Path

        return read_json(Path(name))
    found = parse_json(read_stdin("plan", MAX_JSON_BYTES), "plan")
    if not isinstance(found, dict):
        raise input_error("plan", found, "holds no object of keys and values at its top level")
    return found


def parse_positive_int(field: str, text: str | None) -> int | None:
    if text is None:
        return None
    found = parse_whole_number(text)
    if isinstance(found, str) or found < 1:
        raise input_error(field, text, "is not a positive whole number")
    return found


def parse_nonzero_bytes(field: str, text: str | None) -> int | None:
    """Bytes, where any were said; none at all are refused."""
    found = None if text is None else parse_bytes(text, field)
    if found == 0:
        raise input_error(field, text, "is nothing")
    return found
