"""TRL's jobs of several models: GRPO with vLLM in the trainer's own process, or with a server elsewhere.

Lines are of huggingface/trl f2cd577, under trl. What logits take was counted of the same operations as
``GRPOTrainer._get_per_token_logps_and_entropies`` runs (trainer/grpo_trainer.py:1435-1541,
trainer/utils.py:479-560), with torch 2.13: of a logit 4 tensors of fp32 where it is learnt from (itself, two
gradients and their sum), the bf16 of the head and the fp32 that accelerate makes of it where it is only read.
Under DeepSpeed nothing is made fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.errors import Problem, input_error, raise_if_problems
from memsheet.jobs.templates.option import (
    Option,
    SizesOf,
    Template,
    logits_key,
    machines_of,
    read_options,
)
from memsheet.jobs.templates.planned import ENTROPY_BYTES, ENTROPY_ROWS
from memsheet.late import late_functions
from memsheet.units import MIB

with late_functions(__name__):
    from memsheet.jobs.templates.liger import head_gradient_items

CONFIG, GENERATION = "trainer/grpo_config.py", "generation/vllm_generation.py"
GRPO: Mapping[str, Option] = {
    "model": Option(kind=str, words="The model that is trained and generates."),
    "max_prompt_length": Option(kind=int, words="Tokens of the longest prompt."),
    "max_completion_length": Option(kind=int, usual=512, words="Tokens of the longest answer.", source=f"{CONFIG}:488"),
    "per_device_train_batch_size": Option(kind=int, usual=8, words="Answers of a micro-batch.", source="transformers training_args.py"),
    "gradient_accumulation_steps": Option(kind=int, usual=1, words="Micro-batches of a step.", source="transformers training_args.py"),
    "steps_per_generation": Option(kind=int, words="Micro-batches that are generated at once."),
    "num_generations": Option(kind=int, usual=8, words="Answers of a prompt.", source=f"{CONFIG}:474"),
    "beta": Option(kind=float, usual=0.0, words="Weight of the reference; none at 0.", source=f"{CONFIG}:671"),
    "vllm": Option(kind=str, usual="colocate", choices=("colocate", "server"), words="Where vLLM runs: colocate or server."),
    "vllm_gpu_memory_utilization": Option(kind=float, usual=0.3, words="Share of the card that vLLM takes.", source=f"{CONFIG}:613"),
    "vllm_max_model_length": Option(kind=int, words="Tokens that vLLM serves at the most."),
    "vllm_tensor_parallel_size": Option(kind=int, usual=1, words="Cards of one vLLM.", source=f"{CONFIG}:633"),
    "vllm_enable_sleep_mode": Option(kind=bool, usual=False, words="Put vLLM to sleep while training.", source=f"{CONFIG}:602"),
    "gradient_checkpointing": Option(kind=bool, usual=True, words="Recompute every layer.", source="trainer/base_config.py:61"),
    "use_liger_kernel": Option(kind=bool, usual=False, words="Liger's loss without whole logits.", source="transformers training_args.py"),
    "lora_rank": Option(kind=int, words="Train adapters of this rank; they are switched off as reference."),
    "optim": Option(kind=str, usual="adamw", words="The optimizer."),
    "engine": Option(kind=str, usual="transformers", choices=("transformers", "deepspeed", "fsdp2"), words="What trains: transformers (DDP on several cards), deepspeed, fsdp2."),
    "zero": Option(kind=int, words="ZeRO stage of deepspeed."),
}  # fmt: skip
PRECISIONS = {"transformers": "bf16-autocast", "deepspeed": "bf16-master", "fsdp2": "fsdp2-mixed"}
"""The model is loaded in fp32 and computes in bf16 (trainer/utils.py, create_model_from_path;
trainer/base_config.py:105); DeepSpeed keeps fp32 beside it.
"""
TRL = "TRL"
DIVIDED_LOGIT_BYTES = 8
"""Bytes of a logit in fp32 while it is divided by the temperature, which releases do not do in place (the
wheels of TRL 0.19.0, 0.29.0 and 1.10.0: trainer/grpo_trainer.py:871, 1078, 1532).
"""
MOST_TOKENS = 4096
"""Of one pass of its vLLM, whatever is said (generation/vllm_generation.py:363)."""
PROMPT = 512
CONTEXT_AT_MOST = 600 * MIB
"""vLLM counts its process's memory beside torch from when it starts (vllm/utils/mem_utils.py,
memory_profiling), when the trainer's context is there already: the pool may be larger by it.
"""


def grpo_document(said: Mapping[str, Any], sizes_of: SizesOf) -> dict[str, Any]:
    """The job of ``GRPOTrainer`` by the words of ``GRPOConfig``. Raises InputError with all that is wrong."""
    values, assumed = read_options({k: v for k, v in said.items() if k in GRPO}, GRPO, TRL)
    if values["model"] is None:
        raise input_error("model", None, "is missing", "--model Qwen/Qwen3-4B")
    if values["max_prompt_length"] is None:
        values["max_prompt_length"] = PROMPT
        assumed.append(f"max_prompt_length = {PROMPT} (nobody says how long prompts are)")
    if "vllm" not in said:
        assumed.append("vllm = colocate (use_vllm with TRL's own vllm_mode)")
    raise_if_problems(_grpo_problems(values, _card_count(said)))
    roles, phases = _grpo_roles(values), grpo_phases(values)
    if values["use_liger_kernel"]:
        made = head_gradient_items(sizes_of(values["model"]), roles["actor"]["plan"])
        phases[-1] |= {"items": [*phases[-1].get("items", ()), *made]}
    if values["gradient_accumulation_steps"] > 1:
        rows = values["per_device_train_batch_size"] * _card_count(said)
        roles["actor"]["plan"]["global_batch"] = rows * values["gradient_accumulation_steps"]
    return {
        "schema": "memsheet/job/1", "name": "trl-grpo", **machines_of(said), "roles": roles, "phases": phases,
        "assumed": assumed, "notes": grpo_notes(values),
    }  # fmt: skip


def _card_count(said: Mapping[str, Any]) -> int:
    from memsheet.catalog import named_cards  # tables that a start does without

    count = named_cards(str(said["gpus"]))[0] if said.get("gpus") else None
    return count or 1


def _grpo_problems(values: Mapping[str, Any], cards: int) -> list[Problem]:
    """What the trainer refuses itself (trainer/grpo_config.py:1077-1120)."""
    found = []
    batch = values["per_device_train_batch_size"] * cards * _generated_at_once(values)
    if batch % values["num_generations"]:
        reason = f"does not divide the {batch} answers that are generated at once"
        hint = "a multiple of it as per_device_train_batch_size x cards x steps_per_generation"
        found.append(
            Problem(field="num_generations", value=values["num_generations"], reason=reason, hint=hint)
        )
    if values["num_generations"] < 2:
        found.append(Problem(field="num_generations", value=values["num_generations"], reason="is below 2"))
    if not 0 < values["vllm_gpu_memory_utilization"] <= 1:
        reason = "is no share of a card"
        found.append(
            Problem(
                field="vllm_gpu_memory_utilization",
                value=values["vllm_gpu_memory_utilization"],
                reason=reason,
            )
        )
    if cards % values["vllm_tensor_parallel_size"]:
        reason = f"does not divide {cards} cards"
        found.append(
            Problem(
                field="vllm_tensor_parallel_size", value=values["vllm_tensor_parallel_size"], reason=reason
            )
        )
    return found


def _generated_at_once(values: Mapping[str, Any]) -> int:
    """Micro-batches of one generation (trainer/grpo_config.py:1077)."""
    return int(values["steps_per_generation"] or values["gradient_accumulation_steps"])


def _actor_plan(values: Mapping[str, Any]) -> dict[str, Any]:
    engine = values["engine"]
    adapter = {"adapter": {"kind": "lora", "rank": values["lora_rank"]}} if values["lora_rank"] else {}
    zero = {"zero": values["zero"]} if values["zero"] is not None else {}
    return {
        "task": "train", "engine": engine, **zero, "seq_len": values["max_prompt_length"] + values["max_completion_length"],
        "microbatch": values["per_device_train_batch_size"], "precision": PRECISIONS[engine], "loss": "fused",
        "recompute": {"mode": "full" if values["gradient_checkpointing"] else "none"}, "optimizer": {"name": values["optim"]}, **adapter,
    }  # fmt: skip


def has_reference(values: Mapping[str, Any]) -> bool:
    """Whether a second model is loaded (trainer/grpo_trainer.py:957-971)."""
    return bool(values["beta"]) and not values["lora_rank"]


def _grpo_roles(values: Mapping[str, Any]) -> dict[str, Any]:
    model, actor = values["model"], _actor_plan(values)
    roles: dict[str, Any] = {"actor": {"model": model, "plan": actor, "trained": True, "process": "trainer"}}
    if has_reference(values):
        plan = {key: held for key, held in actor.items() if key != "adapter"}
        roles["reference"] = {"model": model, "plan": plan, "trained": False, "process": "trainer"}
    if values["vllm"] == "colocate":
        roles["rollout"] = {"model": model, "plan": rollout_plan(values), "process": "trainer"}
    return roles


def rollout_plan(values: Mapping[str, Any]) -> dict[str, Any]:
    """Its own vLLM (trainer/grpo_trainer.py:1089-1094, generation/vllm_generation.py:350-363)."""
    tensor = values["vllm_tensor_parallel_size"]
    sequences = values["per_device_train_batch_size"] * tensor * _generated_at_once(values)
    longest = values["vllm_max_model_length"]
    return {
        "task": "infer", "engine": "vllm", "mesh": {"tp": tensor},
        "serving": {
            "memory_fraction": values["vllm_gpu_memory_utilization"], "max_sequences": sequences, "max_batched_tokens": MOST_TOKENS,
            **({"max_model_len": longest} if longest else {}),
        },
    }  # fmt: skip


def grpo_phases(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    served, sleeps = values["vllm"] == "colocate", values["vllm_enable_sleep_mode"]
    away = {"rollout": "asleep-2"} if served and sleeps else {}
    pool = [{
        "component": "kv_cache", "path": "pool_beside", "bytes": [0, 0, CONTEXT_AT_MOST],
        "why": "vLLM's budget counts memory beside torch from its own start, after the trainer's context",
    }]  # fmt: skip
    beside = {"items": pool} if served and not sleeps else {}
    found: list[dict[str, Any]] = []
    if served and sleeps:
        found.append({"name": "update_weights", "residents": {"rollout": "parameters"}})
    if served:
        found.append({"name": "gen", "active": "rollout", "items": pool})
    found += [{**phase, "residents": away, **beside} for phase in _trainer_phases(values)]
    return found


def _trainer_phases(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The passes of the trainer. Old log-probabilities are always made where vLLM generates
    (trainer/grpo_trainer.py:2556-2566).
    """
    rows = values["per_device_train_batch_size"]
    tokens = rows * (values["max_completion_length"] + 1)
    in_bf16 = 2 + -(-2 // rows)
    widened = values["engine"] != "deepspeed"
    summed = max(6, 4 + -(-4 // rows))  # a row's exponentials beside all logits (trainer/utils.py:506-508)
    read = (
        (in_bf16, summed, max(DIVIDED_LOGIT_BYTES, summed))
        if widened
        else (in_bf16, in_bf16, max(6, in_bf16))
    )
    beside = 8 + -(-ENTROPY_BYTES * min(tokens, ENTROPY_ROWS) // tokens)
    learnt = (8, max(16, beside), max(16, beside)) if widened else (8, 8, 16)
    only_read = logits_key(tokens, read, "of answers, read only (trainer/grpo_trainer.py:1435)")
    update = logits_key(tokens, learnt, "of answers, with their gradients (trainer/grpo_trainer.py:1435)")
    found: list[dict[str, Any]] = [
        {"name": "old_log_prob", "active": "actor", "work": "forward", "logits": only_read}
    ]
    if values["beta"]:
        role = "reference" if has_reference(values) else "actor"
        found.append({"name": "ref", "active": role, "work": "forward", "logits": only_read})
    last: dict[str, Any] = {"name": "update_actor", "active": "actor"}
    return [*found, last if values["use_liger_kernel"] else {**last, "logits": update}]


def grpo_notes(values: Mapping[str, Any]) -> list[str]:
    found = []
    if values["vllm"] == "colocate" and not values["vllm_enable_sleep_mode"]:
        found.append("vLLM stays awake while the model trains: vllm_enable_sleep_mode frees its share then")
    if values["vllm"] == "server":
        found.append("vLLM has cards of its own, which are not counted here: `memsheet infer --engine vllm`")
    if values["lora_rank"] and values["beta"]:
        found.append(
            "the reference is the model with its adapters switched off, and takes no memory of its own"
        )
    return found


TEMPLATES = (
    Template(name="trl-grpo", words="TRL's GRPO: vLLM beside the trainer.", options=GRPO, make=grpo_document),
)
