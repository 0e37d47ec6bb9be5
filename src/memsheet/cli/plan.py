"""`memsheet plan`."""

from __future__ import annotations

from time import monotonic

from memsheet.cli import question as jobs
from memsheet.cli import screen
from memsheet.cli.forms import check_form, write_form
from memsheet.cli.line import Given
from memsheet.cli.plan_pictures import check_picture_flags, draw_pictures
from memsheet.cli.plan_serving import check_train, run_serving_search
from memsheet.cli.progress import show_elapsed_time
from memsheet.errors import input_error
from memsheet.questions.bare_counts import count_of
from memsheet.questions.plan import plan as best_plans
from memsheet.questions.plan import plan_serving
from memsheet.report.shared.exit_codes import EXIT

ILLEGAL = 2
TASKS = ("train", "infer")
SHOWN = 5


def plan(asked: Given) -> int:
    """The fastest plans that fit, of every legal one, and why the others do not."""
    if asked.task not in TASKS:
        raise input_error(
            "plan", asked.task, "is no task", "memsheet plan train MODEL … or memsheet plan infer MODEL …"
        )
    if asked.task == "infer":
        return run_serving_search(plan_serving, asked)
    check_train(asked)
    check_form("plan train", asked.output)
    check_picture_flags(asked, json=asked.json or asked.output is not None)
    decimal, tokens = screen.wants_decimal_units(asked.units), _parse_token_budget(asked)
    start, question = monotonic(), jobs.job_arguments(asked)
    with show_elapsed_time("weighing every legal plan"):
        found = best_plans(
            **question, method=asked.method, top=jobs.parse_positive_int("top", asked.top) or SHOWN
        )
    took = monotonic() - start
    look = screen.terminal_look(decimal=decimal, full=asked.full)
    if asked.output is not None:
        write_form("plan train", asked.output, found, took, tokens)
    elif asked.json:
        from memsheet.report.json.plans import plans_document

        screen.write_json(plans_document(found, seconds=took, tokens=tokens))
    else:
        from memsheet.report.screen.plans.ranking import render_plans

        screen.write_stdout(render_plans(found, look, tokens=tokens))
    if drawn := draw_pictures(found.ranking, found.story, asked, look):
        screen.write_stdout(f"\n{drawn}")
    return EXIT[found.ranking.result] if found.ranking.result else ILLEGAL


def _parse_token_budget(asked: Given) -> int | None:
    return None if asked.tokens is None else count_of(asked.tokens, "tokens")
