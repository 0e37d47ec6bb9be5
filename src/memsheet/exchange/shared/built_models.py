"""Models that a script builds of a configuration in place of loading weights: by a class and its sizes
(``LlamaForCausalLM(LlamaConfig(hidden_size=768))``), or by another model's configuration with sizes of its
own (``AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("gpt2", n_layer=6))``).

transformers' example of causal language modelling says the same in flags (huggingface/transformers v5.3.0
examples/pytorch/language-modeling/run_clm.py, ModelArguments: model_type, config_name, config_overrides).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.shared.file_format import AUTO, UNSET, Values
from memsheet.exchange.shared.plain_values import LONGEST
from memsheet.exchange.shared.python_config import named_calls
from memsheet.exchange.shared.python_module import Module, Tree
from memsheet.exchange.shared.python_values import CONFIG_LOADS
from memsheet.exchange.shared.script_places import CLASS
from memsheet.patterns import late_pattern

BUILT, BASE, TYPE, OPEN_SIZES = "built", "base", "model_type", "open_sizes"
"""Under ``script``: the configuration, and sizes in it that the text does not say."""
BUILDS = late_pattern(
    r"^(?:GPT|[A-Z]\w*(?:LMHeadModel|For(?:CausalLM|MaskedLM|ConditionalGeneration)|Model))$"
)
NANO, NANO_SIZES = (
    "GPTConfig",
    {
        "block_size": "n_positions",
        "n_layer": "n_layer",
        "n_head": "n_head",
        "n_embd": "n_embd",
        "vocab_size": "vocab_size",
    },
)
NANO_USUAL = {"vocab_size": 50304}
"""A GPT-2 of a script's own, with a vocabulary that is rounded up, by the library's words (karpathy/nanoGPT
model.py, GPTConfig).
"""
OWN_CODE, OF_LIBRARY = (
    "own_code",
    "activations are of the script's own layers, and the sheet is of the library's",
)
FROM_CONFIG = ("from_config", "_from_config")
SIZES = frozenset((
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "n_embd", "n_layer",
    "n_head", "n_inner", "n_positions", "n_ctx", "max_position_embeddings", "tie_word_embeddings", "d_model", "d_ff", "d_kv", "num_layers", "num_heads",
    "num_decoder_layers", "ffn_dim", "attention_bias", "mlp_bias", "num_local_experts", "num_experts", "num_experts_per_tok", "moe_intermediate_size",
    "hidden_act", "activation_function", "sliding_window", "type_vocab_size", "word_embed_proj_dim", "decoder_layers", "encoder_layers",
))  # fmt: skip
"""Arguments of configurations on which bytes depend (transformers 5.23.0 configuration_*.py)."""


TYPES: Mapping[str, str] = {
    "GPT": "gpt2", "GPT2": "gpt2", "GPTNeoX": "gpt_neox", "GPTJ": "gptj", "GPTBigCode": "gpt_bigcode", "OPT": "opt", "Llama": "llama", "Mistral": "mistral", "Mixtral": "mixtral",
    "Qwen2": "qwen2", "Qwen2Moe": "qwen2_moe", "Qwen3": "qwen3", "Qwen3Moe": "qwen3_moe", "Gemma": "gemma", "Gemma2": "gemma2", "Gemma3Text": "gemma3_text", "Phi": "phi",
    "Phi3": "phi3", "Falcon": "falcon", "Bloom": "bloom", "Olmo": "olmo", "Olmo2": "olmo2", "Cohere": "cohere", "Granite": "granite", "StableLm": "stablelm",
    "Starcoder2": "starcoder2", "DeepseekV2": "deepseek_v2", "DeepseekV3": "deepseek_v3", "GptOss": "gpt_oss", "Mamba": "mamba", "Mamba2": "mamba2",
    "Bert": "bert", "Roberta": "roberta", "T5": "t5", "Bart": "bart", "SmolLM3": "smollm3",
}  # fmt: skip
"""Model types by the class of their configuration (transformers 5.23.0 models/*/configuration_*.py,
model_type).
"""


def built_model_keys(module: Module) -> dict[str, Any]:
    """How the script says the model that it builds, and the dtype that it builds it in; nothing where it
    builds none of a configuration that is read. Built directly it is in torch's own dtype; of a checkpoint's
    configuration in the one that this names (transformers 5.23.0 modeling_utils.py, _from_config).
    """
    call, config = next(_builds(module), ({}, None))
    if config is None:
        return {}
    if config[CLASS] == NANO:
        config = {NANO_SIZES.get(at, at): held for at, held in config.items()}
    said = {at: held for at, held in config.items() if at in SIZES}
    asked = {at: held for at, held in said.items() if held != UNSET and held is not None}
    still = sorted(at for at, held in said.items() if held == UNSET)
    base = config.get("0", config.get("pretrained_model_name_or_path"))
    loaded = CONFIG_LOADS.search(str(config[CLASS])) is not None
    if loaded and not isinstance(base, str):
        return {}
    model = TYPES.get(str(config[CLASS]).rpartition(".")[2].removesuffix("Config"))
    if not loaded and model is None:
        return {}
    if config[CLASS] == NANO:
        asked = {**NANO_USUAL, **asked}
    made = (
        {"model": base}
        if loaded and not asked
        else {BUILT: {**asked, BASE if loaded else TYPE: base if loaded else model}}
    )
    dtype = call.get("dtype", call.get("torch_dtype"))
    attention = call.get("attn_implementation", config.get("_attn_implementation"))
    direct = call[CLASS] not in FROM_CONFIG
    return {
        **made,
        **({OPEN_SIZES: ", ".join(still)} if still else {}),
        **({OWN_CODE: OF_LIBRARY} if config[CLASS] == NANO else {}),
        **({"dtype": "float32"} if direct else {"dtype": AUTO} if loaded else {}),
        **({"dtype": str(dtype).removeprefix("torch.")} if isinstance(dtype, str) else {}),
        **({"attention": attention} if attention is not None else {}),
    }


def _builds(module: Module) -> Iterator[tuple[Tree, Tree]]:
    """Calls that build a model, each with its configuration."""
    names = {path[-1] for _, path, _ in module.sites if path[-1] in FROM_CONFIG or BUILDS.match(path[-1])}
    for call in named_calls(module, names, local=True) if names else ():
        config = call.get("config", call.get("0"))
        if isinstance(config, dict) and str(config.get(CLASS, "")).rpartition(".")[2] != "":
            called = str(config[CLASS])
            if called.endswith("Config") or CONFIG_LOADS.search(called):
                yield call, config


def built_config(values: Values, script: str) -> Mapping[str, Any] | None:
    """The configuration that a script or the example's flags build a model of; None where they build none,
    or of a model that is not bundled.
    """
    place = f"{script}.{BUILT}."
    own = {at.removeprefix(place): held for at, held in values.items() if at.startswith(place)}
    if (
        not own
        and values.get(TYPE)
        and not values.get("model_name_or_path")
        and not values.get("config_name")
    ):
        own = {TYPE: values[TYPE], **overrides_of(values.get("config_overrides"))}
    if TYPE in own:
        return own if own[TYPE] in TYPES.values() else None
    if BASE not in own:
        return None
    from memsheet.catalog.names import bundled_entry

    entry = bundled_entry(str(own.pop(BASE)))
    return {**entry["config"], **own} if entry is not None else None


def overrides_of(text: Any) -> dict[str, Any]:
    """``n_embd=10,resid_pdrop=0.2`` (transformers configuration_utils.py, update_from_string)."""
    pairs = (one.partition("=") for one in str(text or "")[:LONGEST].split(","))
    return {
        name.strip(): _plain_number(value.strip())
        for name, equals, value in pairs
        if equals and name.strip() in SIZES
    }


def _plain_number(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if text.isdecimal() and len(text) < 12 else text
