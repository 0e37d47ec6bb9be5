"""llm-foundry's configuration as it is run: names of other keys in their places, without the object of a
cluster that it may stand in, or what a shell's command gives the trainer (``composer train.py mpt-1b.yaml
max_duration=10ba``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from memsheet.exchange.shared.launched_script import filled_commands
from memsheet.guard import parse_yaml
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

with late_functions(__name__):
    from memsheet.exchange.shared.config_references import with_references
    from memsheet.exchange.shared.flag_words import plain_value


FILE, PROCESSES = "$.parameters", "$.compute.gpus"
"""Where the values have the file that a command names, and the GPUs that an object of MosaicML's asks for."""
OVERRIDE = late_pattern(r"([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
NEEDED = frozenset({"model", "max_seq_len", "train_loader", "optimizer"})
MOUNTED = "parameters.yaml"
"""The file that an object's own parameters are mounted as (mcli/mcli-llama3-finetune.yaml)."""


def parse_foundry_text(text: str) -> Mapping[str, Any]:
    """Values of a configuration, or of the first command that starts the trainer with one; nothing where
    there is neither. Raises ValueError for text that is no YAML.
    """
    if "train.py" in text and "composer" in text and (found := _started_values(text)):
        return found
    if "train_loader" not in text or "max_seq_len" not in text:
        return {}
    outer = parse_yaml(text, "file")
    if not isinstance(outer, Mapping):
        return {}
    inner = outer.get("parameters")
    tree = inner if isinstance(inner, Mapping) else outer
    if not tree.keys() >= NEEDED or not isinstance(tree["model"], Mapping) or "name" not in tree["model"]:
        return {}
    return {**with_references(tree), **_requested_gpus(outer)}


def _requested_gpus(outer: Mapping[str, Any]) -> dict[str, Any]:
    compute = outer.get("compute")
    cards = compute.get("gpus") if isinstance(compute, Mapping) else None
    return {PROCESSES: cards} if type(cards) is int else {}


def _started_values(text: str) -> dict[str, Any]:
    for words in filled_commands(text):
        rest = _trainer_arguments(words)
        if rest is not None and not rest[0].endswith(MOUNTED):
            over = (found for word in rest[1:] if (found := OVERRIDE.fullmatch(word)))
            return {FILE: rest[0], **{found[1]: plain_value(found[2].strip("'\"")) for found in over}}
    return {}


def _trainer_arguments(words: Sequence[str]) -> Sequence[str] | None:
    """The file that a trainer is started with and what stands behind it."""
    starts = [at for at, word in enumerate(words) if word.rpartition("/")[2] == "composer"]
    for at, word in enumerate(words):
        after = words[at + 1 : at + 2]
        if (
            starts
            and at > starts[0]
            and word.endswith("train.py")
            and after
            and after[0].endswith((".yaml", ".yml"))
        ):
            return words[at + 1 :]
    return None
