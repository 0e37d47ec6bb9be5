"""`memsheet web`."""

from __future__ import annotations

import socket
import sys

from memsheet.cli import question as jobs
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
    from memsheet.web.serve import address_of, bound_socket, check_server, run_server

    server = bound_socket(host, port)
    address = address_of(server)
    if asked.check:
        good, said = check_server(server, named)
        screen.write_stdout(f"{address}  {said}\n")
        return 0 if good else 1
    screen.write_stdout(f"{address}\n")
    if host not in LOOPBACK:
        print(f"answers whoever reaches {host}: nothing is asked of them", file=sys.stderr)
    if asked.open:
        import webbrowser

        webbrowser.open(address)
    run_server(server, named, jobs.parse_positive_int("workers", asked.workers) or 1)
    return 0


def _parse_port(text: str) -> int:
    if text == "0":
        return 0
    port = jobs.parse_positive_int("port", text)
    if port is None or port > MOST_PORT:
        raise input_error("port", text, f"is no port: 0 picks one, {MOST_PORT} is the last")
    return port
