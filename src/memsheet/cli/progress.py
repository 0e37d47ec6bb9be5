"""One line on stderr that says how far a child is, while it runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from memsheet.trace.launch import is_first

EVERY_S = 0.5
MOST = 100


@contextmanager
def file_progress_line(what: str) -> Iterator[str]:
    """The name of a file whose one line is shown after ``what``: rewritten in place on a terminal; elsewhere
    ``what`` alone, once.
    """
    from tempfile import TemporaryDirectory  # which takes as long to import as a small question to answer

    with TemporaryDirectory(prefix="memsheet-") as folder:
        file, over = Path(folder) / "progress", threading.Event()
        if not sys.stderr.isatty() or not is_first():
            sys.stderr.write(f"{what}\n" if is_first() else "")
            yield str(file)
            return
        shown = threading.Thread(target=_rewrite_progress_line, args=(what, file, over), daemon=True)
        shown.start()
        try:
            yield str(file)
        finally:
            over.set()
            shown.join()


@contextmanager
def show_elapsed_time(what: str) -> Iterator[None]:
    """``what`` and how long it has taken, on a terminal, while this process works on it."""
    if not sys.stderr.isatty():
        yield
        return
    over = threading.Event()
    shown = threading.Thread(target=_rewrite_progress_line, args=(what, None, over), daemon=True)
    shown.start()
    try:
        yield
    finally:
        over.set()
        shown.join()


def _rewrite_progress_line(what: str, file: Path | None, over: threading.Event) -> None:
    start, longest = monotonic(), 0
    while not over.is_set():
        far = f": {_last_output_line(file)}" if file else ""
        said = f"{what}{far} ({monotonic() - start:.0f} s)"[:MOST]
        longest = max(longest, len(said))
        sys.stderr.write(f"\r{said.ljust(longest)}")
        sys.stderr.flush()
        over.wait(EVERY_S)
    sys.stderr.write(f"\r{' ' * longest}\r")
    sys.stderr.flush()


def _last_output_line(file: Path) -> str:
    """What the child wrote last, nothing that moves a cursor."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return "".join(c for c in text if c.isprintable()) or "starting"
