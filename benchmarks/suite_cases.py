"""What gpu_suite.py measures: models of every kind, and the flags that separate formulas that are wrong from
those that are right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from memsheet.catalog import find_model

Flags = Mapping[str, str]
Config = Mapping[str, Any]

_SMALL = {
    "vocab_size": 1024,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
_GATED = {**_SMALL, "intermediate_size": 352, "num_key_value_heads": 2}
_LATENT = {
    "model_type": "deepseek_v3", "q_lora_rank": 768, "kv_lora_rank": 256, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64,
    "v_head_dim": 64, "n_routed_experts": 32, "num_experts_per_tok": 4, "n_shared_experts": 1, "n_group": 4, "topk_group": 2,
    "moe_intermediate_size": 512, "first_k_dense_replace": 1, "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2816,
    "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 8192,
}  # fmt: skip
LATENT = "latent-0.7b"
TINY: dict[str, Config] = {
    "dense": {"model_type": "llama", **_GATED, "num_key_value_heads": 4},
    "grouped": {"model_type": "llama", **_GATED},
    "biased": {"model_type": "qwen2", **_GATED},
    "normed": {"model_type": "qwen3", **_GATED, "head_dim": 32},
    "learned": {"model_type": "gpt2", "vocab_size": 1024, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 512},
    "parallel": {"model_type": "phi", **_SMALL, "intermediate_size": 512},
    "experts": {
        "model_type": "qwen3_moe", **_GATED, "moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2, "head_dim": 32,
    },
    "latent": {
        **_LATENT, **_GATED, "num_key_value_heads": 4, "q_lora_rank": 48, "kv_lora_rank": 32, "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
        "moe_intermediate_size": 64,
    },
    "sliding": {
        "model_type": "gemma3_text", **_GATED, "head_dim": 32, "sliding_window": 32,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}  # fmt: skip
"""One small model for each kind: heads, experts, windows as the large ones have them."""
OWN: dict[str, Config] = {LATENT: _LATENT, **{f"tiny-{name}": config for name, config in TINY.items()}}
"""Models that are not bundled: their configs are written beside the records."""
KINDS = {
    "llama-3.2-1b": "grouped", "llama-3.2-3b": "grouped", "llama-3.1-8b": "grouped", "mistral-7b": "grouped", "smollm2-135m": "grouped",
    "tinyllama-1.1b": "grouped", "olmo-1b": "dense", "qwen2.5-0.5b": "biased", "qwen2.5-7b": "biased", "qwen3-0.6b": "normed",
    "qwen3-1.7b": "normed", "qwen3-8b": "normed", "gpt2": "learned", "gpt2-xl": "learned", "phi-1.5": "parallel", LATENT: "latent",
    "granite-3.1-1b-a400m": "experts", "olmoe-1b-7b": "experts", "gemma-3-1b": "sliding", "gemma-3-4b": "sliding",
    "qwen2.5-vl-3b": "biased", "qwen2-vl-2b": "biased",
}  # fmt: skip
"""Which tiny model stands for one on a processor. The multimodal ones are trained on text alone, as the trace
runs them.
"""
MAIN = "llama-3.2-1b"
SHRUNK = 16
"""Lengths on a processor are that much shorter."""
LENGTHS = ("seq-len", "max-model-len", "prompt-tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement: a model and the flags of ``memsheet measure``. ``snapshot``: keep the allocator's own
    history of it.
    """

    model: str
    flags: Flags
    snapshot: bool = False

    @property
    def name(self) -> str:
        words = (
            value if flag == "precision" else f"{flag}-{value}".strip("-")
            for flag, value in self.flags.items()
        )
        return "-".join((self.model, *words)).replace("/", "-").replace(".", "_")

    @property
    def words(self) -> list[str]:
        return [
            word for flag, value in self.flags.items() for word in (f"--{flag}", *([value] if value else []))
        ]

    @property
    def config(self) -> Config:
        """The model's config.json."""
        found: Config = OWN.get(self.model) or (find_model(self.model) or {})["config"]
        return found


def cases(*, small: bool) -> Iterator[Case]:
    """By worth, none twice. ``small``: the same flags on a tiny model of the same kind, of shorter
    sequences.
    """
    seen = set[str]()
    for case in _all():
        made = _shrunk(case) if small else case
        if made.name not in seen:
            seen.add(made.name)
            yield made


