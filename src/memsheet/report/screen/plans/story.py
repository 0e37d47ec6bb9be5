"""Why a plan looks as it does: the way from the naive run, whole copies beside shards, what its savings cost,
what else would do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from memsheet.budget import Result
from memsheet.report.screen.layout import one_line
from memsheet.report.shared.look import Look
from memsheet.report.shared.plans.family_reason import family_rejection_reason
from memsheet.report.shared.plans.words import AXES, choice_words, format_seconds, plan_summary
from memsheet.report.shared.words import flags_for
from memsheet.search.train.space import OFFLOAD, Request

if TYPE_CHECKING:
    from memsheet.report.screen.written.parts import Part, Table
    from memsheet.search.advice import Advice, Replicas
    from memsheet.search.fixes.savings_story import Step
    from memsheet.search.train.families import Family
    from memsheet.search.train.rank import Point
    from memsheet.search.train.timed import Planned

METHODS = {"lora": "LoRA, rank 16", "qlora": "QLoRA, nf4 base, rank 16"}


def plain_table(*columns: tuple[str, str]) -> Table:
    """A table without lines; a column is (heading, right or left)."""
    from memsheet.report.screen.written.parts import Table

    table = Table(gap=2, show_header=True, header_style="bold")
    for name, side in columns:
        if side == "right":
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold")
    return table


def story_table(advice: Advice, look: Look) -> Part:
    """The questions in the order one asks them, what was done, and what came of it."""
    table = plain_table(
        ("step by step", "left"),
        ("what is done", "left"),
        (look.unit, "right"),
        ("saves", "right"),
        ("a step", "right"),
        ("fits", "left"),
    )
    for step in advice.story:
        table.add_row(step.asks, *_step_cells(step, look))
    if advice.ranking.plans:
        best = advice.ranking.plans[0]
        saves = int(advice.story[-1].device.value) - int(best.verdict.device.value)
        table.add_row(
            "The best of all" if best.time else "The simplest of all",
            plan_summary(best),
            look.cell(int(best.verdict.device.value)),
            _signed_step_saving(saves, look),
            format_seconds(best.seconds) if best.time else "",
            "yes",
        )
    return table


def _signed_step_saving(size: int, look: Look) -> str:
    """What is saved; with a minus what is taken."""
    return f"-{look.cell(-size)}" if size < 0 else look.cell(size) if size else ""


def _step_cells(step: Step, look: Look) -> tuple[str, ...]:
    if not step.change:
        return f"yes: {look.need(step.part_bytes)} without gradients and states", "", "", "", ""
    kept = f" ({look.need(step.part_bytes)} without gradients and states)" if step.part_bytes else ""
    host = f" ({look.need(step.host_bytes)} of host memory a rank)" if step.host_bytes else ""
    change = f"{step.change}{kept}{host}" + ("" if step.taken else "; taken back")
    time = format_seconds(step.seconds) if step.seconds is not None else "-"
    why = "" if step.shares else ": its ranks cannot share the batch"
    why = f": host memory lacks {look.need(step.host_short_bytes)} a node" if step.host_short_bytes else why
    fits = "yes" if step.fits else f"no{why}"
    return change, look.cell(int(step.device.value)), _signed_step_saving(step.saves_bytes, look), time, fits


def copies_lines(replicas: Replicas, look: Look) -> Iterator[str]:
    """Whether plain DDP would do, and why sharding is slower."""
    fastest, plain, sharded = replicas.fastest, replicas.plain, replicas.sharded
    need = look.need(fastest.verdict.device.value)
    yield (
        f"Plain DDP fits: a whole copy on every GPU, {need}, {format_seconds(fastest.seconds)} a step "
        f"({plan_summary(fastest)})."
    )
    if (
        plain is None
        or sharded is None
        or replicas.plain_exchange is None
        or replicas.sharded_exchange is None
    ):
        return
    under = (
        f"Under {plain.plan.engine} DDP takes {format_seconds(plain.seconds)}, "
        if plain is not fastest
        else "DDP is "
    )
    more, e = sharded.seconds / plain.seconds - 1, replicas.sharded_exchange
    if more <= 0:
        yield (
            f"ZeRO-3 takes {format_seconds(sharded.seconds)}, no longer: what it exchanges is hidden "
            "behind the passes."
        )
        return
    waited = (
        f"{(e.gathered_s + e.reduced_s) * 1e3:.0f} ms against "
        f"{replicas.plain_exchange.reduced_s * 1e3:.0f} ms that no pass hides"
    )
    summed = " and sums gradients in each, where DDP sums them once a step" if e.reductions_each else ""
    yield (
        f"{under}faster than ZeRO-3, which takes {format_seconds(sharded.seconds)} ({more:+.0%}) with the "
        "same micro-batch: it gathers the "
        f"{look.need(e.gathered_bytes)} of parameters {_times_word(e.gathers_each)} in every "
        f"micro-batch{summed} ({waited})."
    )
    yield "ZeRO pays where the room that it frees takes a larger micro-batch or saves a recompute."


def _times_word(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def next_lines(advice: Advice, look: Look) -> Iterator[str]:
    """What to change for more speed, and for more room."""
    chosen = advice.ranking.plans[0]
    for undone in advice.undone:
        fits = "and still fits" if undone.planned.verdict.result is Result.FITS else "and may not fit"
        lacks = f"but lacks {look.need(undone.missing_bytes)}" if undone.missing_bytes else fits
        faster = f"{format_seconds(undone.planned.seconds)} a step ({-undone.gains_s / chosen.seconds:.0%})"
        yield f"More speed: without {undone.saving} it takes {faster}, {lacks}."
    lighter = [
        point
        for point in advice.ranking.front
        if _replayed_bytes(advice, point) < int(chosen.verdict.device.value) * LIGHTER
        and _changed_flags(chosen, point)
    ]
    if lighter:
        point = min(lighter, key=lambda one: one.seconds)
        yield (
            f"More room: {look.need(_replayed_bytes(advice, point))} at {format_seconds(point.seconds)} a "
            f"step with {_changed_flags(chosen, point)}."
        )


def _replayed_bytes(advice: Advice, point: Point) -> int:
    """What a point of the front needs: as its row in the table says, whose step was replayed, where it has
    one.
    """
    wanted = (point.engine, _compared_values(point.request))
    rows = (
        int(one.verdict.device.value)
        for one in advice.ranking.plans
        if (one.plan.engine, _compared_values(one.request)) == wanted
    )
    return next(rows, point.device_bytes)


LIGHTER = 0.9
"""Of the bytes of the best plan: less of a difference is none to speak of."""
COMPARED = (
    *(f"mesh.{axis}" for axis in AXES),
    "zero",
    "recompute.mode",
    "loss",
    "optimizer.name",
    "microbatch",
    *OFFLOAD,
)


def _compared_values(request: Request) -> dict[str, Any]:
    """What a plan's question says of what is compared; None of what it leaves to its engine."""
    degrees = {key: int(request.get(key) or 1) for key in COMPARED if key.startswith("mesh.")}
    return {
        **{key: request.get(key) for key in COMPARED},
        **{key: request.get(key) or None for key in OFFLOAD},
        **degrees,
    }


