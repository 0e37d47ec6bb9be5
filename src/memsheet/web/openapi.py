"""The API as OpenAPI 3.1, made from the published schemas and the table of options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from memsheet import __version__
from memsheet.questions.asked import ASKED, OBJECT, TEXT, WHOLE, request_schema
from memsheet.web.problems import PROBLEM_JSON

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
        f"/api/v1/{question}": {"post": _operation_schema(question)} for question in ASKED
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


def _operation_schema(question: str) -> dict[str, Any]:
    words, _, _, schema = ASKED[question]
    asked = request_schema(question)
    document = {"$ref": f"#/components/schemas/{schema}"} if schema else OBJECT
    viewed = {"type": "object", "required": ["exit_code", "document", "view"]}
    told = {"anyOf": [document, viewed]} if "view" in asked["properties"] else document
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
