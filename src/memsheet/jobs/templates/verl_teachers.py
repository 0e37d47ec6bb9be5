"""verl's teachers of on-policy distillation: servers with cards of their own, and the loss that learns from
their likeliest tokens.

Lines are of verl-project/verl 1dda039, under verl.
"""

from __future__ import annotations

from typing import Any

from memsheet.exchange.formats.verl.batches import row_length
from memsheet.exchange.formats.verl.strategies import ROLLOUT, held_value, is_on, is_sharded, whole_number
from memsheet.exchange.shared.file_format import Values
from memsheet.frozen import NamedTuple
from memsheet.jobs.templates.planned import card_count, extra_item

DISTILLATION = "distillation"
MODELS, LOSS = f"{DISTILLATION}.teacher_models", f"{DISTILLATION}.distillation_loss"
USUAL = "teacher_model"
"""The entry that is there by default, and goes where others are given (workers/config/distillation.py,
_resolve_teacher_models).
"""
VLLM = "vllm"
BATCHED, SEQUENCES, SHARE = 8192, 1024, 0.5
"""Of a teacher's server where nothing is said (trainer/config/distillation/distillation.yaml)."""
PART, SCORED, GATHERED = 1024, 6, 7
"""Rows of a prompt whose logits newer vLLM makes at once (vllm-project/vllm 00388f6
vllm/v1/worker/gpu/sample/prompt_logprob.py, CHUNK_SIZE); and bytes of a logit where all rows of a request are
made at once (vllm/v1/worker/gpu_model_runner.py, _get_prompt_logprobs_dict): in sixteen bits and its
log-probability in fp32, and with a byte of what it is compared with. Profiling has none of them.
"""
TOP, OF_CHUNKS = (10, 14, 18), (4, 10, 18)
"""Bytes of a logit that is learnt from by the teacher's likeliest tokens: autocast's copy in fp32 and the
log-softmax of it, in backward the gradients of both (trainer/distillation/fsdp/losses.py,
compute_forward_kl_topk); in chunks, which keep their copies for backward.
"""


class Teacher(NamedTuple):
    """A teacher by its entry's name: its model, its server's plan, and all of its cards."""

    name: str
    model: str
    plan: dict[str, Any]
    cards: int


def is_distilling(values: Values) -> bool:
    return is_on(values, f"{DISTILLATION}.enabled", usual=False)


def teachers_of(values: Values) -> tuple[Teacher, ...]:
    """The teachers, where every one's model and cards are said."""
    before = f"{MODELS}."
    named = dict.fromkeys(at.removeprefix(before).partition(".")[0] for at in values if at.startswith(before))
    names = [name for name in named if name != USUAL] or list(named)
    pool = [whole_number(values, f"{DISTILLATION}.{at}", usual) for at, usual in (("n_gpus_per_node", 8), ("nnodes", None))]  # fmt: skip
    found = []
    for name in names if is_distilling(values) else ():
        place, model = f"{before}{name}.inference", values.get(f"{before}{name}.model_path")
        degrees = [whole_number(values, f"{place}.{at}_parallel_size", usual) for at, usual in (("tensor_model", 2), ("pipeline_model", 1), ("data", 1))]  # fmt: skip
        if not isinstance(model, str) or "$" in model or None in degrees:
            return ()
        each = (degrees[0] or 1) * (degrees[1] or 1) * (degrees[2] or 1)
        copies = whole_number(values, f"{before}{name}.num_replicas", None)
        cards = (pool[0] or 0) * (pool[1] or 0) if len(names) == 1 else each * (copies or 0)
        if not cards or cards % each:
            return ()
        role = "teacher" if len(names) == 1 else f"teacher_{name.lower()}"
        found.append(
            Teacher(role, model, _server_plan(values, place, degrees[0] or 1, degrees[1] or 1), cards)
        )
    return tuple(found)


