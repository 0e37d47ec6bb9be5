"""The command of ms-swift in a shell's script: ``swift sft``, ``megatron sft``, or the file that it runs, its
flags, and the processes that its variables start (modelscope/ms-swift 3602360 swift/cli/main.py:12-77).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from memsheet.exchange.shared.file_format import Values
from memsheet.exchange.shared.launched_script import (
    ACCELERATE,
    ENDS,
    WRITES,
    find_launcher,
    visible_cards,
)
from memsheet.exchange.shared.shell_text import ShellScript
from memsheet.late import late_functions

if TYPE_CHECKING:
    from memsheet.exchange.shared.preference_methods import Preferences
with late_functions(__name__):
    from memsheet.exchange.shared.flag_words import flags_of, plain_value
    from memsheet.exchange.shared.preference_methods import preferences_of


METHODS = ("sft", "pt", "rlhf")
METHOD, PROCESSES, NODES = "$.method", "$.nproc_per_node", "$.nnodes"
CONFIG, FILES = "--config", (".yaml", ".yml", ".json")
VARIABLES = {PROCESSES: "NPROC_PER_NODE", NODES: "NNODES"}
VISIBLE, CARDS = "CUDA_VISIBLE_DEVICES", "$.cards_per_process"
"""A process that sees several cards spreads the layers over them (swift/model/utils.py:224-235,
swift/utils/env.py:64-75).
"""


def trained_method(values: Values) -> Any:
    """The method of ``swift rlhf``, or the command's own."""
    return values.get("rlhf_type", "dpo") if values.get(METHOD) == "rlhf" else values.get(METHOD, "sft")


def swift_preferences(values: Values) -> Preferences | None:
    """The method, without a reference where its probabilities are made before; a reward model has a head of
    one label (swift/arguments/rlhf_args.py:497).
    """
    method = trained_method(values)
    given = {"reference": False} if values.get("precompute_ref_log_probs") is True else {}
    return preferences_of(method, **given, **({"scored": True} if method == "rm" else {}))


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
            method, before, rest = found
            given = list(_until_redirected(rest))
            named = file_of_command(given)
            said = {**({at_file: named} if named else {}), **flags_of(given)[0]}
            said = {at: held for at, held in said.items() if at != CONFIG.lstrip("-") or not named}
            counted = {**_processes(script), **_processes_of_launcher(before)}
            return {METHOD: method, **counted, **_cards_per_process(script, before, counted), **said}
    return {}


def file_of_command(words: Sequence[str]) -> str | None:
    """The file that a command is given before its flags, or behind ``--config``
    (swift/cli/main.py:38-47, swift/ray/megatron/pipeline.py:403).
    """
    at = words.index(CONFIG) + 1 if CONFIG in words else len(words)
    behind = takewhile(lambda word: not word.startswith("--"), words[at:])  # a folder may be several words
    return next((word for word in (*words[:1], *behind) if word.endswith(FILES)), None)


def _method_and_rest(words: Sequence[str], program: str) -> tuple[str, Sequence[str], Sequence[str]] | None:
    """The method, the words up to the program, and those behind it."""
    for at, word in enumerate(words[:24]):
        if word.rpartition("/")[2] == program and words[at + 1 : at + 2] and words[at + 1] in METHODS:
            return words[at + 1], words[: at + 1], words[at + 2 :]
        own = word.rpartition("/")[2].removesuffix(".py")
        folder = "cli/_megatron/" if program == "megatron" else "swift/cli/"
        if word.endswith(f"{folder}{own}.py") and own in METHODS:
            return own, words[: at + 1], words[at + 1 :]
    return None


def _processes(script: ShellScript) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for at, name in VARIABLES.items():
        held = script.known.get(name)
        if held:
            with suppress(ValueError):
                found[at] = plain_value(" ".join(held))
    return found


def _processes_of_launcher(before: Sequence[str]) -> dict[str, Any]:
    """Processes of a node by the flags of what starts the program's file."""
    start = find_launcher(before)
    if start is None:
        return {}
    flags = flags_of(before[start[1] : -1])[0]
    nodes = next((flags[at] for at in ("nnodes", "num_nodes", "num_machines") if at in flags), 1)
    count = flags.get("nproc_per_node", flags.get("num_gpus"))
    ranks = flags.get("num_processes")
    if start[0] == ACCELERATE and isinstance(ranks, int) and isinstance(nodes, int) and nodes > 0:
        count = ranks // nodes
    return {PROCESSES: count, NODES: nodes} if count is not None else {}


def _cards_per_process(
    script: ShellScript, before: Sequence[str], counted: Mapping[str, Any]
) -> dict[str, Any]:
    """The cards that each process sees, where they are several; nothing where a file says the processes."""
    start, count = find_launcher(before), counted.get(PROCESSES, 1)
    seen = visible_cards(f"{VISIBLE}={' '.join(script.known.get(VISIBLE, ()))}")
    if (start and start[0] == ACCELERATE and PROCESSES not in counted) or not isinstance(count, int):
        return {}
    return {CARDS: seen // count} if seen and count > 0 and seen // count > 1 else {}


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
