"""A GGUF header → ModelSpec, by way of the config.json that the same model has on the hub.

The keys are llama.cpp's (``<architecture>.block_count`` …); what they mean for each architecture is a row of
``ARCHITECTURES``.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from memsheet.errors import input_error, printable_line
from memsheet.frozen import dataclass, replace
from memsheet.guard import Opener, is_file, open_regular
from memsheet.plan.model import ModelSpec, Source, StoredQuantization
from memsheet.readers.fields import MAX_LAYERS, Fields
from memsheet.readers.gguf import Array, Header, Tensor, Value, read_header
from memsheet.readers.hf_config import read_hf_config

KEYS = "gguf-py/gguf/constants.py, Keys; llama.cpp conversion/*.py, set_gguf_parameters of each architecture"
MAX_PARTS = 1_000
SIGMOID = 2  # gguf-py constants.py, ExpertGatingFuncType
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_FLOATS = {"F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16"}
_EXPERT_KEYS = (
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
)  # families spell it differently; the value is one


@dataclass(frozen=True, slots=True)
class Contents:
    """The keys of one model without their architecture's prefix, and its tensors by name."""

    architecture: str
    keys: Fields
    tensors: Mapping[str, Tensor]

    def has(self, *names: str) -> bool:
        return any(f"blk.0.{name}" in self.tensors for name in names)


