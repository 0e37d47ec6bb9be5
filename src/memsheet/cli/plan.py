"""`memsheet plan`."""

from __future__ import annotations

from time import monotonic

from memsheet.cli import job as jobs
from memsheet.cli import screen
from memsheet.cli.line import Given
from memsheet.cli.plan_pictures import check, pictures
from memsheet.cli.plan_serving import check_train, serve
from memsheet.cli.progress import waiting
from memsheet.errors import refuse
from memsheet.questions import accounted as api
from memsheet.questions.bare_counts import count_of
from memsheet.report.shared.look import Look

ILLEGAL = 2
TASKS = ("train", "infer")
SHOWN = 5


def plan(asked: Given) -> int:
    """The fastest plans that fit, of every legal one, and why the others do not."""
    if asked.task not in TASKS:
        raise refuse("plan", asked.task, "is no task", "memsheet plan train MODEL … or memsheet plan infer MODEL …")
    if asked.task == "infer":
        return serve(api.plan_serving, asked)
    check_train(asked)
    check(asked, json=asked.json)
    decimal, tokens = screen.decimal(asked.units), _tokens(asked)
    start, question = monotonic(), jobs.question(asked)
    with waiting("weighing every legal plan"):
        found = api.plan(**question, method=asked.method, top=jobs.number("top", asked.top) or SHOWN)
    took = monotonic() - start
    look = Look(width=screen.width(), decimal=decimal, full=asked.full, colour=screen.colour(), ascii=screen.plain_ascii())
    if asked.json:
        from memsheet.report.json.plans import plans_document

        screen.write_json(plans_document(found, seconds=took, tokens=tokens))
    else:
        from memsheet.report.screen.plans.ranking import render_plans

        screen.write(render_plans(found, look, tokens=tokens))
    if drawn := pictures(found.ranking, found.story, asked, look):
        screen.write(f"\n{drawn}")
    return jobs.EXIT[found.ranking.result] if found.ranking.result else ILLEGAL


def _tokens(asked: Given) -> int | None:
    return None if asked.tokens is None else count_of(asked.tokens, "tokens")
