"""Which models a launch of slime has, on how many cards, and how many tokens a rank of its trainer runs.

Lines are of THUDM/slime at 624b824, under slime.
"""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.exchange.shared.file_format import Values
from memsheet.late import late_functions

with late_functions(__name__):
    from memsheet.exchange.shared.launch_values import is_switched_on, least_one


COLOCATE, TRAIN_ONLY = "--colocate", "--debug-train-only"
PAD = 128
"""``--data-pad-size-multiplier`` (utils/arguments.py:1425), of each rank of tensor parallelism."""


def actor_ranks(values: Values) -> int | None:
    """Cards that train (utils/arguments.py:39-43)."""
    nodes, each = (
        least_one(values, f"--actor-num-{name}", usual)
        for name, usual in (("nodes", 1), ("gpus-per-node", 8))
    )
    return nodes * each if nodes and each else None


def has_servers(values: Values) -> bool:
    """Whether servers run beside the trainer (utils/arguments.py:1734-1740)."""
    apart = any(values.get(at) not in (None, False) for at in (TRAIN_ONLY, "--load-debug-rollout-data"))
    return not apart and values.get("--rollout-external-engine-addrs") is None


def sglang_cards(values: Values, ranks: int) -> int | None:
    """Cards of all servers: as many as train where they share them (utils/arguments.py:1800)."""
    return least_one(values, "--rollout-num-gpus", ranks if is_switched_on(values, COLOCATE) else None)


def engine_cards(values: Values) -> int | None:
    """Cards of one server (utils/arguments.py:56)."""
    return least_one(values, "--rollout-num-gpus-per-engine", 1)


def trains_values(values: Values) -> bool:
    return values.get("--advantage-estimator") == "ppo"  # utils/arguments.py:1750


def reads_reference(values: Values) -> bool:
    """Whether the reference's weights are switched in for a pass (ray/placement_group.py:179)."""
    return is_switched_on(values, "--use-kl-loss") or values.get("--kl-coef", 0) not in (0, 0.0)


def reads_teacher(values: Values) -> bool:
    return is_switched_on(values, "--use-opd") and values.get("--opd-type") == "megatron"


def leaves_card(values: Values, what: str) -> bool:
    """Whether the trainer (``train``) or the servers (``rollout``) leave the card while the others work
    (utils/arguments.py:1783-1815).
    """
    if what == "train" and trains_values(values):
        return True
    if is_switched_on(values, "--offload") or is_switched_on(values, f"--offload-{what}"):
        return True
    return is_switched_on(values, COLOCATE) and not is_switched_on(values, f"--no-offload-{what}")


def longest_sequence(values: Values) -> int | None:
    """Tokens of the longest row, as far as it is said; nobody bounds prompts by default
    (utils/arguments.py:355-380).
    """
    whole = least_one(values, "--rollout-max-context-len", None)
    answer = least_one(values, "--rollout-max-response-len", None)
    prompt = least_one(values, "--rollout-max-prompt-len", None) or 0
    parts = answer + prompt if answer else None
    return min(whole, parts) if whole and parts else whole or parts


def says_row(values: Values) -> bool:
    """Whether the longest row is said whole."""
    return any(values.get(f"--rollout-max-{name}-len") is not None for name in ("context", "prompt"))


def packed_batch(values: Values) -> Mapping[str, int]:
    """The micro-batch of all passes of the trainer (backends/megatron_utils/actor.py:374): as many tokens as
    a GPU is said to take, a row alone where it is longer, padded (backends/megatron_utils/data.py:47-87);
    else rows. Context parallelism's ranks share them.
    """
    context, length = least_one(values, "--context-parallel-size", 1), longest_sequence(values)
    tensor, pad = (
        least_one(values, "--tensor-model-parallel-size", 1),
        least_one(values, "--data-pad-size-multiplier", PAD),
    )
    if not context or not tensor or not pad:
        return {}
    if is_switched_on(values, "--use-dynamic-batch-size"):
        budget, rows = least_one(values, "--max-tokens-per-gpu", None), 1
        whole = max(budget * context, length or 0) if budget else None
    else:
        rows = least_one(values, "--micro-batch-size", 1) or 0
        whole = length * rows if length else None
    if not whole or not rows:
        return {}
    multiple = tensor * pad * context
    return {"microbatch": 1, "seq_len": -(-whole // multiple) * multiple}
