"""gpt-oss under Megatron-Core: sinks are the fused kernel's, and experts have biases and a clamp, by hand."""

from __future__ import annotations

from typing import Any

import pytest

import memsheet
from memsheet.sheet import Component, Instant, Sheet

OSS: dict[str, Any] = {
    "model_type": "gpt_oss", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32,
    "num_attention_heads": 8, "num_key_value_heads": 4, "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": False,
    "sliding_window": 128, "max_position_embeddings": 4096,
}  # fmt: skip
COPIES = 2 * 512


def sheet(**options: Any) -> Sheet:
    return memsheet.train(OSS, **{"engine": "megatron", "seq_len": 512, **options}).sheets[0]


def size(found: Sheet, path: str, instant: Instant = Instant.LOSS) -> int:
    return sum(int(i.at[instant].value) for i in found.items if i.path.endswith(path) and instant in i.at)


def test_a_clamp_keeps_the_product_and_the_activation_what_was_clamped() -> None:
    """Of both layers, per copy of a token: both halves twice in bf16, their product and its input."""
    found = sheet()
    assert any("bias_activation_fusion" in note for note in found.notes)
    experts = "model.layers.*.mlp.experts"
    assert size(found, f"{experts}.linear_fc1/output") == 2 * 2 * COPIES * 2 * 128
    assert size(found, f"{experts}/clamped") == size(found, f"{experts}.linear_fc1/output")
    assert size(found, f"{experts}/activation") == 2 * 2 * COPIES * 128


def test_biases_are_added_in_fp32_part_by_part_and_joined() -> None:
    found = sheet()
    for name in ("biased_parts", "biased_joined"):
        assert size(found, f"mlp.experts/{name}", Instant.FORWARD) == 4 * COPIES * 256
        assert size(found, f"mlp.experts/{name}", Instant.LOSS) == 0


def test_a_window_and_sinks_change_no_byte_of_what_the_fused_kernel_keeps() -> None:
    """Sequences stay where they are: flash-attn, which wants them in front, has no sinks."""
    both = [sheet(microbatch=2, attention=kernel) for kernel in ("flash", "cudnn")]
    assert both[0].of(Component.SAVED_ACTIVATIONS) == both[1].of(Component.SAVED_ACTIVATIONS)
    assert size(both[0], "self_attn/context") == 2 * 2 * 2 * 512 * 8 * 32
    assert size(both[0], "self_attn/logsumexp") == 2 * 4 * 2 * 512 * 8


def test_expert_parallel_shards_of_the_parameters_add_up() -> None:
    whole, shards = sheet(), sheet(ep=4, dp_shard=4)
    experts = [
        sum(i.at[Instant.LOAD].value for i in s.items if i.component is Component.PARAMETERS and "experts" in i.path)
        for s in (whole, shards)
    ]  # fmt: skip
    assert experts[0] == 4 * experts[1] > 0


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"attention": "eager"}, "attention"),
        ({"cp": 2, "context_parallel_comm": "ring"}, "context_parallel_comm"),
        ({"recompute": "selective", "recompute_modules": ["moe_act"]}, "recompute.modules"),
    ],
)
def test_what_sinks_run_without_is_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(memsheet.InputError, match=field):
        sheet(**options)
