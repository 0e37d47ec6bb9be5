"""Families whose code lies beside their weights on the hub, in the configuration of the library's family of
the same layers.

The library has no class for them, and their code is never run: what is read is the configuration, and what is
accounted is the library's family of the same layers, which a note says. Where their code joins what the other
has in parts (queries, keys and values in one matrix), bytes of weights and caches are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memsheet.errors import input_error
from memsheet.frozen import NamedTuple

Values = Mapping[str, Any]


NOTHING: Values = {}


class HubCode(NamedTuple):
    """A family of the hub. ``family``: of the library, with the same layers; ``renamed``: its keys by the
    library's; ``usual``: what its configuration class has where a file says nothing; ``fixed``: what its code
    has, whatever a file says; ``refusal``: why a configuration of it is not that family, or nothing.
    """

    family: str
    renamed: Mapping[str, str] = NOTHING
    usual: Values = NOTHING
    fixed: Values = NOTHING
    refusal: Callable[[Values], str] = lambda _: ""


def _has_linear_biases(values: Values) -> str:
    biased = values.get("hidden_size") != ROTATES
    return "has linear biases in place of rotary positions, which are not read" if biased else ""


def _is_first_glm(values: Values) -> str:
    """Or whose layers have norms and biases that no later one has."""
    if "padded_vocab_size" not in values or values.get("rmsnorm") is False:
        return "is of the first generation, whose layers are other ones"
    biased = values.get("add_bias_linear") is True
    return "has biases in all linear layers, which are not read" if biased else ""


def _has_experts(values: Values) -> str:
    return "has routed experts, which are not read" if values.get("num_experts") else ""


ROTATES = 4096
"""The width of Baichuan's models with rotary positions; the larger ones have linear biases."""
_FALCON = {"num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
_LLAMA = {"tie_word_embeddings": False}
HUB_CODE: dict[str, HubCode] = {
    "internlm": HubCode("llama", {"attention_bias": "bias"}, {"attention_bias": True, **_LLAMA}),
    "internlm2": HubCode("llama", fixed={"attention_bias": False}, usual=_LLAMA),
    "xverse": HubCode("llama", usual=_LLAMA),
    "aquila": HubCode("llama", usual=_LLAMA),
    "baichuan": HubCode("llama", usual=_LLAMA, refusal=_has_linear_biases),
    "exaone": HubCode(
        "llama",
        {"num_hidden_layers": "num_layers", "hidden_act": "activation_function", "rms_norm_eps": "layer_norm_epsilon"},
        _LLAMA,
    ),
    "Yi": HubCode("llama", usual=_LLAMA),
    "stablelm_epoch": HubCode("stablelm", {"partial_rotary_factor": "rope_pct"}, _LLAMA),
    "RefinedWebModel": HubCode("falcon", _FALCON),
    "RefinedWeb": HubCode("falcon", {"num_kv_heads": "n_head_kv", **_FALCON}, fixed={"new_decoder_architecture": True}),
    "orion": HubCode("stablelm", usual=_LLAMA, fixed={"partial_rotary_factor": 1.0, "use_qkv_bias": False}),
    "minicpm": HubCode("granite", usual={"tie_word_embeddings": True}, refusal=_has_experts),
    "qwen": HubCode("qwen2", {"max_position_embeddings": "seq_length"}, _LLAMA),
    "chatglm": HubCode(
        "glm",
        {
            "num_hidden_layers": "num_layers", "vocab_size": "padded_vocab_size", "intermediate_size": "ffn_hidden_size",
            "head_dim": "kv_channels", "max_position_embeddings": "seq_length", "attention_bias": "add_qkv_bias",
        },
        {"attention_bias": False, **_LLAMA},
        refusal=_is_first_glm,
    ),
}  # fmt: skip
"""By model type. As servers have them, which run their weights by code of their own (vllm-project/vllm,
vllm/model_executor/models): registry.py at 0002bff has InternLM, Xverse and Aquila as LlamaForCausalLM;
internlm2.py and orion.py (LayerNorm) at 0531c22; exaone.py there (ln_1, c_fc_0, c_fc_1); baichuan.py at
0019d7c (W_pack); qwen.py at 002800f (c_attn with biases, half of ``intermediate_size`` in either of w1 and
w2); minicpm.py at 00db011 (branches scaled by depth); chatglm.py at 028aedf (half of a head is turned). Yi,
StableLM and Falcon had such code before the library had theirs, under these names.
"""
TEXT_OF_INTERNVL = ("llm_config", "text_config")


def library_values(values: Values) -> Values:
    """A configuration in the words of the library's family of the same layers; itself where the library has
    the family.

    Raises InputError where a family of the hub has a member with other layers.
    """
    kind = values.get("model_type")
    if kind == "internvl_chat":
        return _internvl_values(values)
    hub = HUB_CODE.get(kind) if isinstance(kind, str) else None
    if hub is None:
        return values
    if why := hub.refusal(values):
        raise input_error("model_type", kind, why, "a model of another generation, or trace its own code")
    renamed = {ours: values[theirs] for ours, theirs in hub.renamed.items() if values.get(theirs) is not None}
    given = {key: value for key, value in values.items() if key not in ("auto_map", "architectures")}
    return {**hub.usual, **given, **renamed, **hub.fixed, **_own_sizes(values), "model_type": hub.family}


def _own_sizes(values: Values) -> Values:
    """Sizes that are no key's alone."""
    kind, wide = values.get("model_type"), values.get("intermediate_size")
    if kind == "qwen" and isinstance(wide, int):
        return {"intermediate_size": wide // 2, "num_key_value_heads": values.get("num_attention_heads")}
    if kind == "chatglm":
        grouped = values.get("multi_query_attention") is True
        return {
            "num_key_value_heads": values.get("multi_query_group_num" if grouped else "num_attention_heads")
        }
    return {}


def _internvl_values(values: Values) -> Values:
    """InternVL as its own code has it, by the names of the library's: a tower, two layers that join, and a
    language model with a configuration of its own (vllm-project/vllm internvl.py at 004202b).
    """
    text = next((values[key] for key in TEXT_OF_INTERNVL if isinstance(values.get(key), Mapping)), NOTHING)
    said = values.get("vision_config")
    vision: Values = said if isinstance(said, Mapping) else NOTHING
    inner = library_values(text)
    tower = {key: vision[key] for key in _TOWER_KEYS if vision.get(key) is not None}
    named = {ours: vision[theirs] for ours, theirs in _TOWER_NAMES.items() if vision.get(theirs) is not None}
    found = {
        "model_type": "internvl",
        "torch_dtype": values.get("torch_dtype", inner.get("torch_dtype")),
        "downsample_ratio": values.get("downsample_ratio", 0.5),
        "tie_word_embeddings": inner.get("tie_word_embeddings", False),
        "text_config": inner,
        "vision_config": {**_TOWER, **tower, **named, "model_type": "internvl_vision"},
    }
    kept = {key: values[key] for key in ("quantization_config",) if key in values}
    return {**found, **kept}


_TOWER_KEYS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act", "image_size", "patch_size",
    "norm_type", "num_channels",
)  # fmt: skip
_TOWER_NAMES = {"use_qk_norm": "qk_normalization", "attention_bias": "qkv_bias"}
_TOWER: Values = {
    "hidden_size": 3200, "num_hidden_layers": 48, "num_attention_heads": 25, "intermediate_size": 12800, "norm_type": "rms_norm",
    "use_qk_norm": True, "attention_bias": False, "image_size": 224, "patch_size": 14, "hidden_act": "gelu",
}  # fmt: skip
"""InternViT-6B's, where a vision_config leaves it out (yujunhuics/Reyes 6f6c094)."""
