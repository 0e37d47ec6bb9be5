"""Mistakes of a batch script's header: what it asks Slurm for is not what its command starts, or takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from memsheet.exchange.mistakes.case import Case, FoundMistake, Rule
from memsheet.exchange.shared.file_format import FileReading, Values
from memsheet.exchange.shared.slurm_environment import DIRECTIVE, LONG, sbatch_options
from memsheet.patterns import late_pattern
from memsheet.units import format_bytes

SLURM = "slurm"
HOST_MEMORY = "sbatch-host-memory"
OF_NODE, OF_JOB = ("gpus-per-node", "gres"), ("gpus", "gpus-per-task")
COUNTED = {"@per_node": (*OF_NODE, *OF_JOB), "@nodes": ("nodes",), "@gpus": (*OF_JOB, *OF_NODE)}
"""By what a launch says, too, the options that say it."""
WORDS = {"@per_node": "{} GPUs of each node", "@nodes": "{} nodes", "@gpus": "{} GPUs"}
STARTED = {"@per_node": "{} processes on each node", "@nodes": "ranks of {} nodes", "@gpus": "{} processes"}
MORE = {
    "@per_node": "the others have no GPU of their own",
    "@nodes": "more than it is given",
    "@gpus": "more than it is given",
}
_OF_STEP = late_pattern(r"[ \t](?:-[NnGw](?=[\s\d])|--(?:nodes|ntasks|gpus|nodelist)[a-z-]*\b)")
"""Options by which a step takes another part of a job than the whole (srun(1))."""
_SIZE = late_pattern(r"(\d{1,12})([KMGT]?)B?", re.IGNORECASE)
_UNITS = {"": 2**20, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
"""Of sizes of memory: megabytes where none is said (sbatch(1), --mem)."""


def _other_cards(case: Case) -> Iterator[FoundMistake]:
    """Nodes and cards of the header that are not those of the launch in the same script."""
    for name, key, asked, started, launch in differing_counts(case):
        at = directive_place(_script_text(case, name), COUNTED[key])
        more = MORE[key] if started > asked else "the others are idle"
        yield FoundMistake(
            where=f"{name}{at}",
            says=(
                f"asks for {WORDS[key].format(asked)}, and {launch} starts "
                f"{STARTED[key].format(started)}: {more}"
            ),
            cure="the same number in both",
        )


def differing_counts(case: Case) -> Iterator[tuple[str, str, int, int, str]]:
    """Of each batch script what its header and its launch count otherwise: the file, what is counted, both
    numbers, and the launcher. Nodes, and cards of one node; those of the job where neither differs.
    """
    for name, read in case.of(SLURM):
        if _takes_a_part(_script_text(case, name)):
            continue
        for other, launch in case.reads.items():
            if not other.startswith(f"{name}: "):
                continue
            both = {
                key: (one, two)
                for key in COUNTED
                if (one := _firm_count(read, key)) and (two := _firm_count(launch, key)) and one != two
            }
            if both.keys() - {"@gpus"}:
                both.pop("@gpus", None)
            yield from ((name, key, *pair, other.removeprefix(f"{name}: ")) for key, pair in both.items())


def _script_text(case: Case, name: str) -> str:
    """The text of a batch script, whose header may stand beside what it starts."""
    return case.texts.get(name) or case.texts.get(name.partition(": ")[0], "")


def _takes_a_part(text: str) -> bool:
    """Whether a step of a script says itself how much of the job it takes."""
    lines = text.replace("\\\n", " ").splitlines()
    return any(line.lstrip().startswith("srun ") and _OF_STEP.search(line) for line in lines)


def _firm_count(read: FileReading, key: str) -> int | None:
    held = read.request.get(key)
    return held if isinstance(held, int) and key not in read.unsaid else None


def directive_place(text: str, names: tuple[str, ...]) -> str:
    """The line and the option, as it is typed, of the last directive that says one of ``names``
    (``:4: --gres``); nothing where none does.
    """
    found = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if DIRECTIVE.match(line):
            for name, _ in sbatch_options(line):
                if name in names:
                    short = next((letter for letter, whole in LONG.items() if whole == name), "")
                    typed = f"--{name}" if f"--{name}" in line else f"-{short}"
                    found = f":{number}: {typed}"
    return found


def _little_host_memory(case: Case) -> Iterator[FoundMistake]:
    """Host memory that the header asks for, and that what is offloaded is more than."""
    answer = case.answer
    need = max((int(sheet.host_bytes) for sheet in answer.sheets), default=0) if answer else 0
    if answer is None or not need:
        return
    ranks = answer.cluster.per_node if answer.cluster else 1
    for name, read in case.of(SLURM):
        given, option = _node_memory(read.values)
        if given is None or given >= need * ranks:
            continue
        of = f", {format_bytes(need * ranks)} on a node of {ranks}" if ranks > 1 else ""
        yield FoundMistake(
            where=f"{name}{directive_place(_script_text(case, name), (option,))}",
            says=(
                f"asks for {format_bytes(given, headroom=True)} of a node's host memory, and what is "
                f"offloaded takes {format_bytes(need)} a rank{of}; a job that takes more is stopped where "
                "Slurm enforces it"
            ),
            cure="more of it, or --mem=0: all that a node has",
        )


def requested_host_memory(reads: Mapping[str, FileReading]) -> int | None:
    """Bytes of a node's host memory that batch scripts ask for; None where nothing, or all of it."""
    asked = (_node_memory(read.values)[0] for read in reads.values() if read.form.name == SLURM)
    return min(filter(None, asked), default=None)


def _node_memory(values: Values) -> tuple[int | None, str]:
    """Bytes of a node's memory that the header asks for, and the option that says it; None where that is all
    of it, or nothing is said.
    """
    if (whole := _memory_bytes(values.get("#mem"))) is not None:
        return whole or None, "mem"
    tasks, cores = values.get("#ntasks-per-node"), values.get("#cpus-per-task", 1)
    each = _memory_bytes(values.get("#mem-per-cpu"))
    if not each or not isinstance(tasks, int) or not isinstance(cores, int):
        return None, "mem-per-cpu"
    return each * tasks * cores, "mem-per-cpu"


def _memory_bytes(held: object) -> int | None:
    told = _SIZE.fullmatch(str(held)) if isinstance(held, int | str) else None
    return int(told[1]) * _UNITS[told[2].upper()] if told else None


BATCH_SCRIPTS = (
    Rule(id="sbatch-cards", source="sbatch(1): --nodes, --gres, --gpus-per-node; torch 2.13.0 torch/distributed/run.py: --nnodes, --nproc-per-node", looks=_other_cards),
    Rule(id=HOST_MEMORY, source="sbatch(1): --mem, in megabytes unless a unit is said; slurm.conf(5): MemorySpecLimit, cgroup.conf(5): ConstrainRAMSpace", looks=_little_host_memory, beyond=True),
)  # fmt: skip
