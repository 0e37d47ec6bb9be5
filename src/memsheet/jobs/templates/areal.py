"""AReaL's jobs: a trainer, and servers on other cards or on its own; reference, critic and teacher are
processes of their own, on the actor's cards where it is said. And DPO.

Lines are of inclusionAI/AReaL at 4aef98d, under areal. What is offloaded is paused whole, with a copy on the
host (engine/fsdp_engine.py:901-935, engine/megatron_engine.py:1076-1111). A role that shares cards does not
leave them while another works, unless it is told to (trainer/rl_trainer.py:136-147, 555-770).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.formats.areal.engines import (
    ACTOR,
    CRITIC,
    REFERENCE,
    ROLLOUT,
    TEACHER,
    Engine,
    engine_at,
    has_role,
    is_colocated,
    loads_reference,
    part_tokens,
    shares_with,
)
from memsheet.exchange.shared.file_format import Values
from memsheet.exchange.shared.launch_values import is_switched_on
from memsheet.jobs.templates.planned import (
    SCHEMA,
    JobDraft,
    Sizes,
    card_count,
    extra_item,
    on_cards,
    planned_actor,
    planned_reference,
)
from memsheet.jobs.templates.servers import Server, option_group, sglang_server, vllm_server
from memsheet.units import MIB

READ, LEARNT = (2, 3, 6), (6, 10, 14)
"""Bytes of a logit: in the model's dtype, with log-probabilities and entropy of 1,024 tokens at once in fp32;
where it is learnt from, with fp32 that the compiled parts keep and a gradient that is added up of all parts
(utils/functional/vocab_parallel.py:14-80; engine/fsdp_engine.py:747).
"""
MEGATRON_READ, MEGATRON_LEARNT = (4, 8, 12), (8, 12, 20)
"""Of Megatron-Core's, raised to fp32, with a softmax that its gradient is written over
(utils/functional/vocab_parallel.py:85-400).
"""
CHUNK = 1024 * MIB
"""``weight_chunked_mem_mb`` (api/io_struct.py:191)."""
NAMES = {ACTOR: "actor", REFERENCE: "reference", CRITIC: "critic", TEACHER: "teacher"}
SERVER_USUAL: Mapping[str, Mapping[str, Any]] = {
    "vllm": {"gpu_memory_utilization": 0.9, "max_num_seqs": 256, "max_model_len": 32768},
    "sglang": {"mem_fraction_static": 0.9, "context_length": 32768, "disable_radix_cache": True, "attention_backend": "fa3"},
}  # fmt: skip
"""Where nobody says them (api/cli_args.py:1625-1660, 1737-1772)."""
PLAIN = (
    "model",
    "model_path",
    "seed",
    "random_seed",
    "dtype",
    "skip_tokenizer_init",
    "log_level",
    "log_requests",
)
"""Of a server's group, what moves no byte beside the model's own."""


def areal_job(values: Values, plan: Mapping[str, Any], model: str, sizes: Sizes) -> JobDraft | None:
    """The job of a configuration's values. ``plan``: of the actor, as its own sheet has it. None where a
    role's engine is no known one.
    """
    engine = engine_at(values, ACTOR)
    if engine is None:
        return None
    actor = {**planned_actor(plan)[0], **({"loss": "plain"} if _divides_words(engine) else {})}
    serving = has_role(values, ROLLOUT)
    server, served = _server_of_backend(values) if serving else (None, 0)
    if serving and server is None:
        return None
    ranks = engine.cards if card_count(actor) != engine.cards and serving else card_count(actor)
    actor = actor if ranks == card_count(actor) else on_cards(actor, ranks)
    roles: dict[str, Any] = {"actor": _trained_role(model, actor, ACTOR)}
    placement = {"actor": [0, ranks]}
    free = ranks
    for role in _roles_beside_actor(values):
        named = str(values.get(f"{role}.path") or model)
        known = model if named == values.get("actor.path") else named
        own = engine_at(values, role) or engine
        if own.name != engine.name and role != TEACHER:
            return None
        degrees = {"mesh": {**actor.get("mesh", {}), "tp": own.degrees["t"]}}
        mine = actor if own == engine else on_cards({**actor, **degrees}, own.cards)
        mine = {**mine, **_own_tokens(values, role), **({"loss": "plain"} if _divides_words(own) else {})}
        roles[NAMES[role]] = (
            {**_trained_role(known, mine, role), "head": "values"}
            if role == CRITIC
            else {
                **planned_reference({at: held for at, held in mine.items() if at != "adapter"}, known),
                "process": NAMES[role],
            }
        )
        first = 0 if shares_with(values, role) == ACTOR else free
        placement[NAMES[role]] = [first, card_count(mine) if first == 0 else own.cards]
        free += 0 if first == 0 else own.cards
    if server is not None:
        roles["rollout"] = {"model": model, "plan": server.plan}
        placement["rollout"] = [0 if is_colocated(values) else free, served]
    document = {"schema": SCHEMA, "name": "areal", "roles": roles, "placement": placement, "phases": _areal_phases(values, sizes, roles)}  # fmt: skip
    left = server.left_words if server else ()
    padded = is_switched_on(values, "actor.pad_to_maximum")
    shared = 1 if engine.is_megatron else engine.degrees["c"]
    return JobDraft(document, left, shorter_rows=not padded, row_ranks=shared)


def _divides_words(engine: Engine) -> bool:
    """Whether ranks of FSDP2's trainer divide the vocabulary: a sheet has the loss of whole logits then."""
    return not engine.is_megatron and engine.degrees["t"] > 1


