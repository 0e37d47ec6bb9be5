"""Run by test_random_plans.py in a process of its own: models and plans in which sheet and trace once were
apart, found by drawing them at random and made small. Prints how far they are apart, as shares of the peak.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from agreement import compared
from random_plans import request_of

SMALL = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 200, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
    "vocab_size": 386, "max_position_embeddings": 2048, "tie_word_embeddings": False,
}  # fmt: skip
DELTA = {
    **SMALL, "model_type": "qwen3_next", "head_dim": 16, "layer_types": ["linear_attention", "linear_attention"], "mlp_only_layers": [0, 1],
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "linear_num_key_heads": 8, "linear_num_value_heads": 16,
}  # fmt: skip
PICTURED = {
    "model_type": "smolvlm", "architectures": ["SmolVLMForConditionalGeneration"], "image_token_id": 7, "scale_factor": 2, "text_config": SMALL,
    "vision_config": {
        "model_type": "smolvlm_vision", "hidden_size": 192, "intermediate_size": 300, "num_hidden_layers": 4, "num_attention_heads": 8,
        "image_size": 64, "patch_size": 16,
    },
}  # fmt: skip
NEO = {
    "model_type": "gpt_neo", "hidden_size": 128, "intermediate_size": 512, "num_layers": 2, "num_heads": 8, "attention_types": [[["global", "local"], 1]],
    "vocab_size": 386, "max_position_embeddings": 2048, "window_size": 64,
}  # fmt: skip
OPT = {
    "model_type": "opt", "hidden_size": 128, "word_embed_proj_dim": 128, "ffn_dim": 512, "num_hidden_layers": 3, "num_attention_heads": 8, "vocab_size": 386,
    "max_position_embeddings": 2048,
}  # fmt: skip
ROUTED = {
    **SMALL, "model_type": "qwen3_moe", "num_hidden_layers": 3, "head_dim": 16, "num_experts": 9, "num_experts_per_tok": 3, "moe_intermediate_size": 512,
    "mlp_only_layers": [],
}  # fmt: skip
SINKS = {
    "model_type": "gpt_oss", "hidden_size": 128, "intermediate_size": 200, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 16,
    "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 386, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 32,
}  # fmt: skip
TWO_STACKS = {
    "model_type": "mt5", "architectures": ["MT5ForConditionalGeneration"], "d_model": 128, "d_kv": 16, "d_ff": 512, "num_layers": 3, "num_heads": 8, "vocab_size": 386,
}  # fmt: skip
STEP = {"microbatch": 4, "seq_len": 300, "precision": "bf16-pure", "attention": "sdpa", "optimizer": "sgd"}
SHARDED = {**STEP, "engine": "fsdp2", "zero": 3, "dp_shard": 2, "microbatch": 1, "seq_len": 40}
STAGED = {
    **SHARDED, "pp": 2, "microbatch": 2, "global_batch": 16, "seq_len": 200, "precision": "fsdp2-mixed", "attention": "eager", "schedule": "1f1b",
}  # fmt: skip
FOUR, EIGHT = ({**SMALL, "num_hidden_layers": layers} for layers in (4, 8))
AGAIN = {**STEP, "attention": "eager", "recompute": "full"}
REENTRANT = {**AGAIN, "recompute.reentrant": True}
DORA = {"adapter.kind": "dora", "lora_rank": 27, "lora_targets": ("down_proj",)}
CASES = {
    "a frame's names outlive the last tensor that it saves": (SMALL, {**STEP, **DORA, "recompute": "full"}),
    "a projection is named while its heads are convolved": (DELTA, {**STEP, "precision": "bf16-autocast", "microbatch": 1}),
    "a tower that is no group is gathered with the root": (PICTURED, SHARDED),
    "a tower whose attention alone is a group": (PICTURED, {**SHARDED, "lora_rank": 4, "lora_targets": ("q_proj",)}),
    "dropout that a family's code leaves out": ({**SMALL, "model_type": "ernie4_5"}, {**STEP, "attention": "eager", "dropout": 0.1}),
    "a bias is copied to longer rows": (TWO_STACKS, {**STEP, "precision": "fp32"}),
    "low adapters over whole numbers": (SMALL, {**STEP, "lora_rank": 8, "quantize": "int8", "lora_dtype": "bf16"}),
    "a reentrant checkpoint names the gradient that it is handed": (SMALL, REENTRANT),
    "the same of a view": (OPT, REENTRANT),
    "a reentrant graph saves until gradients are cast": (ROUTED, {**REENTRANT, "seq_len": 200}),
    "zeros for probabilities that are handed on": (NEO, REENTRANT),
    "the same in fp32 with dropout": (NEO, {**REENTRANT, "precision": "fp32", "dropout": 0.1}),
    "scores go before probabilities are lowered": (NEO, {**AGAIN, "precision": "bf16-autocast"}),
    "a layer with experts is copied out of its gather before a plain one": (
        {**ROUTED, "hidden_size": 160, "num_experts": 8, "mlp_only_layers": [2]}, {**SHARDED, "dp_shard": 3, "seq_len": 13, "microbatch": 4},
    ),
    "one head of keys is copied for the queries, before sinks": (SINKS, {**STEP, "attention": "eager"}),
    "copies of a tower that no picture passes through": (PICTURED, {**STEP, "microbatch": 1, "seq_len": 40, "precision": "bf16-master", "optimizer": "adamw"}),
    "replicas of shards hold what they all-reduce, added to what is there": (
        {**SMALL, "num_hidden_layers": 4}, {**SHARDED, "dp_replicate": 2, "precision": "fsdp2-mixed", "global_batch": 8},
    ),
    "the same, cast to what is there": (SMALL, {**SHARDED, "dp_replicate": 2, "precision.reduce": "fp32"}),
    "two layers' first is copied out of its gather beside what the second reduces": (
        {**ROUTED, "num_hidden_layers": 2}, {**SHARDED, "precision": "fsdp2-mixed", "seq_len": 13},
    ),
    "embeddings that are asked for a gradient stay beside activations on the host": (
        SMALL, {**STEP, "recompute": "full", "offload": "activations", "lora_rank": 4, "lora_targets": ("q_proj",)},
    ),
    "modules that are recomputed one by one ask embeddings for no gradient": (
        SMALL, {**STEP, "recompute_modules": ("mlp",), "lora_rank": 4, "lora_targets": ("q_proj",)},
    ),
    "the same of prompts": (SMALL, {**STEP, "recompute_modules": ("mlp",), "adapter.kind": "prompt-tuning", "adapter.prompt_length": 8}),
    "a stage's units go from a forward to its backward, which leaves them whole": (FOUR, STAGED),
    "the same in fp32": (FOUR, {**STAGED, "precision": "fp32"}),
    "a stage whose units stay whole": (FOUR, {**STAGED, "zero": 2}),
    "a stage in the middle names the gradient that it sent back": (EIGHT, {**STAGED, "pp": 4}),
    "a stage runs all forwards before it runs backward": (EIGHT, {**STAGED, "schedule": "gpipe"}),
    "an optimizer that goes by the model's layers, under replicas": (SMALL, {**STEP, "engine": "transformers", "dp_replicate": 2, "optimizer": "muon"}),
}  # fmt: skip


if __name__ == "__main__":
    rows = {
        name: compared(name, name, config, request_of(options)) for name, (config, options) in CASES.items()
    }
    json.dump({name: 1.0 if row.refused else row.error for name, row in rows.items()}, sys.stdout)
