"""Which keys that are not accounted may take weights and other states off a card, or store them in fewer
bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from memsheet.patterns import late_pattern

PASSING = late_pattern(
    r"kernel|fuse|flash|attn|attention|liger|cross_entropy|loss|compile|graph|nois|smoothing|round_robin|contiguous|bucket|find_unused|dispatcher"
    r"|recompute|activation|checkpointing|converters|fp8$|empty_cache|gc_steps|tiled|chunk|stage$|block_size$|batch|seq|len|tokens|cache|kv|packing",
    re.IGNORECASE,
)  # fmt: skip
STORING = late_pattern(
    r"offload|quant|cpu|disk|nvme|host|dtype|layers|expert|tensor|pipeline|shard|optim(?!ization)",
    re.IGNORECASE,
)
"""Keys that decide on what passes through a step, and those that decide where and how states are kept: the
first take nothing from the states.
"""

KEEPING = frozenset(
    f"--{name}"
    for name in [
        "async-scheduling",
        "attention-backend",
        "attention-config",
        "compilation-config",
        "cudagraph-capture-sizes",
        "decode-context-parallel-size",
        "disable-cuda-graph-padding",
        "disable-hybrid-kv-cache-manager",
        "disable-sliding-window",
        "enable-chunked-prefill",
        "enable-dbo",
        "enable-eplb",
        "enable-memory-saver",
        "enable-sleep-mode",
        "kv-cache-dtype-skip-layers",
        "kv-events-config",
        "kv-transfer-config",
        "mamba-block-size",
        "mamba-cache-dtype",
        "mamba-cache-mode",
        "mamba-ssm-cache-dtype",
        "max-cudagraph-capture-size",
        "max-num-active-seqs",
        "max-num-scheduled-tokens",
        "max-seq-len-to-capture",
        "mm-processor-kwargs",
        "num-lookahead-slots",
        "num-scheduler-steps",
        "optimization-level",
        "performance-mode",
        "prefill-context-parallel-size",
        "skip-mm-profiling",
        "swap-space",
        "ubatch-size",
    ]
)
"""Servers' flags that leave every weight on the card while it serves: graphs, the cache and its ranks,
scheduling. A server that may sleep holds its weights when awake; ranks of context parallelism cut the cache
and no weight; balanced experts are copies beside those there (vLLM v0.33.0 config/compilation.py,
config/parallel.py, config/cache.py, config/model.py enable_sleep_mode).
"""

LOWERING = late_pattern(
    r"--(?:hf-overrides|json-model-override-args|model-class-overrides|additional-config|config|worker-cls|worker-extension-cls"
    r"|custom-weight-loader|decrypted-config-file|modelopt-checkpoint-restore-path|diffusion-config|engram-config|mm-encoder-only"
    r"|encoder-only|moe-dp-size|dwdp-size|ep|ep-size|dp|nnodes|max-ep-size|enable-unified-memory|(?:enable-)?elastic-ep[\w-]*|kt-[\w-]+"
    r"|device|rpc|models-\w+|docker-repo|model-url|fit-ctx|lazy-mode|[\w-]+-default|[\w-]+-spec)$"
)  # fmt: skip
"""Servers' flags that may take weights off a card and whose names do not say so: another model or its
configuration, code of one's own, experts and layers that other cards have, a card that is chosen.
"""
HEAD_FLAGS = frozenset({"--runner", "--convert", "--task", "--pooler-config", "--is-embedding", "--embedding", "--pooling", "--rerank"})  # fmt: skip
"""Servers' flags with which a model gives vectors or scores: it may have no output matrix (vllm-project/vllm
v0.11.0 model_executor/models/adapters.py, as_embedding_model).
"""
TOWER_FLAGS = frozenset({
    "--limit-mm-per-prompt", "--limit-mm-data-per-request", "--language-model-only", "--language-only", "--disable-vision-encoder",
    "--mm-encoder-tp-mode", "--mm-enable-dp-encoder",
})  # fmt: skip
"""Servers' flags that may leave out the towers of a model that sees or hears, or divide them."""


OF_PLAN = frozenset({
    "targets", "full_modules", "implementation", "dispatch", "dropout", "early_step_in_backward",
})  # fmt: skip
"""Last words of keys that choose how a step runs or what trains beside the weights that are there."""

ADDING = frozenset(
    {
        "freeze_vision_tower",
        "further_models",
        "own_code",
        "release",
        "training_beside",
        "roles",
        "method",
        "accounting",
        "load_balancer",
        "speculative_config",
        "--lora-adapters",
        "--speculate",
    }
)
"""Further models and copies on the same cards, and whose accounting, or which release's, the sheet is of:
they take nothing of the one that runs off them.
"""


FREEZING = late_pattern(r"peft|lora|adapter|freeze|frozen|trainable", re.IGNORECASE)
"""In keys that may let fewer weights train: those that are there stay on the card."""


def freezes_weights(keys: Iterable[str]) -> bool:
    """Whether all that some keys which are not accounted may take off a card is of weights that train."""
    moving = [key for key in keys if moves_states([key])]
    return bool(moving) and all(FREEZING.search(key) and not STORING.search(key) for key in moving)


CAPPING = late_pattern(r"cache|block|pool|mem|page|token|prefix|slots", re.IGNORECASE)
"""In keys that may say how large a server's cache is, in place of what its share of the card leaves."""


def may_cap_pool(keys: Iterable[str]) -> bool:
    """Whether one of some keys that are not accounted may leave a server less than its share of a card."""
    names = (key.rpartition(".")[2] for key in keys)
    return any(bool(CAPPING.search(name)) for name in names if not STORING.search(name) or name in KEEPING)


def moves_weights_of_server(key: str) -> bool:
    """Whether a key of a server that is not accounted may take weights off the card, or store them in fewer
    bytes: of flags those that a table has or whose words say so, which no slip of the pen does.
    """
    if not key.startswith("--"):
        return moves_states([key])
    if key in KEEPING | ADDING | HEAD_FLAGS | TOWER_FLAGS:
        return False
    return STORING.search(key) is not None or LOWERING.match(key) is not None


def moves_cache_of_server(key: str) -> bool:
    """Whether a server's key that takes no weights off may change its cache, or what passes through a
    step.
    """
    if not key.startswith("--"):
        return True
    added = key in ADDING | HEAD_FLAGS | TOWER_FLAGS
    return not added and (
        key in KEEPING or PASSING.search(key) is not None or CAPPING.search(key) is not None
    )


def moves_states(keys: Iterable[str]) -> bool:
    """Whether one of some keys that are not accounted may take states off the card, or store them in fewer
    bytes.
    """
    names = (key.rpartition(".")[2] for key in keys)
    return any(
        bool(STORING.search(name)) or not PASSING.search(name)
        for name in names
        if name not in KEEPING | ADDING | OF_PLAN
    )
