"""What was solved for, as JSON (``memsheet/solution/1``)."""

from __future__ import annotations

from typing import Any

from memsheet.errors import printable_line
from memsheet.formulas.states.params import parameter_count
from memsheet.plan.document import plan_document
from memsheet.report.json.answer import fix_document, way_document
from memsheet.search.solve.sizes import Curve
from memsheet.search.solve.targets import Skipped, Solution, Target
from memsheet.search.trials import Tried

SCHEMA = "memsheet/solution/1"
UNITS = {
    Target.SEQ_LEN: "tokens", Target.MICROBATCH: "sequences", Target.GPUS: "GPUs", Target.PARAMETERS: "parameters",
    Target.SEQUENCES: "sequences", Target.MAX_MODEL_LEN: "tokens",
}  # fmt: skip


def value_of(solution: Solution, tried: Tried) -> int:
    """What was solved for: of a family's member its parameters, of all else the value itself."""
    return int(parameter_count(tried.model)) if solution.target is Target.PARAMETERS else tried.value


def solution_document(solution: Solution, curves: tuple[Curve, ...] = ()) -> dict[str, Any]:
    """The solution as plain values. ``found`` is null where nothing fits."""
    found, shown = solution.found, solution.shown
    return {
        "schema": SCHEMA, "solve": solution.target.value, "result": solution.result.value, "unit": UNITS[solution.target],
        "value": value_of(solution, found) if found else None,
        **{name: _tried_value_document(solution, tried) if tried else None for name, tried in (
            ("found", found), ("next", solution.beyond), ("last_fitting", solution.last_fitting), ("expected", solution.expected),
            ("possible", solution.possible), ("least", solution.least),
        )},
        "plan": plan_document(shown.plan, model=shown.model.name, cluster=shown.cluster),
        "assumed": [*solution.assumed, *shown.assumed],
        "device": _tried_device_document(shown),
        "search": {
            "values": solution.values, "accounted": len(solution.tried), "skipped": [_skipped_value_document(each) for each in solution.skipped],
            "tried": [{"value": value_of(solution, tried), "result": tried.verdict.result.value} for tried in solution.tried],
        },
        **({"sizes": [_size_curve_document(curve) for curve in curves]} if curves else {}),
        "cheapest_fix": fix_document(solution.fix) if solution.fix else None, "notes": list(solution.notes),
        **({"ways_to_fit": [way_document(way) for way in solution.ways_to_fit]} if solution.ways_to_fit else {}),
    }  # fmt: skip


def _tried_device_document(tried: Tried) -> dict[str, Any]:
    device = tried.cluster.device
    return {"name": device.name, "capacity_bytes": device.framework_bytes, "count": tried.cluster.count}


def _tried_value_document(solution: Solution, tried: Tried) -> dict[str, Any]:
    verdict = tried.verdict
    layers = tried.model.layers
    return {
        "value": value_of(solution, tried), "gpus": tried.cluster.count,
        "model": {
            "name": printable_line(tried.model.name), "parameters": int(parameter_count(tried.model)), "layers": layers,
            "hidden": int(tried.model.hidden),
        },
        "replayed": tried.replayed, "result": verdict.result.value, "rank": verdict.rank, "stage": tried.stage, "instant": verdict.instant.value,
        "device_bytes": int(verdict.device.value), "device_low_bytes": int(verdict.device.low), "device_high_bytes": int(verdict.device.high),
        "headroom_bytes": int(verdict.headroom_bytes), "host_short_bytes": int(verdict.host_short_bytes),
        "largest": [{"component": component.value, "bytes": int(size.value)} for component, size in verdict.largest],
    }  # fmt: skip


def _skipped_value_document(skipped: Skipped) -> dict[str, Any]:
    return {"value": skipped.value, "reason": skipped.reason}


def _size_curve_document(curve: Curve) -> dict[str, Any]:
    points = [{"gpus": point.gpus, "parameters": point.parameters or None} for point in curve.points]
    return {
        "name": curve.name,
        "zero": curve.zero,
        "engine": curve.engine,
        "points": points,
        "reason": curve.reason,
    }
