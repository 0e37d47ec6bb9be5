"""verl's job: the actor, the reference, the critic and the rollout engine on the same cards, as its Hydra
overrides say it (``trainer.main_ppo``).

Lines are of volcengine/verl b178a3cd5, under verl. The rollout engine has a process of its own
(workers/rollout/vllm_rollout/vllm_async_server.py) and sleeps at level 2, at level 1 where adapters are sent
(:569; workers/engine_workers.py:602). The trainer empties its allocator's cache before the engine wakes
(workers/fsdp_workers.py:679, 750). What logits take is where verl's losses are (exchange/formats/verl).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from memsheet.exchange.formats.verl.batches import (
    packs_by_tokens,
    read_batch,
    removes_padding,
    row_length,
    with_rows_of,
)
from memsheet.exchange.formats.verl.losses import ULYSSES, has_critic, learnt_logit_bytes, read_logit_bytes
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
from memsheet.jobs.templates.planned import (
    Sizes,
    extra_item,
    ranks_of_data,
)
from memsheet.jobs.templates.verl_critic import (
    CRITIC,
    REF,
    UNSAID_ROWS,
    critic_batch,
    critic_model,
    critic_place,
    critic_plan,
    critic_ranks,
    in_own_dtype,
    packed_tokens,
    values_plan,
)
from memsheet.jobs.templates.verl_servers import (
    LONGEST,
    ROLLOUTS,
    is_together,
    rollout_plan,
    sends_adapters,
    separate_placement,
    server_degrees,
    server_name,
    server_share,
    trains_adapters,
)
from memsheet.jobs.templates.verl_teachers import learnt_from_top, open_teacher_words, with_teachers
from memsheet.units import MIB

MEGATRON_LOGITS = (2, 6, 12)
"""Of Megatron-Core, a rank's part: in sixteen bits at the least; with fp32 and its copy for entropy at the
most (workers/actor/megatron_actor.py:649-657).
"""
BUCKET = 2048
"""Mebibytes of the buffer that weights are sent through (trainer/config/rollout/rollout.yaml,
update_weights_bucket_megabytes).
"""
SIXTEEN_BITS = 2
"""Bytes of an element of what attention reads, whose kernel takes no other."""


def verl_document(values: Values, plan: Mapping[str, Any], model: str, sizes: Sizes) -> dict[str, Any] | None:
    """The job of a launch's values, as ``memsheet/job/1``. ``plan``: of the actor, as its own sheet has it.

    None where the launch is no such job, or has something of which nobody knows how it shares the cards.
    """
    if not trains_actor(values) or any(_is_unknown(values)):
        return None
    actor = {key: held for key, held in plan.items() if key not in ("schema", "model", "gpus", "phase")}
    roles: dict[str, Any] = {"actor": {"model": model, "plan": actor, "trained": True, "process": "trainer"}}
    if _has_reference(values) and not trains_adapters(values):
        still = {key: held for key, held in actor.items() if key != "adapter"}
        own = str(held_value(values, f"{REF}.model.path", model))  # workers/fsdp_workers.py:828-836
        still = in_own_dtype(values, still)
        roles["reference"] = {"model": own, "plan": still, "trained": False, "process": "trainer"}
    if has_critic(values):
        roles["critic"] = {"model": critic_model(values, model), "plan": critic_plan(values, actor), "trained": True, "process": "trainer", "head": "values"}  # fmt: skip
    roles["rollout"] = {"model": model, "plan": rollout_plan(values)}
    placed = separate_placement(values, roles)
    if placed is None:
        return None
    phases = _with_exchanges(_verl_phases(values, sizes), values, actor, sizes)
    found = {"schema": "memsheet/job/1", "name": "verl", "roles": roles, "phases": phases, "notes": _verl_notes(values), **placed}  # fmt: skip
    return with_teachers(values, found, sizes.vocab)


def _is_unknown(values: Values) -> list[bool]:
    """What keeps the job from being made: variables in the place of numbers, further copies of a server,
    parts of Megatron-Core's states alone on the host.
    """
    several = [whole_number(values, f"{ROLLOUT}.{at}_parallel_size", 1) for at in ("data", "expert")]
    parts = _offloaded_parts(values, f"{ACTOR}.megatron")
    of_critic = _offloaded_parts(values, f"{CRITIC}.megatron")
    return [
        server_name(values) not in ROLLOUTS, server_share(values) is None, None in several,
        whole_number(values, f"{ROLLOUT}.tensor_model_parallel_size", 2) is None, rank_count(values) is None,
        not is_sharded(values) and len(set(parts)) > 1, not is_sharded(values) and has_critic(values) and len(set(of_critic)) > 1, row_length(values) is None,
        _log_prob_plan(values, ROLLOUT) is None, has_critic(values) and critic_batch(values) is None,
    ]  # fmt: skip


def _has_reference(values: Values) -> bool:
    in_loss = is_on(values, f"{ACTOR}.use_kl_loss", usual=False)
    return in_loss or is_on(values, "algorithm.use_kl_in_reward", usual=False)


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
    if _has_reference(values) and not trains_adapters(values):
        away = is_sharded(values) or is_on(values, f"{REF}.megatron.param_offload", usual=False)
        found["reference"] = "offloaded" if away else "whole"
    if has_critic(values):
        found["critic"] = REST[_offloaded_parts(values, critic_place(values))]
    return found


def _with_exchanges(
    phases: list[dict[str, Any]], values: Values, actor: Mapping[str, Any], sizes: Sizes
) -> list[dict[str, Any]]:
    """The phases with what ranks that share rows exchange where the actor, its reference or the critic works,
    of which the actor's heads are counted.
    """
    shared = {**dict.fromkeys(OF_ACTOR, sequence_ranks(values) or 1), CRITIC: critic_ranks(values)}
    for phase in phases:
        own = critic_batch(values) or {} if phase.get("active") == CRITIC else {}
        plan = {**actor, **own, **phase.get("plan", {})}
        steps = ("forward",) if phase.get("work") == "forward" else ("forward", "backward")
        more = _exchanged_heads(shared.get(phase.get("active", ""), 1), plan, sizes, steps)
        if more:
            phase["items"] = [*phase.get("items", ()), *more]
    return phases


OF_ACTOR = ("actor", "reference")


def _verl_phases(values: Values, sizes: Sizes) -> list[dict[str, Any]]:
    """The phases of a step, by the names that verl's own timers have (trainer/ppo/ray_trainer.py, fit)."""
    validates = _only_validates(values)
    rests = _rests_before_step(values) if validates else _resting_roles(values)
    sleeps = is_on(values, f"{ROLLOUT}.free_cache_engine", usual=True) and is_together(values)
    asleep = ("asleep-1" if sends_adapters(values) else "asleep-2") if sleeps else "whole"
    training = {**rests, "rollout": asleep}
    awake = {**rests, "rollout": "parameters" if sleeps else "whole"}
    found: list[dict[str, Any]] = [
        {"name": "update_weights", "residents": awake, "items": _handed_over(values, sizes)},
        {"name": "gen", "active": "rollout", "residents": {**rests, "rollout": "whole"}},
    ]
    if validates:
        return found
    optimizer_away = _offloaded_parts(values, _actor_place(values))[1]
    reading = {**training, "actor": READING[optimizer_away]}
    plan = _log_prob_plan(values, ROLLOUT) or {}
    if not is_on(values, BYPASS, usual=False):
        found.append({
            "name": "old_log_prob", "active": "actor", "work": "forward", "plan": plan, "residents": reading,
            **_read_logits(values, plan, entropy=True),
        })  # fmt: skip
    if _has_reference(values):
        own = _log_prob_plan(values, REF) or plan
        role = "actor" if trains_adapters(values) else "reference"
        found.append({
            "name": "ref", "active": role, "work": "forward", "plan": own, "residents": reading if role == "actor" else training,
            **_read_logits(values, own, entropy=False),
        })  # fmt: skip
    if has_critic(values):
        states_away = _offloaded_parts(values, critic_place(values))[1]
        found += [
            {
                "name": "values",
                "active": "critic",
                "work": "forward",
                "plan": values_plan(values),
                "residents": {**training, "critic": READING[states_away]},
            },
            {"name": "update_critic", "active": "critic", "residents": {**training, "critic": "whole"}},
        ]
    last = {"name": "update_actor", "active": "actor", "residents": {**training, "actor": "whole"}}
    return [*found, {**last, **_learnt_logits(values)}]


