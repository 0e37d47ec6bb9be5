"""ROLL's jobs: workers on the cards that each names, which put away what they have between their calls; DPO
and distillation.

Lines are of alibaba/ROLL at 8eb27cc, under roll. While servers work Megatron-Core has nothing on the card
(distributed/strategy/megatron_strategy.py:1392), and its moments for the optimizer's step alone (:1315).
FSDP2 moves parameters, and keeps its states (fsdp2_strategy.py:933-967). A pass that reads has the parameters
back alone (pipeline/base_worker.py:135-145). vLLM sleeps at its first level
(distributed/strategy/vllm_strategy.py:91).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.exchange.formats.roll.workers import (
    CRITIC,
    MEGATRON,
    REFERENCE,
    STUDENT,
    enables_reference,
    has_critic_worker,
    has_lora_target,
    has_worker,
    is_of_pairs,
    micro_rows,
    reward_workers,
    server_worker,
    serves_beside,
    teacher_workers,
    trained_worker,
    worker_cards,
    worker_config,
    worker_degree,
    worker_model,
    worker_request,
    worker_strategy,
)
from memsheet.exchange.shared.dotted_places import nest_dotted_keys
from memsheet.exchange.shared.file_format import Values
from memsheet.exchange.shared.launch_values import least_one
from memsheet.jobs.templates.option import logits_key
from memsheet.jobs.templates.planned import (
    SCHEMA,
    JobDraft,
    Sizes,
    card_count,
    extra_item,
    on_cards,
    planned_actor,
)
from memsheet.jobs.templates.servers import Server, option_group, sglang_server, vllm_server
from memsheet.units import MIB

OF_FSDP2: Mapping[str, tuple[int, int, int]] = {
    "read": (10, 14, 14),
    "learnt": (10, 14, 16),
    "entropy": (14, 22, 30),
}
"""Bytes of a logit: in the model's dtype and in fp32, with a log-softmax, of which a gradient is gathered and
one made; entropy, which passes that read always have, makes probabilities and their products
(utils/functionals.py:214-226; pipeline/base_worker.py:160-170).
"""
OF_MEGATRON: Mapping[str, tuple[int, int, int]] = {
    "read": (6, 6, 10),
    "learnt": (6, 8, 10),
    "entropy": (8, 12, 16),
}
"""Of a rank's part of the vocabulary: in the model's dtype and raised to fp32, which its softmax is written
over and the gradient over that (mcore_adapter parallel_functions/vocab_parallel.py:35-150); entropy in the
logits' own dtype (third_party/megatron/tensor_parallel.py:16-80, megatron_strategy.py:700).
"""
DISTILLED = (8, 14, 24)
"""Beside the loss of the words themselves, one to the teacher's most likely ones
(pipeline/distill/distill_worker.py:60-140).
"""
BUFFER_MIB = 1024
"""``model_update_buffer_size_mb`` (configs/base_config.py:262)."""
NO_NAME = re.compile(r"[^a-z0-9_]")


def roll_job(values: Values, plan: Mapping[str, Any], model: str, sizes: Sizes) -> JobDraft | None:
    """The job of a configuration's values. ``plan``: of the worker that trains, as its own sheet has it. None
    where cards of a worker do not lie together.
    """
    trained = trained_worker(values)
    actor, _ = planned_actor(plan)
    place = worker_cards(values, trained)
    if place is None:
        return None
    roles: dict[str, Any] = {"actor": {"model": model, "plan": actor, "trained": True, "process": "actor"}}
    placement = {"actor": [place[0], card_count(actor) if place[0] == 0 else place[1]]}
    if card_count(actor) != placement["actor"][1] or not _is_whole(values):
        roles["actor"]["plan"] = on_cards(actor, place[1])
        placement["actor"] = list(place)
    further = dict(_worker_roles(values, model, sizes))
    served = _served_roles(values, model, sizes)
    if served is None or None in further.values():
        return None
    for name, (role, where) in {
        **{name: held for name, held in further.items() if held},
        **served[0],
    }.items():
        roles[name], placement[name] = role, list(where)
    document = {"schema": SCHEMA, "name": "roll", "roles": roles, "placement": placement, "phases": _pipeline_phases(values, sizes, roles)}  # fmt: skip
    return JobDraft(document, (*served[1], *_open_words_of_workers(values, roles)), shorter_rows=True)


def _is_whole(values: Values) -> bool:
    """Whether every worker is on the trained one's cards."""
    own = worker_cards(values, trained_worker(values))
    others = (
        REFERENCE,
        CRITIC,
        *teacher_workers(values),
        server_worker(values) or "",
        *reward_workers(values),
    )
    return all(worker_cards(values, at) in (own, None) for at in others)


