"""What was searched for, as a screen and as JSON (``memsheet/plans/1``): the plan to take first, then the others, then what did not fit and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from memsheet.budget import Result
from memsheet.formulas.step_time import CONVENTION
from memsheet.report.bars import Look
from memsheet.report.json import plan_document
from memsheet.report.layout import one_line, printed, row
from memsheet.report.table import asked, capacity, headroom, spread
from memsheet.report.words import flags_for
from memsheet.search.rank import Family, Planned, Ranking
from memsheet.spec.names import SHORT

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA = "memsheet/plans/1"
FAMILIES, REASONS = 12, 3
SAID = ("seq_len", "global_batch", "task", "model", "gpus")
"""Keys that the question says itself."""


def render_plans(ranking: Ranking, look: Look) -> str:
    """The whole screen as text that ends in a newline."""
    return printed(_parts(ranking, look), look)


def _parts(ranking: Ranking, look: Look) -> Iterator[RenderableType]:
    best = ranking.plans[0] if ranking.plans else ranking.least
    if best is None:
        yield row("NO LEGAL PLAN", "bold red", map(one_line, ranking.notes), look, between="; ")
        return
    look = look.fitted(int(best.verdict.device.high))
    yield _headline(ranking, best, look)
    yield asked(best.tried.answer, look)
    yield row("Run", "bold", (command(ranking, best),), look)
    if len(ranking.plans) > 1:
        yield _table(ranking, look)
    yield _families(ranking, look)
    yield row("Looked at", "bold", _counted(ranking), look)
    if notes := (*ranking.notes, *_refused(ranking), *_timed(best)):
        yield row("Notes", "bold", ("\n".join(map(one_line, notes)),), look)


def _headline(ranking: Ranking, best: Planned, look: Look) -> RenderableType:
    needs = f"needs {look.need(best.verdict.device.value)} of {capacity(ranking.cluster.device, look)} per GPU"
    said = needs, spread(best.verdict.device, look).strip(" ()"), headroom(best.verdict, look)
    if not ranking.plans:
        return row("NOTHING FITS", "bold red", (f"the plan that needs least {needs}", *said[1:]), look)
    host = (f"{look.need(best.host_bytes)} of host memory a rank",) if best.host_bytes else ()
    return row("BEST PLAN", "bold green", (*_time(best), *said, *host), look)


def _time(planned: Planned) -> Iterator[str]:
    time = planned.time
    if time is None:
        yield "its step is not timed"
        return
    yield f"{seconds(float(time.value))} a step ({seconds(float(time.low))} to {seconds(float(time.high))})"
    yield f"{float(time.tokens_per_s_per_gpu):,.0f} tokens/s a GPU"
    yield f"{float(time.mfu):.0%} of the dense rate"


def seconds(value: float) -> str:
    """Seconds with three digits."""
    return f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"


def command(ranking: Ranking, planned: Planned) -> str:
    """The command that shows a plan's sheet."""
    values = {key: value for key, value in planned.request.items() if key not in ("task", "model", "gpus") and value not in (None, False)}
    usual = {"mesh.dp_replicate": 1, "mesh.cp": 1, "mesh.tp": 1, "mesh.pp": 1, "mesh.vpp": 1, "mesh.ep": 1, "mesh.etp": 1}
    kept = {key: value for key, value in values.items() if usual.get(key) != value}
    return f"memsheet train {ranking.model.name} --gpus {ranking.cluster.count}x{ranking.cluster.device.name} {flags_for(kept)}"


