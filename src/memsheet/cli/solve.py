"""`memsheet solve`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsheet.cli import job as jobs
from memsheet.cli import screen
from memsheet.cli.line import Given
from memsheet.errors import refuse
from memsheet.questions.solve import Solved, solved, target_named

if TYPE_CHECKING:
    from memsheet.search.solve.sizes import Curve
    from memsheet.search.solve.targets import Solution


def solve(asked: Given) -> int:
    """The longest sequence, the largest micro-batch, the fewest GPUs or the largest model that fits."""
    decimal, target = screen.decimal(asked.units), target_named(asked.what)
    _check_family(target.value, asked)
    question = jobs.question(asked)
    found = solved(target, {**question, "model": question["model"] or asked.family}, most=jobs.number("most", asked.most), say=_say)
    _draw(found, asked.picture)
    _silence()
    return _shown(found.solution, found.curves, asked, decimal=decimal, typed=jobs.typed_options(asked, target.task))


def _check_family(what: str, asked: Given) -> None:
    """What belongs to `solve parameters` alone, and whether the picture can be drawn."""
    if what == "parameters" and asked.model is not None and asked.family is not None:
        raise refuse("model", asked.family, "is named twice", "once is enough")
    if what != "parameters":
        for field, value in (("model", asked.family), ("picture", asked.picture)):
            if value is not None:
                raise refuse(field, value, "belongs to `solve parameters`", "leave it out")
    if asked.picture:
        from memsheet.report.chart.timeline import check
        from memsheet.report.shared.files import check_folder

        check(Path(asked.picture))
        check_folder(Path(asked.picture).parent, "picture")


def _draw(found: Solved, file: str | None) -> None:
    if file:
        from memsheet.report.chart.sizes import draw_sizes

        draw_sizes(found.curves, Path(file), title=found.title, under=found.caption)


def _shown(solution: Solution, curves: tuple[Curve, ...], output: Given, *, decimal: bool, typed: tuple[Any, ...]) -> int:
    if output.json:
        from memsheet.report.json.solution import solution_document

        screen.write_json(solution_document(solution, curves))
    else:
        from memsheet.report.screen.solution import render_solution
        from memsheet.report.shared.look import Look

        look = Look(
            width=screen.width(), decimal=decimal, full=output.full, colour=screen.colour(), ascii=screen.plain_ascii(), typed=typed
        )
        screen.write(render_solution(solution, look, curves))
    return jobs.EXIT[solution.result]


def _say(value: int | None) -> None:
    """How far the search is, on one line of stderr, where a person looks."""
    if sys.stderr.isatty():
        words = "clusters of other sizes" if value is None else f"replaying a step at {value:,}"
        print(f"\r\033[K{words} …", end="", file=sys.stderr, flush=True)


def _silence() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
