"""A training script that a shell starts: the launcher's own flags, the script's name, and the flags that are
the script's. Read as text, never run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import dropwhile, pairwise, takewhile
from typing import Any

from memsheet.exchange.shared.config_commands import (
    AXOLOTL,
    AXOLOTL_MODULE,
    FACTORY,
    TUNE,
    ConfigCommand,
    axolotl_command,
    factory_command,
    trl_launcher_flags,
    tune_command,
)
from memsheet.exchange.shared.evaluation_words import PLAIN, EvaluatedModel, model_arguments
from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.python_switches import last_switch_index
from memsheet.exchange.shared.script_places import OF_ENVIRONMENT, ONE_PROCESS, SEEN_CARDS
from memsheet.exchange.shared.serve_script import (
    Variables,
    script_lines,
    split_line_commands,
)
from memsheet.frozen import dataclass, replace
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

with late_functions(__name__):
    from memsheet.exchange.shared.flag_words import flags_of


TORCHRUN, ACCELERATE, DEEPSPEED, PYTHON, TRL = "torchrun", "accelerate", "deepspeed", "python", "trl"
FACTORY_NAMES = (FACTORY, "lmf")
MODULES = {
    "torch.distributed.run": TORCHRUN, "torch.distributed.launch": TORCHRUN, "accelerate.commands.launch": ACCELERATE,
    "deepspeed.launcher.runner": DEEPSPEED, "accelerate.commands.accelerate_cli": ACCELERATE,
}  # fmt: skip
MODULE_FLAGS = ("-m", "--module")
"""Of python, torchrun, accelerate and deepspeed: what they start is a module by its name."""
LIKE_TORCHRUN = ("hyperpodrun",)
"""Launchers that take torchrun's flags (aws/sagemaker-hyperpod-elastic-agent README)."""
METHODS = ("sft", "dpo", "grpo", "kto", "reward", "rloo")
"""Commands of ``trl`` that train (huggingface/trl f2cd577 trl/cli)."""
ENDS, WRITES = ("<", "|"), (">", "&>", "1>", "2>")
"""What ends a command's flags; a text may begin with less than (``--stop_strings "</answer>"``).
"""
MOST = 400
PROGRAM = "$.script"
"""Where formats that several scripts share have the script's name."""
STARTERS = (TORCHRUN, ACCELERATE, DEEPSPEED, PYTHON, "python3", TRL, "uv")
"""Words with which a text begins that is a command held in a variable, or given to another shell."""
WRAPPER, WRAPPED = "mason.py", "--"
"""A script that starts what stands behind the dashes on a cluster (allenai/open-instruct e6c3044
mason.py:122-126, 533-545: it multiplies accelerate's processes by its nodes).
"""
COMMAND_LINE = late_pattern(
    r"^\s*(?:\$ +|# +)?(?P<command>(?:\w+=\S* +)*"
    r"(?:python3?|accelerate launch|torchrun|deepspeed|uv run|trl|llamafactory-cli|axolotl train|tune run)"
    r"\s)",
    re.MULTILINE,
)
"""How a line of prose begins that is a command."""
VARIABLE = late_pattern(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
BEFORE_NAMES = ("env", "nohup", "exec", "time")
"""Words before a command's own variables."""
VISIBLE = late_pattern(r"(?:CUDA|HIP)_VISIBLE_DEVICES=([\w-]+(?:,[\w-]+)*),?")
PARALLEL, COUNTS = ("mpirun", "mpiexec", "horovodrun"), ("-np", "-n", "--np", "--n")
"""Programs that start as many processes as a flag of theirs says (mpirun(1), horovod/runner/launch.py)."""
SEVERAL_TASKS = late_pattern(r"(?<!\S)(?:-[nN]|--ntasks(?:-per-node)?|--nodes)[ =]*(?!1(?!\S))[^\s=]")
"""Options with which ``srun`` starts a program more than once, or as often as nobody says (srun(1))."""
TORCHX, JOB = "torchx", late_pattern(r"(\d{1,4})x(\d{1,4})")
"""``torchx run dist.ddp -j {nodes}x{ranks} --script train.py -- …`` (pytorch/torchx components/dist.py)."""
NO_JOBS = frozenset(
    [
        "pip",
        "venv",
        "http",
        "json",
        "torch",
        "vllm",
        "sglang",
        "verl",
        "tensorrt_llm",
        "dynamo",
        "lm_eval",
        "accelerate",
        "deepspeed",
        "trl",
        "swift",
    ]
)
"""Modules that are no training of people's own, or that other formats read."""
NEXT = "&&"
EVERY_CARD = ("gpu", "auto")
"""Words for as many processes as there are cards (torch/distributed/run.py, determine_local_world_size)."""
MOST_NAMES = 16
"""Assignments of one line among which the cards that are visible are looked for."""
PLAIN_FLAGS = {"num_processes", "num_machines", "mixed_precision", "dynamo_backend", "main_process_port"}
"""Flags of accelerate with which one process is started plainly; a file, or any other, may say otherwise."""
NPROC = "nproc_per_node"
COUNTED_BY = {PYTHON: NPROC, ACCELERATE: "num_processes", DEEPSPEED: "num_gpus"}
"""The flag by which each launcher is told its processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One start of a script. ``flags``: the launcher's; ``arguments``: the script's; ``environment``:
    variables that are exported before it or stand before its command, as name and value.
    """

    launcher: str
    flags: Mapping[str, Any]
    script: str
    arguments: Mapping[str, Any]
    left: tuple[str, ...]  # words after the script that are no flags
    environment: tuple[tuple[str, str], ...] = ()


def first_script_launch(text: str) -> Launch | None:
    """The first script that a text starts, with variables at their defaults where nothing else is said."""
    return next(script_launches(text), None)


def script_launches(text: str) -> Iterator[Launch]:
    """Every script that a text starts, in order; behind a wrapper's start what it starts, which may stand in
    a command of its own (``mason.py … -- setup.sh && python train.py``).
    """
    outer: Mapping[str, Any] = {}
    exported: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    for words in filled_commands(text):
        environment |= dict(_variables(words[1:])) if words[:1] == ["export"] else {}
        exported = tuple(filter(VISIBLE.fullmatch, words[:MOST_NAMES])) if _only_names(words) else exported
        at = _wrapper_index(words)
        ends = -1 if at is None else words.index(WRAPPED) if WRAPPED in words else len(words)
        outer = outer if at is None else flags_of(words[at + 1 : ends])[0]
        found = _parse_launch_words([*exported, *(word.removeprefix(NEXT) for word in words[ends + 1 :])])
        if found is not None:
            before = takewhile(VARIABLE.fullmatch, dropwhile(BEFORE_NAMES.__contains__, words))
            own = {**environment, **dict(_variables(before))}
            found = replace(found, environment=tuple(own.items()))
            yield replace(found, flags=_wrapped_flags(found, outer)) if outer else found


def values_given(found: Launch, text: str) -> dict[str, Any]:
    """What a start gives a script: its flags, and variables of the environment whose names its text holds."""
    named = {
        f"{OF_ENVIRONMENT}{name}": plain_or_unset(value)
        for name, value in found.environment
        if f'"{name}"' in text or f"'{name}'" in text
    }
    return {**found.arguments, **named}


def _variable(word: str) -> tuple[str, str] | None:
    told = VARIABLE.fullmatch(word)
    return (told[1], told[2]) if told else None


def _variables(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    return (told for word in words if (told := _variable(word)) is not None)


def plain_or_unset(value: str) -> str:
    """A variable's value; nobody's where a part of it is a variable that nobody set."""
    return UNSET if "$" in value else value


def described_launches(text: str, name: str) -> str:
    """What a Python script says in texts of its own, before its code or between it, that starts it, as a
    shell's; nothing where it says no such command.
    """
    try:
        told = "\n\n".join(_own_texts(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    said = "\n\n".join(_command_blocks(told))
    own = any(found.script.rpartition("/")[2] == name for found in script_launches(said))
    return said if own else ""


def _own_texts(text: str) -> Iterator[str]:
    """Texts that stand for themselves at the top of a module: its docstring, and those behind it."""
    import ast
    from inspect import cleandoc

    for statement in ast.parse(text).body:
        held = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(held, ast.Constant) and isinstance(held.value, str):
            yield cleandoc(held.value)


def _command_blocks(told: str) -> Iterator[str]:
    """Of prose, the paragraphs in which a command stands, from its line on."""
    for block in re.split(r"\n\s*\n|^\s*```.*$", told, flags=re.MULTILINE):
        found = COMMAND_LINE.search(block)
        if found is not None:
            yield block[found.start("command") :]


def _only_names(words: Sequence[str]) -> bool:
    """Whether a command gives the cards that are visible, to all that follow it."""
    rest = words[1:] if words[:1] == ["export"] else words
    return (
        bool(rest)
        and len(rest) < MOST_NAMES
        and all("=" in word.partition("-")[0] for word in rest)
        and any(map(VISIBLE.fullmatch, rest))
    )


def _wrapper_index(words: Sequence[str]) -> int | None:
    return next((at for at, word in enumerate(words[:16]) if word.rpartition("/")[2] == WRAPPER), None)


def _wrapped_flags(found: Launch, outer: Mapping[str, Any]) -> Mapping[str, Any]:
    """A launcher's flags as they are on the nodes and GPUs that its wrapper asks for."""
    nodes, cards = outer.get("num_nodes", 1), outer.get("gpus")
    if not isinstance(nodes, int) or not isinstance(cards, int) or cards < 1:
        return found.flags
    if found.launcher != ACCELERATE:
        return {**found.flags, "nproc_per_node": cards, "nnodes": nodes}
    ranks = found.flags.get("num_processes")
    return {
        **found.flags,
        "num_machines": nodes,
        **({"num_processes": ranks * nodes} if isinstance(ranks, int) else {}),
    }


def filled_commands(text: str) -> Iterator[list[str]]:
    """Commands of a script, with the variables in their places."""
    return map(list, _filled_commands(text))


@lru_cache(maxsize=2)
def _filled_commands(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(words) for words in _commands_in_order(text))


def _commands_in_order(text: str) -> Iterator[list[str]]:
    known = Variables()
    for words in (part for line in script_lines(text) for part in split_line_commands(line)):
        known.learn(words)
        yield list(_unpacked_words(known.filled(words, defaults=True)))[:MOST]


ASSIGNED = late_pattern(r"^\s*(?:[A-Z_][A-Z0-9_]{0,63}=[^\s'\"]{0,200}\s+){1,8}", holds=("=",))
"""Variables that stand before a command."""


def _unpacked_words(words: Sequence[str]) -> Iterator[str]:
    """Words of a command, and of the command that one of them holds as a text."""
    for word in words:
        bare = ASSIGNED.sub("", word)
        first = bare.split(None, 1)[0].rpartition("/")[2] if " " in bare.strip() else ""
        try:
            yield from shlex.split(word) if first in STARTERS else (word,)
        except ValueError:
            yield word


def find_launcher(words: Sequence[str]) -> tuple[str, int] | None:
    """The launcher among the words of a command, and where what is given to it begins."""
    for place, word in enumerate(words):
        base = word.rpartition("/")[2]
        at = last_switch_index(words, place)
        then = list(words[at + 1 : at + 3])
        if base == ACCELERATE and then[:1] == ["launch"]:
            return ACCELERATE, at + 2
        if base == TRL and then and then[0] in METHODS:
            return TRL, at + 1
        if base in FACTORY_NAMES and then[:1] == ["train"]:
            return FACTORY, at + 1
        if (base, *then[:1]) in ((AXOLOTL, "train"), (TUNE, "run")):
            return base, at + 1
        if base in (TORCHRUN, DEEPSPEED):
            return base, at + 1
        if base in LIKE_TORCHRUN:
            return TORCHRUN, at + 1
        if base == TORCHX:
            return TORCHX, at + 1
        if base.startswith(PYTHON) and then[:1] == ["-m"] and then[-1] in MODULES:
            return MODULES[then[-1]], at + 3 + (words[at + 3 : at + 4] == ["launch"])
        if base.startswith(PYTHON) and then == ["-m", AXOLOTL_MODULE]:
            return PYTHON, at + 1
        runs = base.startswith(PYTHON) or (base == "run" and words[at - 1] == "uv")
        if runs and then and (then[0].endswith(".py") or _is_own_module(then, words[at + 3 : at + 4])):
            return PYTHON, at + 1
    return None


def _is_own_module(then: Sequence[str], given: Sequence[str]) -> bool:
    """Whether a module of people's own is started with flags (``python -m mine.train --batch_size 4``)."""
    named = len(then) == 2 and then[0] == "-m" and _module_file(then[1]) is not None
    return named and any(word.startswith("--") for word in given)


def _module_file(name: str) -> str | None:
    """The file of a module that is a job of people's own, or of TRL's (trl/scripts)."""
    if re.fullmatch(r"\w+(\.\w+)*", name) is None:
        return None
    first, _, last = name.partition(".scripts.")
    of_trl = first == TRL and last in METHODS
    return f"{name.replace('.', '/')}.py" if of_trl or name.partition(".")[0] not in NO_JOBS else None


def _with_module_file(rest: list[str]) -> list[str]:
    """Words behind a launcher with the file of the module that it is to start in the module's place."""
    at = next((at for at, word in enumerate(rest) if word in MODULE_FLAGS or word.endswith(".py")), len(rest))
    if at + 1 >= len(rest) or rest[at] not in MODULE_FLAGS:
        return rest
    if rest[at + 1] == TRL and rest[at + 2 : at + 3] and rest[at + 2] in METHODS:
        return [*rest[:at], f"{TRL}/scripts/{rest[at + 2]}.py", *rest[at + 3 :]]
    file = _module_file(rest[at + 1])
    return [*rest[:at], file, *rest[at + 2 :]] if file else rest


def _parse_launch_words(words: Sequence[str]) -> Launch | None:
    told = model_arguments(words)
    if told is not None:
        return _of_evaluation(words, told) if told.engine == PLAIN else None
    start = find_launcher(words)
    if start is None:
        return None
    launcher, rest = start[0], list(words[start[1] :])
    ends = next((at for at, word in enumerate(rest) if word in ENDS or word.startswith(WRITES)), len(rest))
    rest = rest[:ends]
    told_by_file = _config_command(launcher, words[: start[1]], rest)
    if told_by_file is not None:
        own, at_file, said, others = told_by_file
        return Launch(launcher=launcher, flags=own, script=at_file, arguments=said, left=others)
    rest = rest if launcher == TRL else _with_module_file(rest)
    at = 0 if launcher == TRL else next((at for at, word in enumerate(rest) if word.endswith(".py")), None)
    if at is None:
        return None
    given = rest[at + 1 :]
    flags = _counted_flags(launcher, words[: start[1]], rest[:at])
    if launcher == TORCHX:
        launcher, given = TORCHRUN, [word for word in given if word != WRAPPED]
    arguments, left = flags_of(given)
    flags = {**flags, **trl_launcher_flags(arguments)} if launcher == TRL else flags
    return Launch(launcher=launcher, flags=flags, script=rest[at], arguments=arguments, left=left)


def _config_command(launcher: str, before: Sequence[str], rest: Sequence[str]) -> ConfigCommand | None:
    """A command that trains what its file says; nothing of any other."""
    if launcher == FACTORY:
        told = factory_command(before, rest)
        return told._replace(flags={**_seen_cards(before), **told.flags}) if NPROC not in told.flags else told
    if launcher == AXOLOTL:
        return axolotl_command(rest[1:])
    if launcher == TUNE:
        return tune_command(rest[1:])
    at = rest.index(AXOLOTL_MODULE) if AXOLOTL_MODULE in rest else 0
    found = axolotl_command(rest[at + 1 :]) if at and rest[at - 1] == "-m" else None
    return found and found._replace(flags=_counted_flags(launcher, before, rest[: at - 1]))


def _counted_flags(launcher: str, before: Sequence[str], own: Sequence[str]) -> dict[str, Any]:
    """A launcher's flags with the processes that what stands before it counts: the cards that are visible,
    or the ranks of ``mpirun -np``.
    """
    if launcher == TORCHX:
        told = next((found for word in own if (found := JOB.fullmatch(word))), None)
        return {"nnodes": int(told[1]), "nproc_per_node": int(told[2])} if told else {}
    flags = flags_of(own)[0]
    cards = _seen_cards(before).get(NPROC)
    if launcher == TORCHRUN:
        return (
            {**flags, "nproc_per_node": cards}
            if cards and flags.get("nproc_per_node") in EVERY_CARD
            else flags
        )
    at = COUNTED_BY.get(launcher)
    count = _parallel_count(before) if launcher == PYTHON else None
    said = {"config_file", "num_processes", "num_gpus", "include", "hostfile"} & flags.keys()
    alone = {ONE_PROCESS: True} if launcher == PYTHON and not _starts_several(before) else {}
    counted = {at: count or cards} if at and (count or cards) and not said else {}
    counted = _seen_cards(before) if counted and alone else counted
    alone = {ONE_PROCESS: True} if launcher == ACCELERATE and _is_plain_start(flags, cards) else alone
    return {**flags, **alone, **counted}


def _is_plain_start(flags: Mapping[str, Any], cards: int | None) -> bool:
    """Whether accelerate starts a script as ``python`` does, with all cards of the machine to see (accelerate
    1.15.0 commands/launch.py, simple_launcher).
    """
    return flags.get("num_processes") == 1 and cards is None and flags.keys() <= PLAIN_FLAGS


def _seen_cards(before: Sequence[str]) -> dict[str, Any]:
    """The cards that what stands before a program leaves it to see, with a mark that nothing has started as
    many processes; nothing where none are said.

    ``llamafactory-cli`` itself starts a process on each (LLaMA-Factory's launcher.py: get_device_count).
    """
    cards = next((count for word in reversed(before) if (count := visible_cards(word))), None)
    return {NPROC: cards, SEEN_CARDS: True} if cards else {}


def visible_cards(word: str) -> int | None:
    """The cards that an assignment leaves visible (``CUDA_VISIBLE_DEVICES=0,1``)."""
    found = VISIBLE.fullmatch(word)
    return found[1].count(",") + 1 if found and found[1] != "-1" else None


def _starts_several(before: Sequence[str]) -> bool:
    """Whether what stands before a program may start it more than once."""
    programs = {word.rpartition("/")[2] for word in before}
    return bool(programs & {*PARALLEL}) or (
        "srun" in programs and SEVERAL_TASKS.search(" ".join(before)) is not None
    )


def _parallel_count(before: Sequence[str]) -> int | None:
    """The processes that ``mpirun`` and its like start."""
    if not any(word.rpartition("/")[2] in PARALLEL for word in before):
        return None
    counts = (value for at, value in pairwise(before) if at in COUNTS)
    return next((int(value) for value in counts if value.isdecimal() and len(value) < 6), None)


def _of_evaluation(words: Sequence[str], told: EvaluatedModel) -> Launch:
    """An evaluation that loads its model with transformers, as a script of the same arguments (dtype:
    lm_eval/models/huggingface.py:87, batch_size:90, of EleutherAI/lm-evaluation-harness 4e7e0d4).
    """
    start = find_launcher(words)
    launcher = start[0] if start is not None else PYTHON
    own = list(words[start[1] :]) if start is not None else []
    own = own[: own.index("-m")] if "-m" in own else own
    flags = _counted_flags(launcher, words[: start[1]], own) if start is not None else {}
    counted = {
        at: held
        for at, held in flags.items()
        if at in ("num_processes", "num_machines", "nproc_per_node", "nnodes")
    }
    arguments = {"batch_size": 1, **told.arguments, "model": told.model}
    return Launch(launcher=launcher, flags=counted, script=f"{told.program}.py", arguments=arguments, left=())
