"""Which models a launch of OpenRLHF has, on which cards, and how many rows or tokens they take at once.

Lines are of OpenRLHF/OpenRLHF at 3c3be62, under openrlhf.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.formats.openrlhf.launches import DPO, KD, KTO, PRM, REWARD, RL, SFT, own_place
from memsheet.exchange.shared.file_format import Values
from memsheet.exchange.shared.launched_script import PROGRAM
from memsheet.late import late_functions

with late_functions(__name__):
    from memsheet.exchange.shared.launch_values import is_switched_on, least_one


ACTOR, REFERENCE, CRITIC, SCORER, ROLLOUT = "actor", "ref", "critic", "reward", "vllm"
LENGTHS = {RL: 2048, SFT: 2048, DPO: 512, REWARD: 512, KTO: 2048, KD: 2048, PRM: 2048}
"""``--data.max_len`` (cli/train_ppo_ray.py:379, train_sft.py:284, train_dpo.py:318, train_rm.py:298;
OpenRLHF/OpenRLHF-M 2bf6337 openrlhf/cli/train_kd.py:204, train_prm.py:181).
"""
ROWS = {RL: 1, REWARD: 1, PRM: 1}
"""``--train.micro_batch_size`` (cli/train_ppo_ray.py:393, train_rm.py:246; OpenRLHF/OpenRLHF-M 2bf6337
openrlhf/cli/train_prm.py:161); eight elsewhere (train_sft.py:166, train_dpo.py:188).
"""
USUAL_ROWS = 8
BATCH, BUDGET = 128, 16192
CRITIC_BY = "gae"


def training_program(values: Values) -> str:
    return str(values.get(PROGRAM, RL))


def is_rl(values: Values) -> bool:
    return training_program(values) == RL


def own_group(values: Values) -> str:
    return own_place(training_program(values))


def group_cards(values: Values, role: str) -> int | None:
    """Cards of a group of Ray's actors (cli/train_ppo_ray.py:200-216: one node of eight)."""
    nodes, each = (
        least_one(values, f"{role}.{name}", usual)
        for name, usual in (("num_nodes", 1), ("num_gpus_per_node", 8))
    )
    return nodes * each if nodes and each else None


def vllm_cards(values: Values) -> int | None:
    """Cards of all servers; none at 0 or where no number of them is said (cli/train_ppo_ray.py:232)."""
    engines, each = values.get("vllm.num_engines") or 0, least_one(values, "vllm.tensor_parallel_size", 1)
    return engines * each if type(engines) is int and engines >= 0 and each else None


def group_ranks(values: Values) -> int | None:
    """Processes of the model that trains: a group's, or those of the launcher."""
    if is_rl(values):
        return group_cards(values, ACTOR)
    each, nodes = least_one(values, "--nproc-per-node", None), least_one(values, "--nnodes", 1)
    return each * nodes if each and nodes else None


def shared_ranks(values: Values) -> int | None:
    """Ranks that run one row together: ring attention's and tensor parallelism's
    (utils/deepspeed/deepspeed.py:96).
    """
    ring, tensor = (least_one(values, f"ds.{name}", 1) for name in ("ring_attn_size", "tensor_parallel_size"))
    return ring * tensor if ring and tensor else None


def has_reference(values: Values) -> bool:
    """Where KL weighs anything (cli/train_ppo_ray.py:93; 0.01 by default)."""
    weight = values.get("algo.kl.init_coef", 0.01)
    return not isinstance(weight, int | float) or weight > 0


def critic_model(values: Values) -> str | None:
    """The model of values: as it is named, else the reward's, else the actor's; none of other estimators
    than GAE (cli/train_ppo_ray.py:600-606).
    """
    if values.get("algo.advantage.estimator", CRITIC_BY) != CRITIC_BY:
        return None
    scores = scored_by(values)
    named = values.get("critic.model_name_or_path") or (scores[0] if scores else None)
    return str(named or values.get("actor.model_name_or_path"))


def scored_by(values: Values) -> tuple[str, ...]:
    """Reward models on cards of the job: none where a function, an agent or a server scores
    (cli/train_ppo_ray.py:144, 597).
    """
    if values.get("reward.remote_url") or values.get("train.agent_func_path"):
        return ()
    named = values.get("reward.model_name_or_path")
    return tuple(str(named).split(",")) if named else ()


