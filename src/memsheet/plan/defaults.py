"""What names in a plan stand for, and which keys a plan may not set yet: tables of data that ``resolve``
reads.
"""

from __future__ import annotations

from typing import Any

from memsheet.plan import dtypes
from memsheet.plan.dtypes import BF16, FP16, FP32
from memsheet.plan.plan import Precision

NAMED_PRECISIONS: dict[str, Precision] = {
    "fp32": Precision(
        parameters=FP32, compute=FP32, gradients=FP32, reduce=FP32, master_weights=None, moments=FP32
    ),
    "bf16-autocast": Precision(
        parameters=FP32, compute=BF16, gradients=FP32, reduce=FP32, master_weights=None, moments=FP32
    ),
    "fp16-autocast": Precision(
        parameters=FP32, compute=FP16, gradients=FP32, reduce=FP32, master_weights=None, moments=FP32
    ),
    "bf16-master": Precision(
        parameters=BF16, compute=BF16, gradients=BF16, reduce=BF16, master_weights=FP32, moments=FP32
    ),
    "bf16-pure": Precision(
        parameters=BF16, compute=BF16, gradients=BF16, reduce=BF16, master_weights=None, moments=BF16
    ),
    "megatron-mixed": Precision(
        parameters=BF16, compute=BF16, gradients=FP32, reduce=FP32, master_weights=FP32, moments=FP32
    ),
    "fsdp2-mixed": Precision(
        parameters=FP32, compute=BF16, gradients=FP32, reduce=FP32, master_weights=None, moments=FP32
    ),
}
ADAPTER_PRECISION = Precision(
    parameters=BF16, compute=BF16, gradients=FP32, reduce=FP32, master_weights=None, moments=FP32
)
"""A frozen bf16 base with fp32 adapters: peft raises adapters to fp32 unless told otherwise
(autocast_adapter_dtype).
"""

QUANTIZED = {
    "nf4": dtypes.NF4, "fp4": dtypes.FP4_BNB, "int8": dtypes.INT8, "int4": dtypes.INT4, "fp8": dtypes.FP8, "mxfp4": dtypes.MXFP4,
    "nvfp4": dtypes.NVFP4, "mxfp8": dtypes.MXFP8, "fp8-block": dtypes.FP8_BLOCK, "awq-int4": dtypes.AWQ_INT4,
    "gptq-int4": dtypes.GPTQ_INT4, "gptq-int8": dtypes.GPTQ_INT8,
}  # fmt: skip
DOUBLED = ("nf4", "fp4")  # whose scales may be quantized again
PACKED = ("gptq-int4", "gptq-int8", "awq-int4")  # buffers of modules that gptqmodel puts in the layers' place
LORA_ALONE = ("int8", *PACKED)  # trained beside by adapters of one kind
TRAINABLE_QUANTIZED = (*DOUBLED, *LORA_ALONE)
STORED_TRAINABLE = {
    "bitsandbytes": (*DOUBLED, "nf4-single", "fp4-double", "int8"), "gptq": PACKED, "awq": PACKED,
}  # fmt: skip
"""Formats that can be trained beside, by the method that a checkpoint names: those of bitsandbytes by whether
their scales are quantized again.
"""
OUTLIER_COLUMNS = 7
"""Columns of a layer's input that LLM.int8() multiplies unquantized: no more in any model up to 13 billion
parameters (arXiv:2208.07339, end of section 3.2: |O| <= 7). How many a run has depends on its data: none to
all of them.
"""
DEQUANTIZED = ("mxfp4", "fp8", "compressed-tensors")
"""Methods whose released weights are dequantized on load to be trained, to the dtype of the parameter that
they load into: ``dequantize=True`` of transformers 5.23.0's Mxfp4Config, FineGrainedFP8Config and
CompressedTensorsConfig (utils/quantization_config.py:1800, 1691, 1116; integrations/mxfp4.py:122,
integrations/finegrained_fp8.py:1189; quantizers/quantizer_mxfp4.py:211: mxfp4 itself does not train).
"""
FIXED_BLOCK = {"nf4": 64, "fp4": 64, "mxfp4": 32, "mxfp8": 32, "nvfp4": 16}
"""Elements that share a scale where the format leaves no choice (the sources stand with the dtypes)."""
GROUPED = ("int4", "awq-int4", "gptq-int4", "gptq-int8", "fp8", "fp8-block")
"""Formats whose group may be chosen; of fp8 it is the side of a square block."""

