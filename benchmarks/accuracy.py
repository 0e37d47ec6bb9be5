"""How far memsheet's predictions are from what was measured, failures included.

    python benchmarks/accuracy.py [--data FILE] [--group G] [--records DIR] [--json | --markdown | --page
    FOLDER] [--full]

``--data``: any file of schema ``memsheet/cases/1`` (``benchmarks/data/README.md``); ``--records``: a folder
of our own measured runs (``memsheet measure --record``, or bare sheets). A case that memsheet refuses is
counted with its reason. Nothing here is fitted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from accuracy_text import markdown, screen
from asking import MEMORY, SPEED, VERDICT, Case, Outcome, Row, run_case
from calibration import by_width, calibration, verdicts
from parity import parity
from records import records, run_record
from reliability import reliability

DATA = Path(__file__).parent / "data"
SCHEMA = "memsheet/cases/1"
MEAN_BAR, WORST_BAR = 0.01, 0.03
"""DESIGN's bar for training peaks of complete, precise rows; a row beyond the second is listed by name
whatever its quality.
"""

Key = tuple[str, str, str, str]  # group, kind, quality, metric


def load(path: Path) -> list[Case]:
    """The cases of a file. Raises SystemExit with a sentence where it is no such file."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path}: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise SystemExit(f"{path}: is not a file of schema {SCHEMA}")
    cases: list[Case] = document["cases"]
    return cases


# metrics ----------------------------------------------------------------------------------------------------


def grouped(outcomes: Iterable[Outcome]) -> dict[Key, list[Outcome]]:
    """Outcomes by group, kind, quality and metric. Rows of which only the verdict is known stand with their
    group's figure.
    """
    outcomes = list(outcomes)
    usual: dict[tuple[str, str, str], str] = {}
    for outcome in outcomes:
        if outcome.metrics[0] not in (VERDICT, *SPEED):
            usual.setdefault(_group(outcome), outcome.metrics[0])
    found: dict[Key, list[Outcome]] = {}
    for outcome in outcomes:
        for metric in outcome.metrics:
            shown = usual.get(_group(outcome), metric) if metric == VERDICT else metric
            found.setdefault((*_group(outcome), shown), []).append(outcome)
    return found


def _group(outcome: Outcome) -> tuple[str, str, str]:
    return outcome.case["group"], outcome.case["kind"], outcome.case["quality"]


