"""TRL's jobs that generate or distil, of the values of its configurations: YAML, flags, or a script's call.

Lines are of huggingface/trl f2cd577, under trl. Bytes of a logit were counted of its own functions with
torch 2.13, as of ``templates.trl``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.jobs.templates.option import option_refusal
from memsheet.jobs.templates.planned import Made, planned_actor, planned_reference, ranks_of_data
from memsheet.jobs.templates.trl import GRPO, PROMPT, grpo_notes, grpo_phases, has_reference, rollout_plan

Values = Mapping[str, Any]
RLOO = {
    **GRPO,
    "num_generations": GRPO["num_generations"]._replace(usual=2),
    "beta": GRPO["beta"]._replace(usual=0.05),
}
"""Its own defaults (trainer/rloo_config.py:297, 494); it runs the same passes
(trainer/rloo_trainer.py:1458-1480).
"""
OF_METHODS = {"GRPO": GRPO, "RLOO": RLOO}
OTHER_GENERATION = ("use_transformers_paged", "use_transformers_continuous_batching")
"""With a cache in blocks, which nobody accounts (trainer/grpo_config.py:171)."""
OWN_ENGINES = ("transformers", "deepspeed")
"""Under which a model generates with whole layers; FSDP gathers them one by one."""
UNSAID_PROMPT = f"nothing says how long prompts are: counted with {PROMPT} tokens (--seq-len says a row's)"
UNSAID_MODE = (
    "vllm_mode is not said: counted on the same cards, as releases since 1.0 take it, and on others' before"
)
DISTILLED: Mapping[str, tuple[int, int]] = {"widened": (36, 68), "computed": (18, 34)}
"""Bytes of a logit of the student: of both ends of the divergence, and between them (experimental/gkd/
gkd_trainer.py:216-300: logits and their logarithms of both models, two stacked mixtures, three divergences).
"""
OF_SFT = 1024
"""Tokens of a row by itself (trainer/sft_config.py, max_length)."""


def generating_document(
    method: str, values: Values, plan: Mapping[str, Any], model: str, token_elements: int
) -> Made | None:
    """The job of ``GRPOTrainer`` or ``RLOOTrainer``. ``plan``: of what trains, as its own sheet has it;
    ``token_elements``: what one token adds to the cache of a model that generates by itself.

    None where something of it is not accounted: a server of unknown share, an engine whose layers are
    gathered for generation.
    """
    served, mode = values.get("use_vllm") is True, values.get("vllm_mode")
    if values.get("use_vllm") not in (None, True, False) or mode not in (None, "colocate", "server"):
        return None
    actor, whole = planned_actor(plan)
    own = not served and values.get("use_vllm") is not True
    if own and (actor["engine"] not in OWN_ENGINES or any(values.get(at) for at in OTHER_GENERATION)):
        return None
    known = OF_METHODS[method]
    options = {
        name: held if (held := values.get(name)) is not None else option.usual
        for name, option in known.items()
    }
    rows = actor.get("microbatch")
    options |= {
        "vllm": (mode or "colocate") if served else "server", "engine": actor.get("engine"), "lora_rank": (actor.get("adapter") or {}).get("rank"),
        "use_liger_kernel": not whole, "per_device_train_batch_size": rows, "optim": "adamw", "zero": actor.get("zero"),
        "max_prompt_length": options["max_prompt_length"] or PROMPT,
    }  # fmt: skip
    batch = values.get("generation_batch_size")
    if isinstance(batch, int) and isinstance(rows, int):
        options["steps_per_generation"] = max(1, batch // (rows * ranks_of_data(actor)))
    if any(
        option_refusal(held, known[name])
        for name, held in options.items()
        if held is not None and name not in ("engine", "zero")
    ):
        return None
    said = values.get("max_prompt_length") is not None or _rows_are_said(values, actor, options)
    if not _rows_are_said(values, actor, options):
        actor["seq_len"] = options["max_prompt_length"] + options["max_completion_length"]
    roles: dict[str, Any] = {"actor": {"model": model, "plan": actor, "trained": True, "process": "trainer"}}
    if has_reference(options):
        roles["reference"] = planned_reference(actor, model)
    phases = [
        one
        for one in grpo_phases(options)
        if not own or one["name"] != "old_log_prob" or _reads_first(method, values)
    ]
    if options["vllm"] == "colocate":
        roles["rollout"] = {"model": model, "plan": rollout_plan(options), "process": "trainer"}
    elif own:
        roles["rollout"] = _own_generation(actor, options, model)
        phases = [
            _generating(actor, options, token_elements),
            *({**one, "residents": {"rollout": "absent"}} for one in phases),
        ]
    document = {
        "schema": "memsheet/job/1",
        "name": "trl-recipe",
        "roles": roles,
        "phases": phases,
        "notes": [] if own else grpo_notes(options),
    }
    return Made(document, tuple(_open_words(values, served=served, said=said)))


def _reads_first(method: str, values: Values) -> bool:
    """Whether log-probabilities are made before the update where no server generates: always by RLOO, and
    where a generation serves several updates (trainer/grpo_trainer.py:2540-2556).
    """
    apart = ("num_iterations", "steps_per_generation", "generation_batch_size")
    return method != "GRPO" or any(values.get(at) not in (None, 1) for at in apart)


def _rows_are_said(values: Values, actor: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Whether somebody says a row's length, which leaves room for its answer."""
    length = values.get("@seq_len")
    return (
        isinstance(length, int)
        and length == actor.get("seq_len")
        and length > options["max_completion_length"]
    )


