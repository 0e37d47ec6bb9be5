"""A ``trtllm-serve`` command in a script, and the YAML of TensorRT-LLM's LLM API, which the command names
(``--config``, ``--extra_llm_api_options``). Flags of NVIDIA/TensorRT-LLM 00209af1 commands/serve.py, keys of
llmapi/llm_args.py: what a file says is over the command's flags (serve.py, update_llm_args_with_extra_dict).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.formats.tensorrt_llm.written import (
    BESIDE,
    NOTES,
    WRITTEN,
    compose_trtllm_script,
    required_server_values,
    trtllm_plan_problems,
)
from memsheet.exchange.shared import serve_command as serving
from memsheet.exchange.shared import stand_in_server as beside
from memsheet.exchange.shared.file_format import Format, Key, Values, is_key
from memsheet.exchange.shared.here_documents import here_documents
from memsheet.exchange.shared.serve_command import Command
from memsheet.guard import parse_yaml

VERSION = "TensorRT-LLM 00209af1"
SERVE, ARGS = "commands/serve.py, serve", "llmapi/llm_args.py"
CONFIG, MOST_JSON = "extra_llm_api_options", 2**14
SHARE = beside.FREE_SHARE
GROUPS = "enable_attention_dp"
DRAFT = "speculative_config"
METHOD, NONE = f"{DRAFT}.decoding_type", "none"
METHODS = {"MTP": "mtp", "Eagle": "eagle3", "Eagle3": "eagle3", "NGram": "ngram", "Draft_Target": "draft"}
"""decoding_type by the methods of a plan; Eagle without a number is the third (EagleDecodingConfig,
eagle3_one_model).
"""
STORED = {
    "FP8": "fp8", "FP8_BLOCK_SCALES": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8", "NVFP4": "nvfp4", "W4A16_AWQ": "awq-int4", "W4A16_GPTQ": "gptq-int4",
}  # fmt: skip
OTHER_COMMANDS = ("disaggregated", "disaggregated_mpi_worker", "mm_embedding_serve", "grpc", "embeddings")
HOW = Command(
    model="--model", package="tensorrt-llm", image="", partition="", dashed=True,
    launches=(("trtllm-serve", "serve"), ("trtllm-serve",), ("python", "-m", "dynamo.trtllm")),
    aliases={
        "--tp-size": "--tensor-parallel-size", "--pp-size": "--pipeline-parallel-size", "--cp-size": "--context-parallel-size",
        "--ep-size": "--moe-expert-parallel-size", "--expert-parallel-size": "--moe-expert-parallel-size",
        "--kv-cache-free-gpu-memory-fraction": "--free-gpu-memory-fraction", "--config": "--extra-llm-api-options", "--extra-engine-args": "--extra-llm-api-options",
        "--model-path": "--model", "--cluster-size": "--moe-cluster-parallel-size", "-tp": "--tensor-parallel-size",
    },
    switches=frozenset({"--fail-fast-on-attention-window-too-large", GROUPS, "--publish-events-and-metrics", "--use-nixl-connect"}),
    words=frozenset({"--served-model-name", "--override-engine-args", "--revision", "--tokenizer"}),
)  # fmt: skip
PLACED = {
    "free_gpu_memory_fraction": SHARE,
    "kv_block_size": "kv_cache_config.tokens_per_block",
    "model": "model",
}
"""Flags that stand elsewhere in a file."""


def _parse_trtllm_command(text: str) -> Mapping[str, Any]:
    """The command's flags at the places that the file has for them."""
    if "trtllm" not in text:
        return {}
    weighed = [*(f"--{key.at.replace('_', '-')}" for key in KEYS), "--free-gpu-memory-fraction"]
    found = serving.parse_server_command(HOW, text, weighed)
    if not found or found[HOW.model] in OTHER_COMMANDS:
        return {}
    said = dict(_placed_flags(found))
    said |= _written_options(text, said.get(CONFIG))
    over = _override_keys(said.pop("override_engine_args", None))
    return _with_remarks({**said, **over})


