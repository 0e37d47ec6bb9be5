"""`memsheet job`."""

from __future__ import annotations

from typing import Any

from memsheet.cli import screen
from memsheet.cli.forms import check_form, write_form
from memsheet.cli.line import Given
from memsheet.cli.question import parse_positive_int
from memsheet.errors import input_error
from memsheet.exchange.shared.flag_words import plain_value
from memsheet.questions.job import answer_job, document_of
from memsheet.report.shared.exit_codes import EXIT


def job(asked: Given) -> int:
    """What every phase of a job of several models needs on the same cards."""
    from memsheet.cli.commands import TEMPLATE_FLAGS

    look = screen.terminal_look(decimal=screen.wants_decimal_units(asked.units), full=False)
    check_form("job", asked.output)
    if asked.job is None:
        raise input_error("JOB", None, "is missing", "a file of memsheet/job/1, or a template: trl-grpo")
    where: dict[str, Any] = {
        "gpus": asked.gpus,
        "nodes": parse_positive_int("nodes", asked.nodes),
        "per_node": parse_positive_int("per_node", asked.per_node),
        "host_memory": asked.host_memory,
        "cluster": asked.cluster,
    }
    options = {
        flag.field: plain_value(held) if isinstance(held, str) else held
        for flag in TEMPLATE_FLAGS
        if (held := getattr(asked, flag.field)) is not None
    }
    answer = answer_job(document_of(asked.job, {**where, **options}), where)
    form = asked.output or ("json" if asked.json else None)
    if form is not None:
        write_form("job", form, answer)
    else:
        from memsheet.report.screen.jobs.phases import render_job

        screen.write_stdout(render_job(answer, look))
    return EXIT[answer.verdict.result] if answer.verdict else 0
