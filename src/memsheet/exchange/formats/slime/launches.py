"""What a shell's script gives slime's ``train.py``: Megatron-LM's flags, slime's own and SGLang's behind
``--sglang-``. Read as text, never run.

Of THUDM/slime at 624b824, slime/utils/arguments.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memsheet.exchange.shared.file_format import UNSET
from memsheet.exchange.shared.megatron_flags import parse_flags
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

with late_functions(__name__):
    from memsheet.exchange.shared.flag_words import plain_value
    from memsheet.exchange.shared.started_programs import module_index, started_programs


FILE, MODULE = late_pattern(r"(?:.*/)?train(?:_async)?\.py"), late_pattern(r"(?!)")
MODEL = "--hf-checkpoint"
OWN = frozenset({"--rollout-batch-size", "--actor-num-gpus-per-node"})
"""Flags that no other program of that name has."""
LAUNCHES = "$.launches"
UNSET_LIST = late_pattern(r"\$\{\w+\[[@*]\]\}")
"""A list that nobody gave anything."""
OF_SERVER, SERVER = "--sglang-", "sglang."
"""How flags of the servers begin, and the group that they stand in here."""


def _dashed_names(text: str) -> frozenset[str]:
    return frozenset(f"--{name}" for name in text.split())


SWITCHES = _dashed_names("""
    allgather-cp apply-chat-template async-save balance-by-flops balance-data calculate-per-token-loss check-weight-update-equal
    ci-disable-kl-checker ci-test colocate debug-rollout-only debug-train-only disable-compute-advantages-and-returns
    disable-grpo-std-normalization disable-rewards-normalization disable-rollout-global-dataset disable-wandb-random-suffix enable-mtp-training
    freeze-indexer get-mismatch-metrics group-rm keep-old-actor log-correct-samples log-multi-turn log-passrate
    mask-offpolicy-in-partial-rollout normalize-advantages offload offload-rollout no-offload-rollout offload-train no-offload-train
    partial-rollout recompute-loss-function release-train reset-optimizer-states rollout-shuffle rollout-skip-special-tokens
    skip-eval-before-train update-weight-disk-keep-files use-distributed-post use-dynamic-batch-size use-fault-tolerance use-kl-loss use-opd
    use-opsm use-rollout-entropy use-rollout-logprobs use-rollout-routing-replay use-routing-replay use-stateless-adam use-tensorboard use-tis
    use-unbiased-kl use-wandb wandb-always-use-train-step attention-output-gate use-gated-attention moe-shared-expert-gate
    sglang-enable-dp-attention sglang-enable-dp-lm-head sglang-enable-ep-moe sglang-enable-deepep-moe sglang-disable-cuda-graph
    sglang-disable-radix-cache sglang-disable-overlap-schedule sglang-enable-deterministic-inference sglang-enable-metrics
""")
"""Without a value, of slime's own flags and of SGLang's that its scripts give."""
VALUED = _dashed_names("""
    actor-num-gpus-per-node actor-num-nodes advantage-estimator apply-chat-template-kwargs buffer-filter-path ci-load-grad-norm
    ci-save-grad-norm ci-train-rollout-logprob-abs-diff-threshold custom-advantage-function-path custom-convert-samples-to-train-data-path
    custom-eval-rollout-log-function-path custom-generate-function-path custom-loss-function-path custom-megatron-before-log-prob-hook-path
    custom-megatron-before-train-step-hook-path custom-megatron-init-path custom-pg-loss-reducer-function-path custom-reward-post-process-path
    custom-rm-path custom-rollout-log-function-path custom-tis-function-path custom-update-weight-post-write-path data-source-path dump-details
    dynamic-sampling-filter-path entropy-coef eps-clip eps-clip-c eps-clip-high eval-config eval-function-path eval-input-key eval-label-key
    eval-max-context-len eval-max-prompt-len eval-max-response-len eval-min-new-tokens eval-prompt-data eval-reward-key eval-temperature
    eval-tool-key eval-top-k eval-top-p fetch-trajectory-retry-times gamma http-proxy input-key kl-coef kl-loss-coef kl-loss-type label-key
    lambd load-debug-rollout-data load-debug-rollout-data-subsample load-forge-rollout-data log-probs-chunk-size log-probs-max-tokens-per-gpu
    log-reward-category loss-mask-type loss-type max-tokens-per-gpu memory-recorder memory-snapshot-dir memory-snapshot-num-steps metadata-key
    min-batch-collection-ratio model-name n-samples-per-eval-prompt n-samples-per-prompt num-critic-only-steps num-epoch num-gpus-per-node
    num-rollout num-steps-per-rollout opd-kl-coef opd-teacher-ckpt-step opd-teacher-load opd-type opsm-delta over-sampling-batch-size
    profile-target prompt-data ref-ckpt-step ref-load ref-update-interval reward-key rm-type rm-url rollout-all-samples-process-path
    rollout-batch-size rollout-buffer-url rollout-data-postprocess-path rollout-data-transport rollout-function-path
    rollout-health-check-first-wait rollout-health-check-interval rollout-health-check-timeout rollout-max-context-len rollout-max-prompt-len
    rollout-max-response-len rollout-num-gpus rollout-num-gpus-per-engine rollout-sample-filter-path rollout-sample-hook-path rollout-seed
    rollout-stop rollout-stop-token-ids rollout-task-type rollout-temperature rollout-top-k rollout-top-p save-debug-rollout-data
    save-debug-train-data save-hf start-rollout-id tb-experiment-name tb-project-name tis-clip tis-clip-low tool-key train-backend
    update-weight-buffer-size update-weight-delta-checksum update-weight-delta-encoding update-weight-disk-dir
    update-weight-local-checkpoint-dir update-weight-mode update-weight-transport update-weights-interval value-clip wandb-dir wandb-group
    wandb-host wandb-key wandb-mode wandb-run-id wandb-team data-pad-size-multiplier hf-checkpoint
""")


def slime_values(text: str) -> dict[str, Any]:
    """The values of the first training that a text starts, by its flags; nothing where there is none."""
    if MODEL not in text or "train" not in text:
        return {}
    found = []
    for started in started_programs(text, _train_script_index):
        values = _flag_values_of(started.program, started.given)
        if values.keys() >= OWN:
            found.append(values)
    several = {} if len(found) < 2 else {LAUNCHES: f"{len(found)} (the first is read)"}
    return {**found[0], **several} if found else {}


def _train_script_index(words: Sequence[str]) -> int | None:
    return module_index(words, MODULE, FILE)


def _flag_values_of(program: str, given: Sequence[str]) -> dict[str, Any]:
    flags = parse_flags([program, *(word for word in given if not UNSET_LIST.fullmatch(word))], SWITCHES)
    values = {
        f"{SERVER}{at[len(OF_SERVER) :]}" if at.startswith(OF_SERVER) else at: held
        for at, held in flags.items()
    }
    return {**values, **_named_model(given)} if values.get(MODEL) == UNSET else values


def _named_model(given: Sequence[str]) -> Mapping[str, Any]:
    """The model's name, whatever folder a variable names before it."""
    at = given.index(MODEL) if MODEL in given[:-1] else None
    named = plain_value(given[at + 1].rstrip("/")) if at is not None else UNSET
    return {} if named == UNSET else {MODEL: str(named).rpartition("/")[2]}