def _worker_roles(values: Values, model: str, sizes: Sizes) -> Iterator[tuple[str, Any]]:
    """What trains or is read beside the worker that trains, with its cards; None of one whose cards are not
    said.
    """
    if has_critic_worker(values) and has_worker(values, CRITIC):
        yield "critic", _planned_worker(values, CRITIC, model, sizes, trained=True)
    if (
        enables_reference(values)
        and has_worker(values, REFERENCE)
        and not has_lora_target(values, trained_worker(values))
    ):
        yield "reference", _planned_worker(values, REFERENCE, model, sizes)
    for worker in teacher_workers(values):
        yield _role_name(worker), _planned_worker(values, worker, model, sizes)


def _role_name(worker: str) -> str:
    """A worker's name as a role's: a teacher's or a reward's own, in small letters."""
    group, _, own = worker.rpartition(".")
    words = f"reward_{own}" if group == "rewards" or (not group and own.startswith("reward")) else own
    return NO_NAME.sub("_", words.lower())


def _planned_worker(
    values: Values, worker: str, model: str, sizes: Sizes, *, trained: bool = False
) -> tuple[dict[str, Any], tuple[int, int]] | None:
    """A worker with its own plan, over the cards that it names."""
    place = worker_cards(values, worker)
    if place is None:
        return None
    request = {
        at: held
        for at, held in worker_request(values, worker).items()
        if held is not None and (trained or not at.startswith("adapter"))
    }
    rows = micro_rows(values, worker, "train" if trained else "infer")
    named = worker_model(values, worker)
    own = model if named in (None, worker_model(values, trained_worker(values))) else str(named)
    layers = _uneven_stages(values, worker, sizes.layers) if own == model else {}
    plan = on_cards(nest_dotted_keys({**request, **rows, **layers}), place[1])
    head = {"head": "values"} if worker == CRITIC else {}
    return {
        "model": own,
        "plan": plan,
        "trained": trained,
        "process": _role_name(worker),
        **head,
    }, place


def _uneven_stages(values: Values, worker: str, layers: int) -> dict[str, Any]:
    """Layers of the stages where they are not as many in each: with fewer beside the embedding and the head
    where those count as layers (mcore_adapter training_args.py:50-62), else with the rest in the first ones.
    """
    stages = worker_degree(values, worker, "pipeline_model")
    if stages < 2 or layers < stages or layers % stages == 0:
        return {}
    ends = [
        int(worker_config(values, worker, f"account_for_{end}_in_pipeline_split") is True)
        for end in ("embedding", "loss")
    ]
    counted = layers + sum(ends)
    each, left = divmod(counted, stages)
    found = [each + (number < left) for number in range(stages)]
    found[0] -= ends[0]
    found[-1] -= ends[1]
    return {"layers_per_stage": found, "mesh.vpp": 1, "schedule": "1f1b"}


def _served_roles(values: Values, model: str, sizes: Sizes) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """Servers of the policy and of what rewards, with their cards, and what of them is not read; None where
    one is not known.
    """
    found, left = {}, []
    worker = server_worker(values)
    rewards = ((_role_name(at), at) for at in reward_workers(values))
    for name, at in (*((("rollout", worker),) if worker else ()), *rewards):
        place, server = worker_cards(values, at), _server_of_worker(values, at)
        if place is None:
            return None
        if server is None and at == worker:
            return None
        if server is None:
            judge = _planned_worker(values, at, model, sizes)
            if judge is None:
                return None
            found[name] = judge
            left.append(f"what {at} holds of its answers while it writes them is not counted")
            continue
        if place[1] % server.cards:
            return None
        named = model if at == worker else str(values.get(f"{at}.model_args.model_name_or_path") or model)
        found[name] = {"model": named, "plan": server.plan}, place
        left += server.left_words
    return found, tuple(left)


