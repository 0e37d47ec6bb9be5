"""`memsheet watch`."""

from __future__ import annotations

import os
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from memsheet.cli import screen
from memsheet.cli.line import Given
from memsheet.errors import input_error
from memsheet.measure.watch import Card, Growth, growth_of, read_cards
from memsheet.plan.values import parse_whole_number
from memsheet.units import format_bytes

KEPT = 60
"""Samples by which growth is told."""
MINUTE_S, HOUR_S = 60, 3600


def watch(asked: Given) -> int:
    """What a running job takes of its cards, how that grows, and when they would be full."""
    decimal = screen.wants_decimal_units(asked.units)
    pause = _parse_seconds(asked.interval)
    count = _parse_count(asked.count)
    words = tuple(asked.job)
    if not words:
        raise input_error(
            "PID|COMMAND", None, "is missing", "memsheet watch 4711, or memsheet watch -- python train.py"
        )
    read_cards(None)  # before anything is started
    child = None if len(words) == 1 and words[0].isdecimal() else _started_command(words)
    pid = int(words[0]) if child is None else child.pid
    if child is None and not _is_running(pid):
        raise input_error("PID", pid, "is no process that runs here")
    with suppress(KeyboardInterrupt):
        _print_samples(pid, child, pause, count, decimal=decimal)
    if child is None:
        return 0
    return child.wait() if count is None else 0


def _started_command(words: tuple[str, ...]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(list(words))  # noqa: S603 - a person's own command
    except OSError as error:
        raise input_error("COMMAND", words[0], f"cannot be started: {error.strerror}") from None


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _print_samples(
    pid: int, child: subprocess.Popen[bytes] | None, pause: float, count: int | None, *, decimal: bool
) -> None:
    """A line a card and interval, until the job ends."""
    seen: dict[int, deque[tuple[float, Card]]] = {}
    highest: dict[int, Card] = {}
    number = 0
    while (count is None or number < count) and (
        child.poll() is None if child is not None else _is_running(pid)
    ):
        now = time.monotonic()
        for card in read_cards(pid):
            kept = seen.setdefault(card.number, deque(maxlen=KEPT))
            kept.append((now, card))
            highest[card.number] = max(highest.get(card.number, card), card, key=lambda each: each.used)
            screen.write_stdout(" · ".join(_card_words(card, growth_of(tuple(kept)), decimal=decimal)) + "\n")
        number += 1
        if count is None or number < count:
            _wait_for_next(child, pause)
    for place, card in sorted(highest.items()):
        most, total = _used_and_total(card, decimal=decimal)
        screen.write_stdout(f"GPU {place} at the highest {most} of {total}\n")


def _wait_for_next(child: subprocess.Popen[bytes] | None, pause: float) -> None:
    if child is None:
        time.sleep(pause)
        return
    with suppress(subprocess.TimeoutExpired):
        child.wait(pause)


def _card_words(card: Card, growth: Growth | None, *, decimal: bool) -> Iterator[str]:
    used, total = _used_and_total(card, decimal=decimal)
    yield f"{time.strftime('%H:%M:%S')}  GPU {card.number}  {used} of {total} used"
    if card.own is not None:
        yield f"{format_bytes(card.own, decimal=decimal)} of this job"
    if growth is None:
        return
    rate = int(growth.bytes_per_s * MINUTE_S)
    yield f"{'+' if rate >= 0 else ''}{format_bytes(rate, decimal=decimal)} a minute"
    if growth.full_in_s is not None:
        yield f"full in {_time_words(growth.full_in_s)} if that goes on"


def _used_and_total(card: Card, *, decimal: bool) -> tuple[str, str]:
    return format_bytes(card.used, decimal=decimal), format_bytes(card.total, decimal=decimal, headroom=True)


def _time_words(seconds: float) -> str:
    if seconds < 2 * MINUTE_S:
        return f"{int(seconds)} s"
    return f"{int(seconds / MINUTE_S)} min" if seconds < 2 * HOUR_S else f"{int(seconds / HOUR_S)} h"


def _parse_seconds(text: str) -> float:
    try:
        found = float(text.removesuffix("s"))
    except ValueError:
        found = 0
    if not 0.1 <= found <= HOUR_S:
        raise input_error("interval", text, "is not a time from 0.1 to 3600 seconds", "2s")
    return found


def _parse_count(text: str | None) -> int | None:
    if text is None:
        return None
    found = parse_whole_number(text)
    if isinstance(found, str) or found < 1:
        raise input_error("count", text, "is not a whole number from 1")
    return found
