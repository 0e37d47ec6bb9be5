"""An answer as JSON: ``memsheet/sheet/1``, with the plan in the vocabulary of ``memsheet/plan/1``. Keys come
in one fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from memsheet.budget import Answer, Change, Fix, LadderStep, OtherEngine, Verdict, WayToFit
from memsheet.plan.device import Cluster
from memsheet.plan.document import asked_as, plan_document
from memsheet.plan.dtypes import DType
from memsheet.plan.model import Source
from memsheet.sheet import Bytes, Cited, Derived, Evidence, Fitted, FromCode, Item, Measured, Sheet, Traced

SHEET_SCHEMA = "memsheet/sheet/1"


def sheet_document(answer: Answer) -> dict[str, Any]:
    """The whole answer as one object of plain values."""
    witness = answer.sheets[0].witness if answer.sheets else None
    return {
        "schema": SHEET_SCHEMA,
        "witness": witness.value if witness else None,
        "model": {
            "name": answer.model.name, "parameters": int(answer.parameters), "active_parameters": int(answer.active_parameters),
            "source": _source_document(answer.model.source),
        },
        "plan": None if "step" in (answer.trace or {}) else plan_document(answer.plan, model=asked_as(answer.model), cluster=answer.cluster),
        "assumed": list(answer.assumed),
        "device": _cluster_document(answer.cluster) if answer.cluster else None,
        "ranks": [_rank_sheet_document(sheet) for sheet in answer.sheets],
        "verdict": _verdict_document(answer.verdict) if answer.verdict else None,
        "serving": _json_value(answer.serving),
        **({"trace": _json_value(answer.trace)} if answer.trace is not None else {}),
        "notes": list(answer.notes),
        **({"ladder": [_ladder_step(step) for step in answer.ladder]} if answer.ladder else {}),
        **({"other_engines": [_other_engine(other) for other in answer.other_engines]} if answer.other_engines else {}),
        **({"ways_to_fit": [way_document(way) for way in answer.ways_to_fit]} if answer.ways_to_fit else {}),
    }  # fmt: skip


def way_document(way: WayToFit) -> dict[str, Any]:
    return {
        "words": way.words, "changes": dict(way.changes), "device_bytes": int(way.device.value), "device_low_bytes": int(way.device.low),
        "device_high_bytes": int(way.device.high), "host_bytes": int(way.host_bytes),
    }  # fmt: skip


def _other_engine(other: OtherEngine) -> dict[str, Any]:
    return {"engine": other.engine, "device_bytes": int(other.device.value), "result": other.result.value}


def _ladder_step(step: LadderStep) -> dict[str, Any]:
    found = {
        "seq_len": step.seq_len,
        "device_bytes": step.device_bytes,
        "result": step.result.value if step.result else None,
    }
    if step.recomputed_bytes is None:
        return found
    result = step.recomputed_result.value if step.recomputed_result else None
    return {**found, "recomputed": {"device_bytes": step.recomputed_bytes, "result": result}}


def _source_document(source: Source) -> dict[str, Any]:
    return {
        "kind": source.kind,
        "path": source.path,
        "revision": source.revision,
        "notes": list(source.notes),
    }


def _cluster_document(cluster: Cluster) -> dict[str, Any]:
    device = cluster.device
    return {
        "name": device.name, "capacity_bytes": device.framework_bytes, "count": cluster.count,
        "capacity_low_bytes": device.framework_low_bytes, "capacity_high_bytes": device.framework_high_bytes,
        "datasheet_bytes": device.datasheet_bytes, "evidence": device.evidence,
    }  # fmt: skip


def _rank_sheet_document(sheet: Sheet) -> dict[str, Any]:
    totals = {"allocated": sheet.allocated, "reserved": sheet.reserved, "device": sheet.device}
    return {
        "rank": sheet.rank, "stage": sheet.stage, "same_as": list(sheet.same_as),
        "instants": {instant.value: int(sheet.at(instant).value) for instant in sheet.instants},
        "peak_instant": sheet.peak_instant.value,
        **{key: size for name, total in totals.items() for key, size in _byte_range_fields(total, name).items()},
        "host_bytes": int(sheet.host_bytes), "notes": list(sheet.notes),
        "states": {component.value: int(size.value) for component, size in sheet.states.items()},
        "items": [_item_document(item) for item in sheet.items],
    }  # fmt: skip


def _byte_range_fields(size: Bytes, name: str) -> dict[str, int]:
    return {
        f"{name}_bytes": int(size.value),
        f"{name}_low_bytes": int(size.low),
        f"{name}_high_bytes": int(size.high),
    }


def _item_document(item: Item) -> dict[str, Any]:
    largest = item.largest.ordered
    return {
        "component": item.component.value, "path": item.path,
        "bytes": int(largest.value), "low_bytes": int(largest.low), "high_bytes": int(largest.high),
        "at": {instant.value: int(size.value) for instant, size in item.at.items()},
        "evidence": evidence_document(item.evidence),
    }  # fmt: skip


def evidence_document(evidence: Evidence) -> dict[str, Any]:
    """How a number is known, as ``{"kind": …}`` and what that kind has to say."""
    match evidence:
        case Cited(reference, at):
            return {"kind": "cited", "title": reference.title, "where": reference.where, "at": at}
        case FromCode(project, commit, file, line):
            return {"kind": "from_code", "project": project, "commit": commit, "file": file, "line": line}
        case Derived(why):
            return {"kind": "derived", "why": why}
        case Fitted(runs, hardware, date, spread):
            return {"kind": "fitted", "runs": runs, "hardware": hardware, "date": date, "spread": spread}
        case Traced(op):
            return {"kind": "traced", "op": op}
        case Measured(record):
            return {"kind": "measured", "record": record}


def _verdict_document(verdict: Verdict) -> dict[str, Any]:
    return {
        "result": verdict.result.value, "rank": verdict.rank, "instant": verdict.instant.value,
        **_byte_range_fields(verdict.device, "device"), "headroom_bytes": int(verdict.headroom_bytes),
        "host_short_bytes": int(verdict.host_short_bytes),
        "largest": [{"component": component.value, "bytes": int(size.value)} for component, size in verdict.largest],
        "cheapest_fix": fix_document(verdict.cheapest_fix) if verdict.cheapest_fix else None,
    }  # fmt: skip


def fix_document(fix: Fix) -> dict[str, Any]:
    changes = [row for change in fix.changes for row in _change_rows(change)]
    return {"changes": changes, **_byte_range_fields(fix.device, "device"), "host_bytes": int(fix.host_bytes)}


def _change_rows(change: Change) -> Iterator[dict[str, Any]]:
    """A row for every key; what all of them save together stands with the first."""
    keys = ((change.key, change.before, change.after), *change.also)
    for number, (key, before, after) in enumerate(keys):
        saves = 0 if number else int(change.saves_bytes)
        yield {
            "key": key,
            "from": _json_value(before),
            "to": _json_value(after),
            "saves_bytes": saves,
            "words": change.words,
            "needs": change.needs,
        }


def _json_value(value: Any) -> Any:
    """What JSON can hold: enums as their values, dtypes as their names, tuples as lists."""
    match value:
        case Enum():
            return _json_value(value.value)
        case DType():
            return value.name
        case Mapping():
            return {str(_json_value(key)): _json_value(held) for key, held in value.items()}
        case list() | tuple():
            return [_json_value(held) for held in value]
        case Bytes():
            return {"low": int(value.low), "value": int(value.value), "high": int(value.high)}
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)
