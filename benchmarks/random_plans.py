"""Models and plans that nobody chose: small configurations of every family with sizes drawn at random, and
what is asked of them.

A case is its family and its number: the same ones give the same case everywhere. Configurations that the
library itself refuses, and plans that the sheet refuses, are drawn again, a few times; a family whose layers
are not written down is compared by ``recorded_layers.py``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from families import default_config

from memsheet.errors import InputError, input_error
from memsheet.formulas.model_code.transformers.plan_problems import has_written_layers
from memsheet.formulas.states.params import parameter_count
from memsheet.plan.names import SHORT
from memsheet.plan.plan import Plan
from memsheet.plan.words import request_from
from memsheet.questions.traced import check_runs
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.registry import FAMILIES
from memsheet.resolve import resolve_request

Config = dict[str, Any]
Options = dict[str, Any]

MOST_POSITIONS = 2048
TEXT, OTHERS = "text_config", ("vision_config", "audio_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes that the fields of one configuration share. ``hidden``: of what it hands on, elements."""

    layers: int
    heads: int
    kv_heads: int
    head: int
    hidden: int
    vocab: int
    experts: int
    out: int

    @classmethod
    def drawn(cls, draw: random.Random, *, free_heads: bool, out: int = 0) -> Shape:
        """``free_heads``: a head has a width of its own; ``out``: what is handed on, else its own."""
        kv, head = draw.choice((1, 2, 2, 3, 4)), 8 * draw.randint(1, 10)
        heads = kv * draw.choice((1, 2, 3, 4))
        hidden = heads * (8 * draw.randint(2, 12) if free_heads and draw.random() < 0.6 else head)
        return cls(
            layers=draw.randint(2, 4), heads=heads, kv_heads=kv, head=head, hidden=hidden, vocab=draw.randint(300, 6000),
            experts=draw.randint(3, 9), out=out or hidden,
        )  # fmt: skip


def _width(draw: random.Random, _: Shape) -> int:
    return 8 * draw.randint(4, 120) + draw.choice((0, 0, 1, 4))


SIZES: Mapping[str, Callable[[random.Random, Shape], Any]] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers", "depth"), lambda _, s: s.layers),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads", "attention_heads"), lambda _, s: s.heads),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), lambda _, s: s.kv_heads),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embed_dim", "attention_hidden_size", "lru_width"), lambda _, s: s.hidden),
    **dict.fromkeys(("head_dim", "d_kv"), lambda _, s: s.head),
    **dict.fromkeys(
        (
            "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size", "dense_intermediate_size",
            "intermediate_size_mlp", "expert_ffn_hidden_size", "moe_shared_expert_intermediate_size", "share_expert_dim", "encoder_ffn_dim", "decoder_ffn_dim",
            "ffn_dim", "d_ff", "hidden_dim", "n_inner", "ffn_hidden_size", "projection_hidden_size", "projector_hidden_size",
        ),
        _width,
    ),
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), lambda _, s: s.experts
    ),
    **dict.fromkeys(
        ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"),
        lambda draw, _: draw.randint(1, 3),
    ),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group"), lambda *_: 1),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), lambda draw, _: draw.randint(1, 2)),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"), lambda draw, s: draw.randint(0, s.layers - 1)),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len", "context_length", "model_max_length"), lambda *_: MOST_POSITIONS),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), lambda _, s: s.vocab),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "laurel_rank", "embedding_size"), lambda draw, _: 8 * draw.randint(1, 12)),
    **dict.fromkeys(("out_hidden_size", "vision_output_dim"), lambda _, s: s.out),
    **dict.fromkeys(("num_kv_shared_layers", "num_nextn_predict_layers", "zero_expert_num"), lambda *_: 0),
    **dict.fromkeys(("qk_rope_head_dim",), lambda draw, _: 8 * draw.randint(1, 6)),
    **dict.fromkeys(("sliding_window", "attention_window_size", "local_attention"), lambda draw, _: draw.randint(8, 400)),
    **dict.fromkeys(("hidden_size_per_layer_input", "index_head_dim"), lambda draw, _: 8 * draw.randint(1, 8)),
    "moe_layer_end_index": lambda _, s: s.layers - 1,
    "max_window_layers": lambda draw, s: draw.randint(0, s.layers),
    "rotary_dim": lambda _, s: min(s.head, 8),
    "index_n_heads": lambda draw, _: draw.randint(1, 4),
    "type_vocab_size": lambda draw, _: draw.randint(1, 3),
    "attn_layer_period": lambda draw, s: draw.randint(2, s.layers),
    "attn_layer_offset": lambda *_: 1,
    "state_size": lambda draw, _: 8 * draw.randint(1, 4),
    "time_step_rank": lambda draw, _: draw.randint(3, 30),
    "mamba_dt_rank": lambda draw, _: draw.randint(3, 30),
}  # fmt: skip
"""Field of a configuration → its drawn value. Others keep the library's own default."""

