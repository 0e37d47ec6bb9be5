"""Dense decoders: every parameter tensor of the real model, by name, against ours."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laws import every
from memsheet.formulas.states.params import buffer_tensors, fold_path_indices
from memsheet.plan.model import Attention, Block, Stack
from memsheet.readers.families.gemma import RECIPES as GEMMA
from memsheet.readers.families.gpt_layouts import LAYOUTS
from memsheet.readers.families.llama import RECIPES as LLAMA
from memsheet.readers.hf_config import read_hf_config
from oracle import assert_same_tensors, meta_model

SPELLINGS: dict[str, dict[str, str]] = {
    "gpt2": {"hidden": "n_embd", "heads": "n_head", "layers": "n_layer", "positions": "n_positions", "ffn": "n_inner"},
    "gpt_neo": {"heads": "num_heads", "layers": "num_layers"},
    "opt": {"ffn": "ffn_dim"},
    "bloom": {"hidden": "n_embed", "layers": "n_layer", "heads": "n_head", "positions": "seq_length"},
    "falcon": {"ffn": "ffn_hidden_size", "kv_heads": "num_kv_heads"},
    "mpt": {"hidden": "d_model", "heads": "n_heads", "layers": "n_layers", "positions": "max_seq_len"},
}  # fmt: skip
SPELLINGS["gptj"] = SPELLINGS["gpt_bigcode"] = SPELLINGS["gpt2"]
USUAL = {
    "hidden": "hidden_size", "heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "layers": "num_hidden_layers",
    "ffn": "intermediate_size", "positions": "max_position_embeddings", "vocab": "vocab_size", "head_dim": "head_dim",
}  # fmt: skip
FLAGS = (
    "attention_bias", "mlp_bias", "use_bias", "use_qkv_bias", "qk_layernorm", "use_qk_norm", "bias", "enable_bias", "use_parallel_residual",
    "parallel_attn", "multi_query", "new_decoder_architecture", "alibi", "do_layer_norm_before", "layer_norm_elementwise_affine",
)  # fmt: skip
NEEDS_HEAD_DIM = ("ministral", "hunyuan_v1_dense")
"""Families whose rotary embedding takes head_dim from the config, whose default leaves it open."""
FAMILIES = (*LLAMA, *GEMMA, *LAYOUTS)


def config_of(model_type: str, flags: dict[str, Any] | None = None, **sizes: int) -> dict[str, Any]:
    """A config.json in the spelling of its family."""
    names = USUAL | SPELLINGS.get(model_type, {})
    config = (
        {"model_type": model_type, "pad_token_id": 0}
        | {names[key]: value for key, value in sizes.items()}
        | (flags or {})
    )
    if model_type == "gpt_neo" and "layers" in sizes:
        config["attention_types"] = [
            [["global", "local"], sizes["layers"] // 2],
            [["global"], sizes["layers"] % 2 or 1],
        ]
        if sizes["layers"] % 2 == 0:
            config["attention_types"].pop()
    return config


def defaults(model_type: str) -> dict[str, Any]:
    """The family's own default sizes, with few layers; nemotron's class leaves its number of key/value heads
    open.
    """
    more = {"kv_heads": 8} if model_type == "nemotron" else {}
    if model_type in NEEDS_HEAD_DIM:
        more["head_dim"] = 128
    return config_of(model_type, layers=2, **more)


def odd(model_type: str) -> dict[str, Any]:
    """Odd widths, few heads, tied the other way round, biases flipped."""
    tied = not (LLAMA | GEMMA | LAYOUTS)[model_type].tied
    flags = {
        "attention_bias": True,
        "mlp_bias": True,
        "use_bias": True,
        "use_qkv_bias": True,
        "bias": True,
        "enable_bias": False,
    }
    if model_type in ("gpt_neox", "glm", "glm4"):
        flags["attention_bias"] = False
    if model_type == "starcoder2":
        flags["use_bias"] = False
    more = {"head_dim": 20} if model_type in {*LLAMA, *GEMMA} else {}
    return config_of(
        model_type,
        flags | {"tie_word_embeddings": tied},
        hidden=96 if model_type == "falcon" else 90,
        heads=6,
        kv_heads=2 if model_type not in LAYOUTS or model_type in ("falcon", "phi") else 6,
        layers=3,
        ffn=77,
        vocab=131,
        positions=40,
        **more,
    )


SPECIAL: list[dict[str, Any]] = [
    config_of(
        "stablelm",
        {"qk_layernorm": True, "use_parallel_residual": True},
        hidden=96,
        heads=6,
        kv_heads=3,
        layers=2,
        ffn=50,
        vocab=99,
    ),
    config_of("cohere", {"use_qk_norm": True}, hidden=96, heads=6, kv_heads=3, layers=2, ffn=50, vocab=99),
    config_of("phi", {"qk_layernorm": True}, hidden=96, heads=6, kv_heads=3, layers=2, ffn=50, vocab=99),
    config_of("gpt_bigcode", {"multi_query": False}, hidden=96, heads=6, layers=2, vocab=99),
    config_of(
        "falcon", {"new_decoder_architecture": True}, hidden=96, heads=6, kv_heads=2, layers=2, vocab=99
    ),
    config_of(
        "falcon",
        {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
        hidden=96,
        heads=6,
        kv_heads=2,
        layers=2,
    ),
    config_of(
        "falcon",
        {"multi_query": False, "parallel_attn": False, "alibi": True, "bias": True},
        hidden=96,
        heads=6,
        layers=2,
    ),
    config_of(
        "opt",
        {"word_embed_proj_dim": 48, "do_layer_norm_before": False},
        hidden=96,
        heads=6,
        layers=2,
        vocab=99,
    ),
    config_of("opt", {"layer_norm_elementwise_affine": False}, hidden=96, heads=6, layers=2, vocab=99),
    config_of("gpt_neox", {"use_parallel_residual": False}, hidden=96, heads=6, layers=2, ffn=50, vocab=99),
    config_of("gptj", {"tie_word_embeddings": True, "rotary_dim": 8}, hidden=96, heads=6, layers=2, vocab=99),
    config_of("bloom", {"num_attention_heads": 6}, hidden=96, layers=2, vocab=99),
]
SAMPLE = [odd(name) for name in ("llama", "qwen3", "olmo2", "phi3", "glm4", "gemma3_text", "gpt2", "gpt_neo")] + [
    defaults("llama"), defaults("qwen2"), *SPECIAL[:1], *SPECIAL[4:5], *SPECIAL[7:8],
]  # fmt: skip
SWEEP = [case for case in [*map(defaults, FAMILIES), *map(odd, FAMILIES), *SPECIAL] if case not in SAMPLE]


def label(config: dict[str, Any]) -> str:
    return f"{config['model_type']}-{len(config)}"


@pytest.mark.parametrize("config", SAMPLE, ids=label)
def test_same_tensors(config: dict[str, Any]) -> None:
    assert_same_tensors(config)


@pytest.mark.slow
@pytest.mark.parametrize("config", SWEEP, ids=label)
def test_same_tensors_everywhere(config: dict[str, Any]) -> None:
    assert_same_tensors(config)


@st.composite
def perturbed(draw: st.DrawFn, model_type: str) -> dict[str, Any]:
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    heads, width = kv_heads * group, 2 * draw(st.integers(4, 20))
    sizes = {
        "hidden": heads * width, "heads": heads, "layers": draw(st.integers(1, 5)), "ffn": draw(st.integers(1, 200)),
        "vocab": draw(st.integers(2, 300)), "positions": draw(st.integers(8, 100)),
    }  # fmt: skip
    if model_type not in LAYOUTS or model_type in ("phi", "falcon"):
        sizes["kv_heads"] = kv_heads
    if model_type in {*LLAMA, *GEMMA} and draw(st.booleans()):
        sizes["head_dim"] = 2 * draw(st.integers(2, 20))
    if model_type in (*GEMMA, *NEEDS_HEAD_DIM) or "head_dim" in sizes:
        sizes.setdefault("head_dim", width)
    flags = {flag: draw(st.booleans()) for flag in (*FLAGS, "tie_word_embeddings")}
    if model_type == "gptj":
        flags["rotary_dim"] = 8
    if model_type == "internlm3":  # one bias in two spellings, and no other for the feed-forward
        flags |= dict.fromkeys(("attention_bias", "mlp_bias", "bias"), flags["attention_bias"])
    return config_of(model_type, flags, **sizes)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", FAMILIES)
@settings(
    max_examples=5, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(data=st.data())
def test_same_tensors_however_perturbed(model_type: str, data: st.DataObject) -> None:
    assert_same_tensors(data.draw(perturbed(model_type)))


@pytest.mark.parametrize("model_type", ["gpt_neo", "gptj", "gpt_bigcode"])
def test_large_buffers(model_type: str) -> None:
    config = config_of(
        model_type,
        {"rotary_dim": 8} if model_type == "gptj" else {},
        hidden=96,
        heads=6,
        layers=2,
        positions=40,
    )
    real = {
        fold_path_indices(name): (tuple(buffer.shape), buffer.dtype.itemsize)
        for name, buffer in meta_model(config).named_buffers()
    }
    itemsize = {"bool": 1, "fp32": 4}
    assert {
        path: (weight.shape, itemsize[weight.dtype or ""])
        for path, weight, _ in buffer_tensors(read_hf_config(config))
    } == real


def layers_of(stack: Stack) -> list[Block]:
    return [block for run in stack.runs for _ in range(run.count) for block in run.pattern]


def attention_of(block: Block) -> Attention:
    (mixer,) = block.mixers
    assert isinstance(mixer, Attention)
    return mixer


WINDOWED = [
    ("qwen2", {"use_sliding_window": True, "max_window_layers": 3}),
    ("qwen2", {}),
    ("qwen3", {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"] * 4}),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 12}),
    ("exaone4", {}),
    ("cohere2", {}),
    ("gemma2", {}),
    ("gemma3_text", {}),
    ("gemma3_text", {"sliding_window_pattern": 3}),
    ("olmo3", {}),
    ("ministral", {"head_dim": 16, "layer_types": ["full_attention", "sliding_attention"] * 4}),
    ("ministral", {"head_dim": 16}),
]


@pytest.mark.parametrize(("model_type", "flags"), WINDOWED)
def test_window_of_every_layer(model_type: str, flags: dict[str, Any]) -> None:
    config = config_of(model_type, flags, hidden=96, heads=6, kv_heads=3, layers=8, ffn=50, vocab=99)
    layers = meta_model(config).model.layers
    real = [
        layer.self_attn.sliding_window if getattr(layer.self_attn, "is_sliding", True) else None
        for layer in layers
    ]
    assert [attention_of(block).window for block in layers_of(read_hf_config(config).stacks[0])] == real


@pytest.mark.parametrize("model_type", ["mistral", "ministral3", "phi3", "starcoder2"])
@pytest.mark.parametrize("flags", [{}, {"sliding_window": None}, {"sliding_window": 7}])
def test_one_window_for_all_layers(model_type: str, flags: dict[str, Any]) -> None:
    config = config_of(model_type, flags, hidden=96, heads=6, kv_heads=3, layers=2, ffn=50, vocab=99)
    real = meta_model(config).config.sliding_window
    assert {attention_of(block).window for block in layers_of(read_hf_config(config).stacks[0])} == {real}


ROTARY = [
    *((name, {}) for name in LLAMA),
    ("gpt_neox", {}), ("gpt_neox", {"rotary_pct": 0.5}), ("phi", {}), ("phi", {"partial_rotary_factor": 0.25}),
    ("stablelm", {"partial_rotary_factor": 0.5}), ("glm4", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}}),
]  # fmt: skip


@every("model_type, flags", ROTARY)
def test_rotary_width(model_type: str, flags: dict[str, Any]) -> None:
    head = {"head_dim": 24} if model_type in LLAMA and model_type != "stablelm" else {}
    config = config_of(model_type, flags, hidden=96, heads=6, kv_heads=3, layers=2, ffn=50, vocab=99, **head)
    real = next(
        buffer.numel() * 2
        for name, buffer in meta_model(config).named_buffers()
        if "rotary_emb." in name and name.endswith("inv_freq")
    )
    widths = {attention_of(block).rotary_dim for block in layers_of(read_hf_config(config).stacks[0])}
    assert widths == {real}


def test_alternating_layers_fold_into_a_pattern() -> None:
    runs = read_hf_config(config_of("gemma3_text", layers=26)).stacks[0].runs
    assert [(len(run.pattern), run.count) for run in runs] == [(6, 4), (1, 2)]
    assert [
        (len(run.pattern), run.count) for run in read_hf_config(config_of("llama", layers=80)).stacks[0].runs
    ] == [(1, 80)]
