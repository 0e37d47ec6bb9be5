"""Where figures come from: every fact read in code names its file, every fitted one its runs, and none of
them is a measured case that predictions are compared with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import memsheet
from memsheet.catalog import process_overheads
from memsheet.plan.engine_registry import MODELLED, find_engine
from memsheet.sheet import Cited, Derived, Evidence, Fitted, FromCode

CASES = Path(__file__).parents[2] / "benchmarks" / "data" / "cases.json"
COMMIT = re.compile(r"[0-9a-f]{7,40}$|v?\d+(\.\d+)+$")  # a commit or a release
FITTED = ["allocator_slack", "allocator_slack_expandable", "context", "nccl_communicator"]
"""The only figures that were fitted to runs; a new one is a decision."""


def groups() -> set[str]:
    """Names of the tables and logs that predictions are compared with."""
    return {case["group"] for case in json.loads(CASES.read_text(encoding="utf-8"))["cases"]}


def entries() -> dict[str, dict[str, Any]]:
    return dict(process_overheads())


def of_engines() -> Iterator[tuple[str, Evidence]]:
    for name in MODELLED:
        engine = find_engine(name)
        assert engine is not None
        yield from ((f"{name}.{fact}", evidence) for fact, evidence in engine.evidence.items())


def of_sheets() -> Iterator[tuple[str, Evidence]]:
    for engine in ("transformers", "fsdp2", "deepspeed", "megatron"):
        for item in (
            memsheet.train("llama-tiny", engine=engine, seq_len=128, gpus="2xA100-80GB").sheets[0].items
        ):
            yield f"{engine} {item.component.value} {item.path}", item.evidence


def test_figures_that_are_fitted_are_these() -> None:
    assert sorted(name for name, entry in entries().items() if "runs" in entry) == FITTED


@pytest.mark.parametrize("name", sorted(entries()))
def test_an_overhead_names_the_code_or_the_runs_it_is_from(name: str) -> None:
    entry = entries()[name]
    if "project" in entry:
        assert all(("/" in entry["project"], COMMIT.search(entry["commit"]), entry["file"]))
    else:
        assert all((len(entry["runs"]) > 20, entry["date"], entry["hardware"], entry["spread"]))


@pytest.mark.parametrize("name", sorted(entries()))
def test_no_overhead_is_from_a_case_that_predictions_are_compared_with(name: str) -> None:
    text = json.dumps(entries()[name]).lower()
    assert not {group for group in groups() if group.lower() in text}
    assert "cases.json" not in text


def test_every_fact_of_an_engine_and_every_row_of_a_sheet_has_a_source() -> None:
    for where, evidence in (*of_engines(), *of_sheets()):
        match evidence:
            case Cited(reference, _):
                said: tuple[object, ...] = (reference.title, reference.where)
            case FromCode(project, commit, file, _):
                said = (project, COMMIT.search(commit), file)
            case Fitted(runs, hardware, date, spread):
                said = (runs, hardware, date, spread)
            case Derived(why):
                said = (why,)
            case _:
                said = (None,)
        assert all(said), where
