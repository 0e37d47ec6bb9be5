"""A training script that a shell starts: the launcher's own flags, the script's name, and the flags that are
the script's. Read as text, never run.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.serve_command import parse_human_number
from memsheet.exchange.shared.serve_script import (
    Variables,
    has_unset_placeholder,
    script_lines,
    split_line_commands,
)
from memsheet.frozen import dataclass

TORCHRUN, ACCELERATE, DEEPSPEED, PYTHON, TRL = "torchrun", "accelerate", "deepspeed", "python", "trl"
FACTORY, FACTORY_FILE = "llamafactory-cli", "llamafactory-cli train"
"""LLaMA-Factory's command, and where the YAML stands that it is given (hiyouga/LLaMA-Factory ff6d4d1
src/llamafactory/launcher.py:55, hparams/parser.py, read_args: a file and then key=value over it, or flags).
"""
FACTORY_NAMES = (FACTORY, "lmf")
PROCESSES = {"NPROC_PER_NODE": "nproc_per_node", "NNODES": "nnodes"}
"""Its variables for torchrun's flags (launcher.py:65-69)."""
MODULES = {
    "torch.distributed.run": TORCHRUN, "torch.distributed.launch": TORCHRUN, "accelerate.commands.launch": ACCELERATE,
    "deepspeed.launcher.runner": DEEPSPEED,
}  # fmt: skip
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
COMMAND_LINE = re.compile(
    r"^\s*(?:\$ +|# +)?(?P<command>(?:\w+=\S* +)*"
    r"(?:python3?|accelerate launch|torchrun|deepspeed|uv run|trl|llamafactory-cli)\s)",
    re.MULTILINE,
)
"""How a line of prose begins that is a command."""
SWITCHES_OF_PYTHON = ("-u", "-O", "-B")
NEXT = "&&"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One start of a script. ``flags``: the launcher's; ``arguments``: the script's."""

    launcher: str
    flags: Mapping[str, Any]
    script: str
    arguments: Mapping[str, Any]
    left: tuple[str, ...]  # words after the script that are no flags


def first_script_launch(text: str) -> Launch | None:
    """The first script that a text starts, with variables at their defaults where nothing else is said."""
    return next(script_launches(text), None)


def script_launches(text: str) -> Iterator[Launch]:
    """Every script that a text starts, in order; behind a wrapper's start what it starts, which may stand in
    a command of its own (``mason.py … -- setup.sh && python train.py``).
    """
    outer: Mapping[str, Any] = {}
    for words in filled_commands(text):
        at = _wrapper_index(words)
        ends = -1 if at is None else words.index(WRAPPED) if WRAPPED in words else len(words)
        outer = outer if at is None else flags_of(words[at + 1 : ends])[0]
        found = _parse_launch_words([word.removeprefix(NEXT) for word in words[ends + 1 :]])
        if found is not None:
            yield replace(found, flags=_wrapped_flags(found, outer)) if outer else found


def described_launches(text: str, name: str) -> str:
    """What the text of a Python script says before its code that starts it, as a shell's; nothing where it
    says no such command.
    """
    try:
        told = ast.get_docstring(ast.parse(text)) or ""
    except (SyntaxError, ValueError, RecursionError):
        return ""
    said = "\n\n".join(_command_blocks(told))
    own = any(found.script.rpartition("/")[2] == name for found in script_launches(said))
    return said if own else ""


def _command_blocks(told: str) -> Iterator[str]:
    """Of prose, the paragraphs in which a command stands, from its line on."""
    for block in re.split(r"\n\s*\n|^\s*```.*$", told, flags=re.MULTILINE):
        found = COMMAND_LINE.search(block)
        if found is not None:
            yield block[found.start("command") :]


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
    known = Variables()
    for words in (part for line in script_lines(text) for part in split_line_commands(line)):
        known.learn(words)
        yield list(_unpacked_words(known.filled(words, defaults=True)))[:MOST]


def _unpacked_words(words: Sequence[str]) -> Iterator[str]:
    """Words of a command, and of the command that one of them holds as a text."""
    for word in words:
        first = word.split(None, 1)[0].rpartition("/")[2] if " " in word.strip() else ""
        try:
            yield from shlex.split(word) if first in STARTERS else (word,)
        except ValueError:
            yield word


def find_launcher(words: Sequence[str]) -> tuple[str, int] | None:
    """The launcher among the words of a command, and where what is given to it begins."""
    for at, word in enumerate(words):
        base, then = word.rpartition("/")[2], list(words[at + 1 : at + 3])
        if base == ACCELERATE and then[:1] == ["launch"]:
            return ACCELERATE, at + 2
        if base == TRL and then and then[0] in METHODS:
            return TRL, at + 1
        if base in FACTORY_NAMES and then[:1] == ["train"]:
            return FACTORY, at + 1
        if base in (TORCHRUN, DEEPSPEED):
            return base, at + 1
        if base.startswith(PYTHON) and then[:1] == ["-m"] and then[-1] in MODULES:
            return MODULES[then[-1]], at + 3
        if base.startswith(PYTHON) and then[:1] and then[0] in SWITCHES_OF_PYTHON:
            then = then[1:]
        runs = base.startswith(PYTHON) or (base == "run" and words[at - 1] == "uv")
        if runs and then and then[0].endswith(".py"):
            return PYTHON, at + 1
    return None


def _parse_launch_words(words: Sequence[str]) -> Launch | None:
    start = find_launcher(words)
    if start is None:
        return None
    launcher, rest = start[0], list(words[start[1] :])
    ends = next((at for at, word in enumerate(rest) if word in ENDS or word.startswith(WRITES)), len(rest))
    rest = rest[:ends]
    if launcher == FACTORY:
        return _of_factory(words[: start[1]], rest)
    at = 0 if launcher == TRL else next((at for at, word in enumerate(rest) if word.endswith(".py")), None)
    if at is None:
        return None
    arguments, left = flags_of(rest[at + 1 :])
    return Launch(
        launcher=launcher, flags=flags_of(rest[:at])[0], script=rest[at], arguments=arguments, left=left
    )


def _of_factory(before: Sequence[str], rest: Sequence[str]) -> Launch:
    """What LLaMA-Factory's command trains: a YAML with words over it, or flags. ``before``: with the
    variables that stand in front.
    """
    set_in_front = dict(word.split("=", 1) for word in before if "=" in word)
    flags = {
        flag: plain_value(set_in_front[name]) for name, flag in PROCESSES.items() if name in set_in_front
    }
    file = rest[1] if len(rest) > 1 and rest[1].endswith((".yaml", ".yml", ".json")) else None
    if file is None:
        arguments, left = flags_of(rest[1:])
        return Launch(launcher=FACTORY, flags=flags, script=FACTORY_FILE, arguments=arguments, left=left)
    over = {
        name: plain_value(value)
        for word in rest[2:]
        for name, equals, value in (word.partition("="),)
        if equals
    }
    left = tuple(word for word in rest[2:] if "=" not in word)
    return Launch(
        launcher=FACTORY, flags=flags, script=FACTORY_FILE, arguments={FACTORY_FILE: file, **over}, left=left
    )


def flags_of(words: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """``--a b``, ``--a=b``, ``--a b c`` and switches by their names with underscores; and the words that
    belong to none.
    """
    found: dict[str, Any] = {}
    left: list[str] = []
    name = ""
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = plain_value(value) if equals else True
            name = "" if equals else name
        elif name:
            held = found[name]
            found[name] = (
                plain_value(word)
                if held is True
                else [*(held if isinstance(held, list) else [held]), plain_value(word)]
            )
        else:
            left.append(word)
    return found, tuple(left)


def plain_value(text: str) -> Any:
    """A word as a script's parser reads it: a switch's two words, a number, or a text; ``UNSET`` where a
    variable is left.
    """
    if has_unset_placeholder(text):
        return UNSET
    switch = {"true": True, "false": False}.get(text.lower())
    if switch is not None:
        return switch
    try:
        return parse_human_number(text) if text[-1:] not in "kKmMgGtT" else text
    except ValueError:
        return text