def _written_options(text: str, file: Any) -> Mapping[str, Any]:
    """The keys of a file that the script writes itself before it names it."""
    written = here_documents(text).get(str(file).rpartition("/")[2]) if file else None
    try:
        held = parse_yaml(written, CONFIG) if written else None
    except ValueError:  # text with places that the script fills in
        return {}
    return {**_flat_places(held), CONFIG: None} if isinstance(held, Mapping) else {}


def _placed_flags(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for at, value in found.items():
        name = at.removeprefix("--").replace("-", "_") if at.startswith("--") else at
        yield PLACED.get(name, name), value


def _override_keys(text: Any) -> Mapping[str, Any]:
    """Keys that Dynamo's worker is given as an object, over all others."""
    try:
        held = json.loads(text) if isinstance(text, str) and len(text) <= MOST_JSON else {}
    except (ValueError, RecursionError):
        return {}
    return _flat_places(held) if isinstance(held, Mapping) else {}


def _flat_places(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for at, value in tree.items():
        nested = isinstance(value, Mapping) and value
        found |= _flat_places(value, f"{before}{at}.") if nested else {f"{before}{at}": value}
    return found


def _trtllm_options(text: str) -> Mapping[str, Any]:
    """Keys of a YAML file of the LLM API; the command may name the model. One that nothing but it has, or
    several.
    """
    held = parse_yaml(text, CONFIG) if any(name in text for name in OWN) else None
    if not isinstance(held, Mapping):
        return {}
    said = _flat_places(held)
    groups = {at.partition(".")[0] for at in said if is_key(FORMAT, _renamed_place(at))}
    sure = groups & OWN or len(groups & COMMON) > 2
    alone = sure and not {"apiVersion", "services", "model_name_or_path"} & held.keys()
    return _with_remarks({"model": None, **said}) if alone else {}


def _with_remarks(said: Mapping[str, Any]) -> dict[str, Any]:
    """The values with whose accounting they are given; graphs that are off as a word, and a draft that is not
    accounted beside attention by requests as one value.
    """
    values = {_renamed_place(at): held for at, held in said.items()}
    if "cuda_graph_config" in values and values["cuda_graph_config"] is None:
        values["cuda_graph_config"] = NONE
    if values.get(GROUPS) is True and isinstance(method := values.get(METHOD), str):
        values = {at: held for at, held in values.items() if not at.startswith(f"{DRAFT}.")}
        values[DRAFT] = f"{method} beside {GROUPS}"
    return {**values, beside.ACCOUNTING: "TensorRT-LLM"}


def _renamed_place(at: str) -> str:
    older = {"kv_cache_free_gpu_memory_fraction": SHARE, "free_gpu_memory_fraction": SHARE}
    return older.get(at, at)


def _read_tensor_parallel(value: Any, values: Values) -> Mapping[str, Any]:
    """Ranks of tensor parallelism, which with attention by requests are as many groups of it
    (mapping.py, Mapping: dp_size).
    """
    return {"mesh.tp": value, **({"mesh.attn_dp": value} if values.get(GROUPS) is True else {})}


def _read_pipeline_parallel(value: Any, values: Values) -> Mapping[str, Any]:
    ranks = values.get("tensor_parallel_size", 1)
    whole = all(isinstance(size, int) and not isinstance(size, bool) for size in (value, ranks))
    return {"mesh.pp": value, **({"@gpus": value * ranks} if whole and value * ranks > 1 else {})}


def _read_expert_parallel(value: Any, _: Values) -> Mapping[str, Any]:
    return {"mesh.ep": value} if value not in (-1, 0) else {}


def _read_cache_dtype(value: Any, _: Values) -> Mapping[str, Any]:
    words = {"fp8": "fp8", "nvfp4": "nvfp4", "bfloat16": "bf16", "float16": "fp16"}
    return {"serving.kv_dtype": words.get(str(value), str(value))}


def _read_graphs(value: Any, _: Values) -> Mapping[str, Any]:
    return {"serving.cuda_graphs": value != NONE}


def _read_method(value: Any, values: Values) -> Mapping[str, Any]:
    method = METHODS.get(str(value), str(value))
    draft = values.get(f"{DRAFT}.speculative_model") or values.get(f"{DRAFT}.speculative_model_dir")
    named = {"speculative.model": str(draft)} if draft and method not in ("mtp", "ngram") else {}
    return {"speculative.method": method, **named}


def _read_draft_tokens(value: Any, values: Values) -> Mapping[str, Any]:
    return {"speculative.tokens": value} if METHOD in values else {}


def _option_row(at: str, says: str = "", **more: Any) -> Key:
    more.setdefault("source", SERVE if says else ARGS)
    return Key(at=at, says=says, out=WRITTEN.get(at, lambda _: None), **more)


KEYS = (
    beside.stand_in_row(),
    _option_row("model", "@model", back=lambda v, _: {"@model": str(v)}),
    _option_row("tensor_parallel_size", "mesh.tp", back=_read_tensor_parallel, usual=1),
    _option_row("pipeline_parallel_size", "mesh.pp", back=_read_pipeline_parallel, usual=1),
    _option_row("moe_expert_parallel_size", "mesh.ep", back=_read_expert_parallel, usual=1),
    _option_row(GROUPS, back=lambda *_: {}, usual=False),
    _option_row("dtype", back=serving.dtype_back),
    _option_row("quant_config.quant_algo", back=lambda v, _: {"quantization.weights": STORED.get(str(v), str(v))}),
    _option_row("max_batch_size", "serving.max_sequences", usual=2048, source="llmapi/llm_args.py, BuildConfig"),
    _option_row("max_num_tokens", "serving.max_batched_tokens", usual=8192, source="llmapi/llm_args.py, BuildConfig"),
    _option_row("max_seq_len", "serving.max_model_len"),
    _option_row(SHARE, back=beside.cache_share, usual=0.9, source=f"{ARGS}, KvCacheConfig"),
    _option_row("kv_cache_config.dtype", back=_read_cache_dtype),
    _option_row("kv_cache_config.tokens_per_block", "serving.page_tokens", usual=32, source=f"{ARGS}, KvCacheConfig"),
    _option_row("cuda_graph_config", back=_read_graphs),
    _option_row(METHOD, back=_read_method),
    _option_row(f"{DRAFT}.max_draft_len", back=_read_draft_tokens),
    _option_row(f"{DRAFT}.num_nextn_predict_layers", back=_read_draft_tokens),
    _option_row(f"{DRAFT}.speculative_model", back=lambda *_: {}),
    _option_row(f"{DRAFT}.speculative_model_dir", back=lambda *_: {}),
)  # fmt: skip
_KNOWN = """
tokenizer custom_tokenizer tokenizer_mode skip_tokenizer_init host port backend log_level max_beam_width gpus_per_node num_postprocess_workers
postprocess_tokenizer_dir trust_remote_code revision tokenizer_revision reasoning_parser tool_parser metadata_server_config_file server_role
fail_fast_on_attention_window_too_large otlp_traces_endpoint disagg_cluster_uri enable_chunked_prefill media_io_kwargs chat_template custom_module_dirs
print_iter_log stream_interval enable_iter_perf_stats enable_iter_req_stats return_perf_metrics perf_metrics_max_requests disable_overlap_scheduler
scheduler_config.* batch_wait_timeout_ms batch_wait_timeout_iters batch_wait_max_tokens_ratio attention_dp_config.* guided_decoding_backend max_input_len
enable_autotuner iter_stats_max_iterations request_stats_max_iterations load_format garbage_collection_gen0_threshold orchestrator_type
cuda_graph_config.enable_padding cuda_graph_config.batch_sizes cuda_graph_config.max_batch_size moe_config.backend moe_config.max_num_tokens
moe_config.use_low_precision_moe_combine moe_config.disable_finalize_fusion nvfp4_gemm_config.* attn_backend allreduce_strategy use_torch_sampler
sampler_type torch_compile_config torch_compile_config.* kv_cache_config.enable_block_reuse kv_cache_config.enable_partial_reuse
kv_cache_config.copy_on_partial_reuse kv_cache_config.host_cache_size kv_cache_config.onboard_blocks kv_cache_config.event_buffer_max_size
kv_cache_config.secondary_offload_min_priority kv_cache_config.attention_dp_events_gather_period_ms kv_cache_config.mamba_ssm_cache_dtype
kv_cache_config.mamba_ssm_stochastic_rounding kv_cache_config.mamba_ssm_philox_rounds cache_transceiver_config.* speculative_config.eagle3_one_model
speculative_config.allow_advanced_sampling speculative_config.use_relaxed_acceptance_for_thinking speculative_config.relaxed_topk
speculative_config.relaxed_delta speculative_config.max_matching_ngram_size speculative_config.eagle3_layers_to_capture
speculative_config.max_concurrency speculative_config.num_eagle_layers enable_min_latency moe_tensor_parallel_size num_nodes
enable_layerwise_nvtx_marker mm_encoder_only env_overrides.* build_config.* served_model_name disaggregation_mode disaggregation_strategy
publish_events_and_metrics modality dyn_tool_call_parser dyn_reasoning_parser use_nixl_connect request_plane endpoint namespace
"""
"""Of the server and its logs, of who is served first, of host memory; and kernels and buffers, which are
among what the sheet has of another's accounting.
"""
_UNMODELLED: dict[str, tuple[Any, ...]] = {
    DRAFT: (), "context_parallel_size": (1,), "cp_config": (), "moe_cluster_parallel_size": (1, -1), "moe_config.load_balancer": (), "lora_config": (), "enable_lora": (False,),
    "kv_cache_config.max_tokens": (), "kv_cache_config.max_gpu_total_bytes": (), "kv_cache_config.max_attention_window": (),
    "kv_cache_config.sink_token_length": (), "kv_cache_config.use_uvm": (False,), "sparse_attention_config.algorithm": (),
    "quant_config.kv_cache_quant_algo": (), "lora_config.max_lora_rank": (), "lora_config.lora_dir": (),
    "lora_config.max_loras": (), "encoder_model": (), "peft_cache_config": (), "weight_streaming": (False,), "fast_build": (False,),
}  # fmt: skip
OWN = frozenset(
    {"kv_cache_config", "cuda_graph_config", "moe_config", "enable_attention_dp", "cache_transceiver_config", "kv_cache_free_gpu_memory_fraction"}
)  # fmt: skip
"""Keys that nothing but the LLM API has."""
COMMON = frozenset(
    {"tensor_parallel_size", "max_batch_size", "max_num_tokens", "max_seq_len", "backend", "print_iter_log"}
)

FORMAT: Format = Format(
    name="tensorrt-llm", file="trtllm-serve.sh", kind="shell", tested=VERSION, engines=("vllm",), keys=KEYS, marks=frozenset({"model"}), needs={beside.ACCOUNTING: "TensorRT-LLM"},
    known=frozenset({*_KNOWN.split(), CONFIG, "version"}), unmodelled={**serving.OPEN_PLACES, **_UNMODELLED}, said={"task": "infer", "engine": "vllm"},
    taken=serving.variable_default_remarks, parse=_parse_trtllm_command, also=_trtllm_options, refers=(CONFIG,),
    fixed=required_server_values, problems=trtllm_plan_problems, compose=compose_trtllm_script, notes=NOTES, beside=serving.BESIDE | BESIDE,
)  # fmt: skip
