"""A ``vllm serve`` command in a script: ``bash vllm.sh --port 8000``. Flags of v0.33.0; paths are within
vllm/.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange.shared import compilation_config as graphs
from memsheet.exchange.shared import host_caches
from memsheet.exchange.shared import serve_adapters as adapters
from memsheet.exchange.shared import serve_command as serving
from memsheet.exchange.shared import serve_drafts as drafts
from memsheet.exchange.shared.allocator_env import allocator_conf_rows
from memsheet.exchange.shared.attention_backends import attention_row
from memsheet.exchange.shared.file_format import Format, Key, Values, is_key
from memsheet.exchange.shared.flag_abbreviations import whole_names
from memsheet.exchange.shared.rotary_overrides import rotary_place, with_rotary_overrides
from memsheet.exchange.shared.serve_command import Command
from memsheet.exchange.shared.serve_script import DEMO_MODULE, ENGINE_MODULE, OFFLINE_MODULE
from memsheet.exchange.shared.serve_script import VERSION as RELEASE
from memsheet.guard import parse_yaml
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

with late_functions(__name__):
    from memsheet.exchange.shared.generation_settings import served_settings
    from memsheet.exchange.shared.serve_releases import vllm_of


VERSION = "vLLM 0.33.0"
CONFIG, OVERRIDES = "--config", "--hf-overrides"
DEEPEP = "deepep_high_throughput"
EXPERTS, EAGER, LAYERS = "--enable-expert-parallel", "--enforce-eager", "VLLM_PP_LAYER_PARTITION"
QUANTIZED = {"fp8": "fp8", "mxfp8": "mxfp8"}
"""Formats that weights of sixteen bits are brought into as they are loaded; the others are a checkpoint's
own, which needs no flag.
"""
READ = {
    **{name: plan for plan, name in QUANTIZED.items()},
    **dict.fromkeys(("awq", "awq_marlin"), "awq-int4"),
    **dict.fromkeys(("gptq", "gptq_marlin"), "gptq-int4"),
    "auto_awq": "awq-int4",
    "bitsandbytes": "nf4",
    "fp8_per_tensor": "fp8",
}
OFFLINE, V1 = "usage context", "VLLM_USE_V1"
BACKEND, ESTIMATE = "VLLM_ATTENTION_BACKEND", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
"""Places of what makes the engine where that is no server, and of the variable that chose the older engine
until v0.11 (v0.8.5 envs.py); variables of the attention's backend (v0.11.0 envs.py) and of what is left for
CUDA graphs (v0.20.2 envs.py:1736).
"""
_BACKENDS = {
    "FLASH_ATTN": "flash",
    "FLASHINFER": "flashinfer",
    "TRITON_ATTN": "triton",
    "FLASH_ATTN_VLLM_V1": "flash",
    "FLASHINFER_VLLM_V1": "flashinfer",
    "TRITON_ATTN_VLLM_V1": "triton",
}
BACKENDS = {**_BACKENDS, **{name.lower(): plan for name, plan in _BACKENDS.items()}}
"""Backends of attention whose buffers are accounted, by their names and those of the first releases of the
engine (v0.11.0 platforms/interface.py), in either case (config/attention.py, validate_backend_before).
"""
_PROGRAM = late_pattern(r"\bvllm serve\b|\bvllm\.(?:entrypoints|v1\.engine)\.[\w.]+")
_RELEASE = late_pattern(r"(\d+)\.(\d+)")
ENGINE_SINCE, ENGINE_DEFAULTS = (0, 8), {"?serving.max_sequences": 128, "?serving.max_batched_tokens": 2048}
"""What an engine that a script makes itself takes on every card, as its context is none of those that have
defaults of their own (v0.33.0 v1/engine/async_llm.py:283 ENGINE_CONTEXT, engine/arg_utils.py:3171,
config/scheduler.py:41-43; v0.11.0 config/scheduler.py:169-173).
"""
HOW = Command(
    model="--model", package="vllm", image="vllm/vllm-openai", partition=LAYERS, dashed=True,
    launches=(("vllm", "serve"), ("python", "-m", "vllm.entrypoints.openai.api_server"), ("python", "-m", "vllm.entrypoints.cli.main", "serve"), ("python", "-m", "dynamo.vllm"), ("python", "-m", OFFLINE_MODULE), ("python", "-m", ENGINE_MODULE), ("python", "-m", DEMO_MODULE)),
    variables={**host_caches.VLLM_VARIABLES, V1: V1, BACKEND: "--attention-backend", ESTIMATE: ESTIMATE},
    aliases={
        **drafts.VLLM_ALIASES, "-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size", "-q": "--quantization",
        "-n": "--nnodes", "-r": "--node-rank", "-sc": "--speculative-config", "-cc": "--compilation-config", "-ac": "--attention-config",
        "-ep": EXPERTS, "-dpl": "--data-parallel-size-local", "-dcp": "--decode-context-parallel-size", "-pcp": "--prefill-context-parallel-size",
        "-asc": "--api-server-count", "--device-memory-utilization": "--gpu-memory-utilization", "-dc": "--diffusion-config", "-O": "--optimization-level",
    },
    switches=frozenset({
        EAGER, "--use-replayssm", "--async-scheduling", "--cudagraph-metrics", "--kv-cache-metrics", "--kv-sharing-fast-prefill", "--language-model-only", "--mm-encoder-only",
        "--ray-workers-use-nsight", "--return-sampling-mask", "--scheduler-reserve-full-isl", "--sleep-mode-offload-cudagraph", "--specialize-active-lora",
        "--headless", "--grpc", "--numa-bind", "--allow-credentials", "--return-tokens-as-token-ids", "--tokens-only", "--aggregate-engine-logging",
    }),
    lists=adapters.LISTS | {graphs.SIZES}, objects=frozenset({drafts.CONFIG, graphs.CONFIG}), words=frozenset({"--served-model-name", "--api-key", "--hf-token", "--revision", "--tokenizer"}),
)  # fmt: skip


def _parse_vllm_command(text: str) -> Mapping[str, Any]:
    """The command's flags; "auto" of a length is -1 (utils/argparse_utils.py:77), and elsewhere nothing."""
    found = dict(
        graphs.expand_compilation_config(
            drafts.expand_speculative_config(
                serving.parse_server_command(HOW, text, (key.at for key in KEYS))
            )
        )
    )
    found |= drafts.speculative_config_of_older_flags(found)
    program = _PROGRAM.search(text) if found else None
    if program is not None and program[0] == OFFLINE_MODULE:
        found[OFFLINE] = "llm_class"
    if program is not None and program[0] in (ENGINE_MODULE, DEMO_MODULE):
        found[OFFLINE] = "engine_context"
    if found.get("--max-model-len") == "auto":
        found["--max-model-len"] = -1
    said = {at: value for at, value in found.items() if value != "auto"}
    said = dict(with_rotary_overrides(said, OVERRIDES, "--max-model-len"))
    return serving.without_worker_flags(text, serving.as_typed(said, _is_flag), _is_flag)