def _changed_flags(chosen: Planned, point: Point) -> str:
    """What is different there, as flags: of what that plan says, and degrees of one where it says none."""
    there, here = _compared_values(point.request), _compared_values(chosen.request)
    keys = [key for key in COMPARED if there[key] != here[key]]
    other = {key: there[key] for key in keys if there[key] is not None}
    lifted = set(OFFLOAD) & set(keys) and all(there[key] is None for key in OFFLOAD)
    gone = ["nothing offloaded"] if lifted else []
    engine = {"engine": point.engine} if point.engine != chosen.plan.engine else {}
    return ", ".join((*([flags_for({**engine, **other})] if engine or other else []), *gone))


def choices_table(advice: Advice, look: Look) -> Part:
    """What fits and what does not, by where the states are; then other things to train, and more GPUs."""
    table = plain_table(
        ("ways to make it fit", "left"),
        ("fit", "right"),
        ("a step", "right"),
        (look.unit, "right"),
        ("the best of them", "left"),
    )
    for name, families in _families_by_state_storage(advice.ranking.families).items():
        if families:
            table.add_row(name, *_family_kind_cells(advice, families, look))
    for method, planned, why in advice.methods:
        table.add_row(METHODS[method], *_other_method_cells(planned, look, why))
    if advice.more is not None:
        cluster, planned = advice.more
        table.add_row(f"AdamW on the cards of {cluster.count} GPUs", *_other_method_cells(planned, look))
    return table


def _families_by_state_storage(families: tuple[Family, ...]) -> dict[str, list[Family]]:
    """Families by where the optimizer's states are, and in how many bits."""
    found: dict[str, list[Family]] = {
        "AdamW in fp32 on the cards": [],
        "AdamW in 8 bits on the cards": [],
        "states on the host": [],
    }
    for family in families:
        eight, moved = (
            family.choice.get("optimizer.name") == "adamw_8bit",
            any(family.choice.get(key) for key in OFFLOAD[:2]),
        )
        name = (
            "states on the host"
            if moved
            else "AdamW in 8 bits on the cards"
            if eight
            else "AdamW in fp32 on the cards"
        )
        found[name].append(family)
    return found


def _family_kind_cells(advice: Advice, families: list[Family], look: Look) -> tuple[str, ...]:
    plans, fit = sum(family.plans for family in families), sum(family.fit for family in families)
    count = f"{fit:,} of {plans:,}"
    if not fit:
        nearest = min(families, key=lambda family: (family.host_missing_bytes, family.missing_bytes))
        return (
            count,
            "",
            "",
            f"none; the nearest: {family_rejection_reason(nearest, look)} ({nearest.engine})",
        )
    best = min(
        (family for family in families if family.fit), key=lambda family: family.seconds or float("inf")
    )
    shown = [
        one
        for one in advice.ranking.plans
        if one.plan.engine == best.engine and all(one.request.get(k) == v for k, v in best.choice.items())
    ]
    needs = look.cell(int(shown[0].verdict.device.value)) if shown else ""
    said = " · ".join((best.engine, *choice_words(best.choice)))
    return count, format_seconds(best.seconds) if best.seconds is not None else "", needs, said


def _other_method_cells(planned: Planned | None, look: Look, why: str = "") -> tuple[str, ...]:
    if planned is None:
        return "no", "", "", one_line(why)
    return (
        "yes",
        format_seconds(planned.seconds),
        look.cell(int(planned.verdict.device.value)),
        plan_summary(planned),
    )
