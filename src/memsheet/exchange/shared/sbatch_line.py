"""A command line of sbatch's (sbatch(1), SYNOPSIS and OPTIONS, Slurm 25.05): its options, the script, and
what that is given; and the script as it runs by them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from memsheet.errors import input_error
from memsheet.exchange.shared.slurm_environment import LONG
from memsheet.frozen import NamedTuple

DIRECTIVE = "#SBATCH"
SWITCHES = frozenset({
    "contiguous", "exclusive", "get-user-env", "help", "hold", "ignore-pbs", "no-kill", "no-requeue", "overcommit", "oversubscribe", "parsable",
    "quiet", "reboot", "requeue", "spread-job", "test-only", "usage", "use-min-nodes", "verbose", "version", "wait",
})  # fmt: skip
"""Options that take no value, or only one behind ``=``."""
SHORT_SWITCHES = frozenset("hHkOQsvVW")
VARIABLES: Mapping[str, str] = {
    "SBATCH_GPUS": "gpus", "SBATCH_GPUS_PER_NODE": "gpus-per-node", "SBATCH_GPUS_PER_TASK": "gpus-per-task", "SBATCH_GRES": "gres",
    "SBATCH_MEM_PER_NODE": "mem", "SBATCH_MEM_PER_GPU": "mem-per-gpu", "SBATCH_MEM_PER_CPU": "mem-per-cpu", "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_PARTITION": "partition",
}  # fmt: skip
"""Variables of the environment that are options: above the script's directives, below the line's own options
(sbatch(1), INPUT ENVIRONMENT VARIABLES).
"""


class SbatchLine(NamedTuple):
    """``options``: as they are written, an option and its value in one or two words; ``arguments``: of the
    script.
    """

    options: tuple[str, ...]
    script: str
    arguments: tuple[str, ...]


def parse_sbatch_line(words: Sequence[str]) -> SbatchLine:
    """The words behind ``sbatch``. Raises InputError for a line without a script: one of ``--wrap``, or of
    what would be read from stdin.
    """
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        at += 2 if _takes_next_word(words[at]) else 1
    options = tuple(words[:at])
    if at >= len(words) or words[at] == "-":
        wrapped = any(word.partition("=")[0] == "--wrap" for word in options)
        reason = "is given by --wrap, which is no file" if wrapped else "is missing"
        raise input_error("SCRIPT", None, reason, "memsheet sbatch job.sbatch")
    return SbatchLine(options, words[at], tuple(words[at + 1 :]))


def _takes_next_word(word: str) -> bool:
    name, equals, _ = word.removeprefix("--").partition("=")
    if word.startswith("--"):
        return not equals and name not in SWITCHES
    return len(word) == 2 and word[1] not in SHORT_SWITCHES


def script_as_submitted(text: str, line: SbatchLine, environment: Mapping[str, str]) -> str:
    """The script as it runs: its arguments as ``$1`` and further, and the options of the line and of
    ``environment`` as directives behind its own, which they override.
    """
    of_variables = [f"--{name}={environment[key]}" for key, name in VARIABLES.items() if environment.get(key)]
    directives = "".join(f"{DIRECTIVE} {words}\n" for words in (*of_variables, *_whole_options(line.options)))
    given = f"set -- {shlex.join(line.arguments)}\n" if line.arguments else ""
    return f"{given}{text.rstrip()}\n{directives}"


def _whole_options(words: Sequence[str]) -> Iterator[str]:
    """Options with their values, one each, by their long names; a value may have spaces."""
    rest = iter(words)
    for word in rest:
        name, _, value = word[2:].partition("=") if word.startswith("--") else (word[1:2], "", word[2:])
        value = value or (next(rest, "") if _takes_next_word(word) else "")
        yield f"--{LONG.get(name, name)}" + (f"={value}" if value else "")
