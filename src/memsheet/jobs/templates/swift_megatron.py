"""ms-swift's jobs on Megatron-Core: preferences, GRPO and distillation, by flags or by ray's groups.

Lines are of modelscope/ms-swift at 3602360, under swift/megatron. Bytes of a logit were counted of
trainers/vocab_parallel_utils.py and rlhf_trainers/gkd_loss.py with torch 2.13.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.jobs.templates.planned import (
    JobDraft,
    Sizes,
    TrainedBytes,
    card_count,
    extra_item,
    planned_actor,
    planned_reference,
    ranks_of_data,
)
from memsheet.jobs.templates.swift_rollout import (
    APART,
    AWAKE,
    BUCKET,
    POOL,
    answer_tokens,
    beta_of,
    rest_while_serving,
    server_plan,
    sleeps_by,
    swift_document,
    unread_words,
)

Values = Mapping[str, Any]
Range = tuple[int, int, int]
READ: Mapping[bool, Range] = {False: (4, 4, 8), True: (8, 8, 16)}
"""Bytes of a logit of a rank's part that is only read, as computed, where one rank has the vocabulary and
where ranks divide it (compute_logps_and_entropy_from_logits); raised to fp32 at the most.
"""
OF_LABELS: Range = (2, 6, 12)
"""Of the reference of preferences, which gives the loss of every token itself
(trainers/dpo_trainer.py:96).
"""
LEARNT: Mapping[bool, Range] = {False: (8, 12, 13), True: (8, 16, 17)}
"""Raised to fp32 by the model's wrapper, with entropy in parts at the most."""
DISTILLED: Mapping[bool, tuple[int, int, int]] = {False: (30, 44, 12), True: (31, 45, 12)}
"""Of the student's beside the teacher's, which stands apart: of one end of the divergence, between both, and
of the teacher's k most likely words.
"""
OF_TEACHER = 2
"""Bytes of a logit of the teacher's, which stay for all micro-batches of a generation
(trainers/gkd_trainer.py:246-269).
"""
ACCOUNTED = frozenset({"use_vllm", "teacher_model", "ref_model", "loss_type", "colocate_groups"})
TRAIN, SERVE = "train", "rollout"
OWN_GROUP = f"{SERVE}."
TEACHERS_APART = (
    "the teacher has cards of its own, which are not counted here: `memsheet infer --engine vllm`"
)
ALWAYS_LOADED = "a reference is loaded whatever beta is where all weights learn (trainers/rlhf_mixin.py:36)"
UNSAID_PROMPT = "nothing says how long rows are: --max_length says a prompt's tokens"


def swift_megatron_job(
    values: Values, plan: Mapping[str, Any], model: str, sizes: Sizes, held: TrainedBytes, *, said: bool
) -> JobDraft | None:
    """The job of ``megatron rlhf``. ``plan``: of what trains, as its own sheet has it; ``said``: whether the
    length of its rows is.
    """
    method = str(values.get("rlhf_type", "dpo")).lower()
    if method in ("dpo", "kto"):
        return _preferences_job(method, values, plan, model)
    if method not in ("grpo", "gkd"):
        return None
    actor, _ = planned_actor(plan)
    new, prompt = answer_tokens(values), actor.get("seq_len")
    rows = actor.get("microbatch")
    if not all(type(one) is int and one > 0 for one in (new, prompt, rows)):
        return None
    actor["seq_len"] = prompt + new
    roles: dict[str, Any] = {"actor": {"model": model, "plan": actor, "trained": True, "process": "trainer"}}
    if method == "grpo":
        _add_reference(values, roles)
    served = _serve(values, roles, model, held, sizes)
    if served is None:
        return None
    beside, phases, placement, notes = served
    make = _grpo_passes if method == "grpo" else _gkd_passes
    found = make(values, roles, beside, sizes)
    if found is None:
        return None
    passes, more = found
    words = [*unread_words(_server_values(values)), *([] if said else [UNSAID_PROMPT])]
    if values.get("multi_turn_scheduler") is not None or values.get("use_gym_env") is True:
        words.append("rows of several turns may be longer than a prompt and an answer")
    return swift_document(
        f"swift-megatron-{method}", roles, [*phases, *passes], notes=(*notes, *more), words=tuple(words), accounted=ACCOUNTED,
        shorter_rows=True, placement=placement,
    )  # fmt: skip


def _is_adapted(actor: Mapping[str, Any]) -> bool:
    return bool(actor.get("adapter"))


def _add_reference(values: Values, roles: dict[str, Any]) -> None:
    """The copy that gives the reference's, which adapters that are switched off do without
    (trainers/rlhf_mixin.py:32-47, 56-72).
    """
    actor = roles["actor"]
    if not _is_adapted(actor["plan"]):
        named = str(values.get("ref_model") or actor["model"])
        roles["reference"] = planned_reference({**actor["plan"], "global_batch": None}, named)


