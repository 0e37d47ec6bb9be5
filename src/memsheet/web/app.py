"""The application: a route for every question, the page, and what is said of both."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import StreamingResponse
from starlette.staticfiles import StaticFiles

from memsheet import __version__
from memsheet.errors import InputError, input_error
from memsheet.guard import parse_json
from memsheet.questions.ask import QUESTIONS, ask
from memsheet.questions.form import FIRST
from memsheet.report.json.error import error_document
from memsheet.report.shared.exit_codes import BAD_INPUT, BROKEN
from memsheet.web.limits import JSON, LOOPBACK, MOST_BODY, Guarded
from memsheet.web.openapi import openapi_document, published_schema
from memsheet.web.problems import PROBLEM_JSON, input_problem, problem_document
from memsheet.web.searches import SLOW, search_events

STATIC = Path(__file__).with_name("static")
API = "/api/v1"
AT_ONCE, REMEMBERED, MOST_KEPT = 8, 512, 2**18
"""Answers in flight, answers kept, and the bytes of the largest that is."""
LISTS = ("models", "gpus", "form")
"""Questions without an argument, which are read with GET."""
EVENTS = "text/event-stream"
MOST_DEPTH = 32


class Answers:
    """Answers that were given, by their request: a question has the same answer until the next release."""

    def __init__(self) -> None:
        self.kept: OrderedDict[bytes, tuple[int, bytes]] = OrderedDict()
        self.flying = 0

    async def answer(self, request: Mapping[str, Any]) -> tuple[int, bytes]:
        """The exit code and the answer of ``ask`` as JSON."""
        key = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).digest()
        if key in self.kept:
            self.kept.move_to_end(key)
            return self.kept[key]
        self.flying += 1
        try:
            found = await run_in_threadpool(ask, request)
        finally:
            self.flying -= 1
        code, body = int(found["exit_code"]), _json_bytes(found)
        if code not in (BAD_INPUT, BROKEN) and len(body) <= MOST_KEPT:
            self.kept[key] = (code, body)
            while len(self.kept) > REMEMBERED:
                self.kept.popitem(last=False)
        return code, body


def make_app(hosts: tuple[str, ...] = LOOPBACK) -> Guarded:
    """The application, which answers for these ``hosts`` alone."""
    answers = Answers()

    @asynccontextmanager
    async def answer_before_asked(_: FastAPI) -> AsyncIterator[None]:
        """Answer the page's first questions before a browser asks them: what they load is loaded then."""
        first = asyncio.ensure_future(_ask_first(answers))
        yield
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first

    app = FastAPI(
        title="memsheet",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=answer_before_asked,
    )

    async def answer_question(question: str, request: Request) -> Response:
        if question not in QUESTIONS or question in LISTS:
            return _problem(404, "there is no such question")
        try:
            asked = await _read_body(request)
        except InputError as error:
            return _refused_input(error_document("bad input", BAD_INPUT, error.problems))
        if asked is None:
            return _problem(413, f"a question has {MOST_BODY:,} bytes at most")
        asked = {**asked, "question": question}
        if question in SLOW and EVENTS in request.headers.get("accept", ""):
            return StreamingResponse(
                _event_lines(asked), media_type=EVENTS, headers={"cache-control": "no-store"}
            )
        if answers.flying >= AT_ONCE:
            return _problem(
                429, "as many questions as are answered at once are under way", {"retry-after": "1"}
            )
        if question in SLOW:
            code, body = await _searched_answer(asked)
        else:
            code, body = await answers.answer(asked)
        return _answer_response(code, body, whole=bool(asked.get("view")))

    async def answer_list(question: str, request: Request) -> Response:
        if question not in LISTS:
            return _problem(404, "there is no such list")
        return _cached(await run_in_threadpool(_list_bytes, question), request)

    async def give_schema(name: str, request: Request) -> Response:
        text = published_schema(name)
        return _problem(404, "there is no such schema") if text is None else _cached(text.encode(), request)

    async def give_openapi(request: Request) -> Response:
        return _cached(_json_bytes(openapi_document()), request)

    async def tell_health() -> Response:
        return Response(_json_bytes({"status": "ok", "version": __version__}), media_type=JSON)

    app.add_api_route(f"{API}/{{question}}", answer_question, methods=["POST"])
    app.add_api_route(f"{API}/schema/{{name}}", give_schema, methods=["GET"])
    app.add_api_route(f"{API}/{{question}}", answer_list, methods=["GET"])
    app.add_api_route("/openapi.json", give_openapi, methods=["GET"])
    app.add_api_route("/healthz", tell_health, methods=["GET"])
    app.mount("/", StaticFiles(directory=STATIC, html=True))
    app.add_middleware(GZipMiddleware, minimum_size=1024)
    return Guarded(app, hosts=hosts)


async def _ask_first(answers: Answers) -> None:
    await run_in_threadpool(_list_bytes, "form")
    await answers.answer({**FIRST, "view": True})


async def _read_body(request: Request) -> dict[str, Any] | None:
    """The object of a request, None where it is too large. Raises InputError for what is no object."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY:
            return None
    found = parse_json(bytes(body), "body", max_bytes=MOST_BODY, max_depth=MOST_DEPTH)
    if not isinstance(found, dict):
        raise input_error("body", None, "holds no object of keys and values", '{"model": "llama-3.1-8b"}')
    return found


async def _searched_answer(asked: Mapping[str, Any]) -> tuple[int, bytes]:
    async for event, told in search_events(asked):
        if event == "done":
            return int(told["exit_code"]), _json_bytes(told)
    raise AssertionError("a search ends with an answer")


async def _event_lines(asked: Mapping[str, Any]) -> AsyncIterator[bytes]:
    """A search as server-sent events."""
    events = search_events(asked)
    try:
        async for event, told in events:
            yield b"event: %s\ndata: %s\n\n" % (event.encode(), _json_bytes(told))
    except asyncio.CancelledError:
        await events.aclose()  # type: ignore[attr-defined]
        raise


def _answer_response(code: int, body: bytes, *, whole: bool) -> Response:
    """The document of an answer, or all of it where its view was asked for."""
    found = json.loads(body)
    if found["document"].get("schema") == "memsheet/error/1":
        return _refused_input(found["document"])
    headers = {"memsheet-exit": str(code), "cache-control": "no-store"}
    return Response(body if whole else _json_bytes(found["document"]), media_type=JSON, headers=headers)


def _refused_input(document: Mapping[str, Any]) -> Response:
    problem = input_problem(document)
    headers = {"memsheet-exit": str(document["exit_code"]), "cache-control": "no-store"}
    return Response(_json_bytes(problem), problem["status"], headers, PROBLEM_JSON)


def _problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_json_bytes(problem_document(status, detail)), status, dict(headers or {}), PROBLEM_JSON)


def _cached(body: bytes, request: Request) -> Response:
    """What changes with a release alone."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=JSON, headers=headers)


@cache
def _list_bytes(question: str) -> bytes:
    return _json_bytes(ask({"question": question})["document"])


def _json_bytes(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
