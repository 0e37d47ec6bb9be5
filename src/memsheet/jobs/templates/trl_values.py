"""TRL's jobs that generate or distil, of the values of its configurations: YAML, flags, or a script's call.

Lines are of huggingface/trl f2cd577, under trl. Bytes of a logit were counted of its own functions with
torch 2.13, as of ``templates.trl``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import UNSET
from memsheet.jobs.templates.generation import generating_phase, own_generation
from memsheet.jobs.templates.liger import head_gradient_items, student_chunk_items
from memsheet.jobs.templates.option import option_refusal
from memsheet.jobs.templates.planned import (
    JobDraft,
    Sizes,
    extra_item,
    known_share,
    planned_actor,
    planned_reference,
    planned_reward,
    ranks_of_data,
)
from memsheet.jobs.templates.trl import GRPO, PROMPT, grpo_notes, grpo_phases, has_reference, rollout_plan
from memsheet.jobs.templates.trl_colocated import (
    ONLINE_SHARE,
    SHARES,
    UNSAID_MODE,
    card_of_its_own,
    may_be_elsewhere,
    serves_beside,
    vllm_beside,
)

Values = Mapping[str, Any]
RLOO = {
    **GRPO,
    "num_generations": GRPO["num_generations"]._replace(usual=2),
    "beta": GRPO["beta"]._replace(usual=0.05),
}
"""Its own defaults (trainer/rloo_config.py:297, 494); it runs the same passes
(trainer/rloo_trainer.py:1458-1480).
"""
SHORT = {**GRPO, "max_completion_length": GRPO["max_completion_length"]._replace(usual=256)}
"""Answers of those that are taught by themselves (experimental/sdpo/sdpo_config.py:299,
experimental/sdft/sdft_config.py:224, experimental/ssd/ssd_config.py:131).
"""
OF_METHODS = {"GRPO": GRPO, "RLOO": RLOO, "MiniLLM": GRPO, **dict.fromkeys(("SDPO", "SDFT", "SSD"), SHORT)}
LONGEST, SHARE = "vllm_max_model_length", "vllm_gpu_memory_utilization"
EARLIER_LENGTH = ("GRPO", "RLOO", "MiniLLM")
"""Trainers whose server takes a prompt and an answer in releases of 0.19 to 0.25 (v0.25.0
trainer/grpo_trainer.py:594), and since as many tokens as the model was made for (v0.26.0
trainer/grpo_trainer.py:667).
"""
OTHER_GENERATION = ("use_transformers_paged", "use_transformers_continuous_batching")
"""With a cache in blocks, which nobody accounts (trainer/grpo_config.py:171)."""
OWN_ENGINES = ("transformers", "deepspeed")
"""Under which a model generates with whole layers; FSDP gathers them one by one."""
UNSAID_PROMPT = f"nothing says how long prompts are: counted with {PROMPT} tokens (--seq-len says a row's)"
DISTILLED: Mapping[str, tuple[int, int]] = {"widened": (36, 68), "computed": (18, 34)}
"""Bytes of a logit of the student: of both ends of the divergence, and between them (experimental/gkd/
gkd_trainer.py:216-300: logits and their logarithms of both models, two stacked mixtures, three divergences).
"""
GROUP = "num_generations"
OF_SFT = 1024
"""Tokens of a row by itself (trainer/sft_config.py, max_length)."""


def generating_document(
    method: str, values: Values, plan: Mapping[str, Any], model: str, token_elements: int, sizes: Sizes
) -> JobDraft | None:
    """The job of ``GRPOTrainer`` or ``RLOOTrainer``. ``plan``: of what trains, as its own sheet has it;
    ``token_elements``: what one token adds to the cache of a model that generates by itself.

    None where something of it is not accounted: a server of unknown share, an engine whose layers are
    gathered for generation.
    """
    served, mode = values.get("use_vllm") is True, values.get("vllm_mode") or card_of_its_own(values)
    if values.get("use_vllm") not in (None, True, False) or mode not in (None, "colocate", "server"):
        return None
    actor, whole = planned_actor(plan)
    own = not served and values.get("use_vllm") is not True
    if own and (actor["engine"] not in OWN_ENGINES or any(values.get(at) for at in OTHER_GENERATION)):
        return None
    known = OF_METHODS[method]
    known_values = {at: held for at, held in values.items() if held != UNSET or at != GROUP}
    options = {
        name: held if (held := known_values.get(name)) is not None else option.usual
        for name, option in known.items()
    }
    rows = actor.get("microbatch")
    options |= {
        "vllm": (mode or "colocate") if served else "server", "engine": actor.get("engine"), "lora_rank": (actor.get("adapter") or {}).get("rank"),
        "use_liger_kernel": not whole, "per_device_train_batch_size": rows, "optim": "adamw", "zero": actor.get("zero"),
        "max_prompt_length": options["max_prompt_length"] or PROMPT,
    }  # fmt: skip
    options[SHARE] = known_share(options[SHARE], known[SHARE].usual)
    batch = values.get("generation_batch_size")
    if isinstance(batch, int) and isinstance(rows, int):
        options["steps_per_generation"] = max(1, batch // (rows * ranks_of_data(actor)))
    if any(
        option_refusal(held, known[name])
        for name, held in options.items()
        if held is not None and name not in ("engine", "zero")
    ):
        return None
    said = values.get("max_prompt_length") is not None or _row_length_is_set(values, actor, options)
    if not _row_length_is_set(values, actor, options):
        actor["seq_len"] = options["max_prompt_length"] + options["max_completion_length"]
    unsaid = LONGEST if method in EARLIER_LENGTH and options[LONGEST] is None else ""
    if unsaid:
        options[LONGEST] = max(
            int(actor["seq_len"]), options["max_prompt_length"] + options["max_completion_length"]
        )
    roles: dict[str, Any] = {"actor": {"model": model, "plan": actor, "trained": True, "process": "trainer"}}
    if has_reference(options):
        roles["reference"] = planned_reference(actor, model)
    phases = [
        one
        for one in grpo_phases(options)
        if not own or one["name"] != "old_log_prob" or _reads_first(method, values)
    ]
    if not whole and method == "GRPO":
        phases[-1] = {
            **phases[-1],
            "items": [*phases[-1].get("items", ()), *head_gradient_items(sizes, actor)],
        }
    if options["vllm"] == "colocate":
        roles["rollout"] = {"model": model, "plan": rollout_plan(options), "process": "trainer"}
    elif own:
        rows, length = (
            _generated_rows(options),
            options["max_prompt_length"] + options["max_completion_length"],
        )
        new = options["max_completion_length"]
        roles["rollout"] = own_generation({**actor, "seq_len": length}, model, rows=rows, new=new)
        phases = [
            generating_phase(actor, token_elements * rows * length),
            *({**one, "residents": {"rollout": "absent"}} for one in phases),
        ]
    rewards = _reward_roles(values, actor)
    if rewards:
        beside: dict[str, Any] = {at: phases[-1][at] for at in ("residents", "items") if at in phases[-1]}
        length = options["max_prompt_length"] + options["max_completion_length"]
        phases[-1:-1] = _reward_phases(rewards, _generated_rows(options), length, beside)
        roles |= rewards
    document = {
        "schema": "memsheet/job/1",
        "name": "trl-recipe",
        "roles": roles,
        "phases": phases,
        "notes": [] if own else grpo_notes(options),
    }
    group = (f"{GROUP} is not told: counted with {options[GROUP]}",) if values.get(GROUP) == UNSET else ()
    longest = options["max_completion_length"]
    left_open = _open_words(values, served=served, said=said, answer=longest)
    words = (*left_open, *group, *_width_words(rewards, actor))
    over = (OF_REWARDS,) if rewards else ()
    return JobDraft(
        document,
        words,
        shorter_rows=True,
        over_words=over,
        elsewhere=may_be_elsewhere(words),
        unsaid_longest=unsaid if "rollout" in roles and not own else "",
    )


def _reads_first(method: str, values: Values) -> bool:
    """Whether log-probabilities are made before the update where no server generates: always by RLOO, and
    where a generation serves several updates (trainer/grpo_trainer.py:2540-2556).
    """
    apart = ("num_iterations", "steps_per_generation", "generation_batch_size")
    return method != "GRPO" or any(values.get(at) not in (None, 1) for at in apart)


def _row_length_is_set(values: Values, actor: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Whether somebody says a row's length, which leaves room for its answer."""
    length = values.get("@seq_len")
    return (
        isinstance(length, int)
        and length == actor.get("seq_len")
        and length > options["max_completion_length"]
    )


