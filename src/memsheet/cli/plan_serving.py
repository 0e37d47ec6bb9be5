"""`memsheet plan infer`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from memsheet.cli import question as jobs
from memsheet.cli import screen
from memsheet.cli.commands import SEARCH_FLAGS, SERVE_FLAGS
from memsheet.cli.forms import check_form, write_form
from memsheet.cli.line import Given
from memsheet.errors import Problem, raise_if_problems
from memsheet.plan.values import parse_token_count, parse_whole_number
from memsheet.report.shared.exit_codes import SERVING_EXIT
from memsheet.search.serve.load import Holds

if TYPE_CHECKING:
    from memsheet.search.serve.cuts import Deployment


OF_TRAINING = ("show", "axes", "cells")
"""Pictures that a search for training draws."""


def check_train(asked: Given) -> None:
    """Raises InputError where flags of serving are given to a search for training."""
    raise_if_problems(
        Problem(
            field=flag.field,
            value=getattr(asked, flag.field),
            reason="is of serving",
            hint="memsheet plan infer MODEL --gpus …",
        )
        for flag in SERVE_FLAGS
        if getattr(asked, flag.field) != flag.default
    )


def run_serving_search(ask: Callable[..., Deployment], asked: Given) -> int:
    """Ask, print, draw, and return the exit code: holds, does not, may."""
    _check_serving_flags(asked)
    check_form("plan infer", asked.output)
    decimal, start = screen.wants_decimal_units(asked.units), monotonic()
    numbers = {
        "context": None if asked.context is None else parse_token_count(asked.context),
        "users": None if asked.users is None else parse_whole_number(asked.users),
    }
    found = ask(
        **jobs.job_arguments(asked),
        **numbers,
        ttft=asked.ttft,
        tpot=asked.tpot,
        any_precision=asked.any_precision,
    )
    took = monotonic() - start
    if asked.output is not None:
        write_form("plan infer", asked.output, found, took)
    elif asked.json:
        from memsheet.report.json.serve_plans import serving_document

        screen.write_json(serving_document(found, seconds=took))
    else:
        from memsheet.report.screen.plans.serving import render_serving

        look = screen.terminal_look(decimal=decimal, full=asked.full)
        screen.write_stdout(render_serving(found, look))
    if asked.picture is not None:
        from memsheet.report.chart.serve import draw_serving

        draw_serving(found, Path(asked.picture), decimal=decimal)
    return SERVING_EXIT[found.plans[0].holds] if found.plans else SERVING_EXIT[Holds.NO]


def _check_serving_flags(asked: Given) -> None:
    """Raises InputError where flags of training are given to a search for serving, or the picture cannot be
    drawn.
    """
    usual = {flag.field: flag.default for flag in SEARCH_FLAGS} | dict.fromkeys(OF_TRAINING)
    raise_if_problems(
        Problem(
            field=key,
            value=value,
            reason="is of a search for training",
            hint="leave it out; --picture FILE draws the cuts",
        )
        for key, default in usual.items()
        if (value := getattr(asked, key)) != default
    )
    if asked.picture is not None:
        from memsheet.report.chart.timeline import check_picture_format
        from memsheet.report.shared.files import check_folder

        check_picture_format(Path(asked.picture))
        check_folder(Path(asked.picture).parent, "picture")
