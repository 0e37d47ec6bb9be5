"""Published plans beside the plans that memsheet finds for the same job: is the published one legal, does it
fit, is ours predicted at least as fast.

    python benchmarks/published_plans.py [--group PREFIX] [--json] [--data FILE]

Both are asked of the same formulas on the same model, cards, length, global batch, precision and engine. What
a plan chooses (the mesh, the micro-batch, the schedule, recompute, sharding, the loss, offload) is left to
the search; all else stays as published. Nothing is fitted, and no measured figure is read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from asking import Case, cluster_for, reason_of

from memsheet.budget import Result, budget_of
from memsheet.errors import InputError
from memsheet.plan.check import flatten_document
from memsheet.plan.plan import Plan
from memsheet.readers.hf_config import read_hf_config
from memsheet.search.train.rank import Ranking, rank_training_plans
from memsheet.search.train.space import Space, space_of
from memsheet.search.train.timed import APART, Planned, planned_of
from memsheet.units import GIB

GROUPS = ("korthikanti_tab5", "megatronlm_llama_fp8", "torchtitan_", "mbridge_perf_")
"""Published configurations of training, by how their groups begin."""
OPEN = ("mesh", "zero", "reshard_after_forward", "sequence_parallel", "context_parallel_comm", "schedule", "layers_per_stage", "microbatch", "loss",
        "recompute", "offload", "async_tp")  # fmt: skip
"""What the search chooses; of a nested key its first name."""
DATA = Path(__file__).parent / "data" / "cases.json"
LOOKED_AT = 4
"""Of the fastest plans, until one fits when it is accounted by itself."""
Kept = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A case with its published plan and ours. ``ratio``: our seconds over the published plan's; None where
    either is missing. ``why``: what is to be said of a case that is no plain success.
    """

    id: str
    group: str
    published: str
    legal: bool
    verdict: str
    low_bytes: int
    device_bytes: int
    high_bytes: int
    seconds: float | None
    ours: str
    our_seconds: float | None
    plans: int
    why: str

    @property
    def ratio(self) -> float | None:
        return self.our_seconds / self.seconds if self.seconds and self.our_seconds else None

    @property
    def holds(self) -> bool:
        """Legal, fits, and ours is at least as fast."""
        return (
            self.legal
            and self.verdict == Result.FITS.value
            and self.ratio is not None
            and self.ratio <= 1 + 1e-9
        )


def compared(cases: Sequence[Case]) -> Iterator[Compared]:
    """Every case beside the best plan of its space. Equal questions are searched once."""
    found: dict[Kept, Ranking | str] = {}
    for case in cases:
        yield _compared(case, found)


def _compared(case: Case, found: dict[Kept, Ranking | str]) -> Compared:
    model, cluster = (
        read_hf_config(case["config"], name=case["model"] or "model"),
        cluster_for(case["hardware"]),
    )
    assert cluster is not None
    request = {
        key: value
        for key, value in flatten_document(case["plan"]).items()
        if key not in ("schema", "model", "gpus")
    }
    known = {"id": case["id"], "group": case["group"]}
    try:
        published = planned_of(model, cluster, request)
    except InputError as error:
        nothing = {
            "low_bytes": 0,
            "device_bytes": 0,
            "high_bytes": 0,
            "seconds": None,
            "our_seconds": None,
            "plans": 0,
        }
        return Compared(
            **known, **nothing, published="", legal=False, verdict="", ours="", why=reason_of(case, error)
        )
    question = {key: value for key, value in request.items() if key.partition(".")[0] not in OPEN}
    key = tuple(
        json.dumps(part, sort_keys=True, default=str) for part in (case["config"], case["hardware"], question)
    )
    if key not in found:
        found[key] = rank_training_plans(model, cluster, question, [request["engine"]], top=1)
    ranking = found[key]
    ours, size = _fastest(ranking), published.verdict.device
    return Compared(
        **known,
        published=short(published.plan),
        legal=True,
        verdict=published.verdict.result.value,
        low_bytes=int(size.low),
        device_bytes=int(size.value),
        high_bytes=int(size.high),
        seconds=published.seconds if published.time else None,
        ours=short(ours.plan) if ours else "",
        our_seconds=ours.seconds if ours else None,
        plans=ranking.legal,
        why="; ".join(_why(published, ours, space_of(model, cluster, question))),
    )


def _fastest(ranking: Ranking) -> Planned | None:
    """The fastest plan that fits: the one shown first is the simplest of those that cannot be told apart."""
    kept = list(ranking.plans)
    for point in ranking.front[:LOOKED_AT]:
        planned = planned_of(ranking.model, ranking.cluster, point.request)
        if planned.verdict.result is Result.FITS:
            kept.append(planned)
            break
    return min(kept, key=lambda planned: planned.seconds, default=None)


def _why(published: Planned, ours: Planned | None, space: Space) -> Iterator[str]:
    """Facts that explain a case where ours is slower, or the published plan not sure to fit."""
    over = max(0, int(published.verdict.device.high) - budget_of(space.cluster).low_bytes)
    if over:
        yield (
            f"published: the high end of its range is {over / GIB:.1f} GiB over, and the search offers "
            "what surely fits"
        )
    if ours is None:
        yield "no plan of the space surely fits"
    elif published.seconds < ours.seconds:
        outside = list(outside_of(published, space))
        if outside or not over:
            yield f"not searched: {', '.join(outside)}" if outside else "in the space, and slower there"
        if ours.seconds <= published.seconds * (1 + APART):
            yield f"a tie: times are told apart from {APART:.0%} on"