def _preferences_job(method: str, values: Values, plan: Mapping[str, Any], model: str) -> JobDraft:
    """Pairs or marked answers, of which the model gives every token's loss (trainers/dpo_trainer.py:84-102,
    kto_trainer.py:96-140).
    """
    actor = {key: held for key, held in plan.items() if key not in ("schema", "model", "gpus", "phase")}
    roles: dict[str, Any] = {"actor": {"model": model, "plan": actor, "trained": True, "process": "trainer"}}
    phases: list[dict[str, Any]] = []
    if values.get("reference_free") is not True or not _is_adapted(actor):
        why = "of all tokens, read only (trainers/dpo_trainer.py:96)"
        logits = {"bytes": list(OF_LABELS), "why": why}
        _add_reference(values, roles)
        place = "reference" if "reference" in roles else "actor"
        phases.append({"name": "ref", "active": place, "work": "forward", "logits": logits})
    phases.append({"name": "update_actor", "active": "actor"})
    return swift_document(f"swift-megatron-{method}", roles, phases, accounted=ACCOUNTED, shorter_rows=True)


def _server_values(values: Values) -> Values:
    """Options of the server: of its own group where ray starts it, else of all."""
    own = {at.removeprefix(OWN_GROUP): held for at, held in values.items() if at.startswith(OWN_GROUP)}
    return {**values, **own}


def _where_served(values: Values) -> str | None:
    """``colocate``, ``server``, or ``apart`` of ray's own group (docs/source_en/Instruction/Ray.md); None
    where nobody says.
    """
    if values.get(f"{OWN_GROUP}gpus") is not None:
        groups = values.get("colocate_groups")
        together = any(isinstance(one, list) and {TRAIN, SERVE} <= set(one) for one in groups or [])
        return "colocate" if together else "apart"
    mode = values.get("vllm_mode")
    return mode if mode in ("colocate", "server") else None


def _serve(
    values: Values, roles: dict[str, Any], model: str, held: TrainedBytes, sizes: Sizes
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any], tuple[str, ...]] | None:
    """What stands beside the trainer's passes, the phases before them, where the server is, and notes; its
    role is added to ``roles``.
    """
    actor, where, own = roles["actor"]["plan"], _where_served(values), _server_values(values)
    if _has_teacher(values, roles):
        teacher = str(values["teacher_model"])
        roles["teacher"] = planned_reference({**actor, "global_batch": None}, teacher)
    away: dict[str, str] = (
        {"teacher": "offloaded"} if "teacher" in roles and values.get("offload_teacher_model") is True else {}
    )
    table = 2 * sizes.vocab * sizes.hidden
    sent = [
        extra_item("communication", "gathered", (0, table, 2 * table), "the largest tensor, gathered"),
    ]
    generates = values.get("rlhf_type") == "grpo" or values.get("lmbda", 0.5) > 0
    if values.get("use_vllm", True) is not True or not generates:
        return ({"residents": away}, [], {}, ()) if values.get("rlhf_type") == "gkd" else None
    if where is None:
        return None
    if where == "server":
        bucket = extra_item(
            "communication", "bucket", (0, BUCKET, BUCKET), "the buffer that weights are sent through"
        )
        first = {"name": "update_weights", "residents": away, "items": [*sent, bucket]}
        return {"residents": away}, [first], {}, (APART,)
    server = server_plan(own, _sequences(values, actor, own))
    if server is None:
        return None
    count, group = card_count(actor), own.get("gpus")
    roles["rollout"] = {"model": model, "plan": server, "process": "trainer" if group is None else "rollout"}
    placement: dict[str, Any] = {}
    if where == "apart":
        if type(group) is not int or group % server["mesh"]["tp"]:
            return None
        placement = {**{name: [0, count] for name in roles}, "rollout": [count, group]}
        first = {"name": "update_weights", "residents": away, "items": sent}
        return (
            {"residents": away},
            [first, {"name": "gen", "active": "rollout", "residents": away}],
            placement,
            (),
        )
    asleep = sleeps_by(values)
    rest, kept = rest_while_serving(actor, values, held)
    still = {"reference": "offloaded"} if "reference" in roles and values.get("offload_model") is True else {}
    phases: list[dict[str, Any]] = [
        {"name": "update_weights", "residents": {**away, "rollout": "parameters" if asleep != "whole" else "whole"}, "items": sent},
        {"name": "gen", "active": "rollout", "residents": {**away, **still, "actor": rest}, "items": [*kept, POOL]},
    ]  # fmt: skip
    beside: dict[str, Any] = {"residents": {**away, "rollout": asleep}}
    if asleep == "whole":
        beside["items"] = [POOL]
    return beside, phases, placement, ((AWAKE,) if asleep == "whole" else ())


