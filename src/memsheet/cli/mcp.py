"""`memsheet mcp`."""

from __future__ import annotations

from memsheet.cli.line import Given


def mcp(_: Given) -> int:
    """Answer a program that speaks the Model Context Protocol, on stdin and stdout, until stdin ends."""
    from memsheet.agents.server import run_server

    run_server()
    return 0