def _is_flag(at: str) -> bool:
    return is_key(FORMAT, at)


IN_A_FILE = (
    "tensor",
    "max",
    "gpu",
    "served",
    "kv-cache",
    "pipeline",
    "data-parallel",
    "dtype",
    "quantization",
    "enforce",
)
"""How flags begin of which a file of ``--config`` has at least two."""


def _in_a_file(text: str) -> Mapping[str, Any]:
    """Flags of a YAML file that ``--config`` names, without their dashes (utils/argparse_utils.py,
    load_config_file); the command may name the model. Nothing of a file most of whose keys are no flags,
    or that has groups below such keys: it is somebody's own, which has words in common.
    """
    held = (
        parse_yaml(text, CONFIG) if any(f"{name}-" in text.replace("_", "-") for name in IN_A_FILE) else None
    )
    if not isinstance(held, Mapping):
        return {}
    said = (
        _flag_of_file(str(at).replace("_", "-"), value) for at, value in held.items() if value is not False
    )
    flags = dict(said)
    own = [at for at in flags if at[2:].startswith(IN_A_FILE) and is_key(FORMAT, at)]
    strange = [at for at in flags if not is_key(FORMAT, at)]
    whole = "--model" in flags and not strange
    if 2 * len(strange) > len(flags) or any(isinstance(flags[at], Mapping) for at in strange):
        return {}
    return (
        {"--model": None, **{at: value for at, value in flags.items() if value != "auto"}}
        if len(own) > 1 or (own and whole)
        else {}
    )


