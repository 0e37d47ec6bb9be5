"""The pictures of the page in README, in both themes: ``python docs/pictures.py``, with the extras `web` and
`browser` and a Chromium (CHROMIUM).
"""

# ruff: noqa: INP001, S603

from __future__ import annotations

import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

DOCS = Path(__file__).parent
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
QUESTION = "#q=train&model=llama-3.1-8b&gpus=8xA100-40GB&seq_len=4096"
SIZE = {"width": 1120, "height": 800}
COLOURS = 192
"""Of a picture, which has few."""


def main() -> None:
    line = [sys.executable, "-m", "memsheet", "web", "--port", "0"]
    with (
        subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as server,
        sync_playwright() as play,
    ):
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for name, theme in (("light", "l"), ("dark", "d")):
            page = browser.new_page(viewport=SIZE)
            page.goto(f"{address}{QUESTION}&t={theme}")
            page.locator("body[data-idle='1']").wait_for()
            picture = Image.open(BytesIO(page.screenshot())).convert("RGB").quantize(COLOURS)
            picture.save(DOCS / f"page-{name}.png", optimize=True)
        browser.close()
        server.terminate()


if __name__ == "__main__":
    main()
