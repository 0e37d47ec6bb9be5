"""A settings file of people's own whose groups hold the Trainer's arguments, a model and an adapter, as those
of the script that loads it: ``training: {per_device_train_batch_size: 4}, lora: {r: 16}``. Each value is read
by its name, so that no verdict on it is sure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import MORE
from memsheet.exchange.shared.own_methods import (
    REFERENCE,
    OtherTrainingError,
    method_of_names,
    method_values,
    stage_of_name,
)
from memsheet.exchange.shared.packed_storage import packed_storage
from memsheet.exchange.shared.peft_configs import USUAL_RANK, adapters_over_bits
from memsheet.exchange.shared.script_places import BY_NAMES, INLINE, SCRIPT, UNSAID
from memsheet.frozen import NamedTuple
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

with late_functions(__name__):
    from memsheet.catalog import find_model
    from memsheet.exchange.shared.config_references import with_references
    from memsheet.exchange.shared.flag_words import plain_value


MOST_LEAVES, DEEPEST = 600, 5
"""Values of a file that is looked into, and groups in one another: a training has a hundred in three."""
BATCH = "per_device_train_batch_size"
SPELLINGS = {
    BATCH: ("per_device_batch_size", "per_gpu_train_batch_size", "micro_batch_size", "train_batch_size", "batch_size", "batch_size_per_device"),
    "gradient_accumulation_steps": ("grad_accum_steps", "gradient_accumulation", "grad_accumulation_steps", "accumulation_steps", "grad_accum"),
}  # fmt: skip
"""How people call the Trainer's arguments in a group of a training's."""
RECOMPUTES = ("use_gradient_checkpointing", "activation_checkpointing")
TRAINED_BY = (
    ("learning_rate", "lr"),
    ("num_train_epochs", "num_epochs", "epochs", "max_steps", "n_epochs", "epoch", "steps", "train_steps"),
)
"""Of each, one stands beside a batch where that is a training's."""
MIXED = {"bf16": "bf16", "bf16-mixed": "bf16", "fp16": "fp16", "16-mixed": "fp16", "fp16-mixed": "fp16"}
"""How people say what a training computes in, by the Trainer's switch of it."""
IN_BF16 = ", and computing in bf16, which it does not say"
WIDTHS = ("bfloat16", "float16", "float32", "auto")
NAMES_MODEL = (
    "model_name_or_path", "pretrained_model_name_or_path", "base_model_name_or_path", "model_name", "base_model", "base_model_name", "model_id", "base_model_id",
    "hf_model_ckpt", "model_path", "base_model_path", "hf_model", "pretrained_model", "model_checkpoint", "checkpoint", "model",
)  # fmt: skip
CONFIG_NAME = "config_name"
"""Of a model to the Trainer's examples, and of a part of a data set in most files."""
IN_MODEL_GROUP = ("name", "path", "id", "base", "repo", "repo_id", "hf_id", "pretrained")
LENGTHS = (
    "max_length", "max_seq_length", "max_seq_len", "max_sequence_length", "seq_length", "seq_len", "sequence_length", "sequence_len",
    "cutoff_len", "model_max_length", "block_size", "context_length", "total_length",
)  # fmt: skip
IN_TWO_WORDS = frozenset({"batch_size", "max_length", "sequence_length", "seq_length", "context_length"})
"""Sizes that people say as a group and a key in it, too: ``batch: {size: 2}``."""
_ADAPTER = late_pattern(r"lora|peft|adapter", re.IGNORECASE)
_MODEL = late_pattern(r"(?:^|_)model(?:_|$)|^base$", re.IGNORECASE)
_OTHER_USE = late_pattern(r"eval|infer|generat(?!or)|serv|predict|test|judge|dataset|^data$|reward|teacher|vllm|deploy|merge|export|hub|metric|result|sampl|decod|bench|monitor|callback|^val(?:id|_|$)|_val$", re.IGNORECASE)  # fmt: skip
"""Groups of which a value is no training's."""
_TRAINS = late_pattern(
    r"train|^(?:sft|dpo|ipo|kto|orpo|cpo|simpo|grpo|rloo)(?:_config|_args)?$", re.IGNORECASE
)
_HUB_ID = late_pattern(r"[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,95}|[A-Za-z][\w.-]*-\d+(?:\.\d+)?[bB](?:-[\w.-]+)?")


