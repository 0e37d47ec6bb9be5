"""Flags of Megatron-LM, by whether a value follows, and how they are found in a shell script that is never
run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite, nan
from typing import Any

from memsheet.exchange.shared.file_format import MORE, UNSET
from memsheet.exchange.shared.serve_script import ARGUMENTS, OPEN_WORD, joined_parts
from memsheet.exchange.shared.shell_text import ShellScript

ALLOCATOR, OLDER = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
MOST_WORDS = 4000
REDIRECTED = (">", ">>", "&>", "&>>", "2>&1", "2>", "<", "<<")
FORK = "of a fork of Megatron-LM, by its underscores: it is read as that"
OF_TRAINER = frozenset({
    "--per_device_train_batch_size", "--model_name_or_path", "--base_model", "--model_id", "--lora_target_modules", "--lora_r", "--lora_rank",
    "--num_epochs", "--num_train_epochs", "--epochs", "--cutoff_len",
})  # fmt: skip
"""Flags of scripts of transformers' Trainer and of people's own, which have underscores in all of theirs:
Megatron-LM's forks count iterations, describe the model, and train no adapters."""
NAMES_HUB = "--model_name"
"""Of a fork a family's word (epfLLM/Megatron-LLM finetune.py: ``llama2``), of others a model of a hub's."""
PROGRAM = "$.program"
"""The script that the flags are given to."""


def _flag_names(text: str) -> frozenset[str]:
    return frozenset(f"--{name}" for name in text.split())


