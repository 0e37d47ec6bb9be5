"""`memsheet calibrate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memsheet.catalog import find_device, find_gpus, find_model, model_names
from memsheet.cli import screen
from memsheet.cli.line import Given
from memsheet.errors import input_error
from memsheet.formulas.step_time import Efficiency, fit_efficiency
from memsheet.formulas.step_time.calibration import MeasuredStep
from memsheet.plan.check import flatten_document
from memsheet.plan.device import Device, cluster_of
from memsheet.readers.calibration import (
    OFF,
    SCALARS,
    SCHEMA,
    VARIABLE,
    calibration_file,
    entry_name,
    read_calibrations,
)
from memsheet.readers.model import read_model
from memsheet.readers.record import Record, read_record
from memsheet.report.shared.files import alone_with, write_whole
from memsheet.report.shared.json_text import dump_json_line
from memsheet.resolve import resolve_request

MOST_RECORDS = 2


def calibrate(asked: Given) -> int:
    """Scale step times by a measured one, from now on, for its device and engine."""
    path, names = calibration_file(), asked.records or []
    if path is None:
        raise input_error(VARIABLE, OFF, "switches calibration off", "unset it to calibrate")
    if not 1 <= len(names) <= MOST_RECORDS:
        raise input_error(
            "from",
            None,
            f"takes one record or {MOST_RECORDS}",
            "make one with `memsheet measure … --record FILE`",
        )
    steps = [_measured_step(read_record(Path(name)), asked.gpus) for name in names]
    found = {entry_name(step.cluster.device.name, step.plan.engine) for step in steps}
    if len(found) > 1:
        raise input_error(
            "from",
            " and ".join(sorted(found)),
            "are different devices or engines",
            "calibrate each on its own",
        )
    name = found.pop()
    scale = None if asked.forget else _fit_checked_efficiency(steps, names)
    with alone_with(path, "calibration"):
        kept = read_calibrations(path)
        kept.pop(name, None)
        if scale is not None:
            kept[name] = {**{key: round(getattr(scale, key), 4) for key in SCALARS}, "records": names}
        write_whole(path, dump_json_line({"schema": SCHEMA, "entries": kept}).encode(), "calibration")
    if asked.json:
        screen.write_json({"schema": SCHEMA, "file": str(path), "entries": {name: kept.get(name)}})
    else:
        screen.write_stdout(_calibration_summary(name, steps, scale, path))
    return 0


NEAR = 0.3
"""How far a prediction may stay from the step it was scaled by: two steps may ask for different scalars, one
alone is met.
"""


def _fit_checked_efficiency(steps: Sequence[MeasuredStep], names: Sequence[str]) -> Efficiency:
    found = fit_efficiency(steps, source=", ".join(names))
    for step, name in zip(steps, names, strict=True):
        if abs(step.predicted(found) / step.seconds - 1) > NEAR:
            reason = (
                f"no scalar brings {step.predicted(Efficiency()):.3g} s predicted to "
                f"{step.seconds:.3g} s measured"
            )
            raise input_error(
                "from",
                name,
                reason,
                (
                    "measure a step of a larger model or micro-batch, which the device and not the host "
                    "takes "
                    "its time for"
                ),
            )
    return found


def _mapping_in(held: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """What stands under a key, where that is a group; else nothing."""
    found = held.get(key)
    return found if isinstance(found, Mapping) else {}


def _rank_count(request: Mapping[str, Any], name: str) -> int:
    """GPUs of a plan's mesh. Raises InputError for a degree that is no whole number."""
    count = 1
    for key in ("dp_replicate", "dp_shard", "cp", "tp", "pp"):
        degree = request.get(f"mesh.{key}", 1)
        if type(degree) is not int or degree < 1:
            raise input_error(
                "from",
                name,
                f"has mesh.{key} = {degree!r}, which is no number of ranks",
                f"for example {key} = 1",
            )
        count *= degree
    return count


def _measured_step(record: Record, gpus: str | None) -> MeasuredStep:
    """The measured step of a record. Raises InputError where it is none of training on a device whose rates
    are known.
    """
    sheet: Mapping[str, Any] = record.sheet or {}
    measured = _mapping_in(_mapping_in(sheet, "trace"), "measured")
    plan = _mapping_in(sheet, "plan")
    if (
        plan.get("task") != "train"
        or not isinstance(measured.get("step_s"), int | float)
        or measured["step_s"] <= 0
    ):
        raise input_error(
            "from",
            record.name,
            "holds no timed training step",
            "make one with `memsheet measure MODEL --record FILE`",
        )
    device = _record_device(record, gpus)
    config = record.asked.get("config")
    spec = read_model(
        config if isinstance(config, Mapping) else str(record.asked.get("model") or ""),
        catalog=find_model,
        names=model_names(),
    )
    request = {
        key: value
        for key, value in flatten_document(plan).items()
        if key not in ("schema", "model", "gpus") and value is not None
    }
    count = _rank_count(request, record.name)
    cluster = cluster_of(device, count, per_node=None if device.per_node else count)
    return MeasuredStep(
        spec=spec,
        plan=resolve_request(request, spec, cluster).plan,
        cluster=cluster,
        seconds=float(measured["step_s"]),
    )


def _record_device(record: Record, gpus: str | None) -> Device:
    if gpus is not None:
        return find_gpus(gpus)[1]
    name = str(record.environment.get("device_name") or record.environment.get("device") or "")
    if str(record.environment.get("device")) == "cpu":
        raise input_error(
            "from", name, "is a processor, whose rates are not known", "calibrate on a step that ran on a GPU"
        )
    return find_device(name)


def _calibration_summary(
    name: str, steps: Sequence[MeasuredStep], scale: Efficiency | None, path: Path
) -> str:
    if scale is None:
        return f"{name}: nothing is kept any more in {path}.\n"
    rows = [
        (
            f"  measured {step.seconds:.4g} s, predicted {step.predicted(Efficiency()):.4g} s, now "
            f"{step.predicted(scale):.4g} s"
        )
        for step in steps
    ]
    shares = (
        f"products {scale.compute:.2f}, attention {scale.attention:.2f}, communication "
        f"{scale.communication:.2f}"
    )
    told = f"kept in {path}; --forget removes it, {VARIABLE}={OFF} leaves it aside"
    return "\n".join([f"{name}: {shares} of the rates of bursts", *rows, told]) + "\n"