OPTIMIZER_GROUP = late_pattern(r"^optim(?:izer)?s?(?:_config|_args)?$", re.IGNORECASE)
OPTIMIZERS = {
    "adamw": "adamw_torch", "adam": "adamw_torch", "adamw_hf": "adamw_torch", "adamw8bit": "adamw_bnb_8bit", "adamw_8bit": "adamw_bnb_8bit",
    "adam8bit": "adamw_bnb_8bit", "pagedadamw8bit": "paged_adamw_8bit", "pagedadamw32bit": "paged_adamw_32bit", "lion": "lion_32bit",
}  # fmt: skip
"""How people call an optimizer that the Trainer has under another name."""
IN_BITS = {
    "4bit": 4,
    "int4": 4,
    "nf4": 4,
    "fp4": 4,
    "bnb4bit": 4,
    "4": 4,
    "8bit": 8,
    "int8": 8,
    "bnb8bit": 8,
    "8": 8,
}
"""How people say in one word what the base of adapters is stored in."""
QUANTIZES = (
    "quantization",
    "quantize",
    "quant",
    "quantization_type",
    "quant_type",
    "bits",
    "quantization_bits",
    "load_in",
)


class Leaf(NamedTuple):
    """A value, its key, and the groups that it stands in."""

    groups: tuple[str, ...]
    key: str
    value: Any

    @property
    def trains(self) -> bool:
        return any(_TRAINS.search(group) for group in self.groups)


def own_settings(tree: Any, is_argument: Callable[[str], bool]) -> Mapping[str, Any] | None:
    """The values as those of a training script; None where a tree is no such file. ``is_argument``: whether
    the Trainer takes an argument of that name. Without a model where the file names none and says the
    Trainer's batch by its own name.
    """
    if not isinstance(tree, Mapping):
        return None
    leaves = list(leaves_of(tree))
    if len(leaves) > MOST_LEAVES:
        return None
    leaves, stage = _of_first_stage(leaves)
    try:
        method = _method_of_leaves(leaves)
    except OtherTrainingError:
        return None
    own = [leaf for leaf in leaves if not any(_is_beside(name) for name in leaf.groups)]
    own = [leaf for leaf in own if not REFERENCE.search(leaf.key)]
    if not _trains_a_batch(own):
        return None
    own, trained = _of_one_training([leaf for leaf in own if leaf.value is not None])
    trained = trained or stage
    model = model_named(own)
    if model is None and (names_several(own) or not any(leaf.key == BATCH for leaf in own)):
        return None
    adapter = [leaf for leaf in own if any(_ADAPTER.search(group) for group in leaf.groups)]
    rest = [leaf for leaf in own if leaf not in adapter]
    trained_own = [leaf for leaf in rest if leaf.trains] or [leaf for leaf in rest if not leaf.groups]
    arguments = {
        leaf.key: leaf.value
        for leaf in sorted(rest, key=lambda leaf: leaf.trains)  # a training's own, where several say it
        if is_argument(leaf.key) and leaf.key not in (*LENGTHS, CONFIG_NAME)
    }
    said = {
        at: value
        for at, names in SPELLINGS.items()
        if at not in arguments and (value := first_value(trained_own, names, _is_count)) is not None
    }
    if "optim" not in arguments and (named := _optimizer_named(own)):
        said["optim"] = named
    if arguments.get("gradient_checkpointing") == "unsloth":  # as Unsloth's own, layer by layer
        said["gradient_checkpointing"] = True
    if any(one.key in RECOMPUTES and one.value in (True, "unsloth") for one in own):
        said["gradient_checkpointing"] = arguments.get("gradient_checkpointing", True)
    words = {str(one.value) for one in rest if one.key in ("mixed_precision", "precision")}
    widths = {width for word, width in MIXED.items() if word in words}
    said |= {width: True for width in widths if not {"bf16", "fp16"} & arguments.keys()}
    silent = not words and not {"bf16", "fp16"} & arguments.keys() and not _says_width(own)
    said |= {"bf16": True} if silent else {}
    length = first_value(trained_own, LENGTHS, _is_count) or first_value(own, LENGTHS, _is_count)
    of_method = method_values(method, {leaf.key: leaf.value for leaf in own if leaf.key not in arguments})
    found = {
        f"{SCRIPT}.reads": BATCH,
        f"{SCRIPT}.model": model,
        f"{SCRIPT}.max_length": length,
        **{f"{SCRIPT}.{at}": value for at, value in of_method.items()},
        f"{SCRIPT}.dtype": first_value(own, ("torch_dtype", "dtype"), lambda value: value in WIDTHS)
        or UNSAID,
        f"{SCRIPT}.attention": first_value(
            own, ("attn_implementation",), lambda value: isinstance(value, str)
        ),
        **_bits_and_adapters(own, adapter),
        **arguments,
        **said,
        **_deepspeed_values(tree),
        MORE: BY_NAMES
        + f", as a training by {method}" * bool(method)
        + f", of its trainings {trained} alone" * bool(trained)
        + IN_BF16 * silent,
    }
    return {at: value for at, value in found.items() if value is not None}


