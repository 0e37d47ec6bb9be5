"""What of a model's code a server would take over that runs the library's: attention that is called by the
library's table, and the tensor-parallel plan that the family's config has.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

from torch import nn

from memsheet.handing import HandedAttention, Handing, Styles
from memsheet.run.model import layers_of, text_config_of

TABLE = "ALL_ATTENTION_FUNCTIONS"
TOP = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k_experts")
"""Of a config: experts that a token goes to (``READ_IN``)."""

SIZES = (
    "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "index_head_dim", "linear_num_key_heads",
    "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim",
)  # fmt: skip
"""Of a config: what a latent, an indexer's key and a delta net's state are made of, in the words of the
families that are written down.
"""


def observe_handing(model: Any, kinds: tuple[int, ...]) -> Handing:
    """What a model's classes and its config say; nothing is run."""
    layers, text = layers_of(model), text_config_of(model.config)
    assert layers is not None
    numbers = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
    firsts, said = [layers[number] for number in numbers], layer_configs(text, numbers)
    stack = next(name for name, module in model.named_modules() if module is layers)
    below = getattr(model, model.base_model_prefix, model)  # servers build it, and put an output above it
    plan = dict(getattr(below, "tp_plan", None) or {})
    prefix = "" if below is model else f"{model.base_model_prefix}."
    words = plan or next((found for one in (model.config, text) if (found := _config_plan(one))), {})
    top = (getattr(one, name, None) for name in TOP for one in said)
    return Handing(
        architecture=(getattr(model.config, "architectures", None) or [type(model).__name__])[0],
        declares=bool(type(model).is_backend_compatible()),
        dispatches=bool(type(model)._can_set_attn_implementation()),
        plan_words=tuple(sorted(set(map(str, words.values())))),
        causal=all(getattr(module, "is_causal", True) for module in layers.modules())
        and not getattr(model.config, "is_encoder_decoder", False),
        latent=any(getattr(one, "kv_lora_rank", None) is not None for one in said),
        experts_per_token=next((value for value in top if isinstance(value, int)), None) or None,
        attention=tuple(map(_handed_attention, firsts, said)),
        styles=tuple(
            _plan_styles(layer, plan, f"{stack.removeprefix(prefix)}.{number}")
            for number, layer in zip(numbers, firsts, strict=True)
        ),
        sizes=tuple(map(_said_sizes, said)),
    )


def _said_sizes(text: Any) -> tuple[tuple[str, int], ...]:
    found = ((key, getattr(text, key, None)) for key in SIZES)
    return tuple((key, value) for key, value in found if type(value) is int and value > 0)


def layer_configs(text: Any, numbers: Sequence[int]) -> list[Any]:
    """What a config says of layers: where they differ, the library refuses to say it of all (transformers
    5.23 integrations/heterogeneity/configuration_utils.py, HeterogeneousConfigMixin.__getattribute__).
    """
    differ = getattr(text, "is_heterogeneous", False)
    return [text.per_layer_config[number] if differ else text for number in numbers]


def _config_plan(config: Any) -> dict[str, str]:
    """The plan of a config itself, which SGLang reads where the model has none."""
    return dict(getattr(config, "base_model_tp_plan", None) or {})


def _handed_attention(layer: nn.Module, text: Any) -> HandedAttention | None:
    found = [
        name
        for name, module in layer.named_modules()
        if isinstance(getattr(module, "layer_idx", None), int) and calls_table(type(module))
    ]
    heads = getattr(text, "num_attention_heads", None)
    if len(found) != 1 or not isinstance(heads, int):
        return None
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    return HandedAttention(found[0], heads, int(kv_heads), int(size))


def calls_table(module: type[nn.Module]) -> bool:
    """Whether a class's forward looks its attention up in the library's table."""
    try:
        return TABLE in inspect.getsource(module.forward)
    except (OSError, TypeError):
        return False


def _plan_styles(layer: nn.Module, plan: dict[str, str], prefix: str) -> Styles:
    """How a plan cuts a layer's linear modules: the first pattern that fits, read as servers read it."""
    found = []
    for name, module in layer.named_modules():
        if isinstance(module, nn.Linear):
            full = f"{prefix}.{name}"
            style = next((plan[pattern] for pattern in plan if re.match(pattern, full)), None)
            if isinstance(style, str):
                found.append((name, style))
    return tuple(found)