# NVIDIA/Megatron-LM 23e00ed0963c35382dfe8a5a94fb3cda4d21e133 megatron/training/arguments.py:1210-3081
SWITCHES = _flag_names("""
    account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split accumulate-allreduce-grads-in-fp32 add-qkv-bias
    adlr-autoresume apply-layernorm-1p apply-query-key-layer-scaling apply-residual-connection-post-layernorm async-save
    attention-softmax-in-fp32 auto-detect-ckpt-format bert-no-binary-head bf16 biencoder-shared-query-context-model cache-mla-latents
    calc-ft-timeouts calculate-per-token-loss check-for-large-grads check-for-spiky-loss checkpoint-activations
    ckpt-assume-constant-structure ckpt-convert-update-legacy-dist-opt-format ckpt-fully-parallel-load ckpt-fully-parallel-save
    cross-entropy-loss-fusion data-parallel-random-init ddp-average-in-collective ddp-pad-buckets-for-high-nccl-busbw
    decrease-batch-size-if-needed defer-embedding-wgrad-compute delay-wgrad-compute deterministic-mode dino-norm-last-layer
    disable-bf16-reduced-precision-matmul disable-bias-linear disable-gloo-process-groups disable-mamba-mem-eff-path disable-msc
    disable-straggler-on-startup disable-tp-comm-bulk-dgrad disable-tp-comm-bulk-wgrad disable-tp-comm-overlap-ag
    disable-tp-comm-overlap-rs disable-tp-comm-split-ag disable-tp-comm-split-rs distribute-saved-activations enable-cuda-graph
    enable-experimental enable-ft-package enable-full-sharding-in-hsdp eod-mask-loss exit-on-missing-checkpoint exit-signal-handler
    external-cuda-graph finetune first-last-layers-bf16 flash-decode fp16 fp16-lm-cross-entropy fp32-residual-connection
    fp8-param-gather fsdp-double-buffer full-validation grad-reduce-in-bf16 group-query-attention inference-dynamic-batching
    inference-rng-tracker init-method-xavier-uniform init-model-with-meta-device inprocess-empty-cuda-cache inprocess-restart
    is-hybrid-model keep-fp8-transpose-cache load-main-params-from-ckpt load-model-opt-format log-energy log-memory-to-tensorboard
    log-num-zeros-in-grad log-params-norm log-progress log-straggler log-throughput log-timers-to-tensorboard
    log-validation-ppl-to-tensorboard log-world-size-to-tensorboard manual-gc mock-data moe-apply-probs-on-input moe-enable-deepep
    moe-extended-tp moe-grouped-gemm moe-layer-recompute moe-pad-expert-input-to-capacity moe-per-layer-logging moe-permute-fusion
    moe-router-enable-expert-bias moe-router-force-load-balancing moe-router-fusion moe-router-padding-for-fp8 moe-router-pre-softmax
    moe-shared-expert-overlap moe-use-legacy-grouped-gemm moe-use-upcycling multi-latent-attention muon-nesterov muon-no-split-qkv muon-use-nesterov muon-use-syrk multiple-validation-sets
    nccl-all-reduce-for-prefill no-align-grad-reduce no-align-param-gather no-async-tensor-model-parallel-allreduce
    no-barrier-with-level-1-timing no-bias-dropout-fusion no-bias-gelu-fusion no-bias-swiglu-fusion no-check-for-nan-in-loss-and-grad
    no-ckpt-fully-parallel-save no-clone-scatter-output-in-embedding no-create-attention-mask-in-dataloader no-data-sharding
    no-fp8-wgrad no-gradient-accumulation-fusion no-gradient-reduce-div-fusion no-initialization no-load-optim no-load-rng
    no-log-loss-scale-to-tensorboard no-manual-gc-eval no-masked-softmax-fusion no-mmap-bin-files no-one-logger
    no-overlap-p2p-communication no-persist-layer-norm no-pin-cpu-grads no-pin-cpu-params no-position-embedding no-rope-fusion
    no-save-optim no-save-rng no-scatter-gather-tensors-in-pipeline no-strict-fsdp-dtensor-load
    no-use-tokenizer-model-from-checkpoint-args one-logger-async openai-gelu optimizer-cpu-offload output-bert-embeddings
    overlap-cpu-optimizer-d2h-h2d overlap-grad-reduce overlap-moe-expert-parallel-comm overlap-p2p-communication-warmup-flush
    overlap-param-gather overlap-param-gather-with-optimizer-step override-opt_param-scheduler profile qk-l2-norm qk-layernorm
    recompute-activations record-memory-history replication reset-attention-mask reset-position-ids retriever-score-scaling
    retro-add-retriever reuse-grad-buf-for-mxfp8-param-ag rotary-interleaved run-workload-inspector-server sequence-parallel sft
    skip-train squared-relu swiglu te-rng-tracker torch-fsdp2-no-reshard-after-forward tp-comm-overlap tp-comm-overlap-rs-dgrad
    untie-embeddings-and-output-weights use-checkpoint-args use-checkpoint-opt_param-scheduler use-cpu-initialization use-dist-ckpt
    use-distributed-optimizer use-flash-attn use-fused-weighted-squared-relu use-legacy-models use-mcore-models use-megatron-fsdp
    use-mp-args-from-checkpoint-args use-nccl-ub use-one-sent-docs use-persistent-ckpt-worker use-precision-aware-optimizer
    use-pytorch-profiler use-ring-exchange-p2p use-rope-scaling use-rotary-position-embeddings use-sharp use-torch-fsdp2
    use-torch-optimizer-for-cpu-offload use-tp-pp-dp-mapping vision-pretraining
""")
VALUED = _flag_names("""
    adam-beta1 adam-beta2 adam-eps adlr-autoresume-interval app-tag-run-name app-tag-run-version attention-backend attention-dropout
    batch-size bert-embedder-type bert-load biencoder-projection-dim block-data-path check-weight-hash-across-dp-replicas-interval
    ckpt-convert-format ckpt-convert-save ckpt-format ckpt-step classes-fraction clip-grad config-logger-dir context-parallel-size
    cp-comm-type cross-entropy-fusion-impl cuda-graph-impl cuda-graph-modules cuda-graph-scope data-args-path data-cache-path data-parallel-sharding-strategy data-path
    data-per-class-fraction dataloader-type ddp-bucket-size ddp-num-buckets decoder-first-pipeline-num-layers
    decoder-last-pipeline-num-layers decoder-num-layers decoder-seq-length decoupled-lr decoupled-min-lr dino-bottleneck-size
    dino-freeze-last-layer dino-head-hidden-size dino-local-crops-number dino-local-img-size dino-teacher-temp dino-warmup-teacher-temp
    dino-warmup-teacher-temp-epochs dist-ckpt-format dist-ckpt-strictness distributed-backend distributed-timeout-minutes
    embedding-init-method-std embedding-path empty-unused-memory-level encoder-num-layers encoder-seq-length end-weight-decay
    error-injection-rate error-injection-type eval-interval eval-iters evidence-data-path exit-duration-in-mins exit-interval
    exp-avg-dtype exp-avg-sq-dtype expert-model-parallel-size expert-tensor-parallel-size ffn-hidden-size fp8-amax-compute-algo
    fp8-amax-history-len fp8-format fp8-interval fp8-margin fp8-recipe global-batch-size head-lr-mult
    heterogeneous-layers-config-encoded-json heterogeneous-layers-config-path hidden-dropout hidden-size
    hierarchical-context-parallel-sizes high-priority-stream-groups hybrid-attention-ratio hybrid-mlp-ratio hybrid-override-pattern
    hysteresis ict-head-size ict-load img-h img-w indexer-batch-size indexer-log-interval inference-batch-times-seqlen-threshold
    inference-dynamic-batching-buffer-guaranteed-fraction inference-dynamic-batching-buffer-overflow-factor
    inference-dynamic-batching-buffer-size-gb inference-dynamic-batching-chunk-size inference-dynamic-batching-max-requests-override
    inference-dynamic-batching-max-tokens-override inference-dynamic-batching-num-cuda-graphs inference-max-requests
    inference-max-seq-length init-method-std initial-loss-scale inprocess-active-world-size inprocess-barrier-timeout
    inprocess-completion-timeout inprocess-granularity inprocess-hard-timeout inprocess-heartbeat-interval inprocess-heartbeat-timeout
    inprocess-last-call-wait inprocess-max-iterations inprocess-monitor-process-interval inprocess-monitor-thread-interval
    inprocess-progress-watchdog-interval inprocess-soft-timeout inprocess-termination-grace-time iter-per-epoch iterations-to-skip
    kitchen-config-file kitchen-recipe-number kv-channels kv-lora-rank lazy-mpu-init load local-rank log-interval logging-level
    loss-scale loss-scale-window lr lr-decay-iters lr-decay-samples lr-decay-style lr-warmup-fraction lr-warmup-init lr-warmup-iters
    lr-warmup-samples lr-wsd-decay-iters lr-wsd-decay-samples lr-wsd-decay-style main-grads-dtype main-params-dtype
    make-vocab-size-divisible-by mamba-head-dim mamba-num-groups mamba-num-heads mamba-state-dim manual-gc-interval mask-factor
    megatron-fsdp-grad-comm-dtype megatron-fsdp-main-grads-dtype megatron-fsdp-main-params-dtype moe-flex-dispatcher-backend
    mask-prob mask-type max-position-embeddings max-tokens-to-oom memory-snapshot-path merge-file micro-batch-size
    microbatch-group-size-per-virtual-pipeline-stage mid-level-dataset-surplus min-loss-scale min-lr mlp-chunks-for-prefill
    model-parallel-size moe-aux-loss-coeff moe-deepep-num-sms moe-expert-capacity-factor moe-ffn-hidden-size moe-input-jitter-eps
    moe-layer-freq moe-router-bias-update-rate moe-router-dtype moe-router-group-topk moe-router-load-balancing-type
    moe-router-num-groups moe-router-score-function moe-router-topk moe-router-topk-scaling-factor moe-shared-expert-intermediate-size
    moe-token-dispatcher-type moe-token-drop-policy moe-upcycling-granularity moe-z-loss-coeff mrope-section mscale mscale-all-dim
    mtp-loss-scaling-factor mtp-num-layers muon-coefficient-type muon-extra-scale-factor muon-fp32-matmul-prec muon-momentum muon-num-ns-steps
    muon-scalar-optimizer muon-scale-mode muon-tp-mode nccl-communicator-config-path no-rope-freq non-persistent-ckpt-type
    non-persistent-global-ckpt-dir non-persistent-local-ckpt-algo non-persistent-local-ckpt-dir non-persistent-save-interval
    norm-epsilon normalization num-attention-heads num-channels num-classes num-dataset-builder-threads
    num-distributed-optimizer-instances num-experts num-layers num-layers-at-end-in-bf16 num-layers-at-start-in-bf16
    num-layers-per-virtual-pipeline-stage num-query-groups num-virtual-stages-per-pipeline-rank num-workers object-storage-cache-path
    one-logger-project one-logger-run-name onnx-safe optimizer optimizer-offload-fraction padded-vocab-size patch-dim
    per-split-data-args-path persistent-save-interval pipeline-model-parallel-comm-backend pipeline-model-parallel-layout
    pipeline-model-parallel-size position-embedding-type pretrained-checkpoint profile-ranks profile-step-end profile-step-start
    q-lora-rank qk-head-dim qk-pos-emb-head-dim query-in-block-prob rampup-batch-size recompute-granularity recompute-method
    recompute-modules recompute-num-layers relative-attention-max-distance relative-attention-num-buckets replication-factor
    replication-jump rerun-mode result-rejected-tracker-filename retriever-report-topk-accuracies retriever-seq-length
    retro-cyclic-train-iters retro-encoder-attention-dropout retro-encoder-hidden-dropout retro-encoder-layers retro-project-dir
    rope-scaling-factor rope-type rotary-base rotary-percent rotary-scaling-factor rotary-seq-len-interpolation-factor sample-rate save
    save-interval save-retain-interval seed seq-length sft-tokenizer-prompt-format sgd-momentum sharp-enabled-group short-seq-prob spec
    split start-weight-decay straggler-ctrlr-port straggler-minmax-count suggested-communication-unit-size swin-backbone-type
    symmetric-ar-type tensor-model-parallel-size tensorboard-dir tensorboard-log-interval tensorboard-queue-size test-data-path
    tiktoken-num-special-tokens tiktoken-pattern tiktoken-special-tokens timing-log-level timing-log-option titles-data-path
    tokenizer-model tokenizer-type tp-comm-bootstrap-backend tp-comm-overlap-cfg train-data-path train-iters train-samples
    train-sync-interval transformer-impl v-head-dim valid-data-path vision-backbone-type vision-pretraining-type vocab-extra-ids
    vocab-file vocab-size wandb-exp-name wandb-project wandb-save-dir warmup weight-decay weight-decay-incr-style wgrad-deferral-limit
    yaml-cfg
""")
OF_DEEPSPEED: Mapping[str, tuple[Any, ...]] = {
    "--deepspeed": (False,), "--deepspeed_config": (), "--zero-stage": (0,), "--no-pipeline-parallel": (False,), "--cpu-optimizer": (False,),
    "--ds-sequence-parallel-size": (1,), "--moe-expert-parallel-size": (1,), "--mlp-type": ("standard",),
}  # fmt: skip
"""Flags of Megatron-DeepSpeed alone, whose programs have the names of Megatron-LM's and other defaults, with
the values that change no byte (deepspeedai/Megatron-DeepSpeed 4efb479 megatron/arguments.py:608-620,
1154-1165, 1500-1530).
"""
LAUNCHER = _flag_names(
    "node-rank rdzv-backend rdzv-endpoint rdzv-id master-addr master-port standalone max-restarts"
)  # torch/distributed/run.py


