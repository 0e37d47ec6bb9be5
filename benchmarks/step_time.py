"""Predicted step times beside measured ones: raw, after calibrating on the first rows of a group, and the
order of plans.

python benchmarks/step_time.py [--group GROUP] [--rows]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from asking import cluster_for

from memsheet.errors import InputError
from memsheet.formulas.step_time import StepTime, fit_efficiency, step_time
from memsheet.formulas.step_time.calibration import MeasuredStep
from memsheet.plan.check import flatten_document
from memsheet.plan.device import Cluster
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request

GROUPS = (
    "simumax_70b", "simumax_70b_cp", "simumax_dsv2", "llmfoundry_v", "mbridge_perf_70b", "mbridge_perf_70b_sft_lora", "mbridge_perf_dsv3",
    "mbridge_perf_q30", "korthikanti_tab5", "torchtitan_2412_t1-4", "torchtitan_a100_2024", "torchtitan_asynctp_70b", "internevo_tgs",
    "megatronlm_llama_fp8",
)  # fmt: skip
NETWORKS = {"internevo_tgs": 4 * 100e9 / 8 / 8}
"""Bytes a second of a device's share of the network, where a source states another than its device's usual
one: four cards of 100 Gbit/s for the eight devices of a node (InternLM/InternEvo c628a8c,
doc/en/train_performance.md).
"""
CALIBRATES_ON = {"llmfoundry_v": 2}
"""Rows a device, the first by id; one elsewhere."""
APART = 0.03
Case = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    case: Case
    step: MeasuredStep
    raw: StepTime

    @property
    def error(self) -> float:
        return float(self.raw.value) / self.step.seconds - 1

    @property
    def inside(self) -> bool:
        return bool(self.raw.low <= self.step.seconds <= self.raw.high)


def measured_s(case: Case) -> float | None:
    truth, plan = case["truth"], case["plan"]
    if truth.get("step_time_s"):
        return float(truth["step_time_s"])
    tokens = (plan.get("global_batch") or 0) * plan["seq_len"]
    if truth.get("tokens_per_s_per_gpu"):
        return float(tokens / truth["tokens_per_s_per_gpu"] / case["hardware"]["count"])
    return float(tokens / truth["tokens_per_s"]) if truth.get("tokens_per_s") else None


def networked(case: Case) -> Cluster:
    """The case's devices on the network that its source states."""
    cluster = cluster_for(case["hardware"])
    assert cluster is not None
    rate = NETWORKS.get(case["group"])
    return cluster if rate is None else replace(cluster, links=replace(cluster.links, scale_out=rate))


def rows_of(cases: Sequence[Case], refused: dict[str, str]) -> Iterator[Row]:
    for case in sorted(cases, key=lambda c: str(c["id"])):
        seconds = measured_s(case)
        if case["plan"].get("task") != "train" or not seconds:
            continue
        try:
            step = _step(case, seconds)
            yield Row(case=case, step=step, raw=step_time(step.spec, step.plan, step.cluster))
        except InputError as error:
            refused[case["id"]] = (
                f"{error.problems[0].field} {error.problems[0].value} {error.problems[0].reason}"[:100]
            )


def _step(case: Case, seconds: float) -> MeasuredStep:
    spec = read_hf_config(case["config"], name=case["model"] or "model")
    request = {
        key: value
        for key, value in flatten_document(case["plan"]).items()
        if key not in ("schema", "model", "gpus")
    }
    cluster = networked(case)
    return MeasuredStep(
        spec=spec, plan=resolve_request(request, spec, cluster).plan, cluster=cluster, seconds=seconds
    )


