"""`memsheet check`."""

from __future__ import annotations

from pathlib import Path

from memsheet.cli import job as jobs
from memsheet.cli import screen
from memsheet.cli.check_each import worst_exit_code, worst_of_each
from memsheet.cli.flags import plan_flag_values
from memsheet.cli.line import Given
from memsheet.questions.check import check_configuration_files
from memsheet.questions.files_on_disk import check_total_bytes, paths_of
from memsheet.questions.launches import check_launches, check_servers, launch_files, started_servers
from memsheet.report.json.checked import checked_document, launches_document
from memsheet.report.screen.checked import render_checked, render_launches, render_servers
from memsheet.report.shared.exit_codes import BAD_INPUT, checked_exit_code
from memsheet.report.shared.look import Look


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
    if launches := launch_files(asked.files):
        return _check_tree(asked, launches)
    if servers := started_servers(asked.files):
        return _check_servers(asked, servers)
    decimal = screen.wants_decimal_units(asked.units)
    question = jobs.job_arguments(asked)
    checked = check_configuration_files(
        asked.files, question.pop("model"), question, words=plan_flag_values(asked)
    )
    if asked.json:
        screen.write_json(checked_document(checked))
    else:
        screen.write_stdout(render_checked(checked, _look_of(asked, decimal=decimal)))
    return checked_exit_code(checked)


def _check_tree(asked: Given, launches: list[Path]) -> int:
    """Every launch of a tree, a line each."""
    decimal, root = screen.wants_decimal_units(asked.units), Path(asked.files[0])
    found = check_launches(launches, root, jobs.job_arguments(asked), plan_flag_values(asked))
    if asked.json:
        screen.write_json(launches_document(root.name, found))
    else:
        screen.write_stdout(render_launches(found, _look_of(asked, decimal=decimal)))
    return worst_exit_code(
        BAD_INPUT if one.checked is None else checked_exit_code(one.checked) for one in found
    )


def _check_servers(asked: Given, names: tuple[str, ...]) -> int:
    """Every server that a file starts, a sheet each."""
    decimal, file = screen.wants_decimal_units(asked.units), asked.files[0]
    found = check_servers(file, names, jobs.job_arguments(asked), plan_flag_values(asked))
    left = names[len(found) :]
    if asked.json:
        screen.write_json(launches_document(file, found))
    else:
        screen.write_stdout(render_servers(found, left, _look_of(asked, decimal=decimal)))
    return worst_exit_code(
        BAD_INPUT if one.checked is None else checked_exit_code(one.checked) for one in found
    )


def _look_of(asked: Given, *, decimal: bool) -> Look:
    return Look(
        width=screen.terminal_width(),
        decimal=decimal,
        full=asked.full,
        colour=screen.supports_colour(),
        ascii=screen.plain_ascii(),
    )
