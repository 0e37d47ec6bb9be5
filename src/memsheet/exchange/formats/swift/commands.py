"""The command of ms-swift in a shell's script: ``swift sft``, ``megatron sft``, or the file that it runs, its
flags, and the processes that its variables start (modelscope/ms-swift 3602360 swift/cli/main.py:12-77).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any

from memsheet.exchange.shared.flag_words import flags_of, plain_value
from memsheet.exchange.shared.launched_script import ENDS, WRITES
from memsheet.exchange.shared.shell_text import ShellScript

METHODS = ("sft", "pt", "rlhf")
METHOD, PROCESSES, NODES = "$.method", "$.nproc_per_node", "$.nnodes"
CONFIG, FILES = "--config", (".yaml", ".yml", ".json")
VARIABLES = {PROCESSES: "NPROC_PER_NODE", NODES: "NNODES"}


def swift_flags(text: str, program: str, at_file: str) -> Mapping[str, Any]:
    """What the first training command of ``program`` (swift, megatron) is given, the name of a file at
    ``at_file``; nothing where there is none.

    Raises ValueError for text that is no shell.
    """
    if program not in text:
        return {}
    script = ShellScript(text)
    for words in script.commands():
        found = _method_and_rest(words, program)
        if found is not None:
            method, rest = found
            given = list(_until_redirected(rest))
            named = file_of_command(given)
            said = {**({at_file: named} if named else {}), **flags_of(given)[0]}
            said = {at: held for at, held in said.items() if at != CONFIG.lstrip("-") or not named}
            return {METHOD: method, **_processes(script), **said}
    return {}


def file_of_command(words: Sequence[str]) -> str | None:
    """The file that a command is given before its flags, or behind ``--config``
    (swift/cli/main.py:38-47, swift/ray/megatron/pipeline.py:403).
    """
    at = words.index(CONFIG) + 1 if CONFIG in words else len(words)
    behind = takewhile(lambda word: not word.startswith("--"), words[at:])  # a folder may be several words
    return next((word for word in (*words[:1], *behind) if word.endswith(FILES)), None)


def _method_and_rest(words: Sequence[str], program: str) -> tuple[str, Sequence[str]] | None:
    for at, word in enumerate(words[:24]):
        if word.rpartition("/")[2] == program and words[at + 1 : at + 2] and words[at + 1] in METHODS:
            return words[at + 1], words[at + 2 :]
        own = word.rpartition("/")[2].removesuffix(".py")
        folder = "cli/_megatron/" if program == "megatron" else "swift/cli/"
        if word.endswith(f"{folder}{own}.py") and own in METHODS:
            return own, words[at + 1 :]
    return None


def _processes(script: ShellScript) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for at, name in VARIABLES.items():
        held = script.known.get(name)
        if held:
            with suppress(ValueError):
                found[at] = plain_value(" ".join(held))
    return found


def _until_redirected(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        if word in ("$@", "${@}"):  # whoever starts it adds to what is read
            continue
        if word in ENDS or word.startswith(WRITES):
            return
        yield word


def read_processes(value: Any, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Processes of a node, on as many nodes as are said."""
    nodes = values.get(NODES, 1)
    return (
        {"@per_node": value, "@gpus": value * nodes}
        if isinstance(value, int) and isinstance(nodes, int)
        else {}
    )
