"""Settings as Weights & Biases keeps them: a run's record (``{desc, value}`` under each name) and a sweep's
parameters (``{value}``, ``{values}`` or a range), as the plain values that a training had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import MORE
from memsheet.exchange.shared.script_places import OF_OWN_SCRIPT

RECORDED = ("wandb_version", "_wandb")
"""Keys of every record of a run (wandb/wandb 0.19.1 wandb/sdk/lib/config_util.py,
save_config_file_from_dict).
"""
HELD = frozenset({"desc", "value"})
METHODS = ("grid", "random", "bayes")
"""How a sweep searches (docs.wandb.ai, sweep configuration: method)."""
BASE, MODEL = "_name_or_path", "model_name_or_path"
"""Where the record of transformers' callback has the model's name, out of its configuration (transformers
5.23.0 integrations/integration_utils.py, WandbCallback.setup)."""
MOST_TOLD = 8


def tracked_values(tree: Any) -> Any:
    """The plain values of a run's record or of a sweep, with what stays open of them; any other tree as it
    is.
    """
    if not isinstance(tree, Mapping):
        return tree
    if _is_record(tree):
        own = {
            str(at): held["value"] if _is_held(held) else held
            for at, held in tree.items()
            if at not in RECORDED
        }
        named = {MODEL: own[BASE]} if MODEL not in own and isinstance(own.get(BASE), str) else {}
        return {**own, **named, MORE: f"{OF_OWN_SCRIPT}: this is a run's record"}
    swept = tree.get("parameters")
    if tree.get("method") in METHODS and isinstance(swept, Mapping):
        tried = ", ".join(list(_tried_values(swept))[:MOST_TOLD])
        told = f"{OF_OWN_SCRIPT}, and the sweep tries {tried}" if tried else OF_OWN_SCRIPT
        return {**_first_values(swept), MORE: told}
    return tree


def _is_held(held: Any) -> bool:
    return isinstance(held, Mapping) and "value" in held and held.keys() <= HELD


def _is_record(tree: Mapping[str, Any]) -> bool:
    """Whether a tree is a run's record, with or without the keys that all have."""
    own = {at: held for at, held in tree.items() if at not in RECORDED}
    return len(own) > 1 and all(map(_is_held, own.values()))


def _first_values(swept: Mapping[str, Any]) -> dict[str, Any]:
    """A sweep's first values; nothing of what it draws from a range."""
    found: dict[str, Any] = {}
    for at, held in swept.items():
        if not isinstance(held, Mapping):
            continue
        values = held.get("values")
        if isinstance(held.get("parameters"), Mapping):
            found[str(at)] = _first_values(held["parameters"])
        elif "value" in held:
            found[str(at)] = held["value"]
        elif isinstance(values, list) and values:
            found[str(at)] = values[0]
    return found


def _tried_values(swept: Mapping[str, Any]) -> Iterator[str]:
    """Parameters of which a sweep tries several values, in words."""
    for at, held in swept.items():
        if isinstance(held, Mapping) and isinstance(inner := held.get("parameters"), Mapping):
            yield from _tried_values(inner)
        elif isinstance(held, Mapping) and isinstance(values := held.get("values"), list) and len(values) > 1:
            yield f"{at} of {', '.join(str(one)[:40] for one in values[:MOST_TOLD])}"
