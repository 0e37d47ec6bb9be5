"""The page and its server: the first verdict, a slider that is dragged, and many questions on the loopback.

python benchmarks/web.py page    in a browser (CHROMIUM), with a server and without one (PYODIDE)
python benchmarks/web.py load [--requests N] [--lines N] [--workers N]    latency, rate, memory of the server
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
PYODIDE = os.environ.get("PYODIDE", ".venv/pyodide-314.0.7")
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
MODELS = ("llama-3.1-8b", "qwen3-8b", "mixtral-8x7b", "gpt2", "qwen2.5-0.5b", "phi-3-mini", "llama-3.2-1b")
CARDS = ("1xRTX4090", "8xA100-80GB", "8xH100-80GB", "2xL4", "64xH200")
DRAG = """async (moves) => {
  const slider = document.querySelector("#option-seq_len").parentElement.querySelector("[type=range]");
  const took = [];
  for (let move = 0; move < moves; move++) {
    const start = performance.now();
    const painted = new Promise((resolve) => {
      const watch = new MutationObserver(() => { watch.disconnect(); requestAnimationFrame(() => resolve(performance.now())); });
      watch.observe(document.querySelector("#rows"), { childList: true, subtree: true });
    });
    slider.value = String(1 + (move * 3) % 7);
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    took.push((await painted) - start);
  }
  return took;
}"""
"""The slider moved again as soon as the answer to its last move stands."""


@contextmanager
def served(*options: str) -> Iterator[tuple[str, int]]:
    """A server of its own: its address and process."""
    line = [sys.executable, "-m", "memsheet", "web", "--port", "0", *options]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip(), server.pid
        server.terminate()


@contextmanager
def without_server() -> Iterator[str]:
    """A plain file server before the page that computes in the browser."""
    from memsheet.web.site import build_site

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    types = {".mjs": "text/javascript", ".wasm": "application/wasm"}
    Quiet.extensions_map = {**SimpleHTTPRequestHandler.extensions_map, **types}

    with TemporaryDirectory() as folder:
        build_site(Path(folder) / "page", Path(PYODIDE))
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=f"{folder}/page"))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def print_page(moves: int) -> None:
    from playwright.sync_api import sync_playwright

    def visit(play: Any, address: str, words: str) -> None:
        firsts, drags = list[float](), list[float]()
        for _ in range(3):
            browser = play.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
            page = browser.new_page()
            start = perf_counter()
            page.goto(address)
            page.locator("body[data-idle='1']").wait_for(timeout=120_000)
            firsts.append(perf_counter() - start)
            page.evaluate(DRAG, 3)
            drags += page.evaluate(DRAG, moves)
            browser.close()
        print(f"{words}: first verdict {statistics.median(firsts):.2f} s (most {max(firsts):.2f})")
        middle, slow = statistics.median(drags), statistics.quantiles(drags, n=20)[-1]
        print(f"  drag to repaint: p50 {middle:.0f} ms, p95 {slow:.0f} ms ({len(drags)} moves)")

    with sync_playwright() as play:
        with served() as (address, _):
            visit(play, address, "with a server")
        with without_server() as address:
            visit(play, address, "without one")


def drawn_questions(count: int) -> list[tuple[str, bytes]]:
    """Questions as the page asks them, none twice in a row; the same ones each time."""
    draw = random.Random(7)
    found = list[tuple[str, bytes]]()
    for _ in range(count):
        asked: dict[str, Any] = {"model": draw.choice(MODELS), "gpus": draw.choice(CARDS), "view": True}
        if draw.random() < 0.5:
            question = "infer"
            asked |= {"engine": draw.choice(("vllm", "sglang")), "max_model_len": draw.randrange(1024, 32768)}
        else:
            question = "train"
            asked |= {
                "engine": draw.choice(("fsdp2", "transformers")), "seq_len": draw.randrange(512, 32768),
                "slack": "share", "fix": False,
            }  # fmt: skip
        found.append((question, json.dumps(asked).encode()))
    return found


def print_load(requests: int, lines: int, workers: int) -> None:
    questions = drawn_questions(requests)
    told = [max(1, requests * part // 10) for part in (1, 5, 10)]
    with served(*(("--workers", str(workers)) if workers > 1 else ())) as (address, pid):
        host = urlsplit(address).netloc
        took, faults, lock = list[float](), list[int](), threading.Lock()
        todo = iter(questions)
        start = perf_counter()

        def ask_in_turn() -> None:
            line = HTTPConnection(host, timeout=120)
            while True:
                with lock:
                    question, body = next(todo, ("", b""))
                if not question:
                    return
                began = perf_counter()
                line.request("POST", f"/api/v1/{question}", body, {"content-type": "application/json"})
                answer = line.getresponse()
                answer.read()
                with lock:
                    took.append(perf_counter() - began)
                    if answer.status >= 500:
                        faults.append(answer.status)
                    if len(took) in told:
                        print(f"after {len(took):>6,} requests: {resident_mib(pid):.0f} MiB resident")

        HTTPConnection(host, timeout=120).connect()
        asking = [threading.Thread(target=ask_in_turn) for _ in range(lines)]
        for each in asking:
            each.start()
        for each in asking:
            each.join()
        rate = requests / (perf_counter() - start)
        print(f"{workers} worker(s), {lines} connections: {latency_words(took)}")
        print(f"  {rate:.0f} a second, {len(faults)} faults")


def latency_words(took: Sequence[float]) -> str:
    cuts = statistics.quantiles(took, n=100)
    return f"p50 {cuts[49] * 1e3:.1f} ms, p99 {cuts[98] * 1e3:.1f} ms"


def resident_mib(pid: int) -> float:
    """Of a process and its children, in MiB (Linux)."""
    tree = [pid, *(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    return (
        sum(int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in tree)
        * os.sysconf("SC_PAGE_SIZE")
        / 2**20
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("page", "load"))
    parser.add_argument("--moves", type=int, default=40)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--lines", type=int, default=4, help="connections at once")
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args()
    if asked.what == "page":
        print_page(asked.moves)
    else:
        print_load(asked.requests, asked.lines, asked.workers)


if __name__ == "__main__":
    main()