def _shrunk(case: Case) -> Case:
    flags = {
        flag: str(max(int(value) // SHRUNK, 8)) if flag in LENGTHS else value
        for flag, value in case.flags.items()
    }
    return replace(case, model=f"tiny-{KINDS[case.model]}", flags=flags)


def _train(model: str, *, length: int = 1024, snapshot: bool = False, **flags: str) -> Case:
    named = {key.replace("_", "-"): value for key, value in flags.items()}
    return Case(model=model, flags={"seq-len": str(length), **named}, snapshot=snapshot)


def _all() -> Iterator[Case]:
    """What most people train first; then one thing changed at a time; then other models, adapters,
    generation, lengths that vary.
    """
    for precision, recompute, length in product(
        ("bf16-autocast", "bf16-pure"), ("none", "full"), (1024, 4096)
    ):
        yield _train(MAIN, length=length, precision=precision, recompute=recompute, snapshot=length == 1024)
    for model, precision in product(
        ("gemma-3-1b", "granite-3.1-1b-a400m", LATENT, "gpt2", "qwen2.5-0.5b"), ("bf16-autocast", "bf16-pure")
    ):
        yield _train(model, precision=precision, recompute="none", microbatch="2")
    yield from _served(("llama-3.2-1b", "gemma-3-1b", LATENT))
    for precision in ("fp32", "fp16-autocast"):
        yield _train(MAIN, precision=precision, recompute="none")
    for implementation in ("foreach", "fused", "loop"):
        yield _train(MAIN, precision="bf16-pure", optimizer_implementation=implementation)
    for optimizer in ("sgd", "sgd_momentum", "adamw_8bit"):
        yield _train(MAIN, precision="bf16-pure", optimizer=optimizer)
    for attention, microbatch in product(("sdpa", "eager", "flash"), ("1", "4")):
        yield _train(MAIN, precision="bf16-pure", attention=attention, microbatch=microbatch)
    for loss in ("fused", "chunked"):
        yield _train(MAIN, precision="bf16-pure", loss=loss)
    for more in (
        {"recompute_every": "2"},
        {"recompute_segments": "2"},
        {"global_batch": "8"},
        {"offload": "activations"},
        {"optimizer_in_backward": ""},
    ):
        yield _train(
            MAIN,
            precision="bf16-pure",
            recompute="full" if any("recompute" in key for key in more) else "none",
            **more,
        )
    for precision, recompute, microbatch in product(
        ("bf16-autocast", "bf16-pure"), ("none", "full"), ("1", "4")
    ):
        yield _train(MAIN, precision=precision, recompute=recompute, microbatch=microbatch, lora_rank="16")
    for model, recompute in product(
        (
            "qwen3-1.7b",
            "phi-1.5",
            "smollm2-135m",
            "tinyllama-1.1b",
            "olmo-1b",
            "gpt2-xl",
            "qwen3-0.6b",
            "qwen2-vl-2b",
        ),
        ("none", "full"),
    ):
        yield _train(model, precision="bf16-autocast", recompute=recompute)
    for model, length in product((MAIN, "gemma-3-1b"), (1024, 2048)):
        yield Case(
            model=model,
            flags={
                "seq-len": str(length),
                "microbatch": "2",
                "precision": "bf16-autocast",
                "vary-length": "",
            },
            snapshot=True,
        )
    for model, recompute, length in product(
        (
            "llama-3.2-3b",
            "llama-3.1-8b",
            "qwen2.5-7b",
            "mistral-7b",
            "qwen3-8b",
            "gemma-3-4b",
            "olmoe-1b-7b",
            "qwen2.5-vl-3b",
        ),
        ("none", "full"),
        (1024, 4096),
    ):
        yield _train(model, length=length, precision="bf16-pure", recompute=recompute, lora_rank="16")
    yield from _served(("llama-3.1-8b", "qwen2.5-7b", "gpt2", "granite-3.1-1b-a400m", "qwen3-8b"))


def _served(models: tuple[str, ...]) -> Iterator[Case]:
    """Prompts, and tokens after them."""
    for model, (length, prompt), sequences in product(models, ((1024, 512), (4096, 4000)), ("1", "4")):
        if model == "gpt2" and length > 1024:
            continue  # it has positions for 1024 tokens
        yield Case(
            model=model,
            flags={"max-model-len": str(length), "prompt-tokens": str(prompt), "sequences": sequences},
        )
