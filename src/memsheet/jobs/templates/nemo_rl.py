"""NeMo-RL's GRPO, PPO and distillation: a policy on FSDP2 or on Megatron-Core, a model of values or a teacher
on its cards, and vLLM or SGLang on these or on others. Dynamo starts vLLM as its own settings say
(models/generation/dynamo/arguments.py).

Lines are of NVIDIA-NeMo/RL at 7ea279a, under nemo_rl. The reference is a copy on the host that is switched
into the policy's own weights (models/policy/workers/dtensor_policy_worker_v2.py:1007-1051,
megatron_policy_worker.py:1971-2030). Before weights are sent the optimizer's states and gradients leave the
card, after it the parameters do (algorithms/grpo.py:2341-2417); a pass that reads has the parameters back
alone (dtensor_policy_worker_v2.py:1222-1250), training all of it (:1253-1269). vLLM sleeps at its first
level (models/generation/vllm/vllm_worker.py:1309); SGLang where its memory saver is on, with a copy on the
host where that is asked for (models/generation/sglang/sglang_worker.py:395-396).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange import find_format
from memsheet.exchange.formats.nemo_rl.settings import (
    GENERATION,
    KL,
    LENGTH,
    MEGATRON,
    POLICY,
    algorithm_of,
    cluster_places,
    degree_of,
    divides_logits,
    has_reward_model,
    has_teachers,
    micro_tokens,
    runs_megatron,
    says_true,
    shares_cards,
)
from memsheet.exchange.shared.dotted_places import nest_dotted_keys
from memsheet.exchange.shared.file_format import Values, read_format_values
from memsheet.exchange.shared.launch_values import least_one
from memsheet.jobs.templates.option import logits_key
from memsheet.jobs.templates.planned import (
    SCHEMA,
    JobDraft,
    Sizes,
    card_count,
    extra_item,
    known_share,
    on_cards,
    planned_actor,
    planned_reference,
)
from memsheet.jobs.templates.servers import SGLANG_KEPT, VLLM_COUNTS, Server, option_group, sglang_server

VLLM, SGLANG = f"{GENERATION}.vllm_cfg", f"{GENERATION}.sglang_cfg"
OF_VLLM, GIVEN = ("vllm", "dynamo"), f"{GENERATION}.vllm_kwargs."
JOB_NAMES = {"sglang": "nemo-rl-sglang"}
"""Of backends whose settings have keys of their own, which the words of cures have."""
OF_NO_MEMORY = ("model_path", "random_seed", "skip_server_warmup", "allow_auto_truncate")
READ, LEARNT = (6, 8, 12), (8, 12, 20)
"""Bytes of a logit of a rank's part of the vocabulary: cast to fp32 where the model hands it out
(models/automodel/setup.py:484-487), with a log-softmax beside it; where it is learnt from with gradients of
both, and of what is gathered (algorithms/loss/utils.py:85, distributed/model_utils.py:59-68, 120-190).
"""
CHUNKED = (4, 6, 10)
"""With logprob_chunk_size, which makes the log-softmax a part at a time (models/automodel/train.py:846)."""
MORE = 12
"""At the most beyond a loss of whole logits, where ranks divide them."""
SHARE = 0.6


def nemo_rl_job(values: Values, plan: Mapping[str, Any], model: str, sizes: Sizes) -> JobDraft | None:
    """The job of a configuration's values. ``plan``: of the policy, as its own sheet has it. None of other
    methods than these, of other servers, and where places are not said.
    """
    places, read = cluster_places(values), micro_tokens(values, "logprob")
    if algorithm_of(values) == PAIRS:
        return _pairs_job(values, plan, model, sizes)
    server = _started_server(values)
    if algorithm_of(values) not in METHODS or server is None or places is None or not read:
        return None
    actor, _ = planned_actor(plan)
    actor["loss"] = plan.get("loss") if divides_logits(values) else actor["loss"]
    each = server.cards
    together = shares_cards(values)
    ranks = card_count(actor)
    if not together or ranks % each:
        actor, ranks = (actor if ranks == places[0] else on_cards(actor, places[0])), places[0]
    served = ranks if together else places[1]
    if served % each:
        return None
    roles: dict[str, Any] = {"actor": {"model": model, "plan": actor, "trained": True, "process": "trainer"}}
    placement = {"actor": [0, ranks], "rollout": [0 if together else ranks, served]}
    for role, group in GROUPS.get(algorithm_of(values), {}).items():
        beside = _role_of_group(values, role, group, model, ranks)
        if beside is None:
            return None
        roles[role], placement[role] = beside, [0, ranks]
    roles["rollout"] = {"model": model, "plan": server.plan}
    document = {
        "schema": SCHEMA, "name": JOB_NAMES.get(_backend_of(values), "nemo-rl"), "roles": roles, "placement": placement,
        "phases": _policy_phases(values, read, sizes),
    }  # fmt: skip
    words = (*server.left_words, *_unread_words(values))
    over = (SGLANG_KEPT,) if _backend_of(values) == "sglang" and together else ()
    return JobDraft(document, words, shorter_rows=True, over_words=over)


METHODS = ("grpo", "ppo", "distillation")
PAIRS, OF_PAIR = "dpo", 2
CRITIC, TEACHER = "critic", "teacher"
GROUPS: Mapping[str, Mapping[str, str]] = {"ppo": {CRITIC: "value"}, "distillation": {TEACHER: "teacher"}}
"""Of a method its further roles and the groups that they are written in (examples/configs/ppo_math_1B.yaml,
distillation_math.yaml).
"""


def _pairs_job(values: Values, plan: Mapping[str, Any], model: str, sizes: Sizes) -> JobDraft | None:
    """DPO: both rows of every pair are one batch, as the plan has them, of the pass of the reference, whose
    weights are switched in, too (algorithms/dpo.py:336-342, 596-603). None where nobody says how many rows
    that is.
    """
    rows, length = plan.get("microbatch"), plan.get("seq_len")
    if not isinstance(rows, int) or not isinstance(length, int):
        return None
    actor, _ = planned_actor(plan)
    actor["loss"] = plan.get("loss") if divides_logits(values) else actor["loss"]
    away = says_true(values, f"{POLICY}.offload_optimizer_for_logprob")
    tokens = rows * -(-length // degree_of(values, "context"))
    phases = [
        {
            "name": "ref", "active": "actor", "work": "forward", "residents": {"actor": "parameters" if away else "whole"},
            **_read_of_logits(values, tokens),
        },
        {"name": "update_actor", "active": "actor", **_learnt_of_logits(values, sizes, OF_PAIR)},
    ]  # fmt: skip
    roles = {"actor": {"model": model, "plan": actor, "trained": True, "process": "trainer"}}
    name = f"nemo-rl-{PAIRS}"  # by which cures count a pair as one row
    return JobDraft({"schema": SCHEMA, "name": name, "roles": roles, "phases": phases}, shorter_rows=True)


def _role_of_group(values: Values, role: str, group: str, model: str, ranks: int) -> dict[str, Any] | None:
    """A model of a group of its own, which is written as the policy is; None where it names none."""
    own = {
        f"{POLICY}.{at.removeprefix(f'{group}.')}": held
        for at, held in values.items()
        if at.startswith(f"{group}.")
    }
    read = read_format_values(find_format("nemo-rl"), own)
    named = read.request.get("@model")
    if named is None:
        return None
    asked = {at: held for at, held in read.request.items() if at[0] not in "@?"}
    plan = on_cards(nest_dotted_keys(asked), ranks)
    known = model if named == values.get(f"{POLICY}.model_name") else str(named)
    if role == TEACHER:
        return {
            **planned_reference({at: held for at, held in plan.items() if at != "adapter"}, known),
            "process": role,
        }
    return {"model": known, "plan": plan, "trained": True, "process": role, "head": "values"}


def _backend_of(values: Values) -> str:
    return str(values.get(f"{GENERATION}.backend", "vllm"))


def _started_server(values: Values) -> Server | None:
    """The engine of the backend that is named; None of one that is not accounted, or of unknown share."""
    if _backend_of(values) == "sglang":
        given = option_group(values, SGLANG)
        degrees = [least_one(given, f"{name}_size", None) for name in ("tp", "pp")]
        if degrees[0] is None:
            return None
        known = {at: held for at, held in given.items() if at not in OF_NO_MEMORY}
        return sglang_server(known, SGLANG, degrees[0] * (degrees[1] or 1))
    if _backend_of(values) not in OF_VLLM or _server_share(values) is None:
        return None
    ranks = [least_one(values, f"{VLLM}.{name}_parallel_size", 1) or 1 for name in ("tensor", "pipeline")]
    return Server(_vllm_plan(values), ranks[0] * ranks[1], _unread_of_vllm(values))


def _server_share(values: Values) -> float | None:
    return known_share(values.get(f"{VLLM}.gpu_memory_utilization", SHARE), SHARE)


def _sleeps_between(values: Values) -> str:
    """How a server on the trainer's cards rests while it trains."""
    if _backend_of(values) != "sglang":
        return "asleep-1"
    if not says_true(values, f"{SGLANG}.sglang_server_config.needs_offload"):
        return "whole"
    return "asleep-1" if says_true(values, f"{SGLANG}.sglang_server_config.cpu_weight_backup") else "asleep-2"


