"""The JSON Schemas, made from the documents of ``report.json``. ``python -m
memsheet.report.schema.documents`` writes them into docs/reference.

pydantic is imported here, so nothing on the way to an answer imports this module.
"""

from __future__ import annotations

import json
import sys
from functools import cache, reduce
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model

from memsheet.plan.check import RULES, Rule
from memsheet.report.json.change import Change
from memsheet.report.json.checked import Checked, Launches
from memsheet.report.json.diagnosis import Diagnosis
from memsheet.report.json.document import RANGE_KEYS, ByteRange, Natural, Plan, document_keys, is_document
from memsheet.report.json.error import ErrorDocument
from memsheet.report.json.job import Job
from memsheet.report.json.plans import Plans
from memsheet.report.json.record import Record
from memsheet.report.json.serve_plans import ServePlans
from memsheet.report.json.sheet import Sheet
from memsheet.report.json.solution import Solution
from memsheet.sheet import PHASE_INSTANT, Instant

FOLDER = Path("docs/reference")
DOCUMENTS: dict[str, type] = {
    "sheet": Sheet, "plan": Plan, "record": Record, "plans": Plans, "solution": Solution, "serve-plans": ServePlans,
    "checked": Checked, "launches": Launches, "change": Change, "error": ErrorDocument, "diagnosis": Diagnosis, "job": Job,
}  # fmt: skip


class Strict(BaseModel):
    """No key besides those listed, and no value that only looks like its type."""

    model_config = ConfigDict(extra="forbid", strict=True)


@cache
def document_model(kind: Any) -> type[BaseModel]:
    """A document as the model that its schema is written from, and that takes nothing else."""
    if kind is Plan:
        return _plan_model()
    fields: dict[str, Any] = {}
    for name, key, of, _, optional in document_keys(kind):
        if of is ByteRange:
            fields |= {f"{key}{end}": (model_type(Natural), ...) for end in RANGE_KEYS}
        else:
            held = (model_type(of) | None, None) if optional else (model_type(of), ...)
            fields[name] = (held[0], Field(held[1], alias=key))
    said = "\n\n".join(" ".join(part.split()) for part in (kind.__doc__ or "").split("\n\n"))
    return create_model(
        kind.__name__, __base__=Strict, __doc__=said or None, __module__=kind.__module__, **fields
    )


def model_type(kind: Any) -> Any:
    """The type of a key with every document as its model."""
    origin, args = get_origin(kind), get_args(kind)
    if is_document(kind):
        return document_model(kind)
    if origin in (Union, UnionType):
        found = reduce(or_, map(model_type, args))
        return Annotated[found, Field(discriminator="kind")] if all(map(is_document, args)) else found
    if origin in (list, dict):
        return origin[tuple(map(model_type, args))]
    if kind is Instant:
        return Instant | Annotated[str, Field(pattern=f"^{PHASE_INSTANT.pattern}$")]
    return Annotated[int, Field(ge=0)] if kind == Natural else kind


def _plan_type(rule: Rule) -> Any:
    """The JSON type of one key of a plan. Every key may be null: that leaves it to its default."""
    match rule.kind:
        case "count":
            return Annotated[int, Field(ge=rule.low, le=rule.high)]
        case "counts":
            return list[Annotated[int, Field(ge=0)]]
        case "flag":
            return bool | list[str] if rule.choices else bool
        case "number":
            return Annotated[float, Field(gt=rule.low, le=rule.high)]
        case "share":
            return Annotated[float, Field(ge=0, le=1)]
        case "text" | "dtype":
            return str
        case "texts":
            return list[str]
        case "choice":
            return Literal[rule.choices]
        case _:
            return Any


def _plan_model() -> type[BaseModel]:
    """The vocabulary of plans (``plan.check.RULES``) as a model: dotted keys become objects."""
    groups: dict[str, dict[str, Any]] = {}
    top: dict[str, Any] = {}
    for key, rule in RULES.items():
        group, _, inner = key.rpartition(".")
        if key == "precision.name":
            continue  # written as the value of "precision" itself
        (groups.setdefault(group, {}) if group else top)[inner] = (_plan_type(rule) | None, None)
    for group, members in groups.items():
        made = create_model(group.capitalize(), __base__=Strict, **members)
        named = _plan_type(RULES["precision.name"]) if group == "precision" else None
        top[group] = (made | named | None, None)
    top["schema"] = (Literal["memsheet/plan/1"] | None, None)
    fields: dict[str, Any] = {
        "schema_" if key == "schema" else key: (kind, Field(default, alias=key))
        for key, (kind, default) in top.items()
    }
    return create_model("Plan", __base__=Strict, **fields)


def schema_texts() -> dict[str, str]:
    """File name → the schema's text."""
    return {
        f"{name}.schema.json": json.dumps(document_model(kind).model_json_schema(by_alias=True), indent=1)
        + "\n"
        for name, kind in DOCUMENTS.items()
    }


def write_schemas(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schema_texts().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