def _server_of_worker(values: Values, worker: str) -> Server | None:
    """One engine (distributed/strategy/vllm_strategy.py:84-135, sglang_strategy.py)."""
    group = f"{worker}.strategy_args.strategy_config"
    given = {
        at: held
        for at, held in option_group(values, group).items()
        if at
        not in (
            "block_size",
            "load_format",
            "sleep_level",
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "expert_model_parallel_size",
        )
    }
    strategy = worker_strategy(values, worker)
    if strategy == "vllm":
        return vllm_server({"max_num_batched_tokens": 8192, **given}, group)
    if strategy != "sglang":
        return None
    each = (
        least_one(values, f"{worker}.num_gpus_per_worker", least_one(given, "tensor_parallel_size", 1)) or 1
    )
    return sglang_server(
        {at: held for at, held in given.items() if at != "tensor_parallel_size"}, group, each
    )


def _rest_of(values: Values, worker: str) -> str:
    """Where a worker that trains is while others work."""
    if (
        worker_strategy(values, worker) in MEGATRON
        or worker_config(values, worker, "offload_policy", False) is True
    ):
        return "offloaded"
    return "states"


def _reads_with(values: Values, worker: str) -> str:
    """What a worker has on the card for a pass that reads."""
    return "parameters" if worker_strategy(values, worker) in MEGATRON else "whole"


