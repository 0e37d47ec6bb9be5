"""torchtune's YAML of GRPO by workers (``async_grpo_full_finetune_distributed``): those that train have cards
of their own, and the sheet is of one of them. Lines are of pytorch/torchtune at bd2a0fc.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.formats.torchtune import FORMAT as TRAINED
from memsheet.exchange.formats.torchtune import RECIPE
from memsheet.exchange.formats.torchtune.checkpoints import read_only_key
from memsheet.exchange.shared.file_format import Format, Values
from memsheet.frozen import replace

GROUP = "training."
WORKERS = "orchestration.num_training_workers"
WORKER = "torchtune/dev/rl/workers/trainers/training.py"
ROLES = (
    "GRPO: the workers that train alone: those that generate and those of the reference have cards of their "
    "own, and each that trains holds log-probabilities of both models"
)


def _of_workers(at: str) -> str:
    """What stands in the group of those that train, by the name that it has in other recipes."""
    return at.removeprefix(GROUP)


def _other_workers(values: Values) -> Mapping[str, Any]:
    return {**TRAINED.absent(values), RECIPE: ROLES}


KEYS = (
    *TRAINED.keys,
    read_only_key(
        WORKERS, lambda v, _: {"@gpus": v}, "recipes/dev/async_grpo_full_finetune_distributed.py:131"
    ),
)
FORMAT: Format = replace(
    TRAINED, name="torchtune-async", keys=KEYS, marks=frozenset({"orchestration"}), needs={"model": ..., "training": ...}, rename=_of_workers, absent=_other_workers,
    known=(TRAINED.known | {
        "orchestration.*", "inference.*", "postprocessing.*", "reward_functions", "save_every_n_steps", "steps_before_weight_sync", "debug_logging_enabled",
        "debug_num_samples_per_step",
    }) - {key.at for key in KEYS},
)  # fmt: skip