def _table(ranking: Ranking, look: Look) -> RenderableType:
    """The plans that fit, the one to take first; ``=`` marks times that cannot be told from the fastest."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=True, header_style="bold")
    for name in ("a step", "tokens/s/GPU", "MFU", look.unit):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("plan", overflow="fold")
    for planned in ranking.plans:
        time = planned.time
        figures = (
            ("-", "-", "-")
            if time is None
            else (_step(ranking, planned), f"{float(time.tokens_per_s_per_gpu):,.0f}", f"{float(time.mfu):.0%}")
        )
        table.add_row(*figures, look.cell(planned.verdict.device.value), words(planned))
    return table


def _step(ranking: Ranking, planned: Planned) -> str:
    return f"{'= ' if ranking.equals(planned) else ''}{seconds(planned.seconds)}"


def words(planned: Planned) -> str:
    """A plan in short: engine, degrees above one, and what it does to save memory."""
    plan, mesh = planned.plan, planned.plan.mesh
    degrees = [
        f"{axis} {getattr(mesh, axis)}"
        for axis in ("dp_replicate", "dp_shard", "cp", "tp", "pp", "vpp", "ep", "etp")
        if getattr(mesh, axis) > 1
    ]
    saved = choice_words({key: planned.request.get(key) for key in (*_CHOICES, "zero")})
    return " · ".join((plan.engine, *degrees, f"microbatch {plan.microbatch}", *saved))


_CHOICES = ("recompute.mode", "optimizer.name", "loss", "offload.optimizer", "offload.parameters", "offload.activations")


def choice_words(choice: Mapping[str, Any]) -> list[str]:
    """How a family saves memory, in words; what everybody does is left out."""
    said = [f"zero {choice['zero']}"] if choice.get("zero") else []
    if choice.get("recompute.mode") not in (None, "none"):
        said.append(f"recompute {choice['recompute.mode']}")
    if choice.get("optimizer.name") not in (None, "adamw"):
        said.append(str(choice["optimizer.name"]))
    if choice.get("loss") not in (None, "plain"):
        said.append(f"{choice['loss']} loss")
    moved = [key.removeprefix("offload.") for key in choice if key.startswith("offload.") and choice[key]]
    return [*said, *([f"offload {', '.join(moved)}"] if moved else [])]


def _families(ranking: Ranking, look: Look) -> RenderableType:
    """How plans may save memory, and what comes of it: the fastest that fits, or what the nearest lacks."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=True, header_style="bold")
    table.add_column("what was tried", overflow="fold")
    for name in ("plans", "fit"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("fastest, or what is missing", justify="right", no_wrap=True)
    ordered = sorted(ranking.families, key=_order)
    for family in ordered if look.full else ordered[:FAMILIES]:
        table.add_row(
            " · ".join((family.engine, *choice_words(family.choice))), f"{family.plans:,}", f"{family.fit:,}", _came(family, look)
        )
    return table


def _order(family: Family) -> tuple[float, int]:
    return (family.seconds if family.seconds is not None else float("inf"), family.missing_bytes)


def _came(family: Family, look: Look) -> str:
    if family.seconds is not None:
        return seconds(family.seconds)
    if family.fit:
        return "fits, not timed"
    return f"{look.need(family.missing_bytes)} too much" if family.missing_bytes else "fits with luck"


def _counted(ranking: Ranking) -> Iterator[str]:
    """How many plans there are, by their verdict."""
    yield f"{ranking.legal:,} legal plans of {', '.join(ranking.engines)}"
    names = {Result.FITS: "fit", Result.UNCERTAIN: "uncertain", Result.DOES_NOT_FIT: "do not fit"}
    yield from (f"{ranking.looked_at.get(result, 0):,} {name}" for result, name in names.items())


def _refused(ranking: Ranking) -> Iterator[str]:
    ruled = sorted(ranking.refused.items(), key=lambda pair: -pair[1])
    if ruled:
        yield "ruled out before: " + "; ".join(f"{count:,} {reason}" for reason, count in ruled[:REASONS])


def _timed(best: Planned) -> Iterator[str]:
    if best.time is None:
        return
    yield f"times are for ranking; {CONVENTION}"
    yield best.time.calibrated or "no measured step scales these times; `memsheet calibrate --from RECORD` does"


def plans_document(ranking: Ranking) -> dict[str, Any]:
    """The search as plain values; each plan can be asked again, and exported."""
    return {
        "schema": SCHEMA, "model": ranking.model.name, "gpus": f"{ranking.cluster.count}x{ranking.cluster.device.name}",
        "engines": list(ranking.engines), "plans": [_planned(ranking, planned) for planned in ranking.plans],
        "least": _planned(ranking, ranking.least) if ranking.least else None,
        "families": [
            {"engine": f.engine, "choice": dict(f.choice), "plans": f.plans, "fit": f.fit, "step_time_s": f.seconds, "missing_bytes": f.missing_bytes, "stage": f.stage}
            for f in sorted(ranking.families, key=_order)
        ],
        "front": [{"step_time_s": p.seconds, "device_bytes": p.device_bytes, "engine": p.engine, "request": named(p.request)} for p in ranking.front],
        "looked_at": {result.value: ranking.looked_at.get(result, 0) for result in Result}, "refused": dict(ranking.refused),
        "notes": list(ranking.notes),
    }  # fmt: skip


def _planned(ranking: Ranking, planned: Planned) -> dict[str, Any]:
    device, time = planned.verdict.device, planned.time
    return {
        "plan": plan_document(planned.plan, model=ranking.model.name, cluster=ranking.cluster), "assumed": list(planned.tried.assumed),
        "verdict": planned.verdict.result.value, "device_bytes": [int(device.low), int(device.value), int(device.high)],
        "headroom_bytes": int(planned.verdict.headroom_bytes), "host_bytes": int(planned.host_bytes), "command": command(ranking, planned),
        "step_time_s": [float(time.low), float(time.value), float(time.high)] if time else None,
        "tokens_per_s_per_gpu": float(time.tokens_per_s_per_gpu) if time else None, "mfu": float(time.mfu) if time else None,
    }  # fmt: skip


def named(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request by the names of flags."""
    short = {key: name for name, key in SHORT.items()}
    return {short.get(key, key): value for key, value in request.items() if key not in SAID and value is not None}
