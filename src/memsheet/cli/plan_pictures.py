"""The pictures of `memsheet plan`: which one is asked for, drawn into a file or on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memsheet.cli.line import Given
from memsheet.cli.progress import show_elapsed_time
from memsheet.errors import Problem, input_error, nearest_words, raise_if_problems

if TYPE_CHECKING:
    from memsheet.report.shared.look import Look
    from memsheet.search.fixes.savings_story import Step
    from memsheet.search.train.heat_map import Heat
    from memsheet.search.train.rank import Ranking
    from memsheet.search.train.timed import Planned

KINDS = ("front", "heat", "waterfall")
USUAL = "front"
USUAL_AXES = "seq_len,microbatch"
CELLS = ("least", "fastest")


def check_picture_flags(flags: Given, *, json: bool = False) -> None:
    """Before anything takes time: whether that can be drawn. Raises InputError with every problem of the
    flags, or of the file.
    """
    raise_if_problems(_picture_flag_problems(flags, json=json))
    if flags.axes is not None:
        from memsheet.search.train.axes import axes_of

        axes_of(flags.axes)
    if flags.picture is not None:
        from memsheet.report.chart.timeline import check_picture_format as check_kind
        from memsheet.report.shared.files import check_folder

        check_kind(Path(flags.picture))
        check_folder(Path(flags.picture).parent, "picture")


def _picture_flag_problems(flags: Given, *, json: bool) -> list[Problem]:
    found = list[Problem]()
    for name, value, known in (("show", flags.show, KINDS), ("cells", flags.cells, CELLS)):
        if value is not None and value not in known:
            near = nearest_words(value, known)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
            found.append(Problem(field=name, value=value, reason="is nothing that is drawn", hint=hint))
    for name, value in (("axes", flags.axes), ("cells", flags.cells)):
        if value is not None and flags.show != "heat":
            found.append(
                Problem(field=name, value=value, reason="belongs to the heat map", hint="--show heat")
            )
    if json and flags.show is not None and flags.picture is None:
        found.append(
            Problem(
                field="show",
                value=flags.show,
                reason="draws on the terminal, where JSON goes, or another form",
                hint="add --picture FILE",
            )
        )
    return found


def draw_pictures(ranking: Ranking, steps: Sequence[Step], flags: Given, look: Look) -> str:
    """What the flags ask for: written into their file, or as text for the terminal that ends in a newline;
    empty where there is none.
    """
    if flags.show is None and flags.picture is None:
        return ""
    return DRAWN[flags.show or USUAL](ranking, steps, flags, look)


def _draw_front_picture(ranking: Ranking, steps: Sequence[Step], flags: Given, look: Look) -> str:
    del steps
    if flags.picture is None:
        from memsheet.report.screen.plans.charts import render_front

        return render_front(ranking, look)
    from memsheet.report.chart.front import draw_front

    draw_front(ranking, Path(flags.picture), decimal=look.decimal)
    return ""


def _draw_waterfall_picture(ranking: Ranking, steps: Sequence[Step], flags: Given, look: Look) -> str:
    chosen, cluster = _chosen_plan(ranking), ranking.cluster
    end = "a plan that fits" if ranking.plans else "the plan that needs least"
    title = f"From the naive run to {end}: {ranking.model.name} on {cluster.count:,}×{cluster.device.name}"
    capacity = cluster.device.framework_bytes
    if flags.picture is None:
        from memsheet.report.screen.plans.charts import render_waterfall

        return render_waterfall(steps, look, title=title, capacity_bytes=capacity, chosen=chosen)
    from memsheet.report.chart.waterfall import draw_waterfall

    draw_waterfall(
        steps, Path(flags.picture), title=title, capacity_bytes=capacity, chosen=chosen, decimal=look.decimal
    )
    return ""


def _chosen_plan(ranking: Ranking) -> Planned | None:
    return ranking.plans[0] if ranking.plans else ranking.least


def _draw_heat_picture(ranking: Ranking, steps: Sequence[Step], flags: Given, look: Look) -> str:
    del steps
    found = _build_heat_map(ranking, flags)
    if flags.picture is None:
        from memsheet.report.screen.plans.charts import render_heat

        return render_heat(found, look)
    from memsheet.report.chart.heat import draw_heat

    draw_heat(found, Path(flags.picture), decimal=look.decimal)
    return ""


def _build_heat_map(ranking: Ranking, flags: Given) -> Heat:
    """The map over the flags' axes, of the engines that had any plan."""
    from memsheet.readers.calibration import efficiency_of
    from memsheet.search.train.axes import axes_of
    from memsheet.search.train.heat_map import Shows, plan_heat_map

    if not ranking.engines:
        raise input_error("show", "heat", "has no legal plan to show")
    asked = {key: value for key, value in ranking.asked.items() if key not in ("task", "engine")}
    with show_elapsed_time("weighing every plan of every cell"):
        return plan_heat_map(
            ranking.model,
            ranking.cluster,
            asked,
            ranking.engines,
            axes_of(flags.axes or USUAL_AXES),
            shows=Shows(flags.cells or "least"),
            scaled=lambda engine: efficiency_of(ranking.cluster.device.name, engine),
        )


Drawing = Callable[["Ranking", Sequence["Step"], Given, "Look"], str]
DRAWN: dict[str, Drawing] = {
    "front": _draw_front_picture,
    "heat": _draw_heat_picture,
    "waterfall": _draw_waterfall_picture,
}
