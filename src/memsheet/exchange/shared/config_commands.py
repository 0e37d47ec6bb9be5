"""Commands that train what a YAML says, with words over it: LLaMA-Factory's, axolotl's and torchtune's; and
accelerate's configurations that TRL brings along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memsheet.frozen import NamedTuple
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

with late_functions(__name__):
    from memsheet.exchange.shared.flag_words import flags_of, plain_value


FACTORY, FACTORY_FILE = "llamafactory-cli", "llamafactory-cli train"
"""LLaMA-Factory's command, and where the YAML stands that it is given (hiyouga/LLaMA-Factory ff6d4d1
src/llamafactory/launcher.py:55, hparams/parser.py, read_args: a file and then key=value over it, or flags).
"""
AXOLOTL, AXOLOTL_FILE, AXOLOTL_MODULE = "axolotl", "axolotl train", "axolotl.cli.train"
"""axolotl's command and the module that it starts (axolotl-ai-cloud/axolotl 067b021 src/axolotl/cli/main.py,
train: a file, fields as flags over it, and behind two dashes what its launcher is given).
"""
TUNE, TUNE_FILE = "tune", "tune run"
"""torchtune's (pytorch/torchtune v0.6.1 torchtune/_cli/run.py: torchrun's flags, a recipe, ``--config`` and
key=value over it).
"""
SWIFT_FILE, SWIFT_MEGATRON_FILE = "$.file", "$.megatron_file"
OF_TORCHTUNE = frozenset({"checkpointer"})
"""Keys at the top of torchtune's recipes, which may name a template beside."""
OF_SWIFT = frozenset({
    "tuner_type", "train_type", "sft_type", "rlhf_type", "split_dataset_ratio", "model_author", "device_groups", "colocate_groups", "sampler_engine",
})  # fmt: skip
"""Keys at the top of a file for ms-swift's command (modelscope/ms-swift 3602360 swift/arguments) that no
other tool's has.
"""
OF_FILES: Mapping[str, str] = {FACTORY_FILE: "llamafactory", AXOLOTL_FILE: "axolotl", TUNE_FILE: "torchtune"}
"""By where such a command has its file, the format of both."""
STARTS = late_pattern(
    r"(?:^|[\s/])(?:axolotl\s+train|tune\s+run|llamafactory-cli\s+train)\s|-m\s+axolotl\.cli\.train\s"
)
"""Whether a text starts one, whose flags may be called as others' are."""
PROCESSES = {"NPROC_PER_NODE": "nproc_per_node", "NNODES": "nnodes"}
"""LLaMA-Factory's variables for torchrun's flags (launcher.py:65-69)."""
ENDINGS, BEHIND = (".yaml", ".yml", ".json"), "--"
ONE_DEVICE, ALONE, TUNE_RECIPE = "single_device", "$.processes", "$.shipped_recipe"
"""How torchtune's recipes of one process are called (recipes/), and where that is told."""
_BF16 = {"mixed_precision": "bf16", "num_machines": 1, "num_processes": 8}
_ZERO = {**_BF16, "distributed_type": "DEEPSPEED"}
_FSDP = {**_BF16, "distributed_type": "FSDP", "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
ACCELERATE_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "fsdp1": {**_FSDP, "fsdp_version": 1, "fsdp_reshard_after_forward": "FULL_SHARD"}, "fsdp2": {**_FSDP, "fsdp_version": 2, "fsdp_reshard_after_forward": True},
    "multi_gpu": {**_BF16, "distributed_type": "MULTI_GPU"}, "single_gpu": {**_BF16, "distributed_type": "NO", "num_processes": 1},
    **{f"zero{stage}": {**_ZERO, "zero_stage": stage} for stage in (1, 2, 3)},
}  # fmt: skip
"""What ``trl sft --accelerate_config NAME`` brings along (huggingface/trl f2cd577 trl/accelerate_configs)."""


class ConfigCommand(NamedTuple):
    """The launcher's flags, where the command has its file, its arguments over it, and words of nobody."""

    flags: dict[str, Any]
    at: str
    arguments: dict[str, Any]
    left: tuple[str, ...]


def factory_command(before: Sequence[str], rest: Sequence[str]) -> ConfigCommand:
    """What LLaMA-Factory's command trains: a YAML with words over it, or flags. ``before``: with the
    variables that stand in front.
    """
    set_in_front = dict(word.split("=", 1) for word in before if "=" in word)
    flags = {
        flag: plain_value(set_in_front[name]) for name, flag in PROCESSES.items() if name in set_in_front
    }
    file = rest[1] if len(rest) > 1 and rest[1].endswith(ENDINGS) else None
    if file is None:
        return ConfigCommand(flags, FACTORY_FILE, *flags_of(rest[1:]))
    left = tuple(word for word in rest[2:] if "=" not in word)
    return ConfigCommand(flags, FACTORY_FILE, {FACTORY_FILE: file, **_words_over(rest[2:])}, left)


def axolotl_command(rest: Sequence[str]) -> ConfigCommand | None:
    """What axolotl trains, of the words behind its command or module; its file stands first."""
    ends = rest.index(BEHIND) if BEHIND in rest else len(rest)
    file = next((word for word in rest[:ends] if word.endswith(ENDINGS)), None)
    if file is None:
        return None
    over, left = flags_of([word for word in rest[:ends] if word != file])
    given = {**flags_of(rest[ends + 1 :])[0], **_popped(over, ("num_processes", "nproc_per_node"))}
    count = given.get("nproc_per_node", given.get("num_processes"))
    over.pop("launcher", None)
    return ConfigCommand(
        {"nproc_per_node": count} if count is not None else {},
        AXOLOTL_FILE,
        {AXOLOTL_FILE: file, **over},
        left,
    )


def tune_command(rest: Sequence[str]) -> ConfigCommand | None:
    """What ``tune run`` trains, of the words behind ``run``."""
    words = [
        part for word in rest for part in (word.split("=", 1) if word.startswith("--config=") else (word,))
    ]
    at = words.index("--config") if "--config" in words else 0
    if at < 1 or at + 1 >= len(words):
        return None
    counted: dict[str, Any] = _popped(flags_of(words[: at - 1])[0], ("nproc_per_node", "nnodes"))
    recipe = words[at - 1]
    said = {TUNE_FILE: words[at + 1], **({ALONE: 1} if ONE_DEVICE in recipe else {})}
    said |= {} if recipe.endswith(".py") or not recipe.isidentifier() else {TUNE_RECIPE: recipe}
    left = tuple(word for word in words[at + 2 :] if "=" not in word)
    return ConfigCommand(counted, TUNE_FILE, {**said, **_words_over(words[at + 2 :])}, left)


def trl_launcher_flags(arguments: dict[str, Any]) -> dict[str, Any]:
    """Accelerate's flags among those of ``trl sft``, taken from them (trl/cli/accelerate_config.py): its
    configuration by a name or as a file, and its processes.
    """
    own = _popped(arguments, ("num_processes", "num_machines", "accelerate_config"))
    named = str(own.pop("accelerate_config", ""))
    if named in ACCELERATE_CONFIGS:
        return {**ACCELERATE_CONFIGS[named], **own}
    return {**own, **({"config_file": named} if named else {})}


def _popped(given: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: given.pop(name) for name in names if name in given}


def _words_over(words: Sequence[str]) -> dict[str, Any]:
    """``key=value`` over a file."""
    pairs = (word.partition("=") for word in words)
    return {name: plain_value(value) for name, equals, value in pairs if equals}
