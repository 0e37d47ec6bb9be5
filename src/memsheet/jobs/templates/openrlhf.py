"""OpenRLHF's jobs: PPO and its kin on Ray, with vLLM, the reference, the critic and the reward model on the
actor's cards or on cards of their own; and DPO.

Lines are of OpenRLHF/OpenRLHF at 3c3be62, under openrlhf. Each model is a process of its own
(trainer/ray/launcher.py:79-139), which empties its allocator's cache after its work
(trainer/ppo_utils/experience_maker.py:109-115, trainer/ray/ppo_actor.py:589-597). vLLM sleeps at its own
level, the first (trainer/ray/vllm_engine.py:134).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.formats.openrlhf.groups import (
    ACTOR,
    CRITIC,
    REFERENCE,
    ROLLOUT,
    SCORER,
    critic_model,
    group_cards,
    is_rl,
    longest_row,
    placed_roles,
    rank_micro_batch,
    scored_by,
    training_program,
)
from memsheet.exchange.formats.openrlhf.launches import DPO, KD
from memsheet.exchange.shared.file_format import Values
from memsheet.exchange.shared.launch_values import is_switched_on, least_one
from memsheet.formulas.sharding.partitioned_buckets import BUCKETS
from memsheet.jobs.templates.option import logits_key
from memsheet.jobs.templates.planned import (
    SCHEMA,
    JobDraft,
    Sizes,
    extra_item,
    known_share,
    on_cards,
    planned_actor,
    planned_reference,
    ranks_of_data,
)

NAMES = {ACTOR: "actor", REFERENCE: "reference", CRITIC: "critic", SCORER: "reward", ROLLOUT: "rollout"}
LEARNT, LEARNT_ENTROPY, READ = (8, 10, 10), (8, 14, 14), (6, 6, 8)
"""Bytes of a logit: it is computed in sixteen bits and raised to fp32, in which Flash-Attention's kernel
keeps it and makes its gradient, which is cast while the logits are still held (models/actor.py:267, :285,
models/utils.py:139-163; flash-attn 2.8.3 ops/triton/cross_entropy.py, not in place). The kernel is always
there: the model is not imported without the package (models/ring_attn_utils.py:3). Entropy is compiled: one
gradient more, and no copy of its probabilities (models/utils.py:182; exchange/formats/verl/losses.py).
"""
OF_PAIRS = (8, 10, 10)
"""With the reference's logits, which are read while the policy's in fp32 are held
(trainer/dpo_trainer.py:157-164).
"""
TAUGHT, TEACHING = (25, 29, 33), (14, 14, 16)
"""Bytes of a logit of a student, and while its teacher reads. Of the student: in fp32, what cross-entropy
keeps, the teacher's, both distributions, their product and its masked copy, and gradients in their place
(OpenRLHF/OpenRLHF-M 2bf6337 openrlhf/models/loss.py:275-284, :48-51; models/actor.py:234;
trainer/kd_trainer.py). While the teacher reads: the first two, and its own in sixteen bits and in fp32.
"""
TEACHER = "teacher.model_name_or_path"
SEQUENCES, BATCHED = 128, 2048
"""vLLM's own where its engine is started by code, and nothing of it is said (vllm-project/vllm
engine/arg_utils.py, usage_context; config/scheduler.py, DEFAULT_MAX_NUM_SEQS).
"""
SHARE = 0.95
SIXTEEN_BITS = 2
"""Bytes of an element of what attention reads, whose kernel takes no other."""


def openrlhf_job(values: Values, plan: Mapping[str, Any], model: str, sizes: Sizes) -> JobDraft | None:
    """The job of a launch's values. ``plan``: of the model that trains, as its own sheet has it.

    None where the launch is no such job, or says a place or a share in no number.
    """
    actor, _ = planned_actor(plan)
    if training_program(values) == DPO:
        return JobDraft(_pairs_document(values, actor, model), shorter_rows=True)
    if training_program(values) == KD:
        return _taught_job(values, actor, model, sizes)
    placed = placed_roles(values) if is_rl(values) else None
    read = rank_micro_batch(values, "rollout")
    if not placed or not read or _server_share(values) is None:
        return None
    roles = {NAMES[role]: _role_of_group(role, values, actor, model) for role in placed}
    phases = _step_phases(values, placed, read, sizes)
    ring, known = least_one(values, RING_SIZE, 1) or 1, {role["model"] for role in roles.values()} == {model}
    counted = ring > 1 and sizes.queries > 0 and known
    for phase in phases if counted else ():
        _add_ring_buffers(phase, roles, values, sizes)
    document = {
        "schema": SCHEMA, "name": "openrlhf", "roles": roles, "phases": phases,
        "placement": {NAMES[role]: list(place) for role, place in placed.items()},
    }  # fmt: skip
    passed = frozenset({RING} if counted else ())
    return JobDraft(document, _left_open(values, placed), shorter_rows=True, accounted=passed, row_ranks=ring)


def _server_share(values: Values) -> float | None:
    return known_share(values.get("vllm.gpu_memory_utilization", SHARE), SHARE)


RING_SIZE, RING = "ds.ring_attn_size", "$.ring"
OF_ALL_RANKS, OF_ONE_RANK = 6, 4
"""Times keys, or values, of some heads: of all ranks' tokens in two buffers of both and in one of both
gradients, and of a rank's own in copies of both that are sent and come (zhuzilin/ring-flash-attention 8996282
ring_flash_attn/llama3_flash_attn_varlen.py:89-115, 187-243).
"""


def _add_ring_buffers(phase: dict[str, Any], roles: Mapping[str, Any], values: Values, sizes: Sizes) -> None:
    """What ring attention has in a layer beside a rank's part of each row: the buffers, keys and values in
    one piece, and the results of some heads beside those of all. The layer's widest moment is mostly another,
    its feed-forward's; then none of it.
    """
    active = roles.get(phase.get("active") or "", {})
    if active.get("plan", {}).get("task") != "train":
        return
    plan = {**active["plan"], **phase.get("plan", {})}
    ring = least_one(values, RING_SIZE, 1) or 1
    some = (least_one(values, "ds.ring_attn_head_stride", 1) or 1) * (sizes.keys // sizes.key_heads)
    each = (OF_ALL_RANKS * ring + OF_ONE_RANK) * some + sizes.queries + 2 * sizes.keys
    most = SIXTEEN_BITS * (plan.get("microbatch") or 1) * (plan.get("seq_len") or 0) * each
    steps = ("forward",) if phase.get("work") == "forward" else ("forward", "backward")
    why = "ring attention's buffers (zhuzilin/ring-flash-attention 8996282)"
    phase["items"] = [
        *phase.get("items", ()), extra_item("temporaries", "ring_attention", (0, 0, most), why, *steps)
    ]  # fmt: skip


def _role_of_group(role: str, values: Values, actor: Mapping[str, Any], model: str) -> dict[str, Any]:
    """A model with its plan: each of DeepSpeed on its own group's ranks, sharded where the actor is
    (utils/deepspeed/deepspeed.py:493).
    """
    if role == ROLLOUT:
        return {"model": model, "plan": _server_plan(values)}
    count = group_cards(values, role) or 1
    plan = actor if role == ACTOR and count == ranks_of_data(actor) else on_cards(actor, count)
    if role in (ACTOR, CRITIC):
        own = {"head": "values"} if role == CRITIC else {}
        named = critic_model(values) if role == CRITIC else model
        return {
            "model": _known_name(named, values, model),
            "plan": plan,
            "trained": True,
            "process": NAMES[role],
            **own,
        }
    named = scored_by(values)[0] if role == SCORER else model
    bare = {key: held for key, held in plan.items() if key != "adapter"}
    still = planned_reference(bare, _known_name(named, values, model))
    return {**still, "process": NAMES[role], **({"head": "values"} if role == SCORER else {})}


def _known_name(named: str | None, values: Values, model: str) -> str:
    """A model's name; where it is the actor's, the one that this is known by."""
    return model if named in (None, values.get("actor.model_name_or_path")) else str(named)


def _server_plan(values: Values) -> dict[str, Any]:
    """The engine as it is started (trainer/ray/vllm_engine.py:184-260)."""
    eager = {"cuda_graphs": False} if is_switched_on(values, "vllm.enforce_eager") else {}
    return {
        "task": "infer", "engine": "vllm", "mesh": {"tp": least_one(values, "vllm.tensor_parallel_size", 1)},
        "precision": {"parameters": "bf16", "compute": "bf16"},
        "serving": {
            "memory_fraction": _server_share(values), "max_model_len": longest_row(values),
            "max_sequences": SEQUENCES, "max_batched_tokens": BATCHED, **eager,
        },
    }  # fmt: skip


def _vllm_sleeps(values: Values) -> bool:
    """Whether vLLM sleeps: only where all share the cards (cli/train_ppo_ray.py:663)."""
    together = is_switched_on(values, "train.colocate_all") and not is_switched_on(
        values, "train.async_enable"
    )
    return is_switched_on(values, "vllm.enable_sleep") and together


def _resting_models(values: Values, placed: Mapping[str, tuple[int, int]]) -> dict[str, str]:
    """Where each model is while another works. What sleeps of DeepSpeed are the states, masters, gradients
    and buckets (utils/deepspeed/deepspeed_utils.py:133-180); a frozen model is off the card in the third
    stage alone (:85-105).
    """
    on_host = is_switched_on(values, "ds.adam_offload")
    trained = "parameters" if is_switched_on(values, "ds.enable_sleep") and not on_host else "whole"
    third = values.get("ds.zero_stage", 2) == 3
    found = {}
    for role in placed:
        if role == ROLLOUT:
            found[NAMES[role]] = "asleep-1" if _vllm_sleeps(values) else "whole"
        elif role in (ACTOR, CRITIC):
            found[NAMES[role]] = trained
        else:
            found[NAMES[role]] = (
                "offloaded" if third and is_switched_on(values, f"{role}.offload") else "whole"
            )
    return found


def _step_phases(
    values: Values, placed: Mapping[str, tuple[int, int]], read: Mapping[str, Any], sizes: Sizes
) -> list[dict[str, Any]]:
    """Those of a step in order (trainer/ppo_trainer.py:181-290, ppo_utils/experience_maker.py:118-200)."""
    rest = _resting_models(values, placed)
    plan = {key: held for key, held in read.items() if not key.startswith("?")}
    tokens = int(plan["microbatch"]) * int(plan["seq_len"])
    logits = {"logits": logits_key(tokens, READ, "of all tokens, read only (models/actor.py:267)")}
    found: list[dict[str, Any]] = []
    if ROLLOUT in placed:
        found.append({"name": "gen", "active": "rollout", "residents": {**rest, "rollout": "whole"}})
    passes = (("reward", SCORER), ("old_log_prob", ACTOR), ("values", CRITIC), ("ref", REFERENCE))
    for name, role in passes:
        if role in placed:
            whole = logits if role in (ACTOR, REFERENCE) else {}
            found.append({"name": name, "active": NAMES[role], "work": "forward", "plan": plan, "residents": rest, **whole})  # fmt: skip
    bucket = _overlap_bucket(values)
    if CRITIC in placed:
        found.append(
            {"name": "update_critic", "active": "critic", "residents": {**rest, "critic": "whole"}, **bucket}
        )
    entropy = values.get("actor.entropy_coef") is not None
    why = "of all tokens, with their gradients (models/actor.py:267, models/utils.py:139)"
    learnt = {"bytes": list(LEARNT_ENTROPY if entropy else LEARNT), "why": why}
    found.append({"name": "update_actor", "active": "actor", "residents": {**rest, "actor": "whole"}, "logits": learnt, **bucket})  # fmt: skip
    if ROLLOUT in placed:
        awake = {**rest, "rollout": "parameters" if _vllm_sleeps(values) else "whole"}
        found.append({"name": "update_weights", "residents": awake, "items": [_sent_tensor(sizes)]})
    return found


def _overlap_bucket(values: Values) -> dict[str, Any]:
    """DeepSpeed's, where reduction overlaps backward in the first two stages (stage_1_and_2.py:2493)."""
    if not is_switched_on(values, "ds.overlap_comm") or values.get("ds.zero_stage", 2) == 3:
        return {}
    most = 2 * BUCKETS.reduce_bucket
    return {
        "items": [extra_item("communication", "second_bucket", (0, 0, most), "reduction overlaps backward")]
    }


