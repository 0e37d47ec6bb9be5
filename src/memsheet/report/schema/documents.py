"""The JSON Schemas of a plan, a sheet, a record, a check and of searches, generated. ``python -m
memsheet.report.schema.documents`` writes them into docs/reference.

pydantic is imported here, so nothing on the way to an answer imports this module.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from memsheet.report.schema.checked import File, Mistake, MovedKey
from memsheet.report.schema.search import Plans, Solution
from memsheet.report.schema.serving import ServePlans
from memsheet.report.schema.types import Bytes, Fix, Plan, Strict, WayToFit
from memsheet.sheet import Component, Instant, Witness

FOLDER = Path("docs/reference")


class Source(Strict):
    kind: str
    path: str
    revision: str | None
    notes: list[str]


class Model(Strict):
    name: str
    parameters: int
    active_parameters: int
    source: Source


class Problem(Strict):
    """One thing wrong with an input."""

    field: str
    value: str | int | float | bool | None
    reason: str
    hint: str


class ErrorDocument(Strict):
    """What ``--json`` prints in place of an answer: every problem of the input, or an error of memsheet's
    own.
    """

    schema_: Literal["memsheet/error/1"] = Field(alias="schema")
    error: Literal["bad input", "internal error"]
    exit_code: int
    problems: list[Problem]


class Device(Strict):
    """What a framework gets of one card (the range where that is derived), and the number on the box."""

    name: str
    capacity_bytes: Bytes
    count: int
    capacity_low_bytes: Bytes
    capacity_high_bytes: Bytes
    datasheet_bytes: Bytes
    evidence: str


class Cited(Strict):
    kind: Literal["cited"]
    title: str
    where: str
    at: str


class FromCode(Strict):
    kind: Literal["from_code"]
    project: str
    commit: str
    file: str
    line: int


class Derived(Strict):
    kind: Literal["derived"]
    why: str


class Fitted(Strict):
    kind: Literal["fitted"]
    runs: str
    hardware: str
    date: str
    spread: str


class Traced(Strict):
    kind: Literal["traced"]
    op: str


class Measured(Strict):
    kind: Literal["measured"]
    record: str


Evidence = Annotated[Cited | FromCode | Derived | Fitted | Traced | Measured, Field(discriminator="kind")]


class Item(Strict):
    """One row: ``bytes`` is the largest over instants, ``at`` what it holds at each instant's high-water
    mark.

    Negative for what a device counted less than was seen (unexplained).
    """

    component: Component
    path: str
    bytes: int
    low_bytes: int
    high_bytes: int
    at: dict[Instant, int]
    evidence: Evidence


class Rank(Strict):
    """One distinct rank; ``same_as`` are the ranks folded into it. ``instants`` count tensors; ``states`` are
    model states, each at its largest.
    """

    rank: int
    stage: int
    same_as: list[int]
    instants: dict[Instant, Bytes]
    peak_instant: Instant
    allocated_bytes: Bytes
    allocated_low_bytes: Bytes
    allocated_high_bytes: Bytes
    reserved_bytes: Bytes
    reserved_low_bytes: Bytes
    reserved_high_bytes: Bytes
    device_bytes: Bytes
    device_low_bytes: Bytes
    device_high_bytes: Bytes
    host_bytes: Bytes
    notes: list[str]
    states: dict[Component, Bytes] | None = None  # documents written before it came have none
    items: list[Item]


class Largest(Strict):
    component: Component
    bytes: Bytes


class Verdict(Strict):
    """Of the worst rank. ``headroom_bytes`` is negative where it does not fit."""

    result: Literal["fits", "does_not_fit", "uncertain"]
    rank: int
    instant: Instant
    device_bytes: Bytes
    device_low_bytes: Bytes
    device_high_bytes: Bytes
    headroom_bytes: int
    host_short_bytes: int
    largest: list[Largest]
    cheapest_fix: Fix | None


class Recomputed(Strict):
    device_bytes: Bytes
    result: Literal["fits", "does_not_fit", "uncertain"] | None


class OtherEngine(Strict):
    """What the same question comes to on another engine, where nobody named one."""

    engine: str
    device_bytes: Bytes
    result: Literal["fits", "does_not_fit", "uncertain"]


class LadderStep(Strict):
    """One of the sequence lengths that were tried where none was asked for. ``recomputed``: with every layer
    recomputed.
    """

    seq_len: int
    device_bytes: Bytes
    result: Literal["fits", "does_not_fit", "uncertain"] | None
    recomputed: Recomputed | None = None


class Sheet(Strict):
    """``memsheet/sheet/1``: what is resident on every rank, and whether it fits."""

    schema_: Literal["memsheet/sheet/1"] = Field(alias="schema")
    witness: Witness
    model: Model
    plan: Plan | None
    assumed: list[str]
    device: Device | None
    ranks: list[Rank]
    verdict: Verdict | None
    serving: dict[str, Any] | None
    trace: dict[str, Any] | None = None
    notes: list[str]
    ladder: list[LadderStep] | None = None
    other_engines: list[OtherEngine] | None = None
    ways_to_fit: list[WayToFit] | None = None


class Checked(Strict):
    """``memsheet/checked/1``: what configuration files come to. ``starts`` is false where the engine refuses
    them as they stand.
    """

    schema_: Literal["memsheet/checked/1"] = Field(alias="schema")
    result: Literal["fits", "does_not_fit", "uncertain"] | None
    starts: bool
    files: list[File]
    assumed: list[str]
    mistakes: list[Mistake]
    moved: list[MovedKey]
    doubt: str | None
    why_not: list[str]
    sheet: Sheet | None


class Record(Strict):
    """``memsheet/record/1``: what was asked of one run, where it ran, its sheet or how it failed, and files
    beside it.
    """

    schema_: Literal["memsheet/record/1"] = Field(alias="schema")
    at: str
    asked: dict[str, Any]
    environment: dict[str, Any]
    sheet: Sheet | None
    failure: str | None = None
    files: dict[str, str] | None = None


def schema_texts() -> dict[str, str]:
    """File name → the schema's text."""
    models = {
        "sheet.schema.json": Sheet, "plan.schema.json": Plan, "record.schema.json": Record, "plans.schema.json": Plans,
        "solution.schema.json": Solution, "serve-plans.schema.json": ServePlans, "checked.schema.json": Checked,
        "error.schema.json": ErrorDocument,
    }  # fmt: skip
    return {
        name: json.dumps(model.model_json_schema(by_alias=True), indent=1) + "\n"
        for name, model in models.items()
    }


def write_schemas(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schema_texts().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