def _has_teacher(values: Values, roles: Mapping[str, Any]) -> bool:
    """Whether a second model gives the teacher's (trainers/rollout_mixin.py:210-232)."""
    named = values.get("teacher_model")
    adapted = _is_adapted(roles["actor"]["plan"])
    return isinstance(named, str) and not (adapted and named == values.get("model"))


def _sequences(values: Values, actor: Mapping[str, Any], own: Values) -> int:
    """Sequences of its vLLM (trainers/rollout_mixin.py:449-451, arguments/megatron_args.py:327-341)."""
    tensor = own.get("vllm_tensor_parallel_size", 1)
    batch = actor.get("global_batch") or 16
    rounds = values.get("steps_per_generation")
    given = values.get("generation_batch_size")
    whole = given if type(given) is int else batch * (rounds if type(rounds) is int else 1)
    each = max(1, whole // card_count(actor)) if values.get("rlhf_type") == "grpo" else actor["microbatch"]
    return each * tensor if type(tensor) is int else each


def _each(actor: Mapping[str, Any], of: Mapping[bool, Any]) -> Any:
    return of[int((actor.get("mesh") or {}).get("tp", 1)) > 1]


def _forward(name: str, role: str, actor: Mapping[str, Any], beside: Mapping[str, Any]) -> dict[str, Any]:
    residents = {**beside["residents"], **({role: "whole"} if role == "teacher" else {})}
    logits = {
        "bytes": list(_each(actor, READ)),
        "why": "of all tokens, read only (trainers/utils.py:407-449)",
    }
    return {
        "name": name,
        "active": role,
        "work": "forward",
        "logits": logits,
        **beside,
        "residents": residents,
    }


def _grpo_passes(
    values: Values, roles: dict[str, Any], beside: dict[str, Any], _: Sizes
) -> tuple[list[dict[str, Any]], tuple[str, ...]] | None:
    """Old log-probabilities last (trainers/grpo_trainer.py:634-684)."""
    actor, beta, found = roles["actor"]["plan"], beta_of(values, "grpo"), []
    if not isinstance(beta, int | float):
        return None
    place = "reference" if "reference" in roles else "actor"
    more: tuple[str, ...] = ()
    if beta:
        found.append(_forward("ref", place, actor, beside))
    elif "reference" in roles:
        more = (ALWAYS_LOADED,)
    if values.get("teacher_model") is not None:
        found.append(_forward("teacher", "teacher" if "teacher" in roles else "actor", actor, beside))
    found.append(_forward("old_log_prob", "actor", actor, beside))
    why = "of all tokens, with their gradients (trainers/grpo_trainer.py:900-907)"
    logits = {"bytes": list(_each(actor, LEARNT)), "why": why}
    return [*found, {"name": "update_actor", "active": "actor", **beside, "logits": logits}], more


def _gkd_passes(
    values: Values, roles: dict[str, Any], beside: dict[str, Any], sizes: Sizes
) -> tuple[list[dict[str, Any]], tuple[str, ...]] | None:
    """The teacher gives the logits of all micro-batches of a generation before the first is learnt from
    (trainers/gkd_trainer.py:320, 346).
    """
    actor, beta, topk = roles["actor"]["plan"], beta_of(values, "gkd"), values.get("gkd_logits_topk")
    if not isinstance(beta, int | float):
        return None
    asked = values.get("teacher_model_server") is not None or values.get("teacher.gpus") is not None
    kept = [] if asked or topk else [_teachers_logits(values, actor, sizes)]
    beside_both = {**beside, "items": [*beside.get("items", ()), *kept]} if kept else beside
    found = []
    if not asked:
        role = "teacher" if "teacher" in roles else "actor"
        found.append(_forward("teacher", role, actor, beside_both))
    end, between, likely = _each(actor, DISTILLED)
    each = likely if topk else end if beta in (0, 1) else between
    why = "of the student, and the divergence from the teacher's (rlhf_trainers/gkd_loss.py:215)"
    logits = {"bytes": [6, each, each], "why": why}
    update = {"name": "update_actor", "active": "actor", **beside_both, "logits": logits}
    return [*found, update], ((TEACHERS_APART,) if asked else ())


def _teachers_logits(values: Values, actor: Mapping[str, Any], sizes: Sizes) -> dict[str, Any]:
    mesh = actor.get("mesh") or {}
    tensor, context = (int(mesh.get(axis, 1)) for axis in ("tp", "cp"))
    rounds = values.get("steps_per_generation")
    rows = (actor.get("global_batch") or 16) // ranks_of_data(actor) * (rounds if type(rounds) is int else 1)
    one = (
        OF_TEACHER
        * int(actor["microbatch"])
        * -(-int(actor["seq_len"]) // context)
        * -(-sizes.vocab // tensor)
    )
    every = one * max(1, rows // int(actor["microbatch"]))
    why = "the teacher's logits of all micro-batches, on the last stage (trainers/gkd_trainer.py:246-269)"
    return extra_item("temporaries", "teacher_logits", (0, every, every), why)
