"""NeMo 1's configuration in Megatron-LM's words: its keys by the flags that say the same.

Meanings are those of NVIDIA/NeMo 8cfedd7 nemo/collections/nlp/models/language_modeling, of
megatron_base_model.py: build_transformer_config, _validate_and_override_config.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange import find_format
from memsheet.exchange.shared.file_format import Values
from memsheet.patterns import late_pattern

MEGATRON = find_format("megatron")
FLAGS = {
    "tensor_model_parallel_size": "--tensor-model-parallel-size", "pipeline_model_parallel_size": "--pipeline-model-parallel-size",
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank", "context_parallel_size": "--context-parallel-size",
    "expert_model_parallel_size": "--expert-model-parallel-size", "sequence_parallel": "--sequence-parallel", "micro_batch_size": "--micro-batch-size",
    "global_batch_size": "--global-batch-size", "encoder_seq_length": "--seq-length", "make_vocab_size_divisible_by": "--make-vocab-size-divisible-by",
    "activations_checkpoint_granularity": "--recompute-granularity", "activations_checkpoint_method": "--recompute-method",
    "activations_checkpoint_num_layers": "--recompute-num-layers", "hidden_dropout": "--hidden-dropout", "attention_dropout": "--attention-dropout",
    "moe_token_dispatcher_type": "--moe-token-dispatcher-type", "moe_grouped_gemm": "--moe-grouped-gemm",
}  # fmt: skip
"""Keys of the group ``model`` that decide on a plan."""
SIZES = {
    "num_layers": "--num-layers", "hidden_size": "--hidden-size", "ffn_hidden_size": "--ffn-hidden-size", "num_attention_heads": "--num-attention-heads",
    "num_query_groups": "--num-query-groups", "kv_channels": "--kv-channels", "max_position_embeddings": "--max-position-embeddings",
    "normalization": "--normalization", "position_embedding_type": "--position-embedding-type", "rotary_percentage": "--rotary-percent",
    "num_moe_experts": "--num-experts", "moe_router_topk": "--moe-router-topk", "moe_ffn_hidden_size": "--moe-ffn-hidden-size",
    "moe_shared_expert_intermediate_size": "--moe-shared-expert-intermediate-size", "override_vocab_size": "--vocab-size", "vocab_size": "--vocab-size",
    "hybrid_override_pattern": "--hybrid-override-pattern", "qk_layernorm": "--qk-layernorm", "qkv_bias": "--add-qkv-bias",
}  # fmt: skip
"""Keys of the same group that describe the model."""
SWITCHED: Mapping[str, tuple[Any, str]] = {
    "bias": (False, "--disable-bias-linear"), "add_bias_linear": (False, "--disable-bias-linear"),
    "share_embeddings_and_output_weights": (False, "--untie-embeddings-and-output-weights"),
}  # fmt: skip
"""Keys by the value that a switch stands for."""
OTHER_KINDS = late_pattern(r"t5|t0|bart|ul2|retro|griffin|hyena|mamba|jamba|distill|nmt")
"""Models that are no stack of alike decoder layers, by the name of a configuration."""
TOKENIZERS = {"GPT2BPETokenizer": "GPT2BPETokenizer", "gpt2": "GPT2BPETokenizer", "BertWordPieceLowerCase": "BertWordPieceLowerCase"}  # fmt: skip


def in_megatron_words(values: Values) -> dict[str, Any]:
    """Flags of Megatron-LM that say what the group ``model`` does, with its sizes."""
    names = {**FLAGS, **SIZES}
    found = {names[name]: held for name in names if (held := values.get(f"model.{name}")) is not None}
    found |= {flag: True for name, (off, flag) in SWITCHED.items() if values.get(f"model.{name}") is off}
    activation = str(values.get("model.activation", "gelu"))
    found |= {"--swiglu": True} if activation.endswith("glu") else {}
    found |= {"--squared-relu": True} if activation == "squared-relu" else {}
    found |= {"--group-query-attention": True} if "--num-query-groups" in found else {}
    kind = TOKENIZERS.get(str(values.get("model.tokenizer.type")))
    found |= {"--tokenizer-type": kind} if kind else {}
    return {**found, "$.program": f"{values.get('name', 'megatron')}"}


def nemo_described_sizes(values: Values) -> Mapping[str, Any] | None:
    """The model's sizes by Megatron-LM's names; None where it is another kind of model."""
    return None if is_other_kind(values) else MEGATRON.model(in_megatron_words(values))


def is_other_kind(values: Values) -> bool:
    return OTHER_KINDS.search(str(values.get("name", "")).lower()) is not None
