"""What a request may be: whose host it names, whence it comes, how large it is; and answers' headers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

MOST_BODY = 2**20
"""Bytes of a request; files that are pasted are far smaller."""
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
JSON = "application/json"
HEADERS = {
    "content-security-policy": "default-src 'self'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Refusal(NamedTuple):
    """Why a request is not looked at, with its status of HTTP."""

    status: int
    reason: str


class Guarded:
    """An application that only requests of its own page, or of programs that are no page, reach.

    A page of another origin that names this server cannot read it, and cannot make it work: its host is not
    among ``hosts`` (DNS rebinding), or its origin is another (RFC 6454).
    """

    def __init__(self, application: Application, *, hosts: tuple[str, ...]) -> None:
        self.application, self.hosts = application, frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return
        given = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    *((name.encode(), value.encode()) for name, value in HEADERS.items()),
                ]
            await send(message)

        if reason := refusal_reason(scope["method"], given, self.hosts):
            await _send_refusal(send_with_headers, reason)
            return
        await self.application(scope, receive, send_with_headers)


def refusal_reason(method: str, headers: Mapping[str, str], hosts: frozenset[str]) -> Refusal | None:
    """Why a request is not looked at, by its headers; None where it is."""
    host = headers.get("host", "")
    if _host_name(host) not in hosts:
        return Refusal(421, "this server does not answer for that host: --allowed-host adds one")
    if method in ("GET", "HEAD"):
        return None
    if (origin := headers.get("origin")) is not None and urlsplit(origin).netloc.lower() != host.lower():
        return Refusal(403, "a page of another origin does not ask here")
    if headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        return Refusal(415, f"a question is {JSON}")
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > MOST_BODY:
        return Refusal(413, f"a question has {MOST_BODY:,} bytes at most")
    return None


def _host_name(host: str) -> str:
    """A host without its port."""
    name, _, port = host.lower().rpartition(":")
    return name if name and port.isdecimal() else host.lower()


async def _send_refusal(send: Send, refused: Refusal) -> None:
    from memsheet.web.problems import problem_response

    status, headers, body = problem_response(refused.status, refused.reason)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
