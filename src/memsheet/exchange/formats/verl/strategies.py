"""Which of verl's programs a set of values is for, what trains the model there, and on how many GPUs.

Lines are of volcengine/verl at b178a3cd5, under verl.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any

from memsheet.exchange.formats.verl.overrides import CONFIG, STOCK
from memsheet.exchange.shared.file_format import Key, Values
from memsheet.exchange.shared.launched_script import PROGRAM
from memsheet.patterns import late_pattern
from memsheet.plan.values import parse_token_count

ROLLOUT, ACTOR, MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.actor", "actor_rollout_ref.model"
SUPERVISED, OF_ENGINES = "fsdp_sft_trainer", "sft_trainer"
"""Fine-tuning on FSDP alone (trainer/fsdp_sft_trainer.py), and on any of its engines
(trainer/sft_trainer.py).
"""
FSDP1, FSDP2, MEGATRON, VEOMNI, TURBO = "fsdp", "fsdp2", "megatron", "veomni", "fsdp_turbo"
ENGINES = {FSDP1: "fsdp1", FSDP2: "fsdp2", MEGATRON: "megatron", VEOMNI: "fsdp2", TURBO: "fsdp2"}
"""The engine of a plan by a strategy's word (trainer/main_ppo.py:153-159); VeOmni shards by FSDP2."""
GROUPS = ("engine", "model_engine", f"actor@{ACTOR}")
"""Overrides that choose a group of defaults by its name."""
OWN_GROUPS = ("dp", FSDP1, MEGATRON, VEOMNI, "torchtitan", "automodel")
"""What is in the names of its own (1dda039 trainer/config/{actor,engine,model_engine})."""


Back = Callable[[Any, Values], Mapping[str, Any]]
RELEASE = "@release"
"""Beside a file's own keys: which release of verl reads them, where a flag or a requirement says it."""


def verl_row(at: str, back: Back, source: str, usual: Any = None) -> Key:
    """A place that is read and never written. ``usual``: what verl takes where nothing is said."""
    return Key(at=at, out=lambda _: None, back=back, usual=usual, source=source)


def says_nothing(*_: Any) -> Mapping[str, Any]:
    """Of a place that another row reads along with its own."""
    return {}


def held_value(values: Values, at: str, usual: Any) -> Any:
    """A value, or what verl takes where nothing is said."""
    found = values.get(at)
    of_another = isinstance(found, str) and found.startswith("${")  # OmegaConf's name of another key
    return usual if found is None or of_another else found


def whole_number(values: Values, at: str, usual: int | None) -> int | None:
    """A count of at least one, as it is said or taken, or as it is meant in thousands (``4k``, at which the
    job stops); nothing where a variable or anything else stands.
    """
    found = held_value(values, at, usual)
    found = parse_token_count(found) if isinstance(found, str) else found
    return found if type(found) is int and found > 0 else None


def is_on(values: Values, at: str, *, usual: bool) -> bool:
    return str(held_value(values, at, usual)).lower() == "true"


def release_of(values: Values) -> tuple[int, ...]:
    """The release by its numbers; empty where nobody says it, or says a revision."""
    found = late_pattern(r"\d{1,4}(?:\.\d{1,6}){1,3}").search(str(values.get(RELEASE) or ""))
    return tuple(map(int, found[0].split("."))) if found else ()


def trains_actor(values: Values) -> bool:
    """Whether it is the learner of reinforcement learning, and no fine-tuning."""
    return any(at.startswith("actor_rollout_ref.") for at in values)


def program_of(values: Values) -> str:
    """The program that reads the values; of a file without one, the one whose keys it has."""
    named = values.get(PROGRAM)
    if trains_actor(values):
        return str(named or "main_ppo")
    if named in (SUPERVISED, OF_ENGINES):
        return str(named)
    return SUPERVISED if "model.partial_pretrain" in values else OF_ENGINES


def _group_words(values: Values) -> list[str]:
    """Names of the configurations and groups whose defaults are taken."""
    defaults = values.get("defaults")
    listed = defaults if isinstance(defaults, list) else []
    names = [one if isinstance(one, str) else " ".join(map(str, one.values())) for one in listed if isinstance(one, str | Mapping)]  # fmt: skip
    return [
        *names,
        *(str(values.get(at, "")) for at in (CONFIG, STOCK)),
        *(str(values.get(at, "")) for at in GROUPS),
    ]