def flags_of(text: str, marks: frozenset[str]) -> Mapping[str, Any]:
    """What the first command says that has a flag of ``marks``; arrays and variables of the script stand for
    what they were given. A list that no command is given may be the launch's, too.

    Raises ValueError for text that is no shell.
    """
    if not any(mark.lstrip("-") in text.replace("_", "-") for mark in marks):
        return {}
    script = ShellScript(text)
    given = [words for words in script.commands() if any(word.startswith("--") for word in words)]
    given = [words for words in given if not _is_case_label(words)]
    commands = [words for words in given if not _starts_a_script(words)]
    settings = [words[0] for name in (ALLOCATOR, OLDER) if (words := script.known.get(name))]
    exported = {ALLOCATOR: settings[0]} if settings else {}
    held_lists = list(script.known.values()) if len(commands) == len(given) else []
    lists = (script.words_of(held) for held in held_lists)
    for words in (*commands, *lists):
        found = parse_flags(words[:MOST_WORDS])
        if marks & found.keys():
            return {**exported, **found}
    return {}


def _is_case_label(words: list[str]) -> bool:
    """Whether a line only names the arms of a ``case`` (``-m | --micro-batch-size )``)."""
    return words[0].startswith("-") and any(word.endswith(")") for word in words[:4])


def _starts_a_script(words: list[str]) -> bool:
    """Whether a command starts another shell's script, which has flags of its own."""
    program = next((word for word in words[:3] if word.rpartition("/")[2] not in ("bash", "sh")), "")
    return program.endswith((".sh", ".bash"))