def _server_plan(values: Values, place: str, tensor: int, stages: int) -> dict[str, Any]:
    """A teacher's server, which reads a prompt and its answer and makes one token (workers/config/
    distillation.py, validate_and_prepare_for_distillation).
    """
    engine = str(held_value(values, f"{place}.name", held_value(values, f"{ROLLOUT}.name", VLLM)))
    longest = whole_number(values, f"{place}.max_model_len", None) or (row_length(values) or 0) + 1
    batched = whole_number(values, f"{place}.max_num_batched_tokens", BATCHED)
    serving = {
        "memory_fraction": held_value(values, f"{place}.gpu_memory_utilization", SHARE), "max_model_len": longest,
        "max_sequences": whole_number(values, f"{place}.max_num_seqs", SEQUENCES),
        **({"max_batched_tokens": batched} if engine == VLLM else {}),
        **({"cuda_graphs": False} if is_on(values, f"{place}.enforce_eager", usual=True) else {}),
    }  # fmt: skip
    mesh = {"tp": tensor, **({"pp": stages} if stages > 1 else {})}
    precision = {"parameters": "bf16", "compute": "bf16"}
    return {"task": "infer", "engine": engine, "mesh": mesh, "precision": precision, "serving": serving}


def with_teachers(values: Values, document: dict[str, Any], vocab: int) -> dict[str, Any]:
    """The job with its teachers behind the cards of all others."""
    found = teachers_of(values)
    if not found:
        return document
    roles, own = dict(document["roles"]), card_count(document["roles"]["actor"]["plan"])
    places = dict(document.get("placement") or {name: [0, own] for name in roles})
    students = ("actor",) if places["rollout"][0] == 0 else ("actor", "rollout")
    phases = [_of_roles(phase, students) for phase in document["phases"]]
    others = dict.fromkeys(roles, "absent")
    for one in found:
        first = max(start + many for start, many in places.values())
        roles[one.name] = {"model": one.model, "plan": one.plan}
        places[one.name] = [first, one.cards]
        others |= {other.name: "absent" for other in found if other.name != one.name}
        phase = {
            "name": one.name,
            "active": one.name,
            "residents": dict(others),
            "items": _scores(values, one, vocab),
        }
        phases.insert(2, {key: held for key, held in phase.items() if held})
        others.pop(one.name, None)
    return {**document, "roles": roles, "phases": phases, "placement": places}


def _of_roles(phase: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """A phase in which no role works, as weights are sent, with what it has beside on the cards of the roles
    that are named alone.
    """
    if "active" in phase or "items" not in phase:
        return phase
    return {**phase, "items": [{**one, "role": name} for one in phase["items"] for name in names]}


def _scores(values: Values, teacher: Teacher, vocab: int) -> list[dict[str, Any]]:
    """What the log-probabilities of a row's own tokens are made of."""
    serving = teacher.plan["serving"]
    if teacher.plan["engine"] != VLLM:
        return []
    rows = min(int(serving["max_batched_tokens"] or BATCHED), (row_length(values) or 0) + 1)
    sizes = 2 * vocab * min(PART, rows), SCORED * vocab * rows, GATHERED * vocab * rows
    why = "logits of a row's own tokens and their log-probabilities, which profiling leaves out"
    return [extra_item("temporaries", "prompt_logprobs", sizes, why, "prefill")]


def learnt_from_top(values: Values) -> tuple[int, int, int] | None:
    """Bytes of a logit of FSDP's student that is learnt from by likeliest tokens; None of other losses, which
    take the log-probabilities that are there.
    """
    if not is_distilling(values) or held_value(values, f"{LOSS}.loss_mode", "k3") != "forward_kl_topk":
        return None
    return OF_CHUNKS if is_on(values, f"{LOSS}.use_chunked_topk", usual=False) else TOP


def open_teacher_words(values: Values) -> list[str]:
    """What stays open of a distillation, in words."""
    if not is_distilling(values):
        return []
    found = teachers_of(values)
    words = [] if found else [f"{DISTILLATION}.enabled: which teacher runs on how many cards is not said"]
    if any(one.plan["engine"] != VLLM for one in found):
        words.append("what a teacher's server makes log-probabilities of is not counted")
    if learnt_from_top(values) and not is_sharded(values):
        words.append("a loss of the likeliest tokens on Megatron-Core is not counted")
    return words