def _open_words(values: Values, *, served: bool, said: bool) -> list[str]:
    found = [] if said else [UNSAID_PROMPT]
    if served and values.get("vllm_mode") is None:
        found.append(UNSAID_MODE)
    rewards = values.get("reward_funcs")
    named = [
        one
        for one in (rewards if isinstance(rewards, list) else [rewards])
        if isinstance(one, str) and "/" in one
    ]
    named += [
        name
        for at in ("reward_model_name_or_path", "reward_model_path", "reward_model")
        if isinstance(name := values.get(at), str)
    ]
    if named:
        found.append(f"the reward model {named[0]} shares the cards and is not counted")
    found += [
        f"{at} {values[at]} is not counted" for at, usual in (("entropy_coef", (0, 0.0)), ("cast_lm_head_to_fp32", (False,)), ("use_adaptive_entropy", (False,)))
        if values.get(at) is not None and values[at] not in usual
    ]  # fmt: skip
    return found


def _generated_rows(options: Mapping[str, Any]) -> int:
    """Rows of one generation on a card (trainer/grpo_config.py:1077)."""
    return int(options["per_device_train_batch_size"]) * int(
        options["steps_per_generation"] or options["gradient_accumulation_steps"]
    )


def _own_generation(actor: Mapping[str, Any], options: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The model that generates itself, with the trainer's own tensors; where ZeRO divides them, with a whole
    copy that is gathered (models/utils.py, unwrap_model_for_generation).
    """
    prompt, rows = options["max_prompt_length"], _generated_rows(options)
    width = (actor.get("precision") or {}).get("compute", "bf16")
    serving = {
        "max_model_len": prompt + options["max_completion_length"],
        "max_sequences": rows,
        "prompt_tokens": prompt,
    }
    plan = {
        "task": "infer",
        "engine": "transformers",
        "precision": {"parameters": width, "compute": width},
        "serving": serving,
    }
    gathered = actor.get("engine") == "deepspeed" and actor.get("zero") == 3
    return {
        "model": model,
        "plan": plan,
        "process": "trainer",
        **({} if gathered else {"weights_of": "actor"}),
    }


def _generating(actor: Mapping[str, Any], options: Mapping[str, Any], token_elements: int) -> dict[str, Any]:
    """The phase of it. Beside weights in fp32 keys are turned in fp32 and values are not: half as much of the
    cache again, and as much again at the most.
    """
    phase: dict[str, Any] = {"name": "gen", "active": "rollout"}
    if (actor.get("precision") or {}).get("parameters") == "fp32":
        tokens = _generated_rows(options) * (options["max_prompt_length"] + options["max_completion_length"])
        cache = 2 * token_elements * tokens
        why = "keys that rotary angles in fp32 make fp32, and values at the most"
        phase["items"] = [
            {"component": "kv_cache", "path": "cache_in_fp32", "bytes": [0, cache // 2, cache], "why": why}
        ]
    return phase


def distilling_document(values: Values, plan: Mapping[str, Any], model: str, teacher: str) -> Made:
    """The job of ``GKDTrainer``: a student, and a teacher whose logits stand beside its own. It generates
    without a cache where layers are recomputed (experimental/gkd/gkd_trainer.py:185).
    """
    actor, _ = planned_actor(plan)
    length, new = values.get("max_length") or OF_SFT, values.get("max_new_tokens", 128)
    if isinstance(length, int):
        actor["seq_len"] = length
    roles = {
        "actor": {"model": model, "plan": actor, "trained": True, "process": "trainer"}, "teacher": planned_reference(actor, teacher),
    }  # fmt: skip
    phase: dict[str, Any] = {"name": "update_actor", "active": "actor"}
    if values.get("use_liger_kernel") is not True:
        ends, between = DISTILLED["computed" if actor["engine"] == "deepspeed" else "widened"]
        each = ends if values.get("beta", 0.5) in (0, 1) else between
        more = (
            -(-each * (length + new) // length)
            if isinstance(length, int) and isinstance(new, int)
            else 2 * each
        )
        phase["logits"] = {
            "bytes": [ends // 2, each, more],
            "why": "of student and teacher, their logarithms and divergences",
        }
    words = ("the teacher is counted in the width of the student's weights, and loaded in its own",)
    document = {"schema": "memsheet/job/1", "name": "trl-gkd", "roles": roles, "phases": [phase]}
    return Made(document, words if values.get("teacher_model_init_kwargs") is None else ())


def online_document(values: Values, plan: Mapping[str, Any], model: str) -> Made | None:
    """The job of ``OnlineDPOTrainer``: two answers of every prompt are learnt from, beside a copy of the
    model (experimental/online_dpo/online_dpo_trainer.py:321-328, 1059-1170). What it generates by itself has
    fewer bytes a row than the step that follows.
    """
    if values.get("use_vllm") not in (None, False):
        return None
    actor, _ = planned_actor(plan)
    sizes = [values.get("max_length", 512), values.get("max_new_tokens", 64), actor.get("microbatch")]
    length, new, rows = (one if isinstance(one, int) and one > 0 else 0 for one in sizes)
    if not (length and new and rows):
        return None
    actor |= {"microbatch": 2 * rows, "seq_len": length}
    if isinstance(whole := actor.get("global_batch"), int):
        actor["global_batch"] = 2 * whole
    roles: dict[str, Any] = {"actor": {"model": model, "plan": actor, "trained": True, "process": "trainer"}}
    if not actor.get("adapter"):
        roles["reference"] = planned_reference(actor, model)
    part = min(1.0, new / length)
    widened = int(max(6 + 4 * part, 4 + 8 * part)) + 1
    low, most = (2, 6 + int(8 * part) + 1)
    value = widened // 2 + 1 if actor["engine"] == "deepspeed" else widened
    logits = {
        "bytes": [low, value, max(most, value)],
        "why": "of whole rows, and logarithms of the answers' with their gradients",
    }
    phases = [{"name": "update_actor", "active": "actor", "logits": logits}]
    return Made(
        {"schema": "memsheet/job/1", "name": "trl-online", "roles": roles, "phases": phases},
        tuple(_open_words(values, served=False, said=True)),
    )


POLICY, LEARNT_OF_POLICY = (8, 16, 20), (4, 8, 20)
"""Bytes of a logit of PPO's policy, which are of whole rows, as fp32 and as computed (experimental/ppo/
ppo_trainer.py:766-770, 797-798): the more of a row the answer is, the more.
"""
SCORES = (4, 8, 12)
"""Of a logit of every answer that is generated at once: a step's, all of a part stacked, and of all parts
(experimental/ppo/ppo_trainer.py:115-144).
"""
OF_REWARD, OF_RESPONSE = "EleutherAI/pythia-160m", 53
"""By themselves (experimental/ppo/ppo_config.py:151, 220)."""


def ppo_document(
    values: Values, plan: Mapping[str, Any], model: str, vocab: int, token_elements: int
) -> Made | None:
    """The job of ``PPOTrainer``: policy and critic are one module, whose passes are both saved before either
    goes back; nothing of it is recomputed, whatever is said, as its own loop never asks for that
    (experimental/ppo/ppo_trainer.py:272-296, 574-900). A copy of the policy and a reward model stand beside.
    """
    actor, _ = planned_actor(plan)
    new, rows, rounds = (
        values.get("response_length", OF_RESPONSE),
        actor.get("microbatch"),
        values.get("gradient_accumulation_steps", 1),
    )
    reward = next(
        (
            held
            for at in ("reward_model_path", "reward_model")
            if isinstance(held := values.get(at), str) and " " not in held
        ),
        OF_REWARD,
    )
    if not all(isinstance(one, int) and one > 0 for one in (new, rows, rounds)):
        return None
    said = isinstance(values.get("@seq_len"), int)
    actor |= {"seq_len": values["@seq_len"] if said else PROMPT + new, "recompute": {"mode": "none"}}
    whole = {key: held for key, held in actor.items() if key != "adapter"}
    roles: dict[str, Any] = {
        "actor": {"model": model, "plan": actor, "trained": True, "process": "trainer"},
        "critic": {"model": reward, "plan": whole, "trained": True, "process": "trainer", "head": "values"},
        "reward": {**planned_reference(actor, reward), "head": "values"},
    }
    if not actor.get("adapter"):
        roles["reference"] = planned_reference(actor, model)
    answers, tokens = rows * rounds * new, rows * rounds * actor["seq_len"]
    kept = [
        answers * vocab * each + 2 * token_elements * tokens * times
        for each, times in zip(SCORES, (1, 1, 2), strict=True)
    ]
    each = LEARNT_OF_POLICY if actor["engine"] == "deepspeed" else POLICY
    why = "logits of every answer that is generated at once, and its cache (ppo_trainer.py:115)"
    phases = [
        {"name": "gen", "items": [{"component": "temporaries", "path": "scores", "bytes": kept, "why": why}]},
        {
            "name": "update_actor",
            "active": "actor",
            "logits": {"bytes": list(each), "why": "of whole rows, with their gradients"},
        },
    ]
    words = [OF_POLICY, *([] if said else [UNSAID_PROMPT])]
    return Made(
        {"schema": "memsheet/job/1", "name": "trl-ppo", "roles": roles, "phases": phases}, tuple(words)
    )


OF_POLICY = "critic and reward model are counted in the width of the policy"
