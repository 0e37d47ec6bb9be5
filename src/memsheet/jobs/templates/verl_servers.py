"""verl's rollout engine: how it is started, with what room for adapters, and on which cards.

Lines are of volcengine/verl b178a3cd5, under verl.
"""

from __future__ import annotations

from typing import Any

from memsheet.exchange.formats.verl.batches import row_length
from memsheet.exchange.formats.verl.strategies import (
    MODEL,
    ROLLOUT,
    held_value,
    is_on,
    rank_count,
    whole_number,
)
from memsheet.exchange.shared.file_format import Values
from memsheet.jobs.templates.planned import card_count, known_share, on_cards

LONGEST = f"{ROLLOUT}.max_model_len"
ROLLOUTS = ("vllm", "sglang")
ROLLOUT_DTYPES = {"bfloat16": "bf16", "half": "fp16", "float16": "fp16", "float": "fp32", "float32": "fp32"}


def separate_placement(values: Values, roles: dict[str, Any]) -> dict[str, Any] | None:
    """Where the roles are, where a server has cards of its own (experimental/fully_async_policy/
    fully_async_trainer.py:171) or takes more than those that the actor's sheet is of; nothing where all share
    them. None where it is said in no number.
    """
    ranks, each = card_count(roles["actor"]["plan"]), _server_cards(values)
    if is_together(values) and ranks % each == 0:
        return {}
    own = rank_count(values)
    served = own if is_together(values) else _separate_server_cards(values)
    if own is None or served is None or served % each:
        return None
    if own != ranks:
        for name, role in roles.items():
            roles[name] = role if name == "rollout" else {**role, "plan": on_cards(role["plan"], own)}
    places = {name: [0, own] for name in roles}
    return {"placement": {**places, "rollout": [0 if is_together(values) else own, served]}}


def is_together(values: Values) -> bool:
    """Whether the server is on the trainer's cards (trainer/config/ppo_trainer.yaml, hybrid_engine)."""
    return is_on(values, "actor_rollout_ref.hybrid_engine", usual=True)


def _separate_server_cards(values: Values) -> int | None:
    """Cards of servers apart: of ``rollout``, or of the server's own group (trainer/ppo/v1/
    trainer_separate_async.py:366; experimental/fully_async_policy/config, nnodes 1 and n_gpus_per_node 8).
    """
    found = []
    for name, usual in (("nnodes", 1), ("n_gpus_per_node", 8)):
        own = whole_number(values, f"{ROLLOUT}.{name}", usual)
        found.append(whole_number(values, f"rollout.{name}", own))
    return found[0] * found[1] if found[0] and found[1] else None


def server_degrees(values: Values) -> tuple[int, int, int, int]:
    """Tensor, pipeline and data parallelism of a server, and ranks that its experts are dealt to: those of
    the first and the third together (workers/rollout/vllm_rollout/vllm_async_server.py).
    """
    tensor = whole_number(values, f"{ROLLOUT}.tensor_model_parallel_size", 2) or 1
    stages = whole_number(values, f"{ROLLOUT}.pipeline_model_parallel_size", 1) or 1
    groups = whole_number(values, f"{ROLLOUT}.data_parallel_size", 1) or 1
    experts = whole_number(values, f"{ROLLOUT}.expert_parallel_size", 1) or 1
    return tensor, stages, groups, tensor * groups if experts > 1 else 1


def _server_cards(values: Values) -> int:
    """Cards of one server: its copies without shared experts stand apart."""
    tensor, stages, groups, experts = server_degrees(values)
    return tensor * stages * (groups if experts > 1 else 1)


SHARE = 0.5
"""Of the card, where nothing is said (workers/config/rollout.py:157)."""


def server_share(values: Values) -> float | None:
    return known_share(held_value(values, f"{ROLLOUT}.gpu_memory_utilization", SHARE), SHARE)


def server_name(values: Values) -> str:
    """The server; vLLM where nobody says which, as releases were before it had to be said."""
    return str(held_value(values, f"{ROLLOUT}.name", ROLLOUTS[0]))


def _adapter_rank(values: Values) -> int:
    """Of what is trained, 0 without adapters."""
    ranks = (whole_number(values, f"{MODEL}.{at}", None) for at in ("lora.rank", "lora_rank"))
    return next((rank for rank in ranks if rank), 0)


def trains_adapters(values: Values) -> bool:
    """Whose base is the reference (workers/fsdp_workers.py:1010)."""
    return _adapter_rank(values) > 0


def sends_adapters(values: Values) -> bool:
    """Whether the server has adapters of its own; else weights are sent with what was added to them
    (1dda039b9 workers/rollout/vllm_rollout/vllm_async_server.py:221-224).
    """
    return trains_adapters(values) and not is_on(values, f"{MODEL}.lora.merge", usual=False)


SERVED_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Of adapters that vLLM has room for; it is given the next larger one (1dda039b9
workers/rollout/vllm_rollout/utils.py:81-100).
"""


def _adapter_room(values: Values) -> dict[str, Any] | None:
    """What the server keeps for the adapters that it is sent: vLLM for those of the next larger rank
    (workers/rollout/vllm_rollout/vllm_async_server.py:342-358), SGLang for their own (1dda039b9
    workers/rollout/sglang_rollout/async_sglang_server.py:343-351).
    """
    rank = _adapter_rank(values)
    if server_name(values) == ROLLOUTS[0]:
        rank = next((one for one in SERVED_RANKS if one >= rank), rank)
    return {"kind": "lora", "rank": rank} if sends_adapters(values) else None


def rollout_plan(values: Values) -> dict[str, Any]:
    """The engine as verl starts it (workers/rollout/vllm_rollout/vllm_async_server.py:255-285)."""
    longest = whole_number(values, f"{ROLLOUT}.max_model_len", None) or row_length(values)
    tensor, stages, groups, experts = server_degrees(values)
    engine = server_name(values)
    paged = engine == ROLLOUTS[0]
    mesh = {
        "tp": tensor,
        **({"pp": stages} if stages > 1 else {}),
        **({"ep": experts} if experts > 1 else {}),
    }
    if experts > 1 and groups > 1:
        mesh |= {"tp": tensor * groups, "attn_dp": groups}
    serving = {
        "memory_fraction": server_share(values),
        "max_sequences": whole_number(values, f"{ROLLOUT}.max_num_seqs", 256),
        **({"max_batched_tokens": whole_number(values, f"{ROLLOUT}.max_num_batched_tokens", 8192)} if paged else {}),
        **({"max_model_len": longest} if longest else {}),
        **({"cuda_graphs": False} if is_on(values, f"{ROLLOUT}.enforce_eager", usual=False) else {}),
    }  # fmt: skip
    held = ROLLOUT_DTYPES.get(str(held_value(values, f"{ROLLOUT}.dtype", "bfloat16")), "bf16")
    precision, room = {"precision": {"parameters": held, "compute": held}}, _adapter_room(values)
    if room and is_on(values, f"{MODEL}.lora.fully_sharded_loras", usual=False) and paged:
        serving["fully_sharded_loras"] = True
    return {
        "task": "infer", "engine": engine, "mesh": mesh, **precision, "serving": serving,
        **({"adapter": room} if room else {}),
    }  # fmt: skip
