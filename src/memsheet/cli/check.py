"""`memsheet check`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memsheet.cli import question as jobs
from memsheet.cli import screen
from memsheet.cli.flags import plan_flag_values
from memsheet.cli.forms import check_form, write_form
from memsheet.cli.line import Given
from memsheet.errors import InputError, input_error
from memsheet.frozen import replace
from memsheet.late import late_functions
from memsheet.questions.check import check_configuration_files
from memsheet.questions.files_on_disk import check_total_bytes, paths_of
from memsheet.questions.launches import check_launches, check_servers, launch_files, started_servers
from memsheet.report.shared.checked import WORST_FIRST, Checked, Launch
from memsheet.report.shared.exit_codes import BAD_INPUT, checked_exit_code

if TYPE_CHECKING:
    from memsheet.report.shared.look import Look
with late_functions(__name__):
    from memsheet.cli.check_each import worst_exit_code, worst_of_each
    from memsheet.cli.error_output import explain_input
    from memsheet.questions.typed_texts import files_of_texts


def check(asked: Given, as_run: Callable[[str], str] | None = None) -> int:
    """What an engine's configuration comes to: its sheet and verdict, what it leaves open, and known
    mistakes. ``as_run``: of a script's text the text as it runs.
    """
    if not asked.command and not any(name == "-" or " " in name for name in asked.files):
        return _check_files(asked, as_run, None)
    with files_of_texts(asked.files, asked.command) as files:
        here = Path() if files != asked.files else None
        return _check_files(Given(**{**vars(asked), "files": files, "command": ()}), as_run, here)


def _check_files(asked: Given, as_run: Callable[[str], str] | None, root: Path | None) -> int:
    """``root``: where the files lie that a text names which lies nowhere."""
    form = asked.output or ("json" if asked.json else None)
    look = screen.terminal_look(
        decimal=screen.wants_decimal_units(asked.units),
        full=asked.full,
        typed=() if form else jobs.options_beside_files(asked),
    )
    if asked.against is not None:
        return _check_against(asked, form, look)
    if asked.each and asked.files:
        return _check_each(asked, form)
    if launches := launch_files(asked.files):
        check_form(SEVERAL, form)
        root = Path(asked.files[0])
        tree = check_launches(launches, root, jobs.job_arguments(asked), plan_flag_values(asked))
        return _print_launches(tree, form, root.name, root, lambda: _launches_screen(tree, look))
    if servers := started_servers(asked.files, as_run):
        check_form(SEVERAL, form)
        file = asked.files[0]
        started = check_servers(file, servers, jobs.job_arguments(asked), plan_flag_values(asked), as_run)
        left = servers[len(started) :]
        return _print_launches(started, form, file, Path(), lambda: _servers_screen(started, left, look))
    check_form("check", form)
    checked = _check_one_job(asked, as_run, root)
    if form is not None:
        write_form("check", form, checked)
    else:
        from memsheet.report.screen.checked import render_checked

        screen.write_stdout(render_checked(checked, look))
    return checked_exit_code(checked)


SEVERAL = "check of several"


def _launches_screen(found: Sequence[Launch], look: Look) -> str:
    from memsheet.report.screen.checked import render_launches

    return render_launches(found, look)


def _servers_screen(found: Sequence[Launch], left: Sequence[Any], look: Look) -> str:
    from memsheet.report.screen.checked import render_servers

    return render_servers(found, left, look)


def _check_one_job(
    asked: Given, as_run: Callable[[str], str] | None = None, root: Path | None = None
) -> Checked:
    question = jobs.job_arguments(asked)
    return check_configuration_files(
        asked.files,
        question.pop("model"),
        question,
        words=plan_flag_values(asked),
        root=root,
        as_run=as_run,
    )


def _check_against(asked: Given, form: str | None, look: Look) -> int:
    """What changed since another state of the files; the exit code is that of the files as they are."""
    check_form("check --against", form)
    if asked.each:
        raise input_error(
            "each", None, "checks files by themselves, and --against compares one job", "one of the two"
        )
    from memsheet.questions.against import check_against

    found = check_against(asked.files, asked.against, jobs.job_arguments(asked), plan_flag_values(asked))
    assert found.after.checked is not None
    if form is not None:
        write_form("check --against", form, found)
    else:
        from memsheet.report.screen.checked import render_against, render_checked

        after = render_checked(found.after.checked, look)
        screen.write_stdout(f"{render_against(found, look)}\n{after}")
    return checked_exit_code(found.after.checked)


def _check_each(asked: Given, form: str | None) -> int:
    """Each file by itself: a screen each, or all of them together in a form for programs."""
    check_form(SEVERAL, form)
    check_total_bytes([path for file in asked.files for path in paths_of(Path(file))])
    alone = {file: Given(**{**vars(asked), "files": (file,), "each": False}) for file in asked.files}
    if form is None:
        return worst_of_each(asked.files, lambda file: check(alone[file]))
    found = [launch for file in asked.files for launch in _launches_of(alone[file])]
    found.sort(key=lambda one: (WORST_FIRST.index(one.outcome), one.file))
    return _print_launches(found, form, "", Path(), lambda: "")


def _launches_of(asked: Given) -> tuple[Launch, ...]:
    """What one file or folder starts, each by its path from here; or why it was not read."""
    (file,) = asked.files
    try:
        if launches := launch_files(asked.files):
            tree = check_launches(launches, Path(file), jobs.job_arguments(asked), plan_flag_values(asked))
            return tuple(replace(one, file=(Path(file) / one.file).as_posix()) for one in tree)
        if servers := started_servers(asked.files):
            return check_servers(file, servers, jobs.job_arguments(asked), plan_flag_values(asked))
        return (Launch(file=file, checked=_check_one_job(asked)),)
    except InputError as error:
        explain_input(error)
        return (Launch(file=file, checked=None, problem=str(error.problems[0])),)


def _print_launches(
    found: Sequence[Launch], form: str | None, folder: str, root: Path, render: Callable[[], str]
) -> int:
    """Several launches on the screen or in a form, and the worst exit code. ``root``: from where they are
    named.
    """
    if form is not None:
        write_form(SEVERAL, form, folder, found, root)
    else:
        screen.write_stdout(render())
    return worst_exit_code(
        BAD_INPUT if one.checked is None else checked_exit_code(one.checked) for one in found
    )