def _is_beside(group: str) -> bool:
    """Whether what a group holds is of something else than the training."""
    return bool(_OTHER_USE.search(group) or REFERENCE.search(group.lower()))


def _says_width(leaves: list[Leaf]) -> bool:
    """Whether a file says what a model is loaded in."""
    return any(leaf.key in ("torch_dtype", "dtype") and leaf.value in WIDTHS for leaf in leaves)


def leaves_of(tree: Mapping[str, Any]) -> Iterator[Leaf]:
    """The values of a tree, at most so many groups in one another."""
    return _leaves_below(with_references(tree), ())


def first_count(leaves: list[Leaf], keys: tuple[str, ...]) -> int | None:
    """The first whole number of the first of ``keys`` that has one."""
    found = first_value(leaves, keys, _is_count)
    return int(found) if found is not None else None


def _leaves_below(tree: Mapping[Any, Any], groups: tuple[str, ...]) -> Iterator[Leaf]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            if len(groups) < DEEPEST:
                yield from _leaves_below(value, (*groups, str(key)))
        else:
            held = plain_value(value) if isinstance(value, str) else value
            joined = f"{groups[-1]}_{key}".lower() if groups else ""
            own = joined in IN_TWO_WORDS
            yield Leaf(groups[:-1] if own else groups, joined if own else str(key), held)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _of_one_training(leaves: list[Leaf]) -> tuple[list[Leaf], str]:
    """The values without those of further trainings' groups, and the name of the one that stays; no name
    where there is one alone.
    """
    batches = {leaf.groups: leaf.value for leaf in leaves if _says_batch(leaf)}
    first, *others = list(batches) or [()]
    others = [at for at in others if at[: len(first)] != first and first[: len(at)] != at]
    if not others:
        return leaves, ""
    kept = [leaf for leaf in leaves if not any(leaf.groups[: len(at)] == at for at in others)]
    return kept, ".".join(first)


