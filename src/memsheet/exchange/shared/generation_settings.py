"""A settings file of people's own for something that generates: a model, how it is loaded and how many tokens
it answers with, and nothing that trains. Each value is read by its name, so that no verdict on it is sure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import MORE
from memsheet.exchange.shared.own_settings import (
    BATCH,
    LENGTHS,
    MOST_LEAVES,
    SPELLINGS,
    TRAINED_BY,
    WIDTHS,
    Leaf,
    first_count,
    first_value,
    leaves_of,
    model_named,
    quantized_values,
)
from memsheet.exchange.shared.script_places import BY_NAMES, LOOP, NO_PROMPT, SCRIPT, UNSAID

ANSWERS = ("max_new_tokens",)
"""What transformers calls the tokens of an answer (generation/configuration_utils.py)."""
SHARES = ("gpu_memory_utilization", "mem_fraction_static", "gpu_memory_fraction")
"""The part of a card that an engine of its own takes, which makes it no generation by the library's code."""
BATCHES = ("batch_size", "eval_batch_size", "inference_batch_size", "generation_batch_size")
TRAINS = frozenset({
    BATCH, "gradient_accumulation_steps", "weight_decay", "warmup_ratio", "warmup_steps", *SPELLINGS["gradient_accumulation_steps"], *(at for names in TRAINED_BY for at in names),
})  # fmt: skip
"""Keys of a training's, of which a file that only generates has none."""
ELSEWHERE = frozenset(
    {"api_base", "base_url", "api_key", "api_key_env", "api_url", "endpoint", "provider", "deployment"}
)
"""Keys of those who ask a server that runs elsewhere."""


def generation_settings(tree: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The values as those of a script that generates with the library's own code; None of any other file."""
    leaves = generating_leaves(tree)
    answer = None if any(leaf.key in SHARES for leaf in leaves) else first_count(leaves, ANSWERS)
    name = model_named(leaves) if answer else None
    if name is None:
        return None
    length, batch = first_count(leaves, LENGTHS), first_count(leaves, BATCHES)
    dtype = first_value(leaves, ("torch_dtype", "dtype"), lambda value: value in WIDTHS)
    return {
        f"{LOOP}.reads": "the settings of a generation",
        f"{LOOP}.task": "infer",
        f"{LOOP}.answer": answer,
        **({f"{LOOP}.length": length} if length else {f"{LOOP}.prompt": NO_PROMPT}),
        **({f"{LOOP}.batch": batch} if batch else {}),
        f"{SCRIPT}.model": name,
        f"{SCRIPT}.dtype": dtype or UNSAID,
        **{at: held for at, held in quantized_values(leaves).items() if held is not None},
        MORE: BY_NAMES,
    }


def served_settings(
    tree: Mapping[str, Any], share: str, flags: Mapping[str, tuple[str, ...]]
) -> Mapping[str, Any] | None:
    """The values as flags of an engine that a script of people's own makes; None of any other file.
    ``share``: the key by which such a file is known; ``flags``: by flag what people call it.
    """
    leaves = generating_leaves(tree)
    if first_value(leaves, (share,), lambda value: isinstance(value, float) and 0 < value <= 1) is None:
        return None
    name = model_named(leaves)
    if name is None:
        return None
    held = {
        flag: first_value(leaves, names, lambda value: isinstance(value, int | float) and value > 0)
        for flag, names in flags.items()
    }
    return {
        "--model": name,
        **{flag: value for flag, value in held.items() if value is not None},
        MORE: BY_NAMES,
    }


def generating_leaves(tree: Any) -> list[Leaf]:
    """The values of a file that trains nothing, asks nobody elsewhere and is not for a processor alone; none
    of any other.
    """
    leaves = [leaf for leaf in leaves_of(tree) if leaf.value is not None] if isinstance(tree, Mapping) else []
    keys = {leaf.key for leaf in leaves}
    trains = not keys.isdisjoint(TRAINS) or any(leaf.trains for leaf in leaves)
    alone = any(leaf.key == "device" and leaf.value == "cpu" for leaf in leaves)
    if trains or alone or not keys.isdisjoint(ELSEWHERE) or len(leaves) > MOST_LEAVES:
        return []
    return leaves