def _vllm_plan(values: Values) -> dict[str, Any]:
    """The engine as it is started (models/generation/vllm/vllm_worker.py:570-600)."""
    stages = least_one(values, f"{VLLM}.pipeline_parallel_size", 1) or 1
    longest = least_one(values, f"{VLLM}.max_model_len", None) or least_one(values, LENGTH, None)
    eager = {"cuda_graphs": False} if says_true(values, f"{VLLM}.enforce_eager") else {}
    counts = {
        key: found
        for name, key in VLLM_COUNTS.items()
        if (found := least_one(values, f"{GIVEN}{name}", None))
    }
    return {
        "task": "infer", "engine": "vllm", "precision": {"parameters": "bf16", "compute": "bf16"},
        "mesh": {"tp": least_one(values, f"{VLLM}.tensor_parallel_size", 1), **({"pp": stages} if stages > 1 else {})},
        "serving": {"memory_fraction": _server_share(values), **({"max_model_len": longest} if longest else {}), **counts, **eager},
    }  # fmt: skip


def _policy_phases(values: Values, read: Mapping[str, int], sizes: Sizes) -> list[dict[str, Any]]:
    """The phases of a step (algorithms/grpo.py:2874-3400)."""
    together = shares_cards(values)
    asleep = _sleeps_between(values) if together else "whole"
    awake = "whole" if asleep == "whole" else "parameters"
    reads_alone = together or says_true(values, f"{POLICY}.offload_optimizer_for_logprob")
    table = 2 * sizes.vocab * sizes.hidden
    sent = extra_item(
        "communication", "sent", (table, 2 * table, 2 * table), "the largest tensor, gathered, and its buffer"
    )
    found: list[dict[str, Any]] = [
        {
            "name": "update_weights",
            "residents": {
                "actor": "parameters" if together else "whole",
                "rollout": awake,
            },
            "items": [sent],
        },
        {
            "name": "gen",
            "active": "rollout",
            "residents": {"actor": "offloaded" if together else "whole", "rollout": "whole"},
        },
    ]
    others = dict.fromkeys(GROUPS.get(algorithm_of(values), {}), "offloaded")
    for phase in found:
        phase["residents"] |= others
    there = {"actor": "parameters" if reads_alone else "whole", "rollout": asleep, **others}
    if TEACHER in others:
        each = {
            "logits": {
                "bytes": list(READ),
                "why": "of all tokens, of which the likeliest are kept (algorithms/distillation.py:907)",
            }
        }
        found.append(
            {
                "name": "teacher",
                "active": TEACHER,
                "work": "forward",
                "residents": {**there, TEACHER: "whole"},
                **each,
            }
        )
    if CRITIC in others:
        found.append(
            {
                "name": "values",
                "active": CRITIC,
                "work": "forward",
                "residents": {**there, "actor": "offloaded", CRITIC: "parameters"},
            }
        )
    tokens = read["microbatch"] * -(-read["seq_len"] // degree_of(values, "context"))
    logits = _read_of_logits(values, tokens)
    passes = [
        ("old_log_prob", TEACHER not in others and not _skips(values, "prev")),
        ("ref", TEACHER not in others and _reads_kl(values) and not _skips(values, "reference_policy")),
    ]
    found += [
        {"name": name, "active": "actor", "work": "forward", "plan": dict(read), "residents": there, **logits}
        for name, made in passes if made
    ]  # fmt: skip
    if CRITIC in others:
        found.append(
            {
                "name": "update_critic",
                "active": CRITIC,
                "residents": {**there, "actor": "offloaded", CRITIC: "whole"},
            }
        )
    learnt = _learnt_of_logits(values, sizes)
    return [
        *found,
        {
            "name": "update_actor",
            "active": "actor",
            "residents": {"actor": "whole", "rollout": asleep, **others},
            **learnt,
        },
    ]


def _is_linear(values: Values) -> bool:
    """Whether the loss makes no whole logits, on Megatron-Core alone."""
    return runs_megatron(values) and says_true(values, f"{MEGATRON}.use_fused_linear_logprobs")


def _learnt_of_logits(values: Values, sizes: Sizes, together: int = 1) -> dict[str, Any]:
    """Of the update; where ranks divide them the policy's own sheet has them, but for what is more.
    ``together``: rows of an example.
    """
    why = "of all tokens, with their gradients (algorithms/loss/utils.py:85)"
    if _is_linear(values):
        return {}
    if not divides_logits(values):
        return {"logits": {"bytes": list(LEARNT), "why": why}}
    update = micro_tokens(values, "train")
    ranks = degree_of(values, "tensor") * degree_of(values, "context")
    most = together * MORE * update.get("microbatch", 0) * update.get("seq_len", 0) * sizes.vocab // ranks
    return {"items": [extra_item("temporaries", "logits_beside", (0, 0, most), why, "loss")]}


def _read_of_logits(values: Values, tokens: int) -> dict[str, Any]:
    if _is_linear(values):
        return {}
    each = READ if values.get(f"{POLICY}.logprob_chunk_size") is None else CHUNKED
    return {"logits": logits_key(tokens, each, "of all tokens, read only (models/automodel/train.py:833)")}


def _reads_kl(values: Values) -> bool:
    """Whether a reference is loaded (algorithms/grpo.py:1147)."""
    return values.get(KL, 0.01) not in (0, 0.0, None)


def _skips(values: Values, what: str) -> bool:
    return says_true(values, f"{algorithm_of(values)}.skip_{what}_logprobs_calculation")


def _unread_words(values: Values) -> tuple[str, ...]:
    found = []
    if has_teachers(values):
        found.append("cards of teachers are not counted")
    if has_reward_model(values):
        found.append("the card of the model that rewards is not counted")
    return tuple(found)


def _unread_of_vllm(values: Values) -> tuple[str, ...]:
    found = []
    if (least_one(values, f"{VLLM}.expert_parallel_size", 1) or 1) > 1:
        found.append("vLLM's expert parallelism is not counted")
    given = [
        at.removeprefix(f"{GENERATION}.")
        for at in values
        if at.startswith(GIVEN) and at.removeprefix(GIVEN) not in VLLM_COUNTS
    ]
    found += [f"{at} is not read" for at in given[:4]]
    kinds = ("kv_cache_dtype", ("auto", None)), ("precision", ("bfloat16", None)), ("quantization", (None,))
    found += [
        f"vllm_cfg.{name} is not read" for name, plain in kinds if values.get(f"{VLLM}.{name}") not in plain
    ]
    return tuple(found)
