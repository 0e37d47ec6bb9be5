"""What to type to get a change: flags to add, and in place of which that are on the line already, by whatever
name.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.errors import printable_line
from memsheet.late import late_functions
from memsheet.plan.names import SHORT
from memsheet.plan.words import means_the_same
from memsheet.report.shared.look import Look
from memsheet.report.shared.words import flags_for

with late_functions(__name__):
    from memsheet.exchange.shared.command_changes import command_changes

Option = tuple[str, Any, Mapping[str, Any]]
"""An option as it is typed, its value, and the keys that it comes to."""
COUNTED = {"@accumulation": "global_batch", "@replicas": "gpus"}
"""What another number of a step or of GPUs contradicts."""
LAID_OUT = {"gpus": ("nodes", "per_node", "cluster")}
"""What says how GPUs are laid out, which other GPUs are not."""
LEFT_OUT = {"speculative.method": "no --speculative", "quantization.weights": "no --quantize"}
"""What is said where a change takes an option away that is not on the line."""
SHORT_KEYS = frozenset(SHORT.values())


NO_WORDS: Mapping[str, str] = {}


def change_line(
    changes: Mapping[str, Any], look: Look, task: str = "train", words: Mapping[str, str] = NO_WORDS
) -> str:
    """``add`` and the flags of some changes, or ``replace`` those that say something else of the same keys
    ``by`` them, with what else those said; a key without a value is left out of the line. ``words``: the flag
    of a key, where another than memsheet's own says what is meant. Where a server's command or file is
    answered, its own words come first, and memsheet's where it has none.
    """
    if look.server is None:
        return _own_line(changes, look, task, words)
    found = command_changes(look.server, changes)
    left = {key: value for key, value in found.left.items() if value is not None or _is_typed(key, look)}
    told = _replacing_line(" ".join(found.old), " ".join(found.new)) if found.old or found.new else ""
    if told and not left:
        return told
    if list(left) == [STORED] and left[STORED] is not None and not _is_typed(STORED, look):
        stored = (
            f"serve  a checkpoint stored in {left[STORED]} (--quantize {left[STORED]} here accounts for it)"
        )
        return f"{stored}, and in the command {told}" if told else stored
    own = _own_line(left or changes, look, task, words)
    own += OWN_FLAG * bool((left or changes).keys() - {*MACHINES})
    return f"{own}, and in the command {told}" if told else own


STORED = "quantization.weights"
"""What a server reads in its checkpoint, where its command has no word for making it so."""
OWN_FLAG = " (memsheet's own flag)"
"""Said of what a server's command has no word for."""


def _is_typed(key: str, look: Look) -> bool:
    """Whether an option of the line says something of a key."""
    return any(key in _option_plan_keys(option) for option in look.typed)


def _own_line(changes: Mapping[str, Any], look: Look, task: str, words: Mapping[str, str]) -> str:
    """The line in memsheet's own flags."""
    changes = {
        key: value for key, value in changes.items() if not _is_already_typed(key, value, look)
    } or changes
    replaced = [option for option in look.typed if _contradicts_change(option, changes, task)]
    kept = {
        key: value
        for _, _, keys in replaced
        for key, value in keys.items()
        if key in SHORT_KEYS or key.startswith("offload.")
    }
    said = {
        key: value
        for key, value in {**{key: kept[key] for key in kept if key not in changes}, **changes}.items()
        if value is not None
    }
    named = {words.get(key, key): value for key, value in said.items()}
    spoken = {key for option in replaced for key in _option_plan_keys(option)}
    gone = (
        words
        for key, words in LEFT_OUT.items()
        if key in changes and changes[key] is None and key not in spoken
    )
    flags, old = (
        " ".join([*_model_argument(said, look), flags_for(_without_model(named)), *gone]).strip(),
        " ".join(_as_typed(option, look) for option in replaced),
    )
    return _replacing_line(old, flags)


def _is_already_typed(key: str, value: Any, look: Look) -> bool:
    """Whether an option of the line gives a key that value already."""
    return value is not None and any(keys.get(key) == value for _, _, keys in look.typed)


def _replacing_line(old: str, new: str) -> str:
    """What to add, to leave out, or to put in place of what."""
    if not old:
        return f"add  {new}"
    return f"replace  {old} by {new}" if new else f"leave out  {old}"


def _contradicts_change(option: Option, changes: Mapping[str, Any], task: str) -> bool:
    """Whether an option of the line says something else of what is changed, or means something else once it
    is.
    """
    name, value, _ = option
    changed = {*changes, *(key for cause, keys in LAID_OUT.items() if cause in changes for key in keys)}
    if _option_plan_keys(option) & changed:
        return True
    engine = changes.get("engine")
    return (
        bool(engine)
        and name not in MACHINES
        and not means_the_same(name, value, option[2], task, str(engine))
    )


MACHINES = ("model", "gpus", "nodes", "per_node", "cluster", "most")
"""What a line says that is no option of a plan."""


def _option_plan_keys(option: Option) -> set[str]:
    _, _, keys = option
    return {COUNTED.get(key, key.removeprefix("?")) for key in keys}


def _model_argument(values: Mapping[str, Any], look: Look) -> Iterator[str]:
    """A model is an argument, and a flag of a line whose arguments are files."""
    if "model" in values:
        yield "--model " * look.model_flag + shlex.quote(printable_line(values["model"]))


def _without_model(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "model"}


def _as_typed(option: Option, look: Look) -> str:
    name, value, _ = option
    if name == "model" and not look.model_flag:
        return shlex.quote(printable_line(value))
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
    return f"--{flag} {shlex.quote(printable_line(text))}"
