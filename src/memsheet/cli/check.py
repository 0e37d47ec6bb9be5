"""`memsheet check`."""

from __future__ import annotations

from pathlib import Path

from memsheet.budget import Result
from memsheet.cli import job as jobs
from memsheet.cli import screen
from memsheet.cli.check_each import worst_of_each
from memsheet.cli.flags import plan_flag_values
from memsheet.cli.line import Given
from memsheet.questions.check import check_configuration_files
from memsheet.questions.files_on_disk import check_total_bytes, paths_of
from memsheet.report.json.checked import checked_document
from memsheet.report.screen.checked import render_checked

NO_START = 2


def check(asked: Given) -> int:
    """What an engine's configuration comes to: its sheet and verdict, what it leaves open, and known
    mistakes.
    """
    if asked.each and asked.files:
        check_total_bytes([path for file in asked.files for path in paths_of(Path(file))])
        return worst_of_each(
            asked.files,
            lambda file: check(Given(**{**vars(asked), "files": (file,), "each": False})),
            json=asked.json,
        )
    decimal = screen.wants_decimal_units(asked.units)
    question = jobs.job_arguments(asked)
    checked = check_configuration_files(
        asked.files, question.pop("model"), question, words=plan_flag_values(asked)
    )
    if asked.json:
        screen.write_json(checked_document(checked))
    else:
        from memsheet.report.shared.look import Look

        look = Look(
            width=screen.terminal_width(),
            decimal=decimal,
            full=asked.full,
            colour=screen.supports_colour(),
            ascii=screen.plain_ascii(),
        )
        screen.write_stdout(render_checked(checked, look))
    if checked.stops or (checked.answer is None and checked.why_not):
        return NO_START
    if checked.no_model and checked.on_cards:
        return jobs.EXIT[Result.UNCERTAIN]
    return jobs.EXIT[checked.result] if checked.result else 0
