"""``python -m memsheet.cli.each [ARGUMENT …] FILE …``: ``memsheet check`` of each file by itself, for hooks and workflows. The exit code is the worst."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

SWITCHES = ("--json", "--full", "--debug", "--help", "-h")
"""Arguments of ``memsheet check`` that take no value, beside a plan's; every other one that starts with a dash has its value in it, or after it."""
SEVERITY = (2, 10, 11, 0)
"""Exit codes, the worst first: not started, does not fit, uncertain, fits. Any other is worse than all of them."""


def parted(tokens: Sequence[str], switches: Sequence[str] = SWITCHES) -> tuple[list[str], list[str]]:
    """Arguments, and the files among them: an argument's value is no file, whether there is one of that name or not."""
    arguments: list[str] = []
    files: list[str] = []
    left = iter(tokens)
    for word in left:
        if word == "--":
            files += left
        elif not word.startswith("-"):
            files.append(word)
        elif "=" in word or word in switches:
            arguments.append(word)
        else:
            arguments += [word, *[value for value in (next(left, None),) if value is not None]]
    return arguments, files


def worst(codes: Iterable[int]) -> int:
    """The worst of exit codes, 0 of none."""
    return min(codes, key=lambda code: SEVERITY.index(code) if code in SEVERITY else -1, default=0)


def main(tokens: Sequence[str]) -> int:
    from memsheet.cli import main as memsheet

    arguments, files = parted(tokens, (*SWITCHES, *_switches()))
    if not files:
        return memsheet(["check", *arguments])  # which says what is missing
    codes = []
    for file in files:
        print(f"== {file}", flush=True)
        codes.append(memsheet(["check", *arguments, "--", file]))
    return worst(codes)


def _switches() -> list[str]:
    """Flags of a plan that are on or off."""
    from memsheet.spec.check import RULES
    from memsheet.spec.names import SHORT

    return [f"--{on}{name.replace('_', '-')}" for name, key in SHORT.items() if RULES[key].kind == "flag" for on in ("", "no-")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