# dtypes that training and serving are modelled in, key by key; the vocabulary of plans knows more
COMMON_DTYPES = ("fp32", "fp16", "bf16")
PRECISION_DTYPES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("precision.parameters", "precision.compute", "precision.gradients", "precision.reduce"), COMMON_DTYPES),
    "precision.master_weights": ("fp32", "int16-remainder"), "precision.moments": (*COMMON_DTYPES, "int8"), "adapter.dtype": COMMON_DTYPES,
}  # fmt: skip
CACHE_DTYPES = (*COMMON_DTYPES, "fp8", "fp8_e5m2", "int8")

ALL_LINEAR = "all-linear"
"""peft's word for every linear layer but the head (target_modules); with transformers 5 the stacks of routed
experts and their routers too (peft 0.21.2 utils/transformers_weight_conversion.py:353, 369).
"""
# peft's TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
LORA_TARGETS = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "mixtral", "phi", "opt", "gptj"), ("q_proj", "v_proj")),
    **dict.fromkeys(("bloom", "gpt_neox", "falcon"), ("query_key_value",)),
    "gpt2": ("c_attn",), "phi3": ("qkv_proj",), "bert": ("query", "value"), "roberta": ("query", "value"), "xlm-roberta": ("query", "value"), "t5": ("q", "v"),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "olmo2", "granite", "starcoder2", "smollm3", "stablelm"), ("q_proj", "v_proj")),
}  # fmt: skip
# peft's TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING, and of its second mapping what is scaled on its
# way in (0.21.2 utils/constants.py:197-225, 249-277)
IA3_TARGETS = {
    **dict.fromkeys(("llama", "mistral"), ("k_proj", "v_proj", "down_proj")), "opt": ("q_proj", "k_proj", "fc2"),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "qwen2", "qwen3"), ("q_proj", "v_proj", "down_proj")),
    "gptj": ("q_proj", "v_proj", "fc_out"), "phi": ("q_proj", "v_proj", "fc2"),
    **dict.fromkeys(("gpt_neox", "falcon"), ("query_key_value", "dense_4h_to_h")), "t5": ("k", "v", "wo"),
}  # fmt: skip
# peft's TRANSFORMERS_MODELS_TO_ADALORA_TARGET_MODULES_MAPPING (0.21.2 utils/constants.py:279-306)
ADALORA_TARGETS = {
    **dict.fromkeys(("llama", "gptj", "gpt_neo", "gemma", "gemma2", "gemma3_text", "qwen2", "qwen3"), ("q_proj", "v_proj")),
    **dict.fromkeys(("bloom", "gpt_neox"), ("query_key_value",)), **dict.fromkeys(("gpt2", "gpt_bigcode"), ("c_attn",)),
    "opt": ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"), "bert": ("query", "value"), "roberta": ("query", "key", "value", "dense"),
    "t5": ("q", "k", "v", "o", "wi", "wo"), "nemotron_h": ("q_proj", "k_proj", "v_proj", "o_proj"),
}  # fmt: skip
# peft's TRANSFORMERS_MODELS_TO_LNTUNING_TARGET_MODULES_MAPPING (0.21.2 utils/constants.py)
LN_TARGETS = {
    **dict.fromkeys(("llama", "mistral", "gemma"), ("input_layernorm", "post_attention_layernorm", "norm")),
    **dict.fromkeys(("qwen2", "qwen3"), ("post_attention_layernorm",)), "gpt2": ("ln_1", "ln_2", "ln_f"), "gptj": ("ln_1", "ln_f"),
    "falcon": ("input_layernorm", "post_attention_layernorm", "ln_f"), "bloom": ("input_layernorm", "post_attention_layernorm", "ln_f"),
    "phi": ("input_layernorm", "final_layernorm"),
    **dict.fromkeys(("gemma2", "gemma3_text"), ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm", "norm")),
}  # fmt: skip
IA3_INPUTS = ("down_proj", "fc2", "fc_out", "dense_4h_to_h", "wo")
# transformers 5 stacks routed experts; peft takes their old names for the stacks, and no longer for dense or
# shared layers of that name (peft 0.21.2 utils/transformers_weight_conversion.py:330-352, transformers 5.23.0
# conversion_mapping.py:44-74)
STACKED_EXPERTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("minimax", "minimax_m2"), ("gate", "w1", "w3", "w2")),
    **dict.fromkeys(
        (
            "afmoe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "glm4v_moe",
            "longcat_flash", "solar_open", "mellum", "qwen3_moe", "qwen3_omni_moe", "qwen3_omni_moe_thinker", "qwen3_omni_moe_text", "qwen3_next",
            "hunyuan_v1_moe", "flex_olmo", "olmoe", "exaone_moe", "cohere2_moe", "beam",
        ),
        ("gate", "gate_proj", "up_proj", "down_proj"),
    ),
}  # fmt: skip
# the keys of a plan that change memory and are not accounted yet; any value but these is refused
UNMODELLED: dict[str, tuple[Any, ...]] = {
    "image_tokens": (0,), "compile": (False,), "sequence_parallel": (False,), "async_tp": (False,), "megatron_fsdp": (False,),
    "secondary_shard": (1,), "gradient_sync": (), "backward_prefetch": (), "forward_prefetch": (False,), "limit_all_gathers": (True,), "fp8.recipe": (), "fp8.param_storage": (False,), "fp8.all_gather": (False,),
    "allocator.max_split_size_mb": (), "allocator.empty_cache_every": (), "cuda_graphs": (False,), "serving.cuda_graphs": (False,),
    "serving.memory_fraction": (), "serving.page_tokens": (), "serving.max_batched_tokens": (), "adapter.full_modules": (),
    "moe.dispatch": (), "moe.capacity_factor": (), "serving.logical_batch": (), "serving.mla_mode": (0,), "serving.attn_max_batch": (0,), "serving.fused_moe": (),
    "serving.k_dtype": (), "serving.gpu_layers": (), "serving.host_experts": (0,), "serving.tensor_split": (), "serving.tensor_overrides": (), "serving.split_mode": (), "serving.main_gpu": (0,), "serving.kv_unified": (False,), "serving.swa_full": (False,), "serving.host_cache": (False,), "serving.dp_lm_head": (False,), "serving.dp_dense": (False,), "serving.dispatch": ("gather",), "serving.offline_inference": (False,), "serving.graph_sequences": (), "serving.state_slots": (), "serving.state_ratio": (), "serving.host_weights_gib": (0,), "serving.dcp": (1,), "serving.host_kv_gib": (0,), "serving.host_kv_ratio": (0,), "serving.kv_connector": (), "serving.kv_cache_bytes": (0,), "serving.kv_blocks": (0,), "serving.pool_tokens": (0,), "serving.attention_kernels": (), "serving.shared_prefix_tokens": (0,), "serving.max_loras": (0,), "serving.max_cpu_loras": (0,), "serving.fully_sharded_loras": (False,), "moe.balanced": (True,), "fp8.skip": ([], ()), "moe.pad_to_capacity": (), "moe.grouped_gemm": (), "moe.permute_fusion": (),
}  # fmt: skip

