"""ms-swift's jobs on transformers' Trainer that generate: GRPO and its kin, and distillation.

Lines are of modelscope/ms-swift at 3602360, under swift. Bytes of a logit were counted of its own functions
with torch 2.13: ``_get_logps_via_local_forward`` (rlhf_trainers/grpo_trainer.py:1554-1600, with
huggingface/trl f2cd577 trl/trainer/utils.py, selective_log_softmax, entropy_from_logits) and ``gkd_loss``
(rlhf_trainers/gkd_loss.py), whose parts of 512 tokens all stay until backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.jobs.templates.generation import generating_phase, own_generation
from memsheet.jobs.templates.liger import head_gradient_items, student_chunk_items
from memsheet.jobs.templates.planned import (
    JobDraft,
    Sizes,
    TrainedBytes,
    planned_actor,
    planned_reference,
    planned_reward,
    ranks_of_data,
)
from memsheet.jobs.templates.swift_rollout import (
    APART,
    AWAKE,
    BUCKET,
    POOL,
    answer_tokens,
    beta_of,
    gathered_items,
    learnt_key,
    read_key,
    reloaded_items,
    rest_while_serving,
    server_plan,
    sleeps_by,
    swift_document,
    unread_words,
)
from memsheet.jobs.templates.trl import PROMPT

Values = Mapping[str, Any]
Range = tuple[int, int, int]
LEARNT: Mapping[bool, Range] = {True: (8, 16, 16), False: (8, 8, 16)}
"""Bytes of a logit that is learnt from: where accelerate makes it fp32, and as computed (DeepSpeed)."""
LEARNT_ENTROPY: Mapping[bool, Range] = {True: (8, 17, 17), False: (8, 11, 16)}
"""With entropies in parts of 128 tokens, of which the graph holds all (log_entropy, top_entropy_quantile)."""
DISTILLED: Mapping[bool, tuple[int, int, int]] = {True: (38, 54, 12), False: (19, 27, 7)}
"""Of the student's and the teacher's: of one end of the divergence, between both, and of the teacher's k most
likely words alone.
"""
OF_REWARDS = "the models that reward are counted with a pass over all answers at once and a head of one value"
ACCOUNTED = frozenset({"use_vllm", "teacher_model", "reward_model", "ref_model", "loss_type"})
"""Keys beside the method that the job is made of."""
UNSAID_PROMPT = f"nothing says how long prompts are: counted with {PROMPT} tokens (--max_length says them)"
G, K = "rlhf_trainers/grpo_trainer.py:1554", "rlhf_trainers/gkd_loss.py:183"
ZERO_3 = ("zero3", "zero3_offload")
"""Of ``teacher_deepspeed``, those that divide parameters (config/*.json)."""


class _Parts:
    """What every job here is made of, or nothing where a number of it is none."""

    def __init__(
        self, values: Values, plan: Mapping[str, Any], model: str, held: TrainedBytes, length: int | None
    ) -> None:
        self.values, self.model, self.held = values, model, held
        self.actor, self.whole = planned_actor(plan)
        rows, new = self.actor.get("microbatch"), answer_tokens(values)
        self.rows = rows if type(rows) is int and rows > 0 else 0
        self.new = new if type(new) is int and new > 0 else 0
        self.said = length is not None and length > self.new
        self.length = length if self.said and length is not None else PROMPT + self.new
        self.rounds = self._generated_rounds()
        self.widened = self.actor.get("engine") != "deepspeed"
        self.actor["seq_len"] = self.length

    @property
    def is_known(self) -> bool:
        return bool(self.rows and self.new and self.rounds)

    def _generated_rounds(self) -> int:
        """Micro-batches of one generation (rlhf_trainers/args_mixin.py:200-226)."""
        batch, said = self.values.get("generation_batch_size"), self.values.get("steps_per_generation")
        if type(batch) is int and self.rows:
            return max(1, batch // (self.rows * ranks_of_data(self.actor)))
        if type(said) is int:
            return said
        rounds = self.values.get("gradient_accumulation_steps")
        if type(rounds) is int:
            return rounds
        filled = -(-16 // (max(1, self.rows) * ranks_of_data(self.actor)))
        return 1 if self.values.get("rlhf_type") == "grpo" else max(1, filled)

    @property
    def kept_tokens(self) -> int:
        """Of a micro-batch those whose logits are made: behind the longest prompt, or behind the first where
        rows have no padding between them (rlhf_trainers/grpo_trainer.py:1565).
        """
        if self.values.get("padding_free") is True or self.values.get("packing") is True:
            return self.rows * self.length - (self.length - self.new) + 1
        return self.rows * (self.new + 1)


def _where_served(values: Values) -> str | None:
    """``colocate``, ``server`` or ``own``; None of a mode that nobody knows
    (arguments/rlhf_args.py:440-447).
    """
    used, mode = values.get("use_vllm", False), values.get("vllm_mode")
    if used is not True:
        return "own" if used is False else None
    return mode if mode in ("colocate", "server") else None


def swift_grpo_job(
    values: Values,
    plan: Mapping[str, Any],
    model: str,
    sizes: Sizes,
    held: TrainedBytes,
    *,
    token_elements: int,
    length: int | None,
) -> JobDraft | None:
    """The job of ``rlhf_type: grpo``. ``plan``: of what trains; ``token_elements``: what a token adds to the
    cache of a model that generates itself; ``length``: tokens of a row, where somebody says them.
    """
    parts, where, beta = (
        _Parts(values, plan, model, held, length),
        _where_served(values),
        beta_of(values, "grpo"),
    )
    if not parts.is_known or where is None or not isinstance(beta, int | float):
        return None
    roles = _roles_beside(parts, reference=bool(beta))
    served = _serve(parts, roles, where, token_elements)
    if served is None:
        return None
    beside, phases = served
    rewards = [name for name in roles if name.startswith("reward")]
    phases += [
        {"name": name, "active": name, "work": "forward", "plan": {"microbatch": parts.rows * parts.rounds, "seq_len": parts.length}, **beside}
        for name in rewards
    ]  # fmt: skip
    each = _read_bytes(parts)
    read = read_key(parts.kept_tokens, each, G)
    passes = [("old_log_prob", "actor")]
    if beta:
        passes.append(("ref", "reference" if "reference" in roles else "actor"))
    if "teacher" in roles or values.get("teacher_model") is not None:
        passes.append(("teacher", "teacher" if "teacher" in roles else "actor"))
    for name, role in passes:
        residents = {**beside["residents"], **({"teacher": "whole"} if role == "teacher" else {})}
        phases.append(
            {"name": name, "active": role, "work": "forward", **read, **beside, "residents": residents}
        )
    phases.append(_grpo_update(parts, sizes, beside))
    words = [*unread_words(values), *_doubts_of_grpo(parts, where, rewards)]
    return swift_document(
        _job_name("grpo", parts), roles, phases, notes=_notes(parts, where, penalty=bool(beta)), words=tuple(words),
        accounted=ACCOUNTED, over_words=(OF_REWARDS,) if rewards else (), shorter_rows=True,
    )  # fmt: skip


def _job_name(method: str, parts: _Parts) -> str:
    kept = parts.actor.get("engine") == "deepspeed" and not parts.actor.get("adapter")
    return f"swift-{method}-zero" if kept else f"swift-{method}"


def _roles_beside(parts: _Parts, *, reference: bool) -> dict[str, Any]:
    """The models of the trainer's process. With adapters the reference is the model without them, and a
    teacher of the same name, too (arguments/rlhf_args.py:268-276, 430-437).
    """
    actor, model, values = parts.actor, parts.model, parts.values
    adapted = bool(actor.get("adapter"))
    roles: dict[str, Any] = {"actor": {"model": model, "plan": actor, "trained": True, "process": "trainer"}}
    if reference and not adapted:
        roles["reference"] = planned_reference(actor, str(values.get("ref_model") or model))
    teacher = values.get("teacher_model")
    if isinstance(teacher, str) and not (adapted and teacher == values.get("model")):
        roles["teacher"] = _teacher_role(actor, teacher, values.get("teacher_deepspeed"))
    given = values.get("reward_model")
    named = given if isinstance(given, list) else [given] if isinstance(given, str) else []
    for number, one in enumerate(named):
        roles[f"reward_{number}" if number else "reward"] = planned_reward(actor, str(one))
    return roles


def _teacher_role(actor: Mapping[str, Any], teacher: str, own: Any) -> dict[str, Any]:
    """A teacher, which DeepSpeed divides as the student or by a configuration of its own
    (rlhf_trainers/rollout_mixin.py:231-251).
    """
    found = planned_reference(actor, teacher)
    if actor.get("engine") != "deepspeed" or not isinstance(own, str):
        return found
    plan, ranks = found["plan"], ranks_of_data(found["plan"])
    divided = own in ZERO_3
    mesh = {"dp_replicate": 1, "dp_shard": ranks} if divided else {"dp_replicate": ranks, "dp_shard": 1}
    plan |= {"zero": 3 if divided else 0, "mesh": {**plan.get("mesh", {}), **mesh}}
    plan["offload"] = {"parameters": 1.0} if own == "zero3_offload" else {}
    return found


def _serve(
    parts: _Parts, roles: dict[str, Any], where: str, token_elements: int
) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """What stands beside the trainer's passes, and the phases before them; the server's role is added to
    ``roles``. None where a server's number is none, or nobody accounts how the model generates.
    """
    values, actor, held = parts.values, parts.actor, parts.held
    still = (
        {"teacher": "offloaded"} if "teacher" in roles and values.get("offload_teacher_model") is True else {}
    )
    if where == "own":
        if actor["engine"] not in ("transformers", "deepspeed"):
            return None
        roles["rollout"] = own_generation(actor, parts.model, rows=parts.rows * parts.rounds, new=parts.new)
        tokens = parts.rows * parts.rounds * parts.length
        generates = {**generating_phase(actor, token_elements * tokens), "residents": still}
        return {"residents": {**still, "rollout": "absent"}}, [generates]
    sent = gathered_items(actor, values, held)
    if where == "server":
        bucket = {
            "component": "communication", "path": "bucket", "bytes": [0, BUCKET, BUCKET], "why": "the buffer that weights are sent through",
        }  # fmt: skip
        return {"residents": still}, [
            {"name": "update_weights", "residents": still, "items": [*sent, bucket]}
        ]
    server = server_plan(values, parts.rows * parts.rounds * (values.get("vllm_tensor_parallel_size") or 1))
    if server is None:
        return None
    roles["rollout"] = {"model": parts.model, "plan": server, "process": "trainer"}
    asleep = sleeps_by(values)
    rest, kept = rest_while_serving(actor, values, held)
    away = {"reference": "offloaded"} if "reference" in roles and values.get("offload_model") is True else {}
    phases: list[dict[str, Any]] = [
        {"name": "update_weights", "residents": {**still, "rollout": "parameters" if asleep != "whole" else "whole"}, **({"items": sent} if sent else {})},
        {"name": "gen", "active": "rollout", "residents": {**still, **away, "actor": rest}, "items": [*kept, POOL]},
    ]  # fmt: skip
    items = [*reloaded_items(actor, values, held), *([POOL] if asleep == "whole" else [])]
    return {"residents": {**still, "rollout": asleep}, **({"items": items} if items else {})}, phases


def _read_bytes(parts: _Parts) -> Range:
    computed = 2 + -(-2 // parts.rows)
    return (6, 6, 6) if parts.widened else (computed, computed, 6)


def _grpo_update(parts: _Parts, sizes: Sizes, beside: Mapping[str, Any]) -> dict[str, Any]:
    values = parts.values
    update = {"name": "update_actor", "active": "actor", **beside}
    if values.get("use_liger_kernel") is True:
        items = head_gradient_items(sizes, parts.actor)
        return {**update, "items": [*beside.get("items", ()), *items]}
    entropy = values.get("log_entropy") is True or values.get("top_entropy_quantile", 1.0) != 1.0
    each = (LEARNT_ENTROPY if entropy else LEARNT)[parts.widened]
    return {**update, **learnt_key(parts.kept_tokens, each, G)}


def _doubts_of_grpo(parts: _Parts, where: str, rewards: list[str]) -> list[str]:
    values = parts.values
    found = [] if parts.said else [UNSAID_PROMPT]
    if values.get("chord_sft_dataset"):
        found.append("the rows of chord_sft_dataset that are learnt from beside the answers are not counted")
    if where == "colocate" and (parts.actor.get("quantization") or {}).get("weights"):
        found.append("vLLM quantizes the model's weights, too, and is counted with whole ones")
    if values.get("multi_turn_scheduler") is not None or values.get("use_gym_env") is True:
        found.append("rows of several turns may be longer than a prompt and an answer")
    wide = (parts.actor.get("precision") or {}).get("parameters") == "fp32"
    return [*found, *((OF_REWARDS,) if rewards and not wide else ())]


def _notes(parts: _Parts, where: str, *, penalty: bool) -> tuple[str, ...]:
    found = []
    if where == "server":
        found.append(APART)
    if where == "colocate" and sleeps_by(parts.values) == "whole":
        found.append(AWAKE)
    if penalty and parts.actor.get("adapter"):
        found.append(
            "the reference is the model with its adapters switched off, and takes no memory of its own"
        )
    kept = parts.actor.get("engine") == "deepspeed" and not parts.actor.get("adapter")
    if kept and where == "colocate" and parts.values.get("offload_model") is True:
        found.append(
            "offload_model frees no card of the parameters that learn: DeepSpeed keeps its own buffer of them"
        )
    return tuple(found)


def swift_gkd_job(
    values: Values,
    plan: Mapping[str, Any],
    model: str,
    sizes: Sizes,
    held: TrainedBytes,
    *,
    token_elements: int,
    length: int | None,
) -> JobDraft | None:
    """The job of ``rlhf_type: gkd``: a student, and a teacher whose logits stand beside its own; both are the
    same model where no teacher is named (rlhf_trainers/gkd_trainer.py:118-240).
    """
    parts, where, beta = (
        _Parts(values, plan, model, held, length),
        _where_served(values),
        beta_of(values, "gkd"),
    )
    share = values.get("lmbda", 0.5)
    if not parts.is_known or where is None or not all(isinstance(one, int | float) for one in (beta, share)):
        return None
    roles = _roles_beside(parts, reference=False)
    beside: dict[str, Any] = {"residents": {}}
    phases: list[dict[str, Any]] = []
    if share > 0:
        served = _serve(parts, roles, where, token_elements)
        if served is None:
            return None
        beside, phases = served
    update: dict[str, Any] = {"name": "update_actor", "active": "actor", **beside}
    update["residents"] = {**beside["residents"], **({"teacher": "whole"} if "teacher" in roles else {})}
    if values.get("use_liger_kernel") is True:
        items = student_chunk_items(sizes, parts.rows * parts.length, between=beta not in (0, 1))
        update["items"] = [*beside.get("items", ()), *items]
    else:
        update |= _distilled_logits(parts, beta, share)
    words = [*unread_words(values), *([] if parts.said else [UNSAID_PROMPT])]
    if float(values.get("sft_alpha") or 0):
        words.append("the model's own loss of sft_alpha is not counted")
    return swift_document(
        _job_name("gkd", parts), roles, [*phases, update], notes=_notes(parts, where if share > 0 else "own", penalty=False),
        words=tuple(words), accounted=ACCOUNTED, shorter_rows=True,
    )  # fmt: skip


def _distilled_logits(parts: _Parts, beta: float, share: float) -> dict[str, Any]:
    """Of answers, which take a part of a row where the student gives them, and may take all of it where the
    data do (rlhf_trainers/gkd_trainer.py:135-152).
    """
    end, between, likely = DISTILLED[parts.widened]
    each = likely if parts.values.get("gkd_logits_topk") else end if beta in (0, 1) else between
    tokens = parts.rows * (parts.new + 1)
    high = each if share >= 1 else -(-each * parts.rows * parts.length // tokens)
    size = [6 if parts.widened else 2, each, min(256, max(each, high))]
    why = f"of answers, of student and teacher, and their divergence ({K})"
    return {"logits": {"tokens": tokens, "bytes": size, "why": why}}
