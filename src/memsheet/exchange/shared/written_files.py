"""Configurations that a shell script writes itself before it starts anything (``cat > ds.json <<EOF``), with
its variables in place. Read as text, never run.
"""

from __future__ import annotations

import re
from contextlib import suppress

from memsheet.exchange.shared.serve_script import (
    MOST_EXPANDED,
    Variables,
    expand_variables,
    script_lines,
    split_line_commands,
)
from memsheet.guard.budget import Budget, TooMuchError
from memsheet.patterns import late_pattern

_TAG = r"<<-?[ \t]*(?P<quote{n}>['\"]?)(?P<tag{n}>\w+)(?P=quote{n})"
_FILE = r">{{1,2}}[ \t]*(?P<file{n}>\"[^\"\n]+\"|'[^'\n]+'|[^\s<>|;&]+)"
_OPENS = late_pattern(
    rf"^[ \t]*(?:cat|tee)\b[ \t]*(?:{_FILE.format(n=1)}[ \t]*{_TAG.format(n=1)}"
    rf"|{_TAG.format(n=2)}[ \t]*{_FILE.format(n=2)})[^\n]*\n",
    re.MULTILINE,
)
MOST_FILES = 8


def written_files(text: str) -> dict[str, str]:
    """Texts that a script writes into files, by the files' names; the first of several with one name."""
    found: dict[str, str] = {}
    if "<<" not in text:
        return found
    for opened in _OPENS.finditer(text):
        n = "1" if opened["file1"] else "2"
        ends = re.compile(rf"^[ \t]*{opened[f'tag{n}']}[ \t]*$", re.MULTILINE).search(text, opened.end())
        if ends is None or len(found) >= MOST_FILES:
            break
        known = _known_before(text[: opened.start()])
        budget = Budget(MOST_EXPANDED, "text of variables")
        with suppress(TooMuchError):
            body = text[opened.end() : ends.start()]
            if not opened[f"quote{n}"]:
                body = expand_variables(body, known.all, budget, defaults=True)
            name = expand_variables(opened[f"file{n}"].strip("\"'"), known.all, budget, defaults=True)
            found.setdefault(name, body)
    return found


def _known_before(text: str) -> Variables:
    known = Variables()
    for words in (part for line in script_lines(text) for part in split_line_commands(line)):
        known.learn(words)
    return known