def strategy_of(values: Values) -> str:
    """What divides the trained model, in verl's word (config/actor/dp_actor.yaml:26,
    config/actor/megatron_actor.yaml; config/sft_trainer.yaml:49; config/engine/fsdp.yaml:60).
    """
    groups = _group_words(values)
    by_group = next((word for word in (MEGATRON, VEOMNI) if any(word in name for name in groups)), None)
    if program_of(values) == SUPERVISED:
        return str(held_value(values, "model.strategy", FSDP2))
    if program_of(values) == OF_ENGINES:
        return by_group or str(held_value(values, "engine.strategy", FSDP1))
    by_engine = held_value(values, f"{ACTOR}.fsdp_config.strategy", FSDP1)
    says_megatron = any(at.startswith(f"{ACTOR}.megatron.") for at in values)
    return str(
        held_value(values, f"{ACTOR}.strategy", by_group or (MEGATRON if says_megatron else by_engine))
    )


def foreign_engine(values: Values) -> str:
    """The name of a group of defaults that is none of verl's own: an engine of another project's, which says
    for itself what it divides and what it moves. Empty of verl's own.
    """
    named = (str(values.get(at) or "") for at in GROUPS)
    others = (name for name in named if name and not any(word in name for word in OWN_GROUPS))
    return next((name for name in others if "$" not in name), "")


def is_sharded(values: Values) -> bool:
    """Whether FSDP of either kind divides it, and not Megatron-Core."""
    return strategy_of(values) != MEGATRON


def engine_place(values: Values) -> str:
    """Where the settings of what divides the model stand."""
    program = program_of(values)
    if program == SUPERVISED:
        return "model.fsdp_config"
    if program == OF_ENGINES:
        return "engine"
    return f"{ACTOR}.fsdp_config" if is_sharded(values) else f"{ACTOR}.megatron"


def model_place(values: Values) -> str:
    return MODEL if trains_actor(values) else "model"


def rank_count(values: Values) -> int | None:
    """GPUs that train: nodes times GPUs of each (config/ppo_trainer.yaml:153-156); those of ``torchrun`` in
    fine-tuning.
    """
    if trains_actor(values):
        nodes, each = (
            whole_number(values, "trainer.nnodes", 1),
            whole_number(values, "trainer.n_gpus_per_node", 8),
        )
    else:
        nodes, each = whole_number(values, "--nnodes", 1), whole_number(values, "--nproc-per-node", None)
    return nodes * each if nodes and each else None


def sequence_ranks(values: Values) -> int | None:
    """Ranks of DeepSpeed-Ulysses that share a sequence (config/actor/dp_actor.yaml:34,
    config/sft_trainer.yaml:57); one in Megatron-Core.
    """
    if not is_sharded(values):
        return 1
    if program_of(values) == SUPERVISED:
        return whole_number(values, "ulysses_sequence_parallel_size", 1)
    of_engine = held_value(values, f"{engine_place(values)}.ulysses_sequence_parallel_size", 1)
    at = f"{ACTOR}.ulysses_sequence_parallel_size"
    found = held_value(values, at, of_engine) if trains_actor(values) else of_engine
    return found if type(found) is int and found > 0 else None


def parallel_degree(values: Values, name: str) -> int | None:
    """A degree of Megatron-Core's (config/engine/megatron.yaml:14-29)."""
    return whole_number(values, f"{engine_place(values)}.{name}_parallel_size", 1)


def data_ranks(values: Values) -> int | None:
    """Ranks, or groups of them, that have rows of their own (workers/fsdp_workers.py:236,
    workers/megatron_workers.py:354).
    """
    ranks = rank_count(values)
    if is_sharded(values):
        shared = sequence_ranks(values)
    else:
        parts = [parallel_degree(values, name) for name in ("tensor_model", "pipeline_model", "context")]
        shared = parts[0] * parts[1] * parts[2] if parts[0] and parts[1] and parts[2] else None
    return ranks // shared or None if ranks and shared else None


def round_count(rows: int, micro: int) -> int:
    """Micro-batches of a step."""
    return max(1, ceil(rows / micro))
