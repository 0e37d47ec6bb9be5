"""Which parts a configuration of NeMo-RL has: what trains, on which cards, the servers beside it, and the
tokens of a micro-batch.

Lines are of NVIDIA-NeMo/RL at 7ea279a, under nemo_rl; defaults are those of examples/configs, which every
configuration stands on.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from memsheet.exchange.shared.file_format import Values
from memsheet.guard import parse_yaml
from memsheet.late import late_functions

with late_functions(__name__):
    from memsheet.exchange.shared.config_references import with_references
    from memsheet.exchange.shared.launch_values import least_one


POLICY, GENERATION, CLUSTER = "policy", "policy.generation", "cluster"
DTENSOR, MEGATRON = f"{POLICY}.dtensor_cfg", f"{POLICY}.megatron_cfg"
ALGORITHMS = ("grpo", "ppo", "dpo", "sft", "rm", "distillation", "xtoken_distillation")
"""Groups at the top, one of each program's (examples/run_*.py)."""
GLOBAL = f"{POLICY}.train_global_batch_size"
MODEL, LENGTH, MICRO = (
    f"{POLICY}.model_name",
    f"{POLICY}.max_total_sequence_length",
    f"{POLICY}.train_micro_batch_size",
)
READ_ROWS = f"{POLICY}.logprob_batch_size"
PACKED, DYNAMIC = f"{POLICY}.sequence_packing", f"{POLICY}.dynamic_batching"
TEACHERS = "on_policy_distillation"
KL = "loss_fn.reference_policy_kl_penalty"


def nemo_rl_settings(text: str) -> Mapping[str, Any]:
    """Values of a training configuration, with what their names stand for in place; nothing of any other.
    Raises ValueError for text that is no YAML.
    """
    if "policy:" not in text or "model_name:" not in text:
        return {}
    tree = parse_yaml(text, "file", aliases=True)
    if not isinstance(tree, Mapping) or not isinstance(tree.get(POLICY), Mapping):
        return {}
    trains = "model_name" in tree[POLICY] and any(isinstance(tree.get(at), Mapping) for at in ALGORITHMS)
    return _without_other_backend(with_references(tree)) if trains else {}


