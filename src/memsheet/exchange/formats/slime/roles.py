"""Which models a launch of slime has, on how many cards, and how many tokens a rank of its trainer runs.

Lines are of THUDM/slime at 624b824, under slime.
"""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.exchange.shared.file_format import Values

COLOCATE, TRAIN_ONLY = "--colocate", "--debug-train-only"
PAD = 128
"""``--data-pad-size-multiplier`` (utils/arguments.py:1425), of each rank of tensor parallelism."""


def is_on(values: Values, at: str) -> bool:
    return values.get(at) is True


def count_of(values: Values, at: str, usual: int | None) -> int | None:
    """A count of at least one, as it is said or taken; nothing where a variable or anything else stands."""
    found = values.get(at, usual)
    return found if type(found) is int and found > 0 else None


def trained_ranks(values: Values) -> int | None:
    """Cards that train (utils/arguments.py:39-43)."""
    nodes, each = (
        count_of(values, f"--actor-num-{name}", usual) for name, usual in (("nodes", 1), ("gpus-per-node", 8))
    )
    return nodes * each if nodes and each else None


def generates(values: Values) -> bool:
    """Whether servers run beside the trainer (utils/arguments.py:1734-1740)."""
    apart = any(values.get(at) not in (None, False) for at in (TRAIN_ONLY, "--load-debug-rollout-data"))
    return not apart and values.get("--rollout-external-engine-addrs") is None


def server_cards(values: Values, ranks: int) -> int | None:
    """Cards of all servers: as many as train where they share them (utils/arguments.py:1800)."""
    return count_of(values, "--rollout-num-gpus", ranks if is_on(values, COLOCATE) else None)


def engine_cards(values: Values) -> int | None:
    """Cards of one server (utils/arguments.py:56)."""
    return count_of(values, "--rollout-num-gpus-per-engine", 1)


def has_critic(values: Values) -> bool:
    return values.get("--advantage-estimator") == "ppo"  # utils/arguments.py:1750


def reads_reference(values: Values) -> bool:
    """Whether the reference's weights are switched in for a pass of their own (ray/placement_group.py:179)."""
    return is_on(values, "--use-kl-loss") or values.get("--kl-coef", 0) not in (0, 0.0)


def reads_teacher(values: Values) -> bool:
    return is_on(values, "--use-opd") and values.get("--opd-type") == "megatron"


def offloads(values: Values, what: str) -> bool:
    """Whether the trainer (``train``) or the servers (``rollout``) leave the card while the others work
    (utils/arguments.py:1783-1815).
    """
    if what == "train" and has_critic(values):
        return True
    if is_on(values, "--offload") or is_on(values, f"--offload-{what}"):
        return True
    return is_on(values, COLOCATE) and not is_on(values, f"--no-offload-{what}")


def row_length(values: Values) -> int | None:
    """Tokens of the longest row, as far as it is said; nobody bounds prompts by default
    (utils/arguments.py:355-380).
    """
    whole = count_of(values, "--rollout-max-context-len", None)
    answer = count_of(values, "--rollout-max-response-len", None)
    prompt = count_of(values, "--rollout-max-prompt-len", None) or 0
    parts = answer + prompt if answer else None
    return min(whole, parts) if whole and parts else whole or parts


def says_row(values: Values) -> bool:
    """Whether the longest row is said whole."""
    return any(values.get(f"--rollout-max-{name}-len") is not None for name in ("context", "prompt"))


def rank_batch(values: Values) -> Mapping[str, int]:
    """The micro-batch of all passes of the trainer (backends/megatron_utils/actor.py:374): as many tokens as
    a GPU is said to take, a row alone where it is longer, padded (backends/megatron_utils/data.py:47-87);
    else rows. Context parallelism's ranks share them.
    """
    context, length = count_of(values, "--context-parallel-size", 1), row_length(values)
    tensor, pad = (
        count_of(values, "--tensor-model-parallel-size", 1),
        count_of(values, "--data-pad-size-multiplier", PAD),
    )
    if not context or not tensor or not pad:
        return {}
    if is_on(values, "--use-dynamic-batch-size"):
        budget, rows = count_of(values, "--max-tokens-per-gpu", None), 1
        whole = max(budget * context, length or 0) if budget else None
    else:
        rows = count_of(values, "--micro-batch-size", 1) or 0
        whole = length * rows if length else None
    if not whole or not rows:
        return {}
    multiple = tensor * pad * context
    return {"microbatch": 1, "seq_len": -(-whole // multiple) * multiple}
