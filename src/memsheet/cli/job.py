"""What ``train`` and ``infer`` share: the question from flags and a plan file, the answer, the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from memsheet.budget import Answer, Result
from memsheet.cli import screen
from memsheet.cli.flags import JobFlags, OutputFlags, values, whole
from memsheet.errors import refuse
from memsheet.readers.guard import MAX_JSON_BYTES, parse_json, read_json
from memsheet.units import parse_bytes

EXIT = {Result.FITS: 0, Result.DOES_NOT_FIT: 10, Result.UNCERTAIN: 11}
MOST_PARAMETERS = 10**16
"""A thousand times the largest model published; a larger count is a typing error."""


def run(ask: Callable[..., Answer], model: str | None, plan_flags: Any, job: JobFlags | None, output: OutputFlags | None) -> int:
    """Ask, print, and return the verdict's exit code."""
    job, output = job or JobFlags(), output or OutputFlags()
    decimal = screen.decimal(output.units)
    answer = ask(**question(model, plan_flags, job))
    if output.json:
        from memsheet.report.json import sheet_document

        screen.write_json(sheet_document(answer))
    else:
        from memsheet.report.table import Look, render

        look = Look(
            width=screen.width(), decimal=decimal, full=output.full, colour=screen.colour(), ascii=screen.plain_ascii()
        )  # fmt: skip
        screen.write(render(answer, look))
    return EXIT[answer.verdict.result] if answer.verdict else 0


def question(model: str | None, plan_flags: Any, job: JobFlags) -> dict[str, Any]:
    """The arguments of ``memsheet.train`` and ``memsheet.infer``. A plan file may name the model and the GPUs too."""
    plan = read_plan(job.plan) if job.plan else None
    count = parameter_count(job.parameters) if job.parameters is not None else None
    named = model if model is not None else plan.get("model") if plan and count is None else None
    if named is None and count is None:
        raise refuse("model", None, "is missing", "name one (`memsheet models` lists the bundled ones), or give --parameters 7e9")
    if model is not None and count is not None:
        raise refuse("parameters", job.parameters, f"and the model {model} exclude one another", "leave one of them out")
    arguments = {
        "gpus": job.gpus, "nodes": number("nodes", job.nodes), "per_node": number("per_node", job.per_node), "plan": plan,
        "host_memory": None if job.host_memory is None else parse_bytes(job.host_memory, "host_memory"), "parameters": count,
    }  # fmt: skip
    return {"model": named, **arguments, **values(plan_flags)}


def read_plan(name: str) -> Mapping[str, Any]:
    """The plan in a file, or on stdin for ``-``."""
    if name != "-":
        return read_json(Path(name))
    data = sys.stdin.buffer.read(MAX_JSON_BYTES + 1)
    found = parse_json(data, "plan")
    if not isinstance(found, dict):
        raise refuse("plan", found, "holds no object of keys and values at its top level")
    return found


def number(field: str, text: str | None) -> int | None:
    if text is None:
        return None
    found = whole(text)
    if isinstance(found, str) or found < 1:
        raise refuse(field, text, "is not a positive whole number")
    return found


def parameter_count(text: str) -> int:
    """``7e9`` as a whole number, exactly: a count never passes through a float."""
    try:
        count = Decimal(text)
    except InvalidOperation:
        raise refuse("parameters", text, "is not a number", "write for example 7e9") from None
    if not count.is_finite() or not 0 < count <= MOST_PARAMETERS:
        raise refuse("parameters", text, f"is outside 1 to {MOST_PARAMETERS:.0e}")
    if count != count.to_integral_value():
        raise refuse("parameters", text, "is not a whole number")
    return int(count)
