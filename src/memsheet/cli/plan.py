"""`memsheet plan`."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import Annotated

from cyclopts import Group, Parameter

from memsheet import api
from memsheet.cli import job as jobs
from memsheet.cli import screen
from memsheet.cli.flags import JobFlags, ModelName, OutputFlags, PlanFlags
from memsheet.cli.plan_pictures import PictureFlags, check, pictures
from memsheet.cli.plan_serving import ServeFlags, check_train, serve
from memsheet.cli.progress import waiting
from memsheet.errors import refuse
from memsheet.report.bars import Look

SEARCH = Group("Search", sort_key=8)
FOUND, NOTHING, ILLEGAL = 0, 10, 2
TASKS = ("train", "infer")
SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class SearchFlags:
    """What is searched, and how much of it is shown."""

    method: Annotated[str, Parameter(help="full, lora or qlora.", group=SEARCH, metavar="NAME")] = "full"
    top: Annotated[str | None, Parameter(help="How many plans to show.", group=SEARCH, metavar="N", show_default=False)] = None
    tokens: Annotated[
        str | None, Parameter(help="Tokens to train on, 15e12: what they cost.", group=SEARCH, metavar="COUNT", show_default=False)
    ] = None


Task = Annotated[str, Parameter(help="train or infer", metavar="TASK")]


def plan(
    task: Task,
    model: ModelName = None,
    /,
    *,
    job: Annotated[JobFlags | None, Parameter(name="*")] = None,
    plan: Annotated[PlanFlags | None, Parameter(name="*")] = None,
    flags: Annotated[SearchFlags | None, Parameter(name="*")] = None,
    serving: Annotated[ServeFlags | None, Parameter(name="*")] = None,
    drawing: Annotated[PictureFlags | None, Parameter(name="*")] = None,
    output: Annotated[OutputFlags | None, Parameter(name="*")] = None,
) -> int:
    """The fastest plans that fit, of every legal one, and why the others do not."""
    flags, drawing, output = flags or SearchFlags(), drawing or PictureFlags(), output or OutputFlags()
    if task not in TASKS:
        raise refuse("plan", task, "is no task", "memsheet plan train MODEL … or memsheet plan infer MODEL …")
    if task == "infer":
        train = {"method": None if flags.method == "full" else flags.method, "top": flags.top, "tokens": flags.tokens}
        return serve(api.plan_serving, model, plan, job or JobFlags(), serving or ServeFlags(), train, drawing, output)
    check_train(serving or ServeFlags())
    check(drawing, json=output.json)
    decimal, tokens = screen.decimal(output.units), _tokens(flags)
    start, asked = monotonic(), jobs.question(model, plan, job or JobFlags())
    with waiting("weighing every legal plan"):
        found = api.plan(**asked, method=flags.method, top=jobs.number("top", flags.top) or SHOWN)
    took = monotonic() - start
    look = Look(width=screen.width(), decimal=decimal, full=output.full, colour=screen.colour(), ascii=screen.plain_ascii())
    if output.json:
        from memsheet.report.plans_json import plans_document

        screen.write_json(plans_document(found, seconds=took, tokens=tokens))
    else:
        from memsheet.report.plans import render_plans

        screen.write(render_plans(found, look, tokens=tokens))
    if drawn := pictures(found.ranking, found.story, drawing, look):
        screen.write(f"\n{drawn}")
    return FOUND if found.ranking.plans else NOTHING if found.ranking.least else ILLEGAL


def _tokens(flags: SearchFlags) -> int | None:
    return None if flags.tokens is None else api.count_of(flags.tokens, "tokens")
