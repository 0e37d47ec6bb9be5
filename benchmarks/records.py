"""Our own measured runs as cases: records (``memsheet/record/1``) and bare sheets of a folder, asked of the
formulas again.

What a processor measured is compared with the formulas of a processor's kernels. A model that is not bundled
has its config in the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from asking import Case, Outcome, Row, _row, reason_of

from memsheet.account import account_rank
from memsheet.budget import Answer
from memsheet.catalog import find_device, find_model
from memsheet.errors import InputError
from memsheet.formulas.states.params import parameter_count
from memsheet.guard import MAX_JSON_BYTES, read_bytes
from memsheet.plan.device import ONE_NODE, Cluster, cluster_of
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.record import RECORD_SCHEMA, Record, parse_packed, record_from
from memsheet.resolve import resolve_document
from memsheet.sheet import Bytes, Sheet

SHEET_SCHEMA = "memsheet/sheet/1"
ENDINGS, HISTORY = (".json", ".json.gz"), (".history.", ".events.")
ALLOCATED = "peak_allocated_bytes"


def records(folder: Path) -> list[Case]:
    """Every record and measured sheet of a folder, failed runs too. Other files are left alone."""
    return [
        case
        for path in sorted(folder.iterdir())
        if path.name.endswith(ENDINGS)
        and not any(word in path.name for word in HISTORY)
        and (case := _case(path)) is not None
    ]


def _case(path: Path) -> Case | None:
    found = parse_packed(read_bytes(path, MAX_JSON_BYTES), str(path))
    schema = found.get("schema") if isinstance(found, dict) else None
    name = path.name.split(".")[0]
    if schema == SHEET_SCHEMA and found.get("witness") == "measured":
        found = {"schema": RECORD_SCHEMA, "sheet": found}
    elif schema != RECORD_SCHEMA:
        return None
    return record_case(record_from(found, name))


def record_case(record: Record) -> Case:
    """One run in the vocabulary of cases. Its ranks are compared one by one."""
    sheet: Mapping[str, Any] = record.sheet or {}
    about = (sheet.get("trace") or {}).get("measured") or {}
    place = about.get("environment") or record.environment
    device, plan = about.get("device") or place.get("device", "cuda"), sheet.get("plan") or {}
    model = (sheet.get("model") or {}).get("name") or str(record.asked.get("model"))
    config = record.asked.get("config") or (find_model(model) or {}).get("config") or {}
    card = str(place.get("device_name", device))
    return {
        "id": record.name, "group": f"measured {'cpu' if device == 'cpu' else card}", "kind": "train" if plan.get("task", "train") == "train" else "inference",
        "quality": "A", "model": model, "config": config, "hardware": {"kind": device, "card": card}, "plan": plan,
        "truth": {"ranks": sheet.get("ranks", []), "fits": None}, "failure": _failure(record), "resolution_bytes": None, "unknown": [],
    }  # fmt: skip


def _failure(record: Record) -> str | None:
    if record.failure is not None:
        return f"the run failed: {record.failure.splitlines()[0] if record.failure else ''}"
    assert record.sheet is not None
    return "the run ran out of memory" if "died" in (record.sheet.get("trace") or {}) else None


def run_record(case: Case) -> Outcome:
    """What the formulas say of a recorded run, rank by rank, or why they say nothing."""
    if case["failure"]:
        return Outcome(case=case, metrics=(ALLOCATED,), refused=case["failure"])
    try:
        rows = tuple(_rows(case))
    except InputError as error:
        return Outcome(case=case, metrics=(ALLOCATED,), refused=reason_of(case, error))
    except Exception as error:  # noqa: BLE001 - a defect is a row of the table and not the end of it
        return Outcome(
            case=case, metrics=(ALLOCATED,), refused=f"defect: {type(error).__name__}: {str(error)[:60]}"
        )
    return Outcome(case=case, metrics=tuple(dict.fromkeys(row.metric for row in rows)), rows=rows)


def predicted(case: Case) -> Answer:
    """The formulas' answer to a recorded plan, for the kind of device that ran it. Raises InputError where it
    is refused.
    """
    spec = read_hf_config(case["config"], name=case["model"])
    kind, plan = case["hardware"]["kind"], resolve_document(case["plan"], spec)
    cluster = None if kind == "cpu" else _cluster(case["hardware"]["card"], int(plan.mesh.gpus))
    sheets = tuple(account_rank(spec, plan, cluster, stage, device=kind) for stage in range(plan.mesh.pp))
    count = parameter_count(spec)
    return Answer(
        model=spec,
        parameters=count,
        active_parameters=count,
        plan=plan,
        assumed=(),
        cluster=cluster,
        sheets=sheets,
        verdict=None,
    )


def _cluster(card: str, count: int) -> Cluster | None:
    """The card by the driver's name for it; None for one that is not listed, of which tensors alone are
    compared.
    """
    try:
        device = find_device(card)
    except InputError:
        return None
    return cluster_of(device, count, per_node=max(n for n in range(1, ONE_NODE + 1) if count % n == 0))


def _rows(case: Case) -> Iterator[Row]:
    found = predicted(case)
    several = len(case["truth"]["ranks"]) > 1
    for rank in case["truth"]["ranks"]:
        sheet = _of_stage(found, rank["stage"])
        name = f"{case['id']}@rank{rank['rank']}" if several else case["id"]
        for metric, key, size in (
            (ALLOCATED, "allocated_bytes", sheet.allocated),
            *(_outside(rank, sheet) if found.cluster else ()),
        ):
            yield replace(_row(case, name, metric, size, measured=rank[key], sheet=sheet), note="")


def _outside(rank: Mapping[str, Any], sheet: Sheet) -> Iterator[tuple[str, str, Bytes]]:
    """What a GPU reserved and what was taken of it in all, where it was counted."""
    for metric, key, size in (
        ("peak_reserved_bytes", "reserved_bytes", sheet.reserved),
        ("device_bytes", "device_bytes", sheet.device),
    ):
        if rank.get(key, 0) > rank["allocated_bytes"]:
            yield metric, key, size


def _of_stage(found: Answer, stage: int) -> Sheet:
    return next((sheet for sheet in found.sheets if sheet.stage == stage), found.sheets[-1])
