"""A job's files held against an earlier state of them, or against another file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memsheet.errors import InputError, input_error
from memsheet.guard import is_file, is_folder
from memsheet.questions.check import check_configuration_files
from memsheet.questions.earlier_files import files_at
from memsheet.questions.launches import launch_files, started_servers
from memsheet.report.shared.against import Against
from memsheet.report.shared.checked import Launch


def check_against(
    files: tuple[str, ...], reference: str, question: Mapping[str, Any], words: Mapping[str, Any]
) -> Against:
    """What changed from ``reference`` (a file or folder, else a revision of the git repository that the files
    lie in) to the files as they are. ``question``, ``words``: as of ``check_configuration_files``, the same
    for both sides. Raises InputError where the files cannot be read, or there is no such reference; that an
    earlier state of them cannot be read is told.
    """
    if launch_files(files) or started_servers(files):
        raise input_error("against", reference, "compares one job, and these files start several", "name one")
    after = Launch(file=files[0] if files else "", checked=_checked_files(files, question, words))
    other = Path(reference)
    if reference and (is_file(other) or is_folder(other)):
        before = _earlier_launch(reference, (reference,), question, words)
    else:
        with files_at(files, reference) as earlier:
            before = _earlier_launch(files[0], earlier, question, words)
    return Against(reference=reference, before=before, after=after)


def _checked_files(files: tuple[str, ...], question: Mapping[str, Any], words: Mapping[str, Any]) -> Any:
    asked = dict(question)
    return check_configuration_files(files, asked.pop("model"), asked, words=words)


def _earlier_launch(
    name: str, files: tuple[str, ...], question: Mapping[str, Any], words: Mapping[str, Any]
) -> Launch:
    """The earlier side, or why it cannot be read; files are told of by their names alone."""
    if not any(is_file(Path(file)) or is_folder(Path(file)) for file in files):
        return Launch(file=name, checked=None, problem=f"{name}: was not there")
    try:
        return Launch(file=name, checked=_checked_files(files, question, words))
    except InputError as error:
        said = str(error.problems[0])
        for file in files:
            said = said.replace(f"{Path(file).parent}/", "")
        return Launch(file=name, checked=None, problem=said)
