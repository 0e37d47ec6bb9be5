"""A ``sglang.launch_server`` command in a script: ``bash sglang.sh --port 30000``. Flags of v0.5.23; lines
are of python/sglang/srt/arg_groups/fields/ where no folder is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange.shared import host_caches
from memsheet.exchange.shared import serve_adapters as adapters
from memsheet.exchange.shared import serve_command as serving
from memsheet.exchange.shared import serve_drafts as drafts
from memsheet.exchange.shared.allocator_env import allocator_conf_rows
from memsheet.exchange.shared.attention_backends import attention_row
from memsheet.exchange.shared.file_format import Format, Key, Values, is_key
from memsheet.exchange.shared.flag_abbreviations import whole_names
from memsheet.exchange.shared.graph_sizes import largest_of_sizes
from memsheet.exchange.shared.rotary_overrides import rotary_place, with_rotary_overrides
from memsheet.exchange.shared.serve_command import Command
from memsheet.exchange.shared.serve_releases import sglang_of

VERSION = "SGLang 0.5.23"
EAGER, LAYERS, OLD_GROUPS = "--disable-cuda-graph", "SGLANG_PP_LAYER_PARTITION", "--enable-dp-attention"
SENT, OVERRIDES = "--moe-a2a-backend", "--json-model-override-args"
LARGEST_GRAPH = ("--cuda-graph-max-bs", "--cuda-graph-max-bs-decode")
QUANTIZED = {"fp8": "fp8", "mxfp8": "mxfp8"}
"""Formats that weights of sixteen bits are brought into as they are loaded; the others are a checkpoint's
own, which needs no flag.
"""
READ = {
    **{name: plan for plan, name in QUANTIZED.items()},
    **dict.fromkeys(("awq", "awq_marlin"), "awq-int4"),
    **dict.fromkeys(("gptq", "gptq_marlin"), "gptq-int4"),
}
HOW = Command(
    model="--model-path", package="sglang", image="", partition=LAYERS, dashed=False,
    launches=(("python", "-m", "sglang.launch_server"), ("sglang", "serve"), ("python", "-m", "dynamo.sglang")),
    aliases={
        "--speculative-draft-model": drafts.DRAFT, "--model": "--model-path", "--tensor-parallel-size": "--tp-size", "--tp": "--tp-size", "--pipeline-parallel-size": "--pp-size", "--pp": "--pp-size",
        "--data-parallel-size": "--dp-size", "--dp": "--dp-size", "--expert-parallel-size": "--ep-size", "--ep": "--ep-size",
        "--enable-hicache": "--enable-hierarchical-cache", "--attention-data-parallel-size": "--attn-dp-size",
        "--attention-context-parallel-size": "--attn-cp-size", "--moe-data-parallel-size": "--moe-dp-size",
        "--decode-context-parallel-size": "--dcp-size", "--nccl-init-addr": "--dist-init-addr",
    },
    switches=frozenset({
        EAGER, "--is-embedding", "--log-requests", "--show-time-cost", "--sleep-on-idle", "--encoder-only", "--language-only", "--use-ray",
        "--delete-ckpt-after-loading", "--incremental-streaming-output", "--prefill-only-disable-kv-cache", "--speculative-adaptive",
        "--weight-loader-disable-mmap", "--quantize-and-serve",
    }),
    lists=adapters.LISTS | {"--cuda-graph-bs", "--cuda-graph-bs-decode", "--cuda-graph-bs-prefill"}, words=frozenset({"--served-model-name", "--api-key", "--admin-api-key", "--revision", "--tokenizer-path"}),
)  # fmt: skip


def _parse_sglang_command(text: str) -> Mapping[str, Any]:
    """The command's flags; "auto" is what the engine takes anyway."""
    said = {
        at: value
        for at, value in serving.parse_server_command(HOW, text, (key.at for key in KEYS)).items()
        if value != "auto"
    }
    said = dict(with_rotary_overrides(said, OVERRIDES, "--context-length"))
    return serving.without_worker_flags(text, serving.as_typed(said, _is_flag), _is_flag)


def _is_flag(at: str) -> bool:
    return is_key(FORMAT, at)


def _read_pp_size(value: Any, values: Values) -> Mapping[str, Any]:
    """Stages, and the GPUs that the command takes in all (server_args.py:589): groups of data-parallel
    attention are among those of tp.
    """
    sizes = [
        value,
        values.get("--tp-size", 1),
        1 if values.get(OLD_GROUPS) is True else values.get("--dp-size", 1),
    ]
    whole = all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)
    return {"mesh.pp": value, **({"@gpus": sizes[0] * sizes[1] * sizes[2]} if whole else {})}