def _flag_of_file(name: str, value: Any) -> tuple[str, Any]:
    """A flag of a file: what is true is the bare flag, of which each switch has one that begins with no-, and
    what is false is passed over (utils/argparse_utils.py, load_config_file).
    """
    on = f"--{name.removeprefix('no-')}"
    return (
        (on, False)
        if value is True and name.startswith("no-") and is_key(FORMAT, on)
        else (f"--{name}", value)
    )


def _shares_experts_over_dp(values: Values) -> bool:
    """Whether the ranks of data parallelism are said to share experts, dealt or cut: else that is the model's
    to say, which may have none.
    """
    size = values.get("--data-parallel-size")
    return EXPERTS in values and isinstance(size, int) and size > 1 and _tp_dp_rank_count(values) > 1


def _read_tensor_parallel_size(value: Any, values: Values) -> Mapping[str, Any]:
    if value == serving.ALL_CARDS:
        return {}
    return {"mesh.tp": _tp_dp_rank_count(values) if _shares_experts_over_dp(values) else value}


def _read_data_parallel_size(value: Any, values: Values) -> Mapping[str, Any]:
    """Ranks that share experts are groups of one server; others are servers of their own
    (v1/engine/core.py:1552).
    """
    return (
        {"mesh.attn_dp": value, "mesh.dp_replicate": 1}
        if _shares_experts_over_dp(values)
        else {"mesh.dp_replicate": value}
    )


def _read_all2all_backend(value: Any, _: Values) -> Mapping[str, Any]:
    """How tokens reach experts; other ways than these two are refused by their names."""
    return {
        "serving.dispatch": {DEEPEP: "deepep", "allgather_reducescatter": "gather"}.get(
            str(value), str(value)
        )
    }