FLAGS = (
    "attention_bias", "mlp_bias", "tie_word_embeddings", "use_bias", "use_qkv_bias", "attention_out_bias", "lm_head_bias",
    "use_qk_norm", "qk_layernorm", "use_parallel_residual", "parallel_attn", "new_decoder_architecture", "multi_query", "alibi", "use_conv_bias",
    "mamba_conv_bias", "mamba_proj_bias", "conv_bias", "norm_topk_prob", "residual_in_fp32", "mamba_rms_norm", "do_layer_norm_before", "decoder_bias",
    "norm_bias", "classifier_bias", "use_sliding_window", "relative_attention", "multimodal_projector_bias",
    "no_bias", "apply_residual_connection_post_layernorm", "mup_enabled", "use_expert_bias", "position_biased_input",
)  # fmt: skip
"""Choices of a configuration, each turned over one time in four."""
TURNED = 0.25
LAYER_NUMBERS = (
    "full_attn_idxs", "attn_layer_indices", "cross_attention_layers", "deepstack_visual_indexes", "fullatt_block_indexes",
    "intermediate_layers_indices", "moe_layers", "mlp_only_layers",
)  # fmt: skip
"""Fields that list layers by their numbers."""
MIXER_HEADS = (("mamba_n_heads", "mamba_d_head", "mamba_expand"), ("num_heads", "head_dim", "expand"))
"""Number and width of a state space's heads, which share its expansion of the hidden size."""
CUT_ROTARY = ("qwen2_vl_text", "qwen2_5_vl_text")
"""Whose rotary angles are cut in three, however wide a head is, where a configuration does not say how."""
FOLLOWING = (
    "hybrid_layer_ids",
    "qk_head_dim",
    "attention_layers",
    "activation_sparsity_pattern",
    "num_global_layers",
)
"""Fields that follow from others, or that a class works out where they are not said."""


@cache
def pictured_classes() -> Mapping[str, str]:
    """Class of each type that takes pictures with words, which `architectures` names in a file."""
    from transformers.models.auto import modeling_auto

    return dict(modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)


def drawn_config(family: str, draw: random.Random) -> Config:
    """A small configuration of ``family``, with sizes, biases and ties drawn."""
    made = _drawn(default_config(family), draw)
    if family in (classes := pictured_classes()):
        made["architectures"] = [classes[family]]
    return made