def _read_dp_size(value: Any, values: Values) -> Mapping[str, Any]:
    """Replicas, or as it was said before there was a flag for them, groups of data-parallel attention
    (arg_groups/parallel_hook.py:41).
    """
    return (
        {"mesh.attn_dp": value, "mesh.dp_replicate": 1}
        if values.get(OLD_GROUPS) is True
        else {"mesh.dp_replicate": value}
    )


def _read_moe_a2a_backend(value: Any, values: Values) -> Mapping[str, Any]:
    """Experts are then dealt to all ranks, whatever --ep-size says (arg_groups/overrides.py:1611)."""
    if value != "deepep":
        return {} if value == "none" else {"serving.dispatch": value}
    return {"serving.dispatch": value, "mesh.ep": values.get("--tp-size", 1)}


def _read_attention_dp_size(value: Any, values: Values) -> Mapping[str, Any]:
    """Of both spellings, this one counts (arg_groups/parallel_hook.py:52)."""
    return {} if value == 1 and values.get(OLD_GROUPS) is True else {"mesh.attn_dp": value}


BACKENDS = {"fa3": "flash", "flashinfer": "flashinfer", "triton": "triton", "trtllm_mha": "trtllm"}
"""Backends of attention whose buffers are accounted (arg_groups/choices.py, ATTENTION_BACKEND_CHOICES)."""


def _sglang_plan_problems(asked: Values) -> Iterator[Problem]:
    yield from serving.unservable_problems(asked)
    yield from adapters.no_room(asked)
    if asked.get("@nodes", 1) > 1:
        yield Problem(
            field="nodes", value=asked["@nodes"], reason="is not one command", hint="a plan of one node"
        )
    if asked.get("mesh.dp_replicate", 1) > 1 and asked.get("mesh.attn_dp", 1) > 1:
        reason = (
            f"do not go with {asked['mesh.attn_dp']} groups of attention in one command "
            "(arg_groups/parallel_hook.py:287)"
        )
        yield Problem(
            field="mesh.dp_replicate",
            value=asked["mesh.dp_replicate"],
            reason=reason,
            hint="the plan of one of them, started as often",
        )