def _dense_decoder_config(model: Contents) -> dict[str, Any]:
    """A decoder with rotary positions and grouped attention; a missing key_length means hidden over heads, as
    in llama.cpp.
    """
    keys = model.keys
    hidden, heads = keys.count("embedding_length"), keys.count("attention.head_count")
    head_dim = keys.count("attention.key_length", default=max(hidden // heads, 1))
    rotary = keys.count("rope.dimension_count", default=head_dim)
    config: dict[str, Any] = {
        "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": keys.count("attention.head_count_kv", default=heads),
        "head_dim": head_dim, "intermediate_size": keys.count("feed_forward_length"),
        "sliding_window": keys.optional("attention.sliding_window"),
    }  # fmt: skip
    if rotary < head_dim:
        config |= {"partial_rotary_factor": rotary / head_dim, "rotary_pct": rotary / head_dim}
    return config


def _llama_gguf_config(model: Contents) -> dict[str, Any]:
    """Llama, Mistral and Mixtral share one architecture name; only the tensors say whether there are
    biases.
    """
    biases = {"attention_bias": model.has("attn_q.bias"), "mlp_bias": model.has("ffn_up.bias")}
    if model.keys.count("expert_count", default=0, low=0):
        return {**_moe_gguf_config(model), "model_type": "mixtral"}
    return {**_dense_decoder_config(model), **biases}


def _qkv_bias_config(model: Contents) -> dict[str, Any]:
    """Families whose biases are one flag, under either name."""
    bias = model.has("attn_q.bias", "attn_qkv.bias")
    return {**_dense_decoder_config(model), "attention_bias": bias, "use_bias": bias}


def _soft_capped(model: Contents) -> dict[str, Any]:
    keys = model.keys
    given = [
        f"{name}_logit_softcapping"
        for name in ("attn", "final")
        if keys.raw(f"{name}_logit_softcapping") is not None
    ]
    caps = {
        key: keys.number(key, default=0.0) or None for key in given
    }  # 0 switches a cap off, a missing key keeps the family's
    return {**_dense_decoder_config(model), **caps}


def _moe_gguf_config(model: Contents) -> dict[str, Any]:
    """Routed experts; a dense feed_forward_length may be missing where every layer is routed."""
    keys = model.keys
    width = keys.optional("expert_feed_forward_length")
    if width is not None and keys.raw("feed_forward_length") is None:
        keys = Fields({**keys.data, "feed_forward_length": width}, keys.where, keys.problems)
    config = _dense_decoder_config(replace(model, keys=keys)) | dict.fromkeys(
        _EXPERT_KEYS, keys.count("expert_count")
    )
    config["num_experts_per_tok"] = keys.count("expert_used_count")
    if width is not None:
        config["moe_intermediate_size"] = width
    if shared := keys.optional("expert_shared_feed_forward_length"):
        config["shared_expert_intermediate_size"] = shared
    return config


def _delta_net_config(model: Contents) -> dict[str, Any]:
    """Qwen3-Next and Qwen3.5, dense or routed: every so many layers attend, the others are delta nets."""
    keys = model.keys
    config = (_moe_gguf_config if keys.raw("expert_count") is not None else _dense_decoder_config)(model)
    heads, inner = keys.count("ssm.time_step_rank"), keys.count("ssm.inner_size")
    if inner % heads:
        keys.wrong("ssm.inner_size", inner, f"is no multiple of ssm.time_step_rank, {heads}")
    recurrent = keys.raw("attention.recurrent_layers")
    if isinstance(recurrent, list):
        config["layer_types"] = [
            "linear_attention" if one else "full_attention" for one in recurrent[: _gguf_layer_count(model)]
        ]
    return config | {
        "linear_conv_kernel_dim": keys.count("ssm.conv_kernel"), "linear_key_head_dim": keys.count("ssm.state_size"),
        "linear_num_key_heads": keys.count("ssm.group_count"), "linear_num_value_heads": heads,
        "linear_value_head_dim": max(inner // heads, 1), "full_attention_interval": keys.count("full_attention_interval", default=4),
        "mtp_num_hidden_layers": keys.count("nextn_predict_layers", default=0, low=0, high=MAX_LAYERS),
    }  # fmt: skip


def _deepseek_gguf_config(model: Contents) -> dict[str, Any]:
    """DeepSeek. Since llama.cpp caches the latent, key_length is the cached row and key_length_mla the head;
    before, key_length was the head.
    """
    keys = model.keys
    rope = keys.count("rope.dimension_count")
    head = keys.count("attention.key_length_mla", "attention.key_length")
    if head <= rope:
        keys.wrong("attention.key_length", head, f"is not above rope.dimension_count, {rope}")
    heads = keys.count("attention.head_count")
    return dict.fromkeys(_EXPERT_KEYS, keys.count("expert_count")) | {
        "model_type": "deepseek_v3" if _has_router_score_bias(model) else "deepseek_v2",
        "hidden_size": keys.count("embedding_length"), "num_attention_heads": heads, "num_key_value_heads": heads,
        "intermediate_size": keys.count("feed_forward_length"), "moe_intermediate_size": keys.count("expert_feed_forward_length"),
        "num_experts_per_tok": keys.count("expert_used_count"), "n_shared_experts": keys.count("expert_shared_count", default=0, low=0),
        "first_k_dense_replace": keys.count("leading_dense_block_count", default=0, low=0),
        "q_lora_rank": keys.optional("attention.q_lora_rank"), "kv_lora_rank": keys.count("attention.kv_lora_rank"),
        "qk_rope_head_dim": rope, "qk_nope_head_dim": max(head - rope, 1),
        "v_head_dim": keys.count("attention.value_length_mla", "attention.value_length"),
    }  # fmt: skip


def _has_router_score_bias(model: Contents) -> bool:
    """Whether the router adds a correction to its scores, as DeepSeek-V3's does; files without tensors only
    name its function.
    """
    if model.tensors:
        return any(".exp_probs_b" in name for name in model.tensors)
    return bool(model.keys.count("expert_gating_func", default=0, low=0) == SIGMOID)


def _gpt2_gguf_config(model: Contents) -> dict[str, Any]:
    keys = model.keys
    return {
        "n_embd": keys.count("embedding_length"), "n_head": keys.count("attention.head_count"), "n_layer": keys.layers("block_count"),
        "n_inner": keys.count("feed_forward_length"), "n_positions": keys.count("context_length"),
    }  # fmt: skip


def _mamba_gguf_config(model: Contents) -> dict[str, Any]:
    keys = model.keys
    return {
        "hidden_size": keys.count("embedding_length"), "intermediate_size": keys.count("ssm.inner_size"), "state_size": keys.count("ssm.state_size"),
        "conv_kernel": keys.count("ssm.conv_kernel"), "time_step_rank": keys.count("ssm.time_step_rank"),
    }  # fmt: skip


# general.architecture: (model_type, how its keys become a config)
ARCHITECTURES: dict[str, tuple[str, Callable[[Contents], dict[str, Any]]]] = {
    "llama": ("llama", _llama_gguf_config), "qwen2": ("qwen2", _dense_decoder_config), "qwen3": ("qwen3", _dense_decoder_config), "phi3": ("phi3", _dense_decoder_config),
    "internlm2": ("llama", _llama_gguf_config), "xverse": ("llama", _llama_gguf_config), "exaone": ("llama", _llama_gguf_config),
    "smollm3": ("smollm3", _dense_decoder_config), "granite": ("granite", _qkv_bias_config), "starcoder2": ("starcoder2", _qkv_bias_config),
    "olmo2": ("olmo2", _dense_decoder_config), "exaone4": ("exaone4", _dense_decoder_config), "nemotron": ("nemotron", _dense_decoder_config), "ernie4_5": ("ernie4_5", _qkv_bias_config),
    "gemma": ("gemma", _dense_decoder_config), "gemma2": ("gemma2", _soft_capped), "gemma3": ("gemma3_text", _dense_decoder_config),
    "qwen2moe": ("qwen2_moe", _moe_gguf_config), "qwen3moe": ("qwen3_moe", _moe_gguf_config), "olmoe": ("olmoe", _moe_gguf_config), "gpt-oss": ("gpt_oss", _moe_gguf_config),
    "qwen3next": ("qwen3_next", _delta_net_config), "qwen35": ("qwen3_5_text", _delta_net_config), "qwen35moe": ("qwen3_5_moe_text", _delta_net_config),
    "deepseek2": ("deepseek_v2", _deepseek_gguf_config), "gpt2": ("gpt2", _gpt2_gguf_config), "mamba": ("mamba", _mamba_gguf_config),
}  # fmt: skip


def model_from_gguf(
    path: Path, opened: Opener = open_regular, is_there: Callable[[Path], bool] = is_file
) -> ModelSpec:
    """The model in a GGUF file, or in the first of a split one. Source of the keys: ``KEYS``. ``opened``,
    ``is_there``: of files that are elsewhere.

    Raises InputError when the architecture is not one memsheet knows, a size is missing or absurd, or the
    keys and the tensors contradict each other.
    """
    header = read_header(path, opened)
    parts = (header, *(read_header(other, opened) for other in _other_parts(path, header, is_there)))
    tensors = {t.name: t for part in parts for t in part.tensors}
    if len(tensors) != sum(len(part.tensors) for part in parts):
        raise input_error(path.name, None, "has parts that store the same tensor twice")
    config = gguf_config(header, tensors)
    kinds = _ggml_type_shares(tensors)
    notes = (
        (f"stored as {', '.join(f'{kind} {share:.0%}' for kind, share in kinds.items())} of the bytes",)
        if kinds
        else ()
    )
    name = header.values.get("general.name")
    spec = read_hf_config(
        config,
        name=printable_line(name) if isinstance(name, str) and name else path.stem,
        source=Source(
            kind="gguf",
            path=str(path),
            notes=notes,
            tensors=tuple((t.name, t.type, tuple(t.dims)) for t in tensors.values()),
        ),
    )
    main = next(iter(kinds), "F32")
    return (
        spec
        if main in _FLOATS
        else replace(spec, quantization=StoredQuantization(method="gguf", weights=f"gguf:{main}"))
    )


def gguf_config(header: Header, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The config.json that describes the same model."""
    architecture = header.values.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        near = difflib.get_close_matches(str(architecture), ARCHITECTURES, n=1, cutoff=0.0)
        hint = f"the nearest known one is {near[0]}; give the model's config.json instead"
        raise input_error(
            "general.architecture", architecture, "is not one memsheet knows; nothing is guessed", hint
        )
    model_type, translate = ARCHITECTURES[architecture]
    prefix = f"{architecture}."
    values = {
        key.removeprefix(prefix): _collapse_uniform_array(value)
        for key, value in header.values.items()
        if key.startswith(prefix)
    }
    model = Contents(architecture, Fields(values, architecture), tensors)
    config = {
        "model_type": model_type, "num_hidden_layers": _gguf_layer_count(model), "vocab_size": _gguf_vocab_size(model, header),
        "max_position_embeddings": model.keys.optional("context_length"), **translate(model),
    }  # fmt: skip
    if tensors:
        config["tie_word_embeddings"] = "output.weight" not in tensors
    main = next(iter(_ggml_type_shares(tensors)), "")
    model.keys.done()
    return config | ({"dtype": _FLOATS[main]} if main in _FLOATS else {})


def _collapse_uniform_array(value: Value) -> object:
    """One value for all layers where an array says the same of each; other arrays stay, and are refused where
    a count belongs.
    """
    if isinstance(value, Array) and value.values and len(set(value.values)) == 1:
        return value.values[0]
    return list(value.values or ()) if isinstance(value, Array) else value


def _gguf_layer_count(model: Contents) -> int:
    """Layers of the model proper; those that predict further tokens stand after them and are not counted."""
    total = model.keys.layers("block_count")
    ahead = model.keys.count("nextn_predict_layers", default=0, low=0, high=MAX_LAYERS)
    found = 1 + max(
        (int(m[1]) for name in model.tensors if (m := re.match(r"blk\.(\d{1,6})\.", name))), default=total - 1
    )
    if found not in (
        total,
        total - ahead,
    ):  # some conversions count the layers that predict ahead, but leave out their tensors
        model.keys.wrong("block_count", total, f"does not agree with the file, which stores {found} blocks")
    return max(total - ahead, 1)


def _gguf_vocab_size(model: Contents, header: Header) -> int:
    """Rows of the stored embedding (it may be padded), else the length of the token list."""
    table = model.tensors.get("token_embd.weight")
    hidden = model.keys.data.get("embedding_length")
    if table is not None and len(table.dims) == 2:
        if table.dims[0] != hidden:
            model.keys.wrong(
                "embedding_length",
                hidden,
                f"does not agree with token_embd.weight, which is {table.dims[0]} wide",
            )
        return table.dims[1]
    tokens = header.values.get("tokenizer.ggml.tokens")
    return tokens.length if isinstance(tokens, Array) else model.keys.count("vocab_size")


def _ggml_type_shares(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Shares of the stored bytes by ggml type, the largest first."""
    sizes: Counter[str] = Counter()
    for tensor in tensors.values():
        sizes[tensor.type] += tensor.nbytes
    total = sizes.total()
    return {kind: size / total for kind, size in sizes.most_common() if size}


def _other_parts(path: Path, header: Header, is_there: Callable[[Path], bool]) -> list[Path]:
    """The files besides the first that a split model is stored in."""
    count = header.values.get("split.count", 1)
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_PARTS:
        raise input_error("split.count", count, f"is not a whole number up to {MAX_PARTS}")
    if count <= 1:
        return []
    named = _PART.fullmatch(path.name)
    if named is None or int(named[2]) != 1 or int(named[3]) != count:
        raise input_error(
            path.name,
            count,
            "parts make up this model, and this is not the name of the first",
            "give the file that ends in -00001-of-….gguf",
        )
    parts = [path.with_name(f"{named[1]}-{i:05}-of-{count:05}.gguf") for i in range(2, count + 1)]
    missing = [part.name for part in parts if not is_there(part)]
    if missing:
        raise input_error(
            path.name,
            missing[0],
            f"is one of {len(missing)} missing parts of {count}",
            "was the download finished?",
        )
    return parts
