"""The tools over the Model Context Protocol, on stdin and stdout."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from mcp import types
from mcp.server import Server
from mcp.server.stdio import stdio_server

from memsheet import __version__
from memsheet.agents.tools import ABOUT, OUTPUT, TITLES, answer_tool, tool_schema

SAID = (
    "Exact GPU memory of large models before a job is started. Sizes are GiB a GPU, with ranges; every value "
    "that nobody set is said under 'assumed'. Beside the listed options a tool takes any that `memsheet "
    "train --help` or `memsheet infer --help` names, with underscores."
)


def make_server() -> Server[Any]:
    """A server of the tools, none of which writes anything or reads a file of this machine."""

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_tool_entry(name) for name in ABOUT])

    async def call_tool(_: Any, asked: types.CallToolRequestParams) -> types.CallToolResult:
        if asked.name not in ABOUT:
            return _call_result(
                f"there is no tool {asked.name}: one of {', '.join(ABOUT)}", None, failed=True
            )
        told = await asyncio.to_thread(answer_tool, asked.name, asked.arguments or {})
        return _call_result(told.words, dict(told.found), failed=told.is_error)

    return Server(
        "memsheet",
        version=__version__,
        instructions=SAID,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _tool_entry(name: str) -> types.Tool:
    return types.Tool(
        name=name,
        title=TITLES[name],
        description=ABOUT[name],
        input_schema=tool_schema(name),
        output_schema=dict(OUTPUT),
        annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
    )


def _call_result(words: str, found: dict[str, Any] | None, *, failed: bool) -> types.CallToolResult:
    text = types.TextContent(type="text", text=words)
    return types.CallToolResult(content=[text], structured_content=found, is_error=failed)


def run_server() -> None:
    """Answer until stdin ends."""

    async def serve_tools() -> None:
        server = make_server()
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    gc.enable()  # which a command does without; what serves runs for days
    asyncio.run(serve_tools())
