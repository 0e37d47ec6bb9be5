"""A real browser before the page of a real server. `make web-test` installs what this needs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip


PYODIDE = Path(os.environ.get("PYODIDE", ROOT / ".venv" / "pyodide-314.0.7"))
"""The unpacked npm package of Python for browsers."""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page without a server, as a folder."""
    from memsheet.web.site import build_site

    folder = tmp_path_factory.mktemp("site")
    build_site(folder / "page", PYODIDE)
    return folder / "page"


@pytest.fixture(scope="session")
def address_without_server(site: Path) -> Iterator[str]:
    """Where a plain file server shows that folder."""
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    Quiet.extensions_map = {
        **SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


def served(*options: str) -> Iterator[str]:
    """Where a server of its own is, while it runs."""
    line = [sys.executable, "-m", "memsheet", "web", "--port", "0", *options]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.terminate()


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """Where the page is."""
    yield from served()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


class Visit:
    """A page that somebody looks at: what it asked for, what its console said, what was done."""

    def __init__(self, page: Any, address: str) -> None:
        self.page, self.address = page, address
        self.requests: list[str] = []
        self.bodies: list[str] = []
        self.complaints: list[str] = []
        self.actions = 0
        page.on("request", self.note)
        page.on(
            "console",
            lambda said: self.complaints.append(said.text) if said.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def note(self, request: Any) -> None:
        self.requests.append(request.url)
        if request.post_data:
            self.bodies.append(request.post_data)

    def open(self, question: str = "") -> Visit:
        self.page.goto(f"{self.address}{question}")
        return self.settle()

    def settle(self) -> Visit:
        self.page.locator("body[data-idle='1']").wait_for(timeout=60_000)
        return self

    def click(self, name: str, role: str = "button") -> Visit:
        self.actions += 1
        self.page.get_by_role(role, name=name, exact=True).first.click()
        return self.settle()

    def paste(self, text: str) -> Visit:
        self.actions += 2
        self.page.locator("#paste").fill(text)
        self.page.get_by_role("button", name="Read", exact=True).click()
        return self.settle()

    def fill(self, label: str, text: str) -> Visit:
        self.actions += 1
        field = self.page.get_by_label(label, exact=True)
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(text)
        else:
            field.fill(text)
            field.dispatch_event("change")
        return self.settle()

    @property
    def verdict(self) -> str:
        return str(self.page.locator("#verdict").inner_text())


def visited(chromium: Any, address: str) -> Iterator[Visit]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    found = Visit(context.new_page(), address)
    yield found
    assert found.complaints == []
    assert [url for url in found.requests if not url.startswith((address, "data:", "blob:"))] == []
    context.close()


@pytest.fixture
def visit(chromium: Any, address: str) -> Iterator[Visit]:
    """A fresh visit; when it ends nothing foreign was asked for and the console is empty."""
    yield from visited(chromium, address)


@pytest.fixture
def alone(chromium: Any, address_without_server: str) -> Iterator[Visit]:
    """The same without a server."""
    yield from visited(chromium, address_without_server)
