"""A settings file of Lightning's command line (``LightningCLI``): what its trainer, the module and the data
are made of (Lightning-AI/pytorch-lightning 2.5 src/lightning/pytorch/cli.py). The module and the data are
people's own, so that what they are given is read by its names and no verdict is sure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import MORE
from memsheet.exchange.shared.lightning_trainer import ARGUMENTS, lightning_keys
from memsheet.exchange.shared.loop_script import DEEPSPEED, OPTIMIZERS
from memsheet.exchange.shared.own_methods import OtherTrainingError, method_of_names
from memsheet.exchange.shared.own_settings import (
    BATCH,
    LENGTHS,
    NAMES_MODEL,
    RECOMPUTES,
    SPELLINGS,
    Leaf,
    first_count,
    leaves_of,
    model_named,
)
from memsheet.exchange.shared.python_config import read_module
from memsheet.exchange.shared.script_places import BY_NAMES, CLASS, LOOP, SCRIPT, UNSAID

TRAINER, MODULE, DATA = "trainer", "model", "data"
CLASS_PATH, ARGUMENTS_OF_CLASS = "class_path", "init_args"
LOADED_BY = ("hf_path", "pretrained", "backbone", "name", "path")
"""What people call a model's name among a module's arguments, beside its usual names."""
CHECKPOINTS = (*RECOMPUTES, "enable_gradient_checkpointing", "gradient_checkpointing")


def lightning_settings(tree: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The values as those of a script whose loop Lightning's trainer drives; None of any other file."""
    trainer, module, data = (tree.get(at) for at in (TRAINER, MODULE, DATA))
    if not isinstance(trainer, Mapping) or not isinstance(module, Mapping) or not isinstance(data, Mapping):
        return None
    if not ARGUMENTS & trainer.keys() or CLASS_PATH not in {*module, *data}:
        return None
    own, rows = list(leaves_of(module)), list(leaves_of(data))
    batch = first_count(rows, (BATCH, *SPELLINGS[BATCH])) or first_count(own, (BATCH, *SPELLINGS[BATCH]))
    name = model_named(own, (*NAMES_MODEL, *LOADED_BY))
    if batch is None or name is None or _trains_otherwise(module, own):
        return None
    driver = {at: _as_constructor_call(held) for at, held in trainer.items()}
    made = lightning_keys(read_module("", {}), driver)
    inline, cast = made.pop(DEEPSPEED, None), made.pop("cast", None)
    optimizer = next((OPTIMIZERS[word] for leaf in own if (word := _last_part(leaf)) in OPTIMIZERS), None)
    length = first_count(rows, LENGTHS) or first_count(own, LENGTHS)
    loop = {
        "reads": "the settings of a loop that Lightning drives",
        "batch": batch,
        **({"length": length} if length else {}),
        **({"recompute": True} if any(one.key in CHECKPOINTS and one.value is True for one in own) else {}),
        **({"optimizer": optimizer[0]} if optimizer else {}),
        **({"implementation": optimizer[1]} if optimizer and optimizer[1] else {}),
        **made,
    }
    return {
        LOOP: loop,
        SCRIPT: {"model": name, "dtype": cast or UNSAID},
        **({DEEPSPEED: inline} if inline else {}),
        MORE: BY_NAMES,
    }


def _as_constructor_call(held: Any) -> Any:
    """An object of a class as a call of it."""
    if not isinstance(held, Mapping) or CLASS_PATH not in held:
        return held
    given = held.get(ARGUMENTS_OF_CLASS)
    named = given if isinstance(given, Mapping) else {}
    return {**named, CLASS: str(held[CLASS_PATH]).rpartition(".")[2]}


def _last_part(leaf: Leaf) -> str:
    return leaf.value.rpartition(".")[2] if isinstance(leaf.value, str) else ""


def _trains_otherwise(module: Mapping[str, Any], leaves: list[Leaf]) -> bool:
    """Whether a module trains by a method of preferences or rewards, or several models."""
    called = str(module.get(CLASS_PATH, "")).rpartition(".")[2].lower()
    names = sorted({name.lower() for leaf in leaves for name in (*leaf.groups, leaf.key)} | {called})
    try:
        return method_of_names(names, ()) != ""
    except OtherTrainingError:
        return True
