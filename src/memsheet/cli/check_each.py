"""``memsheet check --each FILE …``: each file by itself, for hooks and workflows. The exit code is the
worst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from memsheet.cli.error_output import explain_input
from memsheet.errors import InputError

SEVERITY = (2, 10, 11, 0)
"""Exit codes, the worst first: not read, does not fit or start, uncertain, fits. Any other is worse than all
of them.
"""


def worst_exit_code(codes: Iterable[int]) -> int:
    """The worst of exit codes, 0 of none."""
    return min(codes, key=lambda code: SEVERITY.index(code) if code in SEVERITY else -1, default=0)


def worst_of_each(files: Iterable[str], checked: Callable[[str], int]) -> int:
    """The worst exit code of files that are checked one after the other; one that cannot be read does not
    keep the others from it.
    """
    return worst_exit_code([_check_named_file(file, checked) for file in files])


def _check_named_file(file: str, checked: Callable[[str], int]) -> int:
    from memsheet.cli import screen

    screen.write_stdout(f"== {file}\n")
    try:
        return checked(file)
    except InputError as error:
        return explain_input(error)
