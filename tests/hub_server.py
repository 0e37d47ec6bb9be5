"""A hub on this machine, for tests: it lists repositories, gives files and parts of them, and misbehaves as
it is told.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repo:
    """``status``, ``code``, ``message``: what every request for it gets instead; ``files_status``: those for
    its files alone; ``listed``: sizes that the listing claims; ``elsewhere``: files are on another host.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    revisions: tuple[str, ...] = ("main", COMMIT)
    status: int = 200
    files_status: int = 200
    code: str = ""
    message: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    listed: dict[str, int] = field(default_factory=dict)
    listing: bytes | None = None
    counts: dict[str, int] = field(default_factory=dict)
    token: str = ""
    ranges: bool = True
    said_range: str = ""
    said_length: int | None = None
    elsewhere: bool = False
    circle: bool = False
    wait_s: float = 0.0
    drip_s: float = 0.0
    packed: bool = False


@dataclass
class Hub:
    """``asked``: every request's method, path, range and token, in order."""

    repos: dict[str, Repo]
    address: str = ""
    elsewhere: str = ""
    asked: list[tuple[str, str, str, str]] = field(default_factory=list)

    def paths(self) -> list[str]:
        return [path for _, path, _, _ in self.asked]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        token = self.headers.get("authorization", "")
        self.hub.asked.append(("GET", path, self.headers.get("range", ""), token))
        listing = re.fullmatch(r"/api/models/([^/]+/[^/]+|[^/]+)(?:/revision/(.+))?", path)
        file = re.fullmatch(r"(?:/cdn)?/([^/]+/[^/]+)/resolve/(.+?)/([^/]+(?:/[^/]+)?)", path)
        found = listing or file
        repo = self.hub.repos.get(found[1]) if found else None
        if repo is None:
            return self.refuse(401 if not token else 404, "RepoNotFound", "Repository not found")
        if repo.token and token != f"Bearer {repo.token}" and not path.startswith("/cdn"):
            return self.refuse(repo.status if repo.status != 200 else 401, repo.code, repo.message)
        if repo.status != 200 and not repo.token:
            return self.refuse(repo.status, repo.code, repo.message, repo.headers)
        if repo.circle:
            return self.redirect(self.path)
        revision = (listing[2] if listing else file[2]) or "main"
        if revision not in repo.revisions:
            return self.refuse(404, "RevisionNotFound", "Invalid rev id")
        if listing:
            return self.give(
                repo, repo.listing if repo.listing is not None else self.list_files(repo), ranged=False
            )
        if repo.files_status != 200:
            return self.refuse(repo.files_status, repo.code, repo.message, repo.headers)
        if repo.elsewhere and not path.startswith("/cdn"):
            return self.redirect(f"{self.hub.elsewhere}/cdn{self.path}")
        if file[3] not in repo.files:
            return self.refuse(404, "EntryNotFound", "Entry not found")
        return self.give(repo, repo.files[file[3]], ranged=True)

    def list_files(self, repo: Repo) -> bytes:
        files = [
            {"rfilename": name, "size": repo.listed.get(name, len(data))} for name, data in repo.files.items()
        ]
        listing = {"sha": COMMIT, "siblings": files, "gated": False}
        return json.dumps(
            listing | ({"safetensors": {"parameters": repo.counts}} if repo.counts else {})
        ).encode()

    def refuse(
        self, status: int, code: str = "", message: str = "", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for key, value in {"x-error-code": code, "x-error-message": message, **(headers or {})}.items():
            if value:
                self.send_header(key, value)
        self.send_header("content-length", "0")
        self.end_headers()

    def redirect(self, where: str) -> None:
        self.send_response(302)
        self.send_header("location", where)
        self.send_header("content-length", "0")
        self.end_headers()

    def give(self, repo: Repo, data: bytes, *, ranged: bool) -> None:
        said = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        if ranged and said and repo.ranges:
            first, last = int(said[1]), min(int(said[2]), len(data) - 1)
            self.send_response(206)
            self.send_header("content-range", repo.said_range or f"bytes {first}-{last}/{len(data)}")
            body = data[first : last + 1]
        else:
            self.send_response(200)
            body = data
        if repo.packed:
            self.send_header("content-encoding", "gzip")
        length = len(body) if repo.said_length is None or not ranged else repo.said_length
        self.send_header("content-length", str(length))
        self.end_headers()
        try:
            time.sleep(repo.wait_s)
            if not repo.drip_s:
                self.wfile.write(body)
                if length != len(body):
                    self.close_connection = True
                return
            for at in range(len(body)):
                self.wfile.write(body[at : at + 1])
                self.wfile.flush()
                time.sleep(repo.drip_s)
        except OSError:  # whoever asked has had enough
            self.close_connection = True


@contextmanager
def running_hub(**repos: Repo) -> Iterator[Hub]:
    """A hub with these repositories (``org__name``: org/name) and a second host beside it."""
    hub = Hub({name.replace("__", "/"): repo for name, repo in repos.items()})
    handler = type("Bound", (Handler,), {"hub": hub})
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
    for server in servers:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    hub.address = f"http://127.0.0.1:{servers[0].server_port}"
    hub.elsewhere = f"http://localhost:{servers[1].server_port}"
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
