"""What others build on: the public names, and the flags of every command. A change here is a decision, not an
accident.
"""

import memsheet
from memsheet.cli.commands import COMMANDS
from memsheet.cli.flags import WORDS
from memsheet.cli.line import flag_spellings
from memsheet.plan.aliases import ALIASES, LIBRARIES, SHORT_FLAGS

NAMES = [
    "Answer",
    "Component",
    "DoesNotFitError",
    "InputError",
    "Instant",
    "Item",
    "Result",
    "Sheet",
    "Verdict",
    "assert_fits",
    "check",
    "compare",
    "diagnose",
    "explain",
    "export",
    "infer",
    "job",
    "lightning_callback",
    "measure",
    "measure_step",
    "on_oom",
    "plan",
    "plan_serving",
    "solve",
    "solve_job",
    "sweep",
    "textbook",
    "trace",
    "trace_step",
    "train",
    "trainer_callback",
    "verify",
]

PLAN_FLAGS = [
    "--attention", "--attn-dp", "--compile", "--context-parallel-comm", "--cp", "--cuda-graphs", "--dp-dense", "--dp-lm-head", "--dp-replicate", "--dp-shard", "--dropout", "--engine",
    "--end-stages", "--engine-version", "--ep", "--etp", "--expert-dispatch", "--expandable-segments", "--global-batch", "--gradient-sync", "--gpu-layers", "--host-experts", "--tensor-overrides", "--tensor-split", "--split-mode", "--main-gpu", "--kv-unified", "--swa-full", "--host-cache", "--no-kv-unified", "--no-swa-full", "--no-host-cache", "--mla-mode", "--attn-max-batch", "--image-tokens", "--k-dtype", "--kv-dtype", "--layers-per-stage", "--lora-rank",
    "--lora-dtype", "--lora-targets", "--loss", "--max-batched-tokens", "--max-cpu-loras", "--max-loras", "--fully-sharded-loras", "--no-fully-sharded-loras", "--max-model-len", "--memory-fraction", "--microbatch", "--moe-balanced", "--moe-capacity-factor", "--moe-dispatch", "--moe-pad-to-capacity", "--no-compile",
    "--no-cuda-graphs", "--no-dp-dense", "--no-dp-lm-head", "--no-moe-balanced", "--no-moe-pad-to-capacity", "--no-expandable-segments", "--no-optimizer-in-backward", "--no-reshard-after-forward", "--no-sequence-parallel",
    "--offload", "--optimizer", "--optimizer-implementation", "--optimizer-in-backward", "--output-tokens", "--page-tokens", "--pp",
    "--precision", "--prompt-tokens", "--shared-prefix-tokens", "--quantize", "--recompute", "--recompute-every", "--recompute-layers", "--recompute-modules",
    "--recompute-segments", "--reshard-after-forward", "--schedule", "--secondary-shard", "--backward-prefetch", "--forward-prefetch", "--no-forward-prefetch", "--limit-all-gathers", "--no-limit-all-gathers", "--seq-len", "--sequence-parallel", "--sequences", "--host-weights-gib", "--dcp", "--host-kv-gib", "--host-kv-ratio", "--kv-connector", "--kv-blocks", "--pool-tokens", "--attention-kernels", "--kv-cache-bytes", "--graph-sequences", "--no-offline-inference", "--offline-inference", "--state-ratio", "--state-slots", "--tp",
    "--vocab-multiple", "--vpp", "--zero", "--speculative", "--draft-model", "--speculative-tokens", "--draft-tp",
]  # fmt: skip
SERVE_FLAGS = ["--any-precision", "--context", "--tpot", "--ttft", "--users"]
JOB_FLAGS = [
    "--cluster",
    "--debug",
    "--full",
    "--gpus",
    "--host-memory",
    "--json",
    "--nodes",
    "--parameters",
    "--per-node",
    "--plan",
    "--units",
]
TRACE_FLAGS = [
    "--all-stages", "--cache", "--capacity", "--device", "--events", "--fresh", "--memory-limit", "--no-scratch", "--picture", "--rank", "--scratch", "--snapshot",
    "--time-limit",
]  # fmt: skip
MEASURE_FLAGS = [
    "--data", "--device", "--events", "--memory-limit", "--record", "--snapshot", "--steps", "--time-limit", "--vary-length",
]  # fmt: skip
SOLVE_FLAGS = ["--model", "--most", "--picture"]
TEMPLATE_FLAGS = [
    "--beta", "--engine", "--gradient-accumulation-steps", "--gradient-checkpointing", "--lora-rank", "--max-completion-length", "--max-prompt-length", "--model",
    "--no-gradient-checkpointing", "--no-use-liger-kernel", "--no-vllm-enable-sleep-mode", "--num-generations", "--optim", "--per-device-train-batch-size",
    "--steps-per-generation", "--use-liger-kernel", "--vllm", "--vllm-enable-sleep-mode", "--vllm-gpu-memory-utilization", "--vllm-max-model-length",
    "--vllm-tensor-parallel-size", "--zero",
]  # fmt: skip
FLAGS = {
    "train": sorted([*PLAN_FLAGS, *JOB_FLAGS, "--format"]),
    "infer": sorted([*PLAN_FLAGS, *JOB_FLAGS, "--format", "--lengths"]),
    "plan": sorted(
        [
            *PLAN_FLAGS,
            *JOB_FLAGS,
            *SERVE_FLAGS,
            "--axes",
            "--cells",
            "--format",
            "--method",
            "--picture",
            "--show",
            "--tokens",
            "--top",
        ]
    ),
    "solve": sorted([*PLAN_FLAGS, *JOB_FLAGS, *SOLVE_FLAGS, "--format"]),
    "trace": sorted(PLAN_FLAGS + JOB_FLAGS + TRACE_FLAGS),
    "measure": sorted(PLAN_FLAGS + JOB_FLAGS + MEASURE_FLAGS),
    "mcp": ["--debug"],
    "skill": ["--debug", "--install"],
    "web": ["--allowed-host", "--check", "--debug", "--host", "--open", "--port", "--workers"],
    "verify": [
        "--debug",
        "--device",
        "--full",
        "--json",
        "--memory-limit",
        "--model",
        "--operations",
        "--per-node",
        "--processes",
        "--records",
        "--slurm",
        "--steps",
        "--time-limit",
        "--units",
    ],
    "calibrate": ["--debug", "--forget", "--from", "--gpus", "--json"],
    "check": sorted([*PLAN_FLAGS, *JOB_FLAGS, "--against", "--each", "--format", "--model"]),
    "diagnose": sorted([*PLAN_FLAGS, *JOB_FLAGS, "--model", "--redact"]),
    "sbatch": ["--anyway", "--debug", "--full", "--gpus", "--host-memory", "--model", "--units"],
    "watch": ["--count", "--debug", "--interval", "--units"],
    "job": sorted([*(set(JOB_FLAGS) - {"--parameters", "--plan", "--full"}), *TEMPLATE_FLAGS, "--format"]),
    "export": ["--debug", "--force", "--out", "--pick", "--to"],
    "completion": ["--debug"],
    "compare": ["--debug", "--format", "--full", "--instant", "--json", "--rank", "--units"],
    "explain": ["--debug", "--json"],
    "models": ["--debug", "--json"],
    "gpus": ["--debug", "--full", "--json"],
}