def _pipeline_phases(values: Values, sizes: Sizes, roles: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those of a step (pipeline/rlvr/rlvr_pipeline.py:490-800, agentic/agentic_pipeline.py:240-550)."""
    trained = trained_worker(values)
    stays = is_of_pairs(values) or trained == STUDENT
    if stays and values.get("is_offload_states") is not True:
        return _pair_phases(values, roles)
    rest: dict[str, str] = {"actor": _rest_of(values, trained)}
    rest |= {role: "offloaded" for _, role, _ in _passes_of_others(values) if role in roles}
    rest |= {"critic": _rest_of(values, CRITIC)} if "critic" in roles else {}
    judges = [name for name in roles if name.startswith("reward_")]
    serves = {name: roles[name]["plan"]["task"] == "infer" for name in ("rollout", *judges) if name in roles}
    goes_on = serves_beside(values)
    away = {
        name: "whole" if goes_on else "asleep-1" if server else "offloaded" for name, server in serves.items()
    }
    awake = dict.fromkeys(serves, "whole")
    found: list[dict[str, Any]] = []
    if "rollout" in roles:
        size = least_one(values, "model_update_buffer_size_mb", BUFFER_MIB) or BUFFER_MIB
        largest = max(size * MIB, 2 * sizes.vocab * sizes.hidden)
        sent = extra_item(
            "communication",
            "buffer",
            (0, largest, 2 * largest),
            "weights on their way (configs/base_config.py:262)",
        )
        sending = {
            **rest,
            **away,
            "actor": _reads_with(values, trained),
            "rollout": "whole" if goes_on else "parameters",
        }
        found += [
            {"name": "update_weights", "residents": sending, "items": [sent]},
            {"name": "gen", "active": "rollout", "residents": {**rest, **awake}},
        ]
    still = {**rest, **away}
    found += [
        {"name": name, "active": role, "work": "forward", "residents": {**still, role: "whole"}, **_logits_of_pass(values, worker)}
        for name, role, worker in _passes_of_others(values) if role in roles
    ]  # fmt: skip
    own = {**still, "actor": _reads_with(values, trained)}
    read = {"plan": micro_rows(values, trained, "infer"), **_logits_of_pass(values, trained)}
    if enables_reference(values) and has_lora_target(values, trained):
        found.append({"name": "ref", "active": "actor", "work": "forward", "residents": own, **read})
    if "critic" in roles:
        found.append(
            {
                "name": "values",
                "active": "critic",
                "work": "forward",
                "plan": micro_rows(values, CRITIC, "infer"),
                "residents": {**still, "critic": _reads_with(values, CRITIC)},
            }
        )
    if _reads_policy_again(values):
        found.append({"name": "old_log_prob", "active": "actor", "work": "forward", "residents": own, **read})
    if "critic" in roles:
        found.append(_learning_phase(values, "critic", CRITIC, own))
    return [*found, _learning_phase(values, "actor", trained, still)]


def _passes_of_others(values: Values) -> list[tuple[str, str, str]]:
    """Passes that read with a frozen model: their names, roles and workers."""
    taught = [(name := _role_name(worker), name, worker) for worker in teacher_workers(values)]
    return [("ref", "reference", REFERENCE), *taught]


def _learning_phase(values: Values, role: str, worker: str, residents: Mapping[str, str]) -> dict[str, Any]:
    """An update; Megatron-Core's moments are there for the optimizer's step alone."""
    learnt = _logits_of_update(values, worker) if role == "actor" else {}
    there = "parameters" if worker_strategy(values, worker) in MEGATRON else "whole"
    return {"name": f"update_{role}", "active": role, "residents": {**residents, role: there}, **learnt}


def _pair_phases(values: Values, roles: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of DPO and of distillation, where everything stays (pipeline/dpo/dpo_pipeline.py:222,
    pipeline/distill/distill_pipeline.py:288).
    """
    trained = trained_worker(values)
    found = [
        {"name": name, "active": role, "work": "forward", **_logits_of_pass(values, worker)}
        for name, role, worker in _passes_of_others(values) if role in roles
    ]  # fmt: skip
    return [*found, {"name": "update_actor", "active": "actor", **_logits_of_update(values, trained)}]


def _logits_of(values: Values, worker: str) -> Mapping[str, tuple[int, int, int]]:
    return OF_MEGATRON if worker_strategy(values, worker) in MEGATRON else OF_FSDP2


def _logits_of_pass(values: Values, worker: str) -> dict[str, Any]:
    rows = micro_rows(values, worker, "infer")
    tokens = rows.get("microbatch", 0) * rows.get("seq_len", 0) // worker_degree(values, worker, "context")
    why = "of all tokens, read only, with their entropy (pipeline/base_worker.py:160-170)"
    return {"logits": logits_key(tokens, _logits_of(values, worker)["read"], why)}


def _logits_of_update(values: Values, worker: str) -> dict[str, Any]:
    weight = values.get("entropy_loss_coef", 0)
    each = _logits_of(values, worker)[
        "entropy" if isinstance(weight, int | float) and weight > 0 else "learnt"
    ]
    each = DISTILLED if worker == STUDENT else each
    rows = micro_rows(values, worker, "train")
    tokens = rows.get("microbatch", 0) * rows.get("seq_len", 0) // worker_degree(values, worker, "context")
    return {
        "logits": logits_key(tokens, each, "of all tokens, with their gradients (utils/functionals.py:214)")
    }


def _reads_policy_again(values: Values) -> bool:
    """Whether old log-probabilities are read in a pass of their own (configs/base_config.py:631-636,
    745-780): they are where KL starts with a weight, and where several steps are of one batch.
    """
    if server_worker(values) is None or values.get("force_disable_old_logprobs_recompute") is True:
        return False
    weight = values.get("init_kl_coef", 0.2)
    if (isinstance(weight, int | float) and weight > 0) or values.get(
        "enable_old_logprobs_recompute"
    ) is True:
        return True
    worker = trained_worker(values)
    prompts, copies = (
        least_one(values, "rollout_batch_size", 128),
        least_one(values, "num_return_sequences_in_group", 1),
    )
    rows = least_one(values, f"{worker}.training_args.per_device_train_batch_size", 8)
    rounds = least_one(values, f"{worker}.training_args.gradient_accumulation_steps", 1)
    cards = worker_cards(values, worker)
    if not (prompts and copies and rows and rounds and cards):
        return True
    shared = (
        worker_degree(values, worker, "tensor_model")
        * worker_degree(values, worker, "pipeline_model")
        * worker_degree(values, worker, "context")
    )
    return prompts * copies // max(1, cards[1] // shared) // (rows * rounds) > 1


def _open_words_of_workers(values: Values, roles: Mapping[str, Any]) -> tuple[str, ...]:
    found = []
    if "critic" in roles and worker_cards(values, CRITIC) == worker_cards(values, trained_worker(values)):
        found.append("the critic trains while the actor does, on the same cards")
    if is_of_pairs(values) and values.get("is_offload_states") is True:
        found.append("what leaves the card between calls is counted as it does in reinforcement learning")
    return tuple(found)