def _sent_tensor(sizes: Sizes) -> dict[str, Any]:
    """The tensor that is sent, the largest of them: gathered where ranks divide it, and a copy that the
    server reads where both share the card; the server's own elsewhere (trainer/ray/ppo_actor.py:373-450,
    vllm_worker_wrap.py:36).
    """
    table = 2 * sizes.vocab * sizes.hidden
    return extra_item(
        "communication", "sent", (table, 2 * table, 2 * table), "the largest tensor, gathered and copied"
    )


def _left_open(values: Values, placed: Mapping[str, tuple[int, int]]) -> tuple[str, ...]:
    found = []
    both = (
        CRITIC in placed and placed[CRITIC] == placed[ACTOR] and not is_switched_on(values, "ds.enable_sleep")
    )
    if both:  # trainer/ppo_trainer.py:277-287
        found.append("without --ds.enable_sleep the critic trains while the actor does, on the same cards")
    if len(scored_by(values)) > 1:
        found.append("further reward models are not counted")
    return tuple(found)


def _taught_job(values: Values, actor: dict[str, Any], model: str, sizes: Sizes) -> JobDraft | None:
    """A student and its teacher in one process, whose forward runs while the student's is kept."""
    teacher = values.get(TEACHER)
    if not isinstance(teacher, str) or "$" in teacher:
        return None
    bare = {key: held for key, held in actor.items() if key != "adapter"}
    third = values.get("ds.zero_stage", 2) == 3
    away = {"teacher": "offloaded"} if third and is_switched_on(values, "teacher.offload") else {}
    inputs = (
        SIXTEEN_BITS
        * sizes.layers
        * sizes.hidden
        * (actor.get("microbatch") or 1)
        * (actor.get("seq_len") or 0)
    )
    recomputes = (actor.get("recompute") or {}).get("mode") == "full"
    kept = extra_item(
        "saved_activations", "of_student", (0, inputs, inputs), "inputs of the student's layers"
    )
    why = "of all tokens, with the distributions of both (openrlhf/models/loss.py:275)"
    reads = {
        "name": "teacher", "active": "teacher", "work": "forward", "residents": away, "logits": {"bytes": list(TEACHING), "why": why},
        **({"items": [kept]} if recomputes else {}),
    }  # fmt: skip
    last = {"name": "update_actor", "active": "actor", "residents": away, "logits": {"bytes": list(TAUGHT), "why": why}}  # fmt: skip
    roles = {
        "actor": {"model": model, "plan": dict(actor), "trained": True, "process": "trainer"},
        "teacher": planned_reference(bare, teacher),
    }
    phases = [reads, {**last, **_overlap_bucket(values)}]
    left = () if recomputes else ("what the student keeps while its teacher reads is not counted",)
    return JobDraft(
        {"schema": SCHEMA, "name": "openrlhf-kd", "roles": roles, "phases": phases}, left, shorter_rows=True
    )


def _pairs_document(values: Values, actor: Mapping[str, Any], model: str) -> dict[str, Any]:
    """DPO: both sequences of each pair at once, and a reference of its own also where adapters train
    (cli/train_dpo.py:42-60).
    """
    bare = {key: held for key, held in actor.items() if key != "adapter"}
    third = values.get("ds.zero_stage", 2) == 3
    away = {"reference": "offloaded"} if third and is_switched_on(values, "ref.offload") else {}
    why = "of both sequences of every pair, with their gradients and the reference's (models/actor.py:267)"
    last = {"name": "update_actor", "active": "actor", "residents": away, "logits": {"bytes": list(OF_PAIRS), "why": why}}  # fmt: skip
    roles = {
        "actor": {"model": model, "plan": dict(actor), "trained": True, "process": "trainer"},
        "reference": planned_reference(bare, model),
    }
    return {
        "schema": SCHEMA,
        "name": "openrlhf-dpo",
        "roles": roles,
        "phases": [{**last, **_overlap_bucket(values)}],
    }
