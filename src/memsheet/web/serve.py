"""The server: a socket that is listened on, and one question asked of it to see that it answers."""

from __future__ import annotations

import gc
import json
import socket
import threading
from functools import partial
from http.client import HTTPConnection
from time import sleep

import uvicorn
from uvicorn.supervisors import Multiprocess

from memsheet.errors import input_error
from memsheet.web.app import make_app
from memsheet.web.limits import LOOPBACK

MOST_HEADERS = 16 * 1024
WAIT_S = 60


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket at an address; port 0 is any free one. Raises InputError where it is taken or not ours."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio sends at once (TCP_NODELAY) on sockets that name their protocol alone; others wait 40 ms
        server = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, port))
        server.listen()  # whoever has the address is heard, if answered a moment later
    except OSError as error:
        reason = f"cannot be listened on at {host}: {error.strerror}"
        raise input_error("port", port, reason, "--port 0 picks a free one") from None
    return server


def address_of(server: socket.socket) -> str:
    """Where a browser finds it."""
    host, port = server.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def run_server(server: socket.socket, named: tuple[str, ...], workers: int = 1) -> None:
    """Serve until the process is asked to end. ``named``: hosts that are answered for beside loopback's;
    ``workers``: processes that answer.
    """
    gc.enable()  # which a command does without; what serves runs for days
    running = _server_for(named)
    if workers == 1:
        running.run(sockets=[server])
    else:
        running.config.workers = workers
        Multiprocess(running.config, sockets=[server]).run()


def check_server(server: socket.socket, named: tuple[str, ...]) -> tuple[bool, str]:
    """Start, fetch the page, ask one question, end: whether all is well, and what came."""
    running = _server_for(named)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [server]}, daemon=True)
    thread.start()
    while not running.started and thread.is_alive():
        sleep(0.01)
    try:
        line = HTTPConnection("127.0.0.1", server.getsockname()[1], timeout=WAIT_S)
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
    return good, f"page {page.status}, train {answer.status} {result}"


def _server_for(named: tuple[str, ...]) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            partial(make_app, (*LOOPBACK, *named)),
            factory=True,
            log_level="warning",
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=MOST_HEADERS,
            timeout_graceful_shutdown=1,
        )
    )