DESCRIPTIVE: dict[str, str] = {
    "schema": "names the vocabulary the plan is written in",
    "engine_version": (
        "is recorded; a few facts changed from one version to another, and the engine's file says which"
    ),
    "seq_len_kind": (
        "says whether lengths were exact or a bound where a figure was published; tensors are "
        "those of seq_len; only in ms-swift a maximum also says that the allocator meets "
        "other sizes at every step"
    ),
    "adapter.alpha": "scales the adapter's output and has no bytes",
    "adapter.trainable_parameters": "follows from rank and targets; a published count to compare with",
    "moe.balanced": "true is how routing is taken",
    "serving.output_tokens": (
        "beside a length only says where an answer ends; the cache is as long as max_model_len"
    ),
}
"""Keys that describe a job and cannot change a byte of it: accepted, recorded nowhere in the sheet, and
listed here so that it is known.
"""
NEEDS_RANK = (
    "adapter.kind", "adapter.targets", "adapter.dtype", "adapter.alpha", "adapter.dropout", "adapter.trainable_parameters",
    "adapter.full_modules", "adapter.prompt_length", "adapter.start_layer", "adapter.encoder_width", "adapter.block_size",
)  # fmt: skip
FUSED_TARGETS = {"qkv_proj": ("q_proj", "k_proj", "v_proj")}
"""Joined projections by the names of their parts: an adapter on one that the library's code has in parts is
for code that joins them, as Qwen's first code does (attn.c_attn, modeling_qwen.py of Qwen/Qwen-7B) and
Megatron's (linear_qkv).
"""
SERVED_ADAPTERS = (
    "adapter.rank",
    "adapter.targets",
    "adapter.kind",
    "serving.max_loras",
    "serving.max_cpu_loras",
)
"""Keys of adapters that a server keeps room for."""
PROMPTED = ("llama-adapter", "llama-adapter-v2")
# kinds of adapters that have no rank
RANKLESS = (
    *PROMPTED,
    "ia3",
    "oft",
    "ln-tuning",
    "prompt-tuning",
    "p-tuning",
    "prefix-tuning",
    "prefix-projection",
)
NEEDS_METHOD = ("speculative.model", "speculative.tokens", "speculative.tp")
NEEDS_WEIGHTS = (
    "quantization.group_size",
    "quantization.double_quant",
    "quantization.skip",
    "quantization.experts",
    "quantization.storage",
)