KEYS = (
    *serving.PLACES,
    Key(at="--model-path", says="@model", back=lambda v, _: {"@model": str(v)}, source="model.py:51"),
    Key(at="--tp-size", says="mesh.tp", usual=1, source="parallel.py:45"),
    Key(at="--pp-size", says="mesh.pp", back=_read_pp_size, usual=1, source="parallel.py:59"),
    Key(at="--dp-size", out=lambda a: a.get("mesh.dp_replicate"), back=_read_dp_size, usual=1, source="parallel.py:73"),
    Key(at="--attn-dp-size", out=lambda a: a.get("mesh.attn_dp"), back=_read_attention_dp_size, usual=1, source="parallel.py:81"),
    Key(at=OLD_GROUPS, out=lambda _: None, back=lambda *_: {}, usual=False, source="parallel.py:194: --dp-size counts groups beside it"),
    Key(
        at=SENT, out=lambda a: "deepep" if a.get("serving.dispatch") == "deepep" else None, back=_read_moe_a2a_backend, source="moe.py, overrides.py:1611",
    ),
    Key(
        at="--moe-dense-tp-size", out=lambda a: 1 if a.get("serving.dp_dense") else None, source="parallel.py:289",
        back=lambda v, _: {"serving.dp_dense": True} if v == 1 else {"serving.dp_dense": v},
    ),
    Key(
        at="--enable-dp-lm-head", out=lambda a: True if a.get("serving.dp_lm_head") else None, back=lambda v, _: {"serving.dp_lm_head": True} if v is True else {},
        source="parallel.py:199",
    ),
    Key(
        at="--ep-size", says="mesh.ep", back=lambda v, values: {} if values.get(SENT) == "deepep" else {"mesh.ep": v}, usual=1, source="parallel.py:281",
    ),
    *allocator_conf_rows(),
    *adapters.SGLANG_KEYS,
    *drafts.SGLANG_KEYS,
    *host_caches.SGLANG_KEYS,
    Key(at=LAYERS, out=serving.partition_out, back=serving.partition_back, source="srt/distributed/utils.py:118"),
    Key(at="--dtype", out=serving.dtype_out, back=serving.dtype_back, source="model.py:160"),
    Key(
        at="--quantization", out=lambda a: QUANTIZED.get(a.get("quantization.weights", "")),
        back=serving.quantization_back(READ), decides=serving.MIXED_FORMATS, source="model.py:177, arg_groups/choices.py:32",
    ),
    Key(at="--context-length", says="serving.max_model_len", source="model.py:110"),
    Key(at="--max-running-requests", says="serving.max_sequences", source="schedule.py:31"),
    Key(at="--chunked-prefill-size", says="serving.max_batched_tokens", decides=(-1, 0), source="schedule.py:52"),
    Key(at="--nnodes", says="@nodes", out=lambda _: None, source="parallel.py, nnodes"),
    Key(at="--mem-fraction-static", says="serving.memory_fraction", source="schedule.py:27"),
    Key(
        at="--kv-cache-dtype", out=lambda a: {"bf16": "bfloat16", "fp8": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}.get(a.get("serving.kv_dtype", "")),
        back=serving.cache_back(("fp8_e4m3",)), source="model.py:197",
    ),
    Key(at="--max-total-tokens", says="serving.pool_tokens", source="schedule.py:39"),
    attention_row(BACKENDS, "SGLang", "exec_.py, attention_backend"),
    Key(at="--page-size", says="serving.page_tokens", source="schedule.py:143"),
    Key(at="--cuda-graph-max-bs", out=lambda _: None, back=lambda v, _: {"serving.graph_sequences": v}, source="v0.5.4.post3 server_args.py, cuda_graph_max_bs"),
    Key(at="--cuda-graph-max-bs-decode", says="serving.graph_sequences", source="cuda_graph.py, cuda_graph_max_bs_decode"),
    Key(at="--cuda-graph-bs", out=lambda _: None, back=largest_of_sizes(*LARGEST_GRAPH), source="v0.5.4.post3 server_args.py, cuda_graph_bs"),
    Key(at="--cuda-graph-bs-decode", out=lambda _: None, back=largest_of_sizes(*LARGEST_GRAPH), source="cuda_graph.py, cuda_graph_bs_decode"),
    Key(at="--max-mamba-cache-size", says="serving.state_slots", source="schedule.py:216"),
    Key(at="--mamba-full-memory-ratio", says="serving.state_ratio", source="schedule.py:220"),
    Key(
        at=EAGER, out=lambda a: True if a.get("serving.cuda_graphs") is False else None, back=lambda v, _: {"serving.cuda_graphs": v is not True},
        usual=False, source="srt/server_args.py:410",
    ),
)  # fmt: skip