def parse_flags(words: Sequence[str], own_switches: frozenset[str] = frozenset()) -> dict[str, Any]:
    """``--a b``, ``--a=b``, ``--a b c`` and switches; those of torchrun by their newer names, and those of
    forks of Megatron-LM that have underscores in theirs (epfLLM/Megatron-LLM). What stands before a launcher
    is another's. ``own_switches``: of a program that has more than Megatron-LM's.
    """
    switches = SWITCHES | own_switches
    starts = [
        at
        for at, word in enumerate(words)
        if word.endswith((".py", "torchrun")) or word.startswith("torch.distributed")
    ]
    forked = _has_underscores(words, switches | VALUED)
    respelled = {"--nnodes", "--nproc-per-node", *LAUNCHER, *(switches | VALUED if forked else ())}
    found: dict[str, Any] = {MORE: FORK} if forked else {}
    at = ""
    for word in joined_parts(words[starts[0] if starts else 0 :]):
        if word in REDIRECTED:
            break
        if word.startswith("--"):
            at, equals, value = word.partition("=")
            newer = at.replace("_", "-")
            at = newer if newer in respelled else at
            found[at] = _parse_flag_value(value) if equals else True
        elif word.endswith(".py"):
            at = ""
            found[PROGRAM] = word.rpartition("/")[2]
        elif not word:
            continue  # a variable that holds nothing
        elif at in switches or not at or (found[at] is not True and OPEN_WORD.fullmatch(word)):
            found |= {MORE: word} if OPEN_WORD.fullmatch(word) else {}
        elif word not in ARGUMENTS:
            held = found[at]
            found[at] = (
                _parse_flag_value(word)
                if held is True
                else [*(held if isinstance(held, list) else [held]), _parse_flag_value(word)]
            )
    return found


def _has_underscores(words: Sequence[str], own: frozenset[str]) -> bool:
    """Whether flags of several words, more than one, all have underscores in place of dashes."""
    names = {word.partition("=")[0] for word in words if word.startswith("--")}
    called = (value for at, value in pairwise(words) if at == NAMES_HUB)
    whole = (word.partition("=")[2] for word in words if word.startswith(f"{NAMES_HUB}="))
    if not names.isdisjoint(OF_TRAINER) or any("/" in value for value in (*called, *whole)):
        return False
    dashed = any("-" in name[2:] for name in names & own)
    return not dashed and sum("_" in name and name.replace("_", "-") in own for name in names) > 1


def _parse_flag_value(word: str) -> Any:
    if "$" in word or OPEN_WORD.fullmatch(word):
        return UNSET
    if word.isdecimal() and len(word) < 12:
        return int(word)
    try:
        number = float(word) if len(word) < 24 and word[:1] in "-.0123456789" else nan
    except ValueError:
        return word
    return number if isfinite(number) else word