# keys that only the other task reads; any value but these is refused rather than ignored
_OF_TRAINING: dict[str, tuple[Any, ...]] = {
    "zero": (0,), "reshard_after_forward": (False,), "schedule": (), "image_tokens": (0,), "global_batch": (0,), "optimizer.name": (), "optimizer.implementation": (), "optimizer.rank": (),
    "recompute.mode": ("none",), "recompute.every": (), "recompute.layers": (), "recompute.segments": (), "recompute.reentrant": (False,), "loss": ("plain",), "optimizer_in_backward": (False,), "secondary_shard": (1,), "recompute.modules": (),
    "dropout": (0, 0.0), "adapter.rank": (), "adapter.targets": (), "adapter.kind": (), "adapter.full_modules": (), "adapter.prompt_length": (), "adapter.start_layer": (), "adapter.encoder_width": (), "adapter.block_size": (), "offload.optimizer": (0, 0.0), "offload.parameters": (0, 0.0),
    "offload.activations": (False,),
}  # fmt: skip
_OF_SERVING: dict[str, tuple[Any, ...]] = {
    "phase": (), **dict.fromkeys(("serving.max_model_len", "serving.max_sequences", "serving.kv_dtype", "serving.prompt_tokens", "serving.output_tokens", "serving.batch"), ()),
    "serving.max_loras": (0,), "serving.max_cpu_loras": (0,), "serving.fully_sharded_loras": (False,),
}  # fmt: skip
OTHER_TASK = {"infer": _OF_TRAINING, "train": _OF_SERVING}
