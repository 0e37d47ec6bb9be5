"""Calls that load a model: its name, its dtype and attention, fewer bits."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import KEYWORDS, UNSET
from memsheet.exchange.shared.packed_storage import packed_storage
from memsheet.exchange.shared.peft_configs import (
    OURS,
    WITHOUT_BYTES,
)
from memsheet.exchange.shared.python_branches import unused_objects
from memsheet.exchange.shared.python_config import call_node, named_calls
from memsheet.exchange.shared.python_module import Module, attribute_path
from memsheet.exchange.shared.python_values import BASE
from memsheet.exchange.shared.role_names import given_texts
from memsheet.exchange.shared.script_flags import flags_in_call
from memsheet.exchange.shared.script_places import (
    BITS,
    LIKELY_NAME,
    MAPS,
    MODEL_FLAG,
    SAME_MAP,
    SPREADS,
    WHOLE,
    WITHIN,
)
from memsheet.patterns import late_pattern

OF_UNSLOTH = r"(?:^|\.)Fast(?:Language|Vision|Text|Base|Llama|Mistral|Qwen\d?|Gemma\d?)?Model\."
LOADS = late_pattern(rf"^(?!.*{OF_UNSLOTH}).*(?:Model|LM|For[A-Z]\w*)\.from_pretrained$")
"""Classes of models, as transformers calls them; tokenizers, processors and configurations are called
otherwise.
"""
WIDTHS = ("load_in_4bit", "load_in_8bit")


def bitsandbytes_keys(held: Mapping[str, Any]) -> dict[str, Any]:
    """A model that is loaded in four or eight bits (transformers utils/quantization_config.py); the rest by
    name.
    """
    four, eight = held.get("load_in_4bit") is True, held.get("load_in_8bit") is True
    own = (*WIDTHS, "bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_quant_storage")
    rest = [name for name in held if name not in (*OURS, *own, *WITHOUT_BYTES)]
    weights = held.get("bnb_4bit_quant_type", "fp4") if four else "int8" if eight else None
    made = {
        "quantized": weights,
        **({"double_quant": held.get("bnb_4bit_use_double_quant", False)} if four else {}),
        **({"storage": packed_storage(held.get("bnb_4bit_quant_storage"))} if four else {}),
    }
    untold = ", ".join(name for name in ("load_in_4bit", "load_in_8bit") if held.get(name) == UNSET)
    why = ", ".join(sorted(rest)) or (f"{untold}, which the text does not tell" if untold else "")
    return {**(made if weights else {}), **({BITS: why} if rest or not weights else {})}


def from_pretrained_keys(held: Mapping[str, Any]) -> dict[str, Any]:
    """How a model is loaded: the dtype and the attention that the call names, and four or eight bits as its
    own keywords, which transformers 4 makes a ``BitsAndBytesConfig`` of (v4.57 modeling_utils.py,
    from_pretrained).
    """
    dtype, attention = held.get("dtype", held.get("torch_dtype")), held.get("attn_implementation")
    return {
        **({"dtype": str(dtype).removeprefix("torch.")} if dtype is not None else {}), **({"attention": attention} if attention is not None else {}),
        **_bits_of_keywords(held), **({SPREADS: WITHIN if "max_memory" in held else SAME_MAP.get(at, at)} if (at := held.get(SPREADS)) in MAPS else {}),
    }  # fmt: skip


def open_bits_key(module: Module, held: Mapping[str, Any]) -> dict[str, Any]:
    """That a loading call is given a quantization, or arguments, that the text does not tell."""
    told = held.get("quantization_config")
    elsewhere = told == UNSET or (
        isinstance(told, dict) and BASE in told
    )  # what another file's function returns
    own = any(named_calls(module, (BITS,))) and not unused_objects(module, (BITS,))
    if elsewhere and not own:
        return {BITS: "quantization_config, which the text does not tell"}
    return {BITS: "further arguments, which the text does not tell"} if held.get(KEYWORDS) == UNSET else {}


def bit_keywords(held: Mapping[str, Any]) -> list[str]:
    """Keywords of a loading call that ask for fewer bits."""
    return [name for name in WIDTHS if held.get(name, False) not in (False, None)]


def _bits_of_keywords(held: Mapping[str, Any]) -> dict[str, Any]:
    return (
        bitsandbytes_keys(
            {name: value for name, value in held.items() if name.startswith(("load_in_", "bnb_"))}
        )
        if bit_keywords(held)
        else {}
    )


def model_calls(module: Module) -> Iterator[dict[str, Any]]:
    calls = named_calls(module, ("from_pretrained",), local=True)
    return (held for held in calls if LOADS.search(held[WHOLE]))


def model_name_key(module: Module, call: Mapping[str, Any], places: tuple[str, ...]) -> dict[str, Any]:
    """A model's name, where the text says it; and the flag that it is the default of, if it is one's."""
    at = next((at for at in places if at in call), None)
    name = call[at] if at is not None else None
    if at is None or not isinstance(name, str):
        return {}
    flag = flags_in_call(module, call_node(module, call)).get(at)
    if name == UNSET and flag is not None and isinstance(flag.default, str):
        name = flag.default
    if name == UNSET:
        return _likely_name_key(module, call_node(module, call), at)
    return {"model": name, **({MODEL_FLAG: flag} if flag is not None and flag.default == name else {})}


HUB_NAME = late_pattern(r"[A-Za-z0-9][\w-]*(?:\.[\w-]+)*/[\w.-]+")


def _likely_name_key(module: Module, node: ast.Call | None, at: str) -> dict[str, Any]:
    """The last name of a hub's that the text gives what a call is given, under whatever condition; and that
    it may be another.
    """
    if node is None:
        return {}
    given = {str(place): held for place, held in enumerate(node.args)}
    given |= {held.arg: held.value for held in node.keywords if held.arg}
    path = attribute_path(given[at]) if at in given else []
    names = [one for one in given_texts(module, path[-1] if path else "") if HUB_NAME.fullmatch(one.value)]
    if not names:
        return {}
    told = f"{names[-1].value} of line {names[-1].line}, and what else {path[-1]} may be is open"
    return {"model": names[-1].value, LIKELY_NAME: told}