def _trained_role(model: str, plan: Mapping[str, Any], role: str) -> dict[str, Any]:
    return {"model": model, "plan": dict(plan), "trained": True, "process": NAMES[role]}


def _roles_beside_actor(values: Values) -> list[str]:
    """What trains or is read beside the actor, in order."""
    there = {
        CRITIC: has_role(values, CRITIC),
        REFERENCE: loads_reference(values),
        TEACHER: has_role(values, TEACHER),
    }
    return [role for role, is_there in there.items() if is_there]


def _own_tokens(values: Values, role: str) -> dict[str, Any]:
    tokens = part_tokens(values, role)
    return {"microbatch": 1, "seq_len": tokens} if tokens else {}


def _server_of_backend(values: Values) -> tuple[Server | None, int]:
    """One engine of the servers, and the cards of all (api/alloc_mode.py; api/cli_args.py:1625-1850)."""
    engine = engine_at(values, ROLLOUT)
    if engine is None or engine.name not in SERVER_USUAL:
        return None, 0
    own = {at: held for at, held in option_group(values, engine.name).items() if at not in PLAIN}
    given = {**SERVER_USUAL[engine.name], **own}
    each = engine.degrees["t"] * engine.degrees["p"]
    if engine.name == "sglang":
        return sglang_server({**given, "pp_size": engine.degrees["p"]}, engine.name, each), engine.cards
    sizes = {"tensor_parallel_size": engine.degrees["t"], "pipeline_parallel_size": engine.degrees["p"]}
    return vllm_server({**given, **sizes}, engine.name), engine.cards


def _areal_phases(values: Values, sizes: Sizes, roles: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those of a step (trainer/rl_trainer.py:555-770)."""
    together = is_colocated(values)
    away = {
        NAMES[role]: "offloaded" for role in NAMES
        if NAMES[role] in roles and (is_switched_on(values, f"{role}.offload") or (role == ACTOR and together))
    }  # fmt: skip
    asleep = {"rollout": "asleep-2"} if together else {}
    rest = {**away, **asleep}
    found: list[dict[str, Any]] = []
    if "rollout" in roles:
        largest = max(CHUNK, 2 * sizes.vocab * sizes.hidden)
        sent = extra_item(
            "communication", "sent", (0, largest, 2 * largest), "weights on their way (api/io_struct.py:191)"
        )
        found += [
            {"name": "update_weights", "residents": {**rest, "actor": "whole"}, "items": [sent]},
            {"name": "gen", "active": "rollout", "residents": {**away, "rollout": "whole"}},
        ]
    if "critic" in roles:
        found.append(
            {
                "name": "values",
                "active": "critic",
                "work": "forward",
                "residents": {**rest, "critic": "whole"},
            }
        )
    engine = engine_at(values, ACTOR)
    read, learnt = (MEGATRON_READ, MEGATRON_LEARNT) if engine and engine.is_megatron else (READ, LEARNT)
    seen = {
        "logits": {
            "bytes": list(read),
            "why": "of all tokens, read only (utils/functional/vocab_parallel.py:14)",
        }
    }
    there = {**rest, **({"critic": "whole"} if "critic" in roles else {})}
    passes = [("ref", "reference"), ("teacher", "teacher")]
    found += [
        {"name": name, "active": role, "work": "forward", "residents": {**there, role: "whole"}, **seen}
        for name, role in passes if role in roles
    ]  # fmt: skip
    if "rollout" in roles and _recomputes_own(values):
        found.append(
            {
                "name": "old_log_prob",
                "active": "actor",
                "work": "forward",
                "residents": {**there, "actor": "whole"},
                **seen,
            }
        )
    why = "of all tokens, with their gradients (utils/functional/vocab_parallel.py:14-80)"
    whole = {} if engine and _divides_words(engine) else {"logits": {"bytes": list(learnt), "why": why}}
    found.append(
        {"name": "update_actor", "active": "actor", "residents": {**there, "actor": "whole"}, **whole}
    )
    if "critic" in roles:
        found.append(
            {
                "name": "update_critic",
                "active": "critic",
                "residents": {**there, "actor": "whole", "critic": "whole"},
            }
        )
    return found


def _recomputes_own(values: Values) -> bool:
    """Whether the actor's own log-probabilities are read before it is trained (trainer/rl_trainer.py:640;
    api/cli_args.py:1479-1490, 1507).
    """
    asked = is_switched_on(values, "actor.recompute_logprob") or is_switched_on(
        values, "actor.use_decoupled_loss"
    )
    return asked and values.get("actor.prox_logp_method", "recompute") != "loglinear"