def _unsaid_prompt(values: Values, answer: int) -> str:
    """That nobody says how long prompts are, or that what is said leaves no room for one."""
    length = values.get("@seq_len")
    if isinstance(length, int) and length <= answer:
        return f"{UNSAID_PROMPT[:-1]}, and {length:,} leave none beside an answer of {answer:,})"
    return UNSAID_PROMPT


def _open_words(values: Values, *, served: bool, said: bool, answer: int = 0) -> list[str]:
    found = [] if said else [_unsaid_prompt(values, answer)]
    if served and values.get("vllm_mode") is None and card_of_its_own(values) is None:
        found.append(UNSAID_MODE)
    if values.get("judge") is not None:
        found.append(f"the judge {values['judge']} may have a model on the cards and is not counted")
    found += [
        f"{at} {values[at]} is not counted" for at, usual in (("entropy_coef", (0, 0.0)), ("cast_lm_head_to_fp32", (False,)), ("use_adaptive_entropy", (False,)))
        if values.get(at) is not None and values[at] not in usual
    ]  # fmt: skip
    return found


REWARDS = ("reward_model_name_or_path", "reward_model_path", "reward_model")
MOST_REWARDS = 8
OF_REWARDS = "the model that rewards is counted in the width of the trained model's weights"


def reward_names(values: Values) -> list[str]:
    """Models that reward, by their names: functions have no slash in theirs (trainer/grpo_trainer.py:511-520,
    scripts/grpo.py:90).
    """
    given = values.get("reward_funcs")
    found = [
        one
        for one in (given if isinstance(given, list) else [given])
        if isinstance(one, str) and "/" in one and " " not in one
    ]
    found += [
        name
        for at in REWARDS
        if isinstance(name := values.get(at), str) and " " not in name and name != UNSET
    ]
    return list(dict.fromkeys(found))[:MOST_REWARDS]


