"""What the header of a batch script asks Slurm for, and the variables that it gives a job for it (sbatch(1),
OUTPUT ENVIRONMENT VARIABLES).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from memsheet.patterns import late_pattern

_CARDS_OF_NODE = late_pattern(
    r"--(?:gres|gpus-per-node)[= ](?:gpu:)?(?:[a-zA-Z]\w*:)?(?P<count>\d{1,4})(?![\w.])"
)
_COUNT = {
    "nodes": r"(?:-N|--nodes)[= ]*",
    "ntasks": r"(?:-n|--ntasks)[= ]*",
    "ntasks-per-node": r"--ntasks-per-node[= ]+",
    "gpus": r"(?:-G|--gpus)[= ]*(?:[a-zA-Z]\w*:)?",
    "gpus-per-node": r"--gpus-per-node[= ]+",
    "gpus-per-task": r"--gpus-per-task[= ]+(?:[a-zA-Z]\w*:)?",
}
_OPTIONS = {
    name: late_pattern(rf"(?<!\S){words}(?P<count>\d{{1,6}})(?:-(?P<most>\d{{1,6}}))?(?![\w.:])")
    for name, words in _COUNT.items()
}

TASKS = "$tasks"
"""Where the tasks and nodes stand of the step that starts a program once a task."""
DIRECTIVE = late_pattern(r"#SBATCH(?=\s)")  # nothing is gone back to: lines may be long
_OPTION = late_pattern(r"\s*+(?:--([a-z-]++)[=\s]*+|-([A-Za-z])\s*+)")
_VALUE = late_pattern(r"""<[^<>]*+>|\{\{[^{}]*+\}\}|\$\{[^{}]*+\}|"[^"]*+"|'[^']*+'|(?!-\D|\#)\S++""")
LONG = {
    "A": "account", "a": "array", "B": "extra-node-info", "b": "begin", "C": "constraint", "c": "cpus-per-task", "D": "chdir", "d": "dependency",
    "e": "error", "F": "nodefile", "G": "gpus", "i": "input", "J": "job-name", "L": "licenses", "M": "clusters", "m": "distribution", "N": "nodes",
    "n": "ntasks", "o": "output", "p": "partition", "q": "qos", "S": "core-spec", "t": "time", "w": "nodelist", "x": "exclude",
    "H": "hold", "I": "immediate", "k": "no-kill", "O": "overcommit", "Q": "quiet", "s": "oversubscribe", "v": "verbose", "W": "wait",
}  # fmt: skip
"""Options of one letter (sbatch(1))."""


def sbatch_options(line: str) -> Iterator[tuple[str, str | None]]:
    """Options of a directive by their long names, of which a line may have several, up to a comment."""
    at = len("#SBATCH")
    while option := _OPTION.match(line, at):
        value = _VALUE.match(line, option.end())
        at = value.end() if value else option.end()
        yield option[1] or LONG.get(option[2], option[2]), value[0].strip("\"'") if value else None


def slurm_variables(options: Iterable[str]) -> list[str]:
    """SLURM_GPUS_ON_NODE by the options of any command, as an assignment."""
    cards = [told["count"] for one in options if "--g" in one and (told := _CARDS_OF_NODE.search(one))]
    return [f"SLURM_GPUS_ON_NODE={cards[-1]}"] if cards else []


def with_submitted_variables(text: str) -> str:
    """A batch script with the variables that its directives give it as lines before it; any other text as it
    is.
    """
    if "#SBATCH" not in text:
        return text
    directives = [line for line in text.splitlines() if DIRECTIVE.match(line)]
    told = "".join(f"export {one}\n" for one in submitted_variables(directives)) if directives else ""
    return text if told and text.startswith(told) else told + text


_STEP = late_pattern(r"(?m)^[^#\n]*?\bsrun\s(?P<line>[^\n]*)")
_PROGRAM = late_pattern(r"(?<![\w./-])(?:\S{0,200}/)?python[\d.]{0,5}\s|\S\.py\b")
_STARTS_RANKS = late_pattern(
    r"torchrun|torch\.distributed|\baccelerate\b|\bdeepspeed\b|\bmpirun\b|\bmpiexec\b"
)


def tasks_of_step(text: str) -> tuple[int, int] | None:
    """Tasks and nodes of the first step that starts a Python program once a task, by the step's own options
    and the header's (srun(1)); None where no step does, where a launcher starts the ranks of each node, or
    nobody says how many there are.
    """
    lines = text.replace("\\\n", " ")
    steps = (found["line"] for found in _STEP.finditer(lines))
    step = next((line for line in steps if _PROGRAM.search(line)), None)
    if step is None or _STARTS_RANKS.search(step):
        return None
    own = _counts_of([step.partition(" python")[0]])
    header = _counts_of(line for line in text.splitlines() if DIRECTIVE.match(line))
    asked = {**header, **own}
    per_node, tasks, nodes = asked.get("ntasks-per-node"), asked.get("ntasks"), asked.get("nodes")
    if "ntasks" in own or (tasks and not per_node):
        total = own.get("ntasks", tasks)
        nodes = nodes or (-(-total // per_node) if total and per_node else 1)
        return (total, nodes) if total else None
    nodes = nodes or (-(-tasks // per_node) if tasks and per_node else 1)
    return (per_node * nodes, nodes) if per_node else None


def _counts_of(lines: Iterable[str]) -> dict[str, int]:
    """Counts by their options, of which a range is none."""
    held: dict[str, int] = {}
    for line in lines:
        for name, option in _OPTIONS.items():
            if (found := option.search(line)) and found["most"] in (None, found["count"]):
                held[name] = int(found["count"])
    return held


def submitted_variables(directives: Iterable[str]) -> list[str]:
    """What a batch script's directives give its variables, as assignments: nodes, tasks and cards. A range of
    nodes, and what Slurm chooses itself, gives none.
    """
    lines = [*directives]
    told = [
        (name, found) for line in lines for name, option in _OPTIONS.items() if (found := option.search(line))
    ]
    open_ones = {name for name, found in told if found["most"] not in (None, found["count"])}
    held = {name: int(found["count"]) for name, found in told if name not in open_ones}
    nodes = held.get("nodes") or (1 if not {"nodes", "ntasks", "gpus"} & {name for name, _ in told} else None)
    per_node = held.get("ntasks-per-node")
    tasks = held.get("ntasks") or (per_node * nodes if per_node and nodes else None)
    on_node = next((int(one.partition("=")[2]) for one in slurm_variables(lines)), None)
    if on_node is None and nodes == 1:
        each = held.get("gpus-per-task")
        on_node = held.get("gpus") or (each * tasks if each and tasks else None)
    variables = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks,
        "SLURM_NTASKS_PER_NODE": per_node,
        "SLURM_GPUS": held.get("gpus"),
        "SLURM_GPUS_PER_NODE": held.get("gpus-per-node"),
        "SLURM_GPUS_ON_NODE": on_node,
    }
    return [f"{name}={count}" for name, count in variables.items() if count]
