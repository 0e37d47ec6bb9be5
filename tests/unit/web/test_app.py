"""The API over HTTP: what it answers, and what it does not look at."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from memsheet.questions.ask import QUESTIONS, ask
from memsheet.questions.asked import ASKED
from memsheet.questions.form import FIRST, form_document
from memsheet.web.app import LISTS, Answers, _ask_first, make_app
from memsheet.web.limits import HEADERS, MOST_BODY
from memsheet.web.openapi import openapi_document
from memsheet.web.searches import search_events

HOST = "http://127.0.0.1:8630"
JOB = {"model": "llama-3.1-8b", "gpus": "8xH100-80GB", "seq_len": 4096, "fix": False}
APP = make_app()


def fetched(method: str, path: str, **more: Any) -> httpx.Response:
    async def run() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(APP), base_url=HOST) as client:
            return await client.request(method, path, **more)

    return asyncio.run(run())


def test_an_answer_is_the_document() -> None:
    found = fetched("POST", "/api/v1/train", json=JOB)
    assert (found.status_code, found.headers["memsheet-exit"]) == (200, "0")
    assert found.json() == ask({"question": "train", **JOB})["document"]
    assert found.headers["cache-control"] == "no-store"


def test_what_does_not_fit_is_an_answer_too() -> None:
    found = fetched("POST", "/api/v1/train", json={**JOB, "gpus": "1xT4"})
    assert (found.status_code, found.headers["memsheet-exit"]) == (200, "10")


def test_bad_input_is_a_problem_that_names_all_of_it() -> None:
    found = fetched("POST", "/api/v1/train", json={**JOB, "zero": 9, "tp": 3})
    assert (found.status_code, found.headers["content-type"]) == (422, "application/problem+json")
    told = found.json()
    assert told["status"] == 422
    assert {"field", "value", "reason", "hint"} <= told["errors"][0].keys()


@pytest.mark.parametrize(("headers", "status"), [
    ({"host": "evil.example"}, 421), ({"host": "127.0.0.1.evil.example:8630"}, 421), ({"origin": "http://evil.example"}, 403),
    ({"origin": "null"}, 403), ({"content-type": "text/plain"}, 415), ({"content-type": "application/x-www-form-urlencoded"}, 415),
    ({"origin": HOST}, 200), ({"host": "localhost:1"}, 200), ({"content-type": "application/json; charset=utf-8"}, 200),
])  # fmt: skip
def test_only_the_own_page_and_programs_ask(headers: dict[str, str], status: int) -> None:
    given = {"content-type": "application/json", **headers}
    found = fetched("POST", "/api/v1/train", content=json.dumps(JOB), headers=given)
    assert found.status_code == status


def test_another_host_is_told_nothing() -> None:
    assert fetched("GET", "/", headers={"host": "evil.example"}).status_code == 421


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"3",
        b"{",
        b'{"a": NaN}',
        b'{"a": 1, "a": 2}',
        b"\xff",
        b"[" * 100,
        b'{"a":' * 40 + b"1" + b"}" * 40,
    ],
)
def test_what_is_no_object_is_bad_input(body: bytes) -> None:
    found = fetched("POST", "/api/v1/train", content=body, headers={"content-type": "application/json"})
    assert found.status_code == 422


def test_a_question_has_an_end() -> None:
    async def endless() -> Any:
        for _ in range(MOST_BODY // 1024 + 2):
            yield b" " * 1024

    json_type = {"content-type": "application/json"}
    assert (
        fetched("POST", "/api/v1/train", content=b" " * (MOST_BODY + 1), headers=json_type).status_code == 413
    )
    assert fetched("POST", "/api/v1/train", content=endless(), headers=json_type).status_code == 413


def test_every_answer_has_the_headers() -> None:
    for found in (
        fetched("GET", "/"),
        fetched("POST", "/api/v1/nope", json={}),
        fetched("GET", "/", headers={"host": "x"}),
    ):
        for name, value in HEADERS.items():
            assert found.headers[name] == value


def test_the_page_asks_nobody_else() -> None:
    page = fetched("GET", "/").text
    assert "<script>" not in page
    assert "style=" not in page
    for name in ("app.js", "seam.js", "state.js", "view.js", "style.css"):
        text = fetched("GET", f"/{name}")
        assert text.status_code == 200
        assert "https://" not in text.text.replace("http://www.w3.org", "")
        assert "innerHTML" not in text.text
        assert "eval(" not in text.text


@pytest.mark.parametrize(
    "path", ["/../app.py", "/%2e%2e/app.py", "/..%2fapp.py", "/static/../app.py", "/app.py", "/.git/config"]
)
def test_only_the_page_is_served(path: str) -> None:
    assert fetched("GET", path).status_code in (404, 405)


@pytest.mark.parametrize("path", ["/api/v1/form", "/api/v1/gpus", "/api/v1/schema/sheet", "/openapi.json"])
def test_what_does_not_change_is_not_sent_again(path: str) -> None:
    first = fetched("GET", path)
    again = fetched("GET", path, headers={"if-none-match": first.headers["etag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    assert first.headers["content-encoding"] == "gzip"


def test_a_search_is_told_as_events() -> None:
    job = {"model": "llama-3.2-1b", "gpus": "1xH100-80GB", "seq_len": 1024, "global_batch": 4, "view": True}
    found = fetched("POST", "/api/v1/plan", json=job, headers={"accept": "text/event-stream"}, timeout=120)
    events = [part.split("\n") for part in found.text.strip().split("\n\n")]
    assert {event for event, _ in events[:-1]} <= {"event: progress"}
    assert events[-1][0] == "event: done"
    told = json.loads(events[-1][1].removeprefix("data: "))
    assert told["document"]["schema"] == "memsheet/plans/1"
    assert told["view"]["plans"][0]["apply"]["engine"]


def test_the_description_names_every_question_and_no_other() -> None:
    assert {*ASKED, *LISTS} == QUESTIONS.keys()
    found = openapi_document()
    text = json.dumps(found)
    for part in text.split('"#/components/schemas/')[1:]:
        assert part.partition('"')[0] in found["components"]["schemas"]


def test_the_pages_first_question_is_answered_before_it_is_asked() -> None:
    app = Answers()
    asyncio.run(_ask_first(app))
    ((code, body),) = app.kept.values()
    assert code == 0
    assert json.loads(body) == ask({**FIRST, "view": True})
    assert form_document()["first"] == FIRST


def test_a_search_tells_how_far_it_is() -> None:
    async def run() -> list[tuple[str, Any]]:
        asked = {"question": "plan", **JOB, "engine": "fsdp2", "global_batch": 16}
        return [event async for event in search_events(asked)]

    *told, (last, answer) = asyncio.run(run())
    assert {event for event, _ in told} == {"progress"}
    assert last == "done"
    assert answer["document"]["schema"] == "memsheet/plans/1"
    seconds = [facts["seconds"] for _, facts in told]
    assert seconds == sorted(seconds)