def _reward_roles(values: Values, actor: Mapping[str, Any]) -> dict[str, Any]:
    """Those models as roles: the first is ``reward``, further ones are numbered."""
    return {
        f"reward_{number}" if number else "reward": planned_reward(actor, name)
        for number, name in enumerate(reward_names(values))
    }


def _reward_phases(
    roles: Mapping[str, Any], rows: int, length: int, beside: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Their passes over all rows of a generation at once (trainer/grpo_trainer.py:1638-1653). ``beside``:
    what else the trainer's passes have.
    """
    return [
        {"name": name, "active": name, "work": "forward", "plan": {"microbatch": rows, "seq_len": length}, **beside}
        for name in roles
    ]  # fmt: skip


def _width_words(roles: Mapping[str, Any], actor: Mapping[str, Any]) -> tuple[str, ...]:
    """What stays open of models that reward: whether their weights are wider than they are counted."""
    wide = (actor.get("precision") or {}).get("parameters") == "fp32"
    return (OF_REWARDS,) if roles and not wide else ()


def _generated_rows(options: Mapping[str, Any]) -> int:
    """Rows of one generation on a card (trainer/grpo_config.py:1077)."""
    return int(options["per_device_train_batch_size"]) * int(
        options["steps_per_generation"] or options["gradient_accumulation_steps"]
    )


OF_ANSWERS = "distillation"
ANSWERS_OF: Mapping[str, tuple[str, int]] = {
    "GKD": ("max_new_tokens", 128), "GOLD": ("max_completion_length", 128), OF_ANSWERS: ("max_completion_length", 512),
}  # fmt: skip
"""By the method what says the tokens of an answer, and how many there are by themselves
(experimental/distillation/distillation_config.py:161, whose loss is of answers alone).
"""
APART = "vLLM has cards of its own, which are not counted here: `memsheet infer --engine vllm`"


def distilling_document(
    method: str, values: Values, plan: Mapping[str, Any], model: str, teacher: str, sizes: Sizes
) -> JobDraft | None:
    """The job of ``GKDTrainer``, ``GOLDTrainer`` and ``DistillationTrainer``: a student, and a teacher whose
    logits stand beside its own. It generates without a cache where layers are recomputed
    (experimental/gkd/gkd_trainer.py:185; experimental/gold/gold_trainer.py:2249-2300, 2575-2600). None where
    a number of a server beside it is none.
    """
    actor, _ = planned_actor(plan)
    answer, usual = ANSWERS_OF[method]
    new = values.get(answer, usual)
    length = values.get("max_length") or OF_SFT
    if method == OF_ANSWERS:
        said = values.get("@seq_len")
        length = said if isinstance(said, int) else PROMPT + new if isinstance(new, int) else None
    if isinstance(length, int):
        actor["seq_len"] = length
    roles = {
        "actor": {"model": model, "plan": actor, "trained": True, "process": "trainer"}, "teacher": planned_reference(actor, teacher),
    }  # fmt: skip
    phase: dict[str, Any] = {"name": "update_actor", "active": "actor"}
    phases: list[dict[str, Any]] = [phase]
    words: list[str] = []
    if method in SHARES and serves_beside(values):
        rows, rounds = actor.get("microbatch"), values.get("gradient_accumulation_steps", 1)
        sequences = rows * rounds if isinstance(rows, int) and isinstance(rounds, int) else None
        own = length if method == "GOLD" else None
        longest = values.get("vllm_max_model_length") or own
        beside = vllm_beside(values, model, sequences=sequences, longest=longest, share=SHARES[method])
        if beside is None:
            return None
        roles["rollout"] = beside.role
        phase |= beside.more
        phases[:0] = beside.phases
        words += beside.words
    between = values.get("beta", 0.5) not in (0, 1)
    if values.get("use_liger_kernel") is True:
        tokens = int(actor.get("microbatch") or 1) * int(actor.get("seq_len") or OF_SFT)
        items = student_chunk_items(sizes, tokens, between=between)
        phase["items"] = [*phase.get("items", ()), *items]
    else:
        ends, middle = DISTILLED["computed" if actor["engine"] == "deepspeed" else "widened"]
        each = middle if between else ends
        more = (
            -(-each * (length + new) // length)
            if isinstance(length, int) and isinstance(new, int)
            else 2 * each
        )
        phase["logits"] = {
            "bytes": [ends // 2, each, more],
            "why": "of student and teacher, their logarithms and divergences",
        }
    if values.get("teacher_model_init_kwargs") is None:
        words.append("the teacher is counted in the width of the student's weights, and loaded in its own")
    if values.get("use_uld_loss") is True:
        words.append("the loss over two vocabularies is counted as over the student's")
    document = {
        "schema": "memsheet/job/1", "name": f"trl-{method.lower()}", "roles": roles, "phases": phases, "notes": [APART] if _has_separate_server(values) else [],
    }  # fmt: skip
    if method == OF_ANSWERS and values.get("@seq_len") is None:
        words.append(UNSAID_PROMPT)
    return JobDraft(document, tuple(words), shorter_rows=True, elsewhere=may_be_elsewhere(words))


def _has_separate_server(values: Values) -> bool:
    return values.get("use_vllm") is True and not serves_beside(values)


ONLINE: Mapping[str, tuple[str, int]] = {
    "online DPO": ("trl-online", 2), "OnlineDPO": ("trl-online", 2), "XPO": ("trl-xpo", 2), "Nash-MD": ("trl-nash", 1), "NashMD": ("trl-nash", 1),
}  # fmt: skip
"""Methods that learn from answers of the moment: a job's name, and answers of a prompt that are learnt from,
of the model and of the reference (experimental/xpo/xpo_trainer.py:273-303), or the model's alone beside a
mixture of both (experimental/nash_md/nash_md_trainer.py:342-365).
"""


def online_document(method: str, values: Values, plan: Mapping[str, Any], model: str) -> JobDraft | None:
    """The job of ``OnlineDPOTrainer`` and of those that stand on it: answers of every prompt are learnt from,
    beside a copy of the model (experimental/online_dpo/online_dpo_trainer.py:321-328, 1059-1170). What it
    generates by itself has fewer bytes a row than the step that follows.
    """
    name, answers = ONLINE[method]
    actor, _ = planned_actor(plan)
    sizes = [values.get("max_length", 512), values.get("max_new_tokens", 64), actor.get("microbatch")]
    length, new, rows = (one if isinstance(one, int) and one > 0 else 0 for one in sizes)
    if not (length and new and rows):
        return None
    actor |= {"microbatch": answers * rows, "seq_len": length}
    if isinstance(whole := actor.get("global_batch"), int):
        actor["global_batch"] = answers * whole
    roles: dict[str, Any] = {"actor": {"model": model, "plan": actor, "trained": True, "process": "trainer"}}
    if not actor.get("adapter"):
        roles["reference"] = planned_reference(actor, model)
    rewards = _reward_roles(values, actor)
    roles |= rewards
    part = min(1.0, new / length)
    widened = int(max(6 + 4 * part, 4 + 8 * part)) + 1
    low, most = (2, 6 + int(8 * part) + 1)
    value = widened // 2 + 1 if actor["engine"] == "deepspeed" else widened
    logits = {
        "bytes": [low, value, max(most, value)],
        "why": "of whole rows, and logarithms of the answers' with their gradients",
    }
    update: dict[str, Any] = {"name": "update_actor", "active": "actor", "logits": logits}
    phases = [update]
    words = (*_open_words(values, served=False, said=True), *_width_words(rewards, actor))
    if serves_beside(values):
        tensor = values.get("vllm_tensor_parallel_size", 1)
        sequences = rows * tensor if isinstance(tensor, int) else None
        beside = vllm_beside(values, model, sequences=sequences, longest=length + new, share=ONLINE_SHARE)
        if beside is None:
            return None
        roles["rollout"] = beside.role
        phases = [*beside.phases, {**update, **beside.more}]
        words = (*words, *beside.words)
    notes = [APART] if _has_separate_server(values) else []
    document = {"schema": "memsheet/job/1", "name": name, "roles": roles, "phases": phases, "notes": notes}
    over = (OF_REWARDS,) if rewards else ()
    return JobDraft(document, words, shorter_rows=True, over_words=over, elsewhere=may_be_elsewhere(words))


HEAD_WORDS, OF_HEAD = 8192, (0, 6, 16)
"""Words that asynchronous GRPO's head multiplies at once, and bytes of each logit of that part of the
vocabulary, in forward and with its gradients (experimental/async_grpo/async_grpo_trainer.py:688;
trainer/utils.py:1291-1400).
"""
UNSAID_BUDGET = (
    "nothing says token_budget, which is then the longest row that vLLM serves: counted as one row"
)


def asynchronous_document(values: Values, plan: Mapping[str, Any], model: str, vocab: int) -> JobDraft | None:
    """The job of ``AsyncGRPOTrainer``: a trainer of packed rows whose vLLM has cards of its own, without
    whole logits and without a reference (experimental/async_grpo/async_grpo_config.py:258).
    """
    actor, _ = planned_actor(plan)
    budget, answer = values.get("token_budget"), values.get("max_completion_length", 2048)
    if not isinstance(answer, int) or not isinstance(budget, int | None):
        return None
    row = values["@seq_len"] if isinstance(values.get("@seq_len"), int) else PROMPT + answer
    fixed = isinstance(budget, int) and budget <= 0
    rows = actor.get("microbatch") if fixed else 1
    actor |= {"microbatch": 1, "seq_len": rows * row if fixed and isinstance(rows, int) else budget or row}
    elements = actor["seq_len"] * min(HEAD_WORDS, vocab)
    low, value, high = (elements * each for each in OF_HEAD)
    why = "logits of a part of the vocabulary (trainer/utils.py:1319)"
    item = extra_item("temporaries", "head", (low, value, high), why, "loss")
    document = {
        "schema": "memsheet/job/1", "name": "trl-async", "roles": {"actor": {"model": model, "plan": actor, "trained": True, "process": "trainer"}},
        "phases": [{"name": "update_actor", "active": "actor", "items": [item]}],
        "notes": [APART],
    }  # fmt: skip
    words = () if budget else (UNSAID_BUDGET,) if budget is None else ()
    return JobDraft(document, words, shorter_rows=True)


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
    values: Values,
    plan: Mapping[str, Any],
    model: str,
    vocab: int,
    token_elements: int,
    *,
    adapted_critic: bool = False,
) -> JobDraft | None:
    """The job of ``PPOTrainer``: policy and critic are one module, whose passes are both saved before either
    goes back; nothing of it is recomputed, whatever is said, as its own loop never asks for that
    (experimental/ppo/ppo_trainer.py:272-296, 574-900). A copy of the policy and a reward model stand beside.
    ``adapted_critic``: whether a program puts adapters on the critic, too.
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
    whole = {key: held for key, held in actor.items() if adapted_critic or key != "adapter"}
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
            "joined": "critic",
            "logits": {"bytes": list(each), "why": "of whole rows, with their gradients"},
        },
    ]
    words = [OF_POLICY, *([] if said else [UNSAID_PROMPT])]
    return JobDraft(
        {"schema": "memsheet/job/1", "name": "trl-ppo", "roles": roles, "phases": phases}, tuple(words)
    )


OF_POLICY = "critic and reward model are counted in the width of the policy"
