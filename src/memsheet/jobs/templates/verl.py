"""verl's job: the actor, the reference, the critic and the rollout engine on the same cards, as its Hydra
overrides say it (``trainer.main_ppo``).

Lines are of volcengine/verl b178a3cd5, under verl. The rollout engine has a process of its own
(workers/rollout/vllm_rollout/vllm_async_server.py) and sleeps at level 2, at level 1 where adapters are sent
(:569; workers/engine_workers.py:602). The trainer empties its allocator's cache before the engine wakes
(workers/fsdp_workers.py:679, 750). What logits take was counted of the same operations
(workers/actor/dp_actor.py:240-270, utils/torch_functional.py:104, 215-231) with torch 2.13: without entropy
the gradient is written over them and divided by the temperature once more, and entropy that is not compiled
makes fp32 copies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from memsheet.exchange.formats.verl.batches import removes_padding, row_length
from memsheet.exchange.formats.verl.losses import has_critic
from memsheet.exchange.formats.verl.strategies import (
    ACTOR,
    MODEL,
    ROLLOUT,
    data_ranks,
    held_value,
    is_on,
    is_sharded,
    rank_count,
    sequence_ranks,
    trains_actor,
    whole_number,
)
from memsheet.exchange.shared.file_format import Values
from memsheet.jobs.templates.option import logits_key
from memsheet.jobs.templates.planned import Sizes
from memsheet.units import MIB

REF, CRITIC = "actor_rollout_ref.ref", "critic"
LEARNT, LEARNT_ENTROPY, READ, READ_ENTROPY = (4, 4, 4), (4, 16, 28), (2, 2, 2), (2, 4, 10)
"""Bytes of a logit: where it is learnt from, without entropy and with it, and where it is only read. Compiled
entropy makes no copies (workers/actor/dp_actor.py:90), and autocast's fp32 where it is not: three of them
where it is read; with their gradients six.
"""
MEGATRON_LOGITS = (2, 6, 12)
"""Of Megatron-Core, a rank's part: in sixteen bits at the least; with fp32 and its copy for entropy at the
most (workers/actor/megatron_actor.py:649-657).
"""
BUCKET = 2048
"""Mebibytes of the buffer that weights are sent through (trainer/config/rollout/rollout.yaml,
update_weights_bucket_megabytes).
"""
ROLLOUTS = ("vllm", "sglang")
ROLLOUT_DTYPES = {"bfloat16": "bf16", "half": "fp16", "float16": "fp16", "float": "fp32", "float32": "fp32"}


def verl_document(values: Values, plan: Mapping[str, Any], model: str, sizes: Sizes) -> dict[str, Any] | None:
    """The job of a launch's values, as ``memsheet/job/1``. ``plan``: of the actor, as its own sheet has it.

    None where the launch is no such job, or has something of which nobody knows how it shares the cards.
    """
    if not trains_actor(values) or not is_on(values, "actor_rollout_ref.hybrid_engine", usual=True):
        return None
    if any(_is_unknown(values)):
        return None
    actor = {key: held for key, held in plan.items() if key not in ("schema", "model", "gpus", "phase")}
    roles: dict[str, Any] = {"actor": {"model": model, "plan": actor, "trained": True, "process": "trainer"}}
    if _has_reference(values) and not _trains_adapters(values):
        still = {key: held for key, held in actor.items() if key != "adapter"}
        own = str(held_value(values, f"{REF}.model.path", model))  # workers/fsdp_workers.py:828-836
        roles["reference"] = {"model": own, "plan": still, "trained": False, "process": "trainer"}
    if has_critic(values):
        roles["critic"] = {"model": _critic_model(values, model), "plan": _critic_plan(values, actor), "trained": True, "process": "trainer", "head": "values"}  # fmt: skip
    roles["rollout"] = {"model": model, "plan": _rollout_plan(values)}
    return {
        "schema": "memsheet/job/1", "name": "verl", "roles": roles, "phases": _verl_phases(values, sizes), "notes": _verl_notes(values),
    }  # fmt: skip


def _is_unknown(values: Values) -> list[bool]:
    """What keeps the job from being made: variables in the place of numbers, further copies of a server,
    parts of Megatron-Core's states alone on the host.
    """
    name = held_value(values, f"{ROLLOUT}.name", None)
    share = held_value(values, f"{ROLLOUT}.gpu_memory_utilization", 0.5)
    several = [whole_number(values, f"{ROLLOUT}.{at}_parallel_size", 1) for at in ("data", "expert")]
    parts = _offloaded_parts(values, f"{ACTOR}.megatron")
    return [
        name not in ROLLOUTS, not isinstance(share, int | float) or not 0 < share <= 1, several != [1, 1],
        whole_number(values, f"{ROLLOUT}.tensor_model_parallel_size", 2) is None, rank_count(values) is None,
        not is_sharded(values) and (len(set(parts)) > 1 or has_critic(values)), row_length(values) is None,
        _log_prob_plan(values, ROLLOUT) is None, has_critic(values) and _critic_batch(values) is None,
    ]  # fmt: skip


def _has_reference(values: Values) -> bool:
    in_loss = is_on(values, f"{ACTOR}.use_kl_loss", usual=False)
    return in_loss or is_on(values, "algorithm.use_kl_in_reward", usual=False)


def _trains_adapters(values: Values) -> bool:
    """Whose base is the reference (workers/fsdp_workers.py:1010)."""
    return bool(
        whole_number(values, f"{MODEL}.lora_rank", None) or whole_number(values, f"{MODEL}.lora.rank", None)
    )


def _critic_model(values: Values, model: str) -> str:
    return str(held_value(values, "critic.model.path", model))


def _critic_plan(values: Values, actor: Mapping[str, Any]) -> dict[str, Any]:
    """The critic as the actor is sharded, with batches of its own (trainer/config/critic/dp_critic.yaml)."""
    recompute = is_on(values, "critic.model.enable_gradient_checkpointing", usual=True)
    own = {key: held for key, held in actor.items() if key != "adapter"}
    batch = _critic_batch(values) or {}
    return {**own, **batch, "global_batch": None, "recompute": {"mode": "full" if recompute else "none"}}


def _critic_batch(values: Values) -> dict[str, int] | None:
    length = row_length(values)
    rows = whole_number(values, f"{CRITIC}.ppo_micro_batch_size_per_gpu", None)
    if is_on(
        values, f"{CRITIC}.use_dynamic_bsz", usual=is_on(values, f"{ACTOR}.use_dynamic_bsz", usual=False)
    ):
        tokens = whole_number(values, f"{CRITIC}.ppo_max_token_len_per_gpu", 32768)
        return {"microbatch": 1, "seq_len": max(tokens, length)} if tokens and length else None
    old, ranks = whole_number(values, f"{CRITIC}.ppo_micro_batch_size", None), data_ranks(values)
    rows = rows or (max(1, old // ranks) if old and ranks else None)
    return {"microbatch": rows, "seq_len": length} if rows and length else None


def _values_plan(values: Values) -> dict[str, int]:
    """The micro-batch of a pass that reads values (trainer/config/critic/critic.yaml: forward_… is as the
    update's where nothing is said).
    """
    length, batch = row_length(values), _critic_batch(values) or {}
    tokens = whole_number(values, f"{CRITIC}.forward_max_token_len_per_gpu", None)
    rows = whole_number(values, f"{CRITIC}.forward_micro_batch_size_per_gpu", None)
    if batch.get("microbatch") == 1 and tokens and length:
        return {"microbatch": 1, "seq_len": max(tokens, length)}
    return {**batch, "microbatch": rows} if rows and batch.get("seq_len") == length else batch


def _rollout_plan(values: Values) -> dict[str, Any]:
    """The engine as verl starts it (workers/rollout/vllm_rollout/vllm_async_server.py:255-285)."""
    longest = whole_number(values, f"{ROLLOUT}.max_model_len", None)
    stages = whole_number(values, f"{ROLLOUT}.pipeline_model_parallel_size", 1) or 1
    mesh = {"tp": whole_number(values, f"{ROLLOUT}.tensor_model_parallel_size", 2)}
    engine = held_value(values, f"{ROLLOUT}.name", None)
    paged = engine == ROLLOUTS[0]
    serving = {
        "memory_fraction": held_value(values, f"{ROLLOUT}.gpu_memory_utilization", 0.5),
        "max_sequences": whole_number(values, f"{ROLLOUT}.max_num_seqs", 256),
        **({"max_batched_tokens": whole_number(values, f"{ROLLOUT}.max_num_batched_tokens", 8192)} if paged else {}),
        **({"max_model_len": longest} if longest else {}),
        **({"cuda_graphs": False} if is_on(values, f"{ROLLOUT}.enforce_eager", usual=False) else {}),
    }  # fmt: skip
    held = ROLLOUT_DTYPES.get(str(held_value(values, f"{ROLLOUT}.dtype", "bfloat16")), "bf16")
    precision = {"precision": {"parameters": held, "compute": held}}
    return {
        "task": "infer", "engine": engine, "mesh": {**mesh, **({"pp": stages} if stages > 1 else {})}, **precision, "serving": serving
    }  # fmt: skip


def _offloaded_parts(values: Values, place: str) -> tuple[bool, bool]:
    """Whether parameters and the optimizer's states are on the host between the role's own phases."""
    parts = (is_on(values, f"{place}.{name}_offload", usual=False) for name in ("param", "optimizer"))
    parameters, states = parts
    return parameters, states


REST = {
    (False, False): "whole",
    (True, False): "states",
    (False, True): "parameters",
    (True, True): "offloaded",
}
READING = {False: "whole", True: "parameters"}
"""An actor that only reads has its parameters back, and no states that are on the host."""


def _actor_place(values: Values) -> str:
    return f"{ACTOR}.{'fsdp_config' if is_sharded(values) else 'megatron'}"


def _resting_roles(values: Values) -> dict[str, str]:
    """Where each role of the trainer is while another works. FSDP's reference is on the host always
    (workers/fsdp_workers.py:524-552).
    """
    found = {"actor": REST[_offloaded_parts(values, _actor_place(values))]}
    if _has_reference(values) and not _trains_adapters(values):
        away = is_sharded(values) or is_on(values, f"{REF}.megatron.param_offload", usual=False)
        found["reference"] = "offloaded" if away else "whole"
    if has_critic(values):
        found["critic"] = REST[_offloaded_parts(values, "critic.model.fsdp_config")]
    return found


def _verl_phases(values: Values, sizes: Sizes) -> list[dict[str, Any]]:
    """The phases of a step, by the names that verl's own timers have (trainer/ppo/ray_trainer.py, fit)."""
    rests = _resting_roles(values)
    sleeps = is_on(values, f"{ROLLOUT}.free_cache_engine", usual=True)
    asleep = ("asleep-1" if _trains_adapters(values) else "asleep-2") if sleeps else "whole"
    training = {**rests, "rollout": asleep}
    awake = {**rests, "rollout": "parameters" if sleeps else "whole"}
    found: list[dict[str, Any]] = [
        {"name": "update_weights", "residents": awake, "items": _handed_over(values, sizes)},
        {"name": "gen", "active": "rollout", "residents": {**rests, "rollout": "whole"}},
    ]
    optimizer_away = _offloaded_parts(values, _actor_place(values))[1]
    reading = {**training, "actor": READING[optimizer_away]}
    plan = _log_prob_plan(values, ROLLOUT) or {}
    if not is_on(values, BYPASS, usual=False):
        found.append({
            "name": "old_log_prob", "active": "actor", "work": "forward", "plan": plan, "residents": reading,
            **_read_logits(values, plan, READ_ENTROPY),
        })  # fmt: skip
    if _has_reference(values):
        own = _log_prob_plan(values, REF) or plan
        role = "actor" if _trains_adapters(values) else "reference"
        found.append({
            "name": "ref", "active": role, "work": "forward", "plan": own, "residents": reading if role == "actor" else training,
            **_read_logits(values, own, READ),
        })  # fmt: skip
    if has_critic(values):
        states_away = _offloaded_parts(values, "critic.model.fsdp_config")[1]
        found += [
            {
                "name": "values",
                "active": "critic",
                "work": "forward",
                "plan": _values_plan(values),
                "residents": {**training, "critic": READING[states_away]},
            },
            {"name": "update_critic", "active": "critic", "residents": {**training, "critic": "whole"}},
        ]
    last = {"name": "update_actor", "active": "actor", "residents": {**training, "actor": "whole"}}
    return [*found, {**last, **_learnt_logits(values)}]


def _log_prob_plan(values: Values, place: str) -> dict[str, int] | None:
    """The micro-batch of a pass that reads log-probabilities (trainer/config/rollout/rollout.yaml,
    ref/ref.yaml): rows, or as many tokens as a GPU is said to take.
    """
    length, shared = row_length(values), sequence_ranks(values)
    if length is None or shared is None:
        return None
    by_tokens = is_on(values, f"{ACTOR}.use_dynamic_bsz", usual=False)
    if is_on(values, f"{place}.log_prob_use_dynamic_bsz", usual=by_tokens):
        usual = whole_number(values, f"{ACTOR}.ppo_max_token_len_per_gpu", 16384)
        tokens = whole_number(values, f"{place}.log_prob_max_token_len_per_gpu", usual)
        return {"microbatch": 1, "seq_len": -(-max(length, tokens * shared) // shared)} if tokens else None
    rows = whole_number(values, f"{place}.log_prob_micro_batch_size_per_gpu", None)
    old, ranks = whole_number(values, f"{place}.log_prob_micro_batch_size", None), data_ranks(values)
    rows = rows or (max(1, old // ranks) if old and ranks else None)
    return {"microbatch": rows, "seq_len": -(-length // shared)} if rows else None


def _has_fused_kernels(values: Values) -> bool:
    usual = is_on(values, f"{MODEL}.use_fused_kernels", usual=False)
    return is_on(values, f"{ACTOR}.use_fused_kernels", usual=usual)


def _read_logits(values: Values, plan: Mapping[str, int], each: tuple[int, int, int]) -> dict[str, Any]:
    if _has_fused_kernels(values):
        return {}
    size = each if is_sharded(values) else MEGATRON_LOGITS
    tokens = plan.get("microbatch", 0) * plan.get("seq_len", 0)
    return {"logits": logits_key(tokens, size, "of all tokens, read only (workers/actor/dp_actor.py:240)")}


def _learnt_logits(values: Values) -> dict[str, Any]:
    """Of the update; in Megatron-Core the actor's own sheet has them."""
    if _has_fused_kernels(values) or not is_sharded(values):
        return {}
    coefficient = held_value(values, f"{ACTOR}.entropy_coeff", 0)
    entropy = is_on(values, f"{ACTOR}.calculate_entropy", usual=False) or coefficient not in (0, 0.0)
    why = "of all tokens, with their gradient (workers/actor/dp_actor.py:240, utils/torch_functional.py:104)"
    return {"logits": {"bytes": list(LEARNT_ENTROPY if entropy else LEARNT), "why": why}}


def _handed_over(values: Values, sizes: Sizes) -> list[dict[str, Any]]:
    """What weights are sent through: a buffer, and the largest tensor that is gathered
    (workers/rollout/vllm_rollout/vllm_rollout.py:156-190, workers/fsdp_workers.py:730).
    """
    at = f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes"
    bucket = (whole_number(values, at, BUCKET) or BUCKET) * MIB
    table = sizes.vocab * sizes.hidden
    return [
        {"component": "communication", "path": "bucket", "bytes": bucket, "why": "the buffer that weights are sent through"},
        {"component": "communication", "path": "gathered", "bytes": [0, 4 * table, 4 * table], "why": "the largest tensor, gathered"},
    ]  # fmt: skip


def _verl_notes(values: Values) -> list[str]:
    found = []
    if held_value(values, f"{ROLLOUT}.name", None) != ROLLOUTS[0]:
        found.append("the server's share is counted of all of the card; it takes it of what is free")
    return found


BYPASS = "algorithm.rollout_correction.bypass_mode"
"""The server's own log-probabilities stand for the old ones, which nobody computes
(trainer/ppo/ray_trainer.py:1491-1495).
"""
UNREAD = re.compile(
    r"actor_rollout_ref\.rollout\.(?:quantization$|engine_kwargs\.(?:vllm|sglang)\."
    r"(?!disable_mm_preprocessor_cache|enable_prefix_caching|attention_backend|log_|seed|disable_log))"
    r"|actor_rollout_ref\.ref\.fsdp_config\.(?:reshard_after_forward|fsdp_size)$"
    r"|critic\.(?:model\.lora|ulysses_sequence_parallel_size$)"
    r"|critic\.model\.fsdp_config\.(?:fsdp_size|reshard_after_forward)$"
    r"|distillation\."
)
"""Keys that may move memory and that no phase is made of; the server's own stand before verl's
(workers/rollout/vllm_rollout/vllm_async_server.py:207, 285).
"""


def _may_move_memory(at: str) -> bool:
    return UNREAD.match(at) is not None


def open_words(values: Values) -> tuple[str, ...]:
    """What of the job stays open, in words."""
    found = [f"{at} is not read" for at in values if _may_move_memory(at)]
    if is_on(values, "reward_model.enable", usual=False) or is_on(
        values, "reward.reward_model.enable", usual=False
    ):
        found.append("the reward model shares the cards and is not counted")
    if held_value(values, f"{ROLLOUT}.name", None) != ROLLOUTS[0]:
        found.append("how much is free when the server starts is not known")
    return tuple(found)


def has_shorter_rows(values: Values) -> bool:
    """Whether a micro-batch may have fewer tokens than are counted: of so many rows, which are as long as the
    data's are without their padding, or packed of a mini-batch's, which may have fewer than a GPU takes.
    """
    return removes_padding(values)
