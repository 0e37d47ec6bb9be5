"""A command that starts a script whose flags no format has: what they mean by their names, and what the
script's own text makes of them where it lies beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.built_models import BUILT, OPEN_SIZES, TYPE
from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.gathered_outputs import DATA_PARALLEL
from memsheet.exchange.shared.launched_script import ACCELERATE, DEEPSPEED, TORCHRUN, Launch, values_given
from memsheet.exchange.shared.lightning_trainer import OTHER_STRATEGY
from memsheet.exchange.shared.loop_places import DRIVER, OWN_WRAPS
from memsheet.exchange.shared.loop_script import DEEPSPEED as DEEPSPEED_WRAP
from memsheet.exchange.shared.loop_script import DIVIDED, FED, SEQUENCE, loop_values, mixed_word
from memsheet.exchange.shared.role_names import RoleValue, command_values, role_value, task_of_script
from memsheet.exchange.shared.role_words import ROLES
from memsheet.exchange.shared.script_places import LOOP, SCRIPT, UNSAID

BY_NAMES = "flags"
FILES = {"deepspeed_config": "deepspeed_file", "deepspeed": "deepspeed_file", "ds_config": "deepspeed_file"}
COPIES = ("ddp", "accelerate")
"""Those that give each process a copy, which DeepSpeed's launcher leaves as they are: it starts processes
(deepspeed/launcher/launch.py), and ``deepspeed.initialize`` divides.
"""
COUNTED = ("batch", "length", "accumulation", "prompt", "answer", "zero", "tensor", SEQUENCE)


def command_loop_values(found: Launch, text: str = "") -> Mapping[str, Any]:
    """The values of a start, of its script's ``text`` and flags; nothing where neither names a model or
    tells whether it trains.
    """
    try:
        read = loop_values(text, values_given(found, text)) if text else {}
    except ValueError:
        read = {}
    flags = command_values(found.arguments)
    task = read[LOOP].get("task", "train") if read else task_of_script(found.script, found.arguments)
    model = role_value("model", flags)
    named = model is not None and isinstance(model.value, str)
    built = {"model", BUILT} & read.get(SCRIPT, {}).keys()
    sizes = {} if named or built else _described_keys(flags)
    if task is None or not (named or sizes or built):
        return {}
    loop = read.get(LOOP, {})
    own = {**loop, **_loop_flags(flags), **_wrap_of(loop, flags, found), "task": task}
    evaluated = flags.get("eval_batch_size")
    if task == "infer" and "batch" not in own and evaluated and type(evaluated.value) is int:
        own["batch"] = evaluated.value
    if task == "infer" and own.pop("wrap", None) == DEEPSPEED_WRAP:
        own[DIVIDED] = "by DeepSpeed"
        own.pop("deepspeed_file", None)
    if found.launcher in (TORCHRUN, ACCELERATE, DEEPSPEED):
        own.pop(DATA_PARALLEL, None)
    if own.get(FED):
        own.pop("batch", None)
    if not read:
        own |= {"reads": f"the flags of {found.script}", BY_NAMES: _names_read(flags)}
    said = {"dtype": UNSAID, **sizes, **_loading_flags(flags), **read.get(SCRIPT, {})}
    if model is not None and named:
        said["model"] = model.value
    return {LOOP: own, SCRIPT: said, **{at: held for at, held in read.items() if at not in (LOOP, SCRIPT)}}


def _names_read(flags: Mapping[str, RoleValue]) -> str:
    """The flags whose names were taken for what they mean."""
    taken = [role_value(role, flags) for role in ROLES]
    names = ", ".join(dict.fromkeys(one.name for one in taken if one is not None))
    return f"read by their names: {names}"


def _loop_flags(flags: Mapping[str, RoleValue]) -> dict[str, Any]:
    """Sizes, dtypes and files that flags say."""
    made: dict[str, Any] = {}
    for role in COUNTED:
        told = role_value(role, flags)
        if told is not None and (told.value == UNSET or type(told.value) is int):
            made[role] = told.value
    for role, word in (("bf16", "bf16"), ("fp16", "fp16")):
        if (told := role_value(role, flags)) is not None and told.value is True:
            made["autocast"] = word
    mixed = flags.get("mixed_precision")
    if mixed is not None and isinstance(mixed.value, str) and mixed.value != UNSET:
        made["autocast"] = mixed_word(mixed.value)
    if (told := role_value("recompute", flags)) is not None:
        made["recompute"] = told.value is True or told.value == 1
    if (told := role_value("compile", flags)) is not None and told.value is True:
        made["compile"] = True
    files = {
        own: flags[at].value for at, own in FILES.items() if at in flags and isinstance(flags[at].value, str)
    }
    return {**made, **files}


SIZES = {
    "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads", "groups": "num_key_value_heads", "inner": "intermediate_size",
    "vocabulary": "vocab_size",
}  # fmt: skip
"""Roles by the words of transformers' configurations."""
LEAST_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads")
OF_FAMILY = {
    "llama": "llama", "mistral": "mistral", "mixtral": "mixtral", "qwen2": "qwen2", "qwen3": "qwen3",
}  # fmt: skip
"""Families whose configurations have those words; another, or none, is taken for Llama's."""