def _of_first_stage(leaves: list[Leaf]) -> tuple[list[Leaf], str]:
    """Of a file with groups for trainings of several kinds, one after another (``sft``, ``dpo``), the values
    without those of all but the first that says a batch, and its name; no name where there is one alone.
    """
    stages: dict[str, str] = {}
    for leaf in leaves:
        if leaf.key in (BATCH, *SPELLINGS[BATCH]) and _is_count(leaf.value):
            for group in filter(stage_of_name, leaf.groups):
                stages.setdefault(stage_of_name(group), group)
    if len(stages) < 2:
        return leaves, ""
    first = next(iter(stages))
    others = [
        leaf
        for leaf in leaves
        if any(stage_of_name(name) not in ("", first) for name in (*leaf.groups, leaf.key))
    ]
    return [leaf for leaf in leaves if leaf not in others], stages[first]


def _says_batch(leaf: Leaf) -> bool:
    return leaf.trains and leaf.key in (BATCH, *SPELLINGS[BATCH]) and _is_count(leaf.value)


def _deepspeed_values(tree: Mapping[Any, Any], depth: int = 0) -> Mapping[str, Any]:
    """DeepSpeed's configuration that stands in the file in place of a file's name."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and depth < DEEPEST:
            if isinstance(value.get("zero_optimization"), Mapping):
                return {INLINE: value}
            if key != "zero_optimization" and (found := _deepspeed_values(value, depth + 1)):
                return found
    return {}


def _trains_a_batch(leaves: list[Leaf]) -> bool:
    """Whether a group says the Trainer's batch by its name, or a training's or the top by another."""
    if any(leaf.key == BATCH and _is_count(leaf.value) for leaf in leaves):
        return True
    trained = {leaf.key for leaf in leaves if leaf.trains or _of_optimizer(leaf) or not leaf.groups}
    names = SPELLINGS[BATCH]
    return not trained.isdisjoint(names) and all(not trained.isdisjoint(each) for each in TRAINED_BY)


def _method_of_leaves(leaves: list[Leaf]) -> str:
    """The method that a file trains by. Raises OtherTrainingError of what trains several models."""
    said = [leaf for leaf in leaves if leaf.value not in (None, False)]
    names = {name.lower() for leaf in said for name in (*leaf.groups, leaf.key)}
    words = {(leaf.key, leaf.value.lower()) for leaf in said if isinstance(leaf.value, str)}
    return method_of_names(sorted(names), sorted(words))


def first_value(leaves: list[Leaf], keys: tuple[str, ...], holds: Callable[[Any], bool]) -> Any:
    """The first of ``keys`` that has a value of that kind, a training's own before others'."""
    for key in keys:
        found = [
            leaf
            for leaf in leaves
            if leaf.key == key and not isinstance(leaf.value, bool) and holds(leaf.value)
        ]
        if found:
            return next((leaf.value for leaf in found if leaf.trains), found[0].value)
    return None


def model_named(leaves: list[Leaf], names: tuple[str, ...] = NAMES_MODEL) -> Any:
    """The model that the surest of some keys names; None where several do."""
    own = _surest_names(leaves, names)
    return own[0] if len(set(own)) == 1 else None


def names_several(leaves: list[Leaf]) -> bool:
    """Whether the surest key of a model names more than one."""
    return len(set(_surest_names(leaves, NAMES_MODEL))) > 1


def _surest_names(leaves: list[Leaf], names: tuple[str, ...]) -> list[str]:
    def is_name(value: Any) -> bool:
        if not isinstance(value, str):
            return False
        name = value.strip()
        return _HUB_ID.fullmatch(name) is not None or find_model(name.lower()) is not None

    of_group = [leaf for leaf in leaves if leaf.groups and _MODEL.search(leaf.groups[-1])]
    for held, keys in ((leaves, names), (of_group, IN_MODEL_GROUP)):
        for key in keys:
            named = [leaf for leaf in held if leaf.key == key and is_name(leaf.value)]
            own = [leaf for leaf in named if leaf.trains] or named
            if own:
                return [leaf.value for leaf in own]
    return []


def _bits_and_adapters(leaves: list[Leaf], adapter: list[Leaf]) -> dict[str, Any]:
    """What the base is stored in and what trains beside it, by the keys that a script is read as."""
    told = {**_adapter_values(leaves, adapter), **quantized_values(leaves)}
    over = adapters_over_bits({at.removeprefix(f"{SCRIPT}."): held for at, held in told.items()})
    return {**told, **{f"{SCRIPT}.{at}": held for at, held in over.items()}}


def _adapter_values(leaves: list[Leaf], adapter: list[Leaf]) -> Mapping[str, Any]:
    """What trains an adapter; nothing where its group is switched off."""
    switches = ("use_lora", "use_peft", "use_qlora", "enable_lora", "lora_enabled", "use_adapter")
    off = any(leaf.key in switches and leaf.value is False for leaf in leaves) or any(
        leaf.key in ("enabled", "enable", "use") and leaf.value is False for leaf in adapter
    )
    rank = first_value(adapter, ("r", "rank"), _is_count) or first_value(
        leaves, ("lora_r", "lora_rank"), _is_count
    )
    on = any(leaf.key in (*switches, "enabled") and leaf.value is True for leaf in adapter)
    if off or (rank is None and not on):
        return {}
    targets = first_value(adapter, ("target_modules", "lora_target_modules", "targets"), bool) or first_value(
        leaves, ("lora_target_modules", "target_modules"), bool
    )
    dropout = first_value(adapter, ("dropout", "lora_dropout"), lambda value: isinstance(value, float))
    return {
        f"{SCRIPT}.lora_rank": rank or USUAL_RANK,
        f"{SCRIPT}.lora_targets": [targets] if isinstance(targets, str) else targets,
        f"{SCRIPT}.lora_dropout": dropout or 0.0,
    }


def _of_optimizer(leaf: Leaf) -> bool:
    return any(OPTIMIZER_GROUP.match(group) for group in leaf.groups)


def _optimizer_named(leaves: list[Leaf]) -> str | None:
    """The Trainer's name of the optimizer that a group of its own says, or a key of a training's."""
    for leaf in leaves:
        own = _of_optimizer(leaf) and leaf.key in ("name", "type", "optimizer")
        if isinstance(leaf.value, str) and (own or (leaf.trains and leaf.key == "optimizer")):
            word = leaf.value.rpartition(".")[2].lower()
            return OPTIMIZERS.get(word, OPTIMIZERS.get(word.replace("_", ""), word))
    return None


def _bits_in_a_word(leaves: list[Leaf]) -> int | None:
    """Bits that the base of adapters is stored in, where a file says them in one word (``quantization:
    4bit``).
    """
    for leaf in leaves:
        word = re.sub(r"[^a-z0-9]", "", str(leaf.value).lower())
        if leaf.key in QUANTIZES and not isinstance(leaf.value, bool) and word in IN_BITS:
            return IN_BITS[word]
    return None


def quantized_values(leaves: list[Leaf]) -> Mapping[str, Any]:
    """Nothing of a group that is switched off."""
    switches = ("enabled", "enable", "use", "use_quantization", "quantize")
    off = {leaf.groups for leaf in leaves if leaf.key in switches and leaf.value is False and leaf.groups}
    on = {leaf.key for leaf in leaves if leaf.value is True and leaf.groups not in off}
    bits = _bits_in_a_word([leaf for leaf in leaves if leaf.groups not in off])
    if not on.isdisjoint(("load_in_4bit", "use_4bit")) or bits == 4:
        kind = first_value(leaves, ("bnb_4bit_quant_type",), lambda value: value in ("nf4", "fp4"))
        return {
            f"{SCRIPT}.quantized": kind or "fp4",
            f"{SCRIPT}.double_quant": "bnb_4bit_use_double_quant" in on or None,
            f"{SCRIPT}.storage": packed_storage(first_value(leaves, ("bnb_4bit_quant_storage",), bool)),
        }
    return {f"{SCRIPT}.quantized": "int8"} if "load_in_8bit" in on or bits == 8 else {}
