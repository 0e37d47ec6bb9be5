"""The flags, said once for every command that takes them: a table of names, values and words. ``commands``
says which command takes which.

JOB …     what is no option of a plan: the machines, the output, and what one command alone asks
values    the options of a plan that a command line gives, read by the rules of their keys
"""

from __future__ import annotations

from typing import Any

from memsheet.frozen import NamedTuple
from memsheet.plan.aliases import ALIASES, Word
from memsheet.plan.option_words import HELP, JOB, OFFLOAD

OUTPUT = "Output"
SOLVE, SEARCH, SERVE, PICTURES, TRACE, MEASURE, TEMPLATE, OTHER, WORDS = (
    "Solve", "Search", "Serving a load", "Pictures", "Trace", "Measure", "Of a template", "Options", "Words of other tools",
)  # fmt: skip


class Flag(NamedTuple):
    """One flag: ``--name METAVAR``, or ``--name`` alone where it is on or off."""

    name: str
    group: str
    metavar: str
    words: str
    key: str = ""
    """Its name in Python, where that is another one."""
    default: Any = None
    negative: bool = False
    """Whether ``--no-name`` says the opposite."""
    many: bool = False
    """Whether it may be given several times, which makes a list."""
    required: bool = False

    @property
    def field(self) -> str:
        return self.key or self.name.replace("-", "_")


PLAN_FLAGS = (
    *(Flag(name.replace("_", "-"), *about, negative=not about[1]) for name, about in HELP.items()),
    Flag("offload", *OFFLOAD),
)
JOB_FLAGS = (
    Flag("gpus", JOB, "GPUS", "Count and device: 8xH100-80GB. Without it there is a sheet and no verdict."),
    Flag("nodes", JOB, "N", "Number of nodes."),
    Flag("per-node", JOB, "N", "Devices of one node."),
    Flag("host-memory", JOB, "SIZE", "Host memory of one node: 1TiB."),
    Flag("cluster", JOB, "FILE", "A cluster file in place of --gpus: devices, nodes, links (.toml, .yaml)."),
    Flag("plan", JOB, "FILE", "A plan (memsheet/plan/1), or - for stdin; flags override it."),
    Flag("parameters", JOB, "COUNT", "A bare parameter count in place of MODEL: 7e9."),
)
JSON = Flag("json", OUTPUT, "", "One JSON object on stdout.", default=False)
DEBUG = Flag("debug", OUTPUT, "", "A traceback where something goes wrong.", default=False)
UNITS = Flag("units", OUTPUT, "UNIT", "GiB, or GB for decimal.", default="GiB")
FULL = Flag("full", OUTPUT, "", "Every item at every instant.", default=False)
FORMAT = Flag("format", OUTPUT, "NAME", "On stdout as json, markdown, html, csv or svg.", key="output")
OUTPUT_FLAGS = (JSON, FULL, UNITS, DEBUG)


def _of_word(name: str, word: Word) -> Flag:
    key = f"their_{name.replace('-', '_')}"  # a command may have a flag of its own by that name
    return Flag(
        name, WORDS, "" if word.switch else "VALUE", f"A word of {word.whose}.", key=key, negative=word.switch
    )


WORD_FLAGS = tuple(_of_word(name, word) for name, word in ALIASES.items())
"""What other programs call these options; ``plan.words`` says what each comes to."""


def plan_flag_values(given: Any) -> dict[str, Any]:
    """The options of a plan that a line gives, as they are written: ``plan.words`` reads them."""
    own = {flag.field: getattr(given, flag.field) for flag in PLAN_FLAGS}
    theirs = {flag.name.replace("-", "_"): getattr(given, flag.field, None) for flag in WORD_FLAGS}
    return {name: value for name, value in (own | theirs).items() if value is not None}