def is_described(flags: Mapping[str, RoleValue]) -> bool:
    """Whether flags say the sizes of a model and no model."""
    return role_value("model", flags) is None and bool(_described_keys(flags))


def _described_keys(flags: Mapping[str, RoleValue]) -> dict[str, Any]:
    """The model that flags describe by its sizes, with those that none of them says."""
    told = {own: role_value(role, flags) for role, own in SIZES.items()}
    said = {own: held.value for own, held in told.items() if held is not None and type(held.value) is int}
    if not all(at in said for at in LEAST_SIZES):
        return {}
    family = role_value("family", flags)
    word = str(family.value if family is not None else "").lower()
    kind = next((name for name in OF_FAMILY if word.startswith(name)), "")
    left = [own for own in SIZES.values() if own not in said]
    length = role_value("length", flags)
    if length is not None and type(length.value) is int:  # rows as long as the model is made for
        said["max_position_embeddings"] = length.value
    left += [] if kind else [f"family (the layers are Llama's{f', not those of {word}' * bool(word)})"]
    return {
        BUILT: {**said, TYPE: OF_FAMILY.get(kind, "llama")},
        **({OPEN_SIZES: ", ".join(left)} if left else {}),
    }


FULL, HALF, NONE = "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"
STRATEGIES = {"full": FULL, "full_shard": FULL, "hybrid_shard": FULL, "hybrid": FULL, "shard_grad_op": HALF, "no_shard": NONE, "ddp": NONE}  # fmt: skip
"""Words of flags that say how FSDP divides (torch/distributed/fsdp/api.py, ShardingStrategy)."""


def _sharding_flags(flags: Mapping[str, RoleValue]) -> dict[str, Any]:
    """FSDP, where a flag says that the states are divided by it."""
    told = role_value("shards", flags)
    if told is None or told.value in (False, 0, "", UNSET):
        return {}
    strategy = STRATEGIES.get(str(told.value).lower(), FULL)
    return {"wrap": "fsdp1", "strategy": strategy}


def _wrap_of(loop: Mapping[str, Any], flags: Mapping[str, RoleValue], found: Launch) -> dict[str, Any]:
    """What divides or copies the model: the script's own call where its text has one, whatever starts its
    processes; else what the launcher and its flags make of a script that wraps nothing itself.
    """
    wrap, by_file = loop.get("wrap"), any(at in flags for at in FILES)
    if wrap in OWN_WRAPS or OTHER_STRATEGY in loop:
        return {"wrap": wrap}
    if by_file or (found.launcher == DEEPSPEED and wrap not in COPIES):
        return {"wrap": DEEPSPEED_WRAP}
    if divided := _sharding_flags(flags):
        return divided
    if wrap == "ddp" and DRIVER not in loop:
        return {"wrap": wrap}
    copies = {ACCELERATE: "accelerate", TORCHRUN: "ddp", DEEPSPEED: "ddp"}
    return {"wrap": copies[found.launcher]} if found.launcher in copies else {}


def _loading_flags(flags: Mapping[str, RoleValue]) -> dict[str, Any]:
    """How a model is loaded: its dtype, attention, bits and adapters."""
    made: dict[str, Any] = {}
    dtype = flags.get("torch_dtype") or flags.get("dtype")
    if dtype is not None and isinstance(dtype.value, str) and dtype.value not in (UNSET, "auto"):
        made["dtype"] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "half": "float16"}.get(
            dtype.value, dtype.value
        )
    if (told := role_value("attention", flags)) is not None and isinstance(told.value, str):
        made["attention"] = told.value
    if (told := role_value("flash", flags)) is not None and told.value is True:
        made["attention"] = "flash_attention_2"
    if (told := role_value("4bit", flags)) is not None and told.value is True:
        made |= {"quantized": "nf4", "double_quant": False}
    if (told := role_value("8bit", flags)) is not None and told.value is True:
        made["quantized"] = "int8"
    rank, switch = role_value("lora_rank", flags), role_value("lora", flags)
    if (
        rank is not None
        and type(rank.value) is int
        and rank.value > 0
        and (switch is None or switch.value is not False)
    ):
        made |= {"lora_rank": rank.value, "lora_targets": ["all-linear"]}
    return made
