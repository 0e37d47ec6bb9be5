"""A shell's script with its lists, loops and conditions worked out, as another script without them: what the
readers of commands are given. Where a loop starts something for each of several values there is a script for
each. Text in, text out: nothing is run.
"""

from __future__ import annotations

from functools import lru_cache

from memsheet.exchange.shared.shell_text import assigned_defaults, ended_comments, named_programs
from memsheet.exchange.shared.slurm_environment import with_submitted_variables
from memsheet.frozen import dataclass
from memsheet.guard.budget import is_long_script
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

with late_functions(__name__):
    from memsheet.exchange.shared.script_walk import ways_through

_BUILT = late_pattern(
    r"\$|=\(|\b(?:eval|ssh|tmux|screen|pdsh|su)\b|--wrap"
    r"|\b(?:for|case|if|while|until)\b|\+=|\]\]? *&&",
    holds=(
        "$",
        "=(",
        "eval",
        "ssh",
        "tmux",
        "screen",
        "pdsh",
        "su",
        "--wrap",
        "for",
        "case",
        "if",
        "while",
        "until",
        "+=",
        "]",
    ),
)


@dataclass(frozen=True, slots=True)
class PlainScript:
    """``name``: the values of the loops that it is of; ``remarks``: what was taken for granted, in words."""

    name: str
    text: str
    remarks: tuple[str, ...] = ()


def plain_script(text: str, name: str = "") -> PlainScript:
    """The script of the loops' values that are called ``name``, else of their first."""
    found = plain_scripts(text)
    return next((one for one in found if one.name == name), found[0])


@lru_cache(maxsize=4)
def plain_scripts(text: str) -> tuple[PlainScript, ...]:
    """The scripts that a text stands for, one where no loop starts anything; the text itself where it is no
    shell's, or asks for more than a launch does. What Slurm gives a batch script stands before it.
    """
    text = named_programs(assigned_defaults(ended_comments(with_submitted_variables(text))))
    if is_long_script(text) or not _BUILT.search(text):
        return (PlainScript("", text),)
    return tuple(PlainScript(*way) for way in ways_through(text)) or (PlainScript("", text),)
