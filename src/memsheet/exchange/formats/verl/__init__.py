"""verl's launches: shell scripts with Hydra's overrides (``python3 -m verl.trainer.main_ppo key=value …``,
``torchrun -m verl.trainer.fsdp_sft_trainer …``), and YAML of the same places.

Of reinforcement learning the sheet is of the actor while it is updated: the learner alone, on FSDP or on
Megatron-Core. The models that share its cards are told, and no verdict that it fits is sure.

Lines are of volcengine/verl at b178a3cd5, under verl.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange.formats.verl.batches import BATCH_KEYS, row_length
from memsheet.exchange.formats.verl.easy_r1 import easy_r1_tree, launched_values
from memsheet.exchange.formats.verl.losses import (
    LOSS_KEYS,
    WEIGHED,
    roles_beside,
    shared_sequences,
    verl_bytes_beside,
)
from memsheet.exchange.formats.verl.names import KNOWN, UNMODELLED
from memsheet.exchange.formats.verl.overrides import CONFIG, PATHS, stock_file
from memsheet.exchange.formats.verl.pipelined import PIPELINED_KEYS
from memsheet.exchange.formats.verl.sharded import SHARDED_KEYS, trains_adapters
from memsheet.exchange.formats.verl.strategies import (
    ACTOR,
    ENGINES,
    FSDP1,
    FSDP2,
    TURBO,
    VEOMNI,
    foreign_engine,
    is_sharded,
    rank_count,
    says_nothing,
    strategy_of,
    trains_actor,
    verl_row,
)
from memsheet.exchange.formats.verl.written import (
    NOTES,
    WRITTEN,
    WRITTEN_ENGINES,
    compose_verl_script,
    required_verl_values,
    verl_plan_problems,
)
from memsheet.exchange.plan_files import values_of
from memsheet.exchange.shared.file_format import EVERYWHERE, Format, Values, read_format_values
from memsheet.exchange.shared.launched_script import PROGRAM
from memsheet.frozen import replace

VERSION = "verl b178a3cd5"
STRATEGIES = (f"{ACTOR}.strategy", "model.strategy", "engine.strategy")
RANKS = ("trainer.nnodes", "trainer.n_gpus_per_node")
LAUNCHED = ("--nnodes", "--nproc-per-node")


def _read_strategy(_: Any, values: Values) -> Mapping[str, Any]:
    """The engine that runs the strategy; FSDP keeps a share of everything between layers. Of adapters the
    first FSDP makes units of their own (utils/fsdp_utils.py:107-117), as the second divides every tensor.
    """
    strategy = strategy_of(values)
    apart = strategy == FSDP1 and trains_adapters(values)
    engine = ENGINES.get(FSDP2 if apart else strategy, strategy)
    return {"engine": engine, **({"?zero": 3} if is_sharded(values) else {})}


def _read_rank_counts(_: Any, values: Values) -> Mapping[str, Any]:
    """Processes, one a GPU; of several nodes where both counts are known."""
    ranks = rank_count(values)
    nodes = values.get(RANKS[0], 1) if trains_actor(values) else values.get(LAUNCHED[0], 1)
    return {"@gpus": ranks, "@nodes": nodes, "@per_node": ranks // nodes} if ranks and nodes else {}


def _read_learner_ranks(value: Any, values: Values) -> Mapping[str, Any]:
    return _read_rank_counts(value, values) if trains_actor(values) else {}


def _read_tuned_ranks(value: Any, values: Values) -> Mapping[str, Any]:
    return {} if trains_actor(values) else _read_rank_counts(value, values)


def _beside_and_unmodelled(values: Values) -> Mapping[str, Any]:
    """What shares the cards, and a strategy that another stands for."""
    named = strategy_of(values)
    other = {"$.strategy": f"{named} (the sheet is of FSDP2)"} if named in (VEOMNI, TURBO) else {}
    if foreign := foreign_engine(values):
        other = {"$.strategy": f"{foreign}, an engine of another project's (the sheet is of verl's own)"}
    return {**roles_beside(values), **shared_sequences(values), **other}


def _written_plan_problems(asked: Values) -> Iterator[Problem]:
    yield from verl_plan_problems(asked, read_format_values(FORMAT, values_of(FORMAT, asked)).request)


READ_KEYS = (
    *(verl_row(at, lambda v, _: {"@model": v}, "trainer/config/model/hf_model.yaml:10; trainer/config/sft_trainer.yaml:34") for at in PATHS),
    verl_row(PROGRAM, _read_strategy, "trainer/main_ppo.py:153-159", "main_ppo"),
    *(verl_row(at, says_nothing, "trainer/config/actor/dp_actor.yaml:26; trainer/config/sft_trainer.yaml:49") for at in STRATEGIES),
    verl_row(RANKS[0], _read_learner_ranks, "trainer/config/ppo_trainer.yaml:153", 1), verl_row(RANKS[1], _read_learner_ranks, "trainer/config/ppo_trainer.yaml:156", 8),
    *(verl_row(at, _read_tuned_ranks, "torch/distributed/run.py") for at in LAUNCHED),
    *BATCH_KEYS, *SHARDED_KEYS, *PIPELINED_KEYS, *LOSS_KEYS,
)  # fmt: skip
KEYS = tuple(
    replace(row, out=WRITTEN.get(row.at, row.out), says="@model" if row.at == PATHS[0] else row.says)
    for row in READ_KEYS
)
FORMAT: Format = Format(
    name="verl", gradient_sync="every", file="verl.sh", kind="yaml", tested=VERSION, engines=WRITTEN_ENGINES, fixed=required_verl_values, problems=_written_plan_problems,
    compose=compose_verl_script, notes=NOTES, beside=frozenset({"global_batch", "mesh.dp_shard", "mesh.dp_replicate", "vocab_multiple", "allocator.expandable_segments", "adapter.dtype"}), keys=KEYS, said={"task": "train"}, also=launched_values, by_groups=easy_r1_tree, own_defaults=stock_file, program_known=lambda values: PROGRAM in values,
    keys_complete=False, strict=(EVERYWHERE,),  # hydra 1.3.8 hydra/_internal/config_loader_impl.py:393
    refers=(CONFIG,), marks=frozenset({PROGRAM, "actor_rollout_ref", "ulysses_sequence_parallel_size"}), absent=_beside_and_unmodelled, moves=verl_bytes_beside, weighed=WEIGHED, row=row_length,
    unmodelled=UNMODELLED, known=KNOWN - set(UNMODELLED) - WEIGHED - {key.at for key in KEYS},
)  # fmt: skip