def placed_roles(values: Values) -> Mapping[str, tuple[int, int]] | None:
    """Of each model its first card and how many: all on the same, or in groups one behind another
    (cli/train_ppo_ray.py:37-160). None where something of it is not said in numbers.
    """
    apart = is_switched_on(values, "train.async_enable")
    together = is_switched_on(values, "train.colocate_all")
    found: dict[str, tuple[int, int]] = {}
    free = 0
    for group in _card_groups(values, together=together, apart=apart):
        sizes = [vllm_cards(values) if role == ROLLOUT else group_cards(values, role) for role in group]
        if None in sizes:
            return None
        found |= {role: (free, size) for role, size in zip(group, sizes, strict=True) if size}
        free += max((size for size in sizes if size), default=0)
    return found


def _card_groups(values: Values, *, together: bool, apart: bool) -> Iterator[tuple[str, ...]]:
    """Models by the cards that they share."""
    reference = (REFERENCE,) if has_reference(values) else ()
    critic = (CRITIC,) if critic_model(values) else ()
    scorer = (SCORER,) if scored_by(values) else ()
    servers = (ROLLOUT,) if vllm_cards(values) != 0 else ()
    if together:
        yield (ACTOR, *reference, *critic, *scorer, *(() if apart else servers))
        yield from (servers,) if apart and servers else ()
        return
    groups = (
        [(ACTOR, *reference)] if is_switched_on(values, "train.colocate_actor_ref") else [(ACTOR,), reference]
    )
    pair = is_switched_on(values, "train.colocate_critic_reward") and critic
    groups += [(*critic, *scorer)] if pair else [critic, scorer]
    yield from (group for group in (*groups, servers) if group)


def longest_row(values: Values) -> int | None:
    """Tokens of the longest row (trainer/ray/vllm_engine.py:151, max_model_len; datasets)."""
    return least_one(values, "data.max_len", LENGTHS.get(training_program(values), 2048))


def packs_rows(values: Values) -> bool:
    """Whether rows run without their padding (cli/train_ppo_ray.py:643-658)."""
    ring = least_one(values, "ds.ring_attn_size", 1) or 2
    return (
        is_switched_on(values, "ds.packing_samples")
        or is_switched_on(values, "train.dynamic_batch_enable")
        or ring > 1
    )


def rank_micro_batch(values: Values, place: str) -> dict[str, Any]:
    """The micro-batch of the update (``train``) or of a pass that reads (``rollout``) on one rank: rows, or
    as many tokens as a GPU is said to take, one row's at the least (trainer/ppo_utils/replay_buffer.py:85,
    utils/seqlen_balancing.py:233; the packer may pass it by a part of a row).
    """
    length, ring = longest_row(values), least_one(values, "ds.ring_attn_size", 1)
    if length is None or ring is None:
        return {}
    kind = {"?seq_len_kind": "maximum"}
    if is_rl(values) and is_switched_on(values, "train.dynamic_batch_enable"):
        usual = least_one(values, "train.max_tokens_per_gpu", BUDGET)
        budget = usual if place == "train" else least_one(values, "rollout.max_tokens_per_gpu", usual)
        tensor = least_one(values, "ds.tensor_parallel_size", 1)
        if budget is None or tensor is None:
            return {}
        rows = _rank_rows(values, place)
        most = budget * ring * tensor
        whole = max(length, most if rows is None else min(most, rows * length))
        return {"microbatch": 1, "seq_len": -(-whole // ring), **kind}
    usual_rows = ROWS.get(training_program(values), USUAL_ROWS)
    rows = least_one(values, f"{place}.micro_batch_size", usual_rows if place == "train" else 1)
    return {"microbatch": rows, "seq_len": -(-length // ring), **kind} if rows else {}


def _rank_rows(values: Values, place: str) -> int | None:
    """Rows that a group of ranks has of a step, or of all that is generated
    (trainer/ppo_utils/replay_buffer.py:91, experience_maker.py:48).
    """
    ranks, shared = group_ranks(values), shared_ranks(values)
    read = [least_one(values, f"rollout.{name}", usual) for name, usual in (("batch_size", 1024), ("n_samples_per_prompt", 1))]  # fmt: skip
    rows = read[0] * read[1] if read[0] and read[1] else None
    rows = least_one(values, "train.batch_size", BATCH) if place == "train" else rows
    return -(-rows * shared // ranks) if rows and ranks and shared else None


def step_batch(values: Values) -> int | None:
    """Rows of a step (cli/train_ppo_ray.py:394); of a packed step nobody counts them."""
    if is_rl(values) and is_switched_on(values, "train.dynamic_batch_enable"):
        return None
    size, shared = least_one(values, "train.batch_size", BATCH), shared_ranks(values)
    return size * shared if size and shared else None
