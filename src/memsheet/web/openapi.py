"""The API as OpenAPI 3.1, made from the published schemas and the table of options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from memsheet import __version__
from memsheet.catalog import model_names
from memsheet.questions.form import form_document
from memsheet.web.problems import PROBLEM_JSON

TYPES = {
    "count": ["integer", "string"],
    "flag": ["boolean"],
    "number": ["number", "string"],
    "share": ["number", "string"],
    "counts": ["string"],
    "texts": ["string"],
}
"""JSON types of an option by its kind; all others are texts."""
TEXT, WHOLE, OBJECT = {"type": "string"}, {"type": "integer"}, {"type": "object"}
MODEL = {
    "anyOf": [{"enum": sorted(model_names())}, {"type": ["string", "object"]}],
    "description": "A bundled name, a hub id, or a config.json as it is.",
}
GPUS = {
    "anyOf": [
        {"pattern": "^[1-9][0-9]?x(T4|L4|A100-80GB|H100-80GB|RTX4090)$", "type": "string"},
        {"type": "string"},
    ],
    "description": "Cards: 8xH100-80GB.",
}
JOB: Mapping[str, Any] = {
    "model": MODEL,
    "gpus": GPUS,
    "nodes": WHOLE,
    "per_node": WHOLE,
    "host_memory": TEXT,
    "plan": OBJECT,
    "cluster": OBJECT,
    "fix": {"type": "boolean"},
    "slack": {"enum": ["replay", "bounds", "share"]},
    "view": {"type": "boolean", "description": "Beside the document the words of the screen."},
}
VALUES = {"type": "array", "items": {"type": ["integer", "string"]}}
FILES = {
    "type": "array",
    "items": {"type": "object", "properties": {"name": TEXT, "text": TEXT}, "required": ["name", "text"]},
}
SERVED = {"context": WHOLE, "users": WHOLE, "ttft": TEXT, "tpot": TEXT, "any_precision": {"type": "boolean"}}
ASKED: Mapping[str, tuple[str, Mapping[str, Any], tuple[str, ...], str]] = {
    "train": ("Does this training job fit, and what takes the room?", JOB, (), "sheet"),
    "infer": ("Does this model fit for inference, and how much cache is left?", JOB, (), "sheet"),
    "solve": ("The longest sequence, largest micro-batch, fewest GPUs or largest model that fits.", {"what": TEXT, "most": WHOLE, **JOB}, ("what",), "solution"),
    "plan": ("The fastest plans that fit, of every legal one.", {**JOB, "method": TEXT, "top": WHOLE}, (), "plans"),
    "plan-serving": ("How to serve a model on a cluster.", {**JOB, **SERVED}, (), "serve-plans"),
    "grid": ("A table of two options: what a GPU needs, and whether it fits.", {"task": TEXT, "x": TEXT, "y": TEXT, "xs": VALUES, "ys": VALUES, **JOB}, (), ""),
    "check": ("Configuration files of an engine: their sheet, verdict and mistakes.", {"files": FILES, "model_otherwise": MODEL, **JOB}, ("files",), "checked"),
    "export": ("A plan as the configuration of the engine that runs it.", {"plan": OBJECT, "to": TEXT, "pick": WHOLE}, ("plan", "to"), ""),
    "compare": ("Two sheets side by side.", {"left": OBJECT, "right": OBJECT, "instant": TEXT, "rank": WHOLE}, ("left", "right"), ""),
    "explain": ("What a word on a sheet means, with its source.", {"term": TEXT}, ("term",), ""),
    "read": ("What a pasted text is, and the question that asks about it.", {"text": TEXT}, ("text",), ""),
}  # fmt: skip
"""Each question: what it is, its keys, those that it needs, and the schema of its document."""
OF_PLAN = ("train", "infer", "solve", "plan", "plan-serving", "grid", "check")
"""Questions that take every option of a plan."""
LISTED = {
    "models": "The bundled models.", "gpus": "The devices, and what a framework gets of each.",
    "form": "Every option with its words and choices.",
}  # fmt: skip


@cache
def openapi_document() -> dict[str, Any]:
    """The description of the API."""
    schemas = dict[str, Any]()
    for name in _published():
        schemas |= _component_schemas(name)
    schemas["problem"] = _problem_schema()
    paths: dict[str, Any] = {
        f"/api/v1/{question}": {"post": _asked_operation(question)} for question in ASKED
    }
    paths |= {f"/api/v1/{name}": {"get": _listed_operation(name, words)} for name, words in LISTED.items()}
    paths["/healthz"] = {"get": _listed_operation("healthz", "Whether the server answers.")}
    return {
        "openapi": "3.1.0",
        "info": {"title": "memsheet", "version": __version__, "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": schemas},
    }  # fmt: skip


@cache
def _published() -> Mapping[str, str]:
    from memsheet.report.schema.documents import schema_texts

    return {name.removesuffix(".schema.json"): text for name, text in schema_texts().items()}


def published_schema(name: str) -> str | None:
    """The JSON Schema of a document by its name ("sheet"), None for no such one."""
    return _published().get(name)


def _component_schemas(name: str) -> dict[str, Any]:
    """A published schema and those inside it, each by a name of its own."""
    text = _published()[name].replace('"#/$defs/', f'"#/components/schemas/{name}.')
    found = json.loads(text)
    inside = found.pop("$defs", {})
    return {name: found, **{f"{name}.{part}": schema for part, schema in inside.items()}}


def _option_schemas() -> dict[str, Any]:
    return {row["name"]: _option_schema(row) for row in form_document()["options"]}


def _option_schema(row: Mapping[str, Any]) -> dict[str, Any]:
    offered = [{"enum": row["choices"]}] if row["choices"] else []
    return {
        "anyOf": [*offered, {"type": TYPES.get(row["kind"], ["string"])}],
        "description": row["words"],
    }


def _asked_operation(question: str) -> dict[str, Any]:
    words, keys, needs, schema = ASKED[question]
    properties = {**(_option_schemas() if question in OF_PLAN else {}), **keys}
    asked = {"type": "object", "properties": properties, **({"required": list(needs)} if needs else {})}
    document = {"$ref": f"#/components/schemas/{schema}"} if schema else OBJECT
    viewed = {"type": "object", "required": ["exit_code", "document", "view"]}
    told = {"anyOf": [document, viewed]} if "view" in properties else document
    exits = {"memsheet-exit": {"schema": WHOLE, "description": "0 fits, 10 does not fit, 11 uncertain."}}
    return {
        "operationId": question,
        "summary": words,
        "requestBody": {"required": True, "content": {"application/json": {"schema": asked}}},
        "responses": {
            "200": {"description": "The answer.", "headers": exits, "content": {"application/json": {"schema": told}}},
            **{code: _problem_answer(said) for code, said in REFUSALS.items()},
        },
    }  # fmt: skip


REFUSALS = {
    "403": "A page of another origin.", "413": "Too large.", "415": "Not JSON.", "421": "Another host's.",
    "422": "Bad input: every problem with its field, value, reason and hint.", "429": "Too many at once.",
}  # fmt: skip


def _problem_answer(words: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/problem"}
    return {"description": words, "content": {PROBLEM_JSON: {"schema": schema}}}


def _listed_operation(name: str, words: str) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": words,
        "responses": {
            "200": {"description": words, "content": {"application/json": {"schema": OBJECT}}},
            "421": _problem_answer(REFUSALS["421"]),
        },
    }


def _problem_schema() -> dict[str, Any]:
    held = {"type": ["string", "integer", "number", "boolean", "null"]}
    row = {
        "type": "object",
        "properties": {"field": TEXT, "value": held, "reason": TEXT, "hint": TEXT},
        "required": ["field", "reason", "hint"],
    }
    return {
        "type": "object",
        "properties": {"type": TEXT, "title": TEXT, "status": WHOLE, "detail": TEXT, "errors": {"type": "array", "items": row}},
        "required": ["title", "status", "detail"],
    }  # fmt: skip
