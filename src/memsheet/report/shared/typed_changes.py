"""What to type to get a change: flags to add, and in place of which that are on the line already, by whatever
name.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.errors import printable_line
from memsheet.plan.names import SHORT
from memsheet.plan.words import means_the_same
from memsheet.report.shared.look import Look
from memsheet.report.shared.words import flags_for

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
    of a key, where another than memsheet's own says what is meant.
    """
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
        " ".join([*_model_argument(said), flags_for(_without_model(named)), *gone]).strip(),
        " ".join(map(_as_typed, replaced)),
    )
    if not old:
        return f"add  {flags}"
    return f"replace  {old} by {flags}" if flags else f"leave out  {old}"


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


def _model_argument(values: Mapping[str, Any]) -> Iterator[str]:
    """A model is an argument, not a flag."""
    if "model" in values:
        yield shlex.quote(printable_line(values["model"]))


def _without_model(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "model"}


def _as_typed(option: Option) -> str:
    name, value, _ = option
    if name == "model":
        return shlex.quote(printable_line(value))
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
    return f"--{flag} {shlex.quote(printable_line(text))}"
