"""What ms-swift's trainers have in common where they generate: vLLM beside what trains, and what of the
trainer leaves the card meanwhile. Lines are of modelscope/ms-swift at 3602360, under swift.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.jobs.templates.option import logits_key
from memsheet.jobs.templates.planned import JobDraft, TrainedBytes, extra_item, known_share
from memsheet.jobs.templates.trl import CONTEXT_AT_MOST
from memsheet.units import MIB

Values = Mapping[str, Any]
SHARE = 0.9
"""``vllm_gpu_memory_utilization`` by itself (rlhf_trainers/args_mixin.py:37)."""
ANSWER = 512
"""``max_completion_length`` by itself (arguments/rlhf_args.py:241)."""
BUCKET = 512 * MIB
"""Of weights on their way to a server elsewhere (SWIFT_UPDATE_WEIGHTS_BUCKET_SIZE;
rlhf_trainers/rollout_mixin.py, megatron/trainers/rollout_mixin.py:661).
"""
POOL = {
    **extra_item(
        "kv_cache", "pool_beside", (0, 0, CONTEXT_AT_MOST),
        "vLLM's budget counts memory beside torch from its own start, after the trainer's context",
    ), "role": "rollout",
}  # fmt: skip
UNCOUNTED: Mapping[str, tuple[Any, ...]] = {
    "vllm_engine_kwargs": (None, {}, "{}"), "vllm_enable_lora": (None, False), "vllm_quantization": (None,), "vllm_speculative_config": (None,),
    "vllm_enable_expert_parallel": (None, False), "vllm_data_parallel_size": (None, 1),
}  # fmt: skip
"""Options of its server that move memory and that no plan is made of, with the values that move none."""
APART = "vLLM has cards of its own, which are not counted here: `memsheet infer --engine vllm`"
AWAKE = "vLLM stays awake while the model trains: sleep_level frees its share then"
BETAS = {"grpo": 0.04, "gkd": 0.5}
"""Where nothing is said (arguments/rlhf_args.py:419, 515; megatron/arguments/megatron_args.py:216)."""


def answer_tokens(values: Values) -> Any:
    """Of the longest answer, by its newest name or an older one (arguments/rlhf_args.py:471)."""
    named = (values.get(at) for at in ("response_length", "max_new_tokens", "max_completion_length"))
    return next((held for held in named if held), ANSWER)


def beta_of(values: Values, method: str) -> Any:
    given = values.get("beta")
    return BETAS[method] if given is None else given


def server_plan(values: Values, sequences: int) -> dict[str, Any] | None:
    """Its vLLM (rlhf_trainers/rollout_mixin.py:459-532); None where a number of it is none."""
    tensor, share = (
        values.get("vllm_tensor_parallel_size", 1),
        known_share(values.get(SHARE_KEY, SHARE), SHARE),
    )
    given, longest = values.get("vllm_max_num_seqs") or sequences, values.get("vllm_max_model_len")
    counts = [tensor, given, longest or 1]
    if not all(type(one) is int and one > 0 for one in counts):
        return None
    if share is None:
        return None
    return {
        "task": "infer", "engine": "vllm", "mesh": {"tp": tensor},
        "serving": {
            "memory_fraction": share, "max_sequences": given, **({"max_model_len": longest} if longest else {}),
            **({"cuda_graphs": False} if values.get("vllm_enforce_eager") is True else {}),
        },
    }  # fmt: skip


SHARE_KEY = "vllm_gpu_memory_utilization"


def sleeps_by(values: Values) -> str:
    """How the server is while the trainer works (rlhf_trainers/rollout_mixin.py:1224)."""
    level = values.get("sleep_level", 0)
    return f"asleep-{level}" if level in (1, 2) else "whole"


def unread_words(values: Values) -> list[str]:
    found = {at.partition(".")[0]: held for at, held in values.items() if at.startswith("vllm_")}
    return [f"{at} is not read" for at, plain in UNCOUNTED.items() if at in found and found[at] not in plain]


def rest_while_serving(
    actor: Mapping[str, Any], values: Values, held: TrainedBytes
) -> tuple[str, list[dict[str, Any]]]:
    """Where what trains is while vLLM works, and bytes that stay on the card of what is moved.

    DeepSpeed keeps parameters that learn in a buffer of its own, which moving them does not free, and a
    master copy that is no state of its optimizer (deepspeedai/DeepSpeed edaa7221 runtime/zero/stage3.py:923,
    runtime/zero/stage_1_and_2.py:442-456; rlhf_trainers/rollout_mixin.py:1415-1490).
    """
    model, states = (values.get(at) is True for at in ("offload_model", "offload_optimizer"))
    kept = "what stays of what is moved to the host (rlhf_trainers/rollout_mixin.py:1415-1490)"
    if actor.get("engine") == "deepspeed" and not actor.get("adapter"):
        size = held.master if states else 0
        items = [_of_actor(extra_item("master_weights", "kept", (size, size, size), kept))] if size else []
        return ("parameters" if states else "whole"), items
    frees = actor.get("engine") == "megatron" and model  # whose buffers of gradients go with the model
    size = 0 if frees or not (model or states) else held.gradients
    items = [_of_actor(extra_item("gradients", "kept", (0, size, size), kept))] if size and states else []
    found = {(True, True): "offloaded", (True, False): "states", (False, True): "parameters"}
    return found.get((model, states), "whole"), items


def reloaded_items(actor: Mapping[str, Any], values: Values, held: TrainedBytes) -> list[dict[str, Any]]:
    """Parameters that came back beside DeepSpeed's own buffer of them, until its optimizer steps and they are
    views of that again (runtime/zero/stage3.py, _unflatten_partitioned_parameters).
    """
    both = actor.get("engine") == "deepspeed" and not actor.get("adapter")
    if not both or values.get("offload_model") is not True:
        return []
    why = "parameters that offload_model brought back, beside DeepSpeed's own buffer of them"
    return [_of_actor(extra_item("parameters", "reloaded", (0, held.parameters, held.parameters), why))]


def _of_actor(item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "role": "actor"}


def gathered_items(actor: Mapping[str, Any], values: Values, held: TrainedBytes) -> list[dict[str, Any]]:
    """Weights on their way to the server: all of them at once where ranks divide them, or a part of the
    layers (rlhf_trainers/rollout_mixin.py:534-640, 907-1010).
    """
    if actor.get("zero") != 3 or actor.get("engine") not in ("deepspeed", "fsdp2", "fsdp1"):
        return []
    parts = values.get("move_model_batches")
    size = held.weights // parts + 1 if type(parts) is int and parts > 0 else held.weights
    why = "the weights that are sent, gathered: move_model_batches sends a part at a time"
    return [_of_actor(extra_item("unsharded_parameters", "sent", (0, size, size), why))]


def learnt_key(tokens: int, each: tuple[int, int, int], source: str) -> dict[str, Any]:
    return {"logits": logits_key(tokens, each, f"of answers, with their gradients ({source})")}


def read_key(tokens: int, each: tuple[int, int, int], source: str) -> dict[str, Any]:
    return {"logits": logits_key(tokens, each, f"of answers, read only ({source})")}


def swift_document(
    name: str,
    roles: Mapping[str, Any],
    phases: list[dict[str, Any]],
    *,
    notes: tuple[str, ...] = (),
    words: tuple[str, ...] = (),
    accounted: frozenset[str] = frozenset(),
    over_words: tuple[str, ...] = (),
    shorter_rows: bool = False,
    placement: Mapping[str, Any] | None = None,
) -> JobDraft:
    """A job as ``memsheet/job/1``."""
    document = {
        "schema": "memsheet/job/1", "name": name, "roles": dict(roles), "phases": phases, "notes": list(notes), **({"placement": placement} if placement else {}),
    }  # fmt: skip
    return JobDraft(document, words, shorter_rows=shorter_rows, over_words=over_words, accounted=accounted)