def pairs(rows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """Two plans of one model, device, length and global batch, further apart than ``APART``."""
    for a, b in combinations(rows, 2):
        same = all(_workload(a.case)[key] == _workload(b.case)[key] for key in _workload(a.case))
        if same and abs(a.step.seconds / b.step.seconds - 1) > APART:
            yield a, b


def _workload(case: Case) -> dict[str, Any]:
    return {"config": case["config"], "hardware": case["hardware"]["device"], "count": case["hardware"]["count"],
            "batch": case["plan"]["global_batch"], "length": case["plan"]["seq_len"]}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """A row after calibration: its error, and whether its interval has the measured time."""

    row: Row
    error: float
    inside: bool


def calibrated_rows(rows: Sequence[Row], on: int) -> tuple[list[After], str]:
    found, words = list[After](), []
    for device in sorted({str(row.case["hardware"]["device"]) for row in rows}):
        own = [row for row in rows if str(row.case["hardware"]["device"]) == device]
        if len(own) <= on:
            continue
        scale = fit_efficiency([row.step for row in own[:on]], source=own[0].case["id"])
        words.append(f"{device} {scale.compute:.2f}/{scale.attention:.2f}/{scale.communication:.2f}")
        for row in own[on:]:
            time = step_time(row.step.spec, row.step.plan, row.step.cluster, efficiency=scale)
            inside = bool(time.low <= row.step.seconds <= time.high)
            found.append(After(row=row, error=float(time.value) / row.step.seconds - 1, inside=inside))
    return found, "; ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--group", action="append")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--data", default=str(Path(__file__).parent / "data" / "cases.json"))
    options = parser.parse_args()
    cases = json.loads(Path(options.data).read_text(encoding="utf-8"))["cases"]
    inside, total, right, apart, then, scaled = 0, 0, 0, 0, 0, 0
    for group in options.group or GROUPS:
        refused: dict[str, str] = {}
        rows = list(rows_of([c for c in cases if c["group"] == group], refused))
        after, words = calibrated_rows(rows, CALIBRATES_ON.get(group, 1))
        ordered = [(a, b) for a, b in pairs(rows)]
        good = sum((a.raw.value < b.raw.value) == (a.step.seconds < b.step.seconds) for a, b in ordered)
        then, scaled = then + sum(one.inside for one in after), scaled + len(after)
        inside, total, right, apart = (
            inside + sum(r.inside for r in rows),
            total + len(rows),
            right + good,
            apart + len(ordered),
        )
        print(
            f"{group:28} rows {len(rows):3} refused {len(refused):2}  raw mean "
            f"{_mean([r.error for r in rows]):6.1%}"
            f"  calibrated mean {_mean([one.error for one in after]):6.1%} ({words})  inside "
            f"{sum(r.inside for r in rows)}/{len(rows)},"
            f" then {sum(one.inside for one in after)}/{len(after)}"
            f"  pairs {good}/{len(ordered)}"
        )
        if options.rows:
            later = {id(one.row): one.error for one in after}
            for row in rows:
                named = " ".join(
                    f"{key[:9]} {float(value):.3g}"
                    for key, value in row.raw.parts.items()
                    if float(value) > 0
                )
                print(
                    f"   {row.case['id'][-58:]:58} {row.step.seconds:8.3f} {row.error:+6.1%} "
                    f"{later.get(id(row), 0):+6.1%}"
                    f" {'' if row.inside else 'OUT'} mfu {float(row.raw.mfu):.2f} | {named}"
                )
            for name, why in refused.items():
                print(f"   refused {name[-50:]}: {why}")
            for a, b in ordered:
                if (a.raw.value < b.raw.value) != (a.step.seconds < b.step.seconds):
                    print(
                        f"   wrong order: {a.case['id'][-40:]} {a.step.seconds:.3f} "
                        f"{float(a.raw.value):.3f} | {b.case['id'][-40:]} {b.step.seconds:.3f} "
                        f"{float(b.raw.value):.3f}"
                    )
    print(
        f"inside {inside}/{total}, after calibration {then}/{scaled}, pairs in the right order "
        f"{right}/{apart}"
    )


def _mean(errors: Sequence[float]) -> float:
    return sum(map(abs, errors)) / len(errors) if errors else 0.0


if __name__ == "__main__":
    main()