_KNOWN = """
enable-response-store tokenizer-path tokenizer-mode tokenizer-backend tokenizer-worker-num detokenizer-worker-num skip-tokenizer-init
host port fastapi-root-path enable-http-worker-reuseport smg-grpc-mode grpc-mode grpc-port grpc-response-timeout-secs
grpc-worker-threads sidecar sidecar-args skip-server-warmup warmups enable-http2 http2-max-concurrent-streams
http2-initial-connection-window-size ssl-keyfile ssl-certfile ssl-ca-certs ssl-keyfile-password enable-ssl-refresh api-key admin-api-key
served-model-name weight-version chat-template trust-request-chat-template hf-chat-template-name completion-template file-storage-path
enable-cache-report return-input-ids return-output-ids default-chat-template-kwargs strip-thinking-cache enable-strict-thinking
reasoning-parser tool-call-parser
tool-server sampling-defaults asr-max-buffer-seconds asr-max-concurrent-sessions preferred-sampling-params allow-auto-truncate
stream-interval batch-notify-size stream-response-default-include-usage incremental-streaming-output enable-streaming-session
constrained-json-whitespace-pattern constrained-json-disable-any-whitespace constrained-json-max-whitespace-cnt
enable-dynamic-batch-tokenizer dynamic-batch-tokenizer-batch-size dynamic-batch-tokenizer-batch-timeout enable-tokenizer-batch-encode
disable-tokenizer-batch-decode log-level log-level-http log-requests log-requests-level log-requests-format log-requests-target
uvicorn-access-log-exclude-prefixes crash-dump-folder show-time-cost enable-metrics smg-http-sidecar-port enable-mfu-metrics
enable-metrics-for-all-schedulers load-snapshot-publish-interval tokenizer-metrics-custom-labels-header
tokenizer-metrics-allowed-custom-labels extra-metric-labels bucket-time-to-first-token bucket-inter-token-latency
bucket-e2e-request-latency prompt-tokens-buckets generation-tokens-buckets gc-warning-threshold-secs decode-log-interval
enable-request-time-stats-logging kv-events-config load-publish-endpoint enable-forward-pass-metrics forward-pass-metrics-worker-id
forward-pass-metrics-ipc-name enable-trace trace-modules otlp-traces-endpoint otlp-service-name export-metrics-to-file
export-metrics-to-file-dir kv-canary kv-canary-sweep-interval debug-tensor-dump-output-folder debug-tensor-dump-layers
debug-tensor-dump-input-file forward-hooks msprobe-dump-config device base-gpu-id gpu-id-step random-seed mlx-enable-sampling
watchdog-timeout soft-watchdog-timeout sleep-on-idle use-ray numa-node gc-threshold
load-format model-loader-extra-config trust-remote-code revision model-impl model-config-parser quantization-param-path download-dir
model-checksum weight-loader-disable-mmap weight-loader-prefetch-checkpoints nccl-port dist-timeout dist-init-addr gated-launch-port node-rank
load-balance-method enable-p2p-check max-queued-requests schedule-policy schedule-conservativeness enable-priority-scheduling
disable-priority-preemption radix-eviction-policy disable-radix-cache grammar-backend disable-custom-all-reduce enable-nccl-nvls
ep-dispatch-algorithm disable-outlines-disk-cache
"""
"""Of the server and its logs, of names and files, of who is served first: no byte of a GPU."""
_OTHERS = """
abort-on-priority-when-disabled allowed-media-domains aux-hidden-state-capture bf16-gemm-backend boundary-reduction c128-page-size
checkpoint-engine-wait-weights-before-ready context-bucket cp-strategy cuda-graph-max-seq-len-prefill cuda-graph-prefill-max-context
custom-weight-loader dcp-comm-backend dcp-replicate-q-proj debug-cuda-graph decoupled-spec-bind-endpoint
decoupled-spec-connect-endpoints decoupled-spec-rank decoupled-spec-role decrypted-config-file decrypted-draft-config-file deepep-config
deepep-dispatcher-output-dtype deepep-v2-mode default-priority-value delete-ckpt-after-loading disable-aiter-allreduce-fusion-in-decode
disable-aiter-allreduce-fusion-in-prefill disable-attn-tp-gather disable-chunked-prefix-cache disable-fast-image-processor
disable-flashinfer-autotune disable-flashinfer-cutlass-moe-fp4-allgather disable-shared-experts-fusion disaggregation-bootstrap-port
disaggregation-decode-allocation-policy disaggregation-decode-enable-offload-kvcache disaggregation-decode-enable-radix-cache
disaggregation-decode-extra-slots disaggregation-decode-host-receive-threshold disaggregation-decode-polling-interval
disaggregation-decode-retraction-backup disaggregation-enable-kv-checksum disaggregation-ib-device dllm-algorithm dllm-algorithm-config
dllm-fdfo dsa-decode-backend dsa-paged-mqa-logits-backend dsa-prefill-backend dsa-topk-backend dsa-triton-union dsv4-attn-backend
dsv4-prefill-backend elastic-ep-backend elastic-ep-initial-size elastic-ep-join-mode elastic-ep-join-rank-offset
elastic-ep-scale-timeout enable-adaptive-dispatch-to-encoder enable-aiter-allreduce-fusion enable-amd-monokernel
enable-attn-tp-input-scattered enable-broadcast-mm-inputs-process enable-cp-decode-attn-tp enable-cp-tp-group-sharing
enable-cudagraph-gc enable-custom-logit-processor enable-decoder-swa-bounded-replay enable-deepseek-v4-fp4-indexer
enable-dense-mlp-attn-tp enable-dp-attention-local-control-broadcast enable-draft-weights-cpu-backup enable-dsa-cache-layer-split
enable-dsa-fused-indexer enable-elastic-expert-backup enable-encoder-swa-bounded-replay enable-flashinfer-allreduce-fusion enable-flexkv
enable-fused-moe-sum-all-reduce enable-fused-qk-norm-rope enable-hisparse enable-int8-mamba-checkpoint enable-layernorm-sp
enable-layerwise-nvtx-marker enable-lean-attention enable-linear-replayssm enable-linear-replayssm-spec enable-linker-mla-dedup
enable-lmcache enable-lora-overlap-loading enable-mamba-cache-stochastic-rounding enable-megamoe-for-layernorm-sp enable-mis
enable-mm-global-cache enable-multi-layer-eagle enable-nvidia-megakernel enable-page-major-kv-layout enable-paged-experts
enable-pd-role-switch enable-pdmux enable-precise-embedding-interpolation enable-prefill-cp enable-prefill-delayer
enable-prefix-mm-cache enable-profile-cuda-graph enable-quant-communications enable-return-aux-hidden-states enable-return-indexer-topk
enable-return-routed-experts enable-scattered-sconv enable-session-radix-cache enable-shared-experts-attn-tp enable-tf32-matmul
enable-torch-compile-debug-mode enable-torch-symm-mem enable-tp-lm-head-all-to-all enable-unified-cache-external-linker
enable-w4a4-mxfp4-megamoe enable-waterfill enable-watermark encoder-bootstrap-port encoder-only encoder-register-urls
encoder-transfer-backend encoder-urls enforce-disable-flashinfer-allreduce-fusion enforce-shared-experts-fusion
engine-info-bootstrap-port ep-join-mode ep-join-rank-offset eplb-algorithm eplb-min-rebalancing-utilization-threshold
eplb-rebalance-layers-per-chunk eplb-rebalance-num-iterations expert-balancedness-report-mode expert-distribution-recorder-buffer-size
expert-distribution-recorder-mode experts-shared-outer-loras flashinfer-a2a-dispatch-type flashinfer-allreduce-fusion-backend
flashinfer-autotune-skip-ops flashinfer-mla-disable-ragged flashinfer-mxfp4-moe-precision flexkv-config-file fp4-gemm-backend
fp4-gemm-runner-backend fp8-gemm-backend fp8-gemm-runner-backend fuseep-mode grpc-http-sidecar-port
hierarchical-sparse-attention-extra-config hisparse-config
image-processor-backend init-expert-location int8-mamba-ckpt-size kt-cpuinfer kt-max-deferred-experts-per-token kt-method
kt-num-gpu-experts kt-threadpool-count kt-weight-path language-model-only language-only limit-mm-data-per-request linear-attn-backend
linear-attn-decode-backend linear-attn-prefill-backend linear-attn-verify-backend linear-replayssm-cache-len lmcache-config-file
lora-drain-wait-threshold lora-eviction-policy lora-strict-loading lora-use-virtual-experts mamba-backend mamba-cache-philox-rounds
mamba-max-states-per-path mamba-radix-cache-strategy mamba-track-interval max-ep-size max-lora-chunk-size media-url-max-file-size-mb
min-free-slots-delay mm-enable-dp-encoder mm-feature-transport mm-global-cache-backend mm-io-worker-num mm-preprocess-cache-size-mb
mm-process-config mm-processor-worker-num modelexpress-config modelopt-checkpoint-restore-path modelopt-checkpoint-save-path
modelopt-export-path mooncake-ib-device num-reserved-decode-tokens offload-num-in-group offload-prefetch-step
optimistic-prefill-attempts paged-experts-num-resident pdmux-config-path ple-offload-backend ple-offload-dir ple-offload-embedding
pp-async-batch-depth pre-warm-nccl prefill-decode-interval prefill-decode-interval-min-bs prefill-delayer-forward-passes-buckets
prefill-delayer-max-delay-ms prefill-delayer-max-delay-passes prefill-delayer-queue-min-ratio prefill-delayer-token-usage-low-watermark
prefill-delayer-wait-seconds-buckets prefill-kv-cache-dequant-dtype priority-scheduling-preemption-threshold qsa-indexer-dtype
quantize-and-serve radix-cache-backend radix-eviction-policy-config remote-instance-weight-loader-backend
remote-instance-weight-loader-seed-instance-ip remote-instance-weight-loader-seed-instance-service-port
remote-instance-weight-loader-send-weights-group-ports remote-instance-weight-loader-start-seed-via-transfer-engine retraction-policy
return-aux-hidden-state-layer-ids return-hidden-states-mode rl-on-policy-target rl-quant-profile sampling-mask-max-tokens
schedule-low-priority-values-first scheduler-recv-interval shared-experts-tp-size sm-group-num spec-trace-dir
speculative-accept-threshold-acc speculative-accept-threshold-single speculative-adaptive speculative-adaptive-config
speculative-attention-mode speculative-boundary-reduction speculative-dflash-block-size speculative-domino-candidate-pool-size
speculative-draft-attention-backend speculative-draft-kv-cache-dtype speculative-draft-load-format
speculative-draft-model-quantization speculative-draft-model-revision speculative-draft-sink-size speculative-draft-window-size
speculative-dsa-topk-backend speculative-dspark-align-verify-tokens-to-graph-tier speculative-dspark-block-size
speculative-dspark-confidence-sts-path speculative-dspark-sps-table-path speculative-enable-w4a4-mxfp4-megamoe
speculative-moe-a2a-backend speculative-moe-runner-backend speculative-ngram-capacity speculative-ngram-external-corpus-max-tokens
speculative-ngram-external-corpus-path speculative-ngram-external-sam-budget speculative-ngram-match-type
speculative-ngram-max-bfs-breadth speculative-ngram-max-trie-depth speculative-ngram-min-bfs-breadth speculative-token-map
speculative-use-block-verification speculative-use-rejection-sampling startup-weight-load-mode swa-prefix-tails
tbo-token-distribution-threshold triton-attention-num-kv-splits triton-attention-reduce-in-fp32 triton-attention-split-tile-size
trust-mm-content-hashes unified-cache-external-linker-backend unified-cache-external-linker-config uno-lora-path uses-mamba-radix-cache
watermark-config watermark-context-window watermark-default-enabled watermark-enforce-all watermark-key watermark-key-b
watermark-max-probability watermark-mixing-probability weight-cache-mode weight-cache-socket weight-cache-timeout
weight-loader-drop-cache-after-load weight-loader-prefetch-num-threads
"""
"""Every other flag of the engine: what it may add is not accounted."""
_UNMODELLED: dict[str, tuple[Any, ...]] = {
    "speculative-eagle-topk": (1,), "dcp-size": (1,), "attn-cp-size": (1,), "moe-dp-size": (1,), "dwdp-size": (1,), "cpu-offload-gb": (0,),
    "is-embedding": (False,), "lora-backend": ("csgmv", "triton"),
    **dict.fromkeys((
        "config", "max-prefill-tokens", "prefill-max-requests", "enable-dynamic-chunking",
        "swa-full-tokens-ratio", "disable-hybrid-swa-memory", "prefill-only-disable-kv-cache", "disable-overlap-schedule",
        "enable-mixed-chunk", "enable-memory-saver",
        "decode-attention-backend", "prefill-attention-backend", "sampling-backend", "enable-fp32-lm-head", "cuda-graph-config",
        "cuda-graph-backend-decode", "cuda-graph-backend-prefill", "cuda-graph-max-bs-prefill",
        "cuda-graph-bs-prefill", "disable-prefill-cuda-graph", "disable-decode-cuda-graph",
        "disable-cuda-graph-padding", "enable-torch-compile", "torch-compile-max-bs", "enable-symm-mem", "enable-mscclpp",
        "moe-runner-backend", "deepep-mode", "ep-num-redundant-experts", "enable-eplb", "enable-two-batch-overlap", "enable-single-batch-overlap",
        "offload-group-size", "offload-mode", "json-model-override-args", "modelopt-quant",
        "enable-multimodal", "disaggregation-mode",
        "disaggregation-transfer-backend", "mm-attention-backend", "num-continuous-decode-steps", "pp-max-micro-batch-size", "enable-return-hidden-states",
        "enable-deterministic-inference", "enable-unified-memory", "enable-kv-cache-sharding", "enable-weights-cpu-backup", "mamba-ssm-dtype",
    ), ()),
    **dict.fromkeys(_OTHERS.split(), ()),
}  # fmt: skip

FORMAT: Format = Format(
    name="sglang", file="sglang.sh", kind="shell", tested=VERSION, engines=("sglang",), keys=KEYS, marks=frozenset({"--model-path"}),
    beside=serving.BESIDE | adapters.SGLANG_BESIDE, known=frozenset({serving.WORKER_FLAGS, rotary_place(OVERRIDES), *(f"--{name}" for name in (*_KNOWN.split(), *host_caches.SGLANG_KNOWN.split()))}),
    unmodelled={**serving.OPEN_PLACES, **{f"--{name}": harmless for name, harmless in _UNMODELLED.items()}}, taken=serving.variable_default_remarks, released=sglang_of, problems=_sglang_plan_problems, strict=("",), opens=serving.is_open_flag,
    rename=whole_names(frozenset(f"--{name}" for name in (*_KNOWN.split(), *host_caches.SGLANG_KNOWN.split(), *_UNMODELLED)) | {key.at for key in KEYS}, HOW.aliases),
    said={"task": "infer", "engine": "sglang"}, fixed=drafts.draft_chain_width, compose=lambda values, _: serving.compose_server_command(HOW, values), parse=_parse_sglang_command,
)  # fmt: skip