def outside_of(published: Planned, space: Space) -> Iterator[str]:
    """Choices of a plan that its engine's space does not have."""
    plan, mesh = published.plan, published.plan.mesh
    cut = [one for one in space.pipelines if (one["mesh.pp"], one["mesh.vpp"]) == (mesh.pp, mesh.vpp)]
    if not cut:
        yield f"{mesh.vpp} chunks on each of {mesh.pp} stages"
    elif (
        plan.layers_per_stage
        and len(set(plan.layers_per_stage)) > 1
        and all("layers_per_stage" not in one for one in cut)
    ):
        yield f"layers dealt unevenly to {mesh.pp * mesh.vpp} parts"
    modes = [(one.get("recompute.mode"), tuple(one.get("recompute.modules") or ())) for one in space.choices]
    modules = plan.recompute.modules if plan.recompute.modules != space.engine.selective else ()
    if (plan.recompute.mode.value, modules) not in modes:
        yield f"recompute {plan.recompute.mode.value} of {', '.join(modules) or 'other modules'}"
    if plan.recompute.layers is not None:
        yield f"recompute of {plan.recompute.layers} layers"
    if all(one.get("loss") not in (None, plan.loss.value) for one in space.choices):
        yield f"loss {plan.loss.value}"
    if plan.async_tp:
        yield "async_tp"


def short(plan: Plan) -> str:
    """Degrees above one, sharding, the micro-batch, and what is recomputed."""
    mesh = plan.mesh
    words = [
        f"{name}{value}"
        for name, value in (
            ("dp", mesh.data_parallel),
            ("cp", mesh.cp),
            ("tp", mesh.tp),
            ("pp", mesh.pp),
            ("v", mesh.vpp),
            ("ep", mesh.ep),
            ("etp", mesh.etp),
        )
        if value > 1
    ]
    again = {"none": "", "full": "full", "selective": "+".join(plan.recompute.modules) or "selective"}[
        plan.recompute.mode.value
    ]
    kept = f"/{plan.recompute.layers}" if plan.recompute.layers is not None else ""
    words += [
        f"z{plan.zero}",
        f"mb{plan.training.microbatch}",
        *([again + kept] if again else []),
        *(["async"] if plan.async_tp else []),
    ]
    return " ".join(words)


# what is printed --------------------------------------------------------------------------------------------


def screen(rows: Sequence[Compared]) -> Iterator[str]:
    yield (
        f"{'case':44} {'published plan':32} {'device GiB':>22} {'verdict':9} {'seconds':>8} {'ours':>8} "
        f"{'ratio':>6}  {'our plan':34} why"
    )
    for row in rows:
        name = row.id.removeprefix("mbridge_").removeprefix("torchtitan_").removeprefix("megatronlm_")[-44:]
        if not row.legal:
            yield f"{name:44} refused: {row.why}"
            continue
        sizes = f"{row.low_bytes / GIB:.1f} {row.device_bytes / GIB:.1f} {row.high_bytes / GIB:.1f}"
        times = [
            f"{value:8.3f}" if value is not None else f"{'-':>8}" for value in (row.seconds, row.our_seconds)
        ]
        ratio = f"{row.ratio:6.3f}" if row.ratio is not None else f"{'-':>6}"
        yield (
            f"{name:44} {row.published:32} {sizes:>22} {row.verdict:9} {times[0]} {times[1]} {ratio}  "
            f"{row.ours:34} {row.why}"
        )
    yield ""
    yield "; ".join(f"{key.replace('_', ' ')} {value}" for key, value in summary(rows).items())


def summary(rows: Sequence[Compared]) -> Mapping[str, int]:
    legal = [row for row in rows if row.legal]
    ratios = [row.ratio for row in legal if row.ratio is not None]
    return {
        "cases": len(rows), "refused": len(rows) - len(legal), "fit": sum(row.verdict == Result.FITS.value for row in legal),
        "uncertain": sum(row.verdict == Result.UNCERTAIN.value for row in legal),
        "do_not_fit": sum(row.verdict == Result.DOES_NOT_FIT.value for row in legal),
        "at_least_as_fast": sum(ratio <= 1 + 1e-9 for ratio in ratios),
        "within_3_percent": sum(1 + 1e-9 < ratio <= 1 + APART for ratio in ratios), "slower": sum(ratio > 1 + APART for ratio in ratios),
    }  # fmt: skip


def chosen(path: Path, groups: Sequence[str]) -> list[Case]:
    """Cases whose group begins as asked, by id."""
    cases: list[Case] = json.loads(path.read_text(encoding="utf-8"))["cases"]
    found = [
        case
        for case in cases
        if case["plan"].get("task") == "train" and case["group"].startswith(tuple(groups))
    ]
    return sorted(found, key=lambda case: (str(case["group"]), str(case["id"])))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Published plans beside ours.")
    parser.add_argument(
        "--group",
        action="append",
        metavar="PREFIX",
        help=f"groups that begin so; {', '.join(GROUPS)} by default",
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    cases = chosen(options.data, options.group or GROUPS)
    if not cases:
        raise SystemExit(f"no cases in groups {', '.join(options.group or GROUPS)}")
    rows = list(compared(cases))
    if options.json:
        listed = [{**asdict(row), "ratio": row.ratio, "holds": row.holds} for row in rows]
        json.dump({"summary": summary(rows), "cases": listed}, sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print("\n".join(screen(rows)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
