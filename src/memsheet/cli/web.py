"""`memsheet web`."""

from __future__ import annotations

import socket
import sys
from typing import Any

from memsheet.cli import job as jobs
from memsheet.cli import screen
from memsheet.cli.line import Given
from memsheet.errors import input_error

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MOST_PORT = 65535


def web(asked: Given) -> int:
    """The page, on this machine: every question by clicking, and the API that it asks."""
    host, port = asked.host, _parse_port(asked.port)
    named = tuple(asked.hosts or ())
    if host not in LOOPBACK and not named:
        raise input_error(
            "host",
            host,
            "is reached by others, who may ask under any name",
            f"--allowed-host {socket.gethostname()}: the name or address that they reach it by",
        )
    from memsheet.web.app import make_app
    from memsheet.web.limits import LOOPBACK as USUAL

    server = _bound_socket(host, port)
    address = f"http://{f'[{host}]' if ':' in host else host}:{server.getsockname()[1]}/"
    app = make_app((*USUAL, *named))
    if asked.check:
        return _check_server(app, server, address)
    screen.write_stdout(f"{address}\n")
    if host not in LOOPBACK:
        print(f"answers whoever reaches {host}: nothing is asked of them", file=sys.stderr)
    if asked.open:
        import webbrowser

        webbrowser.open(address)
    _run_server(app, server)
    return 0


def _parse_port(text: str) -> int:
    if text == "0":
        return 0
    port = jobs.parse_positive_int("port", text)
    if port is None or port > MOST_PORT:
        raise input_error("port", text, f"is no port: 0 picks one, {MOST_PORT} is the last")
    return port


def _bound_socket(host: str, port: int) -> socket.socket:
    try:
        kind = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = socket.socket(kind, socket.SOCK_STREAM)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, port))
    except OSError as error:
        raise input_error(
            "port", port, f"cannot be listened on at {host}: {error.strerror}", "--port 0 picks a free one"
        ) from None
    return server


def _server_of(app: Any) -> Any:
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=16 * 1024,
            timeout_graceful_shutdown=1,
        )
    )


def _run_server(app: Any, server: socket.socket) -> None:
    _server_of(app).run(sockets=[server])


def _check_server(app: Any, server: socket.socket, address: str) -> int:
    """Start, ask one question, end: what a packager runs."""
    import json
    import threading
    from http.client import HTTPConnection
    from time import sleep

    running = _server_of(app)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [server]}, daemon=True)
    thread.start()
    while not running.started and thread.is_alive():
        sleep(0.01)
    try:
        line = HTTPConnection("127.0.0.1", server.getsockname()[1], timeout=60)
        line.request("GET", "/")
        page = line.getresponse()
        length = len(page.read())
        question = json.dumps({"model": "llama-3.1-8b", "gpus": "8xH100-80GB", "seq_len": 4096})
        line.request("POST", "/api/v1/train", question, {"content-type": "application/json"})
        answer = line.getresponse()
        document = json.loads(answer.read())
    finally:
        running.should_exit = True
        thread.join(5)
    result = (document.get("verdict") or {}).get("result")
    good = page.status == answer.status == 200 and length > 0 and result == "fits"
    screen.write_stdout(f"{address}  page {page.status}, train {answer.status} {result}\n")
    return 0 if good else 1
