"""Bad input as HTTP tells it: ``application/problem+json`` (RFC 9457)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

PROBLEM_JSON = "application/problem+json"


def problem_document(status: int, detail: str, errors: Any = ()) -> dict[str, Any]:
    """One problem. ``errors``: field, value, reason and hint of everything that is wrong with the input."""
    title = HTTPStatus(status).phrase
    found = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return {**found, "errors": list(errors)} if errors else found


def input_problem(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document of memsheet/error/1 as a problem: 422 of an input that has no answer, 500 of a fault of
    memsheet's own.
    """
    problems = document["problems"]
    first = problems[0]
    shown = "" if first["value"] is None else f" = {first['value']}"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    status = 500 if document["error"] == "internal error" else 422
    return problem_document(status, f"{first['field']}{shown}: {first['reason']}{more}", problems)


def problem_response(status: int, detail: str) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """The same as status, headers and body of an answer."""
    body = json.dumps(problem_document(status, detail)).encode()
    headers = [(b"content-type", PROBLEM_JSON.encode()), (b"content-length", str(len(body)).encode())]
    return status, headers, body