def _without_other_backend(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings without those of the backend that is off (models/policy/lm_policy.py)."""
    policy = tree[POLICY]
    megatron = policy.get("megatron_cfg") or {}
    off = "dtensor_cfg" if megatron.get("enabled") is True else "megatron_cfg"
    return {**tree, POLICY: {at: held for at, held in policy.items() if at != off}}


def algorithm_of(values: Values) -> str:
    """The program's group; of several the first, which another stands on."""
    return next((name for name in ALGORITHMS if any(at.startswith(f"{name}.") for at in values)), "")


def says_true(values: Values, at: str) -> bool:
    return str(values.get(at)).lower() == "true"


def runs_megatron(values: Values) -> bool:
    return says_true(values, f"{MEGATRON}.enabled")


def shares_cards(values: Values) -> bool:
    """Whether servers run on the trainer's cards (algorithms/grpo.py:855)."""
    return says_true(values, f"{GENERATION}.colocated.enabled")


def cluster_places(values: Values) -> tuple[int, int] | None:
    """Cards that train and that serve: all of them both, or nodes of each, or a node's cards of each
    (algorithms/grpo.py:857-914).
    """
    each, nodes = (
        least_one(values, f"{CLUSTER}.gpus_per_node", 1),
        least_one(values, f"{CLUSTER}.num_nodes", 1),
    )
    taken = _cards_of_others(values, nodes or 1)
    if not each or not nodes or taken is None or nodes <= taken[0] or each <= taken[1]:
        return None
    each, nodes = each - taken[1], nodes - taken[0]
    if shares_cards(values) or algorithm_of(values) not in ("grpo", "ppo", "distillation"):
        return each * nodes, each * nodes
    own = least_one(values, f"{GENERATION}.colocated.resources.gpus_per_node", None)
    apart = least_one(values, f"{GENERATION}.colocated.resources.num_nodes", None)
    if nodes == 1:
        return (each - own, own) if own and own < each else None
    return (each * (nodes - apart), each * apart) if apart and apart < nodes else None


def has_teachers(values: Values) -> bool:
    return says_true(values, f"{TEACHERS}.enabled")


def has_reward_model(values: Values) -> bool:
    """Whether a model rewards on cards of its own (algorithms/grpo.py:765-771)."""
    return any(
        held == "reward_model" and at.startswith("data.") and at.endswith("env_name")
        for at, held in values.items()
    )


def _cards_of_others(values: Values, nodes: int) -> tuple[int, int] | None:
    """Nodes, and cards of the one node, of a model that rewards and of teachers with nodes of their own
    (algorithms/grpo.py:765-813); None where some teachers have others than the rest.
    """
    taken = [0, 0]
    if has_reward_model(values):
        name = "gpus_per_node" if nodes == 1 else "num_nodes"
        taken[nodes == 1] = least_one(values, f"env.reward_model.resources.{name}", 1) or 1
    apart = f"{TEACHERS}.non_colocated_teachers"
    if has_teachers(values) and says_true(values, f"{apart}.enabled"):
        if any(at.startswith(f"{apart}.teacher_overrides.") for at in values):
            return None
        of_each = f"{TEACHERS}.teacher_model_by_agent_name."
        models = {str(held) for at, held in values.items() if at.startswith(of_each)}
        taken[0] += len(models) * (least_one(values, f"{apart}.default_teacher_cfg.num_nodes", 1) or 1)
    return taken[0], taken[1]


def degree_of(values: Values, name: str) -> int:
    """A degree of what trains, by either engine's word."""
    own = {"tensor": "tensor_model", "pipeline": "pipeline_model"}.get(name, name)
    at = f"{MEGATRON}.{own}_parallel_size"
    if runs_megatron(values):
        return least_one(values, at, 1) or 1
    return (
        (least_one(values, f"{DTENSOR}.{name}_parallel_size", 1) or 1) if name in ("tensor", "context") else 1
    )


def divides_logits(values: Values) -> bool:
    """Whether ranks of FSDP2's trainer divide the logits of a row: the sheet has the loss of whole ones
    then.
    """
    return not runs_megatron(values) and degree_of(values, "tensor") * degree_of(values, "context") > 1


def update_rounds(values: Values) -> int | None:
    """Micro-batches of a rank between two steps, with rows of the longest (models/policy/lm_policy.py,
    train_global_batch_size); None where a number of them is not said.
    """
    places, batch = cluster_places(values), least_one(values, GLOBAL, None)
    micro, length = micro_tokens(values, "train"), least_one(values, LENGTH, None)
    if places is None or batch is None or not micro or not length:
        return None
    ranks = places[0] // max(1, prod(degree_of(values, axis) for axis in ("tensor", "context", "pipeline")))
    rows = batch // max(1, ranks)
    return max(1, -(-rows * length // (micro["microbatch"] * micro["seq_len"])))


def micro_tokens(values: Values, place: str) -> Mapping[str, int]:
    """The micro-batch of the update (``train``) or of a pass that reads (``logprob``): tokens where rows are
    packed or counted by tokens, else rows of the longest (models/policy/lm_policy.py).
    """
    length = least_one(values, LENGTH, None)
    rows = least_one(values, MICRO if place == "train" else READ_ROWS, least_one(values, MICRO, None))
    by_tokens = next((at for at in (PACKED, DYNAMIC) if says_true(values, f"{at}.enabled")), None)
    budget = least_one(values, f"{by_tokens}.{place}_mb_tokens", None) if by_tokens else None
    if budget is not None and length is not None:
        return {"microbatch": 1, "seq_len": max(budget, length)}
    return {"microbatch": rows, "seq_len": length} if rows and length else {}
