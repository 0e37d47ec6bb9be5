"""`memsheet job`."""

from __future__ import annotations

from typing import Any

from memsheet.budget import Result
from memsheet.cli import screen
from memsheet.cli.forms import check_form, write_form
from memsheet.cli.line import Given
from memsheet.cli.question import parse_positive_int
from memsheet.errors import input_error
from memsheet.exchange.shared.flag_words import plain_value
from memsheet.jobs.templates import TEMPLATES
from memsheet.questions.job import answer_job, document_of
from memsheet.report.shared.exit_codes import EXIT


def job(asked: Given) -> int:
    """What every phase of a job of several models needs on the same cards."""
    from memsheet.cli.commands import template_flags

    look = screen.terminal_look(decimal=screen.wants_decimal_units(asked.units), full=False)
    check_form("job", asked.output)
    if asked.job is None:
        raise input_error("JOB", None, "is missing", "a file of memsheet/job/1, or a template: trl-grpo")
    where = _machines_of(asked)
    options = {
        flag.field: plain_value(held) if isinstance(held, str) else held
        for flag in template_flags()
        if (held := getattr(asked, flag.field)) is not None
    }
    answer = answer_job(document_of(asked.job, {**where, **options}), where)
    form = asked.output or ("json" if asked.json else None)
    if form is not None:
        write_form("job", form, answer)
    else:
        from memsheet.questions.cures_of_jobs import what_helps
        from memsheet.report.screen.jobs.phases import render_job

        helps = tuple((one.words, one.says, one.answer) for one in what_helps(answer, where))
        screen.write_stdout(render_job(answer, look, helps))
    return EXIT[answer.verdict.result] if answer.verdict else 0


def _machines_of(asked: Given) -> dict[str, Any]:
    return {
        "gpus": asked.gpus,
        "nodes": parse_positive_int("nodes", asked.nodes),
        "per_node": parse_positive_int("per_node", asked.per_node),
        "host_memory": asked.host_memory,
        "cluster": asked.cluster,
    }


def solve_of_job(asked: Given) -> int:
    """`memsheet solve gpu-memory-utilization JOB` and its kin: a file of memsheet/job/1, or one that `check`
    reads as a job.
    """
    from memsheet.questions.check import check_configuration_files
    from memsheet.questions.solve_job import job_limit
    from memsheet.report.screen.jobs.phases import render_job_limit

    look = screen.terminal_look(decimal=screen.wants_decimal_units(asked.units), full=False)
    where = _machines_of(asked)
    if asked.model is None:
        raise input_error(
            "JOB", None, "is missing", "a file of memsheet/job/1, or a launch of several models"
        )
    if asked.model in TEMPLATES:
        hint = f"memsheet job {asked.model} … --json > job.json, then memsheet solve {asked.what} job.json"
        raise input_error("JOB", asked.model, "is a template, whose options `memsheet job` takes", hint)
    if str(asked.model).endswith(".json"):
        document = document_of(asked.model, where)
    else:
        question = {**where, "parameters": None, "plan": None}
        checked = check_configuration_files((asked.model,), None, question)
        answer = checked.answer
        if answer is None or answer.job is None:
            reason = "is no job of several models that is accounted"
            raise input_error("JOB", asked.model, reason, "--gpus names the cards")
        open_words = (f"not held: {checked.doubt}",) if checked.doubt else ()
        document = {**answer.job, "notes": [*answer.job.get("notes", ()), *open_words]}
    limit = job_limit(str(asked.what), document, where)
    if asked.json or asked.output is not None:
        check_form("job", asked.output)
        write_form("job", asked.output or "json", limit.answer)
    else:
        screen.write_stdout(render_job_limit(limit, look))
    return EXIT[Result.FITS if limit.largest else Result.DOES_NOT_FIT]