VALIDATED = {"whole": "parameters", "states": "offloaded"}
"""Of a role of FSDP that never steps: no gradients and no optimizer's states."""


def _only_validates(values: Values) -> bool:
    """Whether the program ends with the validation before its first step (trainer/ppo/ray_trainer.py:1330:
    weights are sent, answers are made, and nothing is learnt from).
    """
    first = is_on(values, "trainer.val_before_train", usual=True)
    return first and is_on(values, "trainer.val_only", usual=False)


def _rests_before_step(values: Values) -> dict[str, str]:
    """Where each role of the trainer is in a validation that no step came before."""
    rests = _resting_roles(values)
    return {name: VALIDATED.get(how, how) for name, how in rests.items()} if is_sharded(values) else rests


EXCHANGES = 4
"""Of a token's queries: as all of its heads' positions have them, and of what attention gives the parts that
are sent, those that come, and their sum (utils/ulysses.py, all_to_all_tensor).
"""


def _exchanged_heads(
    ranks: int, plan: Mapping[str, Any], sizes: Sizes, instants: tuple[str, ...]
) -> list[dict[str, Any]]:
    """What ranks of Ulysses have in a layer beside their part of each row: copies by heads of the queries,
    keys and values that the layer still holds by positions, and what they are exchanged through
    (models/transformers/monkey_patch.py, _ulysses_flash_attention_forward). The layer's widest moment is
    mostly another, its feed-forward's; then none of it.
    """
    if ranks < 2 or not sizes.queries:
        return []
    repeats = max(1, ranks // sizes.key_heads)
    tokens = (plan.get("microbatch") or 1) * (plan.get("seq_len") or 0)
    most = SIXTEEN_BITS * tokens * (EXCHANGES * sizes.queries + 2 * repeats * sizes.keys)
    why = "attention over ranks that exchange positions for heads"
    return [extra_item("temporaries", "exchanged_heads", (0, 0, most), why, *instants)]


def exchanged_keys(values: Values, sizes: Sizes) -> frozenset[str]:
    """The key of ranks that share rows, where what they exchange is of the phases."""
    return frozenset({ULYSSES} if (sequence_ranks(values) or 1) > 1 and sizes.queries else ())


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
        return packed_tokens(tokens, length, shared) if tokens else None
    rows = whole_number(values, f"{place}.log_prob_micro_batch_size_per_gpu", None)
    old, ranks = whole_number(values, f"{place}.log_prob_micro_batch_size", None), data_ranks(values)
    rows = rows or (max(1, old // ranks) if old and ranks else UNSAID_ROWS)
    return {"microbatch": rows, "seq_len": -(-length // shared)}


def _unsaid_batches(values: Values) -> list[str]:
    """Passes of which nobody says how many rows they take at once, in words. verl asks for it."""
    by_tokens = is_on(values, f"{ACTOR}.use_dynamic_bsz", usual=False)
    own = {ROLLOUT: by_tokens, **({REF: by_tokens} if _has_reference(values) else {})}
    passes = {
        place: "log_prob_micro_batch_size"
        for place, usual in own.items()
        if not is_on(values, f"{place}.log_prob_use_dynamic_bsz", usual=usual)
    }
    if has_critic(values) and not is_on(values, f"{CRITIC}.use_dynamic_bsz", usual=by_tokens):
        passes[CRITIC] = "ppo_micro_batch_size"
    return [
        f"{place}.{name}_per_gpu is not said: counted with {UNSAID_ROWS} row"
        for place, name in passes.items()
        if not any(whole_number(values, f"{place}.{name}{end}", None) for end in ("", "_per_gpu"))
    ]


def _has_fused_kernels(values: Values) -> bool:
    usual = is_on(values, f"{MODEL}.use_fused_kernels", usual=False)
    return is_on(values, f"{ACTOR}.use_fused_kernels", usual=usual)


def _read_logits(values: Values, plan: Mapping[str, int], *, entropy: bool) -> dict[str, Any]:
    if _has_fused_kernels(values):
        return {}
    why = "of all tokens, read only (workers/actor/dp_actor.py:240)"
    if not is_sharded(values):  # whose sequences ranks may share
        return {"logits": {"bytes": list(MEGATRON_LOGITS), "why": why}}
    tokens = plan.get("microbatch", 0) * plan.get("seq_len", 0)
    return {"logits": logits_key(tokens, read_logit_bytes(values, tokens, entropy=entropy), why)}


def _learnt_logits(values: Values) -> dict[str, Any]:
    """Of the update; in Megatron-Core the actor's own sheet has them."""
    if _has_fused_kernels(values) or not is_sharded(values):
        return {}
    why = "of all tokens, with their gradient (workers/actor/dp_actor.py:240, utils/torch_functional.py:104)"
    return {"logits": {"bytes": list(learnt_from_top(values) or learnt_logit_bytes(values)), "why": why}}


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
    if server_name(values) != ROLLOUTS[0]:
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
    r"|critic\.model\.lora"
    r"|critic\.(?:model\.fsdp_config|fsdp)\.(?:fsdp_size|reshard_after_forward)$"
    r"|critic\.fsdp\.offload_policy$"
    r"|distillation\.teacher_models\.\w+\.inference\.(?:quantization$|expert_parallel_size$|engine_kwargs\.)"
)
"""Keys that may move memory and that no phase is made of; the server's own stand before verl's
(workers/rollout/vllm_rollout/vllm_async_server.py:207, 285).
"""


AS_USUAL: Mapping[str, tuple[Any, ...]] = {
    "fsdp_size": (-1,), "reshard_after_forward": (True,), "offload_policy": (False,),
}  # fmt: skip
"""Values of such keys that are those of verl's own defaults (trainer/config/engine/fsdp.yaml)."""


def _may_move_memory(at: str) -> bool:
    return UNREAD.match(at) is not None


def _is_as_usual(at: str, held: Any) -> bool:
    """Whether a key says what is counted without it, as files of defaults do."""
    return held is None or held in AS_USUAL.get(at.rpartition(".")[2], ())


def open_words(values: Values) -> tuple[str, ...]:
    """What of the job stays open, in words."""
    found = [
        f"{at} is not read"
        for at, held in values.items()
        if _may_move_memory(at) and not _is_as_usual(at, held)
    ]
    if is_on(values, "reward_model.enable", usual=False) or is_on(
        values, "reward.reward_model.enable", usual=False
    ):
        found.append("the reward model shares the cards and is not counted")
    found += [*_unsaid_batches(values), *open_teacher_words(values)]
    if held_value(values, f"{ROLLOUT}.name", None) is None:
        found.append("which server runs is not said: counted as vLLM")
    experts = whole_number(values, f"{ROLLOUT}.expert_parallel_size", 1) or 1
    if experts not in (1, server_degrees(values)[3]):
        found.append("the server's experts are counted over all of its ranks")
    if server_name(values) != ROLLOUTS[0]:
        found.append("how much is free when the server starts is not known")
    return tuple(found)


def with_machines_of(values: Values, each: int, nodes: int) -> Values:
    """The values with the machines that are asked about, where a script leaves open how many there are."""
    if rank_count(values) is not None:
        return values
    return {**values, "trainer.nnodes": nodes, "trainer.n_gpus_per_node": each}


def with_stated_rows(values: Values, plan: Mapping[str, Any], length: int) -> tuple[Values, dict[str, Any]]:
    """The values and the actor's plan with rows as long as a flag says, in every pass: as many of them as are
    packed, and of each a rank's part. The server takes what the file has it take.
    """
    longest = whole_number(values, LONGEST, None) or row_length(values)
    shorter = {**with_rows_of(values, length), **({LONGEST: longest} if longest else {})}
    batch = read_batch(shorter)
    tokens = batch.get("seq_len")
    held = {**plan, "seq_len": tokens} if tokens else dict(plan)
    if tokens and packs_by_tokens(values):
        rounds = batch.get("@accumulation")
        step = batch["microbatch"] * ranks_of_data(plan) * rounds if rounds else None
        held |= {"microbatch": batch["microbatch"], "global_batch": step}
    return shorter, held


OF_SIZES = re.compile(r"(?:^|[._])(?:lengths?|len|tokens?|micro_batch\w*|turns|offload|dtype)(?:$|_)")
"""Words of keys that say how much is on a card at once."""


def words_of_unknown_sizes(keys: Iterable[str]) -> tuple[str, ...]:
    """What stays open of keys that a launch gives and verl does not have, which a copy of it that somebody
    changed may read: of those that say a size, in words.
    """
    found = [at for at in keys if OF_SIZES.search(at)]
    if not found:
        return ()
    are = "is no key" if len(found) == 1 else "are no keys"
    return (
        f"{', '.join(found)} {are} of verl's own: what a changed copy of it does with them is not counted",
    )


PICTURES = ("data.image_key", "data.video_key")


def words_of_pictures(values: Values) -> tuple[str, ...]:
    """What stays open of data that has pictures, whose tower runs in every pass of a model that sees."""
    said = next((at for at in PICTURES if held_value(values, at, None) is not None), "")
    return (f"what the tower for pictures holds ({said}) is not counted",) if said else ()


def unsaid_longest(values: Values) -> str:
    """The key of the server's longest sequence, where nobody says it: a prompt and an answer in older
    releases
    (their copy in PRIME-RL/TTRL 3e2cc93 verl/verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py:108), as
    long as the model was made for since (workers/rollout/vllm_rollout/vllm_async_server.py:993-996).
    """
    return "" if held_value(values, LONGEST, None) is not None else LONGEST


def has_shorter_rows(values: Values) -> bool:
    """Whether a micro-batch may have fewer tokens than are counted: of so many rows, which are as long as the
    data's are without their padding, or packed of a mini-batch's, which may have fewer than a GPU takes.
    """
    return removes_padding(values)
