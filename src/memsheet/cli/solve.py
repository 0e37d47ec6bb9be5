"""`memsheet solve`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsheet.cli import question as jobs
from memsheet.cli import screen
from memsheet.cli.forms import check_form, write_form
from memsheet.cli.job import solve_of_job
from memsheet.cli.line import Given
from memsheet.errors import input_error
from memsheet.jobs.limits import BATCH, ROWS, SHARE
from memsheet.questions.solve import Solved, solve_question, target_named
from memsheet.report.shared.exit_codes import EXIT

if TYPE_CHECKING:
    from memsheet.search.solve.sizes import Curve
    from memsheet.search.solve.targets import Solution


OF_JOBS = (SHARE, ROWS, BATCH)


def solve(asked: Given) -> int:
    """The longest sequence, the largest micro-batch, the fewest GPUs or the largest model that fits."""
    if asked.what in OF_JOBS:
        return solve_of_job(asked)
    decimal, target = screen.wants_decimal_units(asked.units), target_named(asked.what)
    check_form("solve", asked.output)
    _check_family(target.value, asked)
    question = jobs.job_arguments(asked)
    found = solve_question(
        target,
        {**question, "model": question["model"] or asked.family},
        most=jobs.parse_positive_int("most", asked.most),
        say=_show_search_progress,
    )
    _draw_solved_sizes(found, asked.picture)
    _clear_progress_line()
    return _print_solution(
        found.solution,
        found.curves,
        asked,
        decimal=decimal,
        typed=jobs.typed_options(asked, found.solution.task),
    )


def _check_family(what: str, asked: Given) -> None:
    """What belongs to `solve parameters` alone, and whether the picture can be drawn."""
    if what == "parameters" and asked.model is not None and asked.family is not None:
        raise input_error("model", asked.family, "is named twice", "once is enough")
    if what != "parameters":
        for field, value in (("model", asked.family), ("picture", asked.picture)):
            if value is not None:
                raise input_error(field, value, "belongs to `solve parameters`", "leave it out")
    if asked.picture:
        from memsheet.report.chart.timeline import check_picture_format
        from memsheet.report.shared.files import check_folder

        check_picture_format(Path(asked.picture))
        check_folder(Path(asked.picture).parent, "picture")


def _draw_solved_sizes(found: Solved, file: str | None) -> None:
    if file:
        from memsheet.report.chart.sizes import draw_sizes

        draw_sizes(found.curves, Path(file), title=found.title, under=found.caption)


def _print_solution(
    solution: Solution, curves: tuple[Curve, ...], output: Given, *, decimal: bool, typed: tuple[Any, ...]
) -> int:
    if output.output is not None:
        write_form("solve", output.output, solution, curves)
    elif output.json:
        from memsheet.report.json.solution import solution_document

        screen.write_json(solution_document(solution, curves))
    else:
        from memsheet.report.screen.solution import render_solution

        look = screen.terminal_look(decimal=decimal, full=output.full, typed=typed)
        screen.write_stdout(render_solution(solution, look, curves))
    return EXIT[solution.result]


def _show_search_progress(value: int | None) -> None:
    """How far the search is, on one line of stderr, where a person looks."""
    if sys.stderr.isatty():
        words = "clusters of other sizes" if value is None else f"replaying a step at {value:,}"
        print(f"\r\033[K{words} …", end="", file=sys.stderr, flush=True)


def _clear_progress_line() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
