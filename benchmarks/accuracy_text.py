"""The accuracy table for people: on a screen of 80 to 120 columns, and as the page in the docs."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby
from typing import Any

from calibration_text import calibration_lines, calibration_tables

NARROW, WIDE, PER_GROUP = 80, 120, 5
METRICS = {
    "peak_allocated_bytes": "allocated", "peak_reserved_bytes": "reserved", "device_bytes": "device", "peak_bytes_unspecified": "unspecified",
    "weights_bytes": "weights", "kv_cache_bytes": "KV cache", "kv_tokens": "KV tokens", "step_time_s": "step time",
    "activation_bytes": "activation", "tokens_per_s_per_gpu": "tokens/s", "tokens_per_s": "tokens/s", "verdict": "verdict",
}  # fmt: skip

Result = Mapping[str, Any]


def percent(value: float | None, *, sign: bool = False, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:{'+' if sign else ''}.{digits}f}%"


def error(value: float | None, *, sign: bool = False) -> str:
    """An error with the digits that matter against a bar of one percent."""
    return percent(value, sign=sign, digits=2 if value is not None and abs(value) < 0.0995 else 1)


def cells(line: Result) -> list[str]:
    judged = line["verdicts_right"], line["verdicts_wrong"]
    return [
        f"{line['run']}/{line['cases']}", error(line["signed"], sign=True), error(line["absolute"]), error(line["worst"]),
        percent(line["inside_range"], digits=0), f"{judged[0]}:{judged[1]}" if any(judged) else "-",
    ]  # fmt: skip


HEAD = ["run", "signed", "mean", "worst", "inside", "verdicts"]


def screen(result: Result, groups: Mapping[str, str], *, full: bool = False) -> str:
    width = max(NARROW, min(WIDE, shutil.get_terminal_size((NARROW, 24)).columns))
    return "\n".join(
        [
            *_table(result, width),
            *_overall(result, width),
            *calibration_lines(result),
            *_peers(result, width),
            *_beyond(result, groups, width, full=full),
        ]
    )


def _line(values: Sequence[str], sizes: Sequence[int]) -> str:
    return "  ".join(
        [values[0].ljust(sizes[0]), *(v.rjust(s) for v, s in zip(values[1:], sizes[1:], strict=True))]
    ).rstrip()


def _table(result: Result, width: int) -> Iterator[str]:
    """A line a group that ran; a group of which nothing ran has its reason in place of figures."""
    name, sizes = (26 if width < 100 else 44), (7, 7, 6, 6, 6, 8)
    for kind, lines in groupby(
        sorted(result["groups"], key=lambda g: (g["kind"], g["run"] == 0)), key=lambda g: g["kind"]
    ):
        yield _line([kind, *HEAD], (name, *sizes))
        for line in lines:
            metric = f"  {METRICS.get(line['metric'], line['metric'])}" if width >= 100 else ""
            title = f"{line['group'][: name - 2 - len(metric)]} {line['quality']}{metric}"
            if line["run"]:
                yield _line([title, *cells(line)], (name, *sizes))
                reasons = [f"{count} refused: {reason}" for reason, count in line["refused"].items()]
            else:
                reasons = [f"0/{line['cases']}: {'; '.join(line['refused'])}"]
                yield from textwrap.wrap(
                    f"{title.ljust(name)}  {reasons.pop()}",
                    width,
                    subsequent_indent=" " * 6,
                    break_on_hyphens=False,
                )
            for reason in reasons:
                yield from textwrap.wrap(reason, width, initial_indent="    ", subsequent_indent="      ")
        yield ""
    yield from textwrap.wrap(
        "signed, mean, worst: (predicted - measured) / measured, signed mean, mean magnitude and largest "
        "magnitude. inside: rows inside the "
        "predicted range, which is a point where nothing is uncertain. verdicts: right:wrong, uncertain "
        "ones in neither. A, B, C: quality of the source.",
        width,
    )
    yield ""


def _overall(result: Result, width: int) -> Iterator[str]:
    yield from textwrap.wrap(
        "overall: quality A with complete plans, averaged inside groups first; coverage over A and B", width
    )
    for kind, found in result["overall"].items():
        yield (
            f"  {kind:<15} groups {found['groups']}  mean {error(found['absolute'])}  worst "
            f"{error(found['worst'])}  "
            f"inside {percent(found['inside_range'], digits=0)}  coverage "
            f"{percent(found['coverage'], digits=0)}"
        )
    wrong = result["wrong_verdicts"]
    if wrong:
        yield from textwrap.wrap(
            f"wrong verdicts: {', '.join(wrong)}", width, subsequent_indent="  ", break_on_hyphens=False
        )
    yield ""


def _peers(result: Result, width: int) -> Iterator[str]:
    if not result["peers"]:
        return
    yield "peers, as they report themselves or as run by us"
    for peer in result["peers"]:
        figures = f"mean {error(peer['absolute'])}, worst {error(peer['worst'])}" + (
            f", {peer['rows']} rows" if peer["rows"] else ""
        )
        groups = f" (cf. {', '.join(peer['groups'])})" if peer["groups"] else ""
        yield from textwrap.wrap(
            f"{peer['peer']}: {peer['what']}: {figures}{groups}",
            width,
            initial_indent="  ",
            subsequent_indent="    ",
        )
    yield ""


def _beyond(result: Result, groups: Mapping[str, str], width: int, *, full: bool) -> Iterator[str]:
    rows = result["beyond_bar"]
    yield (
        f"{len(rows)} of {len(result['rows'])} rows more than 3 % "
        f"off{', each with where to look first' * bool(rows)}"
    )
    for group, members in groupby(sorted(rows, key=lambda r: groups[r["id"]]), key=lambda r: groups[r["id"]]):
        listed = list(members)
        yield f"  {group}"
        yield from textwrap.wrap(
            result["remarks"].get(group, ""), width, initial_indent=" " * 4, subsequent_indent=" " * 4
        )
        for row in listed if full else listed[:PER_GROUP]:
            text = f"{error(row['error'], sign=True):>8}  {row['id']}: {row['suspect']}" + (
                f" ({row['note']})" if row["note"] else ""
            )
            yield from textwrap.wrap(
                text, width, initial_indent="  ", subsequent_indent=" " * 12, break_on_hyphens=False
            )
        if not full and len(listed) > PER_GROUP:
            yield f"            and {len(listed) - PER_GROUP} more: --full lists them"


def markdown(result: Result, groups: Mapping[str, str]) -> str:
    return "\n".join(
        [
            *_page_head(),
            *_page_tables(result),
            *_page_rows(result, groups),
            *_page_outside(result, groups),
            *_page_logs(result),
        ]
    )


def _page_head() -> Iterator[str]:
    yield f"""# Accuracy

