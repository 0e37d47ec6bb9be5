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

OF_PLAN = frozenset({"targets", "full_modules", "implementation", "dispatch", "dropout"})
"""Last words of a plan's keys that choose how a step runs or what trains beside the weights that are there.
"""

ADDING = frozenset(
    {
        "freeze_vision_tower",
        "further_models",
        "own_code",
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
"""Further models and copies on the same cards, and whose accounting the sheet is of: they take nothing of the
one that runs off them.
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
