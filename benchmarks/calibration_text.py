"""What the calibration of ranges comes to, on a screen of 80 columns and in the docs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from calibration import NOMINAL

NAMES = {
    "peak_allocated_bytes": "allocated", "peak_reserved_bytes": "reserved", "device_bytes": "device", "peak_bytes_unspecified": "unspecified",
    "weights_bytes": "weights", "kv_cache_bytes": "KV cache", "kv_tokens": "KV tokens",
}  # fmt: skip
MEANING = (
    f"A range is to hold the truth {NOMINAL:.0%} of the time. width: of the range, as a share of what was "
    "measured, the median; score: the mean interval score, the width and twenty times what is missed. "
    "Less is better."
)


def _share(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}%"


def _figures(line: Mapping[str, Any]) -> list[str]:
    return [str(line["rows"]), _share(line["inside"], 0), _share(line["median_width"]), _share(line["score"])]


def _calibrated(result: Mapping[str, Any]) -> Iterator[list[str]]:
    for line in result["calibration"]:
        yield [line["kind"], NAMES[line["metric"]], line["engine"] or "all", *_figures(line)]


def _judged(result: Mapping[str, Any]) -> Iterator[list[str]]:
    for line in result["verdicts"]:
        alone = line["on_one_gpu"]
        yield [
            line["kind"], line["engine"], *(str(line[one]) for one in ("right", "wrong", "uncertain")),
            f"{alone['uncertain']} of {sum(alone.values())}",
        ]  # fmt: skip


HEAD = ["Kind", "Counter", "Engine", "Rows", "Inside", "Width", "Score"]
JUDGED = ["Kind", "Engine", "Right", "Wrong", "Uncertain", "Uncertain on one GPU"]


def calibration_lines(result: Mapping[str, Any]) -> Iterator[str]:
    yield from textwrap.wrap(f"ranges: {MEANING}", 80)
    yield from _columns(HEAD, list(_calibrated(result)), 3)
    yield ""
    yield from _columns(
        ["Width", "Rows", "Inside", "Width", "Score"],
        [[line["width"], *_figures(line)] for line in result["widths"]],
        1,
    )
    yield ""
    yield from _columns(JUDGED, list(_judged(result)), 2)
    yield ""


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> Iterator[str]:
    """Lines of a table, its first ``words`` columns to the left."""
    sizes = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    for row in (head, *rows):
        cells = [
            cell.ljust(size) if at < words else cell.rjust(size)
            for at, (cell, size) in enumerate(zip(row, sizes, strict=True))
        ]
        yield f"  {'  '.join(cells)}".rstrip()


def calibration_tables(result: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n## Ranges\n\n{MEANING}\n"
    yield from _table(HEAD, list(_calibrated(result)), 3)
    yield (
        "\n![What ranges hold, and how wide they are](accuracy_ranges.svg)\n\n"
        "To the left, how many figures lie inside their ranges as these are stretched about the prediction; "
        "the ring is what is meant. To the right, how many ranges are no wider than a share of what was "
        "measured."
    )
    yield "\nBy how wide the range is, over every counter of a GPU's memory:\n"
    widths = [[line["width"], *_figures(line)] for line in result["widths"]]
    yield from _table(["Width", "Rows", "Inside", "Median width", "Score"], widths, 1)
    yield "\nVerdicts on jobs of which it is known whether they ran:\n"
    yield from _table(JUDGED, list(_judged(result)), 2)
    yield ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join(['---'] * words + ['---:'] * (len(head) - words))} |"
    yield from (f"| {' | '.join(row)} |" for row in rows)
