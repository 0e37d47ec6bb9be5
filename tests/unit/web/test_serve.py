"""What serves for days gives back what it made: the command that starts it collects no garbage."""

import gc
import types

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("mcp")

from memsheet.agents import server as tools
from memsheet.web import serve


@pytest.mark.parametrize("served", ["page", "several processes", "tools"])
def test_what_serves_collects_garbage(monkeypatch: pytest.MonkeyPatch, served: str) -> None:
    seen = list[bool]()

    def run(*_: object, **__: object) -> None:
        seen.append(gc.isenabled())

    fake = types.SimpleNamespace(run=run, config=types.SimpleNamespace(workers=1))
    monkeypatch.setattr(serve, "_server_for", lambda _: fake)
    monkeypatch.setattr(serve, "Multiprocess", lambda *_, **__: fake)
    monkeypatch.setattr(tools.asyncio, "run", lambda serving: (serving.close(), run()))
    gc.disable()
    try:
        with serve.bound_socket("127.0.0.1", 0) as socket:
            if served == "tools":
                tools.run_server()
            else:
                serve.run_server(socket, (), 1 if served == "page" else 2)
    finally:
        gc.enable()
    assert seen == [True]