WORDS_OF_OTHERS = """
accumulate-grad-batches activation-checkpoint-mode activation-checkpointing attention-backend
attention-data-parallel-size attention-implementation attn-dp-size attn-implementation auto-find-batch-size
batch batch-size bf16 bits block-size cache-dtype cache-type-k cache-type-v checkpoint-activations
chunked-prefill-size concurrency context context-len context-length context-parallel-degree
context-parallel-size cp-size cpu-offload cpu-offload-gb cross-entropy-loss-fusion ctx-size cuda-graph-max-bs
cuda-graph-max-bs-decode cutoff-len data-parallel-replicate-degree data-parallel-shard-degree
data-parallel-size decode-context-parallel-size deepspeed device-batch-size device-map
device-train-microbatch-size disable-cuda-graph distributed-optimizer dp dp-size draft-max dtype
enable-activation-checkpointing enable-liger-kernel enforce-eager ep-size expert-model-parallel-size
expert-parallel-degree expert-parallel-size expert-tensor-parallel-size finetuning-type flash-attention
flash-attn float8 fp16 fp8 fsdp full-finetuning global-batch-size global-train-batch-size
gpu-memory-utilization grad-accum-steps gradient-accumulation gradient-accumulation-steps
gradient-checkpointing hicache-ratio hidden-dropout input-len kv-cache-dtype kv-cache-memory-bytes
learning-rate liger load-in-4bit load-in-8bit local-batch-size lora lora-alpha lora-dim lora-dropout lora-r
lora-target lora-target-modules make-vocab-size-divisible-by mamba-full-memory-ratio
max-cudagraph-capture-size max-length max-lora-rank max-mamba-cache-size max-new-tokens max-num-batched-tokens
max-num-seqs max-position-embeddings max-running-requests max-seq-len max-seq-length max-steps max-tokens
max-total-tokens mem-fraction-static micro-batch-size mixed-precision model-draft model-dtype model-max-length
moe-expert-capacity-factor moe-pad-expert-input-to-capacity moe-router-force-load-balancing
moe-token-dispatcher-type n-cpu-moe n-ctx n-gpu-layers num-ctx num-gpu-blocks-override num-gpu-layers
num-prompts num-speculative-tokens num-train-epochs num-users num-virtual-stages-per-pipeline-rank
offload-optimizer offload-optimizer-device offload-param offload-param-device optim optimizer-cpu-offload
optimizer-in-bwd optimizer-name optimizer-type output-len override-tensor packing page-size parallel
per-device-batch-size per-device-eval-batch-size per-device-train-batch-size per-gpu-train-batch-size
pipeline-model-parallel-size pipeline-parallel pipeline-parallel-degree pipeline-parallel-size pp-size
prompt-len qlora quantization quantization-method recompute-activations recompute-granularity recompute-method
recompute-num-layers resid-pdrop sdp-attention seq-length sequence-len sequence-length
speculative-draft-model-path speculative-model speculative-num-draft-tokens stage swap-space target-modules
tensor-model-parallel-size tensor-parallel tensor-parallel-degree tensor-parallel-size torch-compile
torch-dtype tp-size train-batch-size train-micro-batch-size-per-gpu ubatch-size use-4bit
use-distributed-optimizer use-flash-attention-2 use-flash-attn use-gradient-checkpointing use-liger
use-liger-kernel use-lora use-peft use-reentrant use-reentrant-gc users virtual-pipeline-model-parallel-size
zero-stage
"""
LIBRARY_NAMES = (
    "accelerate axolotl ddp fsdp hf huggingface llama-factory llama-server llamacpp lm-studio "
    "megatron-core megatron-lm nemo ollama peft trl unsloth zero1 zero2 zero3"
)
ONE_DASH = "-c -ctk -ctv -dp -fa -md -ncmoe -ngl -np -pp -tp -ub"


def flags_of(command: str) -> list[str]:
    return sorted(
        name for flag in COMMANDS[command].flags for name, _ in flag_spellings(flag) if flag.group != WORDS
    )


def test_public_names():
    assert sorted(memsheet.__all__) == NAMES


def test_commands():
    assert sorted(COMMANDS) == sorted(FLAGS)


def test_flags():
    assert {command: flags_of(command) for command in FLAGS} == FLAGS


def test_words_of_others():
    assert sorted(name for name in ALIASES if "." not in name) == WORDS_OF_OTHERS.split()
    assert sorted(LIBRARIES) == LIBRARY_NAMES.split()
    assert sorted(SHORT_FLAGS) == ONE_DASH.split()
