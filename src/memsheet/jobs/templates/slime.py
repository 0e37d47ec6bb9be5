"""slime's jobs: a trainer on Megatron-Core and SGLang's servers, on the same cards or on others.

Lines are of THUDM/slime at 624b824, under slime. The reference, a teacher and an older actor are copies on
the host that are switched into the trainer's own weights, so that no second model is on the card
(backends/megatron_utils/actor.py:302, 420-470). Where the trainer leaves the card, all that it has allocated
is paused, with a copy on the host (:206-221; ray/actor_group.py:92-94), and weights are sent of the host's
copy (:640-690). Servers start before the trainer does, on empty cards (train.py:15-19).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange import find_format
from memsheet.exchange.formats.slime.launches import MODEL, SERVER
from memsheet.exchange.formats.slime.roles import (
    COLOCATE,
    actor_ranks,
    engine_cards,
    has_servers,
    leaves_card,
    longest_sequence,
    reads_reference,
    reads_teacher,
    says_row,
    sglang_cards,
    trains_values,
)
from memsheet.exchange.shared.dotted_places import nest_dotted_keys
from memsheet.exchange.shared.file_format import FileReading, Values, read_format_values
from memsheet.exchange.shared.launch_values import is_switched_on, least_one
from memsheet.jobs.templates.planned import (
    SCHEMA,
    JobDraft,
    Sizes,
    card_count,
    extra_item,
    on_cards,
    planned_actor,
)
from memsheet.jobs.templates.servers import SGLANG_KEPT
from memsheet.units import MIB

READ, LEARNT, LEARNT_ENTROPY = (6, 8, 12), (8, 8, 10), (12, 12, 14)
"""Bytes of a logit of a rank's part of the vocabulary: raised to fp32 by the model's wrapper, with a softmax
beside it that its gradient is written over, and the cast of that; with entropy in the loss the logits stay,
and a gradient of their own is made (utils/ppo_utils.py:215-337, backends/megatron_utils/loss.py:520).
"""
DIVIDED, MASKED = 4, 5
"""More where a temperature other than 1 divides them, and where tokens out of the sampler's are masked
(backends/megatron_utils/loss.py:537-556, utils/ppo_utils.py:290).
"""
BUFFER = 512 * MIB
"""``--update-weight-buffer-size`` (utils/arguments.py:528)."""
NO_FLAGS = ("server-concurrency", "router-", "config")
"""Behind ``--sglang-``, what no server is given."""
REDUCED = ("fp8", "int4", "int8", "w4a", "fp4", "awq", "gptq")


def slime_job(values: Values, plan: Mapping[str, Any], model: str, sizes: Sizes) -> JobDraft | None:
    """The job of a launch's values. ``plan``: of the trainer, as its own sheet has it. None where no server
    has_servers, or where it is not said on how many cards.
    """
    actor, _ = planned_actor(plan)
    ranks, each = card_count(actor), engine_cards(values)
    served = sglang_cards(values, ranks)
    own = actor_ranks(values)
    if each and own and own != ranks and (served is None or served % each):  # a server takes more cards
        actor, ranks, served = on_cards(actor, own), own, sglang_cards(values, own)
    if not has_servers(values) or served is None or each is None or served % each:
        return None
    server = _server_read(values, each)
    first = 0 if is_switched_on(values, COLOCATE) else ranks
    roles: dict[str, Any] = {"actor": {"model": model, "plan": actor, "trained": True, "process": "actor"}}
    placement = {"actor": [0, ranks], "rollout": [first, served]}
    if trains_values(values):
        roles["critic"] = {**roles["actor"], "process": "critic", "head": "values"}
        placement["critic"] = [0, ranks]
    asked = {key: held for key, held in server.request.items() if key[0] not in "@?"}
    roles["rollout"] = {"model": model, "plan": nest_dotted_keys(asked)}
    document = {
        "schema": SCHEMA, "name": "slime", "roles": roles, "placement": placement, "phases": _training_phases(values, sizes), "notes": _reference_notes(values),
    }  # fmt: skip
    over = (SGLANG_KEPT,) if leaves_card(values, "rollout") else ()
    return JobDraft(document, _not_counted_words(values, server), shorter_rows=True, over_words=over)


def _server_read(values: Values, each: int) -> FileReading:
    """SGLang's flags as it is started with them (backends/sglang_utils/sglang_engine.py:506-612)."""
    given = {
        f"--{at.removeprefix(SERVER)}": held for at, held in values.items()
        if at.startswith(SERVER) and not at.removeprefix(SERVER).startswith(NO_FLAGS)
    }  # fmt: skip
    stages = least_one(values, f"{SERVER}pp-size", 1) or 1
    return read_format_values(find_format("sglang"), {**given, "--tp-size": max(1, each // stages)})


def _training_phases(values: Values, sizes: Sizes) -> list[dict[str, Any]]:
    """The phases of a step (train.py:50-95, backends/megatron_utils/actor.py:385-530)."""
    away = "offloaded" if leaves_card(values, "train") else "whole"
    trainers = {"actor": away, **({"critic": away} if trains_values(values) else {})}
    asleep = "asleep-2" if leaves_card(values, "rollout") else "whole"
    awake = "parameters" if leaves_card(values, "rollout") else "whole"
    found: list[dict[str, Any]] = [
        {
            "name": "update_weights",
            "residents": {**trainers, "rollout": awake},
            "items": _weights_on_their_way(values, sizes),
        },
        {"name": "gen", "active": "rollout", "residents": {**trainers, "rollout": "whole"}},
    ]
    rest = {**trainers, "rollout": asleep}
    if trains_values(values):
        there = {**rest, "critic": "whole"}
        found += [
            {"name": "values", "active": "critic", "work": "forward", "residents": there},
            {"name": "update_critic", "active": "critic", "residents": there},
        ]
    there = {**rest, "actor": "whole"}
    read = {
        "logits": {
            "bytes": _logit_bytes(values, READ),
            "why": "of all tokens, read only (backends/megatron_utils/loss.py:500)",
        }
    }
    passes = [
        ("ref", reads_reference(values)),
        ("teacher", reads_teacher(values)),
        ("old_log_prob", _reads_own(values)),
    ]
    found += [
        {"name": name, "active": "actor", "work": "forward", "residents": there, **read}
        for name, made in passes
        if made
    ]
    entropy = values.get("--entropy-coef", 0) not in (0, 0.0)
    why = "of all tokens, with their gradients (utils/ppo_utils.py:215-337)"
    learnt = {"bytes": _logit_bytes(values, LEARNT_ENTROPY if entropy else LEARNT), "why": why}
    return [*found, {"name": "update_actor", "active": "actor", "residents": there, "logits": learnt}]


def _reads_own(values: Values) -> bool:
    """Old log-probabilities, unless the servers' stand for them (backends/megatron_utils/actor.py:452); one
    update of all that was generated takes those of its own forward, which nobody counts here.
    """
    return not is_switched_on(values, "--use-rollout-logprobs") or is_switched_on(
        values, "--get-mismatch-metrics"
    )


def _logit_bytes(values: Values, each: tuple[int, int, int]) -> list[int]:
    divided = DIVIDED if values.get("--rollout-temperature", 1) not in (1, 1.0) else 0
    masked = MASKED if values.get("--rollout-top-p", 1) not in (1, 1.0) else 0
    low, value, high = each
    return [low, value + divided, high + divided + masked]


def _weights_on_their_way(values: Values, sizes: Sizes) -> list[dict[str, Any]]:
    """A buffer of gathered tensors and what is made of it, at least the largest tensor
    (backends/megatron_utils/update_weight/update_weight_from_tensor.py:48-66).
    """
    size = values.get("--update-weight-buffer-size", BUFFER)
    size = size if type(size) is int and size > 0 else BUFFER
    largest = max(size, 2 * sizes.vocab * sizes.hidden)
    return [
        extra_item(
            "communication",
            "buffer",
            (0, 2 * largest, 3 * largest),
            "weights on their way, gathered and renamed",
        )
    ]


def _reference_notes(values: Values) -> list[str]:
    if not (reads_reference(values) or reads_teacher(values)):
        return []
    return ["the reference is a copy on the host, switched into the trainer's own weights for its pass"]


def _not_counted_words(values: Values, server: FileReading) -> tuple[str, ...]:
    found = [f"--sglang-{at.removeprefix('--')} is not read" for at, _ in server.unmodelled]
    found += [f"--sglang-{at.removeprefix('--')} is not known" for at, _ in server.unknown]
    if values.get(f"{SERVER}config") is not None or values.get("--prefill-num-servers") is not None:
        found.append("servers of several kinds are counted as of one")
    if any(word in str(values.get(MODEL, "")).lower() for word in REDUCED):
        found.append(
            "the servers' weights are counted as the trainer's, and their checkpoint stores fewer bits"
        )
    budget = least_one(values, "--max-tokens-per-gpu", None)
    length, context = longest_sequence(values), least_one(values, "--context-parallel-size", 1) or 1
    if not says_row(values) and (budget is None or length is None or length >= budget * context):
        found.append("how long prompts are is not said, and rows are counted without them")
    return tuple(found)