def summary(key: Key, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """One line of the table. Errors are fractions; ``worst`` is a magnitude, its sign stands in the rows."""
    group, kind, quality, metric = key
    rows = [row for outcome in outcomes for row in outcome.rows if row.metric == metric]
    verdicts = Counter(
        o.verdict for o in outcomes if o.metrics[0] in (metric, VERDICT)
    )  # once for a case of several metrics
    return {
        "group": group, "kind": kind, "quality": quality, "metric": metric, "cases": len(outcomes),
        "run": sum(o.refused is None for o in outcomes),
        "refused": dict(Counter(o.refused for o in outcomes if o.refused is not None).most_common()),
        "signed": mean([row.error for row in rows]), "absolute": mean([abs(row.error) for row in rows]),
        "worst": max((abs(row.error) for row in rows), default=None), "inside_range": mean([row.inside for row in rows]),
        "verdicts_right": verdicts[True], "verdicts_wrong": verdicts[False],
    }  # fmt: skip


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def overall(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """By kind: errors over quality A with complete plans, averaged inside groups and then over them; coverage
    over A and B.
    """
    found = {}
    for kind in dict.fromkeys(o.case["kind"] for o in outcomes):
        whole = [
            o
            for o in outcomes
            if o.case["kind"] == kind and not o.case.get("unknown") and o.case["quality"] in ("A", "B")
        ]
        groups: dict[str, list[Row]] = {}
        for outcome in whole:
            if outcome.case["quality"] == "A" and outcome.rows:
                groups.setdefault(outcome.case["group"], []).extend(outcome.rows)
        found[kind] = {
            "groups": len(groups),
            "absolute": mean([sum(abs(r.error) for r in rows) / len(rows) for rows in groups.values()]),
            "worst": max((abs(r.error) for rows in groups.values() for r in rows), default=None),
            "coverage": mean([o.refused is None for o in whole]),
            "inside_range": mean([sum(r.inside for r in rows) / len(rows) for rows in groups.values()]),
        }  # fmt: skip
    return found


def document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The whole result as plain values."""
    rows = [row for outcome in outcomes for row in outcome.rows]
    beyond = sorted((row for row in rows if abs(row.error) > WORST_BAR), key=lambda row: -abs(row.error))
    engines = {row.id: str(o.case["plan"].get("engine")) for o in outcomes for row in o.rows}
    return {
        "groups": [summary(key, members) for key, members in grouped(outcomes).items()],
        "overall": overall(outcomes),
        "calibration": calibration(outcomes),
        "widths": by_width(outcomes),
        "verdicts": verdicts(outcomes),
        "rows": [{**_row(row), "engine": engines[row.id]} for row in rows],
        "outside": [
            {"id": row.id, "error": row.error, "reason": _reasons().get(row.id.partition("@")[0], "")}
            for row in rows
            if not row.inside
        ],
        "beyond_bar": [
            {"id": row.id, "error": row.error, "suspect": row.suspect, "note": row.note} for row in beyond
        ],
        "wrong_verdicts": [o.case["id"] for o in outcomes if o.verdict is False],
        "peers": json.loads((DATA / "peers.json").read_text(encoding="utf-8"))["peers"],
        "remarks": {
            g: text
            for g, text in _remarks().items()
            if any(o.case["group"] == g and o.refused is None for o in outcomes)
        },
    }


def _remarks() -> dict[str, str]:
    found: dict[str, str] = json.loads((DATA / "remarks.json").read_text(encoding="utf-8"))["groups"]
    return found


def _reasons() -> dict[str, str]:
    """Why a row lies outside its range, where the engine's source says."""
    found: dict[str, str] = json.loads((DATA / "remarks.json").read_text(encoding="utf-8")).get("rows", {})
    return found


def _row(row: Row) -> dict[str, Any]:
    return {
        "id": row.id, "metric": row.metric, "predicted": row.predicted, "low": row.low, "high": row.high, "measured": row.measured,
        "error": row.error,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Errors against measured figures, by group.")
    parser.add_argument(
        "--data", type=Path, default=None, help=f"a file of schema {SCHEMA}; the published figures by default"
    )
    parser.add_argument(
        "--records", type=Path, default=None, help="a folder of records, in place of the published figures"
    )
    parser.add_argument("--group", default=None, help="only this group")
    parser.add_argument(
        "--full", action="store_true", help="every row beyond the bar, not the five worst of each group"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true")
    form.add_argument("--markdown", action="store_true", help="the page docs/accuracy.md, printed")
    form.add_argument(
        "--page",
        type=Path,
        default=None,
        metavar="FOLDER",
        help="the page and its plots, written to accuracy.md, accuracy.svg and accuracy_ranges.svg there",
    )
    chosen = parser.parse_args(arguments)
    if chosen.records and not chosen.records.is_dir():
        parser.error(f"--records {chosen.records} is not a folder")
    ours = records(chosen.records) if chosen.records else []
    theirs = load(chosen.data or DATA / "cases.json") if chosen.data or not chosen.records else []
    asked = [(run_record, ours), (run_case, theirs)]
    outcomes = [run(case) for run, cases in asked for case in cases if chosen.group in (None, case["group"])]
    if not outcomes:
        raise SystemExit(f"no cases{f' in group {chosen.group}' if chosen.group else ''}")
    result = {**document(outcomes), **({} if theirs else {"peers": []})}
    if chosen.page is not None:
        groups = {row.id: o.case["group"] for o in outcomes for row in o.rows}
        (chosen.page / "accuracy.md").write_text(markdown(result, groups) + "\n", encoding="utf-8")
        points = [row for row in result["rows"] if row["metric"] in MEMORY]
        (chosen.page / "accuracy.svg").write_text(
            parity(points, "Predicted against measured memory, every figure that ran"), encoding="utf-8"
        )
        (chosen.page / "accuracy_ranges.svg").write_text(
            reliability(points, "Ranges of measured memory: what they hold, and how wide they are"),
            encoding="utf-8",
        )
        print(
            f"{chosen.page}/accuracy.md, accuracy.svg and accuracy_ranges.svg: {len(result['rows'])} figures"
        )
        return 0
    if chosen.json:
        json.dump(result, sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        groups = {row.id: o.case["group"] for o in outcomes for row in o.rows}
        print(markdown(result, groups) if chosen.markdown else screen(result, groups, full=chosen.full))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