def _drawn(config: Config, draw: random.Random, out: int = 0) -> Config:
    shape = Shape.drawn(draw, free_heads=isinstance(config.get("head_dim"), int) and not out, out=out)
    made = {}
    for key, value in config.items():
        if key not in FOLLOWING and not isinstance(value, Mapping):
            made[key] = _drawn_value(key, value, config, shape, draw)
    if {"head_dim", "qk_rope_head_dim"} <= made.keys():
        made["head_dim"] = made["qk_rope_head_dim"]
    for name in ("rope_parameters", "rope_scaling"):
        rope = config.get(name)
        if isinstance(rope, Mapping) and ("mrope_section" in rope or config.get("model_type") in CUT_ROTARY):
            made[name] = {**rope, "mrope_section": [shape.head // 4, shape.head // 8, shape.head // 8]}
    if isinstance(config.get(TEXT), Mapping):
        made[TEXT] = _drawn(config[TEXT], draw)
        out = made[TEXT].get("hidden_size", 0)
        if "projection_dim" in made:
            made["projection_dim"] = out
    for heads, width, expansion in MIXER_HEADS:
        if {heads, width, expansion} <= made.keys():
            made |= {width: 8, heads: made[expansion] * shape.hidden // 8}
    for key, value in config.items():
        if isinstance(value, Mapping) and key != TEXT:
            made[key] = _drawn(value, draw, out or 1) if key.endswith("_config") else made.get(key, value)
    return made


def _drawn_value(key: str, value: Any, config: Config, shape: Shape, draw: random.Random) -> Any:
    if isinstance(value, bool):
        return value ^ (key in FLAGS and draw.random() < TURNED)
    if value is None:
        return shape.head if key == "head_dim" else None
    if isinstance(value, int) and key.endswith(("token_id", "token_index")):
        return draw.randrange(1, 50)
    if key == "attention_types":
        return [[["global", "local"][: shape.layers % 2 or 2], shape.layers // (2 - shape.layers % 2)]]
    if key == "moe_intermediate_size" and isinstance(value, list):
        return [_width(draw, shape) for _ in value]
    if key in LAYER_NUMBERS and isinstance(value, list):
        return sorted(draw.sample(range(shape.layers), draw.randint(1, shape.layers)))
    if (
        isinstance(value, list)
        and value
        and len(value) == _layers_of(config)
        and not isinstance(value[0], list)
    ):
        kinds = sorted(set(value))
        return [draw.choice(kinds) for _ in range(shape.layers)]
    return SIZES[key](draw, shape) if key in SIZES else value


def _layers_of(config: Mapping[str, Any]) -> int:
    names = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "depth")
    return next((config[name] for name in names if isinstance(config.get(name), int)), 0)


# ---- plans -------------------------------------------------------------------------------------------------

PLACES: tuple[tuple[int, Options], ...] = (
    (6, {}),
    (1, {"engine": "transformers", "dp_replicate": 2}), (1, {"engine": "transformers", "dp_replicate": 3}),
    (2, {"engine": "fsdp2", "zero": 3, "dp_shard": 2}), (1, {"engine": "fsdp2", "zero": 3, "dp_shard": 3}),
    (1, {"engine": "fsdp2", "zero": 3, "dp_shard": 8}), (1, {"engine": "fsdp2", "zero": 3, "dp_replicate": 2, "dp_shard": 2}),
    (1, {"engine": "fsdp2", "zero": 3, "dp_shard": 4, "reshard_after_forward": False}),
    (1, {"engine": "fsdp2", "zero": 3, "dp_shard": 2, "tp": 2}), (1, {"engine": "fsdp2", "zero": 3, "dp_shard": 2, "cp": 2}),
    (1, {"engine": "fsdp2", "zero": 3, "dp_shard": 2, "gradient_sync": "last"}), (1, {"engine": "fsdp2", "zero": 3, "dp_shard": 4, "ep": 2}),
    (1, {"engine": "transformers", "zero": 1, "dp_shard": 2}),
)  # fmt: skip
"""How often a place is drawn, and its options."""
PRECISIONS = ("fp32", "bf16-autocast", "fp16-autocast", "bf16-pure", "bf16-pure", "bf16-master")
SHARDED_PRECISIONS = ("fsdp2-mixed", "fsdp2-mixed", "bf16-pure", "fp32")
ATTENTIONS = ("sdpa", "sdpa", "eager")
RECOMPUTES: tuple[Options, ...] = (
    *({},) * 5, *({"recompute": "full"},) * 3, {"recompute": "full", "recompute.reentrant": True},
    {"recompute_every": 2}, {"recompute_segments": 2}, {"recompute_layers": 1}, {"recompute_modules": ("mlp",)},
)  # fmt: skip
OPTIMIZERS: tuple[Options, ...] = (
    *({"optimizer": "adamw", "optimizer_implementation": how} for how in ("foreach", "fused", "loop")),
    {"optimizer": "adamw"}, {"optimizer": "sgd"}, {"optimizer": "sgd_momentum", "optimizer_implementation": "fused"},
    {"optimizer": "sgd_momentum", "optimizer_implementation": "loop"}, {"optimizer": "adafactor"},
    {"optimizer": "adafactor", "optimizer_implementation": "foreach"}, {"optimizer": "muon"}, {"optimizer": "rmsprop"}, {"optimizer": "adagrad"},
    {"optimizer": "adamw_8bit"}, {"optimizer": "lion"}, {"optimizer": "galore", "optimizer.rank": 7}, {"optimizer": "lion_8bit"},
    {"optimizer": "ademamix"}, {"optimizer": "adam_mini"}, {"optimizer": "adamw", "optimizer_in_backward": True},
    {"optimizer": "ademamix_8bit"}, {"optimizer": "rmsprop_8bit"},
)  # fmt: skip
SHARDED_OPTIMIZERS = tuple(
    one
    for one in OPTIMIZERS
    if one["optimizer"] in ("adamw", "sgd", "sgd_momentum", "adamw_8bit", "lion") and len(one) < 3
)
LOSSES = (*("plain",) * 5, "fused", "chunked")
TARGETS: tuple[Any, ...] = (
    None,
    None,
    ("q_proj", "v_proj"),
    ("all-linear",),
    ("q_proj",),
    ("gate_proj", "down_proj"),
    ("o_proj", "up_proj"),
)
KINDS = (
    *("lora",) * 8,
    "dora",
    "dora",
    "lora-fa",
    "ia3",
    "vera",
    "adalora",
    "oft",
    "loha",
    "lokr",
    "ln-tuning",
    "prompt-tuning",
    "p-tuning",
    "prefix-tuning",
    "prefix-projection",
)
FULL_MODULES: tuple[tuple[str, ...], ...] = (
    (),
    (),
    (),
    ("lm_head",),
    ("embed_tokens",),
    ("embed_tokens", "lm_head"),
)


def drawn_plan(draw: random.Random) -> Options:
    """Options of a training step, by short names and by a plan's keys."""
    (place,) = draw.choices([options for _, options in PLACES], [often for often, _ in PLACES])
    sharded = place.get("engine") == "fsdp2"
    batch = draw.randint(1, 4)
    ranks = place.get("dp_replicate", 1) * place.get("dp_shard", 1)
    plan = {
        **place,
        "microbatch": batch,
        "seq_len": _drawn_length(draw, place),
        "precision": draw.choice(SHARDED_PRECISIONS if sharded else PRECISIONS),
        "attention": draw.choice(ATTENTIONS),
        "loss": "plain" if len(place) > 0 else draw.choice(LOSSES),
        **draw.choice(RECOMPUTES[:9] if place else RECOMPUTES),
        **draw.choice(SHARDED_OPTIMIZERS if sharded else OPTIMIZERS),
    }
    if draw.random() < 0.3:  # the last micro-batch of some is smaller
        plan["global_batch"] = draw.randint(batch + 1, 4 * batch) * ranks
    if draw.random() < 0.15:
        plan["dropout"] = 0.1
    if draw.random() < 0.1:
        plan["offload"] = draw.choice(("activations", "optimizer"))
    return {**plan, **(_drawn_adapter(draw, sharded=sharded) if draw.random() < 0.4 else {})}


def _drawn_length(draw: random.Random, place: Options) -> int:
    """Tokens of a sequence: any, even ones, a few alone; whole pieces, where ranks share it."""
    if "cp" in place:
        return 4 * draw.randint(1, 160)
    return draw.choice((draw.randint(17, 700), 64 * draw.randint(1, 10), draw.randint(1, 16)))


def _drawn_adapter(draw: random.Random, *, sharded: bool) -> Options:
    kind = "lora" if sharded else draw.choice(KINDS)
    found: Options = {} if kind == "lora" else {"adapter.kind": kind}
    if kind in ("lora", "dora", "lora-fa", "vera", "adalora", "loha", "lokr"):
        found["lora_rank"] = draw.randint(1, 33)
        if targets := draw.choice(TARGETS):
            found["lora_targets"] = targets
        if kind in ("lora", "dora") and (full := draw.choice(FULL_MODULES)):
            found["adapter.full_modules"] = list(full)
        if draw.random() < 0.3:
            found["adapter.dropout"] = 0.05
    elif kind == "oft":
        found["adapter.block_size"] = 8
    elif kind in ("prompt-tuning", "p-tuning", "prefix-tuning", "prefix-projection"):
        found["adapter.prompt_length"] = draw.randint(1, 40)
    if kind == "lora" and draw.random() < 0.4:
        found["quantize"] = draw.choice(("nf4", "nf4", "fp4", "int8"))
    if draw.random() < 0.2:
        found["lora_dtype"] = draw.choice(("fp32", "bf16"))
    return found


# ---- cases -------------------------------------------------------------------------------------------------

PACKAGES = {
    "lion": "lion_pytorch",
    "galore": "galore_torch",
    "adam_mini": "adam_mini",
    "ademamix": "bitsandbytes",
}
"""Of optimizers that are a package's own; those in eight bits are bitsandbytes'."""
UNBUILT = frozenset({
    "mimo", "kimi_k2", "bailing_moe", "bailing_moe_v2", "mimo_v2", "step3p5", "qwen3_omni_moe", "qwen2_5_omni", "gemma3n", "nemotron",
})  # fmt: skip
"""Families that the library has no code for, no default that it builds, or none without a further package."""
ATTEMPTS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A configuration, and the options that its sheet takes; ``refused``: why it takes none that was
    drawn.
    """

    family: str
    number: int
    config: Config
    options: Options
    refused: str | None = None

    @property
    def name(self) -> str:
        """In the words of its options."""
        return f"{self.number}: " + ", ".join(f"{key}={value}" for key, value in self.options.items())


def drawn_cases(count: int, seed: int, families: tuple[str, ...] = ()) -> Iterator[Case]:
    """Cases of families drawn at random, of those alone that are named."""
    known = families or tuple(name for name in FAMILIES if name not in UNBUILT)
    for number in range(seed * 1000, seed * 1000 + count):
        yield drawn_case(random.Random(f"family {number}").choice(known), number)


def drawn_case(family: str, number: int) -> Case:
    """The first of a few draws that the sheet takes."""
    why = ""
    for attempt in range(ATTEMPTS):
        draw = random.Random(f"{family} {number} {attempt}")
        config, options = drawn_config(family, draw), drawn_plan(draw)
        if (package := _package_of(options)) and find_spec(package) is None:
            why = f"optimizer = {options['optimizer']}: {package} is not installed"
            continue
        try:
            check_runs(plan_of_case(config, options))
        except InputError as error:
            why = " ".join(str(error).split())
            continue
        return Case(family=family, number=number, config=config, options=options)
    return Case(family=family, number=number, config=config, options=options, refused=why)


def _package_of(options: Options) -> str | None:
    name = str(options["optimizer"])
    return "bitsandbytes" if name.endswith("8bit") else PACKAGES.get(name)


def plan_of_case(config: Mapping[str, Any], options: Options) -> Plan:
    """The plan that a sheet is made of. Raises InputError where there is none."""
    from memsheet.account import account_rank

    spec = read_hf_config(config, name=str(config["model_type"]))
    if not has_written_layers(spec):
        raise input_error("model", spec.name, "has layers that are not written down")
    plan = resolve_request({**request_of(options), "task": "train"}, spec).plan
    for stage in range(plan.mesh.pp):
        account_rank(spec, plan, stage=stage)
    return plan


def request_of(options: Options) -> Options:
    """Options by short names and by a plan's keys as a request."""
    short = {key: value for key, value in options.items() if key in SHORT or key == "offload"}
    return {**request_from(short), **{key: value for key, value in options.items() if key not in short}}


def parameters_off(config: Mapping[str, Any], plan: Plan) -> int:
    """Parameters that the sheet counts, less those of the model that the library builds."""
    from memsheet.run.model import parameters_of

    return parameter_count(read_hf_config(config)) - parameters_of(config, plan)
