"""The file that ms-swift's command is given in place of flags (``swift sft job.yaml``), and the groups that
it has where ray starts the processes. Lines are of modelscope/ms-swift at 3602360.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from memsheet.exchange.formats.swift.commands import METHOD, NODES, PROCESSES, VARIABLES
from memsheet.exchange.shared.config_commands import OF_SWIFT
from memsheet.exchange.shared.file_format import Values
from memsheet.guard import parse_yaml
from memsheet.patterns import late_pattern

OWN_KEY = late_pattern(rf'(?:^|[{{,])[ \t]*"?(?:{"|".join(sorted(OF_SWIFT))})"?:', re.MULTILINE)
"""A key of ms-swift's that no other tool's file has, at its place in YAML or JSON."""
OF_MEGATRON = frozenset({
    "micro_batch_size", "global_batch_size", "tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size",
    "context_parallel_size", "recompute_granularity", "train_iters", "lr",
})  # fmt: skip
"""Keys of ``megatron sft`` that ``swift sft`` does not have
(swift/megatron/arguments/megatron_args.py:482-665).
"""
ENV, GROUPS, WORKERS, TRAIN, CARDS = "ENV", "device_groups", "default", "train", "gpus"
RANGE = late_pattern(r"list\(range\((\d{1,4}), *(\d{1,4})\)\)")
MOST_RANKS = 2**14


def config_file_values(text: str, *, megatron: bool) -> Mapping[str, Any]:
    """What a file for the command says, of the one over Megatron or of the other; nothing of any other text.

    Raises ValueError for text that is no YAML.
    """
    if not OWN_KEY.search(text):
        return {}
    held = parse_yaml(text, "config")
    if not isinstance(held, Mapping) or not isinstance(held.get("model"), str):
        return {}
    group = held.get(TRAIN)
    own = group if isinstance(group, Mapping) else {}
    values = {at: value for at, value in {**held, **own}.items() if at not in (ENV, TRAIN, CARDS)}
    if bool(OF_MEGATRON & values.keys()) is not megatron or "sampler_engine" in values:
        return {}
    method = "rlhf" if values.get("rlhf_type") else "sft"
    return {METHOD: method, **_processes_of_file(held, own), **values}


def _processes_of_file(held: Values, group: Values) -> dict[str, int]:
    """Processes by the variables that the file sets (swift/cli/main.py:53-59), by ray's group of those that
    train (swift/ray/megatron/driver_utils.py:87-125), or by the ranks of its default workers.
    """
    env = held.get(ENV)
    said = {at: str(env.get(name)) for at, name in VARIABLES.items()} if isinstance(env, Mapping) else {}
    nodes = held.get("nnodes", 1)
    cards = group.get(CARDS) or _default_ranks(held.get(GROUPS))
    if isinstance(cards, int) and isinstance(nodes, int) and cards > 0 and nodes > 0:
        said |= {PROCESSES: str(cards // nodes), NODES: str(nodes)}
    return {at: int(count) for at, count in said.items() if count.isdecimal() and len(count) < 6}


def _default_ranks(groups: Any) -> int | None:
    """How many ranks the group of the default workers has (docs/source_en/Instruction/Ray.md:231-240)."""
    for group in groups.values() if isinstance(groups, Mapping) else ():
        workers = group.get("workers") if isinstance(group, Mapping) else None
        if isinstance(workers, list) and WORKERS in workers:
            return _rank_count(group.get("ranks"))
    return None


def _rank_count(ranks: Any) -> int | None:
    found = RANGE.fullmatch(str(ranks).strip())
    if found is not None:
        return max(0, int(found[2]) - int(found[1])) or None
    if isinstance(ranks, list):
        return len(ranks) or None
    return ranks if isinstance(ranks, int) and 0 < ranks < MOST_RANKS else None
