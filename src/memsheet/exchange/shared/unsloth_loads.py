"""What Unsloth loads and trains, by its own defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.colocated_server import unsloth_colocated_share
from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.loaded_models import OF_UNSLOTH, model_name_key
from memsheet.exchange.shared.peft_configs import (
    LORA,
    lora_config_keys,
    with_open_branch,
)
from memsheet.exchange.shared.python_branches import reachable_calls
from memsheet.exchange.shared.python_config import named_calls
from memsheet.exchange.shared.python_module import Module
from memsheet.exchange.shared.script_environment import script_variable
from memsheet.exchange.shared.script_places import (
    BITS,
    BRANCH,
    COLOCATED,
    OLDER_WORDS,
    OWN_LAYERS,
    RELEASE_DEFAULTS,
    SERVED,
    WHOLE,
)
from memsheet.patterns import late_pattern
from memsheet.plan.defaults import ALL_LINEAR
from memsheet.plan.library_defaults import WORTH_OFFLOADING, own_default

UNSLOTH_LOADS, UNSLOTH_ADAPTS = (
    late_pattern(f"{OF_UNSLOTH}from_pretrained$"),
    late_pattern(f"{OF_UNSLOTH}get_peft_model$"),
)
OF_LAYERS = late_pattern(r"(?:^|\.)Fast(?:Language|Llama|Mistral|Qwen\d?|Gemma\d?)Model\.")


def unsloth_keys(module: Module, said: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """What Unsloth loads and trains, with its own defaults (unslothai/unsloth 015bdef
    unsloth/models/loader.py:405-425, llama.py:3060-3085), which stand before the arguments' in ``said`` and
    ``own``; nothing of a script without it.
    """
    load = next(
        (
            held
            for held in named_calls(module, ("from_pretrained",), local=True)
            if UNSLOTH_LOADS.search(held[WHOLE])
        ),
        None,
    )
    if load is None:
        return {}
    trained = next(
        (held for held in reachable_calls(module, ("get_peft_model",)) if UNSLOTH_ADAPTS.search(held[WHOLE])),
        None,
    )
    if said.get("fp16") is not True:
        said.setdefault("bf16", True)
    own.pop("loss_type", None)
    own.pop(RELEASE_DEFAULTS, None)
    own.pop(OLDER_WORDS, None)  # which its own trainers take in every release
    whole = own.get("max_length") if own.get("method") in GENERATES else None
    asked = (
        said.pop("max_seq_length", None),
        said.pop("max_length", None),
        load.get("max_seq_length", own_default("unsloth", "max_seq_length")),
    )
    length = next((held for held in asked if held is not None), UNSET)
    own["max_length"] = min(whole, length) if isinstance(whole, int) and isinstance(length, int) else length
    made = {"unsloth": True, **_loaded_copy(module, load), **unsloth_bits(load)}
    if OF_LAYERS.search(load[WHOLE]):
        made[OWN_LAYERS] = True
    if (share := unsloth_colocated_share(load)) is not None:
        made[COLOCATED] = share
    if own.get("method") in GENERATES:
        made[SERVED] = {**_served_words(module, load), "length": length, **_raised_rows(said)}
    recompute = (trained or load).get("use_gradient_checkpointing", "unsloth")
    if recompute not in (False, None, "False", "none"):
        said["gradient_checkpointing"] = True if recompute in (True, "unsloth", "True") else UNSET
    if recompute == "unsloth" and not (isinstance(length, int) and length < WORTH_OFFLOADING):
        made["offload"] = True
    return {
        **made,
        **(with_open_branch(LORA, _unsloth_adapter(trained), trained) if trained is not None else {}),
    }


GENERATES = ("GRPO",)
"""Methods whose server and rows Unsloth sets (the wheel of unsloth 2026.10.9: unsloth/models/rl.py)."""
ROWS, ROUNDS, GROUP = "per_device_train_batch_size", "gradient_accumulation_steps", "num_generations"
STANDBY = "UNSLOTH_VLLM_STANDBY"


def _served_words(module: Module, load: Mapping[str, Any]) -> dict[str, Any]:
    """What its vLLM is told beside its share (ib. unsloth/models/llama.py:3502-3510)."""
    said = script_variable(module.tree, STANDBY)
    asleep = said not in (None, "0") or load.get("unsloth_vllm_standby") is True
    rank = load.get("max_lora_rank")
    return {
        **({"standby": True} if asleep else {}),
        **({"rank": rank} if isinstance(rank, int) else {}),
        **({"fp8_cache": True} if load.get("float8_kv_cache") is True else {}),
    }


def _raised_rows(said: dict[str, Any]) -> dict[str, Any]:
    """In ``said`` as many rows as a group has answers, where those of a step are no multiple of them, which
    Unsloth makes them then (ib. unsloth/models/rl.py:3588-3603); how many were asked for.
    """
    if any(said.get(at) is not None for at in ("steps_per_generation", "generation_batch_size")):
        return {}
    rows, rounds, group = (
        said.get(at, usual)
        for at, usual in (
            (ROWS, own_default("unsloth", ROWS)),
            (ROUNDS, own_default("unsloth", ROUNDS)),
            (GROUP, 8),
        )
    )
    known = all(type(one) is int and one > 0 for one in (rows, rounds, group))
    if not known or rows * rounds % group == 0:
        return {}
    said[ROWS] = group
    return {"rows": rows}


def _loaded_copy(module: Module, load: Mapping[str, Any]) -> dict[str, Any]:
    """The model that Unsloth loads: its own copy of what is named, where that one has other layers."""
    found = model_name_key(module, load, ("0", "model_name"))
    copy = UNSLOTH_COPIES.get(str(found.get("model")).lower())
    return {**found, "model": copy} if copy else found


UNSLOTH_COPIES = {
    "microsoft/phi-4": "unsloth/phi-4",
    "microsoft/phi-3.5-mini-instruct": "unsloth/Phi-3.5-mini-instruct",
    "microsoft/phi-3-medium-4k-instruct": "unsloth/Phi-3-medium-4k-instruct",
}
"""What it loads in place of a release, in lower case, as far as the copy was converted (unslothai/unsloth
015bdef unsloth/models/mapper.py:199-201, 322-325, 636-640; loader.py takes it in 4 and in 16 bits).
"""


def unsloth_bits(load: Mapping[str, Any]) -> dict[str, Any]:
    """Four bits, unless others or a whole fine-tune are asked for; scales quantized again. Experts are
    quantized too: it makes stacked matrices of them bitsandbytes', and gpt-oss' linear layers
    (unslothai/unsloth-zoo ce232d6 unsloth_zoo/temporary_patches/moe_utils_bnb4bit.py:189-245,
    gpt_oss.py:812, 1237-1246).
    """
    whole, eight, four = (
        load.get(name, usual)
        for name, usual in (("full_finetuning", False), ("load_in_8bit", False), ("load_in_4bit", True))
    )
    if UNSET in (whole, eight, four):
        return {BITS: "load_in_4bit"}
    if whole is True or not (eight or four):
        return {"dtype": "bfloat16"}
    return {"quantized": "int8"} if eight else {"quantized": "nf4", "double_quant": True, "experts": True}


def _unsloth_adapter(trained: Mapping[str, Any]) -> dict[str, Any]:
    """LoRA of rank 16 on every linear layer unless told otherwise."""
    held = {
        name: value
        for name, value in trained.items()
        if name not in ("0", "model", BRANCH, *_UNSLOTH_WITHOUT_BYTES) and value is not None
    }
    usual = {"r": 16, "target_modules": ALL_LINEAR}
    asked = {**usual, **held}
    targets, whole = asked["target_modules"], asked.pop("modules_to_save", None)
    named = [*(targets if isinstance(targets, list) else ()), *(whole if isinstance(whole, list) else ())]
    tables = [name for name in dict.fromkeys(named) if str(name).rpartition(".")[2] in TABLES]
    if isinstance(targets, list):
        asked["target_modules"] = [name for name in targets if name not in tables]
    if rest := [name for name in whole or () if name not in tables] if isinstance(whole, list) else whole:
        asked["modules_to_save"] = rest
    return {**lora_config_keys(asked), **({WHOLE_TABLES: ", ".join(tables)} if tables else {})}


TABLES, WHOLE_TABLES = ("embed_tokens", "lm_head"), "whole_tables"
"""What Unsloth trains whole wherever it is named among the targets, in a copy of its own
(unslothai/unsloth 0050c73 unsloth/models/llama.py, get_peft_model: _redirect_embedding_targets).
"""
_UNSLOTH_WITHOUT_BYTES = (
    "use_gradient_checkpointing",
    "random_state",
    "max_seq_length",
    "loftq_config",
    "temporary_location",
)
