"""Run by test_random_served.py in a process of its own: generations in which the sheet once said less, or
more, than the library's code allocates, found by drawing them at random and made small. Prints by how much a
peak lies beyond the sheet's range, as shares of it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from random_served import compared

SMALL = {
    "hidden_size": 128, "intermediate_size": 200, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 386,
    "max_position_embeddings": 2048, "tie_word_embeddings": False,
}  # fmt: skip
DELTA = {
    **SMALL, "model_type": "qwen3_next", "head_dim": 32, "layer_types": ["linear_attention", "full_attention"], "mlp_only_layers": [0, 1],
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "linear_num_key_heads": 8, "linear_num_value_heads": 16,
}  # fmt: skip
SCANNED = {
    "model_type": "mamba2", "hidden_size": 96, "num_hidden_layers": 2, "num_heads": 24, "head_dim": 8, "state_size": 256, "n_groups": 1,
    "vocab_size": 386, "expand": 2, "chunk_size": 64, "tie_word_embeddings": False,
}  # fmt: skip
ROUTED = {
    **SMALL, "model_type": "llama4_text", "intermediate_size_mlp": 200, "num_local_experts": 8, "num_experts_per_tok": 1, "moe_layers": [0, 1],
    "head_dim": 32, "num_hidden_layers": 2,
}  # fmt: skip
READ = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 480, "intermediate_size": 200, "num_hidden_layers": 2,
    "num_attention_heads": 8, "vocab_size": 4087, "max_position_embeddings": 386,
}  # fmt: skip
EXPERTS = {
    **SMALL,
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 40,
}
SINK = {
    "model_type": "gpt_oss", "hidden_size": 96, "intermediate_size": 400, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 3,
    "head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 3, "vocab_size": 386, "max_position_embeddings": 2048,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
FALCON = {
    "model_type": "falcon", "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 8, "vocab_size": 386, "multi_query": True,
    "new_decoder_architecture": False, "parallel_attn": True, "bias": False, "alibi": False,
}  # fmt: skip
LOCAL = {
    "model_type": "gpt_neo", "hidden_size": 64, "num_layers": 2, "attention_types": [[["global", "local"], 1]], "num_heads": 4, "window_size": 64,
    "vocab_size": 386, "max_position_embeddings": 1024,
}  # fmt: skip
BIASED = {
    "model_type": "mpt",
    "d_model": 64,
    "n_heads": 4,
    "n_layers": 2,
    "vocab_size": 386,
    "max_seq_len": 2048,
}
GENERATED = {
    "engine": "transformers", "prompt_tokens": 300, "max_model_len": 302, "sequences": 2, "precision": "bf16-pure", "attention": "sdpa",
}  # fmt: skip
WIDE = {**GENERATED, "precision": "fp32", "sequences": 1}
CASES = {
    "a delta net without its package": (DELTA, GENERATED),
    "a delta net over a state": (DELTA, {**GENERATED, "prompt_tokens": 3, "max_model_len": 5, "sequences": 5}),
    "a scan whose product copies": (SCANNED, {**GENERATED, "attention": "eager"}),
    "a state's step": (SCANNED, {**GENERATED, "attention": "eager", "prompt_tokens": 2, "max_model_len": 9, "sequences": 5}),
    "experts that compute every token": (ROUTED, GENERATED),
    "words of every position": (READ, {**GENERATED, "prompt_tokens": 384, "max_model_len": 386}),
    "grouped heads in fp32 over a cache": ({**SMALL, "model_type": "llama", "num_key_value_heads": 1}, {**WIDE, "prompt_tokens": 600, "max_model_len": 602}),
    "grouped heads in fp32 beside experts": (EXPERTS, {**WIDE, "prompt_tokens": 500, "max_model_len": 502}),
    "keys that the cache holds": ({**SMALL, "model_type": "qwen3", "head_dim": 72}, {**WIDE, "attention": "eager"}),
    "a joint projection beside the cache": ({**SMALL, "model_type": "phi3", "intermediate_size": 40, "pad_token_id": 0}, {**GENERATED, "attention": "eager"}),
    "one table for each sequence": ({**SMALL, "model_type": "glm4", "head_dim": 32, "pad_token_id": 0}, {**GENERATED, "sequences": 3}),
    "heads raised for their own product": ({**SMALL, "model_type": "ernie4_5", "num_key_value_heads": 1, "intermediate_size": 40}, GENERATED),
    "a linear bias for all positions": (BIASED, {**GENERATED, "attention": "eager", "prompt_tokens": 24, "max_model_len": 25}),
    "biases and clamps of experts": (SINK, {**GENERATED, "attention": "eager"}),
    "both masks beside experts": ({**SMALL, "model_type": "qwen2_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}, {**WIDE, "attention": "eager"}),
    "one head that products copy": (FALCON, GENERATED),
    "one head that eager products copy": (FALCON, {**GENERATED, "sequences": 3, "attention": "eager"}),
    "a window that no cache knows": (LOCAL, {**WIDE, "attention": "eager"}),
    "a layer's probabilities while the next one runs": (
        {"model_type": "gptj", "n_embd": 32, "n_layer": 2, "n_head": 2, "rotary_dim": 8, "vocab_size": 386, "n_positions": 512},
        {**WIDE, "attention": "eager", "prompt_tokens": 400, "max_model_len": 402},
    ),
}  # fmt: skip


if __name__ == "__main__":
    rows = {name: compared(name, 0, config, options) for name, (config, options) in CASES.items()}
    json.dump({name: row.refused or row.beyond for name, row in rows.items()}, sys.stdout)
