"""`memsheet plan infer`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from memsheet.cli import job as jobs
from memsheet.cli import screen
from memsheet.cli.flags import JobFlags, OutputFlags, tokens, whole
from memsheet.cli.plan_pictures import PictureFlags
from memsheet.errors import Problem, require
from memsheet.report.bars import Look
from memsheet.search.serve_load import Holds

if TYPE_CHECKING:
    from memsheet.search.serve import Deployment

SERVE = Group("Serving a load", sort_key=8)
EXIT = {Holds.YES: 0, Holds.NO: 10, Holds.PERHAPS: 11}


def _flag(words: str, metavar: str | None = None, **more: Any) -> Parameter:
    return Parameter(help=words, group=SERVE, metavar=metavar, show_default=False, **more)


@dataclass(frozen=True, kw_only=True)
class ServeFlags:
    """What is to be held."""

    context: Annotated[str | None, _flag("Of infer: tokens of each user's sequence at its longest.", "TOKENS")] = None
    users: Annotated[str | None, _flag("Of infer: users at once.", "N")] = None
    ttft: Annotated[str | None, _flag("Of infer: time to the first token: 500ms.", "TIME")] = None
    tpot: Annotated[str | None, _flag("Of infer: time between tokens: 50ms.", "TIME")] = None
    any_precision: Annotated[bool, _flag("Of infer: weights and caches in eight bits too.", negative="")] = False


def check_train(flags: ServeFlags) -> None:
    """Raises InputError where flags of serving are given to a search for training."""
    given = {key: value for key, value in asdict(flags).items() if value not in (None, False)}
    require(
        Problem(field=key, value=value, reason="is of serving", hint="memsheet plan infer MODEL --gpus …") for key, value in given.items()
    )


def serve(
    ask: Callable[..., Deployment], model: str | None, plan_flags: Any, job: JobFlags, flags: ServeFlags, train: dict[str, Any],
    drawing: PictureFlags, output: OutputFlags,
) -> int:  # fmt: skip
    """Ask, print, draw, and return the exit code: holds, does not, may. ``train``: flags of the other task, of which none may be given."""
    _check(train, drawing)
    decimal, start = screen.decimal(output.units), monotonic()
    numbers = {
        "context": None if flags.context is None else tokens(flags.context), "users": None if flags.users is None else whole(flags.users),
    }  # fmt: skip
    found = ask(**jobs.question(model, plan_flags, job), **numbers, ttft=flags.ttft, tpot=flags.tpot, any_precision=flags.any_precision)
    took = monotonic() - start
    if output.json:
        from memsheet.report.serve_plans_json import serving_document

        screen.write_json(serving_document(found, seconds=took))
    else:
        from memsheet.report.serve_plans import render_serving

        look = Look(width=screen.width(), decimal=decimal, full=output.full, colour=screen.colour(), ascii=screen.plain_ascii())
        screen.write(render_serving(found, look))
    if drawing.picture is not None:
        from memsheet.report.picture_serve import draw_serving

        draw_serving(found, Path(drawing.picture), decimal=decimal)
    return EXIT[found.plans[0].holds] if found.plans else EXIT[Holds.NO]


def _check(train: dict[str, Any], drawing: PictureFlags) -> None:
    given = {**train, "show": drawing.show, "axes": drawing.axes, "cells": drawing.cells}
    require(
        Problem(field=key, value=value, reason="is of a search for training", hint="leave it out; --picture FILE draws the cuts")
        for key, value in given.items() if value is not None
    )  # fmt: skip
    if drawing.picture is not None:
        from memsheet.report.files import check_folder
        from memsheet.report.picture import check

        check(Path(drawing.picture))
        check_folder(Path(drawing.picture).parent, "picture")