def _read_data_parallel_local(value: Any, values: Values) -> Mapping[str, Any]:
    """Ranks of data parallelism on one node, and so the nodes."""
    size = values.get("--data-parallel-size", 1)
    whole = isinstance(value, int) and isinstance(size, int) and value > 0 and size % value == 0
    return {"@nodes": size // value} if whole else {"@nodes": value}


def _tp_dp_sizes(asked: Values) -> tuple[int, int]:
    """Ranks of tensor and of data parallelism."""
    groups = asked.get("mesh.attn_dp", 1)
    return asked.get("mesh.tp", 1) // groups, groups * asked.get("mesh.dp_replicate", 1)


def _expert_parallel_switch(asked: Values) -> Any:
    """Said where it is on, and where it is off and ranks of data parallelism cut their experts together."""
    return True if asked.get("mesh.ep", 1) > 1 else False if asked.get("mesh.attn_dp", 1) > 1 else None


def _tp_dp_rank_count(values: Values) -> int:
    sizes = [values.get(f"--{axis}-parallel-size", 1) for axis in ("tensor", "data")]
    return sizes[0] * sizes[1] if all(isinstance(size, int) for size in sizes) else 1


def _read_pipeline_parallel_size(value: Any, values: Values) -> Mapping[str, Any]:
    """Stages, and the GPUs that the command takes in all."""
    known = isinstance(value, int) and not isinstance(value, bool)
    return {"mesh.pp": value, **({"@gpus": value * _tp_dp_rank_count(values)} if known else {})}


def _read_expert_parallel_switch(value: Any, values: Values) -> Mapping[str, Any]:
    """Whole experts over the ranks of tensor and data parallelism, or none
    (layers/fused_moe/config.py:1226-1242).
    """
    return {"mesh.ep": _tp_dp_rank_count(values) if value is True else 1}


CHUNKED, WHOLE_PROMPTS, LARGEST_BATCH = "--enable-chunked-prefill", "prompts", 8192
"""The larger of the engine's own batches (get_batch_defaults)."""


def _read_chunked_prefill(value: Any, values: Values) -> Mapping[str, Any]:
    """Prompts that are read whole make the batch that the engine chooses as long as one."""
    length = values.get("--max-model-len")
    if value is not False or not isinstance(length, int) or "--max-num-batched-tokens" in values:
        return {}
    return {"serving.max_batched_tokens": max(length, LARGEST_BATCH)}


def _read_usage_context(value: Any, values: Values) -> Mapping[str, Any]:
    """What makes the engine: the class that generates offline, or a script with the engine's arguments."""
    if value != "engine_context":
        return {"serving.offline_inference": True}
    first = values.get(V1) == 0 or (
        (told := _RELEASE.search(str(values.get(RELEASE, ""))))
        and (int(told[1]), int(told[2])) < ENGINE_SINCE
    )
    return {} if first else ENGINE_DEFAULTS


def _whole_prompts_of_the_model(values: Values) -> Mapping[str, Any]:
    """Prompts that are read whole, of a length that is the model's to say."""
    said = any(at in values for at in ("--max-model-len", "--max-num-batched-tokens"))
    return (
        {WHOLE_PROMPTS: "read whole, as long as the model allows"}
        if values.get(CHUNKED) is False and not said
        else {}
    )


def _vllm_plan_problems(asked: Values) -> Iterator[Problem]:
    yield from serving.unservable_problems(asked)
    yield from adapters.no_room(asked)
    if asked.get("@nodes", 1) > 1:
        yield Problem(
            field="nodes", value=asked["@nodes"], reason="is not one command", hint="a plan of one node"
        )
    apart = asked.get("mesh.dp_replicate", 1)
    if apart > 1 and (asked.get("mesh.attn_dp", 1) > 1 or asked.get("@experts")):
        reason = "are servers of their own, and the ranks of one command share their experts"
        yield Problem(
            field="mesh.dp_replicate",
            value=apart,
            reason=reason,
            hint="the plan of one of them, started as often; or --attn-dp",
        )


KEYS = (
    *serving.PLACES,
    Key(at="--model", says="@model", back=lambda v, _: {"@model": str(v)}, source="entrypoints/common/cli_args.py:439, engine/arg_utils.py:969"),
    Key(
        at="--tensor-parallel-size", out=lambda a: _tp_dp_sizes(a)[0], back=_read_tensor_parallel_size, usual=1, source="engine/arg_utils.py:1209, config/parallel.py:142",
    ),
    Key(at="--pipeline-parallel-size", says="mesh.pp", back=_read_pipeline_parallel_size, usual=1, source="engine/arg_utils.py:1171, config/parallel.py:140"),
    Key(
        at="--data-parallel-size", out=lambda a: _tp_dp_sizes(a)[1], back=_read_data_parallel_size, usual=1, source="engine/arg_utils.py:1241, config/parallel.py:147",
    ),
    Key(at="--data-parallel-size-local", out=lambda _: None, back=_read_data_parallel_local, source="engine/arg_utils.py:1241, config/parallel.py:150"),
    Key(at="--nnodes", says="@nodes", out=lambda _: None, source="config/parallel.py, nnodes"),
    Key(
        at=EXPERTS, out=_expert_parallel_switch, back=_read_expert_parallel_switch, usual=False, source="engine/arg_utils.py:1305, config/parallel.py:190"
    ),
    Key(
        at="--all2all-backend", out=lambda a: DEEPEP if a.get("serving.dispatch") == "deepep" else None, back=_read_all2all_backend,
        source="engine/arg_utils.py:1318, config/parallel.py:220",
    ),
    *allocator_conf_rows(),
    *adapters.VLLM_KEYS,
    *drafts.VLLM_KEYS,
    *graphs.KEYS,
    *host_caches.VLLM_KEYS,
    Key(
        at="--decode-context-parallel-size", out=lambda a: a["serving.dcp"] if a.get("serving.dcp", 1) > 1 else None,
        back=lambda v, _: {} if v == 1 else {"serving.dcp": v}, source="config/parallel.py:389, config/model.py:1578",
    ),
    Key(at=LAYERS, out=serving.partition_out, back=serving.partition_back, source="envs.py:893, distributed/utils.py:214"),
    Key(at="--dtype", out=serving.dtype_out, back=serving.dtype_back, source="engine/arg_utils.py:977, config/model.py:200"),
    Key(
        at="--quantization", out=lambda a: QUANTIZED.get(a.get("quantization.weights", "")),
        back=serving.quantization_back(READ), decides=serving.MIXED_FORMATS, source="engine/arg_utils.py:992, layers/quantization/__init__.py",
    ),
    Key(at="--max-model-len", says="serving.max_model_len", decides=(-1,), source="engine/arg_utils.py:991, config/model.py:249"),
    Key(at="--max-num-seqs", says="serving.max_sequences", source="engine/arg_utils.py:1754, 2973"),
    Key(at=OFFLINE, out=lambda _: None, back=_read_usage_context, source="usage/usage_lib.py, UsageContext"),
    Key(at="--max-num-batched-tokens", says="serving.max_batched_tokens", source="engine/arg_utils.py:1740, 2973"),
    Key(at=CHUNKED, out=lambda _: None, back=_read_chunked_prefill, source="engine/arg_utils.py, _set_default_max_num_seqs_and_batched_tokens_args"),
    Key(
        at="--cpu-offload-gb", out=lambda a: a.get("serving.host_weights_gib"), back=lambda v, _: {"serving.host_weights_gib": v} if v else {},
        source="config/offload.py, cpu_offload_gb",
    ),
    Key(at="--gpu-memory-utilization", says="serving.memory_fraction", source="engine/arg_utils.py:1389, config/cache.py:215"),
    Key(
        at="--kv-cache-dtype", out=lambda a: {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8", "fp8_e5m2": "fp8_e5m2"}.get(a.get("serving.kv_dtype", "")),
        back=serving.cache_back(("fp8", "fp8_e4m3", "fp8_inc")), source="engine/arg_utils.py:1397, config/cache.py:42",
    ),
    attention_row(BACKENDS, "vLLM", "engine/arg_utils.py, attention_backend; v1/attention/backends/registry.py"),
    Key(at="--block-size", says="serving.page_tokens", source="engine/arg_utils.py:1387, config/cache.py:187"),
    Key(
        at="--kv-cache-memory-bytes", out=lambda a: a.get("serving.kv_cache_bytes"), back=lambda v, _: {"serving.kv_cache_bytes": v} if v else {},
        source="engine/arg_utils.py:1395, config/cache.py:374",
    ),
    Key(
        at="--num-gpu-blocks-override", out=lambda a: a.get("serving.kv_blocks"), back=lambda v, _: {"serving.kv_blocks": v} if v else {},
        source="engine/arg_utils.py:1399, config/cache.py:251",
    ),
    Key(
        at=EAGER, out=lambda a: True if a.get("serving.cuda_graphs") is False else None, back=lambda v, _: {"serving.cuda_graphs": v is not True},
        usual=False, source="engine/arg_utils.py:1000, config/model.py:276",
    ),
)  # fmt: skip

_KNOWN = """
tokenizer tokenizer-mode trust-remote-code seed hf-config-path allowed-local-media-path allowed-media-domains revision code-revision
tokenizer-revision allow-deprecated-quantization max-logprobs logprobs-mode use-fp64-gumbel enable-trace-replay disable-cascade-attn
skip-tokenizer-init served-model-name config-format hf-token generation-config override-generation-config model-impl logits-processors
io-processor-plugin renderer-num-workers load-format download-dir safetensors-load-strategy safetensors-prefetch-num-threads
safetensors-prefetch-block-size model-loader-extra-config ignore-patterns use-tqdm-on-load pt-load-map-location reasoning-parser
reasoning-parser-plugin distributed-executor-backend master-addr master-port node-rank distributed-timeout-seconds cpu-distributed-timeout-seconds
numa-bind numa-bind-nodes numa-bind-cpus device-ids dcp-comm-backend cp-kv-cache-interleave-size dcp-kv-cache-interleave-size data-parallel-rank
data-parallel-start-rank data-parallel-address data-parallel-rpc-port data-parallel-backend data-parallel-hybrid-lb data-parallel-external-lb
data-parallel-multi-port-external-lb enable-ep-weight-filter dp-sync-interval disable-nccl-for-dp-synchronization expert-placement-strategy
max-parallel-loading-workers ray-workers-use-nsight disable-custom-all-reduce enable-fault-tolerance fault-tolerance-config enable-prefix-caching
prefix-caching-hash-algo prefix-cache-retention-interval prefix-match-unit media-io-kwargs
mm-processor-cache-gb mm-processor-cache-type mm-hasher-algorithm mm-shm-cache-max-object-size-mb interleave-mm-strings logging-config log-level
log-config-file show-hidden-metrics-for-version otlp-traces-endpoint collect-detailed-traces per-request-spec-decode-metrics kv-cache-metrics
kv-cache-metrics-sample custom-histogram-buckets cudagraph-metrics enable-layerwise-nvtx-tracing enable-mfu-metrics
enable-logging-iteration-details jit-monitor-mode jit-monitor-verbose max-num-queued-reqs max-num-queued-tokens long-prefill-token-threshold
long-prefill-token-threshold-adaptive scheduling-policy disable-chunked-mm-input scheduler-cls watermark prefill-schedule-interval
stream-interval ir-op-priority kv-events-config structured-outputs-config profiler-config watchdog-config disable-log-stats
aggregate-engine-logging fail-on-environ-validation shutdown-timeout enable-log-requests chat-template chat-template-content-format
trust-request-chat-template default-chat-template-kwargs response-role return-tokens-as-token-ids enable-auto-tool-choice
exclude-tools-when-tool-choice-none tool-call-parser tool-parser-plugin tool-strict-level tool-server max-log-len enable-prompt-tokens-details
enable-per-request-metrics enable-server-load-tracking enable-force-include-usage sse-keep-alive-interval enable-tokenizer-info-endpoint
enable-log-outputs enable-log-deltas log-error-stack tokens-only host port grpc-port data-parallel-supervisor-port uds uvicorn-log-level
disable-uvicorn-access-log disable-access-log-for-endpoints allow-credentials allowed-origins allowed-methods allowed-headers api-key ssl-keyfile
ssl-certfile ssl-ca-certs enable-ssl-refresh ssl-cert-reqs ssl-ciphers root-path middleware enable-request-id-headers disable-fastapi-docs
lora-modules enable-offline-docs headless api-server-count grpc
"""
"""Of the server and its logs, of names and files, of who is served first: no byte of a GPU."""
_OTHERS = """
anthropic-disabled-thinking-effort aux-output-config cohere-format cohere-is-reasoning-model dbo-decode-token-threshold
dbo-prefill-token-threshold dcp-q-replicate dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s
dp-supervisor-probe-timeout-s ec-manager-config enable-cumem-allocator enable-flash-late-interaction enable-flashinfer-autotune
enable-mamba-cache-stochastic-rounding enable-mamba-shared-prefix-checkpoint enable-mixed-moe-lora-format enable-mm-embeds
enable-moe-shared-loras enable-nccl-comm-suspend enable-return-routed-experts enable-scale-out enable-shm-tensor-arena
enable-tower-connector-lora engram-config fingerprint-mode fingerprint-value gdn-prefill-backend h11-max-header-count
h11-max-incomplete-event-size kda-decode-backend kda-prefill-backend mamba-backend mamba-cache-philox-rounds mamba-ssu-algorithm
max-lora-cls-labels mm-device-do-normalize mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path
mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path mm-encoder-only mm-ipc-gpu-memory-gb mm-processor-device mm-tensor-ipc
monokernel reasoning-config reasoning-effort-map replayssm-buffer-len return-sampling-mask scheduler-reserve-full-isl sleep-mode-backend
sleep-mode-offload-cudagraph sleep-preserve-parameter-names sparse-indexer-topk-backend specialize-active-lora trust-request-mm-kwargs
video-pruning-method video-pruning-rate watermark-config
"""
"""Every other flag of the engine: what it may add is not accounted."""
_UNMODELLED: dict[str, tuple[Any, ...]] = {
    "prefill-context-parallel-size": (1,),
    "offload-group-size": (0,),
    "runner": ("auto", "generate"), "convert": ("auto", "none"), "enable-dbo": (False,), "enable-eplb": (False,),
    "disable-sliding-window": (False,),
    "async-scheduling": (True,),
    "max-num-scheduled-tokens": (), "max-num-active-seqs": (), "enable-sleep-mode": (False,), "limit-mm-per-prompt": (), "language-model-only": (False,),
    "optimization-level": (2, 3),  # 2 is the default, and 3 is the same (config/vllm.py, OPTIMIZATION_LEVEL_03)
    "swa-bounded-replay": (False,), "enable-prompt-embeds": (False,), "skip-mm-profiling": (False,),
    **dict.fromkeys((
        "speculative-config", "spec-method", "spec-model", "spec-tokens", "attention-config", "hf-overrides",
        "quantization-config", "kv-cache-dtype-skip-layers", "mamba-cache-dtype", "mamba-ssm-cache-dtype", "mamba-block-size", "mamba-cache-mode",
        "performance-mode", "ec-transfer-config", "moe-backend", "linear-backend",
        "mm-processor-kwargs", "mm-encoder-tp-mode", "eplb-config", "ubatch-size", "model-class-overrides", "pooler-config", "worker-cls",
        "worker-extension-cls", "additional-config", "kernel-config", "offload-backend", "offload-params", "offload-prefetch-step",
        "cpu-offload-params", "offload-num-in-group", "default-mm-loras", "diffusion-config", "weight-transfer-config",
        "enable-elastic-ep", "elastic-ep-max-dp-size", "enable-batch-sharded-sampling", "kv-sharing-fast-prefill", "use-replayssm", "enable-hc-sp",
    ), ()),
    **dict.fromkeys(_OTHERS.split(), ()),
}  # fmt: skip

_REMOVED = """
swap-space num-scheduler-steps multi-step-stream-outputs preemption-mode scheduler-delay-factor num-lookahead-slots max-seq-len-to-capture
cuda-graph-sizes guided-decoding-backend guided-decoding-disable-fallback guided-decoding-disable-any-whitespace
guided-decoding-disable-additional-properties task rope-scaling rope-theta device disable-log-requests disable-async-output-proc
disable-mm-preprocessor-cache calculate-kv-scales max-num-partial-prefills max-long-partial-prefills logits-processor-pattern
override-attention-dtype override-pooler-config override-neuron-config enable-lora-bias lora-extra-vocab-size long-lora-scaling-factors
enable-prompt-adapter max-prompt-adapters max-prompt-adapter-token enable-reasoning num-redundant-experts eplb-window-size eplb-step-interval
eplb-log-balancedness enable-multimodal-encoder-data-parallel tokenizer-pool-size tokenizer-pool-type tokenizer-pool-extra-config
qlora-adapter-name-or-path speculative-model num-speculative-tokens speculative-draft-tensor-parallel-size ngram-prompt-lookup-max ngram-prompt-lookup-min
"""
"""Flags of releases from 0.6.4 on that this one's parser has not (engine/arg_utils.py of v0.6.4.post1,
v0.8.5, v0.9.2, v0.12.0, v0.16.0).
"""

_SHARE = "gpu_memory_utilization"
_OF_SETTINGS = {
    "--gpu-memory-utilization": (_SHARE,),
    "--max-model-len": ("max_model_len", "max_seq_length", "max_seq_len", "max_length", "context_length"),
    "--tensor-parallel-size": ("tensor_parallel_size", "tensor_parallel", "tp_size"),
    "--max-num-seqs": ("max_num_seqs",),
    "--max-num-batched-tokens": ("max_num_batched_tokens",),
}
"""What people call the engine's arguments in settings of their own (engine/arg_utils.py, EngineArgs; its
first argument in Unsloth is ``max_seq_length``: unslothai/unsloth 015bdef unsloth/models/llama.py).
"""

FORMAT: Format = Format(
    name="vllm", file="vllm.sh", kind="shell", tested=VERSION, engines=("vllm",), keys=KEYS, marks=frozenset({"--model"}), beside=serving.BESIDE | adapters.BESIDE,
    known=frozenset(f"--{name}" for name in (*_KNOWN.split(), "config")) | {rotary_place(OVERRIDES)} | drafts.VLLM_KNOWN | graphs.KNOWN | {serving.WORKER_FLAGS},
    unmodelled={**serving.OPEN_PLACES, **{f"--{name}": harmless for name, harmless in _UNMODELLED.items()}, V1: (1,), ESTIMATE: (1,), **drafts.VLLM_UNMODELLED, **graphs.UNMODELLED, **host_caches.VLLM_UNMODELLED, WHOLE_PROMPTS: ()},
    absent=_whole_prompts_of_the_model, taken=serving.variable_default_remarks, released=vllm_of, also=_in_a_file, refers=(CONFIG,), by_groups=lambda tree: served_settings(tree, _SHARE, _OF_SETTINGS),
    problems=_vllm_plan_problems, strict=("",),
    rename=whole_names(
        frozenset(f"--{name}" for name in (*_KNOWN.split(), "config", *_UNMODELLED, *_REMOVED.split())) | {graphs.CONFIG} | drafts.VLLM_KNOWN | {key.at for key in KEYS}, HOW.aliases,
    ),
    opens=serving.is_open_flag, removed=frozenset(f"--{name}" for name in _REMOVED.split()), said={"task": "infer", "engine": "vllm"},
    compose=lambda values, _: serving.compose_server_command(HOW, drafts.collapse_speculative_config(values)), parse=_parse_vllm_command,
)  # fmt: skip