Predictions beside figures that other people measured and published, failures included. This page is written by
`make bench`; it was last made on {datetime.now(UTC):%Y-%m-%d} with memsheet {version("memsheet")}.

## How the table is made

- The figures are those of `benchmarks/data/cases.json`, rewritten from public tables and logs in the vocabulary of plans. They test
  predictions and never enter them: no constant of memsheet is fitted to them.
- Every case is asked through the same functions that a user calls. What memsheet does not model is refused, with the reason, and counts
  against coverage.
- Every counter that a source has: allocated, reserved, what the driver shows, else a counter the source does not name (then the predicted value is that of tensors and the range reaches to what the driver shows). Servers are compared by weights, KV cache
  and KV tokens.
- An error is (predicted − measured) / measured. A row is *inside* when the measured figure, with its printed rounding, lies in the
  predicted range. A verdict is *right* or *wrong* against what happened; an uncertain one is neither. A job that died and was predicted
  to fit is wrong.
- Quality A is complete and precise, B leaves one or two settings to defaults, C is kept for jobs that ran out of memory.
- A row more than 3 % off is listed by name with its largest component that could hold the gap. That names a place to look, not a cause.

## By group
"""


def _table_row(values: Sequence[str]) -> str:
    return f"| {' | '.join(values)} |"


def _page_tables(result: Result) -> Iterator[str]:
    yield _table_row(
        [
            "Kind",
            "Group",
            "Quality",
            "Figure",
            "Run",
            "Signed",
            "Mean",
            "Worst",
            "Inside",
            "Verdicts right:wrong",
            "A peer's",
        ]
    )
    yield _table_row(["---"] * 4 + ["---:"] * 6 + ["---"])
    for line in result["groups"]:
        if line["run"]:
            figure = METRICS.get(line["metric"], line["metric"])
            yield _table_row(
                [line["kind"], line["group"], line["quality"], figure, *cells(line), _peer(result, line)]
            )
    yield "\n![Predicted against measured](accuracy.svg)"
    yield "\n## Refused\n"
    yield _table_row(["Kind", "Group", "Quality", "Cases", "Reason"])
    yield _table_row(["---", "---", "---", "---:", "---"])
    for line in result["groups"]:
        for reason, count in line["refused"].items():
            yield _table_row(
                [line["kind"], line["group"], line["quality"], str(count), reason.replace("|", "/")]
            )
    yield (
        "\n## Overall\n\nErrors over quality A with complete plans, averaged inside a group before "
        "groups are averaged; coverage over A and B.\n"
    )
    yield _table_row(["Kind", "Groups", "Mean", "Worst", "Inside", "Coverage"])
    yield _table_row(["---"] + ["---:"] * 5)
    for kind, found in result["overall"].items():
        shares = percent(found["inside_range"], digits=0), percent(found["coverage"], digits=0)
        yield _table_row(
            [kind, str(found["groups"]), error(found["absolute"]), error(found["worst"]), *shares]
        )
    yield (
        "\nWrong verdicts: " + (", ".join(f"`{name}`" for name in result["wrong_verdicts"]) or "none") + ".\n"
    )
    yield from calibration_tables(result)


def _peer(result: Result, line: Result) -> str:
    """What a peer reaches over the rows of a group, where that is known."""
    known = [
        p
        for p in result["peers"]
        if line["group"] in p["groups"] and ("time" in p["what"]) == line["metric"].endswith(("_s", "_gpu"))
    ]
    return (
        "; ".join(f"{p['peer']} mean {error(p['absolute'])}, worst {error(p['worst'])}" for p in known) or "-"
    )


NEAR = 0.005


def _page_outside(result: Result, groups: Mapping[str, str]) -> Iterator[str]:
    """Rows whose figure lies outside the predicted range, and why, or that nobody knows."""
    rows = [row for row in result["outside"] if row["reason"]]
    near = sum(abs(row["error"]) <= NEAR for row in result["outside"])
    yield (
        f"\n## Outside the range\n\n{len(result['outside'])} rows; {near} of them are off by no more "
        f"than {NEAR:.1%}, most where little is uncertain and"
    )
    yield "the range is narrow. What an engine's source says of others, or that it does not:\n"
    yield _table_row(["Group", "Row", "Error", "Reason"])
    yield _table_row(["---", "---", "---:", "---"])
    for row in rows:
        yield _table_row([groups[row["id"]], f"`{row['id']}`", error(row["error"], sign=True), row["reason"]])


PRINTED = ("weights_bytes", "activation_bytes", "kv_cache_bytes", "kv_tokens")
"""What servers print when they start, in the order in which they do."""


def _page_logs(result: Result) -> Iterator[str]:
    """Start-up logs of servers, a line each beside ours."""
    rows = [row for row in result["rows"] if row["metric"] in PRINTED and row["engine"] in SERVERS]
    logs = list(dict.fromkeys(row["id"] for row in rows))
    yield "\n## Start-up logs, line by line\n"
    yield f"{len(logs)} servers; bytes in MiB of one GPU, tokens of the cache."
    yield "Weights are what is loaded, activation the peak of the profiling run or the compute buffers.\n"
    yield _table_row(["Log", "Line", "Printed", "Ours", "Range", "Error"])
    yield _table_row(["---", "---", "---:", "---:", "---", "---:"])
    for log in logs:
        own = sorted((row for row in rows if row["id"] == log), key=lambda row: PRINTED.index(row["metric"]))
        for row in own:
            unit = 1 if row["metric"] == "kv_tokens" else 2**20
            printed, ours, low, high = (
                f"{row[key] / unit:,.0f}" for key in ("measured", "predicted", "low", "high")
            )
            within = "" if low == high == ours else f"{low} to {high}"
            line = [f"`{log}`", METRICS[row["metric"]], printed, ours, within, error(row["error"], sign=True)]
            yield _table_row(line)


SERVERS = ("vllm", "sglang", "llama.cpp")


def _page_rows(result: Result, groups: Mapping[str, str]) -> Iterator[str]:
    yield (
        "## Peers\n\nErrors that other predictors report of themselves, or that were found by running "
        "them. Other rows, other machines.\n"
    )
    yield _table_row(["Peer", "Figure", "Rows", "Mean", "Worst", "Source"])
    yield _table_row(["---", "---", "---:", "---:", "---:", "---"])
    for peer in result["peers"]:
        yield _table_row(
            [
                peer["peer"],
                peer["what"],
                str(peer["rows"] or "-"),
                error(peer["absolute"]),
                error(peer["worst"]),
                peer["source"],
            ]
        )
    yield f"\n## Rows more than 3 % off\n\n{len(result['beyond_bar'])} of {len(result['rows'])} rows.\n"
    yield "What is known of the groups, from arithmetic over their figures:\n"
    yield from (f"- `{group}`: {text}" for group, text in result["remarks"].items())
    yield ""
    yield _table_row(["Group", "Row", "Error", "Look at", "Note"])
    yield _table_row(["---", "---", "---:", "---", "---"])
    for row in sorted(result["beyond_bar"], key=lambda r: groups[r["id"]]):
        yield _table_row(
            [groups[row["id"]], f"`{row['id']}`", error(row["error"], sign=True), row["suspect"], row["note"]]
        )
